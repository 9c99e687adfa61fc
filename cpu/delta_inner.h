/* Kernels of delta.c in the SIMD wrappers of simd_<isa>.h, compiled once per ISA. */

static GATE_FN(gate) {
    for (int i = 0; i < n; i += LANES) {
        const int m = n - i;
        if (m < LANES) vstorem(y + i, vdiv(vloadm(y + i, m), vadd(vset1(1), vexp(vsub(vzero(), vloadm(g + i, m))))), m);
        else vstore(y + i, vdiv(vload(y + i), vadd(vset1(1), vexp(vsub(vzero(), vload(g + i))))));
    }
}

static CONV_FN(conv) {
    for (int c = 0; c < n; c += LANES) {
        const int m = n - c;
        V sum = !bias ? vzero() : m < LANES ? vloadm(bias + c, m) : vload(bias + c);
        for (int j = 0; j < taps; j++) {
            const float *row = w + (size_t)j * (size_t)ldw + c;
            sum = m < LANES ? vfma(vloadm(row, m), vloadm(x[j] + c, m), sum) : vfma(vload(row), vload(x[j] + c), sum);
        }
        if (!is_linear) sum = vdiv(sum, vadd(vset1(1), vexp(vsub(vzero(), sum))));
        if (m < LANES) vstorem(out + c, sum, m);
        else vstore(out + c, sum);
    }
}

/* D vectors of columns; last: elements of the last vector, 0: all. Two partial sums per column, of even and odd rows,
 * shorten the dependency chain. */
INLINE V delta_load(const float *p, int last) { return last ? vloadm(p, last) : vload(p); }
/* Adds row i of the state, weighted by the key, to what has been seen. */
INLINE void delta_see(V *u, const float *from, const struct delta_row *r, int i, int last, const int D,
                      const bool by_row) {
    const V k = vset1(by_row ? r->k[i] * r->decays[i] : r->k[i]);
    EACH (int c = 0; c < D; c++) u[c] = vfma(k, delta_load(from + c * LANES, c == D - 1 ? last : 0), u[c]);
}
/* Updates row i of the state, and adds it, weighted by the query, to the sum. */
INLINE void delta_update(V *u, float *to, const float *from, const V *d, V decay, const struct delta_row *r, int i,
                         int last, const int D, const bool by_row) {
    const V k = vset1(r->k[i]), q = vset1(r->q[i]);
    if (by_row) decay = vset1(r->decays[i]);
    EACH (int c = 0; c < D; c++) {
        const int part = c == D - 1 ? last : 0;
        V s = vmul(k, d[c]);
        if (from) s = vfma(decay, delta_load(from + c * LANES, part), s);
        if (part) vstorem(to + c * LANES, s, part);
        else vstore(to + c * LANES, s);
        u[c] = vfma(q, s, u[c]);
    }
}
INLINE void delta_columns(float *o, float *to, const float *from, int ld, const struct delta_row *r, const float *v,
                          int k_dim, int last, const int D, const bool by_row) {
    V u[2][4], d[4];
    const size_t step = (size_t)ld;
    const int pairs = k_dim / 2 * 2;
    EACH (int c = 0; c < D; c++) u[0][c] = u[1][c] = vzero();
    if (from && !r->ignores_seen) {
        for (int i = 0; i < pairs; i += 2) {
            delta_see(u[0], from + (size_t)i * step, r, i, last, D, by_row);
            delta_see(u[1], from + (size_t)i * step + step, r, i + 1, last, D, by_row);
        }
        if (pairs < k_dim) delta_see(u[0], from + (size_t)pairs * step, r, pairs, last, D, by_row);
    }
    EACH (int c = 0; c < D; c++) {
        V seen = vmul(vset1(r->decay * r->ks), vadd(u[0][c], u[1][c]));
        d[c] = vmul(vset1(r->beta * r->ks), vsub(delta_load(v + c * LANES, c == D - 1 ? last : 0), seen));
        u[0][c] = u[1][c] = vzero();
    }
    const V decay = vset1(r->decay);
    if (from) {
        for (int i = 0; i < pairs; i += 2) {
            const size_t at = (size_t)i * step;
            delta_update(u[0], to + at, from + at, d, decay, r, i, last, D, by_row);
            delta_update(u[1], to + at + step, from + at + step, d, decay, r, i + 1, last, D, by_row);
        }
        if (pairs < k_dim)
            delta_update(u[0], to + (size_t)pairs * step, from + (size_t)pairs * step, d, decay, r, pairs, last, D,
                         by_row);
    } else
        for (int i = 0; i < k_dim; i++)
            delta_update(u[i % 2], to + (size_t)i * step, NULL, d, decay, r, i, last, D, by_row);
    EACH (int c = 0; c < D; c++) {
        V sum = vmul(vset1(r->qs), vadd(u[0][c], u[1][c]));
        if (r->skip != 0) sum = vfma(vset1(r->skip), delta_load(v + c * LANES, c == D - 1 ? last : 0), sum);
        if (c == D - 1 && last) vstorem(o + c * LANES, sum, last);
        else vstore(o + c * LANES, sum);
    }
}
INLINE void delta_all(float *o, float *to, const float *from, int ld, const struct delta_row *r, const float *v,
                      int k_dim, int n, const bool by_row) {
    int c = 0;
    for (; c + 4 * LANES <= n; c += 4 * LANES)
        delta_columns(o + c, to + c, from ? from + c : NULL, ld, r, v + c, k_dim, 0, 4, by_row);
    for (; c < n; c += LANES)
        delta_columns(o + c, to + c, from ? from + c : NULL, ld, r, v + c, k_dim, n - c < LANES ? n - c : 0, 1, by_row);
}
static DELTA_FN(delta) {
    if (r->decays) delta_all(o, to, from, ld, r, v, k_dim, n, true);
    else delta_all(o, to, from, ld, r, v, k_dim, n, false);
}

static void fill_delta(struct kernels *k) {
    k->gate = gate;
    k->conv = conv;
    k->delta = delta;
}

/* Attention tiles and element-wise kernels in the SIMD wrappers of simd_<isa>.h, compiled once per ISA. */
#include <float.h>
#include <math.h>

/* Loads once: FMAs with memory operands would load again for each sum. */
#ifdef HEARTH_SIMDE /* SIMDe vectors are not registers */
#define IN_REGISTER(v) (void)0
#else
#define IN_REGISTER(v) __asm__ volatile("" : "+v"(v))
#endif

/* Q query rows against K keys, one or four. Each pair has one vector of partial sums, so that a loaded key is used by Q
 * rows and a loaded query by K keys. The sums of four keys are stored together. */
INLINE void qk_block(float *s, int lds, const float *const *q, const float *k, int ldk, int dim, float scale,
                     const int Q, const int K) {
    V sum[4][4];
    EACH (int i = 0; i < Q; i++)
        EACH (int j = 0; j < K; j++) sum[i][j] = vzero();
    int d = 0;
    for (; d + LANES <= dim; d += LANES) {
        V kv[4];
        EACH (int j = 0; j < K; j++) {
            kv[j] = vload(k + (size_t)j * (size_t)ldk + d);
            IN_REGISTER(kv[j]);
        }
        EACH (int i = 0; i < Q; i++) {
            V qv = vload(q[i] + d);
            IN_REGISTER(qv);
            EACH (int j = 0; j < K; j++) sum[i][j] = vfma(qv, kv[j], sum[i][j]);
        }
    }
    if (d < dim) {
        V kv[4];
        EACH (int j = 0; j < K; j++) kv[j] = vloadm(k + (size_t)j * (size_t)ldk + d, dim - d);
        EACH (int i = 0; i < Q; i++) {
            V qv = vloadm(q[i] + d, dim - d);
            EACH (int j = 0; j < K; j++) sum[i][j] = vfma(qv, kv[j], sum[i][j]);
        }
    }
    EACH (int i = 0; i < Q; i++) {
        float out[4];
        vsum4(sum[i][0], K > 1 ? sum[i][1] : vzero(), K > 1 ? sum[i][2] : vzero(), K > 1 ? sum[i][3] : vzero(), scale,
              K > 1 ? s + i * lds : out);
        if (K == 1) s[i * lds] = out[0];
    }
}
INLINE void qk_rows(float *s, int lds, const float *const *q, const float *k, int ldk, int dim, float scale, int nq,
                    const int K) {
    const int Q = LANES == 16 ? 4 : 2;
    int i = 0;
    for (; i + Q <= nq; i += Q) qk_block(s + i * lds, lds, q + i, k, ldk, dim, scale, Q, K);
    for (; i < nq; i++) qk_block(s + i * lds, lds, q + i, k, ldk, dim, scale, 1, K);
}
/* Processes queries in groups that fill half of L1, and for these one key after the other: key rows may be so far apart
 * that few fit. */
static QK_FN(qk) {
    enum { HALF = 4096 };
    const int most = HALF / dim > 4 ? HALF / dim / 4 * 4 : 4;
    for (int i = 0; i < nq; i += most) {
        const int n = nq - i < most ? nq - i : most;
        int j = 0;
        for (; j + 4 <= nk; j += 4)
            qk_rows(s + i * lds + j, lds, q + i, k + (size_t)j * (size_t)ldk, ldk, dim, scale, n, 4);
        for (; j < nk; j++) qk_rows(s + i * lds + j, lds, q + i, k + (size_t)j * (size_t)ldk, ldk, dim, scale, n, 1);
    }
}

static SOFTMAX_FN(soft) {
    float old = *max, m = old;
    int j = 0;
    if (n >= LANES) {
        V top = vload(s);
        for (j = LANES; j + LANES <= n; j += LANES) top = vmax(top, vload(s + j));
        float t = vtop(top);
        m = t > m ? t : m;
    }
    for (; j < n; j++) m = s[j] > m ? s[j] : m;
    V total = vzero(), vm = vset1(m);
    for (j = 0; j + LANES <= n; j += LANES) {
        V e = vexp(vsub(vload(s + j), vm));
        vstore(s + j, e);
        total = vadd(total, e);
    }
    if (j < n) {
        V e = vexp(vsub(vloadm(s + j, n - j), vm));
        vstorem(s + j, e, n - j);
        total = vadd(total, vloadm(s + j, n - j));
    }
    float corr = expf(old - m);
    *max = m;
    *sum = *sum * corr + vsum(total);
    return corr;
}

/* Q rows by D vectors of the output, all keys of the tile. */
INLINE void pv_block(float *o, int ldo, const float *corr, const float *p, int ldp, const float *v, int ldv, int nk,
                     int last, const int Q, const int D) {
    V sum[4][4];
    EACH (int i = 0; i < Q; i++)
        EACH (int d = 0; d < D; d++) {
            const float *at = o + (size_t)i * (size_t)ldo + d * LANES;
            sum[i][d] = vmul(last && d == D - 1 ? vloadm(at, last) : vload(at), vset1(corr[i]));
        }
    for (int j = 0; j < nk; j++, v += ldv) {
        V vv[4];
        EACH (int d = 0; d < D; d++) vv[d] = last && d == D - 1 ? vloadm(v + d * LANES, last) : vload(v + d * LANES);
        EACH (int i = 0; i < Q; i++) {
            V w = vset1(p[i * ldp + j]);
            EACH (int d = 0; d < D; d++) sum[i][d] = vfma(w, vv[d], sum[i][d]);
        }
    }
    EACH (int i = 0; i < Q; i++)
        EACH (int d = 0; d < D; d++) {
            float *at = o + (size_t)i * (size_t)ldo + d * LANES;
            if (last && d == D - 1) vstorem(at, sum[i][d], last);
            else vstore(at, sum[i][d]);
        }
}
INLINE void pv_rows(float *o, int ldo, const float *corr, const float *p, int ldp, const float *v, int ldv, int nk,
                    int dim, const int Q) {
    const int D = LANES == 16 ? 4 : 2;
    int d = 0;
    for (; d + D * LANES <= dim; d += D * LANES) pv_block(o + d, ldo, corr, p, ldp, v + d, ldv, nk, 0, Q, D);
    for (; d < dim; d += LANES) pv_block(o + d, ldo, corr, p, ldp, v + d, ldv, nk, dim - d < LANES ? dim - d : 0, Q, 1);
}
static PV_FN(pv) {
    int i = 0;
    for (; i + 4 <= nq; i += 4)
        pv_rows(o + (size_t)i * (size_t)ldo, ldo, corr + i, p + i * ldp, ldp, v, ldv, nk, dim, 4);
    for (; i < nq; i++) pv_rows(o + (size_t)i * (size_t)ldo, ldo, corr + i, p + i * ldp, ldp, v, ldv, nk, dim, 1);
}

/* --- Element-wise ----------------------------------------------------------------------------- */

static SUMSQ_FN(sumsq) {
    V sum[4] = {vzero(), vzero(), vzero(), vzero()};
    int i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        EACH (int u = 0; u < 4; u++) {
            V v = vload(x + i + u * LANES);
            sum[u] = vfma(v, v, sum[u]);
        }
    for (; i < n; i += LANES) {
        V v = n - i < LANES ? vloadm(x + i, n - i) : vload(x + i);
        sum[0] = vfma(v, v, sum[0]);
    }
    return vsum(vadd(vadd(sum[0], sum[1]), vadd(sum[2], sum[3])));
}
static SCALE_FN(scale_row) {
    V vs = vset1(s), va = vset1(add);
    for (int i = 0; i < n; i += LANES) {
        const int m = n - i;
        if (m < LANES) vstorem(out + i, vmul(vmul(vloadm(x + i, m), vs), vadd(vloadm(w + i, m), va)), m);
        else vstore(out + i, vmul(vmul(vload(x + i), vs), vadd(vload(w + i), va)));
    }
}
struct glu_v { /* struct glu in vectors */
    /* limit of g; bounds of u; alpha and cubic negated; limit of the activation of g */
    V limit, low, high, alpha, shift, cubic, after;
    V gate_cap, up_cap;
    V xielu_p, xielu_n, xielu_beta;
};
/* tanh of an eighth by its continued fraction, then tanh(2 t) = 2 tanh(t) / (1 + tanh(t)^2): few ulp at any size, which
 * a difference of exponentials lacks. */
INLINE V vtanh(V z) {
    const V t = vmul(vclamp(z, -9, 9), vset1(0.125f)), s = vmul(t, t);
    V r = vdiv(vmul(t, vfma(s, vadd(s, vset1(105)), vset1(945))), vfma(s, vfma(s, vset1(15), vset1(420)), vset1(945)));
    EACH (int i = 0; i < 3; i++) r = vdiv(vadd(r, r), vfma(r, r, vset1(1)));
    return r;
}
/* g times the normal distribution up to g: max(g, 0) - |g| * tail, with the tail beyond |g| by formula 7.1.26 of
 * Abramowitz and Stegun, absolute error 1e-7. */
INLINE V vgelu(V g) {
    const V most = vmax(vsub(vzero(), g), g), z = vmul(most, vset1(0.70710678f));
    const V t = vdiv(vset1(1), vfma(z, vset1(0.3275911f), vset1(1)));
    V p = vfma(t, vset1(1.061405429f), vset1(-1.453152027f));
    p = vfma(p, t, vset1(1.421413741f));
    p = vfma(p, t, vset1(-0.284496736f));
    p = vmul(vfma(p, t, vset1(0.254829592f)), t);
    const V tail = vmul(vmul(vset1(0.5f), p), vexp(vsub(vzero(), vmul(z, z))));
    return vsub(vmax(vzero(), g), vmul(vmin(vset1(FLT_MAX), most), tail));
}
static const float ones[LANES] = {[0 ... LANES - 1] = 1}; /* u of FFNs without gate */
enum glu_kind { GLU_SILU, GLU_RELU, GLU_CAPPED, GLU_ERF, GLU_XIELU, GLU_ANY };
INLINE V glu_of(V g, V u, const struct glu_v *a, const enum glu_kind kind) {
    if (kind == GLU_CAPPED)
        return vmul(vdiv(vmul(a->gate_cap, vtanh(vdiv(g, a->gate_cap))), vadd(vset1(1), vexp(vsub(vzero(), g)))),
                    vmul(a->up_cap, vtanh(vdiv(u, a->up_cap))));
    if (kind == GLU_RELU) return vmul(vmax(vzero(), g), u);
    if (kind == GLU_ERF) return vmul(vgelu(g), u);
    if (kind == GLU_XIELU) {
        const V up = vmax(vzero(), g), down = vmin(vzero(), g);
        const V below = vmul(a->xielu_n, vsub(vsub(vexp(down), vset1(1)), down));
        return vfma(a->xielu_beta, g, vfma(vmul(a->xielu_p, up), up, below));
    }
    if (kind == GLU_SILU) return vmul(vdiv(g, vadd(vset1(1), vexp(vsub(vzero(), g)))), u);
    g = vmin(a->limit, g), u = vmax(a->low, vmin(a->high, u));
    V rate = vfma(a->cubic, vmin(vset1(FLT_MAX), vmul(g, g)), a->alpha);
    return vmul(vmin(a->after, vdiv(g, vadd(vset1(1), vexp(vmul(g, rate))))), vadd(u, a->shift));
}
INLINE void glu_all(float *h, const float *g, const float *u, int n, const struct glu_v *a, const enum glu_kind kind) {
    for (int i = 0; i < n; i += LANES) {
        const int m = n - i;
        const float *up = u ? u + i : ones;
        if (m < LANES) vstorem(h + i, glu_of(vloadm(g + i, m), vloadm(up, m), a, kind), m);
        else vstore(h + i, glu_of(vload(g + i), vload(up), a, kind));
    }
}
static GLU_FN(glu) {
    const float limit = a->limit > 0 ? a->limit : INFINITY;
    const struct glu_v v = {.limit = vset1(a->clamp_after ? INFINITY : limit),
                            .low = vset1(-limit),
                            .high = vset1(limit),
                            .alpha = vset1(a->alpha > 0 ? -a->alpha : -1),
                            .shift = vset1(a->shift),
                            .cubic = vset1(-a->cubic),
                            .after = vset1(a->clamp_after ? limit : INFINITY),
                            .gate_cap = vset1(a->gate_cap),
                            .up_cap = vset1(a->up_cap),
                            .xielu_p = vset1(a->xielu_p),
                            .xielu_n = vset1(a->xielu_n),
                            .xielu_beta = vset1(a->xielu_beta)};
    if (a->is_ungated) u = NULL;
    if (a->is_relu) glu_all(h, g, u, n, &v, GLU_RELU);
    else if (a->is_erf) glu_all(h, g, u, n, &v, GLU_ERF);
    else if (a->xielu_beta > 0) glu_all(h, g, u, n, &v, GLU_XIELU);
    else if (a->gate_cap > 0) glu_all(h, g, u, n, &v, GLU_CAPPED);
    else if (a->limit > 0 || a->alpha > 0 || a->shift != 0 || a->cubic > 0) glu_all(h, g, u, n, &v, GLU_ANY);
    else glu_all(h, g, u, n, &v, GLU_SILU);
}
static AXPY_FN(axpy) {
    V va = vset1(a);
    for (int i = 0; i < n; i += LANES) {
        const int m = n - i;
        if (m < LANES) vstorem(y + i, vfma(va, vloadm(x + i, m), vloadm(y + i, m)), m);
        else vstore(y + i, vfma(va, vload(x + i), vload(y + i)));
    }
}
INLINE void turn(V *a, V *b, V c, V s) {
    V x = vsub(vmul(*a, c), vmul(*b, s));
    *b = vadd(vmul(*b, c), vmul(*a, s));
    *a = x;
}
static ROPE_FN(rope) {
    V vs = vset1(sign);
    int j = 0;
    for (; j + LANES <= half; j += LANES) {
        V c = vload(cos + j), s = vmul(vload(sin + j), vs), a, b, lo, hi;
        if (interleaved) vsplit(vload(x + 2 * j), vload(x + 2 * j + LANES), &a, &b);
        else a = vload(x + j), b = vload(x + j + half);
        turn(&a, &b, c, s);
        if (interleaved) {
            vjoin(a, b, &lo, &hi);
            vstore(x + 2 * j, lo);
            vstore(x + 2 * j + LANES, hi);
        } else vstore(x + j, a), vstore(x + j + half, b);
    }
    for (; j < half; j++) {
        float *pa = interleaved ? x + 2 * j : x + j, *pb = interleaved ? pa + 1 : pa + half, s = sin[j] * sign, a = *pa,
              b = *pb;
        *pa = a * cos[j] - b * s;
        *pb = b * cos[j] + a * s;
    }
}

static void fill_attn(struct kernels *k) {
    k->qk = qk;
    k->soft = soft;
    k->pv = pv;
    k->sumsq = sumsq;
    k->scale = scale_row;
    k->glu = glu;
    k->axpy = axpy;
    k->rope = rope;
}

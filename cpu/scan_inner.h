/* The kernel of scan.c in the SIMD wrappers of simd_<isa>.h, compiled once per ISA. */

/* A vector of channels; last: its elements, 0: all. Two partial sums, of even and odd rows of the state, shorten the
 * dependency chain. */
INLINE V scan_load(const float *p, int last) { return last ? vloadm(p, last) : vload(p); }
INLINE void scan_channels(float *o, float *to, const float *from, const struct scan_row *r, int at, const int last) {
    const V x = scan_load(r->x + at, last), step = scan_load(r->step + at, last), in = vmul(x, step);
    V sum[2] = {vzero(), vzero()};
    for (int i = 0; i < r->state; i++) {
        const size_t k = (size_t)i * (size_t)r->ld + (size_t)at;
        V s = vmul(vset1(r->b[i]), in);
        if (from) s = vfma(vexp(vmul(scan_load(r->rate + k, last), step)), scan_load(from + k, last), s);
        if (last) vstorem(to + k, s, last);
        else vstore(to + k, s);
        if (i % 2) sum[1] = vfma(vset1(r->c[i]), s, sum[1]);
        else sum[0] = vfma(vset1(r->c[i]), s, sum[0]);
    }
    const V out = vfma(scan_load(r->skip + at, last), x, vadd(sum[0], sum[1]));
    if (last) vstorem(o + at, out, last);
    else vstore(o + at, out);
}
static SCAN_FN(scan) {
    for (int c = 0; c < n; c += LANES) {
        if (n - c < LANES) scan_channels(o, to, from, r, c, n - c);
        else scan_channels(o, to, from, r, c, 0);
    }
}

static void fill_scan(struct kernels *k) { k->scan = scan; }

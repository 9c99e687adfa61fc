/* Machine limits, in the SIMD wrappers of simd_<isa>.h. */

/* Reads every 64-byte line of `bytes` (a multiple of 4096 * 8), in `streams` interleaved parts. */
static READ_FN(read_all) {
    V a = vzero(), b = vzero(), c = vzero(), d = vzero();
    size_t part = bytes / (size_t)streams;
    for (size_t o = 0; o < part; o += 256)
        for (int s = 0; s < streams; s++) {
            const float *q = (const float *)(const void *)(p + (size_t)s * part + o);
            if (ahead)
                for (int l = 0; l < 256; l += 64) _mm_prefetch((const char *)q + ahead + l, _MM_HINT_T0);
            /* max is one cheap instruction per load and keeps the loads from being optimised away */
            EACH (int u = 0; u < 64; u += 4 * LANES) {
                a = vmax(a, vload(q + u));
                b = vmax(b, vload(q + u + LANES));
                c = vmax(c, vload(q + u + 2 * LANES));
                d = vmax(d, vload(q + u + 3 * LANES));
            }
        }
    return vtop(vmax(vmax(a, b), vmax(c, d)));
}

/* Runs n times 12 independent FMAs; returns the number of float operations. */
static PEAK_FN(fma_peak) {
    V acc[12], a = vset1(1.000001f), b = vset1(1e-7f);
    EACH (int i = 0; i < 12; i++) acc[i] = vset1((float)i);
    for (int64_t k = 0; k < n; k++) {
        EACH (int i = 0; i < 12; i++) acc[i] = vfma(acc[i], a, b);
    }
    V sum = vzero();
    EACH (int i = 0; i < 12; i++) sum = vadd(sum, acc[i]);
    *sink = vsum(sum);
    return (double)n * 12 * 2 * LANES;
}

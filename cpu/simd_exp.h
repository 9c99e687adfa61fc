/* Included by both vector widths, after their definitions. */

/* e^x: 2^n times a polynomial on [-ln2/2, ln2/2], relative error about 1e-7; 0 from -104 down, inf from 89 up. */
INLINE V vexp(V x) {
    x = vclamp(x, -104.0f, 89.0f);
    V n = vnearest(vmul(x, vset1(1.44269504f)));
    V r = vfma(n, vset1(-1.42860677e-6f), vfma(n, vset1(-0.693145752f), x));
    V p = vset1(1.3981999507e-3f);
    p = vfma(p, r, vset1(8.3334519073e-3f));
    p = vfma(p, r, vset1(4.1665795894e-2f));
    p = vfma(p, r, vset1(1.6666665459e-1f));
    p = vfma(p, r, vset1(0.5f));
    p = vadd(vfma(vmul(p, r), r, r), vset1(1.0f));
    return vscale(p, n);
}

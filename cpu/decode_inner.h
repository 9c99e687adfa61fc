/* Conversion of any columns of a row to float32, from the conversion of whole blocks; in the SIMD wrappers of
 * simd_<isa>.h. */
#include "base/mat_at.h"
#include "base/scale.h"

/* out[c - c0] = w[r][c], c0 <= c < c1. `block` columns take `bytes`; leading columns inside a block are left to the
 * reference. */
INLINE void decode_scaled(float *out, const struct mat *w, int r, int c0, int c1, widen_fn widen, const int block,
                          const int bytes, bool has_zero) {
    for (; c0 % block && c0 < c1; c0++) *out++ = mat_at(w, r, c0);
    widen(out, (const uint8_t *)w->data + (size_t)r * w->stride + (size_t)(c0 / block) * (size_t)bytes, c1 - c0);
    if (!w->scale) return;
    for (int c = c0; c < c1;) {
        int end = c - c % w->block_cols + w->block_cols;
        float f = scale_load(w, scale_row(w, r) + (size_t)(c / w->block_cols));
        const float z =
            has_zero ? (float)(zero_default(w->dtype) - zero_load(w, scale_row(w, r) + (size_t)(c / w->block_cols)))
                     : 0;
        const V s = vset1(f), add = vset1(z);
        for (end = end < c1 ? end : c1; c + LANES <= end; c += LANES) {
            const V v = vload(out + c - c0);
            vstore(out + c - c0, vmul(has_zero ? vadd(v, add) : v, s));
        }
        for (; c < end; c++) out[c - c0] = (out[c - c0] + z) * f;
    }
}

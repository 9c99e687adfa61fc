#pragma once
/* Rows of weights for gemm_int8_avx2.c whose scales are a separate array: I4, I8 and E2M1 are unpacked as the block
 * format with the same codes, I4 as Q4_0, I4 with zero points as Q4_1, I8 as Q8_0, E2M1 with E8M0 scales as MXFP4, with
 * E4M3 scales as NVFP4. Also NVFP4's blocks. */
#include "base/scale.h"
#include "cpu/int8_rows_avx2.h"

/* The block format with the same codes; DT_COUNT: these kernels do not have the matrix. */
INLINE int same_codes(const struct mat *w) {
    if (!w->scale || w->cols % 32) return DT_COUNT;
    if (w->dtype == DT_E2M1 && w->scale_dtype == DT_E4M3) return w->block_cols == 16 ? DT_NVFP4 : DT_COUNT;
    if (w->dtype == DT_E2M1) return w->scale_dtype == DT_E8M0 && w->block_cols == 32 ? DT_MXFP4 : DT_COUNT;
    if (w->block_cols % 32 && w->block_cols < w->cols) return DT_COUNT;
    if (w->dtype == DT_I8) return w->scale_dtype == DT_F32Z ? DT_COUNT : DT_Q8_0;
    if (w->dtype != DT_I4) return DT_COUNT;
    return w->scale_dtype == DT_F32Z ? DT_Q4_1 : DT_Q4_0;
}
/* Bytes of n columns, a multiple of 32; of NVFP4 in blocks or with scales beside it. */
INLINE int beside_bytes(int n, const int dtype, const bool blocks) {
    return blocks ? n / FORMAT_BLOCK(nvfp4) * FORMAT_BYTES(nvfp4) : dtype == DT_Q8_0 ? n : n / 2;
}
/* 32 codes at p: neighbours in a byte, but NVFP4's blocks have the last eight of 16 in the upper halves of eight bytes.
 */
INLINE __m256i nibbles_codes(const uint8_t *p, const int dtype, const bool blocks) {
    const __m128i v = load_16(p), four = _mm_set1_epi8(15), low = _mm_and_si128(v, four),
                  high = _mm_and_si128(_mm_srli_epi16(v, 4), four);
    const __m256i codes = blocks ? _mm256_set_m128i(_mm_unpackhi_epi64(low, high), _mm_unpacklo_epi64(low, high))
                                 : _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high));
    return dtype == DT_MXFP4 || dtype == DT_NVFP4 ? fp4_values(codes) : codes;
}
/* Codes of part k of the 256 columns at p. */
INLINE __m256i beside_codes(const uint8_t *p, const int k, const int dtype, const bool blocks) {
    if (blocks) p += k / 2 * FORMAT_BYTES(nvfp4) + 4 + k % 2 * 16;
    else p += beside_bytes(32 * k, dtype, false);
    return dtype == DT_Q8_0 ? wide_codes(load_32(p)) : nibbles_codes(p, dtype, blocks);
}
/* Scales of 16 columns each, of which two are a part's: of row `row` from column c on, whose codes are at p. */
INLINE void scales_halves(struct scales *s, const int i, const struct mat *w, const uint8_t *p, int row, int c,
                          int parts, const bool blocks) {
    const size_t at = scale_row(w, row) + (size_t)(blocks ? 0 : c / 16);
    const float gain = blocks && w->scale ? scale_load(w, at) : 1;
    for (int j = 0; j < 2 * PARTS; j++) {
        const float scale = j >= 2 * parts ? 0
                            : blocks       ? gain * nvfp4_scale(p[j / 4 * FORMAT_BYTES(nvfp4) + j % 4])
                                           : 0.5f * scale_load(w, at + (size_t)j); /* values are doubled */
        (j % 2 ? s->off : s->scale)[j / 2][i] = scale;
    }
}
/* Scales of a row's `parts` parts from column c on; zero past them. */
INLINE void scales_beside(struct scales *s, const int i, const struct mat *w, int row, int c, int parts,
                          const int dtype) {
    struct scale_walk walk = scale_walk_begin(w, row, c);
    for (int k = 0; k < PARTS; k++) {
        if (k && k < parts) scale_walk_next(&walk);
        const float scale = k < parts ? (dtype == DT_MXFP4 ? 0.5f : 1) * walk.scale : 0; /* values are doubled */
        s->scale[k][i] = scale;
        if (has_off(dtype)) s->off[k][i] = scale * (float)walk.zero;
    }
}

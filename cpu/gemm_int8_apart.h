#pragma once
/* Unpacks 256 columns of a row of four-bit codes with scales of their own for gemm_int8_few.c, in the order of its
 * lanes (gemm_int8_blocks.h). */
#include "cpu/gemm_int8_blocks.h"

/* 256 codes in 128 bytes, two neighbours in each: a byte of v has a code in its low four bits, and others above. */
INLINE void pairs_of(__m512i v[4], const uint8_t *p) {
    const __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64),
                  first = DWORDS(0, 8, 16, 24, 2, 10, 18, 26, 4, 12, 20, 28, 6, 14, 22, 30),
                  from = _mm512_set1_epi64(0x2c2824200c080400); /* bits of two lanes */
    EACH (int h = 0; h < 2; h++) {
        const __m512i both = _mm512_permutex2var_epi32(a, _mm512_add_epi32(first, _mm512_set1_epi32(h)), b);
        v[2 * h] = _mm512_multishift_epi64_epi8(from, both);
        v[2 * h + 1] = _mm512_multishift_epi64_epi8(_mm512_add_epi8(from, _mm512_set1_epi8(16)), both);
    }
}
/* Two numbers of 128 columns each. */
INLINE V spread_2(float a, float b) { return _mm512_mask_mov_ps(vset1(a), 0xcccc, vset1(b)); }

/* Four rows of a matrix. */
struct four {
    const uint8_t *p[4], *s[4]; /* codes, and scales beside them */
    const uint8_t *last;        /* the end of the matrix */
    int cols;
    float gain;  /* of E2M1_E4M3's scales */
    bool is_f16; /* scales of I4 */
};
/* A block whose scales are at s. */
INLINE struct row_block block_apart(const uint8_t *p, const uint8_t *s, const struct four *w, const int kind) {
    struct row_block b = {.off = vzero()};
    float f[2];
    pairs_of(b.code, p);
    if (kind == E2M1_E8M0 || kind == E2M1_E4M3) {
        const __m512i table = values_512(mat_mxfp4); /* doubled; the look-up ignores the bits above a code */
        EACH (int k = 0; k < 4; k++) b.code[k] = _mm512_permutexvar_epi8(b.code[k], table);
        if (kind == E2M1_E4M3) b.scale = vmul(spread_16(e4m3_scales(load_16(s))), vset1(w->gain));
        else b.scale = vmul(spread_8(powers(exponents(s, 1, INT8_K))), vset1(0.5f));
        return b;
    }
    EACH (int k = 0; k < 4; k++) b.code[k] = _mm512_and_si512(b.code[k], _mm512_set1_epi8(15));
    if (kind == I4_ZEROS) {
        uint32_t h[2];
        memcpy(h, s, sizeof h);
        const float zero[2] = {(float)(h[0] & 255), (float)(h[1] & 255)};
        h[0] &= ~255u, h[1] &= ~255u;
        memcpy(f, h, sizeof f);
        b.scale = spread_2(f[0], f[1]), b.off = spread_2(-zero[0] * f[0], -zero[1] * f[1]);
        return b;
    }
    add_all(b.code, 128 - 8);
    if (kind == I4_128) {
        const __m256 h = halves_8(_mm_loadu_si32(s), w->is_f16);
        b.scale = spread_2(_mm256_cvtss_f32(h), _mm256_cvtss_f32(_mm256_permute_ps(h, 1)));
    } else b.scale = spread_8(halves_8(load_16(s), w->is_f16));
    return b;
}

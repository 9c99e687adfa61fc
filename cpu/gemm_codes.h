#pragma once
/* Unpacks weights with in-block scales to bytes in column order, 64 at a time, and their scales: for
 * gemm_bf16_decoder.c and gemm_int8_decoder.c. */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe */
#include <immintrin.h>
#endif
#include <math.h>
#include <string.h>

#include "base/scale.h"
#include "cpu/formats.h"
#include "cpu/gemm_inner.h"

#define INLINE static inline __attribute__((always_inline))
#define EACH   _Pragma("GCC unroll 16") for
/* Address of column c0 of row r of w, the start of a block. */
#define ROW_AT(name) \
    ((const uint8_t *)w->data + (size_t)r * w->stride + (size_t)c0 / FORMAT_BLOCK(name) * FORMAT_BYTES(name))

INLINE void ask(const uint8_t *p, int bytes, ptrdiff_t ahead) {
    for (int i = 0; i < bytes; i += 64) _mm_prefetch(p + i + ahead, _MM_HINT_T1);
}
INLINE float half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}
/* Keeps eight floats in memory: broadcasting one from memory is free, from a register it costs a shuffle, of which one
 * can issue per cycle. Compilers would keep them in registers. */
#define IN_MEMORY(name, v) \
    float name[8]; \
    _mm256_storeu_ps(name, v); \
    __asm__("" : "+m"(name))

/* Eight bytes, each times d. */
INLINE __m256 eight(uint64_t bytes, float d) {
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes))),
                         _mm256_set1_ps(d));
}
/* Q4_K and Q5_K: factor and addend of each part of 32 columns. */
INLINE void k_scales(const uint8_t *p, __m256 *scale, __m256 *off) {
    uint32_t u[3];
    memcpy(u, p + 4, sizeof u);
    const uint64_t sc = (u[0] & 0x3f3f3f3f) | (uint64_t)((u[2] & 0x0f0f0f0f) | (u[0] >> 2 & 0x30303030)) << 32;
    const uint64_t mn = (u[1] & 0x3f3f3f3f) | (uint64_t)((u[2] >> 4 & 0x0f0f0f0f) | (u[1] >> 2 & 0x30303030)) << 32;
    *scale = eight(sc, half_at(p));
    *off = eight(mn, -half_at(p + 2));
}

/* The low four bits, plus 16 for the second half. */
INLINE __m512i four_bits(__m512i b) {
    const __m512i other =
        _mm512_setr_epi64(0, 0, 0, 0, 0x1010101010101010, 0x1010101010101010, 0x1010101010101010, 0x1010101010101010);
    return _mm512_ternarylogic_epi32(b, _mm512_set1_epi8(15), other, 0xea); /* (b & 15) | other */
}
/* Twice 16 bytes, low nibbles before high ones. */
INLINE __m512i codes_16(const uint8_t *a, const uint8_t *b) {
    const __m512i both =
        _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)a)), 0xff00,
                                    _mm_loadu_si128((const __m128i *)(const void *)b));
    return four_bits(_mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)));
}
/* 32 bytes, low nibbles before high ones. */
INLINE __m512i codes_32(const uint8_t *p) {
    const __m512i both = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return four_bits(_mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4)));
}
/* 32 bytes, or fewer for n columns, of neighbouring pairs. */
INLINE __m512i codes_pairs(const uint8_t *p, int n) {
    const __mmask32 have = n >= 64 ? ~(__mmask32)0 : (__mmask32)(((uint64_t)1 << (n + 1) / 2) - 1);
    const __m512i wide = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(have, p));
    return four_bits(_mm512_or_si512(wide, _mm512_slli_epi16(wide, 4)));
}
/* One fp16 for each block of 32 columns, n columns in all; blocks are `step` bytes apart. */
INLINE uint64_t half_of(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}
INLINE __m256 half_scales(const uint8_t *p, int step, int n) {
    uint64_t u[2] = {0};
    if (n >= 256)
        EACH (int b = 0; b < 8; b++) u[b / 4] |= half_of(p + step * b) << 16 * (b % 4);
    else
        for (int b = 0; 32 * b < n; b++) u[b / 4] |= half_of(p + step * b) << 16 * (b % 4);
    return _mm256_cvtph_ps(_mm_set_epi64x((long long)u[1], (long long)u[0]));
}

/* One byte for each block, `step` bytes apart. */
INLINE __m256i exponents(const uint8_t *p, int step, int n) {
    uint64_t u = 0;
    if (step == 1 && n >= 256) memcpy(&u, p, sizeof u);
    else if (n >= 256)
        EACH (int b = 0; b < 8; b++) u |= (uint64_t)p[step * b] << 8 * b;
    else
        for (int b = 0; 32 * b < n; b++) u |= (uint64_t)p[step * b] << 8 * b;
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)u));
}
/* 2^(e - 127), with 255 (NaN) as infinity; 2^(e - 128) for all of them (minifloat.h). */
INLINE __m256 powers(__m256i e) {
    return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(0x00400000)));
}
INLINE __m256 half_powers(const uint8_t *p, int step, int n) {
    const __m256i e = exponents(p, step, n), normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    return _mm256_castsi256_ps(_mm256_mask_sllv_epi32(normal, _mm256_cmplt_epu32_mask(e, _mm256_set1_epi32(2)),
                                                      _mm256_set1_epi32(0x00200000), e));
}

enum { E4M3_AS_F16 = 256 }; /* an E4M3 whose bits are shifted into an fp16 is 256 times smaller (intdot_inner.h) */
/* 16 E4M3, divided by E4M3_AS_F16. */
INLINE __m512 e4m3_scales(__m128i s) {
    const __m256i word = _mm256_slli_epi16(_mm256_cvtepu8_epi16(s), 8);
    const __m256i half = _mm256_and_si256(_mm256_srai_epi16(word, 1), _mm256_set1_epi16((short)0xbf80));
    const __m512i magnitude = _mm512_and_si512(_mm512_cvtepu8_epi32(s), _mm512_set1_epi32(0x7f));
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
    return _mm512_mask_mov_ps(_mm512_cvtph_ps(half), nan, _mm512_set1_ps(NAN));
}
/* Eight F16 or BF16. */
INLINE __m256 halves_8(__m128i h, bool is_f16) {
    return is_f16 ? _mm256_cvtph_ps(h) : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* --- Scales beside four-bit codes, or before 64 of them --------------------------------------- */

/* Scales and zero points beside the weights. Past the end of the row, the last ones again. */
INLINE void scales_beside(float *scale, int8_t *zero, const struct mat *w, int r, int c0, int n) {
    struct scale_walk k = scale_walk_begin(w, r, c0);
    for (int c = 0; c < 256; c += 32) {
        if (c && c < n) scale_walk_next(&k);
        scale[c / 32] = k.scale, zero[c / 32] = (int8_t)k.zero;
    }
}
/* Those of F16 or BF16 for 32 columns. */
INLINE bool has_halves_32(const struct mat *w) {
    return w->block_cols == 32 && (w->scale_dtype == DT_BF16 || w->scale_dtype == DT_F16);
}
INLINE __m256 halves_32(const struct mat *w, int r, int c0, int n) {
    const uint16_t *at = (const uint16_t *)w->scale + scale_row(w, r) + (size_t)c0 / 32;
    return halves_8(_mm_maskz_loadu_epi16(n >= 256 ? 0xff : (__mmask8)((1u << (n + 31) / 32) - 1), at),
                    w->scale_dtype == DT_F16);
}
/* E4M3 for 16 columns of FP4, of whose values twice are multiplied. */
INLINE __m512 sixteens_beside(const struct mat *w, int r, int c0, int n) {
    const uint8_t *at = (const uint8_t *)w->scale + scale_row(w, r) + (size_t)c0 / 16;
    const __m128i s = _mm_maskz_loadu_epi8(n >= 256 ? 0xffff : (__mmask16)((1u << (n + 15) / 16) - 1), at);
    return _mm512_mul_ps(e4m3_scales(s), _mm512_set1_ps(E4M3_AS_F16 / 2 * w->scale_gain));
}
/* GGUF's NVFP4 at p: four of them (nvfp4_scale) before 64 codes, 16 for each, the first eight in low nibbles; the
 * factor of a row may lie beside the weights. */
INLINE __m512 sixteens_before(const uint8_t *p, const struct mat *w, int r, int n) {
    const float gain = w->scale ? E4M3_AS_F16 / 2 * scale_load(w, scale_row(w, r)) : E4M3_AS_F16 / 2;
    uint32_t all[4] = {0};
    for (int c = 0; c < n; c += 64, p += FORMAT_BYTES(nvfp4)) memcpy(all + c / 64, p, sizeof *all);
    const __m128i s = _mm_and_si128(_mm_loadu_si128((const __m128i *)(const void *)all), _mm_set1_epi8(0x7f));
    const __m128i good = _mm_andnot_si128(_mm_cmpeq_epi8(s, _mm_set1_epi8(0x7f)), s);
    return _mm512_mul_ps(e4m3_scales(good), _mm512_set1_ps(gain));
}
/* The upper four bits of some are others'. */
INLINE __m512i codes_sixteens(const uint8_t *p) {
    const __m512i twice = _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3), by = _mm512_setr_epi64(0, 4, 0, 4, 0, 4, 0, 4);
    const __m512i bytes = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)(p + 4)));
    return _mm512_srlv_epi64(_mm512_permutexvar_epi64(twice, bytes), by);
}

/* Fifth bits, one of each column, above four bits; two blocks. */
INLINE __m512i fifth_bits(__m512i four, const uint8_t *p, const uint8_t *q) {
    uint32_t a, b;
    memcpy(&a, p, sizeof a), memcpy(&b, q, sizeof b);
    const __m512i low = _mm512_and_si512(four, _mm512_set1_epi8(15));
    return _mm512_mask_add_epi8(low, a | (uint64_t)b << 32, low, _mm512_set1_epi8(16));
}
/* Columns 64 i and up of a block whose 64 bytes have two bits of four parts of 32 columns each. */
INLINE __m512i two_bits(const uint8_t *p, const int i) {
    const __m512i both = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)(p + 32 * (i / 2))));
    const __m512i by = i & 1 ? _mm512_setr_epi64(4, 4, 4, 4, 6, 6, 6, 6) : _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2);
    return _mm512_and_si512(_mm512_srlv_epi64(both, by), _mm512_set1_epi8(3));
}
/* Shifts bits `low` and up (first 32 codes) or `high` and up (others) of each byte to above four bits. */
#define FROM_1(b, k) (uint8_t)((b)-4 + 8 * (k))
#define FROM_8(b) \
    FROM_1(b, 0), FROM_1(b, 1), FROM_1(b, 2), FROM_1(b, 3), FROM_1(b, 4), FROM_1(b, 5), FROM_1(b, 6), FROM_1(b, 7)
#define FROM_32(b) FROM_8(b), FROM_8(b), FROM_8(b), FROM_8(b)
#define FROM(low, high) \
    { FROM_32(low), FROM_32(high) }
static const uint8_t bits_q5_k[4][64] __attribute__((aligned(64))) = {FROM(0, 1), FROM(2, 3), FROM(4, 5), FROM(6, 7)};
static const uint8_t bits_q6_k[2][64] __attribute__((aligned(64))) = {FROM(0, 2), FROM(4, 6)};
/* The low four bits of b, and above them those bits of h. */
INLINE __m512i more_bits(__m512i b, const uint8_t *h, const uint8_t *from, const int mask) {
    const __m512i bits = _mm512_multishift_epi64_epi8(
        _mm512_load_si512(from), _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)h)));
    /* codes | (bits & mask) */
    return _mm512_ternarylogic_epi32(_mm512_and_si512(b, _mm512_set1_epi8(15)), bits, _mm512_set1_epi8((char)mask),
                                     0xf8);
}

/* --- Scales of K blocks and IQ4_XS: the product of an fp16 and four to eight bits is exact ---- */

INLINE __m256 iq4_xs_scales(const uint8_t *p) {
    const __m256i by4 = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28),
                  by2 = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    uint16_t high;
    int32_t low;
    memcpy(&high, p + 2, 2);
    memcpy(&low, p + 4, 4);
    const __m256i lows = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(low), by4), _mm256_set1_epi32(15));
    const __m256i highs = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(high), by2), _mm256_set1_epi32(3));
    const __m256i whole = _mm256_sub_epi32(_mm256_or_si256(lows, _mm256_slli_epi32(highs, 4)), _mm256_set1_epi32(32));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(whole), _mm256_set1_ps(half_at(p)));
}
INLINE void q2_k_scales(const uint8_t *p, __m512 *scale, __m512 *off) {
    const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)),
                  low = _mm512_and_si512(both, _mm512_set1_epi32(15));
    *scale = _mm512_mul_ps(_mm512_cvtepi32_ps(low), _mm512_set1_ps(half_at(p + 80)));
    *off = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4)), _mm512_set1_ps(-half_at(p + 82)));
}
INLINE __m512 q3_k_scales(const uint8_t *p) {
    uint32_t u[3];
    memcpy(u, p + 96, sizeof u);
    const uint32_t four = 0x0f0f0f0f, two = 0x30303030;
    const __m128i six =
        _mm_setr_epi32((int)((u[0] & four) | (u[2] << 4 & two)), (int)((u[1] & four) | (u[2] << 2 & two)),
                       (int)((u[0] >> 4 & four) | (u[2] & two)), (int)((u[1] >> 4 & four) | (u[2] >> 2 & two)));
    const __m512i whole = _mm512_sub_epi32(_mm512_cvtepu8_epi32(six), _mm512_set1_epi32(32));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(half_at(p + 108)));
}
/* Three bits of columns 64 i and up. */
INLINE __m512i q3_k_codes(const uint8_t *p, const int i) {
    const __m512i high = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)p)),
                  q = two_bits(p + 32, i);
    const __m512i bit =
        _mm512_inserti64x4(_mm512_set1_epi8((char)(1 << 2 * i)), _mm256_set1_epi8((char)(2 << 2 * i)), 1);
    return _mm512_mask_add_epi8(q, _mm512_test_epi8_mask(high, bit), q, _mm512_set1_epi8(4));
}
INLINE __m512i q5_k_codes(const uint8_t *p, const int i) {
    const __m512i both = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)(p + 48 + 32 * i)));
    return more_bits(_mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4)), p + 16, bits_q5_k[i], 0x10);
}
INLINE __m512 q6_k_scales(const uint8_t *p) {
    const __m512i whole = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 192)));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(half_at(p + 208)));
}
INLINE __m512i q6_k_codes(const uint8_t *p, const int i) {
    const __m512i ql = _mm512_loadu_si512(p + 64 * (i / 2)), b = i & 1 ? _mm512_srli_epi16(ql, 4) : ql;
    return more_bits(b, p + 128 + 32 * (i / 2), bits_q6_k[i & 1], 0x30);
}

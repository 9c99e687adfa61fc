/* Decodes quantized weights to eight-bit codes for gemm_int8.c. Codes that are not negative keep a format's minimum as
 * an addend; others are signed. */
#include "cpu/gemm_int8.h"

#include "cpu/gemm_codes.h"

#define CODES(name) \
    INLINE void make_##name(int8_t *code, float *scale, float *off, const uint8_t *p, const struct mat *w, int r, \
                            int c0, int n, ptrdiff_t ahead); \
    static void codes_##name(struct int8_rows *to, const struct mat *w, int r, int rows, int c0, int n, \
                             ptrdiff_t ahead) { \
        for (int i = 0; i < rows; i++, r++) \
            make_##name(to->code[i], to->scale[i], to->off[i], ROW_AT(name), w, r, c0, n, ahead); \
    } \
    INLINE void make_##name(int8_t *code, float *scale, float *off, const uint8_t *p, const struct mat *w, int r, \
                            int c0, int n, ptrdiff_t ahead)

INLINE void put(int8_t *code, __m512i v) { _mm512_store_si512(code, v); }
INLINE __m512i minus(__m512i v, int by) { return _mm512_sub_epi8(v, _mm512_set1_epi8((char)by)); }
/* The values of four-bit codes. */
INLINE __m512i valued(__m512i codes, const int8_t *table) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table)), codes);
}
INLINE __m512i nibbles(__m512i codes) { return _mm512_and_si512(codes, _mm512_set1_epi8(15)); }

/* Blocks of 32 columns, two at a time; if the second does not exist, the first is used again: activations are zero
 * there. */
#define EACH_PAIR(bytes) \
    for (int c = 0; ask(p, 2 * (bytes), ahead), c < n; c += 64, p += 2 * (bytes)) \
        for (const uint8_t *q = n - c > 32 ? p + (bytes) : p, *once = q; once; once = NULL)
CODES(q8_0) {
    _mm256_storeu_ps(scale, half_scales(p, 34, n));
    EACH_PAIR(34) {
        const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(p + 2)),
                      b = _mm256_loadu_si256((const __m256i *)(const void *)(q + 2));
        put(code + c, _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1));
    }
}
#define CODES_32(name, bytes, at, table, make_scales) \
    CODES(name) { \
        _mm256_storeu_ps(scale, make_scales(p, bytes, n)); \
        EACH_PAIR(bytes) put(code + c, valued(codes_16(p + (at), q + (at)), table)); \
    }
CODES_32(q4_0, 18, 2, mat_q4_0, half_scales)
CODES_32(iq4_nl, 18, 2, mat_iq4, half_scales)
CODES_32(mxfp4, 17, 1, mat_mxfp4, half_powers)
CODES(q4_1) {
    _mm256_storeu_ps(scale, half_scales(p, 20, n)), _mm256_storeu_ps(off, half_scales(p + 2, 20, n));
    EACH_PAIR(20) put(code + c, nibbles(codes_16(p + 4, q + 4)));
}
CODES(q5_0) {
    _mm256_storeu_ps(scale, half_scales(p, 22, n));
    EACH_PAIR(22) put(code + c, minus(fifth_bits(codes_16(p + 6, q + 6), p + 2, q + 2), 16));
}
CODES(q5_1) {
    _mm256_storeu_ps(scale, half_scales(p, 24, n)), _mm256_storeu_ps(off, half_scales(p + 2, 24, n));
    EACH_PAIR(24) put(code + c, fifth_bits(codes_16(p + 8, q + 8), p + 4, q + 4));
}
CODES(e2m1) { /* values are doubled */
    const uint8_t *at = (const uint8_t *)w->scale + scale_row(w, r) + (size_t)(c0 / w->block_cols);
    if (w->scale_dtype == DT_E4M3) _mm512_storeu_ps(scale, sixteens_beside(w, r, c0, n));
    else _mm256_storeu_ps(scale, _mm256_mul_ps(powers(exponents(at, 1, n)), _mm256_set1_ps(0.5f)));
    for (int c = 0; c < n; c += 64, p += 32) ask(p, 32, ahead), put(code + c, valued(codes_pairs(p, n - c), mat_mxfp4));
}
CODES(nvfp4) {
    _mm512_storeu_ps(scale, sixteens_before(p, w, r, n));
    for (int c = 0; ask(p, FORMAT_BYTES(nvfp4), ahead), c < n; c += 64, p += FORMAT_BYTES(nvfp4))
        put(code + c, valued(nibbles(codes_sixteens(p)), mat_mxfp4));
}
CODES(i4) {
    if (has_halves_32(w)) {
        _mm256_storeu_ps(scale, halves_32(w, r, c0, n));
        for (int c = 0; c < n; c += 64, p += 32)
            ask(p, 32, ahead), put(code + c, minus(nibbles(codes_pairs(p, n - c)), 8));
        return;
    }
    int8_t zero[8];
    scales_beside(scale, zero, w, r, c0, n);
    for (int c = 0; c < n; c += 64, p += 32) {
        const __m512i low = _mm512_set1_epi8(zero[c / 32]);
        const __m512i both = _mm512_inserti64x4(low, _mm256_set1_epi8(zero[c / 32 + 1]), 1);
        ask(p, 32, ahead), put(code + c, _mm512_sub_epi8(nibbles(codes_pairs(p, n - c)), both));
    }
}

CODES(i8) {
    int8_t zero[8]; /* the usual one */
    scales_beside(scale, zero, w, r, c0, n);
    for (int c = 0; c < n; c += 64, p += 64) {
        const __mmask64 have = n - c >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << (n - c)) - 1;
        ask(p, 64, ahead), put(code + c, _mm512_maskz_loadu_epi8(have, p));
    }
}

CODES(q4_k) {
    __m256 s, m;
    k_scales(p, &s, &m);
    _mm256_storeu_ps(scale, s), _mm256_storeu_ps(off, m);
    ask(p, FORMAT_BYTES(q4_k), ahead);
    EACH (int i = 0; i < 4; i++) put(code + 64 * i, nibbles(codes_32(p + 16 + 32 * i)));
}
CODES(q5_k) {
    __m256 s, m;
    k_scales(p, &s, &m);
    _mm256_storeu_ps(scale, s), _mm256_storeu_ps(off, m);
    ask(p, FORMAT_BYTES(q5_k), ahead);
    EACH (int i = 0; i < 4; i++) put(code + 64 * i, q5_k_codes(p, i));
}
CODES(iq4_xs) {
    _mm256_storeu_ps(scale, iq4_xs_scales(p));
    ask(p, FORMAT_BYTES(iq4_xs), ahead);
    EACH (int i = 0; i < 4; i++) put(code + 64 * i, valued(codes_16(p + 8 + 32 * i, p + 24 + 32 * i), mat_iq4));
}
CODES(q2_k) {
    __m512 s, m;
    q2_k_scales(p, &s, &m);
    _mm512_storeu_ps(scale, s), _mm512_storeu_ps(off, m);
    ask(p, FORMAT_BYTES(q2_k), ahead);
    EACH (int i = 0; i < 4; i++) put(code + 64 * i, two_bits(p + 16, i));
}
CODES(q3_k) {
    _mm512_storeu_ps(scale, q3_k_scales(p));
    ask(p, FORMAT_BYTES(q3_k), ahead);
    EACH (int i = 0; i < 4; i++) put(code + 64 * i, minus(q3_k_codes(p, i), 4));
}
CODES(q6_k) {
    _mm512_storeu_ps(scale, q6_k_scales(p));
    ask(p, FORMAT_BYTES(q6_k), ahead);
    EACH (int i = 0; i < 4; i++) put(code + 64 * i, minus(q6_k_codes(p, i), 32));
}
CODES(tq2_0) {
    _mm256_storeu_ps(scale, _mm256_set1_ps(half_at(p + 64)));
    ask(p, FORMAT_BYTES(tq2_0), ahead);
    EACH (int i = 0; i < 4; i++) put(code + 64 * i, minus(two_bits(p, i), 1));
}
/* Blocks of 128 and 64 columns. Scales past the end of the row are zero. */
CODES(q1_0) {
    _mm256_storeu_ps(scale, _mm256_setzero_ps());
    for (int c = 0; ask(p, FORMAT_BYTES(q1_0), ahead), c < n; c += 128, p += FORMAT_BYTES(q1_0)) {
        uint64_t ones[2];
        memcpy(ones, p + 2, sizeof ones);
        _mm_storeu_ps(scale + c / 32, _mm_set1_ps(half_at(p)));
        EACH (int h = 0; h < 2; h++)
            put(code + c + 64 * h, _mm512_mask_blend_epi8(ones[h], _mm512_set1_epi8(-1), _mm512_set1_epi8(1)));
    }
}
CODES(q2_0) {
    _mm256_storeu_ps(scale, _mm256_setzero_ps());
    for (int c = 0; ask(p, FORMAT_BYTES(q2_0), ahead), c < n; c += 64, p += FORMAT_BYTES(q2_0)) {
        const __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 2)));
        const __m512i low = _mm512_or_si512(b, _mm512_slli_epi32(b, 6)),
                      all = _mm512_or_si512(low, _mm512_slli_epi32(low, 12));
        scale[c / 32] = scale[c / 32 + 1] = half_at(p);
        put(code + c, minus(_mm512_and_si512(all, _mm512_set1_epi8(3)), 1));
    }
}
/* Digits of base 3 (blocks.c). */
INLINE __m256i digits(__m256i bytes, int power) {
    const __m512i low = _mm512_and_si512(
        _mm512_mullo_epi16(_mm512_cvtepu8_epi16(bytes), _mm512_set1_epi16((short)power)), _mm512_set1_epi16(255));
    return _mm256_sub_epi8(_mm512_cvtepi16_epi8(_mm512_srli_epi16(_mm512_mullo_epi16(low, _mm512_set1_epi16(3)), 8)),
                           _mm256_set1_epi8(1));
}
CODES(tq1_0) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)p),
                  b = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(p + 32)));
    const __m256i last = _mm256_castsi128_si256(_mm_loadu_si32(p + 48));
    _mm256_storeu_ps(scale, _mm256_set1_ps(half_at(p + 52)));
    ask(p, FORMAT_BYTES(tq1_0), ahead);
    EACH (int i = 0; i < 5; i++) {
        _mm256_storeu_si256((__m256i *)(void *)(code + 32 * i), digits(a, power[i]));
        _mm_storeu_si128((__m128i *)(void *)(code + 160 + 16 * i), _mm256_castsi256_si128(digits(b, power[i])));
        if (i < 4) _mm_storeu_si32(code + 240 + 4 * i, _mm256_castsi256_si128(digits(last, power[i])));
    }
}

/* In intdot_grid_avx512vnni.c, compiled once per format. */
#ifndef GRID_CODES /* test/kcheck renames them */
#define GRID_CODES(name) int8_codes_avx512vnni_##name
#endif
#define DECLARE(name) INT8_CODES_FN(GRID_CODES(name));
FORMATS_IQ(DECLARE)

struct int8_decoder gemm_int8_decoder_for(const struct mat *w) {
#define ROW(name, segment, has_off) [FORMAT_DTYPE(name)] = { codes_##name, segment, has_off }
#define GRID(name, segment)         [FORMAT_DTYPE(name)] = {GRID_CODES(name), segment, false}
    static const struct int8_decoder all[DT_COUNT] = {
        ROW(q8_0, 32, false),  ROW(q4_0, 32, false), ROW(iq4_nl, 32, false), ROW(mxfp4, 32, false),
        ROW(e2m1, 32, false),  ROW(q4_1, 32, true),  ROW(q5_0, 32, false),   ROW(q5_1, 32, true),
        ROW(q4_k, 32, true),   ROW(q5_k, 32, true),  ROW(iq4_xs, 32, false), ROW(tq1_0, 32, false),
        ROW(tq2_0, 32, false), ROW(q2_k, 16, true),  ROW(q3_k, 16, false),   ROW(q6_k, 16, false),
        GRID(iq1_s, 32),       GRID(iq1_m, 16),      GRID(iq2_xxs, 32),      GRID(iq2_xs, 16),
        GRID(iq2_s, 16),       GRID(iq3_xxs, 32),    GRID(iq3_s, 32),        ROW(q1_0, 32, false),
        ROW(q2_0, 32, false)};
#undef ROW
#undef GRID
    static const struct int8_decoder sixteen = {codes_e2m1, 16, false}, four = {codes_i4, 32, false},
                                     eight = {codes_i8, 32, false}, blocks = {codes_nvfp4, 16, false};
    const bool fp4 = w->dtype == DT_E2M1, whole = w->block_cols % 32 == 0 || w->block_cols >= w->cols;
    if (w->scale && fp4 && w->scale_dtype == DT_E4M3 && w->block_cols == 16) return sixteen;
    if (w->scale && w->dtype == DT_I4 && whole) return four;
    if (w->scale && w->dtype == DT_I8 && whole && w->scale_dtype != DT_F32Z) return eight;
    if (w->dtype == DT_NVFP4 && (!w->scale || w->block_cols >= w->cols)) return blocks;
    if ((w->scale != NULL) != fp4 || (fp4 && (w->scale_dtype != DT_E8M0 || w->block_cols != 32)))
        return (struct int8_decoder){0};
    return all[w->dtype];
}

#pragma once
/* Activations of the integer kernels (intdot_inner.h) for AVX2: 16-bit words, which vpmaddwd multiplies with 16-bit
 * codes and sums in pairs to 32 bits. 8-bit planes with vpmaddubsw would need as many products: two per 32 columns.
 * They would avoid widening codes from 8 to 16 bits, but cost one sum of pairs and one of planes per token, and their
 * pair sums overflow with IQ4's values. */
#include <string.h>

#include "cpu/simd_avx2.h"

/* Loads weights from any address. */
INLINE __m128i load_16(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)(const void *)p); }
INLINE __m256i load_32(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }

/* The 16 scales of a Q3_K block: the low four of their six bits are nibbles of eight bytes, low ones first, and two are
 * in four bytes. */
INLINE __m128i scales_q3_k(const uint8_t *p) {
    const uint32_t low = 0x0f0f0f0f, two = 0x30303030;
    uint32_t u[3];
    memcpy(u, p + 96, sizeof u);
    const __m128i six =
        _mm_setr_epi32((int)((u[0] & low) | (u[2] << 4 & two)), (int)((u[1] & low) | (u[2] << 2 & two)),
                       (int)((u[0] >> 4 & low) | (u[2] & two)), (int)((u[1] >> 4 & low) | (u[2] >> 2 & two)));
    return _mm_sub_epi8(six, _mm_set1_epi8(32));
}

/* 32 bytes of aligned memory. */
INLINE __m256i load_v(const void *p) { return _mm256_load_si256((const __m256i *)p); }

/* Shifts the bits of each byte left, or right if by < 0, and masks them. */
INLINE __m256i moved(__m256i v, const int by, const int mask) {
    return _mm256_and_si256(by > 0   ? _mm256_slli_epi16(v, by)
                            : by < 0 ? _mm256_srli_epi16(v, -by)
                                     : v,
                            _mm256_set1_epi8((char)mask));
}
/* Columns 0 to 15 or 16 to 31 of two blocks, one byte each: 16 where a column's fifth bit, of four bytes at p and q, is
 * set. */
INLINE __m256i fifth_bits(const uint8_t *p, const uint8_t *q, const int from) {
    uint32_t a, b;
    memcpy(&a, p, 4), memcpy(&b, q, 4);
    const __m256i eight = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i order = _mm256_add_epi8(_mm256_setr_epi64x(0, 0x0101010101010101, 0, 0x0101010101010101),
                                          _mm256_set1_epi8((char)(from / 8)));
    const __m256i each =
        _mm256_shuffle_epi8(_mm256_set_m128i(_mm_cvtsi32_si128((int)b), _mm_cvtsi32_si128((int)a)), order);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(each, eight), eight), _mm256_set1_epi8(16));
}
/* 2^(e - 127) of the lowest byte e of each lane; 0 gives 2^-127, NaN gives infinity. */
INLINE V power_v(__m256i e) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_and_si256(e, _mm256_set1_epi32(255)), 23);
    return _mm256_castsi256_ps(_mm256_max_epu32(exponent, _mm256_set1_epi32(0x00400000)));
}
/* Adds the pair products of 16-bit words to sum; one or two instructions, same result. */
INLINE __m256i add_products(__m256i sum, __m256i w, __m256i x) {
#ifdef __AVXVNNI__
    return _mm256_dpwssd_avx_epi32(sum, w, x);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(w, x));
#endif
}
/* Dot products of n vectors of codes, summed per lane. */
INLINE __m256i dot_words(const __m256i *w, const int16_t (*x)[16], const int n) {
    __m256i dot = _mm256_madd_epi16(w[0], _mm256_load_si256((const __m256i *)(const void *)x[0]));
    EACH (int v = 1; v < n; v++) dot = add_products(dot, w[v], _mm256_load_si256((const __m256i *)(const void *)x[v]));
    return dot;
}

/* Reduces each half of four vectors to one lane, its sum or its maximum: halves 0, 2, 4, 6 and 1, 3, 5, 7. */
INLINE __m256i join(__m256i a, __m256i b, const bool most) {
    return most ? _mm256_max_epi32(a, b) : _mm256_add_epi32(a, b);
}
INLINE __m256i pairs(__m256i a, __m256i b, const bool most) {
    return join(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b), most);
}
INLINE __m256i fours(__m256i a, __m256i b, const bool most) {
    return join(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b), most);
}
INLINE __m256i halves_4(const __m256i v[4], const bool most) {
    return fours(pairs(v[0], v[1], most), pairs(v[2], v[3], most), most);
}
/* Reduces each of eight vectors to one lane, in order or in the order of halves_4. */
INLINE __m256i vectors_8(const __m256i v[8], const bool most, const bool in_order) {
    __m256i h[4];
    EACH (int i = 0; i < 4; i++) {
        const __m256i a = v[in_order ? i : 2 * i], b = v[in_order ? i + 4 : 2 * i + 1];
        h[i] = join(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31), most);
    }
    return halves_4(h, most);
}
/* The lane of vector b in vectors_8. */
INLINE int lane_of(int b, const bool in_order) { return in_order ? b : b % 2 * 4 + b / 2; }

/* ordered as integers, NaN highest */
INLINE __m256i magnitude(V v) { return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff)); }
/* The unit (quantisation step) of numbers whose largest magnitude is in each lane, and 1 / unit. An infinite or NaN
 * element makes the unit NaN. */
enum { UNIT_LEAST = -100 };
INLINE V units_8(__m256i most, float inverse[8]) {
    /* a value that would be 32,640 units gets twice the unit */
    const __m256i bits = _mm256_srli_epi32(_mm256_add_epi32(most, _mm256_set1_epi32(0x10200)), 23);
    /* biased, as in a float */
    const __m256i e =
        _mm256_max_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(14)), _mm256_set1_epi32(UNIT_LEAST + 127));
    const __m256i none = _mm256_cmpgt_epi32(most, _mm256_set1_epi32(0x7f7fffff));
    _mm256_storeu_si256((__m256i *)(void *)inverse, _mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(254), e), 23));
    return _mm256_blendv_ps(_mm256_castsi256_ps(_mm256_slli_epi32(e, 23)), vset1(NAN), _mm256_castsi256_ps(none));
}
INLINE __m256i most_2(const float *x) { return join(magnitude(vload(x)), magnitude(vload(x + LANES)), true); }
/* The largest of n numbers, a multiple of 16, in every lane. */
INLINE __m256i most_all(const float *x, const int n) {
    __m256i most = most_2(x);
    for (int c = 16; c < n; c += 16) most = join(most, most_2(x + c), true);
    most = join(most, _mm256_permute2x128_si256(most, most, 1), true);
    most = join(most, _mm256_shuffle_epi32(most, 0x4e), true);
    return join(most, _mm256_shuffle_epi32(most, 0xb1), true);
}

/* Sixteen numbers times f: even ones and odd ones, in words_16's input order. */
INLINE void split_16(const float *x, V f, V *even, V *odd) {
    const V a = vmul(vload(x), f), b = vmul(vload(x + LANES), f);
    *even = _mm256_shuffle_ps(a, b, 0x88);
    *odd = _mm256_shuffle_ps(a, b, 0xdd);
}
INLINE __m256i words(V a, V b) { return _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b)); }
/* Sixteen integers in order, eight of each. */
INLINE void words_16(int16_t *to, V a, V b) {
    _mm256_store_si256((__m256i *)(void *)to,
                       _mm256_permutevar8x32_epi32(words(a, b), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}
/* Two blocks of 32 columns, scaled by f and g, as even and odd numbers of each half. */
INLINE void split_64(const float *x, V f, V g, V a[4], V b[4]) {
    EACH (int i = 0; i < 2; i++) {
        split_16(x + 16 * i, f, &a[2 * i], &a[2 * i + 1]);
        split_16(x + 32 + 16 * i, g, &b[2 * i], &b[2 * i + 1]);
    }
}
/* split_64's numbers in the order of bytes whose nibbles are two neighbours, low first: every fourth column, starting
 * at the first, third, second and last. */
INLINE void neighbours(int16_t to[4][16], const V a[4], const V b[4]) {
    const __m256i in_turn =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    EACH (int i = 0; i < 4; i++) {
        const int odd = i / 2;
        const V c = i % 2 ? _mm256_shuffle_ps(a[odd], a[2 + odd], 0xdd) : _mm256_shuffle_ps(a[odd], a[2 + odd], 0x88);
        const V d = i % 2 ? _mm256_shuffle_ps(b[odd], b[2 + odd], 0xdd) : _mm256_shuffle_ps(b[odd], b[2 + odd], 0x88);
        const __m256i v = _mm256_shuffle_epi8(_mm256_permute4x64_epi64(words(c, d), 0xd8), in_turn);
        _mm256_store_si256((__m256i *)(void *)to[i], v);
    }
}

#pragma once
/* Activations of the integer kernels (intdot_inner.h) for AVX-512 VNNI: two 8-bit planes, q = 256 * high + low. */
#include "cpu/simd_avx512.h"

/* ordered as integers, NaN highest */
INLINE __m512i magnitude(V v) { return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)); }
INLINE V load_left(const float *x, int n) { return n >= LANES ? vload(x) : n > 0 ? vloadm(x, n) : vzero(); }

/* Adds products in fours. In place: compilers would copy each of many sums to another register and back. */
INLINE __m512i add_fours(__m512i sum, __m512i w, __m512i x) {
#ifdef HEARTH_SIMDE
    return _mm512_dpbusd_epi32(sum, w, x);
#else
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    return sum;
#endif
}

/* The largest lane of each of eight vectors, unsigned. */
INLINE __m256i largest_8(const __m512i v[8]) {
    __m512i a[4], b[2];
    EACH (int i = 0; i < 4; i++)
        a[i] = _mm512_max_epu32(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
                                _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
    EACH (int i = 0; i < 2; i++)
        b[i] = _mm512_max_epu32(_mm512_unpacklo_epi64(a[2 * i], a[2 * i + 1]),
                                _mm512_unpackhi_epi64(a[2 * i], a[2 * i + 1]));
    const __m512i c = _mm512_max_epu32(_mm512_shuffle_i32x4(b[0], b[1], 0x88), _mm512_shuffle_i32x4(b[0], b[1], 0xdd));
    const __m512i d = _mm512_max_epu32(c, _mm512_shuffle_i32x4(c, c, 0xb1));
    return _mm512_castsi512_si256(_mm512_shuffle_i32x4(d, d, 0x08));
}
/* The unit (quantisation step) of each of eight vectors, or with `both` of each pair of neighbours, and 1 / unit. An
 * infinite or NaN element makes the unit NaN. */
enum { UNIT_LEAST = -100 };
INLINE __m256 units_8(const V x[8], float inverse[8], const bool both) {
    __m512i v[8];
    EACH (int i = 0; i < 8; i++) v[i] = magnitude(x[i]);
    __m256i most = largest_8(v);
    if (both) most = _mm256_max_epu32(most, _mm256_shuffle_epi32(most, 0xb1));
    /* a value that would be 32,640 units gets twice the unit */
    const __m256i bits = _mm256_srli_epi32(_mm256_add_epi32(most, _mm256_set1_epi32(0x10200)), 23);
    /* biased, as in a float */
    const __m256i e =
        _mm256_max_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(14)), _mm256_set1_epi32(UNIT_LEAST + 127));
    const __mmask8 none = _mm256_cmpge_epu32_mask(most, _mm256_set1_epi32(0x7f800000));
    _mm256_storeu_si256((__m256i *)(void *)inverse, _mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(254), e), 23));
    return _mm256_mask_mov_ps(_mm256_castsi256_ps(_mm256_slli_epi32(e, 23)), none, _mm256_set1_ps(NAN));
}

/* 32 numbers in units; f: 1 / unit of the first 16, g: of the others. */
INLINE __m512i whole_32(V a, V b, float f, float g) {
    const __m512i even = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                                          24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutex2var_epi16(_mm512_cvtps_epi32(vmul(a, vset1(f))), even,
                                     _mm512_cvtps_epi32(vmul(b, vset1(g))));
}
#define BYTES_8(from)  (from), (from) + 2, (from) + 4, (from) + 6, (from) + 8, (from) + 10, (from) + 12, (from) + 14
#define BYTES_32(from) BYTES_8(from), BYTES_8((from) + 16), BYTES_8((from) + 32), BYTES_8((from) + 48)
static const uint8_t low_bytes[64] __attribute__((aligned(64))) = {BYTES_32(0), BYTES_32(64)};
static const uint8_t high_bytes[64] __attribute__((aligned(64))) = {BYTES_32(1), BYTES_32(65)};
/* Both planes of 64 numbers, sixteen from each of four vectors. */
INLINE void planes_64(int8_t *high, int8_t *low, V a, V b, V c, V d, float fa, float fb, float fc, float fd) {
    const __m512i q = whole_32(a, b, fa, fb), r = whole_32(c, d, fc, fd), up = _mm512_set1_epi16(128);
    _mm512_store_si512(low, _mm512_permutex2var_epi8(q, _mm512_load_si512(low_bytes), r));
    _mm512_store_si512(high, _mm512_permutex2var_epi8(_mm512_add_epi16(q, up), _mm512_load_si512(high_bytes),
                                                      _mm512_add_epi16(r, up)));
}
/* Dot products of n vectors of codes with both planes, summed per lane. */
INLINE __m512i dot_planes(const __m512i *w, const int8_t (*high)[64], const int8_t (*low)[64], const int n) {
    __m512i dot = _mm512_setzero_si512();
    EACH (int v = 0; v < n; v++) dot = _mm512_dpbusd_epi32(dot, w[v], _mm512_load_si512(high[v]));
    dot = _mm512_slli_epi32(dot, 8);
    EACH (int v = 0; v < n; v++) dot = _mm512_dpbusd_epi32(dot, w[v], _mm512_load_si512(low[v]));
    return dot;
}

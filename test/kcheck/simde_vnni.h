#pragma once
/* Defines in plain C what the integer kernels use and SIMDe lacks. Only for -DHEARTH_SIMDE. */
#include <math.h>

#include "test/kcheck/simde_bf16.h"

#ifndef __AVX512F__
#undef _mm512_srai_epi32
#define _mm512_srai_epi32 more_srai
static inline __m512i more_srai(__m512i a, int by) {
    int32_t v[16];
    memcpy(v, &a, 64);
    for (int i = 0; i < 16; i++) v[i] >>= by;
    return _mm512_loadu_si512(v);
}
#undef _mm512_mulhi_epu16
#define _mm512_mulhi_epu16 more_mulhi
static inline __m512i more_mulhi(__m512i a, __m512i b) {
    uint16_t u[32], v[32];
    memcpy(u, &a, 64), memcpy(v, &b, 64);
    for (int i = 0; i < 32; i++) u[i] = (uint16_t)((uint32_t)u[i] * v[i] >> 16);
    return _mm512_loadu_si512(u);
}
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32 more_cvtps_epi32
static inline __m512i more_cvtps_epi32(__m512 a) {
    float f[16];
    int32_t v[16];
    _mm512_storeu_ps(f, a);
    for (int i = 0; i < 16; i++) v[i] = f[i] >= -0x1p31f && f[i] < 0x1p31f ? (int32_t)nearbyintf(f[i]) : INT32_MIN;
    return _mm512_loadu_si512(v);
}
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8 more_cvtepi32_epi8
static inline __m128i more_cvtepi32_epi8(__m512i a) {
    int32_t v[16];
    uint8_t b[16];
    memcpy(v, &a, 64);
    for (int i = 0; i < 16; i++) b[i] = (uint8_t)v[i];
    return _mm_loadu_si128((const __m128i *)(const void *)b);
}
#undef _mm512_cvtepu16_epi64
#define _mm512_cvtepu16_epi64 more_cvtepu16_epi64
static inline __m512i more_cvtepu16_epi64(__m128i a) {
    uint16_t u[8];
    uint64_t v[8];
    memcpy(u, &a, 16);
    for (int i = 0; i < 8; i++) v[i] = u[i];
    return _mm512_loadu_si512(v);
}
#undef _mm512_shuffle_epi32
#define _mm512_shuffle_epi32 more_shuffle32
static inline __m512i more_shuffle32(__m512i a, int by) {
    uint32_t u[16], v[16];
    memcpy(u, &a, 64);
    for (int i = 0; i < 16; i++) v[i] = u[i / 4 * 4 + (by >> 2 * (i % 4) & 3)];
    return _mm512_loadu_si512(v);
}
#undef _mm512_zextps256_ps512
#define _mm512_zextps256_ps512 more_zextps
static inline __m512 more_zextps(__m256 a) {
    float f[16] = {0};
    _mm256_storeu_ps(f, a);
    return _mm512_loadu_ps(f);
}
#undef _mm256_cmplt_epu32_mask
#define _mm256_cmplt_epu32_mask more_less
static inline __mmask8 more_less(__m256i a, __m256i b) {
    uint32_t u[8], v[8];
    __mmask8 k = 0;
    memcpy(u, &a, 32), memcpy(v, &b, 32);
    for (int i = 0; i < 8; i++) k |= (__mmask8)((u[i] < v[i]) << i);
    return k;
}
#undef _mm256_cmpge_epu32_mask
#define _mm256_cmpge_epu32_mask(a, b) (__mmask8) ~more_less(a, b)
#undef _mm512_shuffle_i64x2
#define _mm512_shuffle_i64x2 more_shuffle64x2
static inline __m512i more_shuffle64x2(__m512i a, __m512i b, int by) {
    uint64_t u[2][8], v[8];
    memcpy(u[0], &a, 64), memcpy(u[1], &b, 64);
    for (int i = 0; i < 8; i++) v[i] = u[i / 4][(by >> i / 2 * 2 & 3) * 2 + i % 2];
    return _mm512_loadu_si512(v);
}
#endif

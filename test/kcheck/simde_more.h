#pragma once
/* Defines in plain C what cpu/simd_avx512.h uses and this version of SIMDe lacks. Only for -DHEARTH_SIMDE. */
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>
#include <stdint.h>
#include <string.h>

#include "base/minifloat.h"

#ifndef __AVX512F__
typedef uint16_t __mmask16;
#ifndef _MM_FROUND_NO_EXC
#define _MM_FROUND_NO_EXC SIMDE_MM_FROUND_NO_EXC
#endif

#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps more_maskz_loadu_ps
static inline __m512 more_maskz_loadu_ps(__mmask16 k, const void *p) {
    float f[16] = {0};
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) memcpy(&f[i], (const uint8_t *)p + 4 * i, 4);
    return _mm512_loadu_ps(f);
}
#undef _mm256_maskz_loadu_epi16
#define _mm256_maskz_loadu_epi16 more_maskz_loadu_epi16
static inline __m256i more_maskz_loadu_epi16(__mmask16 k, const void *p) {
    uint16_t h[16] = {0};
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) memcpy(&h[i], (const uint8_t *)p + 2 * i, 2);
    return _mm256_loadu_si256((const __m256i *)(const void *)h);
}
#undef _mm_maskz_loadu_epi8
#define _mm_maskz_loadu_epi8 more_maskz_loadu_epi8
static inline __m128i more_maskz_loadu_epi8(__mmask16 k, const void *p) {
    uint8_t b[16] = {0};
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) b[i] = ((const uint8_t *)p)[i];
    return _mm_loadu_si128((const __m128i *)(const void *)b);
}
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps more_mask_storeu_ps
static inline void more_mask_storeu_ps(void *p, __mmask16 k, __m512 v) {
    float f[16];
    _mm512_storeu_ps(f, v);
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) memcpy((uint8_t *)p + 4 * i, &f[i], 4);
}
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps more_extractf32x8_ps
static inline __m256 more_extractf32x8_ps(__m512 v, int half) {
    float f[16];
    _mm512_storeu_ps(f, v);
    return _mm256_loadu_ps(f + 8 * half);
}
#undef _mm512_cvtepu8_epi16
#define _mm512_cvtepu8_epi16 more_widen8
static inline __m512i more_widen8(__m256i a) {
    uint8_t b[32];
    uint16_t h[32];
    memcpy(b, &a, 32);
    for (int i = 0; i < 32; i++) h[i] = b[i];
    return _mm512_loadu_si512(h);
}
#undef _mm512_testn_epi16_mask
#define _mm512_testn_epi16_mask more_testn16
static inline simde__mmask32 more_testn16(__m512i a, __m512i b) {
    uint16_t u[32], v[32];
    simde__mmask32 m = 0;
    memcpy(u, &a, 64), memcpy(v, &b, 64);
    for (int i = 0; i < 32; i++) m |= (simde__mmask32) !(u[i] & v[i]) << i;
    return m;
}
#undef _mm512_cmpeq_epi16_mask
#define _mm512_cmpeq_epi16_mask more_equal16
static inline simde__mmask32 more_equal16(__m512i a, __m512i b) {
    uint16_t u[32], v[32];
    simde__mmask32 m = 0;
    memcpy(u, &a, 64), memcpy(v, &b, 64);
    for (int i = 0; i < 32; i++) m |= (simde__mmask32)(u[i] == v[i]) << i;
    return m;
}
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 more_cvtepu16_epi32
static inline __m512i more_cvtepu16_epi32(__m256i v) {
    uint16_t h[16];
    uint32_t w[16];
    _mm256_storeu_si256((__m256i *)(void *)h, v);
    for (int i = 0; i < 16; i++) w[i] = h[i];
    return _mm512_loadu_si512(w);
}
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32 more_cvtepu8_epi32
static inline __m512i more_cvtepu8_epi32(__m128i v) {
    uint8_t b[16];
    uint32_t w[16];
    _mm_storeu_si128((__m128i *)(void *)b, v);
    for (int i = 0; i < 16; i++) w[i] = b[i];
    return _mm512_loadu_si512(w);
}
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32 more_cvtepi8_epi32
static inline __m512i more_cvtepi8_epi32(__m128i v) {
    int8_t b[16];
    int32_t w[16];
    _mm_storeu_si128((__m128i *)(void *)b, v);
    for (int i = 0; i < 16; i++) w[i] = b[i];
    return _mm512_loadu_si512(w);
}
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps more_cvtepi32_ps
static inline __m512 more_cvtepi32_ps(__m512i v) {
    int32_t w[16];
    float f[16];
    _mm512_storeu_si512(w, v);
    for (int i = 0; i < 16; i++) f[i] = (float)w[i];
    return _mm512_loadu_ps(f);
}
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps more_cvtph_ps
static inline __m512 more_cvtph_ps(__m256i v) {
    uint16_t h[16];
    float f[16];
    _mm256_storeu_si256((__m256i *)(void *)h, v);
    for (int i = 0; i < 16; i++) f[i] = f16_to_f32(h[i]);
    return _mm512_loadu_ps(f);
}
#endif

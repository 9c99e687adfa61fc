#pragma once
/* Defines in plain C what BF16 products use and SIMDe lacks. vdpbf16ps as documented: subnormals are zero; the odd
 * product is added first, then the even one, each rounded. Only for -DHEARTH_SIMDE. */
#include "test/kcheck/simde_more.h"

#ifndef __AVX512F__
typedef uint8_t __mmask8;
typedef uint32_t __mmask32;
typedef uint64_t __mmask64;
#undef __m512bh
#define __m512bh __m512i

#undef _mm_prefetch
#define _mm_prefetch(p, hint) ((void)(p))
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps more_dpbf16
static inline float more_flush(float f) { return (f32_bits(f) & 0x7f800000) ? f : 0.0f; }
static inline __m512 more_dpbf16(__m512 sum, __m512i a, __m512i b) {
    float s[16];
    uint16_t u[32], v[32];
    _mm512_storeu_ps(s, sum), memcpy(u, &a, 64), memcpy(v, &b, 64);
    for (int i = 0; i < 16; i++) {
        s[i] += more_flush(bf16_to_f32(u[2 * i + 1])) * more_flush(bf16_to_f32(v[2 * i + 1]));
        s[i] += more_flush(bf16_to_f32(u[2 * i])) * more_flush(bf16_to_f32(v[2 * i]));
    }
    return _mm512_loadu_ps(s);
}
#undef _mm512_cvtneps_pbh
#define _mm512_cvtneps_pbh more_cvtneps
static inline __m256i more_cvtneps(__m512 x) {
    float f[16];
    uint16_t h[16];
    _mm512_storeu_ps(f, x);
    for (int i = 0; i < 16; i++) h[i] = f32_to_bf16(more_flush(f[i]));
    return _mm256_loadu_si256((const __m256i *)(const void *)h);
}
#undef _mm512_maskz_loadu_epi8
#define _mm512_maskz_loadu_epi8 more_maskz_loadu8
static inline __m512i more_maskz_loadu8(__mmask64 k, const void *p) {
    uint8_t b[64] = {0};
    for (int i = 0; i < 64; i++)
        if (k >> i & 1) b[i] = ((const uint8_t *)p)[i];
    return _mm512_loadu_si512(b);
}
#undef _mm512_maskz_loadu_epi16
#define _mm512_maskz_loadu_epi16 more_maskz_loadu16
static inline __m512i more_maskz_loadu16(__mmask32 k, const void *p) {
    uint16_t h[32] = {0};
    for (int i = 0; i < 32; i++)
        if (k >> i & 1) memcpy(&h[i], (const uint8_t *)p + 2 * i, 2);
    return _mm512_loadu_si512(h);
}
#undef _mm512_reduce_add_ps
#define _mm512_reduce_add_ps more_reduce_add
static inline float more_reduce_add(__m512 v) {
    float f[16];
    _mm512_storeu_ps(f, v);
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++) f[i] += f[i + n];
    return f[0];
}
#endif

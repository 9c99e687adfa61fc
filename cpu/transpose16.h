#pragma once
/* Transposes 16 vectors of 16 dwords: used on rows of weights in the AVX-512 products. */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe */
#include <immintrin.h>
#endif

/* a[i] lane j <-> a[j] lane i */
static inline __attribute__((always_inline)) void transpose16(__m512i a[16]) {
    __m512i b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        a[4 * i] = _mm512_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 1] = _mm512_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 2] = _mm512_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
        a[4 * i + 3] = _mm512_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512i p = _mm512_shuffle_i32x4(a[i], a[4 + i], 0x88), q = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0x88);
        __m512i r = _mm512_shuffle_i32x4(a[i], a[4 + i], 0xdd), s = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0xdd);
        b[i] = _mm512_shuffle_i32x4(p, q, 0x88);
        b[8 + i] = _mm512_shuffle_i32x4(p, q, 0xdd);
        b[4 + i] = _mm512_shuffle_i32x4(r, s, 0x88);
        b[12 + i] = _mm512_shuffle_i32x4(r, s, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = b[i];
}

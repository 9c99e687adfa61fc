#pragma once
/* Converts E4M3 to BF16, exactly: for attention over E4M3 planes with BF16 pair products. */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe */
#include <immintrin.h>
#endif
#include <stdint.h>
#include <string.h>

#include "cpu/kernels.h"

/* BF16 of the subnormal codes 0 to 7: 2^-9 times the code. */
static const uint16_t e4m3_tiny[32] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};

static inline __attribute__((always_inline)) __m512i e4m3_bf16_of(__m256i codes) {
    const __m512i all = _mm512_set1_epi16(0x7f), code = _mm512_cvtepu8_epi16(codes), magnitude = _mm512_and_si512(code, all);
    __m512i v = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16((127 - 7) << 7));
    v = _mm512_mask_permutexvar_epi16(v, _mm512_testn_epi16_mask(code, _mm512_set1_epi16(0x78)), magnitude, _mm512_loadu_si512(e4m3_tiny));
    v = _mm512_mask_mov_epi16(v, _mm512_cmpeq_epi16_mask(magnitude, all), _mm512_set1_epi16(0x7fc0)); /* NaN */
    return _mm512_or_si512(v, _mm512_slli_epi16(_mm512_andnot_si512(all, code), 8));
}
static WIDEN16_FN(e4m3_bf16) {
    for (; rows-- > 0; out += n, in += stride) {
        int i = 0;
        for (; i + 32 <= n; i += 32) _mm512_storeu_si512(out + i, e4m3_bf16_of(_mm256_loadu_si256((const __m256i *)(const void *)(in + i))));
        if (i == n) continue;
        uint8_t codes[32] = {0};
        uint16_t numbers[32];
        memcpy(codes, in + i, (size_t)(n - i));
        _mm512_storeu_si512(numbers, e4m3_bf16_of(_mm256_loadu_si256((const __m256i *)(const void *)codes)));
        memcpy(out + i, numbers, (size_t)(n - i) * 2);
    }
}

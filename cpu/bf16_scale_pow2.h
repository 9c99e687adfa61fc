#pragma once
/* Multiplies BF16 by powers of two in AVX-512. */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe */
#include <immintrin.h>
#endif

/* power: the increment of each element's bits (gemm_exponent_increment). 0 and E4M3's NaN stay unchanged. */
static inline __m512i bf16_scale_pow2(__m512i v, __m512i power) {
    const __m512i number = _mm512_and_si512(v, _mm512_set1_epi16(0x7fff)),
                  nan = _mm512_xor_si512(number, _mm512_set1_epi16(0x7fc0));
    return _mm512_mask_add_epi16(v, _mm512_test_epi16_mask(number, number) & _mm512_test_epi16_mask(nan, nan), v,
                                 power);
}

#pragma once
/* Converts E4M3 to BF16, exactly, by two look-ups of 128 bytes: for few tokens' products and attention over E4M3
 * planes. Requires VBMI. */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe */
#include <immintrin.h>
#endif
#include <stdint.h>
#include <string.h>

#include "cpu/e4m3_table.h"
#include "cpu/kernels.h"

static const uint8_t e4m3_high[128] = {E4M3_ALL(E4M3_HIGH, 0)}, e4m3_low[128] = {E4M3_ALL(E4M3_LOW, 0)};
struct e4m3_bf16 { /* the tables, in registers */
    __m512i high[2], low[2], order;
};
static inline __attribute__((always_inline)) struct e4m3_bf16 e4m3_bf16_load(void) {
    return (struct e4m3_bf16){{_mm512_loadu_si512(e4m3_high), _mm512_loadu_si512(e4m3_high + 64)},
                              {_mm512_loadu_si512(e4m3_low), _mm512_loadu_si512(e4m3_low + 64)},
                              /* so that unpacking, which works within 128 bits, keeps them in order */
                              _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7)};
}
/* 64 codes as two vectors of BF16, in order. */
static inline __attribute__((always_inline)) void e4m3_bf16_decode(const struct e4m3_bf16 *t, __m512i codes,
                                                                   __m512i out[2]) {
    const __m512i code = _mm512_permutexvar_epi64(t->order, codes);
    __m512i h = _mm512_permutex2var_epi8(t->high[0], code, t->high[1]),
            l = _mm512_permutex2var_epi8(t->low[0], code, t->low[1]);
    h = _mm512_ternarylogic_epi32(h, code, _mm512_set1_epi8((char)0x80), 0xf8); /* h | (code & 0x80) */
    out[0] = _mm512_unpacklo_epi8(l, h);
    out[1] = _mm512_unpackhi_epi8(l, h);
}
static __attribute__((unused)) WIDEN16_FN(e4m3_bf16_rows) {
    const struct e4m3_bf16 t = e4m3_bf16_load();
    __m512i v[2];
    for (; rows-- > 0; out += n, in += stride) {
        int i = 0;
        for (; i + 64 <= n; i += 64) {
            e4m3_bf16_decode(&t, _mm512_loadu_si512(in + i), v);
            _mm512_storeu_si512(out + i, v[0]);
            _mm512_storeu_si512(out + i + 32, v[1]);
        }
        if (i == n) continue;
        e4m3_bf16_decode(&t, _mm512_maskz_loadu_epi8((__mmask64)(((uint64_t)1 << (n - i)) - 1), in + i), v);
        memcpy(out + i, v, (size_t)(n - i) * sizeof *out);
    }
}

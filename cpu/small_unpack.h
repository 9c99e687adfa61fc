#pragma once
/* Unpacks ternary formats and those of one or two bits to small integers with AVX2, and makes rows of gemm_int8_avx2.c
 * of small integers. Grids: intdot_grid_avx2.c. */
#include <string.h>

#include "cpu/int8_rows_avx2.h"
#include "cpu/small_codes.h"

INLINE void store_codes(struct small_codes *to, int c, __m256i v) {
    _mm256_storeu_si256((__m256i *)(void *)(to->code + c), v);
}
INLINE float half_of(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}
INLINE void ones(struct small_codes *to) { _mm256_store_si256((__m256i *)(void *)to->each, _mm256_set1_epi16(1)); }

INLINE SMALL_CODES_FN(small_codes_tq2_0) {
    ones(to), vstore(to->scale, vset1(half_of(p + 64)));
    EACH (int k = 0; k < 8; k++)
        store_codes(to, 32 * k, _mm256_sub_epi8(moved(load_32(p + k / 4 * 32), -2 * (k % 4), 3), _mm256_set1_epi8(1)));
}
/* Sixteen digits of base 3 (blocks.c), minus 1. */
INLINE __m128i digits_16(__m128i bytes, __m256i power) {
    const __m256i low =
        _mm256_and_si256(_mm256_mullo_epi16(_mm256_cvtepu8_epi16(bytes), power), _mm256_set1_epi16(255));
    const __m256i digit =
        _mm256_sub_epi16(_mm256_srli_epi16(_mm256_mullo_epi16(low, _mm256_set1_epi16(3)), 8), _mm256_set1_epi16(1));
    return _mm_packs_epi16(_mm256_castsi256_si128(digit), _mm256_extracti128_si256(digit, 1));
}
INLINE SMALL_CODES_FN(small_codes_tq1_0) {
    static const int16_t power[5] = {1, 3, 9, 27, 81};
    const __m256i four = _mm256_setr_epi16(1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27);
    int last;
    memcpy(&last, p + 48, 4);
    ones(to), vstore(to->scale, vset1(half_of(p + 52)));
    for (int i = 0; i < 5; i++) {
        const __m256i by = _mm256_set1_epi16(power[i]);
        EACH (int j = 0; j < 3; j++)
            _mm_storeu_si128((__m128i *)(void *)(to->code + (j < 2 ? 32 * i + 16 * j : 160 + 16 * i)),
                             digits_16(load_16(p + 16 * j), by));
    }
    _mm_storeu_si128((__m128i *)(void *)(to->code + 240), digits_16(_mm_set1_epi32(last), four));
}
/* Blocks of 128 columns: -1 or 1. */
INLINE SMALL_CODES_FN(small_codes_q1_0) {
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i order = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    ones(to);
    EACH (int k = 0; k < 8; k++) {
        const uint8_t *block = p + k / 4 * FORMAT_BYTES(q1_0);
        int bits;
        memcpy(&bits, block + 2 + k % 4 * 4, 4);
        const __m256i all = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), order), bit);
        const __m256i two = _mm256_and_si256(_mm256_cmpeq_epi8(all, bit), _mm256_set1_epi8(2));
        store_codes(to, 32 * k, _mm256_sub_epi8(two, _mm256_set1_epi8(1)));
        to->scale[k] = half_of(block);
    }
}
/* Blocks of 64 columns: -1 to 2, four of them in a byte. */
INLINE SMALL_CODES_FN(small_codes_q2_0) {
    ones(to);
    EACH (int k = 0; k < 8; k++) {
        const uint8_t *block = p + k / 2 * FORMAT_BYTES(q2_0);
        const __m256i four =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(block + 2 + k % 2 * 8)));
        const __m256i two = _mm256_or_si256(four, _mm256_slli_epi32(four, 6)),
                      all = _mm256_or_si256(two, _mm256_slli_epi32(two, 12));
        store_codes(to, 32 * k, _mm256_sub_epi8(_mm256_and_si256(all, _mm256_set1_epi8(3)), _mm256_set1_epi8(1)));
        to->scale[k] = half_of(block);
    }
}
/* Of eight blocks of small integers. */
INLINE void scales_small(struct scales *s, const struct small_codes *row, const int dtype) {
    __m256i scale[8], each[8];
    EACH (int i = 0; i < ROWS; i++)
        scale[i] = load_32((const uint8_t *)row[i].scale), each[i] = load_32((const uint8_t *)row[i].each);
    transpose_8(scale), transpose_8(each);
    EACH (int k = 0; k < PARTS; k++) {
        const __m256i first = _mm256_slli_epi32(each[k], 16), last = _mm256_srli_epi32(each[k], 16);
        __m256i *to = (__m256i *)(void *)s->each[k];
        vstore(s->scale[k], _mm256_castsi256_ps(scale[k]));
        _mm256_storeu_si256(to, _mm256_or_si256(first, _mm256_srli_epi32(first, 16)));
        _mm256_storeu_si256(to + 1, _mm256_or_si256(last, _mm256_slli_epi32(last, 16)));
        _mm256_storeu_si256((__m256i *)(void *)s->bias[k],
                            _mm256_mullo_epi16(each[k], _mm256_set1_epi16((short)-bias_of(dtype))));
    }
}

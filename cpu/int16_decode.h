#pragma once
/* Decodes GGUF's blocks and FP4 to the words and scales of gemm_int16.c. */
#include <string.h>

#include "base/scale.h"
#include "cpu/int16_codes.h"
#include "cpu/intdot_words.h"

enum { BLOCK = 256 };
/* 256 columns of a row or of a token. Each 64 are two times 32, four vectors, the first 32 in their lower halves: even
 * columns of the first 16, odd ones, and the same of the other 16. Arrays of eight are in the order of halves_4. */
struct block {
    int16_t word[16][16];
    float scale[8]; /* of each 32 columns, or only of the first one or two segments; a token's: its unit, eight times */
} __attribute__((aligned(64)));

INLINE void put(struct block *g, int k, int v, __m256i words) {
    _mm256_store_si256((__m256i *)(void *)g->word[4 * k + v], words);
}
INLINE __m256i even_signed(__m256i v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); }
INLINE __m256i odd_signed(__m256i v) { return _mm256_srai_epi16(v, 8); }
/* 32 signed codes as words, even and odd, times s if scaled. */
INLINE void put_signed(struct block *g, int k, int half, __m256i code, __m256i s, const bool scaled) {
    put(g, k, 2 * half, scaled ? _mm256_mullo_epi16(even_signed(code), s) : even_signed(code));
    put(g, k, 2 * half + 1, scaled ? _mm256_mullo_epi16(odd_signed(code), s) : odd_signed(code));
}
/* 16 bytes in both halves of a vector, shifted down by a bits in the lower and by b in the upper half. */
INLINE __m256i both_16(const uint8_t *p, int a, int b) {
    return _mm256_srlv_epi32(_mm256_broadcastsi128_si256(load_16(p)), _mm256_setr_epi32(a, a, a, a, b, b, b, b));
}
INLINE __m256i two_16(const uint8_t *p, const uint8_t *q) { return _mm256_set_m128i(load_16(q), load_16(p)); }
INLINE __m256i masked(__m256i v, const int mask) { return _mm256_and_si256(v, _mm256_set1_epi8((char)mask)); }
/* Broadcasts word i of each half of v within its half. */
INLINE __m256i word_of(__m256i v, const int i) {
    return _mm256_shuffle_epi8(v, _mm256_set1_epi16((short)((2 * i + 1) << 8 | 2 * i)));
}
INLINE float half_of(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

/* 16 codes of two bits each of the first and the second 32 of columns 64 k and up. */
INLINE __m256i two_bits(const uint8_t *p, int k, int half) {
    return masked(both_16(p + 32 * (k / 2) + 16 * half, k % 2 * 4, k % 2 * 4 + 2), 3);
}
INLINE void put_codes(struct block *g, const struct int16_codes *c, const bool scaled) {
    const __m256i scale = scaled ? load_32((const uint8_t *)c->scale) : _mm256_setzero_si256();
    g->scale[0] = c->d;
    EACH (int k = 0; k < 4; k++)
        EACH (int half = 0; half < 2; half++) {
            const uint8_t *code = (const uint8_t *)c->code + 64 * k + 16 * half;
            put_signed(g, k, half, two_16(code, code + 32), word_of(scale, 2 * k + half), scaled);
        }
}
INLINE void decode_tq2_0(struct block *g, const uint8_t *p) {
    g->scale[0] = half_of(p + 64);
    EACH (int k = 0; k < 4; k++)
        EACH (int half = 0; half < 2; half++) {
            const __m256i code = _mm256_sub_epi8(two_bits(p, k, half), _mm256_set1_epi8(1));
            put_signed(g, k, half, code, code, false);
        }
}
/* Sixteen digits of base 3 (blocks.c), minus 1. */
INLINE __m128i digits_16(__m128i bytes, __m256i power) {
    const __m256i low =
        _mm256_and_si256(_mm256_mullo_epi16(_mm256_cvtepu8_epi16(bytes), power), _mm256_set1_epi16(255));
    const __m256i digit =
        _mm256_sub_epi16(_mm256_srli_epi16(_mm256_mullo_epi16(low, _mm256_set1_epi16(3)), 8), _mm256_set1_epi16(1));
    return _mm_packs_epi16(_mm256_castsi256_si128(digit), _mm256_extracti128_si256(digit, 1));
}
INLINE void decode_tq1_0(struct block *g, const uint8_t *p) {
    static const int16_t power[5] = {1, 3, 9, 27, 81};
    const __m256i four = _mm256_setr_epi16(1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27);
    struct int16_codes c = {.d = half_of(p + 52)};
    int last;
    memcpy(&last, p + 48, 4);
    for (int i = 0; i < 5; i++) {
        const __m256i by = _mm256_set1_epi16(power[i]);
        EACH (int j = 0; j < 3; j++)
            _mm_storeu_si128((__m128i *)(void *)(c.code + (j < 2 ? 32 * i + 16 * j : 160 + 16 * i)),
                             digits_16(load_16(p + 16 * j), by));
    }
    _mm_storeu_si128((__m128i *)(void *)(c.code + 240), digits_16(_mm_set1_epi32(last), four));
    put_codes(g, &c, false);
}
/* 64 columns, each 32 in 16 bytes: low nibbles, then high ones. */
INLINE void put_look(struct block *g, int k, __m256i codes, __m256i table, __m256i s, const bool scaled) {
    EACH (int half = 0; half < 2; half++) {
        put_signed(g, k, half, _mm256_shuffle_epi8(table, masked(half ? _mm256_srli_epi16(codes, 4) : codes, 15)), s,
                   scaled);
    }
}
INLINE __m256i table_of(const int8_t values[16]) {
    return _mm256_broadcastsi128_si256(load_16((const uint8_t *)values));
}
INLINE void decode_iq4_xs(struct block *g, const uint8_t *p) {
    const __m256i table = table_of(mat_iq4);
    const int high = p[2] | p[3] << 8;
    g->scale[0] = g->scale[1] = half_of(p);
    EACH (int k = 0; k < 4; k++) {
        const int a = ((p[4 + k] & 15) | (high >> (4 * k) & 3) << 4) - 32,
                  b = (p[4 + k] >> 4 | (high >> (4 * k + 2) & 3) << 4) - 32;
        put_look(g, k, load_32(p + 8 + 32 * k), table,
                 _mm256_set_m128i(_mm_set1_epi16((short)b), _mm_set1_epi16((short)a)), true);
    }
}
/* 0xff where a column's bit is set, of 16 of each 32, whose bits are four bytes of the lower and upper half. */
INLINE __m256i set_bits(__m256i bits, int half) {
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201),
                  first = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0101010101010101, 0));
    const __m256i all = _mm256_shuffle_epi8(bits, _mm256_add_epi8(first, _mm256_set1_epi8((char)(2 * half))));
    return _mm256_cmpeq_epi8(_mm256_and_si256(all, bit), bit);
}
INLINE __m128i load_4(const uint8_t *p) {
    int word;
    memcpy(&word, p, 4);
    return _mm_cvtsi32_si128(word);
}
/* Q8_0 and IQ4_NL: blocks of 32 columns, of which n <= 8 exist; past them x and scales are zero. */
INLINE void decode_32(struct block *g, const uint8_t *p, int n, const int dtype) {
    const __m256i table = table_of(mat_iq4);
    const int size = dtype == DT_Q8_0 ? 34 : 18;
    uint8_t edge[8 * 34];
    if (n < 8) {
        memset(edge, 0, sizeof edge);
        p = memcpy(edge, p, (size_t)(n * size));
    }
    EACH (int k = 0; k < 4; k++) {
        const uint8_t *a = p + 2 * k * size, *b = a + size;
        g->scale[k] = half_of(a), g->scale[4 + k] = half_of(b);
        if (dtype == DT_Q8_0)
            EACH (int half = 0; half < 2; half++) {
                const __m256i v = two_16(a + 2 + 16 * half, b + 2 + 16 * half);
                put(g, k, 2 * half, even_signed(v));
                put(g, k, 2 * half + 1, odd_signed(v));
            }
        else put_look(g, k, two_16(a + 2, b + 2), table, table, false);
    }
}
/* 64 columns of -1 and 1, or of -1 to 2, whose bits are from p on. */
INLINE void put_q1_0(struct block *g, int k, const uint8_t *p) {
    const __m256i bits = _mm256_set_m128i(load_4(p + 4), load_4(p));
    EACH (int half = 0; half < 2; half++) {
        const __m256i code = _mm256_sub_epi8(masked(set_bits(bits, half), 2), _mm256_set1_epi8(1));
        put_signed(g, k, half, code, code, false);
    }
}
INLINE void put_q2_0(struct block *g, int k, const uint8_t *p) {
    const __m256i twice = _mm256_broadcastsi128_si256(
                      _mm_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1)),
                  one = _mm256_set1_epi16(1);
    EACH (int half = 0; half < 2; half++) { /* four columns of a byte are two words */
        const __m256i bytes =
            _mm256_shuffle_epi8(_mm256_set_m128i(load_4(p + 8 + 4 * half), load_4(p + 4 * half)), twice);
        const __m256i high = _mm256_mullo_epi16(bytes, _mm256_set1_epi32(1 << 16 | 16)), three = _mm256_set1_epi16(3);
        put(g, k, 2 * half, _mm256_sub_epi16(_mm256_and_si256(_mm256_srli_epi16(high, 4), three), one));
        put(g, k, 2 * half + 1, _mm256_sub_epi16(_mm256_and_si256(_mm256_srli_epi16(high, 6), three), one));
    }
}
/* n columns exist; past them x and scales are zero. */
INLINE void decode_bits(struct block *g, const uint8_t *p, int n, const int dtype) {
    const int columns = dtype == DT_Q1_0 ? 128 : 64;
    uint8_t edge[BLOCK / 64 * 18];
    if (n < BLOCK) {
        memset(edge, 0, sizeof edge);
        p = memcpy(edge, p, (size_t)(n / columns * 18));
    }
    EACH (int k = 0; k < 4; k++) {
        const uint8_t *block = p + 64 * k / columns * 18;
        g->scale[k] = g->scale[4 + k] = half_of(block);
        if (dtype == DT_Q1_0) put_q1_0(g, k, block + 2 + k % 2 * 8);
        else put_q2_0(g, k, block + 2);
    }
}
/* FP4 codes with separate scales, the low nibble of a byte first; n columns of them exist. */
INLINE void decode_e2m1(struct block *g, const uint8_t *p, const uint8_t *scale, int n) {
    const __m256i table = table_of(mat_mxfp4);
    uint8_t edge[BLOCK / 2], s[8] = {0};
    if (n < BLOCK) {
        memset(edge, 0, sizeof edge);
        p = memcpy(edge, p, (size_t)(n + 1) / 2);
    }
    memcpy(s, scale, (size_t)(n + 31) / 32);
    for (int k = 0; k < 4; k++) {
        const __m256i codes = load_32(p + 32 * k), none = _mm256_setzero_si256();
        const __m256i even = _mm256_shuffle_epi8(table, masked(codes, 15)),
                      odd = _mm256_shuffle_epi8(table, masked(_mm256_srli_epi16(codes, 4), 15));
        put(g, k, 0, odd_signed(_mm256_unpacklo_epi8(none, even)));
        put(g, k, 1, odd_signed(_mm256_unpacklo_epi8(none, odd)));
        put(g, k, 2, odd_signed(_mm256_unpackhi_epi8(none, even)));
        put(g, k, 3, odd_signed(_mm256_unpackhi_epi8(none, odd)));
        g->scale[k] = e8m0_half(s[2 * k]), g->scale[4 + k] = e8m0_half(s[2 * k + 1]);
    }
}

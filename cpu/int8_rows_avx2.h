#pragma once
/* Eight rows of weights for products with 8-bit activations (gemm_int8_avx2.c): unsigned codes, of which vpmaddubsw
 * multiplies 32 with signed bytes and sums them in pairs to 16 bits. In parts of 32 columns:
 *
 *     weight = scale * each * (code - bias) - off
 *
 * with a float scale and off of each part, and for formats with two scales in a part (has_two) `each`, a small integer
 * of 16 columns; else 1. NVFP4 has a float scale of each 16 columns (has_halves). Vectors of scales have a lane per
 * row.
 *
 * Codes have at most seven bits but for those of eight (is_wide), of which a pair's sum would overflow: AVX-VNNI sums
 * to 32 bits, without it they stay signed and give their signs to the activations. */
#include <stdint.h>
#include <string.h>

#include "cpu/formats.h"
#include "cpu/intdot_words.h"

#if defined __AVXVNNI__ || defined HEARTH_EMULATE_AVXVNNI /* test/kcheck */
enum { HAS_VNNI = 1 };
#else
enum { HAS_VNNI = 0 };
#endif
enum { ROWS = 8, BLOCK = 256 /* columns */, PARTS = BLOCK / 32 };

struct scales {
    float scale[PARTS][ROWS], off[PARTS][ROWS]; /* has_halves: of the first and of the last 16 columns */
    int16_t each[PARTS][2][2 * ROWS];           /* has_two: of 16 columns, twice */
    /* of the first and second 16 columns. has_two: -bias * each; Q2_K, which has no bias: minima, whose scale is off */
    int16_t bias[PARTS][2 * ROWS];
};

/* The formats that have these kernels. */
#define FORMATS_INT8_AVX2(X) \
    X(q2_k) X(q3_k) X(q4_k) X(q5_k) X(q6_k) X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(mxfp4) X(q8_0) X(iq4_nl) X(iq4_xs)

/* Formats that are unpacked to small integers first, at most 15 or 62 in magnitude; only for many tokens. */
#define FORMATS_SMALL_15(X) X(iq1_s) X(iq1_m) X(iq3_s) X(tq1_0) X(tq2_0) X(q1_0) X(q2_0)
#define FORMATS_SMALL_62(X) X(iq2_xxs) X(iq2_xs) X(iq2_s) X(iq3_xxs)
/* Added to small integers to make them unsigned codes; 0 for other formats. */
INLINE int small_bias(int dtype) {
    switch (dtype) {
#define CASE(name) case FORMAT_DTYPE(name):
        FORMATS_SMALL_15(CASE)
        return 16;
        FORMATS_SMALL_62(CASE)
#undef CASE
        return 64;
    default: return 0;
    }
}
INLINE bool is_small(int dtype) { return small_bias(dtype) > 0; }
INLINE bool has_two(int dtype) { return dtype == DT_Q6_K || dtype == DT_Q3_K || dtype == DT_Q2_K || is_small(dtype); }
INLINE bool has_halves(int dtype) { return dtype == DT_NVFP4; }
INLINE bool is_iq4(int dtype) { return dtype == DT_IQ4_NL || dtype == DT_IQ4_XS; }
INLINE bool is_wide(int dtype) { return dtype == DT_Q8_0 || is_iq4(dtype); }
INLINE bool has_off(int dtype) {
    return dtype == DT_Q4_K || dtype == DT_Q5_K || dtype == DT_Q4_1 || dtype == DT_Q5_1 || dtype == DT_Q2_K;
}
/* Bytes of 256 columns. */
INLINE int block_bytes(int dtype) {
    switch (dtype) {
#define CASE(name) \
    case FORMAT_DTYPE(name): return BLOCK / FORMAT_BLOCK(name) * FORMAT_BYTES(name);
        FORMATS_INT8_AVX2(CASE)
#undef CASE
    default: return 0;
    }
}
INLINE int bias_of(int dtype) {
    switch (dtype) {
    case DT_Q6_K: return 32;
    case DT_Q5_0: return 16;
    case DT_NVFP4:
    case DT_MXFP4: return 12; /* the values are doubled */
    case DT_Q4_0: return 8;
    case DT_Q3_K: return 4;
    default: return is_small(dtype) ? small_bias(dtype) : HAS_VNNI && is_wide(dtype) ? 128 : 0;
    }
}
/* Products of codes with bytes of at most 127, in pairs, that a 16-bit sum holds; 0: they are summed in fours to 32
 * bits. */
INLINE int pairs_that_fit(int dtype) {
    if (HAS_VNNI || is_wide(dtype)) return 0;
    if (is_small(dtype)) return small_bias(dtype) == 64 ? 1 /* 126 */ : 4 /* 31 */;
    switch (dtype) {
    case DT_Q6_K: return 2; /* 63 * 127 * 2 each */
    case DT_Q5_K:
    case DT_Q5_0:
    case DT_Q5_1: /* 31 */
    case DT_NVFP4:
    case DT_MXFP4: return 4; /* 24 */
    default: return 8;       /* 15 */
    }
}

/* --- Codes ------------------------------------------------------------------------------------ */

/* Formats whose blocks are parts: at their end 32 bytes (Q8_0), or 16 of nibbles, the low ones of the first 16 columns.
 */
INLINE bool has_blocks(int dtype) {
    return !has_two(dtype) && dtype != DT_Q4_K && dtype != DT_Q5_K && dtype != DT_IQ4_XS;
}
INLINE bool has_fifth_bits(int dtype) { return dtype == DT_Q5_0 || dtype == DT_Q5_1; }
INLINE __m256i fp4_values(__m256i codes) { /* doubled, plus the bias */
    const __m128i values = _mm_add_epi8(load_16((const uint8_t *)mat_mxfp4), _mm_set1_epi8(12));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), codes);
}
/* Turns signed bytes into the codes that the products take. */
INLINE __m256i wide_codes(__m256i v) { return HAS_VNNI ? _mm256_xor_si256(v, _mm256_set1_epi8((char)128)) : v; }
INLINE __m256i iq4_values(__m256i codes) {
    return wide_codes(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_16((const uint8_t *)mat_iq4)), codes));
}
/* Codes of the block that ends at p, in order. */
INLINE __m256i block_codes(const uint8_t *p, const int dtype) {
    if (dtype == DT_Q8_0) return wide_codes(load_32(p - 32));
    const __m128i v = load_16(p - 16);
    const __m256i codes = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(v, 4), v), _mm256_set1_epi8(15));
    if (dtype == DT_MXFP4) return fp4_values(codes);
    if (is_iq4(dtype)) return iq4_values(codes);
    if (!has_fifth_bits(dtype)) return codes;
    return _mm256_or_si256(codes, fifth_bits(p - 20, p - 18, 0)); /* the last 16 columns' bits are two bytes further */
}
/* The first and the last 16 columns' codes of the blocks that end at p and q. */
INLINE void two_blocks_codes(__m256i v[2], const uint8_t *p, const uint8_t *q, const int dtype) {
    const __m256i both = _mm256_set_m128i(load_16(q - 16), load_16(p - 16)), four = _mm256_set1_epi8(15);
    v[0] = _mm256_and_si256(both, four), v[1] = _mm256_and_si256(_mm256_srli_epi16(both, 4), four);
    if (dtype == DT_Q8_0)
        v[0] = wide_codes(_mm256_set_m128i(load_16(q - 32), load_16(p - 32))), v[1] = wide_codes(both);
    EACH (int i = 0; i < 2 && dtype == DT_MXFP4; i++) v[i] = fp4_values(v[i]);
    EACH (int i = 0; i < 2 && is_iq4(dtype); i++) v[i] = iq4_values(v[i]);
    if (!has_fifth_bits(dtype)) return;
    EACH (int i = 0; i < 2; i++) v[i] = _mm256_or_si256(v[i], fifth_bits(p - 20, q - 20, 16 * i));
}
/* Codes of part k of the 256 columns at p, in order. */
INLINE __m256i codes_of(const uint8_t *p, const int k, const int dtype) {
    switch (dtype) {
    case DT_Q2_K: return moved(load_32(p + 16 + k / 4 * 32), -2 * (k % 4), 3);
    case DT_Q3_K:
        return _mm256_or_si256(moved(load_32(p + 32 + k / 4 * 32), -2 * (k % 4), 3), moved(load_32(p), 2 - k, 4));
    case DT_Q4_K: return moved(load_32(p + 16 + k / 2 * 32), k % 2 ? -4 : 0, 15);
    case DT_Q5_K:
        return _mm256_or_si256(moved(load_32(p + 48 + k / 2 * 32), k % 2 ? -4 : 0, 15),
                               moved(load_32(p + 16), 4 - k, 16));
    case DT_Q6_K:
        return _mm256_or_si256(moved(load_32(p + k / 4 * 64 + k % 2 * 32), k % 4 < 2 ? 0 : -4, 15),
                               moved(load_32(p + 128 + k / 4 * 32), 4 - 2 * (k % 4), 0x30));
    case DT_IQ4_XS: return block_codes(p + 8 + (k + 1) * 16, dtype);
    default: return block_codes(p + (k + 1) * (block_bytes(dtype) / PARTS), dtype);
    }
}

/* --- Scales ----------------------------------------------------------------------------------- */

/* Eight vectors of eight dwords: rows become columns. */
INLINE void transpose_8(__m256i v[8]) {
    __m256i a[8], b[8];
    EACH (int i = 0; i < 4; i++)
        a[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
              a[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    EACH (int i = 0; i < 2; i++)
        EACH (int h = 0; h < 2; h++) {
            b[4 * i + 2 * h] = _mm256_unpacklo_epi64(a[4 * i + h], a[4 * i + 2 + h]);
            b[4 * i + 2 * h + 1] = _mm256_unpackhi_epi64(a[4 * i + h], a[4 * i + 2 + h]);
        }
    EACH (int i = 0; i < 4; i++)
        v[i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x20),
        v[4 + i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x31);
}
/* 16 bytes of each row, `at` bytes from p: four vectors of a dword of each. */
INLINE void dwords_4(__m256i v[4], const uint8_t *const *p, const int at) {
    __m256i a[4], b[4];
    EACH (int i = 0; i < 4; i++) a[i] = _mm256_set_m128i(load_16(p[4 + i] + at), load_16(p[i] + at));
    EACH (int i = 0; i < 2; i++)
        b[2 * i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]),
              b[2 * i + 1] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    EACH (int i = 0; i < 2; i++)
        v[2 * i] = _mm256_unpacklo_epi64(b[i], b[2 + i]), v[2 * i + 1] = _mm256_unpackhi_epi64(b[i], b[2 + i]);
}
/* The lower and the upper fp16 of each dword. */
INLINE void halves_of(V *low, V *high, __m256i v) {
    const __m256i all = _mm256_permute4x64_epi64(
        _mm256_packus_epi32(_mm256_and_si256(v, _mm256_set1_epi32(0xffff)), _mm256_srli_epi32(v, 16)), 0xd8);
    *low = _mm256_cvtph_ps(_mm256_castsi256_si128(all));
    *high = _mm256_cvtph_ps(_mm256_extracti128_si256(all, 1));
}
/* A dword of each row, `at` bytes from p. */
INLINE __m256i dword_of(const uint8_t *const *p, const int at) {
    int v[ROWS];
    EACH (int i = 0; i < ROWS; i++) memcpy(&v[i], p[i] + at, 4);
    return _mm256_setr_epi32(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
}
INLINE __m256i bits_of(__m256i v, const int from, const int mask) {
    return _mm256_and_si256(_mm256_srli_epi32(v, from), _mm256_set1_epi32(mask));
}
/* Two fp16, then eight scales and eight minima of six bits (formats_inner.h). */
INLINE void scales_min(struct scales *s, const uint8_t *const *p) {
    __m256i v[4];
    V d, least;
    dwords_4(v, p, 0);
    halves_of(&d, &least, v[0]);
    EACH (int k = 0; k < 4; k++) {
        vstore(s->scale[k], vmul(d, _mm256_cvtepi32_ps(bits_of(v[1], 8 * k, 63))));
        vstore(s->off[k], vmul(least, _mm256_cvtepi32_ps(bits_of(v[2], 8 * k, 63))));
        const __m256i scale = _mm256_or_si256(bits_of(v[3], 8 * k, 15), bits_of(v[1], 8 * k + 2, 0x30));
        const __m256i min = _mm256_or_si256(bits_of(v[3], 8 * k + 4, 15), bits_of(v[2], 8 * k + 2, 0x30));
        vstore(s->scale[4 + k], vmul(d, _mm256_cvtepi32_ps(scale)));
        vstore(s->off[4 + k], vmul(least, _mm256_cvtepi32_ps(min)));
    }
}
/* Sixteen signed bytes of each row, four of them in each of v; d: the scale of all. */
INLINE void scales_two(struct scales *s, const __m256i v[4], V d, const int dtype) {
    EACH (int k = 0; k < PARTS; k++) {
        const int at = k % 2 * 2; /* where the byte of the first 16 columns is */
        const char a = (char)at, n = -1;
        const __m256i first = _mm256_broadcastsi128_si256(
                          _mm_setr_epi8(n, a, n, a, n, a + 4, n, a + 4, n, a + 8, n, a + 8, n, a + 12, n, a + 12)),
                      second = _mm256_add_epi8(first, _mm256_set1_epi16(0x100)),
                      both = _mm256_blend_epi16(first, second, 0xaa);
        __m256i *each = (__m256i *)(void *)s->each[k];
        _mm256_storeu_si256(each, _mm256_srai_epi16(_mm256_shuffle_epi8(v[k / 2], first), 8));
        _mm256_storeu_si256(each + 1, _mm256_srai_epi16(_mm256_shuffle_epi8(v[k / 2], second), 8));
        _mm256_storeu_si256((__m256i *)(void *)s->bias[k],
                            _mm256_mullo_epi16(_mm256_srai_epi16(_mm256_shuffle_epi8(v[k / 2], both), 8),
                                               _mm256_set1_epi16((short)-bias_of(dtype))));
        vstore(s->scale[k], d);
    }
}
/* An fp16, then six bits of each part less 32: the upper two in a word, the lower four in four bytes. */
INLINE void scales_iq4_xs(struct scales *s, const uint8_t *const *p) {
    V d, none;
    const __m256i first = dword_of(p, 0), low = dword_of(p, 4);
    halves_of(&d, &none, first);
    EACH (int k = 0; k < PARTS; k++) {
        const __m256i six =
            _mm256_or_si256(bits_of(low, 4 * k, 15), _mm256_slli_epi32(bits_of(first, 16 + 2 * k, 3), 4));
        vstore(s->scale[k], vmul(d, _mm256_cvtepi32_ps(_mm256_sub_epi32(six, _mm256_set1_epi32(32)))));
    }
}
INLINE void load_scales(struct scales *s, const uint8_t *const *p, const int dtype) {
    V low, high;
    __m256i v[8];
    if (dtype == DT_Q4_K || dtype == DT_Q5_K) {
        scales_min(s, p);
    } else if (dtype == DT_IQ4_XS) {
        scales_iq4_xs(s, p);
    } else if (dtype == DT_Q6_K || dtype == DT_Q3_K) {
        halves_of(&low, &high, dword_of(p, dtype == DT_Q6_K ? 206 : 106)); /* a row's last two bytes */
        if (dtype == DT_Q6_K) dwords_4(v, p, 192);
        else {
            uint8_t bytes[ROWS][16];
            const uint8_t *at[ROWS];
            EACH (int i = 0; i < ROWS; i++)
                _mm_storeu_si128((__m128i *)(void *)bytes[i], scales_q3_k(p[i])), at[i] = bytes[i];
            dwords_4(v, at, 0);
        }
        scales_two(s, v, high, dtype);
    } else if (dtype == DT_Q2_K) {
        const __m256i four = _mm256_set1_epi8(15);
        __m256i w[4];
        dwords_4(w, p, 0);
        halves_of(&low, &high, dword_of(p, 80));
        EACH (int i = 0; i < 4; i++) v[i] = _mm256_and_si256(w[i], four);
        scales_two(s, v, low, dtype);
        EACH (int k = 0; k < PARTS; k++) { /* minima as words */
            const __m256i two = _mm256_srli_epi32(w[k / 2], k % 2 * 16 + 4);
            const __m256i pair =
                _mm256_or_si256(_mm256_and_si256(two, _mm256_set1_epi32(15)),
                                _mm256_and_si256(_mm256_slli_epi32(two, 8), _mm256_set1_epi32(15 << 16)));
            _mm256_storeu_si256((__m256i *)(void *)s->bias[k], pair);
            vstore(s->off[k], high);
        }
    } else { /* the first four bytes of each block */
        const int size = block_bytes(dtype) / PARTS;
        EACH (int i = 0; i < ROWS; i++) {
            v[i] = load_32(p[i]);
#define FIRST(k) v[i] = _mm256_blend_epi32(v[i], load_32(p[i] + (k) * (size - 4)), 1 << (k));
            FIRST(1) FIRST(2) FIRST(3) FIRST(4) FIRST(5) FIRST(6) FIRST(7)
#undef FIRST
        }
        transpose_8(v);
        EACH (int k = 0; k < PARTS; k++) {
            const __m256i first = v[k];
            if (dtype == DT_MXFP4) {
                vstore(s->scale[k], vmul(power_v(first), vset1(0.5f))); /* values are doubled */
                continue;
            }
            halves_of(&low, &high, first);
            vstore(s->scale[k], low);
            if (has_off(dtype)) vstore(s->off[k], vsub(vzero(), high));
        }
    }
}

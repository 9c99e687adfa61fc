/* GGUF's IQ1, IQ2 and IQ3 blocks: 512 columns at a time, planar. A lane of a sum is a part of 32 columns, or one half
 * of it where a scale is for 16 columns, so unit and scale are vectors. Byte `octet` (eight columns; 4 * part + number
 * in the part) of a vector w[v] is column v of each octet, for all 64 octets; x is packed in the same order. With
 * halves, w[0..3] has the first two octets of each part and w[4..7] the others: columns v % 4 of them in the first two
 * bytes of a lane, columns 4 + v % 4 in the last two.
 *
 * An entry of a grid is two bytes of codes of 2 bits a column (IQ3: an entry for four columns, 3 bits a column, two
 * entries an octet). vpermi2b looks up 64 numbers below 128; the numbers of larger grids take one more for each 128
 * entries, under a mask, in place; the other bytes remain numbers. Then vpermb turns a code and its sign, at fixed bits
 * of a byte, into the level plus BIAS, which is not negative; BIAS times the sum of x is subtracted as an integer.
 *
 * Instructions per 512 columns: 16 products, 8 vpermb, 9 to 12 (IQ3: 15) to bring codes and signs together, 4 lookups
 * for each 256 entries (IQ3: twice that), a mask for each 128 entries, about 30 to load and to scale: 79 for 132 bytes
 * of IQ2_XXS, 159 for 100 bytes of IQ1_S. Integer sums are exact, at most 32 * 62 * 32,640. */
#include <stdint.h>

#include "base/iq_grids.h"
#include "cpu/formats.h"
#include "cpu/gemm_int8.h"
#include "cpu/intdot_planes.h"

#define DTYPE  FORMAT_DTYPE(FORMAT)
#define FLOATS FORMAT_JOIN(avx512_, FORMAT)
#define EACH_ROW for
enum {
    GROUP = 512,
    TURN = 4,
    BYTES = 2 * FORMAT_BYTES(FORMAT),
    IQ1 = DTYPE == DT_IQ1_S || DTYPE == DT_IQ1_M,
    IQ3 = DTYPE == DT_IQ3_XXS || DTYPE == DT_IQ3_S,
    HALVES = DTYPE == DT_IQ2_XS || DTYPE == DT_IQ2_S || DTYPE == DT_IQ1_M ? 2 : 1, /* scales of a part */
    ENTRIES = DTYPE == DT_IQ2_XXS || DTYPE == DT_IQ3_XXS ? 256
              : IQ1                                      ? 2048
              : DTYPE == DT_IQ2_S                        ? 1024
                                                         : 512,
    BIAS = IQ1 ? 9 : 64,
};
struct group {
    int8_t high[8][64], low[8][64]; /* in the order of w */
    int32_t start[HALVES][16];      /* -BIAS * sum of x, in units */
    float unit[16];                 /* of each part */
} __attribute__((aligned(64)));
#include "cpu/intdot_inner.h"

/* --- Tables ----------------------------------------------------------------------------------- */

#define GRID_iq1_s   GRID_IQ1_S
#define GRID_iq1_m   GRID_IQ1_S
#define GRID_iq2_xxs GRID_IQ2_XXS
#define GRID_iq2_xs  GRID_IQ2_XS
#define GRID_iq2_s   GRID_IQ2_S
#define GRID_iq3_xxs GRID_IQ3_XXS
#define GRID_iq3_s   GRID_IQ3_S
#define GRID         FORMAT_JOIN(GRID_, FORMAT)
#define THREE(e, k)  ((e) >> 3 * (k)&7)
#define PAIR_3(e, k) (uint8_t)(THREE(e, k) | THREE(e, (k) + 1) << 5) /* bits 3 and 4 are for signs */
/* First columns of an entry, last columns. Two bits: columns 0 to 3, 4 to 7; three bits: 0 and 1, 2 and 3. */
static const uint8_t codes[2][ENTRIES] __attribute__((aligned(64))) = {
#define G(e) IQ3 ? PAIR_3(e, 0) : (uint8_t)(e),
    {GRID},
#undef G
#define G(e) IQ3 ? PAIR_3(e, 2) : (uint8_t)((e) >> 8),
    {GRID},
#undef G
};

#define ROW_4(f, i)  f(i), f((i) + 1), f((i) + 2), f((i) + 3)
#define ROW_16(f, i) ROW_4(f, i), ROW_4(f, (i) + 4), ROW_4(f, (i) + 8), ROW_4(f, (i) + 12)
#define ROW_64(f, i) ROW_16(f, i), ROW_16(f, (i) + 16), ROW_16(f, (i) + 32), ROW_16(f, (i) + 48)
/* A level's magnitude; blocks.c defines the same. */
#define LEVEL(code) \
    (DTYPE == DT_IQ3_S ? 2 * (code) + 1 : IQ3 ? 4 + 8 * (code) + 2 * ((code) == 7) : 8 + 17 * (code) + ((code) == 2))
/* In IQ1 the sign is the offset's, and the level 8 times the value. */
#define SIGNED(code, sign) \
    (uint8_t)(IQ1 ? 8 * (code) + ((sign) ? 0 : 2) : (sign) ? BIAS - LEVEL(code) : BIAS + LEVEL(code))
/* Even columns: a code at bit 0, its sign after two codes of two bits, or after its three bits. Odd columns: after
 * that, or at bit 2 before its code. */
#define EVEN(i) IQ3 ? SIGNED((i)&7, (i) >> 3 & 1) : SIGNED((i)&3, (i) >> 4 & 1)
#define ODD(i)  IQ3 ? SIGNED((i) >> 3 & 7, (i) >> 2 & 1) : SIGNED((i) >> 2 & 3, (i) >> 5 & 1)
static const uint8_t levels[2][64] __attribute__((aligned(64))) = {{ROW_64(EVEN, 0)}, {ROW_64(ODD, 0)}};

/* Byte k of vector v of 64 columns of x, with halves and without. */
#define PLACE(k) \
    (uint8_t)(HALVES == 1 ? 8 * ((k) % 8) + (k) / 8 \
                          : 8 * ((k) / 4 % 2 * 4 + (k) / 32 * 2 + (k) % 2) + (k) / 8 % 4 + (k) % 4 / 2 * 4)
static const uint8_t places[64] __attribute__((aligned(64))) = {ROW_64(PLACE, 0)};

#define PARITY(i) ((i) ^ (i) >> 1 ^ (i) >> 2 ^ (i) >> 3 ^ (i) >> 4 ^ (i) >> 5 ^ (i) >> 6)
#define EIGHT(i)  (uint8_t)((i) | (PARITY(i) & 1) << 7)
static const uint8_t signs_of_seven[128] __attribute__((aligned(64))) = {ROW_64(EIGHT, 0), ROW_64(EIGHT, 64)};

INLINE __m512i load_bytes(const void *p) { return _mm512_loadu_si512(p); }
INLINE __m512i load_halves(const uint8_t *p, const uint8_t *q) { /* 32 bytes of each */
    const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)p),
                  b = _mm256_loadu_si256((const __m256i *)(const void *)q);
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}
INLINE __m128i load_eights(const uint8_t *p, const uint8_t *q) { /* 8 bytes of each */
    return _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(const void *)p),
                              _mm_loadl_epi64((const __m128i *)(const void *)q));
}
INLINE __m256i load_sixteens(const uint8_t *p, const uint8_t *q) { /* 16 bytes of each */
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p)),
                                   _mm_loadu_si128((const __m128i *)(const void *)q), 1);
}
/* mask ? b : a */
INLINE __m512i merged(__m512i a, __m512i b, uint32_t mask) {
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi32((int)mask), 0xd8);
}
INLINE __m512i shifted(__m512i v, const int left) {
    return left > 0 ? _mm512_slli_epi16(v, (unsigned)left) : left < 0 ? _mm512_srli_epi16(v, (unsigned)-left) : v;
}

/* --- x ---------------------------------------------------------------------------------------- */

/* Rows of eight 64-bit words become columns. */
INLINE void transpose_8(__m512i v[8]) {
    __m512i a[8], b[8];
    EACH (int i = 0; i < 4; i++) {
        a[i] = _mm512_unpacklo_epi64(v[2 * i], v[2 * i + 1]);
        a[4 + i] = _mm512_unpackhi_epi64(v[2 * i], v[2 * i + 1]);
    }
    EACH (int h = 0; h < 8; h += 4) {
        EACH (int i = 0; i < 2; i++) {
            b[h + i] = _mm512_shuffle_i64x2(a[h + 2 * i], a[h + 2 * i + 1], 0x88);
            b[h + 2 + i] = _mm512_shuffle_i64x2(a[h + 2 * i], a[h + 2 * i + 1], 0xdd);
        }
        EACH (int i = 0; i < 2; i++) {
            v[h / 4 + 2 * i] = _mm512_shuffle_i64x2(b[h + 2 * i], b[h + 2 * i + 1], 0x88);
            v[h / 4 + 2 * i + 4] = _mm512_shuffle_i64x2(b[h + 2 * i], b[h + 2 * i + 1], 0xdd);
        }
    }
}
INLINE void planar(int8_t (*plane)[64]) {
    __m512i v[8];
    EACH (int i = 0; i < 8; i++) v[i] = _mm512_permutexvar_epi8(_mm512_load_si512(places), _mm512_load_si512(plane[i]));
    transpose_8(v);
    EACH (int i = 0; i < 8; i++) _mm512_store_si512(plane[i], v[i]);
}
INLINE void group_make(struct group *g, const float *x, int n) {
    const __m512i bias = _mm512_set1_epi8(BIAS),
                  evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
    for (int h = 0; h < 2; h++) {
        float f[16];
        V u[16];
        EACH (int i = 0; i < 16; i++) u[i] = h && n <= GROUP / 2 ? vzero() : vload(x + GROUP / 2 * h + 16 * i);
        const __m256 first = units_8(u, f, true), second = units_8(u + 8, f + 8, true);
        const V all = _mm512_insertf32x8(_mm512_castps256_ps512(first), second, 1);
        _mm256_store_ps(g->unit + 8 * h, _mm512_castps512_ps256(_mm512_permutexvar_ps(evens, all)));
        EACH (int v = 0; v < 4; v++)
            planes_64(g->high[4 * h + v], g->low[4 * h + v], u[4 * v], u[4 * v + 1], u[4 * v + 2], u[4 * v + 3],
                      f[4 * v], f[4 * v + 1], f[4 * v + 2], f[4 * v + 3]);
    }
    planar(g->high), planar(g->low);
    EACH (int h = 0; h < HALVES; h++) {
        __m512i sum = _mm512_setzero_si512();
        EACH (int v = 8 / HALVES * h; v < 8 / HALVES * (h + 1); v++)
            sum = _mm512_add_epi32(sum, dot_planes(&bias, g->high + v, g->low + v, 1));
        _mm512_store_si512(g->start[h], _mm512_sub_epi32(_mm512_setzero_si512(), sum));
    }
}

/* --- Weights ---------------------------------------------------------------------------------- */

/* Bytes of two blocks: `step` apart, from `at`. */
#define STEP_2(k) (uint8_t)(2 * (k))
#define STEP_3(k) (uint8_t)(2 * (k) + 1)
#define STEP_8(k) (uint8_t)(8 * ((k) / 4) + (k) % 4)
static const uint8_t even_bytes[64] __attribute__((aligned(64))) = {ROW_64(STEP_2, 0)},
                                    odd_bytes[64] __attribute__((aligned(64))) = {ROW_64(STEP_3, 0)},
                                    four_of_eight[64] __attribute__((aligned(64))) = {ROW_64(STEP_8, 0)};
INLINE __m512i picked(const uint8_t *table, __m512i a, __m512i b) {
    return _mm512_permutex2var_epi8(a, _mm512_load_si512(table), b);
}

/* Byte k of each lane becomes the lane's bits from k * step on. */
INLINE __m512i fields(__m512i lanes, const int step) {
    const uint64_t low = (uint64_t)(uint32_t)(step << 8 | 2 * step << 16 | 3 * step << 24);
    return _mm512_multishift_epi64_epi8(_mm512_set1_epi64((long long)(low | (low | 0x20202020) << 32)), lanes);
}
INLINE __m512i signs_7(__m512i seven) { /* bit 7 is ignored */
    return _mm512_permutex2var_epi8(_mm512_load_si512(signs_of_seven), seven, _mm512_load_si512(signs_of_seven + 64));
}
/* Both tables' bytes for 64 numbers: low eight bits, further ones from bit 0 on of `high`. */
INLINE void look_up(__m512i c[2], __m512i low, __m512i high) {
    const __m512i page = ENTRIES > 256 ? merged(high, low, 0x80808080) : low,
                  used = _mm512_set1_epi8((char)(0x80 | (ENTRIES / 256 - 1)));
    const __m512i number = ENTRIES > 256 ? _mm512_and_si512(page, used) : page;
    c[0] = c[1] = low;
    EACH (int i = 0; i < ENTRIES / 128; i++) {
        const __mmask64 in = ENTRIES > 256
                                 ? _mm512_cmpeq_epi8_mask(number, _mm512_set1_epi8((char)(i % 2 << 7 | i / 2)))
                             : i ? _mm512_movepi8_mask(page)
                                 : ~_mm512_movepi8_mask(page);
        EACH (int k = 0; k < 2; k++)
            c[k] = _mm512_mask2_permutex2var_epi8(_mm512_load_si512(codes[k] + 128 * i), c[k], in,
                                                  _mm512_load_si512(codes[k] + 128 * i + 64));
    }
}
INLINE void two_columns(__m512i w[2], __m512i joined) {
    w[0] = _mm512_permutexvar_epi8(joined, _mm512_load_si512(levels[0]));
    w[1] = _mm512_permutexvar_epi8(IQ3 ? _mm512_srli_epi16(joined, 2) : joined, _mm512_load_si512(levels[1]));
}
/* w: levels plus BIAS. c: codes of an octet's first columns and last ones (of IQ3: columns 2 * k and after). signs: bit
 * k for column k. */
INLINE void join(__m512i w[8], const __m512i *c, __m512i signs, const bool halves) {
    if (IQ3) {
        EACH (int k = 0; k < 4; k++) two_columns(w + 2 * k, merged(c[k], shifted(signs, 3 - 2 * k), 0x18181818));
        return;
    }
    __m512i code[2] = {c[0], c[1]}, sign[2] = {_mm512_slli_epi16(signs, 4), signs};
    if (halves) {
        const uint32_t last = 0xffff0000;
        code[0] = merged(c[0], _mm512_slli_epi32(c[1], 16), last);
        code[1] = merged(_mm512_srli_epi32(c[0], 16), c[1], last);
        sign[0] = _mm512_slli_epi16(merged(signs, _mm512_slli_epi32(signs, 12), last), 4);
        sign[1] = _mm512_slli_epi16(merged(_mm512_srli_epi32(signs, 16), _mm512_srli_epi32(signs, 4), last), 4);
    }
    EACH (int h = 0; h < 2; h++)
        EACH (int k = 0; k < 2; k++)
            two_columns(w + 4 * h + 2 * k, merged(shifted(code[h], -4 * k), shifted(sign[h], -2 * k), 0x30303030));
}

INLINE V whole_v(__m512i lanes) { return _mm512_cvtepi32_ps(lanes); }
INLINE V both_halves(uint32_t p, uint32_t q) { /* two fp16, for a block's lanes each */
    const V d = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128((int)(p | q << 16))));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), d);
}
INLINE uint32_t two_bytes(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}
INLINE V iq2_scale(__m512i nibble, V d) { return vmul(vfma(whole_v(nibble), vset1(0.25f), vset1(0.125f)), d); }
/* A nibble for each half of a part, the first in the low bits. */
INLINE void scales_of_halves(V *scale, const uint8_t *p, const uint8_t *q, V d) {
    const __m512i both = _mm512_cvtepu8_epi32(load_eights(p, q));
    scale[0] = iq2_scale(_mm512_and_si512(both, _mm512_set1_epi32(15)), d);
    scale[HALVES - 1] = iq2_scale(_mm512_srli_epi32(both, 4), d);
}

/* Blocks of 256 columns at p and q, as look_up and join take them. */
struct parts {
    __m512i c[4], signs;
    V scale[HALVES];
};
INLINE void load_iq2_xxs(struct parts *g, const uint8_t *p, const uint8_t *q, V d) {
    const __m512i a = load_bytes(p + 2), b = load_bytes(q + 2);
    const __m512i words =
        _mm512_permutex2var_epi32(a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b);
    look_up(g->c, picked(four_of_eight, a, b), words);
    g->signs = signs_7(fields(words, 7));
    g->scale[0] = iq2_scale(_mm512_srli_epi32(words, 28), d);
}
INLINE void load_iq2_xs(struct parts *g, const uint8_t *p, const uint8_t *q, V d) {
    const __m512i a = load_bytes(p + 2), b = load_bytes(q + 2), high = picked(odd_bytes, a, b);
    look_up(g->c, picked(even_bytes, a, b), high);
    g->signs = signs_7(_mm512_srli_epi16(high, 1));
    scales_of_halves(g->scale, p + 66, q + 66, d);
}
INLINE void load_iq2_s(struct parts *g, const uint8_t *p, const uint8_t *q, V d) {
    look_up(g->c, load_halves(p + 2, q + 2), fields(_mm512_cvtepu8_epi32(load_eights(p + 66, q + 66)), 2));
    g->signs = load_halves(p + 34, q + 34);
    scales_of_halves(g->scale, p + 74, q + 74, d);
}
INLINE void load_iq3(struct parts *g, const uint8_t *p, const uint8_t *q, __m512i high) {
    const __m512i a = load_bytes(p + 2), b = load_bytes(q + 2);
    look_up(g->c, picked(even_bytes, a, b), high);
    look_up(g->c + 2, picked(odd_bytes, a, b), _mm512_srli_epi16(high, 1));
}
INLINE void load_iq3_xxs(struct parts *g, const uint8_t *p, const uint8_t *q, V d) {
    const __m512i words = load_halves(p + 66, q + 66);
    load_iq3(g, p, q, words);
    g->signs = signs_7(fields(words, 7));
    g->scale[0] = vmul(vfma(whole_v(_mm512_srli_epi32(words, 28)), vset1(0.5f), vset1(0.25f)), d);
}
INLINE void load_iq3_s(struct parts *g, const uint8_t *p, const uint8_t *q, V d) {
    const __m128i wide = _mm_cvtepu8_epi16(_mm_unpacklo_epi32(_mm_loadu_si32(p + 106), _mm_loadu_si32(q + 106)));
    const __m128i nibbles = _mm_and_si128(_mm_or_si128(wide, _mm_slli_epi16(wide, 4)), _mm_set1_epi8(15));
    load_iq3(g, p, q, fields(_mm512_cvtepu8_epi32(load_eights(p + 66, q + 66)), 2));
    g->signs = load_halves(p + 74, q + 74);
    g->scale[0] = vmul(vfma(whole_v(_mm512_cvtepu8_epi32(nibbles)), vset1(2), vset1(1)), d);
}
INLINE V iq1_scale(__m512i lanes, V d) { return iq2_scale(_mm512_and_si512(lanes, _mm512_set1_epi32(7)), d); }
INLINE void load_iq1_s(struct parts *g, const uint8_t *p, const uint8_t *q, V d) {
    const __m512i words = _mm512_cvtepu16_epi32(load_sixteens(p + 34, q + 34));
    look_up(g->c, load_halves(p + 2, q + 2), fields(words, 3));
    g->signs = _mm512_srai_epi32(_mm512_slli_epi32(words, 16), 31);
    g->scale[0] = iq1_scale(_mm512_srli_epi32(words, 12), d);
}
/* The fp16 scale is in the upper four bits of four words. */
INLINE uint32_t iq1_m_half(const uint8_t *p) {
    uint64_t w;
    memcpy(&w, p + 48, sizeof w);
    return (uint32_t)(w >> 12 & 0xf) | (uint32_t)(w >> 24 & 0xf0) | (uint32_t)(w >> 36 & 0xf00) |
           (uint32_t)(w >> 48 & 0xf000);
}
INLINE void load_iq1_m(struct parts *g, const uint8_t *p, const uint8_t *q) {
    const __m512i wide = _mm512_cvtepu8_epi16(load_sixteens(p + 32, q + 32));
    const __m512i high = _mm512_or_si512(wide, _mm512_slli_epi16(wide, 4)); /* low nibble of byte k: of octet k */
    const __m512i words = _mm512_castsi256_si512(_mm256_cvtepu16_epi32(load_eights(p + 48, q + 48)));
    const __m512i twice =
        _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), words);
    const __m512i three = _mm512_srlv_epi32(twice, _mm512_setr_epi32(0, 6, 0, 6, 0, 6, 0, 6, 0, 6, 0, 6, 0, 6, 0, 6));
    const V d = both_halves(iq1_m_half(p), iq1_m_half(q));
    look_up(g->c, load_halves(p, q), high);
    g->signs = _mm512_movm_epi8(_mm512_test_epi8_mask(high, _mm512_set1_epi8(8)));
    g->scale[0] = iq1_scale(three, d);
    g->scale[HALVES - 1] = iq1_scale(_mm512_srli_epi32(three, 3), d);
}
INLINE void load_group(struct parts *g, const uint8_t *p, const uint8_t *q) {
    if (DTYPE == DT_IQ1_M) {
        load_iq1_m(g, p, q);
        return;
    }
    const V d = both_halves(two_bytes(p), two_bytes(q));
    if (DTYPE == DT_IQ2_XXS) load_iq2_xxs(g, p, q, d);
    if (DTYPE == DT_IQ2_XS) load_iq2_xs(g, p, q, d);
    if (DTYPE == DT_IQ2_S) load_iq2_s(g, p, q, d);
    if (DTYPE == DT_IQ3_XXS) load_iq3_xxs(g, p, q, d);
    if (DTYPE == DT_IQ3_S) load_iq3_s(g, p, q, d);
    if (DTYPE == DT_IQ1_S) load_iq1_s(g, p, q, d);
}

/* If a row ends after the first block, that block is read twice; x is zero in the second one's columns. */
INLINE void group_dot(V *sum, const uint8_t *p, const uint8_t *s, const struct group *x, int ld, const int n,
                      const int N) {
    __m512i w[8];
    struct parts g;
    load_group(&g, p, n > GROUP / 2 ? p + BYTES / 2 : p);
    join(w, g.c, g.signs, HALVES == 2);
    EACH (int t = 0; t < N; t++, x += ld)
        EACH (int h = 0; h < HALVES; h++) {
            __m512i high = _mm512_setzero_si512(), low = _mm512_load_si512(x->start[h]);
            EACH (int v = 8 / HALVES * h; v < 8 / HALVES * (h + 1); v++) {
                high = _mm512_dpbusd_epi32(high, w[v], _mm512_load_si512(x->high[v]));
                low = _mm512_dpbusd_epi32(low, w[v], _mm512_load_si512(x->low[v]));
            }
            const __m512i dot = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
            sum[t] = vfma(_mm512_cvtepi32_ps(dot), vmul(g.scale[h], vload(x->unit)), sum[t]);
        }
}

/* --- Codes for many tokens (gemm_int8.h) ------------------------------------------------------ */

/* Two rows at a time: a vector's octets 0 to 31 are of the first one. */
INLINE void two_rows(struct int8_rows *to, int i, int k, const uint8_t *p, const uint8_t *q) {
    __m512i w[8], a[8], b[8];
    struct parts g;
    load_group(&g, p, q);
    join(w, g.c, g.signs, false);
    EACH (int v = 0; v < 8; v++) w[v] = _mm512_sub_epi8(w[v], _mm512_set1_epi8(BIAS));
    EACH (int v = 0; v < 4; v++)
        a[2 * v] = _mm512_unpacklo_epi8(w[2 * v], w[2 * v + 1]),
              a[2 * v + 1] = _mm512_unpackhi_epi8(w[2 * v], w[2 * v + 1]);
    EACH (int h = 0; h < 2; h++) /* columns 4 * h to 4 * h + 3 of four octets a lane */
        EACH (int v = 0; v < 2; v++) {
            b[4 * h + 2 * v] = _mm512_unpacklo_epi16(a[4 * h + v], a[4 * h + 2 + v]);
            b[4 * h + 2 * v + 1] = _mm512_unpackhi_epi16(a[4 * h + v], a[4 * h + 2 + v]);
        }
    EACH (int v = 0; v < 4; v++)
        w[2 * v] = _mm512_unpacklo_epi32(b[v], b[4 + v]), w[2 * v + 1] = _mm512_unpackhi_epi32(b[v], b[4 + v]);
    EACH (int h = 0; h < 8;
          /* now two neighbouring octets a lane: 16 columns, from 16 * v on in the first lane, 128 columns further in
             each one after */
          h += 4) {
        const __m512i low[2] = {_mm512_shuffle_i32x4(w[h], w[h + 1], 0x44),
                                _mm512_shuffle_i32x4(w[h + 2], w[h + 3], 0x44)};
        const __m512i high[2] = {_mm512_shuffle_i32x4(w[h], w[h + 1], 0xee),
                                 _mm512_shuffle_i32x4(w[h + 2], w[h + 3], 0xee)};
        _mm512_store_si512(to->code[i] + 16 * h, _mm512_shuffle_i32x4(low[0], low[1], 0x88));
        _mm512_store_si512(to->code[i] + 16 * h + 128, _mm512_shuffle_i32x4(low[0], low[1], 0xdd));
        _mm512_store_si512(to->code[k] + 16 * h, _mm512_shuffle_i32x4(high[0], high[1], 0x88));
        _mm512_store_si512(to->code[k] + 16 * h + 128, _mm512_shuffle_i32x4(high[0], high[1], 0xdd));
    }
    const V s = g.scale[0], t = g.scale[HALVES - 1];
    if (HALVES == 2) {
        vstore(to->scale[i],
               _mm512_permutex2var_ps(s, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), t));
        vstore(to->scale[k],
               _mm512_permutex2var_ps(
                   s, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), t));
    } else {
        vstore(to->scale[i], s);
        _mm256_storeu_ps(to->scale[k], _mm512_extractf32x8_ps(s, 1));
    }
}
#define INT8_CODES FORMAT_JOIN(FORMAT_JOIN(int8_codes_, ISA), FORMAT_JOIN(_, FORMAT))
INT8_CODES_FN(INT8_CODES);
INT8_CODES_FN(INT8_CODES) {
    const uint8_t *p = (const uint8_t *)w->data + (size_t)r * w->stride + (size_t)c0 / 256 * FORMAT_BYTES(FORMAT);
    for (int i = 0; i < rows; i += 2, p += 2 * w->stride) {
        const uint8_t *q = i + 1 < rows ? p + w->stride : p;
        for (int line = 0; line < FORMAT_BYTES(FORMAT); line += 64)
            _mm_prefetch(p + ahead + line, _MM_HINT_T1), _mm_prefetch(q + ahead + line, _MM_HINT_T1);
        two_rows(to, i, i + 1, p, q);
    }
}

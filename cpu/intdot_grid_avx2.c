/* GGUF's IQ1, IQ2 and IQ3 blocks with AVX2: 256 columns in parts of 32, as 16-bit words like K blocks. A format's step
 * first unpacks what blocks have outside their parts' bytes: numbers of grid entries, signs, scales. Then a part is
 * four or eight loads from the grid, signs, and the products.
 *
 * Instructions per part: 4 numbers and 5 to join their entries (IQ3: 8 and 9), 5 for signs (IQ1: 3 for offsets), 2 to
 * widen, 3 products, 3 or 4 to scale and add, and loads of x for two rows: about 23, of which 15 take one of four
 * vector units of Zen 5. Unpacking a block takes 20 to 35.
 *
 * Blocks for many tokens are unpacked here too, for gemm_int8_avx2.c. */
#include <stdint.h>

#include "base/grid_blocks.h"
#include "cpu/formats.h"
#include "cpu/intdot_words.h"
#include "cpu/small_codes.h"

#define DTYPE  FORMAT_DTYPE(FORMAT)
#define FLOATS FORMAT_JOIN(avx2_, FORMAT)
#define EACH_ROW for
#define TURNS
enum {
    GROUP = 256,
    TURN = 8,
    BYTES = FORMAT_BYTES(FORMAT),
    IQ1 = DTYPE == DT_IQ1_S || DTYPE == DT_IQ1_M,
    IQ3 = DTYPE == DT_IQ3_XXS || DTYPE == DT_IQ3_S,
    HALVES = DTYPE == DT_IQ2_XS || DTYPE == DT_IQ2_S || DTYPE == DT_IQ1_M ? 2 : 1, /* scales of a part */
    SIGNS = DTYPE == DT_IQ2_S   ? 34
            : DTYPE == DT_IQ3_S ? 74
                                : 0, /* offset of a block's signs, if they are octets */
    OCTETS = 32,                     /* of eight columns */
};
struct group {
    int16_t x[8][2][16]; /* of 32 columns: even ones, odd ones */
    float unit[8];       /* of each part */
} __attribute__((aligned(64)));
#include "cpu/intdot_inner.h"

/* --- x ---------------------------------------------------------------------------------------- */

INLINE void group_make(struct group *g, const float *x, int n) {
    __m256i most[8];
    float f[8];
    for (int i = 0; i < 8; i++) most[i] = join(most_2(x + 32 * i), most_2(x + 32 * i + 16), true);
    vstore(g->unit, units_8(vectors_8(most, true, true), f));
    for (int v = 0; v < 8; v++) {
        V even[2], odd[2];
        EACH (int h = 0; h < 2; h++) split_16(x + 32 * v + 16 * h, vset1(f[v]), &even[h], &odd[h]);
        words_16(g->x[v][0], even[0], even[1]);
        words_16(g->x[v][1], odd[0], odd[1]);
    }
}

/* --- Weights: a block ------------------------------------------------------------------------- */

struct block {
    /* of grid entries, where a block has them in pieces or beside other bits */
    uint16_t number[OCTETS * (IQ3 ? 2 : 1)];
    /* signs of eight columns each, where blocks lack octets (SIGNS); in IQ1 an offset */
    uint8_t octet[OCTETS];
} __attribute__((aligned(64)));
INLINE void store_32(void *p, __m256i v) { _mm256_store_si256((__m256i *)p, v); }
INLINE __m128i load_8(const uint8_t *p) { return _mm_loadl_epi64((const __m128i *)(const void *)p); }
INLINE __m128i eight_v(const uint8_t *p) { /* twice */
    long long eight;
    memcpy(&eight, p, 8);
    return _mm_set1_epi64x(eight);
}
INLINE uint32_t word_at(const uint8_t *p) {
    uint16_t w;
    memcpy(&w, p, 2);
    return w;
}
INLINE V half_v(uint32_t half) { return _mm256_cvtph_ps(_mm_set1_epi16((short)half)); }

/* Seven signs in each byte, whose bit 7 becomes their parity. vpshufb ignores bits 4 to 6 of an index. */
INLINE void signs_7(struct block *b, __m256i seven) {
    const __m256i odd = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    const __m256i low = _mm256_shuffle_epi8(odd, seven);
    const __m256i high = _mm256_shuffle_epi8(odd, _mm256_and_si256(_mm256_srli_epi16(seven, 4), _mm256_set1_epi8(15)));
    store_32(b->octet, _mm256_or_si256(seven, _mm256_xor_si256(low, high)));
}
/* Four times seven signs in each of eight words, below a scale: to fourteen in 16 bits, then to bytes, by adding the
 * upper seven once more. */
INLINE void signs_28(struct block *b, __m256i words) {
    const __m256i twice = _mm256_blend_epi16(words, _mm256_slli_epi32(words, 2), 0xaa);
    signs_7(b, _mm256_add_epi16(_mm256_and_si256(twice, _mm256_set1_epi16(0x3fff)),
                                _mm256_and_si256(twice, _mm256_set1_epi16(0x3f80))));
}
INLINE V scale_of(__m256i steps, float step, float first, V d) {
    return vmul(vfma(_mm256_cvtepi32_ps(steps), vset1(step), vset1(first)), d);
}
/* Two numbers in each byte of p, for the first and the second half of a part. The second ones are 16 times as large
 * before they are scaled. */
INLINE void scales_of_halves(V *scale, const uint8_t *p, V d) {
    const __m256i to_words =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1, -1));
    const __m256i mask = _mm256_setr_epi32(15, 15, 15, 15, 240, 240, 240, 240);
    const V step = _mm256_setr_ps(0x1p-2f, 0x1p-2f, 0x1p-2f, 0x1p-2f, 0x1p-6f, 0x1p-6f, 0x1p-6f, 0x1p-6f);
    EACH (int h = 0; h < HALVES; h++) {
        int four;
        memcpy(&four, p + 4 * h, 4);
        const __m256i both = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(four), to_words), mask);
        scale[h] = vmul(vfma(_mm256_cvtepi32_ps(both), step, vset1(0.125f)), d);
    }
}
/* Sixteen numbers: low bytes at q, and bits 8 on from `high` times `factor` and shifted. */
INLINE void numbers_16(uint16_t *to, const uint8_t *q, __m256i high, const int mask) {
    store_32(to,
             _mm256_or_si256(_mm256_cvtepu8_epi16(load_16(q)), _mm256_and_si256(high, _mm256_set1_epi16((short)mask))));
}
/* Words whose low bytes are bytes from + k / each of p's eight, k < 16. */
INLINE __m256i spread(__m128i p, const int from, const int each) {
    const int a = from, b = from + 4 / each, c = from + 8 / each, d = from + 12 / each;
#define FOUR_WORDS(i) (char)(i), -1, (char)(i), -1, (char)(i), -1, (char)(i), -1
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(p),
                               _mm256_setr_epi8(FOUR_WORDS(a), FOUR_WORDS(b), FOUR_WORDS(c), FOUR_WORDS(d)));
}
INLINE void offsets_iq1(struct block *b, __m256i negative) { /* -9 or -7, to eight times the value plus 8 */
    store_32(b->octet, _mm256_add_epi8(_mm256_and_si256(negative, _mm256_set1_epi8(-2)), _mm256_set1_epi8(-7)));
}

INLINE void unpack_iq2_xxs(struct block *b, V *scale, const uint8_t *p, V d) {
    const __m256 even = _mm256_castsi256_ps(load_32(p + 2)), odd = _mm256_castsi256_ps(load_32(p + 34));
    const __m256i words = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(even, odd, 0xdd)), 0xd8);
    signs_28(b, words);
    scale[0] = scale_of(_mm256_srli_epi32(words, 28), 0.25f, 0.125f, d);
}
INLINE void unpack_iq2_xs(struct block *b, V *scale, const uint8_t *p, V d) {
    const __m256i a = load_32(p + 2), c = load_32(p + 34), nine = _mm256_set1_epi16(511);
    store_32(b->number, _mm256_and_si256(a, nine));
    store_32(b->number + 16, _mm256_and_si256(c, nine));
    signs_7(b, _mm256_permute4x64_epi64(_mm256_packus_epi16(_mm256_srli_epi16(a, 9), _mm256_srli_epi16(c, 9)), 0xd8));
    scales_of_halves(scale, p + 66, d);
}
INLINE void unpack_iq2_s(struct block *b, V *scale, const uint8_t *p, V d) {
    const __m256i to_8 = _mm256_set1_epi64x(256 | 64LL << 16 | 16LL << 32 | 4LL << 48);
    const __m128i high = eight_v(p + 66);
    EACH (int i = 0; i < 2; i++)
        numbers_16(b->number + 16 * i, p + 2 + 16 * i, _mm256_mullo_epi16(spread(high, 4 * i, 4), to_8), 0x300);
    scales_of_halves(scale, p + 74, d);
}
INLINE void unpack_iq3_xxs(struct block *b, V *scale, const uint8_t *p, V d) {
    const __m256i words = load_32(p + 66);
    signs_28(b, words);
    scale[0] = scale_of(_mm256_srli_epi32(words, 28), 0.5f, 0.25f, d);
}
INLINE void unpack_iq3_s(struct block *b, V *scale, const uint8_t *p, V d) {
    const __m256i to_8 = _mm256_broadcastsi128_si256(_mm_setr_epi16(256, 128, 64, 32, 16, 8, 4, 2));
    const __m128i high = eight_v(p + 66);
    int four;
    memcpy(&four, p + 106, 4);
    const __m256i nibbles = _mm256_srlv_epi32(
        _mm256_cvtepu8_epi32(_mm_shuffle_epi8(_mm_cvtsi32_si128(four),
                                              _mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, -1, -1, -1, -1, -1, -1, -1, -1))),
        _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4));
    EACH (int i = 0; i < 4; i++)
        numbers_16(b->number + 16 * i, p + 2 + 16 * i, _mm256_mullo_epi16(spread(high, 2 * i, 8), to_8), 0x100);
    scale[0] = scale_of(_mm256_and_si256(nibbles, _mm256_set1_epi32(15)), 2, 1, d);
}
INLINE void unpack_iq1_s(struct block *b, V *scale, const uint8_t *p, V d) {
    const __m128i words = load_16(p + 34);
    const __m256i to_13 = _mm256_set1_epi64x(8192 | 1024LL << 16 | 128LL << 32 | 16LL << 48),
                  wide = _mm256_cvtepu16_epi32(words);
#define FOUR_TIMES(i) (i), (i) + 1, (i), (i) + 1, (i), (i) + 1, (i), (i) + 1
    const __m256i order = _mm256_setr_epi8(FOUR_TIMES(0), FOUR_TIMES(2), FOUR_TIMES(4), FOUR_TIMES(6));
    EACH (int i = 0; i < 2; i++) {
        const __m256i four =
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(i ? _mm_srli_si128(words, 8) : words), order);
        numbers_16(b->number + 16 * i, p + 2 + 16 * i, _mm256_srli_epi16(_mm256_mullo_epi16(four, to_13), 5), 0x700);
    }
    offsets_iq1(b, _mm256_srai_epi32(_mm256_slli_epi32(wide, 16), 31));
    scale[0] = scale_of(_mm256_and_si256(_mm256_srli_epi32(wide, 12), _mm256_set1_epi32(7)), 0.25f, 0.125f, d);
}
INLINE void unpack_iq1_m(struct block *b, V *scale, const uint8_t *p, V d) {
    const __m256i wide = _mm256_cvtepu8_epi16(load_16(p + 32));
    const __m256i nibbles = _mm256_and_si256(_mm256_or_si256(wide, _mm256_slli_epi16(wide, 4)), _mm256_set1_epi8(15));
    const __m128i both[2] = {_mm256_castsi256_si128(nibbles), _mm256_extracti128_si256(nibbles, 1)};
    EACH (int i = 0; i < 2; i++)
        numbers_16(b->number + 16 * i, p + 16 * i, _mm256_slli_epi16(_mm256_cvtepu8_epi16(both[i]), 8), 0x700);
    const __m256i eight = _mm256_set1_epi8(8);
    offsets_iq1(b, _mm256_cmpeq_epi8(_mm256_and_si256(nibbles, eight), eight));
    EACH (int h = 0; h < HALVES; h++) { /* two parts' halves in a word, three bits each */
        int both_words;
        memcpy(&both_words, p + 48 + 4 * h, 4);
        const __m256i order = _mm256_setr_epi8(0, 1, -1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 2, 3, -1, -1, 0, 1, -1, -1, 0,
                                               1, -1, -1, 2, 3, -1, -1, 2, 3, -1, -1);
        const __m256i words = _mm256_srlv_epi32(_mm256_shuffle_epi8(_mm256_set1_epi32(both_words), order),
                                                _mm256_setr_epi32(0, 6, 0, 6, 3, 9, 3, 9));
        scale[h] = scale_of(_mm256_and_si256(words, _mm256_set1_epi32(7)), 0.25f, 0.125f, d);
    }
}
/* The factor of all of a block. IQ1_M: in the upper four bits of four words, each of which also has the scales of two
 * parts. */
INLINE V block_scale(const uint8_t *p) {
    if (DTYPE != DT_IQ1_M) return half_v(word_at(p));
    return half_v(word_at(p + 48) >> 12 | (word_at(p + 50) >> 8 & 0xf0) | (word_at(p + 52) >> 4 & 0xf00) |
                  (word_at(p + 54) & 0xf000));
}
/* scale: of the eight parts; HALVES == 2: of the first halves of parts 0 to 3, then of their second halves; the same of
 * parts 4 to 7. */
INLINE void unpack(struct block *b, V *scale, const uint8_t *p, V d) {
    if (DTYPE == DT_IQ2_XXS) unpack_iq2_xxs(b, scale, p, d);
    if (DTYPE == DT_IQ2_XS) unpack_iq2_xs(b, scale, p, d);
    if (DTYPE == DT_IQ2_S) unpack_iq2_s(b, scale, p, d);
    if (DTYPE == DT_IQ3_XXS) unpack_iq3_xxs(b, scale, p, d);
    if (DTYPE == DT_IQ3_S) unpack_iq3_s(b, scale, p, d);
    if (DTYPE == DT_IQ1_S) unpack_iq1_s(b, scale, p, d);
    if (DTYPE == DT_IQ1_M) unpack_iq1_m(b, scale, p, d);
}

/* --- Weights: a part -------------------------------------------------------------------------- */

/* Entry of octet k of a block. */
INLINE uint64_t entry(const struct block *b, const uint8_t *p, int k) {
    const uint8_t *q = p + 2 + 2 * k;
    if (DTYPE == DT_IQ2_XXS) return blocks_iq2_xxs[p[2 + k / 4 * 8 + k % 4]];
    if (DTYPE == DT_IQ2_XS) return blocks_iq2_xs[b->number[k]];
    if (DTYPE == DT_IQ2_S) return blocks_iq2_s[b->number[k]];
    if (DTYPE == DT_IQ3_XXS) return blocks_iq3_xxs[q[0]] | (uint64_t)blocks_iq3_xxs[q[1]] << 32;
    if (DTYPE == DT_IQ3_S) return blocks_iq3_s[b->number[2 * k]] | (uint64_t)blocks_iq3_s[b->number[2 * k + 1]] << 32;
    return blocks_iq1[b->number[k]];
}
/* The columns' integers, of which the value is a multiple by the scale. */
INLINE __m256i part_bytes(const struct block *b, const uint8_t *p, const int i) {
    uint64_t e[4];
    int four;
    EACH (int k = 0; k < 4; k++) e[k] = entry(b, p, 4 * i + k);
    memcpy(&four, (SIGNS ? p + SIGNS : b->octet) + 4 * i, 4);
    const __m256i bytes = _mm256_setr_epi64x((long long)e[0], (long long)e[1], (long long)e[2], (long long)e[3]);
    const __m256i each = _mm256_shuffle_epi8(
        _mm256_set1_epi32(four), _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    if (IQ1) return _mm256_add_epi8(bytes, each);
    /* Any bit plus 127 is a negative byte, and 0 a positive one. */
    const __m256i bit = _mm256_and_si256(each, _mm256_set1_epi64x((long long)0x8040201008040201));
    return _mm256_sign_epi8(bytes, _mm256_add_epi8(bit, _mm256_set1_epi8(127)));
}
INLINE V twice(const float *four) { return _mm256_broadcast_ps((const __m128 *)(const void *)four); }
/* A part's scale times unit, for each lane of its sum. */
INLINE V lane_scale(const float *scale, const int i) {
    if (HALVES == 1) return _mm256_broadcast_ss(scale + i);
    const V s = vload(scale + i / 4 * 8);
    switch (i % 4) {
    case 0: return _mm256_permute_ps(s, 0x00);
    case 1: return _mm256_permute_ps(s, 0x55);
    case 2: return _mm256_permute_ps(s, 0xaa);
    default: return _mm256_permute_ps(s, 0xff);
    }
}

/* Unpacks all blocks of a turn before their products. Otherwise instructions that wait for numbers and scales fill the
 * schedulers. */
INLINE void turn_dot(V (*sum)[4], const uint8_t **row, const uint8_t **s, const struct group *x, int ld, int turn,
                     const int R, const int N) {
    struct block block[TURN * 2];
    float factor[TURN * 4][8 * HALVES] __attribute__((aligned(32))); /* scales times units */
    for (int g = 0; g < turn; g++)
        EACH (int r = 0; r < R; r++) {
            const uint8_t *p = row[r] + g * BYTES;
            V scale[HALVES];
            unpack(&block[g * R + r], scale, p, block_scale(p));
            EACH (int t = 0; t < N; t++)
                EACH (int h = 0; h < HALVES; h++) {
                    const float *unit = x[t * ld + g].unit + 4 * h;
                    vstore(factor[(g * R + r) * N + t] + 8 * h,
                           vmul(scale[h], HALVES == 1 ? vload(unit) : twice(unit)));
                }
        }
    for (int g = 0; g < turn; g++) {
        EACH (int r = 0; r < R; r++)
            EACH (int line = 0; line < (BYTES + 63) / 64; line++)
                _mm_prefetch((const char *)row[r] + AHEAD + 64 * line, _MM_HINT_T0);
        EACH (int i = 0; i < 8; i++) {
            __m256i once[2];
            if (R > 1)
                EACH (int k = 0; k < 2; k++) {
                    once[k] = load_32((const uint8_t *)x[g].x[i][k]);
                    __asm__("" : "+x"(once[k])); /* one load for both rows */
                }
            EACH (int r = 0; r < R; r++) {
                const __m256i bytes = part_bytes(&block[g * R + r], row[r], i);
                const __m256i w[2] = {_mm256_maddubs_epi16(_mm256_set1_epi16(1), bytes), _mm256_srai_epi16(bytes, 8)};
                EACH (int t = 0; t < N; t++) {
                    const __m256i dot = R > 1 ? add_products(_mm256_madd_epi16(w[0], once[0]), w[1], once[1])
                                              : dot_words(w, x[t * ld + g].x[i], 2);
                    sum[r][t] = vfma(_mm256_cvtepi32_ps(dot), lane_scale(factor[(g * R + r) * N + t], i), sum[r][t]);
                }
            }
        }
        EACH (int r = 0; r < R; r++) row[r] += BYTES;
    }
}

#ifndef __AVXVNNI__ /* once for both */
SMALL_CODES_FN(FORMAT_JOIN(small_codes_, FORMAT)) {
    enum { WHOLE = DTYPE == DT_IQ3_S ? 1 : DTYPE == DT_IQ3_XXS ? 4 : 8 }; /* makes odd integers of the scales */
    const V whole = vset1(WHOLE);
    struct block b;
    V scale[HALVES];
    unpack(&b, scale, p, whole);
    for (int i = 0; i < 8; i++) store_32(to->code + 32 * i, part_bytes(&b, p, i));
    const V a = scale[0], c = scale[HALVES - 1];
    const __m256i first = _mm256_cvtps_epi32(HALVES == 1 ? a : _mm256_permute2f128_ps(a, c, 0x20));
    const __m256i second = _mm256_cvtps_epi32(HALVES == 1 ? a : _mm256_permute2f128_ps(a, c, 0x31));
    store_32(to->each, _mm256_or_si256(first, _mm256_slli_epi32(second, 16)));
    vstore(to->scale, vmul(block_scale(p), vset1(1.0f / WHOLE)));
}
#endif

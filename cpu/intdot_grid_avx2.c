/* GGUF's IQ1, IQ2 and IQ3 blocks with AVX2: 256 columns in parts of 32, as 16-bit words like K blocks. A format's step first unpacks what a block has
 * outside its parts' bytes: numbers of grid entries, signs, scales. Then a part is four or eight loads from the grid, signs, and the products.
 *
 * Instructions per part: 4 numbers and 5 to join their entries (IQ3: 8 and 9), 6 for signs (IQ1: 3 for offsets), 3 to widen, 3 products, 3 or 4 to scale and
 * add: about 25. Unpacking a block takes 15 to 40.
 *
 * Blocks of several tokens are unpacked here too, for gemm_int16.c. */
#include <stdint.h>

#include "cpu/formats.h"
#include "cpu/int16_codes.h"
#include "cpu/intdot_words.h"
#include "engine/base/grid_blocks.h"

#define DTYPE  FORMAT_DTYPE(FORMAT)
#define FLOATS FORMAT_JOIN(avx2_, FORMAT)
#define EACH_ROW for
enum {
    GROUP = 256,
    TURN = 8,
    BYTES = FORMAT_BYTES(FORMAT),
    IQ1 = DTYPE == DT_IQ1_S || DTYPE == DT_IQ1_M,
    IQ3 = DTYPE == DT_IQ3_XXS || DTYPE == DT_IQ3_S,
    HALVES = DTYPE == DT_IQ2_XS || DTYPE == DT_IQ2_S || DTYPE == DT_IQ1_M ? 2 : 1, /* scales of a part */
    OCTETS = 32,                                                                   /* of eight columns */
};
struct group {
    int16_t x[8][2][16]; /* of 32 columns: even ones, odd ones */
    float unit[8];       /* of each part */
} __attribute__((aligned(64)));
#include "cpu/intdot_inner.h"

/* --- x --- */

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

/* --- Weights: a block --- */

struct block {
    uint16_t number[OCTETS * (IQ3 ? 2 : 1)]; /* of grid entries, where a block has them in pieces */
    uint8_t octet[OCTETS];                   /* signs of eight columns each; in IQ1 an offset */
    float scale[8 * HALVES];
} __attribute__((aligned(64)));
INLINE void store_32(void *p, __m256i v) { _mm256_store_si256((__m256i *)p, v); }
INLINE __m128i load_8(const uint8_t *p) { return _mm_loadl_epi64((const __m128i *)(const void *)p); }
INLINE uint32_t word_at(const uint8_t *p) {
    uint16_t w;
    memcpy(&w, p, 2);
    return w;
}
INLINE V half_v(uint32_t half) { return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128((int)half))); }

/* Seven signs in each byte; bit 7 becomes their parity. */
INLINE void signs_7(struct block *b, __m256i seven) {
    const __m256i four = _mm256_set1_epi8(15);
    const __m256i odd = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    const __m256i low = _mm256_shuffle_epi8(odd, _mm256_and_si256(seven, four));
    const __m256i high = _mm256_shuffle_epi8(odd, _mm256_and_si256(_mm256_srli_epi16(seven, 4), four));
    store_32(b->octet, _mm256_or_si256(seven, _mm256_xor_si256(low, high)));
}
/* Four times seven signs in each of eight words, below a scale. */
INLINE void signs_28(struct block *b, __m256i words) {
    __m256i seven = _mm256_and_si256(words, _mm256_set1_epi32(127));
    EACH (int k = 1; k < 4; k++) seven = _mm256_or_si256(seven, _mm256_and_si256(_mm256_slli_epi32(words, k), _mm256_set1_epi32(127 << 8 * k)));
    signs_7(b, seven);
}
INLINE void store_scale(float *to, __m256i steps, float step, float first, V d) {
    vstore(to, vmul(vfma(_mm256_cvtepi32_ps(steps), vset1(step), vset1(first)), d));
}
/* Two numbers of `bits` bits in each of eight words, for the first and the second half of a part. */
INLINE void scales_of_halves(struct block *b, __m256i words, const int bits, V d) {
    const __m256i mask = _mm256_set1_epi32((1 << bits) - 1);
    float *to[2] = {b->scale, b->scale + 8 * (HALVES - 1)};
    EACH (int h = 0; h < 2; h++) store_scale(to[h], _mm256_and_si256(_mm256_srli_epi32(words, bits * h), mask), 0.25f, 0.125f, d);
}
/* Sixteen numbers: low bytes at q, and bits 8 on from `high` times `factor` and shifted. */
INLINE void numbers_16(uint16_t *to, const uint8_t *q, __m256i high, const int mask) {
    store_32(to, _mm256_or_si256(_mm256_cvtepu8_epi16(load_16(q)), _mm256_and_si256(high, _mm256_set1_epi16((short)mask))));
}
/* Words whose low bytes are bytes from + k / each of p's eight, k < 16. */
INLINE __m256i spread(__m128i p, const int from, const int each) {
    const int a = from, b = from + 4 / each, c = from + 8 / each, d = from + 12 / each;
#define FOUR_WORDS(i) (char)(i), -1, (char)(i), -1, (char)(i), -1, (char)(i), -1
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(p), _mm256_setr_epi8(FOUR_WORDS(a), FOUR_WORDS(b), FOUR_WORDS(c), FOUR_WORDS(d)));
}
INLINE void offsets_iq1(struct block *b, __m256i negative) { /* -9 or -7, to eight times the value plus 8 */
    store_32(b->octet, _mm256_add_epi8(_mm256_and_si256(negative, _mm256_set1_epi8(-2)), _mm256_set1_epi8(-7)));
}

INLINE void unpack_iq2_xxs(struct block *b, const uint8_t *p, V d) {
    const __m256 even = _mm256_castsi256_ps(load_32(p + 2)), odd = _mm256_castsi256_ps(load_32(p + 34));
    const __m256i words = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(even, odd, 0xdd)), 0xd8);
    signs_28(b, words);
    store_scale(b->scale, _mm256_srli_epi32(words, 28), 0.25f, 0.125f, d);
}
INLINE void unpack_iq2_xs(struct block *b, const uint8_t *p, V d) {
    const __m256i a = _mm256_srli_epi16(load_32(p + 2), 9), c = _mm256_srli_epi16(load_32(p + 34), 9);
    signs_7(b, _mm256_permute4x64_epi64(_mm256_packus_epi16(a, c), 0xd8));
    scales_of_halves(b, _mm256_cvtepu8_epi32(load_8(p + 66)), 4, d);
}
INLINE void unpack_iq2_s(struct block *b, const uint8_t *p, V d) {
    const __m256i to_8 = _mm256_set1_epi64x(256 | 64LL << 16 | 16LL << 32 | 4LL << 48);
    const __m128i high = load_8(p + 66);
    EACH (int i = 0; i < 2; i++) numbers_16(b->number + 16 * i, p + 2 + 16 * i, _mm256_mullo_epi16(spread(high, 4 * i, 4), to_8), 0x300);
    store_32(b->octet, load_32(p + 34));
    scales_of_halves(b, _mm256_cvtepu8_epi32(load_8(p + 74)), 4, d);
}
INLINE void unpack_iq3_xxs(struct block *b, const uint8_t *p, V d) {
    const __m256i words = load_32(p + 66);
    signs_28(b, words);
    store_scale(b->scale, _mm256_srli_epi32(words, 28), 0.5f, 0.25f, d);
}
INLINE void unpack_iq3_s(struct block *b, const uint8_t *p, V d) {
    const __m256i to_8 = _mm256_broadcastsi128_si256(_mm_setr_epi16(256, 128, 64, 32, 16, 8, 4, 2));
    const __m128i high = load_8(p + 66);
    int four;
    memcpy(&four, p + 106, 4);
    const __m256i nibbles = _mm256_srlv_epi32(
        _mm256_cvtepu8_epi32(_mm_shuffle_epi8(_mm_cvtsi32_si128(four), _mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, -1, -1, -1, -1, -1, -1, -1, -1))),
        _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4));
    EACH (int i = 0; i < 4; i++) numbers_16(b->number + 16 * i, p + 2 + 16 * i, _mm256_mullo_epi16(spread(high, 2 * i, 8), to_8), 0x100);
    store_32(b->octet, load_32(p + 74));
    store_scale(b->scale, _mm256_and_si256(nibbles, _mm256_set1_epi32(15)), 2, 1, d);
}
INLINE void unpack_iq1_s(struct block *b, const uint8_t *p, V d) {
    const __m128i words = load_16(p + 34);
    const __m256i to_13 = _mm256_set1_epi64x(8192 | 1024LL << 16 | 128LL << 32 | 16LL << 48), wide = _mm256_cvtepu16_epi32(words);
#define FOUR_TIMES(i) (i), (i) + 1, (i), (i) + 1, (i), (i) + 1, (i), (i) + 1
    const __m256i order = _mm256_setr_epi8(FOUR_TIMES(0), FOUR_TIMES(2), FOUR_TIMES(4), FOUR_TIMES(6));
    EACH (int i = 0; i < 2; i++) {
        const __m256i four = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(i ? _mm_srli_si128(words, 8) : words), order);
        numbers_16(b->number + 16 * i, p + 2 + 16 * i, _mm256_srli_epi16(_mm256_mullo_epi16(four, to_13), 5), 0x700);
    }
    offsets_iq1(b, _mm256_srai_epi32(_mm256_slli_epi32(wide, 16), 31));
    store_scale(b->scale, _mm256_and_si256(_mm256_srli_epi32(wide, 12), _mm256_set1_epi32(7)), 0.25f, 0.125f, d);
}
INLINE void unpack_iq1_m(struct block *b, const uint8_t *p, V d) {
    const __m256i wide = _mm256_cvtepu8_epi16(load_16(p + 32));
    const __m256i nibbles = _mm256_and_si256(_mm256_or_si256(wide, _mm256_slli_epi16(wide, 4)), _mm256_set1_epi8(15));
    const __m128i both[2] = {_mm256_castsi256_si128(nibbles), _mm256_extracti128_si256(nibbles, 1)};
    EACH (int i = 0; i < 2; i++) numbers_16(b->number + 16 * i, p + 16 * i, _mm256_slli_epi16(_mm256_cvtepu8_epi16(both[i]), 8), 0x700);
    const __m256i eight = _mm256_set1_epi8(8);
    offsets_iq1(b, _mm256_cmpeq_epi8(_mm256_and_si256(nibbles, eight), eight));
    const __m128i words = _mm_shuffle_epi8(load_8(p + 48), _mm_setr_epi8(0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7));
    scales_of_halves(b, _mm256_srlv_epi32(_mm256_cvtepu16_epi32(words), _mm256_setr_epi32(0, 6, 0, 6, 0, 6, 0, 6)), 3, d);
}
/* The factor of all of a block. IQ1_M: in the upper four bits of four words, each of which also has the scales of two parts. */
INLINE V block_scale(const uint8_t *p) {
    if (DTYPE != DT_IQ1_M) return half_v(word_at(p));
    return half_v(word_at(p + 48) >> 12 | (word_at(p + 50) >> 8 & 0xf0) | (word_at(p + 52) >> 4 & 0xf00) | (word_at(p + 54) & 0xf000));
}
INLINE void unpack(struct block *b, const uint8_t *p, V d) {
    if (DTYPE == DT_IQ2_XXS) unpack_iq2_xxs(b, p, d);
    if (DTYPE == DT_IQ2_XS) unpack_iq2_xs(b, p, d);
    if (DTYPE == DT_IQ2_S) unpack_iq2_s(b, p, d);
    if (DTYPE == DT_IQ3_XXS) unpack_iq3_xxs(b, p, d);
    if (DTYPE == DT_IQ3_S) unpack_iq3_s(b, p, d);
    if (DTYPE == DT_IQ1_S) unpack_iq1_s(b, p, d);
    if (DTYPE == DT_IQ1_M) unpack_iq1_m(b, p, d);
}

/* --- Weights: a part --- */

/* Entry of octet k of a block. */
INLINE uint64_t entry(const struct block *b, const uint8_t *p, int k) {
    const uint8_t *q = p + 2 + 2 * k;
    if (DTYPE == DT_IQ2_XXS) return blocks_iq2_xxs[p[2 + k / 4 * 8 + k % 4]];
    if (DTYPE == DT_IQ2_XS) return blocks_iq2_xs[word_at(q) & 511];
    if (DTYPE == DT_IQ2_S) return blocks_iq2_s[b->number[k]];
    if (DTYPE == DT_IQ3_XXS) return blocks_iq3_xxs[q[0]] | (uint64_t)blocks_iq3_xxs[q[1]] << 32;
    if (DTYPE == DT_IQ3_S) return blocks_iq3_s[b->number[2 * k]] | (uint64_t)blocks_iq3_s[b->number[2 * k + 1]] << 32;
    return blocks_iq1[b->number[k]];
}
/* The columns' integers, of which the value is a multiple by the scale. */
INLINE __m256i part_bytes(const struct block *b, const uint8_t *p, int i) {
    uint64_t e[4];
    int four;
    EACH (int k = 0; k < 4; k++) e[k] = entry(b, p, 4 * i + k);
    memcpy(&four, b->octet + 4 * i, 4);
    const __m256i bytes = _mm256_setr_epi64x((long long)e[0], (long long)e[1], (long long)e[2], (long long)e[3]);
    const __m256i each = _mm256_shuffle_epi8(_mm256_set1_epi32(four), _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    if (IQ1) return _mm256_add_epi8(bytes, each);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i negative = _mm256_cmpeq_epi8(_mm256_and_si256(each, bit), bit);
    return _mm256_sub_epi8(_mm256_xor_si256(bytes, negative), negative);
}
/* A part's scale times unit, for each lane of its sum. */
INLINE V lane_scale(const float (*scale)[8], int i) {
    if (HALVES == 1) return _mm256_broadcast_ss(&scale[0][i]);
    return _mm256_setr_m128(_mm_broadcast_ss(&scale[0][i]), _mm_broadcast_ss(&scale[HALVES - 1][i]));
}

INLINE void group_dot(V *sum, const uint8_t *p, const uint8_t *s, const struct group *x, int ld, const int n, const int N) {
    struct block b;
    float scale[4][HALVES][8] __attribute__((aligned(32)));
    unpack(&b, p, block_scale(p));
    EACH (int t = 0; t < N; t++)
        EACH (int h = 0; h < HALVES; h++) vstore(scale[t][h], vmul(vload(b.scale + 8 * h), vload(x[t * ld].unit)));
    for (int i = 0; i < 8; i++) {
        const __m256i bytes = part_bytes(&b, p, i);
        const __m256i w[2] = {_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), _mm256_srai_epi16(bytes, 8)};
        EACH (int t = 0; t < N; t++) sum[t] = vfma(_mm256_cvtepi32_ps(dot_words(w, x[t * ld].x[i], 2)), lane_scale((const float(*)[8])scale[t], i), sum[t]);
    }
}

#ifndef __AVXVNNI__ /* once for both */
INT16_CODES_FN(FORMAT_JOIN(int16_codes_, FORMAT)) {
    enum { WHOLE = DTYPE == DT_IQ3_S ? 1 : DTYPE == DT_IQ3_XXS ? 4 : 8 }; /* makes odd integers of the scales */
    const V whole = vset1(WHOLE);
    struct block b;
    unpack(&b, p, whole);
    for (int i = 0; i < 8; i++) store_32(to->code + 32 * i, part_bytes(&b, p, i));
    const __m256i first = _mm256_cvtps_epi32(vload(b.scale)), second = _mm256_cvtps_epi32(vload(b.scale + 8 * (HALVES - 1)));
    store_32(to->scale, _mm256_permutevar8x32_epi32(_mm256_or_si256(first, _mm256_slli_epi32(second, 16)), _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7)));
    to->d = _mm256_cvtss_f32(vmul(block_scale(p), vset1(1.0f / WHOLE)));
}
#endif

/* Blocks of 128 columns in one bit each, or of 64 in two, low bits first, after one scale: Q1_0 and Q2_0. A vector has
 * 32 codes as 16-bit words: even columns, odd ones. Codes are one more than their values, -1 and 1 or -1 to 2, and the
 * sum of x is subtracted in integers. x has one unit for a block, which is one exact sum.
 *
 * Instructions per block of 18 bytes: 24 or 18 to unpack, 16 or 8 for products (AVX-VNNI half), 6 more. */
#include <stdint.h>

#include "cpu/formats.h"
#include "cpu/intdot_words.h"

#define DTYPE  FORMAT_DTYPE(FORMAT)
#define FLOATS FORMAT_JOIN(avx2_, FORMAT)
#define EACH_ROW for
enum {
    GROUP = FORMAT_BLOCK(FORMAT),
    TURN = 2048 / GROUP,
    BYTES = FORMAT_BYTES(FORMAT),
    VECTORS = GROUP / 32,
};
struct group {
    int16_t x[VECTORS][2][16]; /* of 32 columns: even ones, odd ones */
    int32_t start[8];          /* minus the sum of x over the columns of each lane */
    float unit[8];
} __attribute__((aligned(64)));
#include "cpu/intdot_inner.h"

INLINE void group_make(struct group *g, const float *x, int n) {
    const __m256i minus[2] = {_mm256_set1_epi16(-1), _mm256_set1_epi16(-1)};
    __m256i sum = _mm256_setzero_si256();
    float f[8];
    vstore(g->unit, units_8(most_all(x, GROUP), f));
    for (int v = 0; v < VECTORS; v++) {
        V even[2], odd[2];
        EACH (int i = 0; i < 2; i++) split_16(x + 32 * v + 16 * i, vset1(f[0]), &even[i], &odd[i]);
        words_16(g->x[v][0], even[0], even[1]);
        words_16(g->x[v][1], odd[0], odd[1]);
        sum = _mm256_add_epi32(sum, dot_words(minus, g->x[v], 2));
    }
    _mm256_store_si256((__m256i *)(void *)g->start, sum);
}

/* Columns from 32 * v on: even ones, odd ones. */
INLINE void load_words(__m256i w[2], const uint8_t *q, const int v) {
    if (DTYPE == DT_Q2_0) { /* a byte a lane: four columns */
        const __m256i four = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(q + 8 * v))),
                      mask = _mm256_set1_epi32(0x00030003);
        w[0] = _mm256_and_si256(_mm256_or_si256(four, _mm256_slli_epi32(four, 12)), mask);
        w[1] = _mm256_and_si256(_mm256_or_si256(_mm256_srli_epi32(four, 2), _mm256_slli_epi32(four, 10)), mask);
        return;
    }
    int bits;
    memcpy(&bits, q + 4 * v, 4);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i order = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i is_set =
        _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), order), bit), bit);
    w[0] = _mm256_and_si256(is_set, _mm256_set1_epi16(2));
    w[1] = _mm256_and_si256(_mm256_srli_epi16(is_set, 8), _mm256_set1_epi16(2));
}

INLINE void group_dot(V *sum, const uint8_t *p, const uint8_t *s, const struct group *x, int ld, const int n,
                      const int N) {
    uint16_t d;
    __m256i dot[4][2];
    memcpy(&d, p, 2);
    const V scale = _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(d)));
    EACH (int v = 0; v < VECTORS; v++) {
        __m256i w[2];
        load_words(w, p + 2, v);
        EACH (int t = 0; t < N; t++) {
            const struct group *g = x + t * ld;
            EACH (int k = 0; k < 2; k++) {
                const __m256i from = v ? dot[t][k] : k ? _mm256_setzero_si256() : load_32((const uint8_t *)g->start);
                dot[t][k] = add_products(from, w[k], load_32((const uint8_t *)g->x[v][k]));
                /* now: gcc 12 adds in an order of its own, and keeps products in memory until then */
                if (N > 1) __asm__("" : "+x"(dot[t][k]));
            }
            if (v == VECTORS - 1)
                sum[t] = vfma(_mm256_cvtepi32_ps(_mm256_add_epi32(dot[t][0], dot[t][1])), vmul(scale, vload(g->unit)),
                              sum[t]);
        }
    }
}

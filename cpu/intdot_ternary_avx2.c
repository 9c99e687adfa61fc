/* TQ1_0 and TQ2_0 with AVX2: 256 columns with one scale, so a block is one exact sum, for which x has one unit. Codes
 * are one more than their values, and the sum of x is subtracted in integers.
 *
 * TQ1_0: x and digits are 16-bit words: even columns, odd ones. TQ2_0: codes remain bytes, and x is two planes of
 * bytes, q = 256 * high + low, whose products vpmaddubsw adds in 16 bits for all of a block; codes at bits 2 and 3 stay
 * there, four times as large.
 *
 * Instructions per block of 54 or 66 bytes: 42 or 10 to unpack, 32 or 28 for products (AVX-VNNI: half of it or 16), 7
 * or 14 more. */
#include <stdint.h>

#include "cpu/formats.h"
#include "cpu/intdot_words.h"

#define DTYPE  FORMAT_DTYPE(FORMAT)
#define FLOATS FORMAT_JOIN(avx2_, FORMAT)
#define EACH_ROW for
#define TURNS
enum {
    GROUP = 256,
    TURN = 8,
    BYTES = FORMAT_BYTES(FORMAT),
    TQ1 = DTYPE == DT_TQ1_0,
};
struct group {
    union {
        int16_t word[8][2][16]; /* TQ1_0, of 32 columns: even ones, odd ones */
        int8_t plane[8][2][32]; /* TQ2_0: high bytes, low bytes */
    };
    int32_t start[8]; /* minus the sum of x over the columns of each lane; TQ2_0: four times that */
    float unit[8];    /* TQ2_0: a quarter of it */
} __attribute__((aligned(64)));
#include "cpu/intdot_inner.h"

INLINE __m256i load_a(const void *p) { return _mm256_load_si256((const __m256i *)p); }
INLINE void group_make(struct group *g, const float *x, int n) {
    const __m256i minus[2] = {_mm256_set1_epi16(-1), _mm256_set1_epi16(-1)};
    const __m256i half = _mm256_set1_epi16(128), low = _mm256_set1_epi16(255);
    __m256i sum = _mm256_setzero_si256();
    float f[8];
    const V unit = units_8(most_all(x, GROUP), f);
    for (int v = 0; v < 8; v++) {
        V even[2], odd[2];
        EACH (int i = 0; i < 2; i++) split_16(x + 32 * v + 16 * i, vset1(f[0]), &even[i], &odd[i]);
        words_16(g->word[v][0], even[0], even[1]);
        words_16(g->word[v][1], odd[0], odd[1]);
        sum = _mm256_add_epi32(sum, dot_words(minus, g->word[v], 2));
        if (TQ1) continue;
        const __m256i e = load_a(g->word[v][0]), o = load_a(g->word[v][1]);
        const __m256i high = _mm256_or_si256(_mm256_srli_epi16(_mm256_add_epi16(e, half), 8),
                                             _mm256_andnot_si256(low, _mm256_add_epi16(o, half)));
        _mm256_store_si256((__m256i *)(void *)g->plane[v][0], high);
        _mm256_store_si256((__m256i *)(void *)g->plane[v][1],
                           _mm256_or_si256(_mm256_and_si256(e, low), _mm256_slli_epi16(o, 8)));
    }
    _mm256_store_si256((__m256i *)(void *)g->start, TQ1 ? sum : _mm256_slli_epi32(sum, 2));
    vstore(g->unit, TQ1 ? unit : vmul(unit, vset1(0.25f)));
}

/* TQ1_0's digits of base 3 (intdot_k_avx512vnni.c): columns 32 * v to 32 * v + 31 are digits of 32 bytes, of twice 16,
 * or of 16 and of four times four. The upper byte of a word becomes a code times a power of 3, and that times 3 has the
 * digit above 16 bits. odd: these words of odd bytes, which are tripled from one v to the next up to 4: two additions,
 * while products already limit the loop. */
INLINE void load_digits(__m256i w[2], __m256i *odd, const uint8_t *p, const int v) {
    static const int16_t power[7][2] = {{1, 1}, {3, 3}, {9, 9}, {27, 27}, {81, 81}, {1, 3}, {9, 27}};
    const __m256i few = _mm256_setr_epi16(81, 81, 81, 81, 81, 81, 81, 81, 1, 1, 3, 3, 9, 9, 27, 27),
                  three = _mm256_set1_epi16(3);
    const __m256i by = v == 7 ? few : _mm256_set_m128i(_mm_set1_epi16(power[v][1]), _mm_set1_epi16(power[v][0]));
    int last;
    memcpy(&last, p + 48, 4);
    const __m256i codes = v < 5   ? load_32(p)
                          : v < 7 ? _mm256_broadcastsi128_si256(load_16(p + 32))
                                  : _mm256_set_m128i(_mm_set1_epi32(last), load_16(p + 32));
    const __m256i even = v ? _mm256_mullo_epi16(codes, _mm256_slli_epi16(by, 8)) : _mm256_slli_epi16(codes, 8);
    if (v && v < 5) *odd = _mm256_add_epi16(*odd, _mm256_add_epi16(*odd, *odd));
    else {
        *odd = _mm256_and_si256(codes, _mm256_set1_epi16((short)0xff00));
        if (v) *odd = _mm256_mullo_epi16(*odd, by);
    }
    w[0] = _mm256_mulhi_epu16(even, three);
    w[1] = _mm256_mulhi_epu16(*odd, three);
}
/* Computes a sum now: gcc 12 adds the products of a block in an order of its own, and keeps them in memory until
 * then. */
INLINE __m256i now(__m256i sum) {
    __asm__("" : "+x"(sum));
    return sum;
}
INLINE V block_scale(const uint8_t *p) {
    uint16_t d;
    memcpy(&d, p + BYTES - 2, 2);
    return _mm256_cvtph_ps(_mm_set1_epi16((short)d));
}
/* dot: start, plus the products with all codes. */
INLINE void digits_dot(__m256i dot[2][4], const uint8_t *const *p, const struct group *x, int ld, const int R,
                       const int N) {
    __m256i second[2][4], odd[2]; /* second: the sum of every other 32 columns */
    EACH (int v = 0; v < 8; v++)
        EACH (int r = 0; r < R; r++) {
            __m256i w[2];
            load_digits(w, &odd[r], p[r], v);
            EACH (int t = 0; t < N; t++) {
                const struct group *g = x + t * ld;
                __m256i from;
                if (v == 0) from = load_a(g->start);
                else if (v == 1) from = _mm256_setzero_si256();
                else from = v % 2 ? second[r][t] : dot[r][t];
                const __m256i to = now(
                    add_products(now(add_products(from, w[0], load_a(g->word[v][0]))), w[1], load_a(g->word[v][1])));
                if (v % 2) second[r][t] = to;
                else dot[r][t] = to;
                if (v == 7) dot[r][t] = _mm256_add_epi32(dot[r][t], second[r][t]);
            }
        }
}
#ifdef __AVXVNNI__
/* Sums of four products each. */
#define SUMS(sum, codes, x) _mm256_dpbusd_avx_epi32(sum, codes, x)
#else
/* Sums of two products each, of which a block has eight, at most 2 * 3 * 128 or four times that: together 24,576. */
#define SUMS(sum, codes, x) _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x))
#endif
INLINE void codes_dot(__m256i dot[2][4], const uint8_t *const *p, const struct group *x, int ld, const int R,
                      const int N) {
    const __m256i mask[2] = {_mm256_set1_epi8(3), _mm256_set1_epi8(12)};
    __m256i sum[2][4][2][2]; /* by row, token, whether codes are four times as large, plane */
    EACH (int v = 0; v < 8; v++) {
        __m256i plane[4][2];
        if (R > 1)
            EACH (int t = 0; t < N; t++)
                EACH (int h = 0; h < 2; h++) {
                    plane[t][h] = load_a(x[t * ld].plane[v][h]);
                    __asm__("" : "+x"(plane[t][h])); /* one load for both rows */
                }
        EACH (int r = 0; r < R; r++) {
            const __m256i four = load_32(p[r] + v / 4 * 32);
            const __m256i codes = _mm256_and_si256(v % 4 < 2 ? four : _mm256_srli_epi16(four, 4), mask[v % 2]);
            EACH (int t = 0; t < N; t++)
                EACH (int h = 0; h < 2; h++) {
                    const __m256i from = v < 2 ? _mm256_setzero_si256() : sum[r][t][v % 2][h];
                    sum[r][t][v % 2][h] = now(SUMS(from, codes, R > 1 ? plane[t][h] : load_a(x[t * ld].plane[v][h])));
                }
        }
    }
    EACH (int r = 0; r < R; r++)
        EACH (int t = 0; t < N; t++) {
            const __m256i start = load_a(x[t * ld].start);
            __m256i all[2];
#ifdef __AVXVNNI__
            EACH (int h = 0; h < 2; h++)
                all[h] = _mm256_add_epi32(_mm256_slli_epi32(sum[r][t][0][h], 2), sum[r][t][1][h]);
            dot[r][t] = _mm256_add_epi32(_mm256_add_epi32(_mm256_slli_epi32(all[0], 8), all[1]), start);
#else
            EACH (int h = 0; h < 2; h++)
                all[h] = _mm256_madd_epi16(_mm256_add_epi16(_mm256_slli_epi16(sum[r][t][0][h], 2), sum[r][t][1][h]),
                                           _mm256_set1_epi16(h ? 1 : 256));
            dot[r][t] = _mm256_add_epi32(_mm256_add_epi32(all[0], all[1]), start);
#endif
        }
}
INLINE void turn_dot(V (*sum)[4], const uint8_t **row, const uint8_t **s, const struct group *x, int ld, int turn,
                     const int R, const int N) {
    for (int k = 0; k < turn; k++, x++) {
        __m256i dot[2][4];
        EACH (int r = 0; r < R; r++)
            EACH (int line = 0; line < (BYTES + 63) / 64; line++)
                _mm_prefetch((const char *)row[r] + AHEAD + 64 * line, _MM_HINT_T0);
        if (TQ1) digits_dot(dot, row, x, ld, R, N);
        else codes_dot(dot, row, x, ld, R, N);
        EACH (int r = 0; r < R; r++) {
            const V scale = block_scale(row[r]);
            EACH (int t = 0; t < N; t++)
                sum[r][t] = vfma(_mm256_cvtepi32_ps(dot[r][t]), vmul(scale, vload(x[t * ld].unit)), sum[r][t]);
            row[r] += BYTES;
        }
    }
}

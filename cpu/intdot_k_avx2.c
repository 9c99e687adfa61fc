/* K blocks: 256 columns in parts of 32 (Q4_K, Q5_K) or 16 (Q2_K, Q3_K, Q6_K), each with its own scale. A vector of 32
 * codes is one part, or two, as 16-bit words: even columns, odd ones. Parts of 32 are converted and scaled one by one,
 * of 16 eight as one vector.
 *
 * Instructions per block of 144, 176 or 210 bytes (Q4_K to Q6_K): 24, 51 or 56 to unpack codes, 24 products, 26 or 24
 * to scale and add, 24 or 9 for scales and minima: 98, 125 and 113. */
#include <stdint.h>

#include "cpu/formats.h"
#include "cpu/intdot_words.h"

#define DTYPE  FORMAT_DTYPE(FORMAT)
#define FLOATS FORMAT_JOIN(avx2_, FORMAT)
#define EACH_ROW for
enum {
    GROUP = 256,
    TURN = 8,
    BYTES = FORMAT_BYTES(FORMAT),
    Q2 = DTYPE == DT_Q2_K,
    Q3 = DTYPE == DT_Q3_K,
    Q6 = DTYPE == DT_Q6_K,
    NARROW = Q2 || Q3 || Q6,
    HALVES = NARROW ? 2 : 1, /* of eight parts each */
    BIAS = Q6   ? 32
           : Q3 ? 4
                : -1, /* subtracted from codes; -1: none, x is summed for a minimum */
};
struct group {
    int16_t x[8][2][16]; /* of 32 columns: even ones, odd ones */
    /* of each part: in order, or if NARROW in the order of halves_4; Q4_K's adapted to its codes */
    float unit[HALVES][8];
    union {
        float sum[HALVES][8];     /* of x, per part */
        int32_t start[HALVES][8]; /* -BIAS * sum, in units */
    };
} __attribute__((aligned(64)));
#include "cpu/intdot_inner.h"

/* --- x ---------------------------------------------------------------------------------------- */

INLINE void group_make(struct group *g, const float *x, int n) {
    const __m256i bias[2] = {_mm256_set1_epi16(-BIAS), _mm256_set1_epi16(-BIAS)};
    float f[HALVES][8];
    V unit[HALVES];
    __m256i most[8 * HALVES], sum[8];
    for (int i = 0; i < 8 * HALVES; i++)
        most[i] = NARROW ? most_2(x + 16 * i) : join(most_2(x + 32 * i), most_2(x + 32 * i + 16), true);
    EACH (int h = 0; h < HALVES; h++) {
        const __m256i parts = vectors_8(most + 8 * h, true, !NARROW);
        unit[h] = units_8(parts, f[h]);
    }
    for (int v = 0; v < 8; v++) {
        const float *part = NARROW ? &f[v / 4][lane_of(v % 4 * 2, false)] : &f[0][v];
        V even[2], odd[2];
        split_16(x + 32 * v, vset1(part[0]), &even[0], &odd[0]);
        /* the second 16 columns in the order of lane_of */
        split_16(x + 32 * v + 16, vset1(part[NARROW ? 4 : 0]), &even[1], &odd[1]);
        words_16(g->x[v][0], even[0], even[1]);
        words_16(g->x[v][1], odd[0], odd[1]);
        sum[v] = dot_words(bias, g->x[v], 2);
    }
    EACH (int h = 0; h < HALVES; h++) {
        const __m256i all = NARROW ? halves_4(sum + 4 * h, false) : vectors_8(sum, false, true);
        if (BIAS > 0) _mm256_store_si256((__m256i *)(void *)g->start[h], all);
        else vstore(g->sum[h], vmul(_mm256_cvtepi32_ps(all), unit[h]));
    }
    if (DTYPE == DT_Q4_K) /* codes of odd parts are 16 times as large */
        unit[0] = vmul(unit[0], _mm256_setr_ps(1, 0.0625f, 1, 0.0625f, 1, 0.0625f, 1, 0.0625f));
    EACH (int h = 0; h < HALVES; h++) vstore(g->unit[h], unit[h]);
}

/* --- Weights ---------------------------------------------------------------------------------- */

/* Columns from 32 * v on: even ones, odd ones. */
INLINE void load_words(__m256i w[2], const uint8_t *p, const int v) {
    const __m256i low_byte = _mm256_set1_epi16(255);
    __m256i codes;
    if (DTYPE == DT_Q4_K) {
        const __m256i q = load_32(p + 16 + v / 2 * 32), mask = _mm256_set1_epi16(v % 2 ? 0xf0 : 0x0f);
        w[0] = _mm256_and_si256(q, mask);
        w[1] = _mm256_and_si256(_mm256_srli_epi16(q, 8), mask);
        return;
    }
    if (Q2 || Q3) {
        codes = moved(load_32(p + (Q2 ? 16 : Q3 ? 32 : 0) + v / 4 * 32), -2 * (v % 4), 3);
        if (Q3) codes = _mm256_or_si256(codes, moved(load_32(p), 2 - v, 4));
    } else if (Q6) {
        const int i = v % 4;
        codes = _mm256_or_si256(moved(load_32(p + v / 4 * 64 + i % 2 * 32), i < 2 ? 0 : -4, 0x0f),
                                moved(load_32(p + 128 + v / 4 * 32), 4 - 2 * i, 0x30));
    } else
        codes = _mm256_or_si256(moved(load_32(p + 48 + v / 2 * 32), v % 2 ? -4 : 0, 0x0f),
                                moved(load_32(p + 16), 4 - v, 0x10));
    w[0] = _mm256_and_si256(codes, low_byte);
    w[1] = _mm256_srli_epi16(codes, 8);
}

/* Eight bytes times the fp16 at p, in the order of halves_4. */
INLINE V scaled(__m128i bytes, const uint8_t *p) {
    uint16_t d;
    memcpy(&d, p, 2);
    return vmul(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(d))));
}
/* Each part's scale; off: the factor of its sum of x that is subtracted, a minimum. */
INLINE void load_scales(V scale[HALVES], V off[HALVES], const uint8_t *p) {
    if (NARROW) {
        const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15),
                      four = _mm_set1_epi8(15);
        __m128i s = _mm_setzero_si128(), m = s;
        if (Q2) {
            const __m128i both = load_16(p);
            s = _mm_and_si128(both, four), m = _mm_and_si128(_mm_srli_epi16(both, 4), four);
        } else if (Q3) s = scales_q3_k(p);
        else if (Q6) s = load_16(p + 192);
        s = _mm_shuffle_epi8(s, order), m = _mm_shuffle_epi8(m, order);
        const uint8_t *d = p + (Q2 ? 80 : Q3 ? 108 : 208);
        EACH (int h = 0; h < HALVES; h++) {
            scale[h] = scaled(h ? _mm_srli_si128(s, 8) : s, d);
            if (Q2) off[h] = scaled(h ? _mm_srli_si128(m, 8) : m, d + 2);
        }
        return;
    }
    /* Two fp16; eight scales and eight minima of six bits (formats_inner.h). */
    const __m128i all = load_16(p);
    const __m128i four = _mm_shuffle_epi8(all, _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
    const __m128i two = _mm_shuffle_epi8(all, _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11));
    const __m128i low = _mm_and_si128(_mm_blend_epi32(four, _mm_srli_epi16(four, 4), 8),
                                      _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    const __m128i six = _mm_or_si128(low, _mm_and_si128(_mm_srli_epi16(two, 2), _mm_set1_epi8(0x30)));
    const __m128 d = _mm_cvtph_ps(all);
    scale[0] = vmul(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(six)), _mm256_broadcastss_ps(d));
    off[0] = vmul(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(six, 8))),
                  _mm256_broadcastss_ps(_mm_movehdup_ps(d)));
}

INLINE void group_dot(V *sum, const uint8_t *p, const uint8_t *s, const struct group *x, int ld, const int n,
                      const int N) {
    V scale[HALVES], off[HALVES], odd[4];
    __m256i dot[4][2];
    float unit[4][8] __attribute__((aligned(32)));
    load_scales(scale, off, p);
    EACH (int t = 0; t < N && !NARROW; t++) vstore(unit[t], vmul(scale[0], vload(x[t * ld].unit[0])));
    EACH (int v = 0; v < 8; v++) {
        __m256i w[2];
        load_words(w, p, v);
        EACH (int t = 0; t < N; t++) {
            const struct group *g = x + t * ld;
            const __m256i part = dot_words(w, g->x[v], 2);
            if (NARROW) {
                const int to = v % 4 / 2;
                dot[t][to] = v % 2 ? pairs(dot[t][to], part, false) : part;
                if (v % 4 < 3) continue;
                __m256i whole = fours(dot[t][0], dot[t][1], false);
                if (BIAS > 0)
                    whole = _mm256_add_epi32(whole, _mm256_load_si256((const __m256i *)(const void *)g->start[v / 4]));
                else sum[t] = _mm256_fnmadd_ps(off[v / 4], vload(g->sum[v / 4]), sum[t]);
                sum[t] = vfma(_mm256_cvtepi32_ps(whole), vmul(scale[v / 4], vload(g->unit[v / 4])), sum[t]);
            } else {
                const V f = _mm256_cvtepi32_ps(part), by = _mm256_broadcast_ss(&unit[t][v]);
                if (v % 2 == 0) sum[t] = vfma(f, by, sum[t]);
                else odd[t] = v > 1 ? vfma(f, by, odd[t]) : vmul(f, by);
            }
        }
    }
    EACH (int t = 0; t < N && !NARROW; t++)
        sum[t] = vadd(sum[t], _mm256_fnmadd_ps(off[0], vload(x[t * ld].sum[0]), odd[t]));
}

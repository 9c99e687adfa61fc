/* Blocks of 32 columns in 16 bytes, two of them per vector with half of its lanes each: a byte's low nibble is one
 * column, its high nibble another of the same block. The sums of eight blocks then become one lane each. Q4_0, Q4_1,
 * Q5_0, Q5_1, IQ4_NL, MXFP4, E2M1, I4, IQ4_XS.
 *
 * Instructions per 256 columns, 128 to 144 bytes: 4 or 8 to collect the codes, 24 to convert them to 16-bit words, or
 * 36 with a table, 28 for products, 9 for eight lanes, 4 to 13 for the scales, 4 to add: 78 to 98. Fifth bits, 160 to
 * 192 bytes: 44 more; minima: 5.
 *
 * Decoded values may be negative, but the words have a zero upper half. So BIAS is added to them, and BIAS * x is
 * subtracted in integers, lane by lane. */
#include <stdint.h>

#include "cpu/intdot_block32.h"
#include "cpu/intdot_words.h"

#define FLOATS FORMAT_JOIN(avx2_, FORMAT)
#define EACH_ROW for
enum {
    GROUP = 256,
    TURN = 8,
    BYTES = GROUP / FORMAT_BLOCK(FORMAT) * FORMAT_BYTES(FORMAT),
};
struct group {
    /* of two blocks: factors of the low nibbles of even bytes, of odd bytes, of the high nibbles of even and of odd
     * bytes */
    int16_t x[4][4][16];
    union {               /* per block, in the order of halves_4 */
        int32_t start[8]; /* -BIAS * x */
        float sum[8];     /* HAS_MIN: x */
    };
    float unit[8];
} __attribute__((aligned(64)));
#include "cpu/intdot_inner.h"

/* --- x ---------------------------------------------------------------------------------------- */

/* The words of two blocks, scaled by f and g. */
INLINE void two_blocks(int16_t to[4][16], const float *x, V f, V g) {
    V a[4], b[4];
    split_64(x, f, g, a, b);
    if (!NEIGHBOURS) {
        EACH (int i = 0; i < 4; i++) words_16(to[i], a[i], b[i]);
        return;
    }
    neighbours(to, a, b);
}
INLINE void group_make(struct group *g, const float *x, int n) {
    const __m256i factor = _mm256_set1_epi16(HAS_MIN ? 1 : BIAS), factors[4] = {factor, factor, factor, factor};
    float f[8], all[GROUP];
    __m256i most[8], sum[4];
    if (n < GROUP) {
        memset(all, 0, sizeof all);
        x = memcpy(all, x, (size_t)n * sizeof *x);
    }
    for (int b = 0; b < 8; b++) most[b] = join(most_2(x + 32 * b), most_2(x + 32 * b + 16), true);
    const V unit = units_8(vectors_8(most, true, false), f);
    vstore(g->unit, FP4 ? vmul(unit, vset1(0.5f)) : unit); /* FP4 values are stored doubled */
    for (int k = 0; k < 4; k++) {
        two_blocks(g->x[k], x + 64 * k, vset1(f[lane_of(2 * k, false)]), vset1(f[lane_of(2 * k + 1, false)]));
        sum[k] = dot_words(factors, g->x[k], 4);
    }
    if (HAS_MIN) vstore(g->sum, vmul(_mm256_cvtepi32_ps(halves_4(sum, false)), unit));
    else
        _mm256_store_si256((__m256i *)(void *)g->start, _mm256_sub_epi32(_mm256_setzero_si256(), halves_4(sum, false)));
}

/* --- Weights ---------------------------------------------------------------------------------- */

enum { SIZE = FORMAT_BLOCK(FORMAT) == 32 ? FORMAT_BYTES(FORMAT) : 16, AT = DTYPE == DT_IQ4_XS ? 8 : SIZE - 16 };

/* Blocks 2 * k and 2 * k + 1 as words, in the order of struct group. */
INLINE void load_words(__m256i w[4], const uint8_t *p, const int k) {
    const __m256i four = _mm256_set1_epi8(15), low_byte = _mm256_set1_epi16(255);
    const uint8_t *at = p + AT + 2 * SIZE * k;
    const __m256i codes = SIZE == 16 ? load_32(at) : _mm256_set_m128i(load_16(at + SIZE), load_16(at));
    if (!FP4 && !IQ4 && !FIVE) {
        const __m256i last = _mm256_set1_epi16(15);
        w[0] = _mm256_and_si256(codes, last);
        w[1] = _mm256_and_si256(_mm256_srli_epi16(codes, 8), last);
        w[2] = _mm256_and_si256(_mm256_srli_epi16(codes, 4), last);
        w[3] = _mm256_srli_epi16(codes, 12);
        return;
    }
    __m256i low = _mm256_and_si256(codes, four), high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), four);
    if (FIVE) {
        low = _mm256_or_si256(low, fifth_bits(at - 4, at + SIZE - 4, 0));
        high = _mm256_or_si256(high, fifth_bits(at - 4, at + SIZE - 4, 16));
    } else {
        const __m128i values = load_16((const uint8_t *)(FP4 ? mat_mxfp4 : mat_iq4));
        const __m256i table = _mm256_broadcastsi128_si256(_mm_add_epi8(values, _mm_set1_epi8(BIAS)));
        low = _mm256_shuffle_epi8(table, low), high = _mm256_shuffle_epi8(table, high);
    }
    w[0] = _mm256_and_si256(low, low_byte);
    w[1] = _mm256_srli_epi16(low, 8);
    w[2] = _mm256_and_si256(high, low_byte);
    w[3] = _mm256_srli_epi16(high, 8);
}

/* The first bytes of each block, one block per lane in the order of halves_4: loads that place them in the right lane,
 * all within the group. */
#define FIRSTS(LANE)     LANE(1, 2) LANE(2, 4) LANE(3, 6) LANE(4, 1) LANE(5, 3) LANE(6, 5) LANE(7, 7)
#define FIRST_BYTE(l, b) e = _mm256_blend_epi32(e, load_32(p + (b)*SIZE - 4 * (l)), 1 << (l));
#define FIRST_HALF(l, b) d = _mm_blend_epi16(d, load_16(p + (b)*SIZE - 2 * (l)), 1 << (l));
INLINE V broadcast_half(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}
/* The scale and the minimum of each block, two fp16, in the order of halves_4. */
INLINE V load_minima(V *min, const uint8_t *p, const uint8_t *s) {
    if (HAS_ZEROS) {
        int64_t two;
        memcpy(&two, s, sizeof two);
        const __m256i both = _mm256_shuffle_epi32(_mm256_set1_epi64x(two), 0x50),
                      zero = _mm256_and_si256(both, _mm256_set1_epi32(255));
        const V scale = _mm256_castsi256_ps(_mm256_xor_si256(both, zero));
        *min = vmul(_mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_setzero_si256(), zero)), scale);
        return scale;
    }
    __m256i e = load_32(p);
    FIRSTS(FIRST_BYTE)
    const __m256i apart =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m256i both = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(e, apart), 0xd8);
    *min = _mm256_cvtph_ps(_mm256_extracti128_si256(both, 1));
    return _mm256_cvtph_ps(_mm256_castsi256_si128(both));
}
/* The scale of each block, in the order of halves_4. */
INLINE V load_scales(const uint8_t *p, const uint8_t *s) {
    if (DTYPE == DT_E2M1)
        return power_v(_mm256_cvtepu8_epi32(
            _mm_shuffle_epi8(load8(s), _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, -1, -1, -1, -1, -1, -1, -1, -1))));
    if (DTYPE == DT_I4) {
        const __m128i in_turn = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_shuffle_epi8(load_16(s), in_turn)), 16));
    }
    /* six bits: the low four of two scales per byte from the fifth byte on, two bits of each from the third */
    if (DTYPE == DT_IQ4_XS) {
        uint32_t two, four;
        memcpy(&two, p, 4), memcpy(&four, p + 4, 4);
        const __m256i high =
            _mm256_srlv_epi32(_mm256_set1_epi32((int)two), _mm256_setr_epi32(12, 16, 20, 24, 14, 18, 22, 26));
        const __m256i low =
            _mm256_srlv_epi32(_mm256_set1_epi32((int)four), _mm256_setr_epi32(0, 8, 16, 24, 4, 12, 20, 28));
        const __m256i all = _mm256_or_si256(_mm256_and_si256(high, _mm256_set1_epi32(0x30)),
                                            _mm256_and_si256(low, _mm256_set1_epi32(15)));
        return vmul(_mm256_cvtepi32_ps(_mm256_sub_epi32(all, _mm256_set1_epi32(32))), broadcast_half(p));
    }
    if (DTYPE == DT_MXFP4) {
        __m256i e = load_32(p);
        FIRSTS(FIRST_BYTE)
        return power_v(e);
    }
    __m128i d = load_16(p);
    FIRSTS(FIRST_HALF)
    return _mm256_cvtph_ps(d);
}

INLINE void group_dot(V *sum, const uint8_t *p, const uint8_t *s, const struct group *x, int ld, const int n,
                      const int N) {
    uint8_t codes[BYTES], scales[16] = {0};
    __m256i dot[4][2];
    if (n < GROUP) { /* nothing past a row is read; x and scales are zero there */
        memset(codes, 0, sizeof codes);
        memcpy(codes, p, (size_t)(n + FORMAT_BLOCK(FORMAT) - 1) / FORMAT_BLOCK(FORMAT) * FORMAT_BYTES(FORMAT));
        if (BESIDE) memcpy(scales, s, (size_t)(HAS_ZEROS ? (n + 127) / 128 * 4 : (n + 31) / 32 * SCALE_BYTES));
        p = codes, s = scales;
    }
    V min;
    const V scale = HAS_MIN ? load_minima(&min, p, s) : load_scales(p, s);
    EACH (int k = 0; k < 4; k++) {
        __m256i w[4];
        if (64 * k < n) load_words(w, p, k);
        EACH (int t = 0; t < N; t++) {
            const struct group *g = x + t * ld;
            const __m256i two = 64 * k < n ? dot_words(w, g->x[k], 4) : _mm256_setzero_si256();
            if (k % 2) dot[t][k / 2] = pairs(dot[t][k / 2], two, false);
            else dot[t][k / 2] = two;
            if (k < 3) continue;
            __m256i whole = fours(dot[t][0], dot[t][1], false);
            if (HAS_MIN) sum[t] = vfma(min, vload(g->sum), sum[t]);
            else whole = _mm256_add_epi32(whole, _mm256_load_si256((const __m256i *)(const void *)g->start));
            sum[t] = vfma(_mm256_cvtepi32_ps(whole), vmul(scale, vload(g->unit)), sum[t]);
        }
    }
}

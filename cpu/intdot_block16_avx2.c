/* NVFP4: blocks of 16 columns in eight bytes, each with an E4M3 scale. Of checkpoints (E2M1 with DT_E4M3 scales beside
 * it), where a byte's nibbles are two neighbours, and of GGUF (DT_NVFP4), where four scales precede 64 columns and a
 * byte's high nibble is the eighth column after its low one. A vector holds 64 columns, so that two of its lanes belong
 * to each block, and one sum of neighbouring lanes makes eight blocks of two vectors.
 *
 * Instructions per 256 columns, 144 bytes: 40 for codes as 16-bit words, 28 for products, 2 sums of lanes (3 each), 13
 * for the scales, 8 to add: 95. With a float per code there are 430.
 *
 * Decoded values may be negative, but the words have a zero upper half: BIAS as in intdot_block32_avx2.c. */
#include <stdint.h>

#include "cpu/intdot_block32.h"
#include "cpu/intdot_words.h"

#define FLOATS FORMAT_JOIN(avx2_, FORMAT)
#define EACH_ROW for
enum {
    GROUP = 256,
    TURN = 8,
    GGUF = DTYPE == DT_NVFP4,
    VECTOR = GGUF ? BYTES_NVFP4 : 32, /* bytes of 64 columns */
    BYTES = GROUP / 64 * VECTOR,
};
struct group {
    /* of 64 columns: factors of the low nibbles of even bytes, of odd bytes, of the high nibbles of even and of odd
     * bytes */
    int16_t x[4][4][16];
    /* per block, in the order of block_of */
    int32_t start[2][8]; /* -BIAS * x */
    float unit[2][8];
} __attribute__((aligned(64)));
#include "cpu/intdot_inner.h"

/* The sums of eight blocks of two vectors: blocks 0, 1, 4, 5, 2, 3, 6, 7. */
INLINE __m256i blocks_8(const __m256i v[2]) { return _mm256_hadd_epi32(v[0], v[1]); }

/* --- x ---------------------------------------------------------------------------------------- */

/* The words of 64 columns, 32 scaled by f and 32 by g. */
INLINE void columns_64(int16_t to[4][16], const float *x, V f, V g) {
    V a[4], b[4];
    if (!GGUF) {
        split_64(x, f, g, a, b);
        neighbours(to, a, b);
        return;
    }
    EACH (int i = 0; i < 4; i++) a[i] = vmul(vload(x + 8 * i), f), b[i] = vmul(vload(x + 32 + 8 * i), g);
    EACH (int i = 0; i < 2; i++) {
        words_16(to[2 * i], _mm256_shuffle_ps(a[i], a[2 + i], 0x88), _mm256_shuffle_ps(b[i], b[2 + i], 0x88));
        words_16(to[2 * i + 1], _mm256_shuffle_ps(a[i], a[2 + i], 0xdd), _mm256_shuffle_ps(b[i], b[2 + i], 0xdd));
    }
}
INLINE void group_make(struct group *g, const float *x, int n) {
    const __m256i factor = _mm256_set1_epi16(BIAS), factors[4] = {factor, factor, factor, factor};
    float f[8], all[GROUP];
    __m256i most[8], sum[4];
    if (n < GROUP) {
        memset(all, 0, sizeof all);
        x = memcpy(all, x, (size_t)n * sizeof *x);
    }
    for (int b = 0; b < 8; b++) most[b] = join(most_2(x + 32 * b), most_2(x + 32 * b + 16), true);
    const V unit = vmul(units_8(vectors_8(most, true, false), f), vset1(0.5f)); /* FP4 values are stored doubled */
    for (int k = 0; k < 4; k++) {
        columns_64(g->x[k], x + 64 * k, vset1(f[lane_of(2 * k, false)]), vset1(f[lane_of(2 * k + 1, false)]));
        sum[k] = dot_words(factors, g->x[k], 4);
    }
    EACH (int i = 0; i < 2; i++) {
        const __m256i start = _mm256_sub_epi32(_mm256_setzero_si256(), blocks_8(sum + 2 * i));
        _mm256_store_si256((__m256i *)(void *)g->start[i], start);
        /* of 32 columns each: 0, 0, 2, 2, 1, 1, 3, 3, and four further */
        const __m256i at = _mm256_add_epi32(_mm256_setr_epi32(0, 0, 1, 1, 4, 4, 5, 5), _mm256_set1_epi32(2 * i));
        vstore(g->unit[i], _mm256_permutevar8x32_ps(unit, at));
    }
}

/* --- Weights ---------------------------------------------------------------------------------- */

/* 64 columns as words, in the order of struct group. */
INLINE void load_words(__m256i w[4], const uint8_t *p) {
    const __m256i four = _mm256_set1_epi8(15), low_byte = _mm256_set1_epi16(255);
    const __m256i codes = load_32(p + VECTOR - 32);
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_add_epi8(load_16((const uint8_t *)mat_mxfp4), _mm_set1_epi8(BIAS)));
    const __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(codes, four));
    const __m256i high = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(codes, 4), four));
    w[0] = _mm256_and_si256(low, low_byte);
    w[1] = _mm256_srli_epi16(low, 8);
    w[2] = _mm256_and_si256(high, low_byte);
    w[3] = _mm256_srli_epi16(high, 8);
}
/* The scales of 16 blocks, in the order of blocks_8, divided by E4M3_AS_F16. GGUF's have no sign, and NaN is 0
 * (nvfp4_scale). */
INLINE void load_scales(V scale[2], const uint8_t *p, const uint8_t *s) {
    const __m128i in_turn = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    __m128i e;
    if (GGUF) {
        int32_t four[4];
        EACH (int k = 0; k < 4; k++) memcpy(&four[k], p + VECTOR * k, sizeof four[k]);
        e = _mm_setr_epi32(four[0], four[1], four[2], four[3]);
    } else e = load_16(s);
    const __m256i code = _mm256_cvtepu8_epi16(_mm_shuffle_epi8(e, in_turn));
    const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi16(0x7f));
    const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
    __m256i half = _mm256_slli_epi16(magnitude, 7);
    if (GGUF) half = _mm256_andnot_si256(nan, half);
    else {
        const __m256i sign = _mm256_slli_epi16(_mm256_xor_si256(code, magnitude), 8);
        half = _mm256_or_si256(_mm256_or_si256(half, sign), _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
    }
    scale[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
    scale[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
}

INLINE void group_dot(V *sum, const uint8_t *p, const uint8_t *s, const struct group *x, int ld, const int n,
                      const int N) {
    uint8_t codes[BYTES], scales[16] = {0};
    __m256i dot[4][2];
    V scale[2];
    if (n < GROUP) { /* nothing past a row is read; x and scales are zero there */
        memset(codes, 0, sizeof codes);
        memcpy(codes, p, (size_t)(GGUF ? n / 64 * VECTOR : (n + 1) / 2));
        if (BESIDE) memcpy(scales, s, (size_t)(n + 15) / 16);
        p = codes, s = scales;
    }
    load_scales(scale, p, s);
    EACH (int k = 0; k < 4; k++) {
        __m256i w[4];
        if (64 * k < n) load_words(w, p + VECTOR * k);
        EACH (int t = 0; t < N; t++) {
            const struct group *g = x + t * ld;
            dot[t][k % 2] = 64 * k < n ? dot_words(w, g->x[k], 4) : _mm256_setzero_si256();
            if (k % 2 == 0) continue;
            const __m256i start = _mm256_load_si256((const __m256i *)(const void *)g->start[k / 2]);
            const V product = _mm256_cvtepi32_ps(_mm256_add_epi32(blocks_8(dot[t]), start));
            sum[t] = vfma(product, vmul(scale[k / 2], vload(g->unit[k / 2])), sum[t]);
        }
    }
}

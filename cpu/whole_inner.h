/* GEMV of blocks in whole numbers: the walker and x's planes, for the files that say what a block is (whole_*_avx512vnni.c, each compiled
 * once a format that it takes; meson.build: FORMAT).
 *
 * Why. Memory gives a core some 4.6 bytes a cycle, which leaves 14 cycles, 28 vector instructions, for 64 bytes of weights. Four
 * bits become float32 by 10 instructions for 16 numbers and are multiplied by 8 more: 80 for 64 bytes. In whole numbers an instruction
 * multiplies 64 of them, and what a block costs besides is shared by 128 to 256: 16 to 20 for 64 bytes (counted in each file).
 *
 * x becomes whole numbers of 16 bits, q * 2^e with |q| < 32,640, e for 16 or 32 columns (K blocks) or 32, as two planes of eight bits: q =
 * 256 * high + low. So what x loses is half a unit, 2^-15 of the largest number of these columns at most; a BF16 x loses nothing unless the
 * columns lie further apart than 2^7. Codes of a block are multiplied with both planes and summed exactly; then floats begin. The
 * sum of a row is: blocks in order, in each of 16 lanes; lanes at the end. Neither rows nor tokens beside it change that.
 *
 * The including file has before: DTYPE, GROUP (columns that x is packed by), BYTES (a row's bytes of them), struct group; behind: group_make and
 * group_dot. */
#include <string.h>

#include "cpu/simd_avx512.h"
#include "engine/base/scale.h"

enum {
    AHEAD = 2560,                               /* bytes that prefetch runs ahead in each row */
    SCALES_AHEAD = AHEAD / 16 + 64,             /* the same in what lies beside, and a line for it to be whole */
    ROWS = 4,                                   /* streams of rows, far apart, each straight on, as memory likes it best (gemv_inner.h) */
    STREAM = 256,                               /* rows of one token's chunk */
    CHUNK = 32,                                 /* rows that stay in a cache while several tokens pass */
    COLUMNS = 32768,                            /* of all tokens that are looked at together */
    BESIDE = DTYPE == DT_E2M1 ? GROUP / 32 : 0, /* bytes of scales beside a group: an E8M0 for 32 columns */
};

/* --- x --- */

INLINE __m512i magnitude(V v) { return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)); } /* in order, and no number above all */
INLINE V load_left(const float *x, int n) { return n >= LANES ? vload(x) : n > 0 ? vloadm(x, n) : vzero(); }

/* The largest of eight vectors' lanes, unsigned, each. */
INLINE __m256i largest_8(const __m512i v[8]) {
    __m512i a[4], b[2];
    EACH (int i = 0; i < 4; i++) a[i] = _mm512_max_epu32(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
    EACH (int i = 0; i < 2; i++) b[i] = _mm512_max_epu32(_mm512_unpacklo_epi64(a[2 * i], a[2 * i + 1]), _mm512_unpackhi_epi64(a[2 * i], a[2 * i + 1]));
    const __m512i c = _mm512_max_epu32(_mm512_shuffle_i32x4(b[0], b[1], 0x88), _mm512_shuffle_i32x4(b[0], b[1], 0xdd));
    const __m512i d = _mm512_max_epu32(c, _mm512_shuffle_i32x4(c, c, 0xb1));
    return _mm512_castsi512_si256(_mm512_shuffle_i32x4(d, d, 0x08));
}
/* The unit of each of eight vectors, or `both` of two next to each other, and 1 / unit; one that is infinite or no number makes the unit no number. */
enum { UNIT_LEAST = -100 };
INLINE __m256 units_8(const V x[8], float inverse[8], const bool both) {
    __m512i v[8];
    EACH (int i = 0; i < 8; i++) v[i] = magnitude(x[i]);
    __m256i most = largest_8(v);
    if (both) most = _mm256_max_epu32(most, _mm256_shuffle_epi32(most, 0xb1));
    const __m256i bits = _mm256_srli_epi32(_mm256_add_epi32(most, _mm256_set1_epi32(0x10200)), 23); /* what would be 32,640 units takes twice the unit */
    const __m256i e = _mm256_max_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(14)), _mm256_set1_epi32(UNIT_LEAST + 127)); /* as a float has it */
    const __mmask8 none = _mm256_cmpge_epu32_mask(most, _mm256_set1_epi32(0x7f800000));
    _mm256_storeu_si256((__m256i *)(void *)inverse, _mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(254), e), 23));
    return _mm256_mask_mov_ps(_mm256_castsi256_ps(_mm256_slli_epi32(e, 23)), none, _mm256_set1_ps(NAN));
}

/* 32 numbers in units; f: 1 / unit of the first 16, g: of the others. */
INLINE __m512i whole_32(V a, V b, float f, float g) {
    const __m512i even =
        _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutex2var_epi16(_mm512_cvtps_epi32(vmul(a, vset1(f))), even, _mm512_cvtps_epi32(vmul(b, vset1(g))));
}
#define BYTES_8(from)  (from), (from) + 2, (from) + 4, (from) + 6, (from) + 8, (from) + 10, (from) + 12, (from) + 14
#define BYTES_32(from) BYTES_8(from), BYTES_8((from) + 16), BYTES_8((from) + 32), BYTES_8((from) + 48)
static const uint8_t low_bytes[64] __attribute__((aligned(64))) = {BYTES_32(0), BYTES_32(64)};
static const uint8_t high_bytes[64] __attribute__((aligned(64))) = {BYTES_32(1), BYTES_32(65)};
/* Both planes of 64 numbers, sixteen of each of four vectors. */
INLINE void planes_64(int8_t *high, int8_t *low, V a, V b, V c, V d, float fa, float fb, float fc, float fd) {
    const __m512i q = whole_32(a, b, fa, fb), r = whole_32(c, d, fc, fd), up = _mm512_set1_epi16(128);
    _mm512_store_si512(low, _mm512_permutex2var_epi8(q, _mm512_load_si512(low_bytes), r));
    _mm512_store_si512(high, _mm512_permutex2var_epi8(_mm512_add_epi16(q, up), _mm512_load_si512(high_bytes), _mm512_add_epi16(r, up)));
}
/* The products of n vectors of codes with both planes, summed in each lane. */
INLINE __m512i dot_planes(const __m512i *w, const int8_t (*high)[64], const int8_t (*low)[64], const int n) {
    __m512i dot = _mm512_setzero_si512();
    EACH (int v = 0; v < n; v++) dot = _mm512_dpbusd_epi32(dot, w[v], _mm512_load_si512(high[v]));
    dot = _mm512_slli_epi32(dot, 8);
    EACH (int v = 0; v < n; v++) dot = _mm512_dpbusd_epi32(dot, w[v], _mm512_load_si512(low[v]));
    return dot;
}

/* --- The walker --- */

/* Of n <= GROUP columns, and zeros beyond. */
INLINE void group_make(struct group *g, const float *x, int n);
/* sum[t] += the products of the group at p, with scales beside the weights from s on, and x[t * ld], t < N. n of its columns exist; a constant where
 * all do. */
INLINE void group_dot(V *sum, const uint8_t *p, const uint8_t *s, const struct group *x, int ld, const int n, const int N);

/* ROWS rows, r0 and each `gap` further: y[t][row] = their products with x[t * ld]. Rows past the last one are that again. */
INLINE void group_rows(float *const *y, const struct mat *w, const struct group *x, int ld, int r0, int gap, int last, const int N) {
    const uint8_t *row[ROWS], *scale[ROWS];
    int at[ROWS];
    V sum[ROWS][4];
    EACH (int i = 0; i < ROWS; i++) {
        at[i] = r0 + i * gap < last ? r0 + i * gap : last;
        row[i] = (const uint8_t *)w->data + (size_t)at[i] * w->stride;
        scale[i] = BESIDE ? (const uint8_t *)w->scale + scale_row(w, at[i]) : row[i];
        EACH (int t = 0; t < N; t++) sum[i][t] = vzero();
    }
    int c = 0;
    for (; c + GROUP <= w->cols; c += GROUP, x++)
        EACH (int i = 0; i < ROWS; i++) {
            EACH (int line = 0; line < (BYTES + 63) / 64; line++) _mm_prefetch((const char *)row[i] + AHEAD + 64 * line, _MM_HINT_T0);
            if (BESIDE) _mm_prefetch((const char *)scale[i] + SCALES_AHEAD, _MM_HINT_T0); /* of a stream of their own */
            group_dot(sum[i], row[i], scale[i], x, ld, GROUP, N);
            row[i] += BYTES, scale[i] += BESIDE;
        }
    if (c < w->cols)
        EACH (int i = 0; i < ROWS; i++) group_dot(sum[i], row[i], scale[i], x, ld, w->cols - c, N);
    EACH (int i = 0; i < ROWS; i++)
        EACH (int t = 0; t < N; t++) y[t][at[i]] = vsum(sum[i][t]);
}
INLINE void chunk_rows(float *const *y, const struct mat *w, const struct group *x, int ld, int base, int rows, const int N) {
    const int gap = rows / ROWS, last = base + rows - 1;
    for (int i = 0; i < gap; i++) group_rows(y, w, x, ld, base + i, gap, last, N);
    if (gap * ROWS < rows) group_rows(y, w, x, ld, base + gap * ROWS, 1, last, N);
}
INLINE void some_tokens(float *const *y, const float *const *x, int n, const struct mat *w, int groups) {
    struct group packed[COLUMNS / GROUP];
    const int chunk = n > 1 ? CHUNK : STREAM;
    for (int t = 0; t < n; t++)
        for (int g = 0; g < groups; g++) group_make(&packed[t * groups + g], x[t] + g * GROUP, w->cols - g * GROUP < GROUP ? w->cols - g * GROUP : GROUP);
    for (int base = 0; base < w->rows; base += chunk) {
        const int rows = w->rows - base < chunk ? w->rows - base : chunk;
        int t = 0;
        for (; t + 4 <= n; t += 4) chunk_rows(y + t, w, packed + t * groups, groups, base, rows, 4);
        if (n - t >= 2) chunk_rows(y + t, w, packed + t * groups, groups, base, rows, 2), t += 2;
        if (n - t >= 1) chunk_rows(y + t, w, packed + t * groups, groups, base, rows, 1);
    }
}
/* Whether its scales are where group_dot looks for them; else float32 has to do. */
static bool takes(const struct mat *w) {
    if (w->cols > COLUMNS) return false;
    return BESIDE ? w->scale && w->scale_dtype == DT_E8M0 && w->block_cols == 32 : !w->scale;
}

#define FLOATS FORMAT_JOIN(avx512_, FORMAT)
extern const struct format_kernels FLOATS;
GEMV_FN(FORMAT_JOIN(whole_avx512vnni_, FORMAT)) {
    const int groups = (w->cols + GROUP - 1) / GROUP, most = groups ? COLUMNS / GROUP / groups : 1;
    if (!takes(w)) {
        FLOATS.gemv(y, x, n, w);
        return;
    }
    for (int t = 0; t < n; t += most) some_tokens(y + t, x + t, n - t < most ? n - t : most, w, groups);
}

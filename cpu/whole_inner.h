/* GEMV of blocks in whole numbers: the walker, for the files that say what a block is (whole_*_<isa>.c, each compiled once a format that
 * it takes; meson.build: FORMAT and ISA).
 *
 * Why. Memory gives a core some 4.6 bytes a cycle, which leaves 14 cycles, 28 vector instructions of 64 bytes or 45 of 32, for 64 bytes of weights. Four
 * bits become float32 by 10 instructions for 16 numbers and are multiplied by 8 more: 80 for 64 bytes, twice that with AVX2. In whole numbers an instruction
 * multiplies 64 of them, or 16 with AVX2, and what a block costs besides is shared by 128 to 256 (counted in each file).
 *
 * x becomes whole numbers of 16 bits, q * 2^e with |q| < 32,640, e for 16 or 32 columns (K blocks) or 32 (whole_planes.h, whole_words.h). So what
 * x loses is half a unit, 2^-15 of the largest number of these columns at most; a BF16 x loses nothing unless the columns lie
 * further apart than 2^7. Products with the codes of a block are summed exactly; then floats begin. The sum of a row
 * is: blocks in order, in each of V's lanes; lanes at the end. Neither rows nor tokens beside it change that.
 *
 * The including file has before: V and its vocabulary, DTYPE, FLOATS (the kernels of what this does not take), GROUP (columns that x is packed
 * by), BYTES (a row's bytes of them), TURN (groups of a row before the next row's), EACH_ROW (EACH, or `for`, which builds in a
 * third of the time and does not show in longer turns), struct group; behind: group_make and group_dot. */
#include <string.h>

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
    int left = w->cols / GROUP;
    for (int turn; left > 0; left -= turn, x += turn) {
        turn = left < TURN ? left : TURN;
        EACH_ROW(int i = 0; i < ROWS; i++) {
            const uint8_t *p = row[i], *s = scale[i];
            const struct group *g = x;
            V part[4];
            EACH (int t = 0; t < N; t++) part[t] = sum[i][t];
            if (BESIDE) _mm_prefetch((const char *)s + SCALES_AHEAD, _MM_HINT_T0); /* of a stream of their own */
            for (int k = 0; k < turn; k++, g++) {
                EACH (int line = 0; line < (BYTES + 63) / 64; line++) _mm_prefetch((const char *)p + AHEAD + 64 * line, _MM_HINT_T0);
                group_dot(part, p, s, g, ld, GROUP, N);
                p += BYTES, s += BESIDE;
            }
            EACH (int t = 0; t < N; t++) sum[i][t] = part[t];
            row[i] = p, scale[i] = s;
        }
    }
    if (FORMAT_BLOCK(FORMAT) < GROUP && w->cols % GROUP) EACH_ROW(int i = 0; i < ROWS; i++) group_dot(sum[i], row[i], scale[i], x, ld, w->cols % GROUP, N);
    EACH (int i = 0; i < ROWS; i++)
        EACH (int t = 0; t < N; t++) y[t][at[i]] = vsum(sum[i][t]);
}
INLINE void chunk_rows(float *const *y, const struct mat *w, const struct group *x, int ld, int base, int rows, const int N) {
    const int gap = rows / ROWS, last = base + rows - 1;
    for (int i = 0; i < gap + (gap * ROWS < rows); i++) group_rows(y, w, x, ld, i < gap ? base + i : base + gap * ROWS, i < gap ? gap : 1, last, N);
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

extern const struct format_kernels FLOATS;
GEMV_FN(FORMAT_JOIN(FORMAT_JOIN(FORMAT_JOIN(whole_, ISA), _), FORMAT)) {
    const int groups = (w->cols + GROUP - 1) / GROUP, most = groups ? COLUMNS / GROUP / groups : 1;
    if (!takes(w)) {
        FLOATS.gemv(y, x, n, w);
        return;
    }
    for (int t = 0; t < n; t += most) some_tokens(y + t, x + t, n - t < most ? n - t : most, w, groups);
}

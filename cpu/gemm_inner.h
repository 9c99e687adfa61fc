#pragma once
/* What the files behind cpu/gemm.h share. Packed activations are blocks of K columns, each holding all tokens:
 *
 *     packed[k / GEMM_K][token][GEMM_K]          float32 or BF16, zero past the last column
 *
 * so that a micro-kernel reaches the tokens of a block at fixed distances, packing is a copy of stretches of rows, and no
 * token is padded: 9 tokens cost 9. */
#include <string.h>

#include "cpu/gemm.h"
#include "cpu/kernels.h"
#include "engine/base/scale.h"

enum {
    GEMM_K_F32 = 256, /* columns of a block: a panel of decoded weights is 32 or 16 KB and leaves room in L1 for what streams by */
    GEMM_K_BF16 = 256,
    GEMM_PANEL = 32,  /* rows of a BF16 panel */
    GEMM_PANELS = 4,  /* panels decoded before tokens run over them; together they stay in L2 */
    GEMM_CHUNK = 512, /* tokens at a time: a K block of them and their sums stay in L2 beside the panels */
};

/* Rows of W between two decodings. With few tokens a panel at a time keeps the reading of weights going between short products. */
static inline int gemm_step(int n, int tokens, int panel, int panels) { return n <= 10 * tokens ? panel : panel * panels; }

/* Sums are kept apart from y until they are complete: y's rows may lie a power of two apart and then fight for the same
 * lines of the caches. */
static inline void gemm_put(float *y, int ldy, const float *sums, int ld, int n, int rows, bool accumulate) {
    for (int i = 0; i < n; i++, y += ldy, sums += ld)
        if (accumulate)
            for (int r = 0; r < rows; r++) y[r] += sums[r];
        else
            for (int r = 0; r < rows; r++) y[r] = sums[r];
}

size_t gemm_packed_f32(int n, int k);
void gemm_pack_f32(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts);

/* Decoding of formats that have no path of their own: rows to float32, scaled. Filled once, never changes. */
const struct kernels *gemm_kernels(enum cpu_level level);

/* ---- BF16: E4M3 whose scales are powers of two ---- */

/* Such a weight times its scale is still a BF16 number, so scales go into the exponents of the decoded weights, and sums need not end where a scale does.
 * All scales of the matrix decide, so that rows do not hang on the range or the group of tokens they are multiplied in. Blocks end at multiples of 64 columns,
 * and no product leaves the normal numbers. As V3.1 and V4 have it. */
bool gemm_folds(const struct mat *w);
/* The power of two that a scale is. */
static inline int gemm_power(const struct mat *w, size_t scale) {
    const float f = scale_load(w, scale);
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (int)(bits >> 23) - 127;
}
/* What is added to a normal BF16 number's bits to multiply it by that. */
static inline int16_t gemm_times(int power) { return (int16_t)(power * 128); }

/* ---- BF16: formats with scales among the weights, in the order of gemm_amx.c's tiles (gemm_planes.c) ---- */

/* Columns [c0, c0 + n), c0 a multiple of 256 and n at most that, of rows [r, r + rows): BF16 in the order of gemm_amx.c, 64-byte aligned, `pitch` numbers from
 * row to row, whole 64 columns, any finite number past the last one. rest: the BF16 of what that leaves over; NULL: not asked for. ahead: bytes to what will
 * be read next. */
typedef void (*planes_fn)(uint16_t *head, uint16_t *rest, int pitch, const struct mat *w, int r, int rows, int c0, int n, ptrdiff_t ahead);
struct gemm_planes {
    planes_fn rows; /* NULL: not for these weights */
    bool exact;     /* nothing is ever left over */
};
struct gemm_planes gemm_planes_for(const struct mat *w);

/* ---- BF16: weights in the layout of vdpbf16ps (gemm_vnni.c) ---- */

size_t gemm_vnni_packed(int n, int k);
void gemm_vnni_pack(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts);
size_t gemm_vnni_scratch(int n, int k);

/* One K block of up to GEMM_PANELS panels. panel p holds w[(p * GEMM_K_BF16 / 2 + kp) * 2 * GEMM_PANEL + 2 * row + (k & 1)];
 * scale[(p * n_seg + s) * GEMM_PANEL + row] belongs to columns [s * seg, (s + 1) * seg), seg a multiple of 32. */
struct gemm_tile {
    const uint16_t *w;
    const float *scale;
    int n_panels;
    int n_seg, seg, cols; /* cols: that count, rounded up to 32; the last segment may be shorter */
    const uint16_t *x;    /* [n][GEMM_K_BF16] */
    int n;
    float *sums; /* [n][ld], room for whole panels */
    int ld;
    bool add; /* to the sums, else they are written */
    /* While few tokens are multiplied memory would idle. So decoding asks for the first half of the one-byte weights that come
     * next, and the product for the second, which begins here in GEMM_PANEL rows so far apart (NULL: decoding asks for all). */
    const uint8_t *ahead;
    size_t ahead_stride;
};
/* sums (+)= scale * (w . x), segment after segment. */
typedef void (*gemm_tile_fn)(const struct gemm_tile *t);
void gemm_vnni_rows(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate, void *scratch, gemm_tile_fn run);

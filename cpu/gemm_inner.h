#pragma once
/* Shared by the implementations of cpu/gemm.h. Packed activations are blocks of K columns, each holding all tokens:
 *     packed[k / GEMM_K][token][GEMM_K]          float32 or BF16, zero past the last column
 * so that a micro-kernel addresses the tokens of a block at fixed distances, packing copies contiguous parts of rows,
 * and tokens are not padded: 9 tokens cost 9. */
#include <string.h>

#include "base/scale.h"
#include "cpu/gemm.h"
#include "cpu/kernels.h"

enum {
    /* columns per block: a panel of decoded weights is 32 or 16 KB and leaves room in L1 for streamed data */
    GEMM_K_F32 = 256,
    GEMM_K_BF16 = 256,
    GEMM_PANEL = 32,  /* rows of a BF16 panel */
    GEMM_PANELS = 4,  /* panels decoded before tokens are multiplied; together they stay in L2 */
    GEMM_CHUNK = 512, /* tokens per pass: their K block and sums stay in L2 beside the panels */
};

/* Rows of W per decoding step. With few tokens one panel at a time keeps weight reads flowing between short
 * products. */
static inline int gemm_rows_per_step(int n, int tokens, int panel, int panels) {
    return n <= 10 * tokens ? panel : panel * panels;
}

/* Sums are separate from y until they are complete: y's rows may be a power of two apart and would conflict in the
 * caches. */
static inline void gemm_store_sums(float *y, int ldy, const float *sums, int ld, int n, int rows, bool accumulate) {
    for (int i = 0; i < n; i++, y += ldy, sums += ld)
        if (accumulate)
            for (int r = 0; r < rows; r++) y[r] += sums[r];
        else
            for (int r = 0; r < rows; r++) y[r] = sums[r];
}

static inline int gemm_blocks_f32(int k) { return (k + GEMM_K_F32 - 1) / GEMM_K_F32; }
size_t gemm_packed_f32(int n, int k);
void gemm_pack_f32(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts);

/* Row decoders to scaled float32, for formats without their own path. Filled once, then constant. */
const struct kernels *gemm_kernels(enum cpu_level level);

/* --- BF16: E4M3 whose scales are powers of two ------------------------------------------------ */

/* Multiplied by a power-of-two scale, such a weight is still a BF16 number, so scales are added to the exponents of the
 * decoded weights, and sums may extend past a scale's columns. All scales of the matrix decide, so that a row's bits do
 * not depend on the range or the group of tokens. Blocks end at multiples of 64 columns, and no product is subnormal or
 * overflows. True for V3.1 and V4. */
bool gemm_folds_scales(const struct mat *w);
/* The exponent of a power-of-two scale. */
static inline int gemm_scale_exponent(const struct mat *w, size_t scale) {
    const float f = scale_load(w, scale);
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (int)(bits >> 23) - 127;
}
/* The increment of a normal BF16 number's bits that multiplies it by that power. */
static inline int16_t gemm_exponent_increment(int power) { return (int16_t)(power * 128); }

/* --- BF16: formats with scales among the weights, in the column order of gemm_amx.c's tiles (gemm_bf16_decoder.c)
 * --- */

/* Columns [c0, c0 + n), c0 a multiple of 256 and n at most that, of rows [r, r + rows): BF16 in the column order of
 * gemm_amx.c, 64-byte aligned, `pitch` elements between rows, in multiples of 64 columns, arbitrary finite numbers past
 * the last one. rest: receives the BF16 remainders; may be NULL. ahead: prefetch distance in bytes. */
typedef void (*bf16_decode_fn)(uint16_t *head, uint16_t *rest, int pitch, const struct mat *w, int r, int rows, int c0,
                               int n, ptrdiff_t ahead);
struct gemm_bf16_decoder {
    bf16_decode_fn rows; /* NULL: unsupported weights */
    bool exact;          /* remainders are always 0 */
};
struct gemm_bf16_decoder gemm_bf16_decoder_for(const struct mat *w);

/* --- BF16: weights in the layout of vdpbf16ps (gemm_vnni.c) ----------------------------------- */

size_t gemm_vnni_packed(int n, int k);
void gemm_vnni_pack(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts);
size_t gemm_vnni_scratch(int n, int k);

/* One K block of up to GEMM_PANELS panels. panel p holds w[(p * GEMM_K_BF16 / 2 + kp) * 2 * GEMM_PANEL + 2 * row + (k &
 * 1)]; scale[(p * n_seg + s) * GEMM_PANEL + row] applies to columns [s * seg, (s + 1) * seg), seg a multiple of 32. */
struct gemm_tile {
    const uint16_t *w;
    const float *scale;
    int n_panels;
    int n_seg, seg, cols; /* cols: column count rounded up to 32; the last segment may be shorter */
    const uint16_t *x;    /* [n][GEMM_K_BF16] */
    int n;
    float *sums; /* [n][ld], room for whole panels */
    int ld;
    bool add; /* add to the sums, else overwrite them */
    /* With few tokens, memory would idle during the product. So decoding prefetches the first half of the next one-byte
     * weights, and the product the second half, which starts here: GEMM_PANEL rows, this stride apart (NULL: decoding
     * prefetches all). */
    const uint8_t *ahead;
    size_t ahead_stride;
};
/* sums (+)= scale * (w . x), one segment after the other. */
typedef void (*gemm_tile_fn)(const struct gemm_tile *t);
void gemm_vnni_rows(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate,
                    void *scratch, gemm_tile_fn run);

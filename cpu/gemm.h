#pragma once
/* Matrix products W X of many tokens: experts and linear layers use them for more than BATCH_INVARIANT_ROWS tokens, and
 * for fewer where gemm_for_weights has a kernel. Otherwise: the GEMV kernels.
 *
 * Activations are packed once, then read-only, and shared by the pool's threads. A thread takes a range of W's rows,
 * decodes a tile of them once and multiplies it with all tokens. Weights keep their published format and are read from
 * memory once. The order of a sum does not depend on the ranges, the packing parts or the other tokens, so the bits are
 * reproducible.
 *
 *     g->pack(packed, x, ids, ldx, n, k, t, T);        for each part t of T, by any thread
 *     g->rows(&w, r0, r1, packed, n, y, ldy, false, scratch); */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mat.h"
#include "cpu/cpu.h"

struct gemm {
    const char *name; /* "scalar", "avx2", "avx512", "avx512bf16", "amx", ... */
    bool bf16;        /* activations are rounded to BF16; else float32 */
    /* weights of formats with in-block scales are also rounded to BF16 after decoding; all other weights are exact */
    bool rounds_weights;
    bool bf16x2; /* activations are the sum of two BF16: 16 bits */
    /* E4M3 scales that many rows share multiply the activations before these are rounded or split: exact ones no longer
     * stay exact */
    bool scales_x;
    bool is_int16; /* activations are 16-bit integers, with one scale per 256 columns or fewer */
    bool is_int8;  /* activations are 8-bit integers, with one scale per 32 columns or fewer; not for wide products */
    int row_tile;  /* split W's rows at multiples of this to avoid decoding a tile twice; any split is correct */

    /* Packed activations of n tokens with k columns; 64-byte aligned memory. */
    size_t (*packed_bytes)(int n, int k);
    /* Token i is row gather[i] of x (gather NULL: row i), rows ldx floats apart. All parts (0 .. parts - 1) must run,
     * in any order or concurrently; each writes its own bytes of dst, padding included. */
    void (*pack)(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts);
    /* For one call of rows on one thread; 64-byte aligned memory. */
    size_t (*scratch_bytes)(int n, int k);
    /* y[i * ldy + r] = (accumulate ? y[i * ldy + r] : 0) + W[r] . x[i] for r0 <= r < r1 and i < n, k = w->cols.
     * y is indexed by W's row: pass y - r0 to start at column 0. Supports F32, BF16, F16, E4M3, E2M1
     * and the quantised formats. */
    void (*rows)(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate,
                 void *scratch);
    bool (*supports)(const struct mat *w, int n); /* supports n tokens of these weights; NULL: always */
};

extern const struct gemm gemm_scalar, gemm_avx2, gemm_avx512, gemm_avx512bf16, gemm_amx, gemm_amx_skinny_bf16,
    gemm_amx_wide, gemm_skinny, gemm_skinny_bf16, gemm_int8, gemm_int8_few, gemm_int16_few, gemm_int8_avx2,
    gemm_int8_avxvnni;

/* Returns the fastest kernel of a level on this CPU. A fixed rule without timing, so that a machine always gives the
 * same text: avx512 means BF16 products where the CPU runs them at twice the float32 rate (probe.h), else float32. */
const struct gemm *gemm_for(enum cpu_level level, bool wide); /* wide: keep at least 16 bits of an activation */
/* Kernel for n tokens of a batch and weights like w, where another one than gemm_for's is faster. NULL: use the GEMV
 * kernels in batches of up to BATCH_INVARIANT_ROWS, else GEMV and gemm_for. Quantized formats take integer products:
 * with AVX2 alone those of GGUF for any number of tokens, but grids, ternary ones, NVFP4 and codes with scales beside
 * them from eight tokens of a larger batch on (gemm_int8_avx2); with AVX-512 VNNI those of GGUF but for grids in small
 * batches and groups (gemm_int8_few), four-bit codes with scales of their own in small batches (gemm_int16_few, whose x
 * keeps 16 bits as vendors' BF16 does), and all in larger groups
 * (gemm_int8; AMX has a kernel of its own). A token of a batch of up to BATCH_INVARIANT_ROWS always takes the same
 * path, so its bits do not depend on the batch. */
enum {
    GEMM_SKINNY_MAX = 16, /* max tokens of gemm_amx_skinny_bf16 in a larger batch */
    GEMM_INT8_FEW = 12,   /* of gemm_int8_few in a larger batch */
    GEMM_INT8_FEW_AMX = 8,
    GEMM_INT8_LEAST = 4, /* formats without gemm_int8_few: the GEMV kernels are faster for at most this many tokens */
    /* of gemm_skinny_bf16: from 10 (768 or 7,168 columns) to 16 (2,048) on, gemm_avx512bf16 is faster */
    GEMM_SKINNY_BF16_MAX = 12,
};
const struct gemm *gemm_for_weights(enum cpu_level level, int n, int batch, bool wide, const struct mat *w);
/* True if this CPU can run g (for AMX also the kernel, asked by cpu_level_best). */
bool gemm_has(const struct gemm *g);

#pragma once
/* W X: what experts and linear layers run for more than OP_FEW tokens, and for fewer where gemm_few_for has something (else: the
 * GEMV kernels).
 *
 * The activations are packed once and then only read, so every thread of a pool shares them; a thread takes a range of W's
 * rows, decodes a tile of them once and runs it over all tokens. Weights stay as published and are read from memory once.
 * An output element is summed in one order whatever the ranges, the packing parts and the other tokens: same bits always.
 *
 *     g->pack(packed, x, ids, ldx, n, k, t, T);        on each thread t of T, then a barrier
 *     g->rows(&w, r0, r1, packed, n, y, ldy, false, scratch);
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cpu/ops.h"
#include "engine/base/mat.h"

struct gemm {
    const char *name; /* "scalar", "avx2", "avx512", "avx512bf16", "amx" */
    bool bf16;        /* activations are rounded to BF16; else float32 */
    bool rounds;      /* so are, once decoded, weights of formats with scales among them that BF16 does not hold; all others are exact everywhere */
    bool bf16x2;      /* activations are the sum of two BF16: 16 bits */
    bool whole;       /* activations are whole numbers of 16 bits, with a unit that 256 columns share */
    int row_tile;     /* cut W's rows at multiples of this, or a tile is decoded for nothing; any cut is correct */

    /* Packed activations of n tokens of k columns; 64-byte aligned memory. */
    size_t (*packed_bytes)(int n, int k);
    /* Token i comes from row gather[i] of x (gather NULL: row i), rows ldx floats apart. All parts (0 .. parts - 1), in any
     * order or at once, make the whole; each writes its own bytes of dst, padding included. */
    void (*pack)(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts);
    /* For one call of rows on one thread; 64-byte aligned memory. */
    size_t (*scratch_bytes)(int n, int k);
    /* y[i * ldy + r] = (accumulate ? y[i * ldy + r] : 0) + W[r] . x[i] for r0 <= r < r1 and i < n, k = w->cols.
     * y is indexed by W's row, so pass y - r0 to begin at column 0. Takes F32, BF16, F16, E4M3, E2M1
     * and the quantised formats. */
    void (*rows)(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate, void *scratch);
    bool (*takes)(const struct mat *w, int n); /* n tokens of these weights; NULL: all of these formats */
};

extern const struct gemm gemm_scalar, gemm_avx2, gemm_avx512, gemm_avx512bf16, gemm_amx, gemm_amx_few16, gemm_amx_wide, gemm_few, gemm_few16, gemm_whole_avx2,
    gemm_whole_avxvnni;

/* The fastest that a level allows on this processor. A fixed rule and no timing, so that a machine always gives the same text:
 * avx512 means BF16 products where the processor does them at twice the float32 rate (probe.h), float32 else. */
const struct gemm *gemm_for(enum cpu_level level, bool wide); /* wide: one that keeps at least 16 bits of an activation */
/* For n tokens of a batch, weights permitting (takes). NULL: the GEMV kernels in batches of up to OP_FEW, else these and gemm_for. With AVX2 alone that is
 * gemm_whole_*, for any number of tokens of larger batches. A
 * token of a batch of up to OP_FEW is always multiplied in one way, which gives it the same bits in whatever company. */
enum { GEMM_FEW16 = 16 }; /* tokens of a larger batch that gemm_few16 or gemm_amx_few16 takes */
const struct gemm *gemm_few_for(enum cpu_level level, int n, int batch);
/* Whether this processor (and for AMX the kernel, asked by cpu_level_best) can run g. */
bool gemm_has(const struct gemm *g);

#pragma once
/* Picks the fastest of several bit-identical kernels by a measurement of about one millisecond at first use.
 * Instruction costs differ between CPUs with the same features, and CPUID does not tell.
 *
 * Noise may change the choice between runs, so it must affect speed only: all candidates give equal bits for every x
 * (kcheck_kernels compares them). Kernels with different bits are selected by flags that noise cannot flip
 * (probe.h): E4M3 through subnormal floats (CPU_F_SUBNORMAL), whose sums round differently below 2^-70 and, with AVX2,
 * have another order; also gemm_for and gemm_for_weights. */
#include "cpu/kernels.h"

enum { AUTOTUNE_E4M3_CANDIDATES = 3 };
/* Through FP16 conversion, table look-ups, affine bit maps: as many as this CPU supports. */
extern const struct format_kernels *const autotune_e4m3_candidates[AUTOTUNE_E4M3_CANDIDATES];
int autotune_e4m3_n_candidates(void);

/* E4M3 kernels at level avx512 on a CPU with VBMI; measured once, then fixed. */
const struct format_kernels *autotune_e4m3(void);
/* For --version --verbose: "E4M3 by affine bit maps (measured)"; empty if there is only one candidate. */
const char *autotune_describe(void);

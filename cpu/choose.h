#pragma once
/* Of kernels that give the same bits the fastest on this processor, by a measurement of a millisecond at first use: which instructions
 * cost what differs between processors that have them all, and no name says so.
 *
 * What was chosen may differ between two runs by noise, and nothing but the speed follows from it: only kernels with equal bits
 * for every x may stand side by side here (kcheck_kernels compares them). Where bits differ the choice follows from flags that no noise turns
 * over (probe.h): E4M3 by way of subnormal floats (CPU_F_SUBNORMAL), whose sums round differently below 2^-70 and with AVX2 have another order, and what
 * gemm_for and gemm_few_for say. */
#include "cpu/kernels.h"

enum { CHOOSE_E4M3 = 3 };
/* By conversion from FP16, by look-ups, by maps of bits: as many of them as this processor runs. */
extern const struct format_kernels *const choose_e4m3_of[CHOOSE_E4M3];
int choose_e4m3_count(void);

/* E4M3 at level avx512 on a processor with VBMI; measured once, then always the same. */
const struct format_kernels *choose_e4m3(void);
/* For --version --verbose: "E4M3 by maps of bits (measured)"; empty where there is nothing to choose. */
const char *choose_describe(void);

#pragma once
/* How fast the kernels run on this machine, each beside its limit measured in the same run: reading weights against a
 * plain streaming read, arithmetic against the FMA peak. Behind `hearth --bench kernels`. */
#include "cpu/ops.h"

struct bench_row {
    const char *kernel; /* "read", "fma", "gemv", "experts", "attention", "gemm" */
    const char *format; /* weights or KV: "F8_E4M3", ...; "" */
    const char *level;
    char shape[64];
    int threads, tokens;
    bool flops;   /* rate and limit in GFLOP/s; else GB/s (1e9 bytes) */
    double rate;  /* median of the rounds */
    double limit; /* median of the limit, measured between the rounds; 0 for the limits themselves */
    double share; /* median of rate / limit, round by round */
};
typedef void (*bench_fn)(void *ctx, const struct bench_row *row); /* called on the thread that called bench_kernels */

struct bench_options {
    enum cpu_level level;
    int threads;  /* 0: as pool_open */
    size_t bytes; /* of weights, several times the last-level cache; 0: 1 GiB, or a quarter of what is available */
    int rounds;   /* 0: 9 */
    const _Atomic int *cancel;
};
/* Returns 0, ERR_MEMORY, ERR_CANCELLED or ERR_RUNTIME. */
int bench_kernels(const struct bench_options *o, bench_fn fn, void *ctx, struct error *e);
/* The median of v [n], n > 0; v is left sorted. */
double bench_median(double *v, int n);

#pragma once
/* Measures kernel speed on this machine, each relative to its limit measured in the same run: weight reads against a
 * plain streaming read, arithmetic against FMA peak. Implements `hearth --bench kernels`. */
#include "cpu/cpu.h"

struct bench_row {
    const char *kernel; /* "read", "fma", "gemv", "experts", "attention", "gemm" */
    const char *format; /* weights or KV: "F8_E4M3", ...; or "" */
    const char *level;
    char shape[64];
    int threads, tokens;
    bool is_flops;      /* rate and limit in GFLOP/s; else GB/s (1e9 bytes) */
    double rate;        /* median over the rounds */
    double limit;       /* median of the limit, measured between the rounds; 0 in rows that are limits */
    double limit_share; /* median of rate / limit per round */
};
typedef void (*bench_fn)(void *ctx, const struct bench_row *row); /* called on the thread of kernel_bench_run() */

struct bench_options {
    enum cpu_level level;
    int threads;  /* 0: default of pool_open */
    size_t bytes; /* weight bytes, several times the last-level cache; 0: 1 GiB, or a quarter of available memory */
    int rounds;   /* 0: 9 */
    const _Atomic int *cancel;
};
/* Returns 0, ERR_MEMORY, ERR_CANCELLED or ERR_RUNTIME. */
int kernel_bench_run(const struct bench_options *o, bench_fn fn, void *ctx, struct error *e);
/* Returns the median of v [n], n > 0. Sorts v. */
double kernel_bench_median(double *v, int n);

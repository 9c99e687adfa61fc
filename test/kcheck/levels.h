#pragma once
/* Shared by the programs that check CPU operations: runs them at every level of this CPU, on 1, 2 and 5 threads. */
#include "cpu/cpu.h"
#include "cpu/pool.h"
#include "test/kcheck/processors.h"
#include "test/kcheck/random_mat.h"

enum { THREADS = 3 };
static const int thread_counts[THREADS] = {1, 2, 5};
static struct pool *pools[THREADS];
static struct exec *execs[THREADS];

static float *vec(size_t n) {
    float *v = guarded(n * 4);
    for (size_t i = 0; i < n; i++) v[i] = normal();
    return v;
}
/* n 32-bit values */
static __attribute__((unused)) bool equal(const void *a, const void *b, size_t n) { return !memcmp(a, b, n * 4); }
static __attribute__((unused)) double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* Runs cases() at each level with the same random state. Returns the exit status. */
static int each_level(uint64_t seed, void (*cases)(enum cpu_level l)) {
    struct error e = {0};
    printf("seed %llu\n", (unsigned long long)seed);
    for (int t = 0; t < THREADS; t++)
        if (pool_open(&pools[t], thread_counts[t], false, &e)) return printf("%s\n", e.text), 2;
    for (int l = first_level(); l < CPU_LEVELS; l++) {
        level = cpu_level_name((enum cpu_level)l);
        if (!cpu_level_has((enum cpu_level)l)) {
            printf("%-8s SKIPPED: this CPU lacks it\n", level);
            continue;
        }
        for (int t = 0; t < THREADS; t++)
            if (!(execs[t] = cpu_exec_open(pools[t], (enum cpu_level)l, &e))) return printf("%s\n", e.text), 2;
        int before = failures;
        state = seed;
        cases((enum cpu_level)l);
        printf("%-8s %s\n", level, failures > before ? "FAILED" : "ok");
        for (int t = 0; t < THREADS; t++) cpu_exec_close(&execs[t]);
    }
    for (int t = 0; t < THREADS; t++) pool_close(&pools[t]);
    printf("%d failures\n", failures);
    return failures != 0;
}

/* Measures this machine's limits and prints them as JSON: read bandwidth, and the rates of float32 FMA and vdpbf16ps.
 *   bench_limit [threads] [MiB to read] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minifloat.h"
#include "cpu/kernels.h"
#include "cpu/pool.h"
#include "cpu/probe.h"

enum { ROUNDS = 3, PEAK_LOOPS = 2 << 20 };

static struct kernels k;
static uint8_t *data;
static size_t part;
static int streams, ahead;
static _Atomic uint32_t keep; /* keeps the compiler from dropping results */

static void keep_result(float v) { atomic_fetch_xor(&keep, f32_bits(v)); }
static void read_thread(void *arg, int thread, int n) {
    keep_result(k.read(data + (size_t)thread * part, part, streams, ahead));
}
static void fma_thread(void *arg, int thread, int n) {
    float sink = 0;
    k.peak(PEAK_LOOPS, &sink);
    keep_result(sink);
}
static void bf16_thread(void *arg, int thread, int n) {
    float sink = 0;
    probe_bf16_peak(PEAK_LOOPS, &sink);
    keep_result(sink);
}

/* Best rate of some rounds, in 1e9 units of `work` a second. */
static double best_rate(struct pool *pool, pool_fn fn, double work) {
    double least = 0;
    for (int i = 0; i < ROUNDS; i++) {
        double begin = clock_now();
        pool_run(pool, fn, NULL);
        double took = clock_now() - begin;
        if (!i || took < least) least = took;
    }
    return work / least * 1e-9;
}

int main(int argc, char **argv) {
    static const int patterns[][2] = {{1, 0}, {1, 2048}, {4, 0}, {4, 1024}, {8, 0}}; /* as in --bench */
    struct error e = {0};
    struct pool *pool;
    const size_t bytes = (size_t)(argc > 2 ? atoi(argv[2]) : 1024) << 20;
    if (pool_open(&pool, argc > 1 ? atoi(argv[1]) : 0, true, &e))
        return fprintf(stderr, "bench_limit: %s\n", e.text), 1;
    const int n = pool_threads(pool);
    kernels_fill(&k, cpu_level_best());
    part = bytes / (size_t)n / 32768 * 32768;
    data = part ? mem_pages(bytes, MEM_HUGE) : NULL;
    if (!data) return fprintf(stderr, "bench_limit: no memory for %zu bytes, or too few for %d threads\n", bytes, n), 1;
    memset(data, 1, bytes);
    double read = 0;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        streams = patterns[i][0], ahead = patterns[i][1];
        const double r = best_rate(pool, read_thread, (double)part * n);
        if (r > read) read = r;
    }
    float sink = 0;
    const double fma = best_rate(pool, fma_thread, k.peak(1, &sink) * PEAK_LOOPS * n);
    const bool bf16 = cpu_flags() & CPU_F_BF16;
    printf("{\"threads\": %d, \"read_gbps\": %.2f, \"fma_gflops\": %.1f", n, read, fma);
    if (bf16)
        printf(", \"bf16_gflops\": %.1f", best_rate(pool, bf16_thread, probe_bf16_peak(1, &sink) * PEAK_LOOPS * n));
    printf("}\n");
    mem_pages_free(data, bytes);
    pool_close(&pool);
    return 0;
}

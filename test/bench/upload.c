/* Measures what an upload to a card takes from decoding: one CPU multiplies FP8 matrices by one token, each read from
 * memory once, while the other CPU reads other memory at a set rate, as a card's copies would. Compares with the cost
 * model's share of host memory (cost_cpu_share).
 *
 * usage: bench_upload [ROUNDS [MILLISECONDS]]      9 rounds of points of 100 ms. On a machine with other work: chrt -r
 * 10 bench_upload
 *
 * The second CPU is never idle: at the same rate it reads either memory or its cache, and the ratio of both is the
 * effect of memory alone. The two kinds alternate; ratios are medians over the rounds. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minifloat.h"
#include "cpu/kernel_bench.h"
#include "cpu/kernels.h"
#include "engine/placement/cost.h"

enum { ROWS = 2048, COLS = 7168, MAX_ROUNDS = 99, POINTS = 9 };
static const size_t memory_bytes = (size_t)1 << 30, cache_bytes = (size_t)256 << 10, chunk = (size_t)64 << 10;
static const double fastest = 1e12; /* bytes/s: without pauses */

static struct kernels k;
static uint8_t *weights, *other;
static float *scales, *x, *y;
static double seconds = 0.1;
static struct {
    _Atomic double rate; /* 0: paused */
    _Atomic bool is_cached, stop;
    _Atomic uint64_t bytes;
} reader;

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) perror("bench_upload: cannot pin a thread"), exit(1);
}
static void *read_forever(void *arg) {
    float sink = 0;
    pin(1);
    while (!reader.stop) {
        const double rate = reader.rate;
        double due = clock_now();
        if (!(rate > 0)) usleep(1000);
        for (size_t at = 0; reader.rate == rate && rate > 0;) {
            const size_t size = reader.is_cached ? cache_bytes : memory_bytes;
            if (at + chunk > size) at = 0;
            sink += k.read(other + at, chunk, 4, 0);
            at += chunk, reader.bytes += chunk;
            due += (double)chunk / rate;
            if (clock_now() > due + 1e-3) due = clock_now(); /* cannot keep up */
            while (clock_now() < due) __builtin_ia32_pause();
        }
    }
    y[ROWS] = sink;
    return arg;
}

/* Runs one point. Returns the bytes/s of products; *taken: those of the reader. */
static double run_point(double rate, bool is_cached, double *taken) {
    static size_t at;
    reader.is_cached = is_cached;
    reader.rate = rate;
    usleep(5000);
    const uint64_t before = reader.bytes;
    const double begin = clock_now();
    double now = begin;
    uint64_t done = 0;
    for (; now - begin < seconds; now = clock_now()) {
        const size_t bytes = (size_t)ROWS * COLS;
        if (at + bytes > memory_bytes) at = 0;
        struct mat w = {.data = weights + at,
                        .stride = COLS,
                        .rows = ROWS,
                        .cols = COLS,
                        .block_rows = 128,
                        .block_cols = 128,
                        .row_step = 1,
                        .dtype = DT_E4M3,
                        .scale_dtype = DT_F32,
                        .scale = scales,
                        .scale_stride = COLS / 128};
        kernels_gemv(&k, DT_E4M3, false)(&y, (const float *const *)&x, 1, &w);
        at += bytes, done += bytes;
    }
    *taken = (double)(reader.bytes - before) / (now - begin);
    reader.rate = 0;
    usleep(20000); /* a real-time thread must leave a twentieth of the time */
    return (double)done / (now - begin);
}

int main(int argc, char **argv) {
    static const double rates[POINTS] = {1e9, 2e9, 4e9, 8e9, 12e9, 16e9, 24e9, 32e9, fastest};
    static double with[POINTS][MAX_ROUNDS], without[POINTS][MAX_ROUNDS], taken[POINTS][MAX_ROUNDS],
        ratio[POINTS][MAX_ROUNDS];
    const int rounds = argc > 1 ? atoi(argv[1]) : 9;
    pthread_t thread;
    if (rounds < 1 || rounds > MAX_ROUNDS)
        return fprintf(stderr, "usage: bench_upload [ROUNDS (1 to %d) [MILLISECONDS]]\n", MAX_ROUNDS), 1;
    if (argc > 2) seconds = atof(argv[2]) * 1e-3;
    kernels_fill(&k, cpu_level_best());
    weights = mem_pages(memory_bytes, MEM_HUGE), other = mem_pages(memory_bytes, MEM_HUGE);
    scales = mem_alloc((size_t)ROWS / 128 * (COLS / 128) * 4), x = mem_alloc(COLS * 4), y = mem_alloc((ROWS + 1) * 4);
    if (!weights || !other || !scales || !x || !y)
        return fprintf(stderr, "bench_upload: no memory for %zu bytes\n", 2 * memory_bytes), 1;
    for (size_t i = 0; i < memory_bytes; i++) weights[i] = (uint8_t)(0x30 + i * 37 % 16);
    memset(other, 1, memory_bytes);
    for (int i = 0; i < ROWS / 128 * (COLS / 128); i++) scales[i] = 0.01f;
    for (int i = 0; i < COLS; i++) x[i] = (float)(i % 7 - 3);
    pin(0);
    if (pthread_create(&thread, NULL, read_forever, NULL)) return fprintf(stderr, "bench_upload: no thread\n"), 1;
    for (int r = 0; r < rounds; r++)
        for (int p = 0; p < POINTS; p++) {
            double ignored;
            const bool first = (r + p) % 2;
            if (first) without[p][r] = run_point(rates[p], true, &ignored);
            with[p][r] = run_point(rates[p], false, &taken[p][r]);
            if (!first) without[p][r] = run_point(rates[p], true, &ignored);
            ratio[p][r] = with[p][r] / without[p][r];
        }
    reader.stop = true;
    pthread_join(thread, NULL);
    struct cost_machine m = {0};
    double alone = 0;
    for (int p = 0; p < POINTS; p++) {
        const double a = kernel_bench_median(with[p], rounds), t = kernel_bench_median(taken[p], rounds),
                     c = kernel_bench_median(without[p], rounds);
        if (a + t > m.dram_bw) m.dram_bw = a + t;
        if (c > alone) alone = c;
    }
    printf("products alone %.1f GB/s, most of both together %.1f GB/s; %d rounds of %.0f ms\n\n", alone * 1e-9,
           m.dram_bw * 1e-9, rounds, seconds * 1e3);
    printf("| reader, GB/s | products beside it, GB/s | share kept | cost model | off | if only the sum were limited "
           "|\n|---|---|---|---|---|---|\n");
    for (int p = 0; p < POINTS; p++) {
        const double t = kernel_bench_median(taken[p], rounds), share = kernel_bench_median(ratio[p], rounds),
                     model = cost_cpu_share(&m, t), sum = (m.dram_bw - t) / alone < 1 ? (m.dram_bw - t) / alone : 1;
        printf("| %.1f | %.1f | %.2f | %.2f | %+.0f %% | %.2f |\n", t * 1e-9,
               kernel_bench_median(with[p], rounds) * 1e-9, share, model, 100 * (model / share - 1), sum);
    }
    return 0;
}

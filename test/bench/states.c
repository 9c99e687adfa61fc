/* Steps of recurrent states on the CPU, as paged batches make them:
 *
 *     bench_states [threads] [rounds]
 *
 * A token of each of many sessions, whose states lie in memory, two rows in turn, as GB/s of states (each is read and
 * written) beside a plain read of the same memory in the same round; and the tokens of one prompt, one after another,
 * as GFLOP/s beside the peak of float32 FMA. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minifloat.h"
#include "cpu/cpu.h"
#include "cpu/kernels.h"
#include "cpu/pool.h"

/* Qwen3-Next and Qwen3.5: 16 key heads, 32 value heads of 128 by 128 */
enum {
    K_HEADS = 16,
    V_HEADS = 32,
    DIM = 128,
    VALUES = V_HEADS * DIM,
    CHANNELS = 2 * K_HEADS * DIM + VALUES,
    STATE = V_HEADS * DIM * DIM,
    SESSIONS = 256,
    ROWS = 512,
    ROUNDS_MOST = 32,
    PEAK_LOOPS = 1 << 20
};
static const double FLOPS = 6.0 * STATE; /* of a token: two products with the state and its update */

static struct kernels kernels;
static float *states, *in, *gates, *out; /* [SESSIONS, 2, STATE], [ROWS, CHANNELS], [ROWS, 2 * V_HEADS], [ROWS, VALUES]
                                          */
static float rate[V_HEADS], dt[V_HEADS];
static _Atomic uint32_t keep; /* keeps the compiler from dropping results */

static void read_thread(void *arg, int thread, int n) {
    const size_t bytes = (size_t)SESSIONS * 2 * STATE * sizeof *states / (size_t)n / 4096 * 4096;
    atomic_fetch_xor(&keep, f32_bits(kernels.read((uint8_t *)states + (size_t)thread * bytes, bytes, 4, 1024)));
}
static void fma_thread(void *arg, int thread, int n) {
    float sink = 0;
    kernels.peak(PEAK_LOOPS, &sink);
    atomic_fetch_xor(&keep, f32_bits(sink));
}
static double seconds(struct pool *pool, pool_fn fn) {
    const double begin = clock_now();
    pool_run(pool, fn, NULL);
    return clock_now() - begin;
}
/* Advances a session's state from one of its rows to the other by n tokens. */
static void advance(struct exec *x, int session, int from, int n) {
    float *at = states + (size_t)session * 2 * STATE;
    const struct op_delta o = {.out = out,
                               .q = in,
                               .k = in + K_HEADS * DIM,
                               .v = in + 2 * K_HEADS * DIM,
                               .b = gates,
                               .a = gates + V_HEADS,
                               .rate = rate,
                               .dt = dt,
                               .before = at + (size_t)from * STATE,
                               .after = at + (size_t)!from * STATE,
                               .n = n,
                               .k_heads = K_HEADS,
                               .v_heads = V_HEADS,
                               .k_dim = DIM,
                               .v_dim = DIM,
                               .ldx = CHANNELS,
                               .ldg = 2 * V_HEADS,
                               .ldo = VALUES};
    if (x->ops->delta(x, &o)) exit(1);
}
static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_size);
    return v[n / 2];
}

int main(int argc, char **argv) {
    struct error e = {0};
    struct pool *pool;
    int rounds = argc > 2 ? atoi(argv[2]) : 5;
    rounds = rounds < 1 ? 1 : rounds > ROUNDS_MOST ? ROUNDS_MOST : rounds;
    if (pool_open(&pool, argc > 1 ? atoi(argv[1]) : 0, true, &e))
        return fprintf(stderr, "bench_states: %s\n", e.text), 1;
    const enum cpu_level best = cpu_level_best();
    const size_t bytes = (size_t)SESSIONS * 2 * STATE * sizeof *states;
    states = mem_pages(bytes, MEM_HUGE);
    in = mem_calloc(ROWS * CHANNELS, sizeof *in), gates = mem_calloc(ROWS * 2 * V_HEADS, sizeof *gates),
    out = mem_calloc(ROWS * VALUES, sizeof *out);
    if (!states || !in || !gates || !out) return fprintf(stderr, "bench_states: no memory\n"), 1;
    for (size_t i = 0; i < (size_t)SESSIONS * 2 * STATE; i++) states[i] = 1e-3f * (float)(i % 101);
    for (int i = 0; i < ROWS * CHANNELS; i++) in[i] = 0.1f * (float)(i % 17 - 8);
    kernels_fill(&kernels, best);
    for (enum cpu_level level = CPU_SCALAR + 1; level <= best; level++) {
        struct exec *x = cpu_level_has(level) ? cpu_exec_open(pool, level, &e) : NULL;
        double gbps[ROUNDS_MOST], share[ROUNDS_MOST], gflops[ROUNDS_MOST], of_peak[ROUNDS_MOST];
        float sink = 0;
        for (int r = 0; x && r < rounds; r++) {
            const double read = (double)bytes / seconds(pool, read_thread);
            double begin = clock_now();
            for (int i = 0; i < SESSIONS; i++) advance(x, i, r % 2, 1);
            gbps[r] = (double)bytes / (clock_now() - begin);
            share[r] = gbps[r] / read;
            const double peak = kernels.peak(1, &sink) * PEAK_LOOPS * pool_threads(pool) / seconds(pool, fma_thread);
            begin = clock_now();
            advance(x, 0, 0, ROWS);
            gflops[r] = FLOPS * ROWS / (clock_now() - begin);
            of_peak[r] = gflops[r] / peak;
        }
        if (x)
            printf("%-10s %d sessions: %.1f GB/s, %.2f of a plain read; a prompt: %.1f GFLOP/s, %.2f of the FMA peak\n",
                   cpu_level_name(level), SESSIONS, 1e-9 * median(gbps, rounds), median(share, rounds),
                   1e-9 * median(gflops, rounds), median(of_peak, rounds));
        if (x) cpu_exec_close(&x);
    }
    mem_pages_free(states, bytes);
    mem_free(in), mem_free(gates), mem_free(out);
    pool_close(&pool);
    return 0;
}

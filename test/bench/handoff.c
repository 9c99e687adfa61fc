/* Measures what threads pay to work together, for each number of threads that has a CPU of its own, and with twice as
 * many threads as CPUs: an empty pool_run, one after a gap that the caller waits for as for a device's part of a layer,
 * an empty pool_share, a task, a cache line handed from one core to another, and an atomic decrement that all threads
 * contend for. bench_handoff [rounds] bench_handoff model THREADS NODES CALLS MS [LINE]     predicts a token of CALLS
 * pool_run calls that takes MS of reading, from the same measurements, or with LINE ns for a line handed over
 *
 * The model (modelled, not measured) assumes: memory bandwidth grows with the nodes, and shares of a call are equal;
 * cores share a last-level cache in groups of NEAR; a line takes a quarter as long within a group as between groups,
 * and twice as long between nodes, as published for EPYC 7003 to 9005 (25, 100 and 200 ns; a measured line of over
 * FAR_NS is one between groups). A call publishes a line that one core of each group fetches, a quarter of a transfer
 * apart, and the others get from it. The caller writes a cursor for each thread, and a thread that finds no task of its
 * own looks at all the others' (cpu_exec_next_task): each a line, OVERLAP of them in flight. Then each thread
 * decrements one counter, which needs the line alone: all at once (worst), or each while others still work, so that
 * only the last one counts (best). Grouped: the worst case with a counter a group. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cpu/cpu_exec.h"
#include "cpu/kernel_bench.h"

enum { MAX_ROUNDS = 999, CALLS = 200, GAPS = 20, TURNS = 20000, TASKS = 4096, NEAR = 8, FAR_NS = 60, OVERLAP = 8 };
/* DeepSeek-V3's layer takes 195 to 356 us on a device (first-light-predictions.md) */
static const double GAP_S = 300e-6;

struct costs { /* nanoseconds */
    double run, after_gap, share, task, line, decrement;
};

static _Alignas(64) _Atomic int ball;
static _Alignas(64) _Atomic int contended;

static void nothing(void *arg, int thread, int n) {}
static void no_task(void *arg, int task, int thread) {}
/* Threads 0 and 1 pass a number back and forth. */
static void ping_pong(void *arg, int thread, int n) {
    if (thread > 1) return;
    for (int i = 0; i < TURNS; i++) {
        while (atomic_load_explicit(&ball, memory_order_acquire) != 2 * i + thread) {
        }
        atomic_store_explicit(&ball, 2 * i + thread + 1, memory_order_release);
    }
}
static void decrement(void *arg, int thread, int n) {
    for (int i = 0; i < TURNS; i++) atomic_fetch_sub(&contended, 1);
}

/* Median of the rounds, in ns per `times`. */
static double median_of(struct pool *p, pool_fn fn, void *arg, double times, int rounds) {
    double took[MAX_ROUNDS];
    for (int r = 0; r < rounds; r++) {
        atomic_store(&ball, 0);
        double begin = clock_now();
        pool_run(p, fn, arg);
        took[r] = (clock_now() - begin) / times * 1e9;
    }
    return kernel_bench_median(took, rounds);
}

static int measure(int threads, int rounds, struct costs *c) {
    struct error e = {0};
    struct pool *p;
    double took[MAX_ROUNDS];
    if (pool_open(&p, threads, true, &e)) return fprintf(stderr, "bench_handoff: %s\n", e.text), 1;
    struct exec *x = cpu_exec_open(p, cpu_level_best(), &e);
    if (!x) return fprintf(stderr, "bench_handoff: %s\n", e.text), 1;
    for (int r = 0; r < rounds; r++) {
        double begin = clock_now();
        for (int i = 0; i < CALLS; i++) pool_run(p, nothing, NULL);
        took[r] = (clock_now() - begin) / CALLS * 1e9;
    }
    c->run = kernel_bench_median(took, rounds);
    for (int r = 0; r < rounds; r++) {
        double sum = 0;
        for (int i = 0; i < GAPS; i++) {
            double begin = clock_now();
            while (clock_now() - begin < GAP_S) {
            }
            begin = clock_now();
            pool_run(p, nothing, NULL);
            sum += clock_now() - begin;
        }
        took[r] = sum / GAPS * 1e9;
    }
    c->after_gap = kernel_bench_median(took, rounds);
    for (int r = 0; r < rounds; r++) {
        double begin = clock_now();
        for (int i = 0; i < CALLS; i++) pool_share(p, nothing, NULL);
        took[r] = (clock_now() - begin) / CALLS * 1e9;
    }
    c->share = kernel_bench_median(took, rounds);
    for (int r = 0; r < rounds; r++) {
        double begin = clock_now();
        cpu_exec_for_each((struct cpu_exec *)x, TASKS * threads, no_task, NULL);
        took[r] = (clock_now() - begin) / TASKS * 1e9;
    }
    c->task = kernel_bench_median(took, rounds);
    c->line = threads > 1 ? median_of(p, ping_pong, NULL, 2 * TURNS, rounds) : 0;
    c->decrement = median_of(p, decrement, NULL, (double)TURNS * threads, rounds);
    cpu_exec_close(&x);
    pool_close(&p);
    return 0;
}

static void model(const struct costs *c, int threads, int nodes, int calls, double ms) {
    const double far = c->line > FAR_NS ? c->line : 4 * c->line, near = far / 4, socket = nodes > 1 ? 2 * far : far;
    const int groups = (threads + NEAR - 1) / NEAR, node = (threads + nodes - 1) / nodes, away = threads - node;
    const double average = (far * (node - 1) + socket * away) / (threads - 1),
                 cursors = 2 * (threads - 1) * average / OVERLAP;
    const double publish = socket + (groups - 1) * near + near + cursors, join = (node - 1) * far + away * socket;
    const double grouped = (NEAR - 1) * near + (groups / nodes - 1) * far + (groups - groups / nodes) * socket;
    const double cost[] = {publish + socket, publish + join, publish + grouped}; /* of a call, ns */
    static const char *const name[] = {"best", "worst", "worst, grouped"};
    printf("modelled, not measured: %d threads on %d nodes, a line between groups %.0f ns, %d calls a token, %.2f ms "
           "of reading; cursors %.1f us a call:\n",
           threads, nodes, far, calls, ms, cursors * 1e-3);
    for (int i = 0; i < 3; i++)
        printf("  %-14s %5.1f us a call, %6.2f ms a token, efficiency %.2f\n", name[i], cost[i] * 1e-3,
               ms + calls * cost[i] * 1e-6, ms / (ms + calls * cost[i] * 1e-6));
}

int main(int argc, char **argv) {
    cpu_set_t mask;
    const bool models = argc >= 6 && argc <= 7 && !strcmp(argv[1], "model");
    const int rounds = !models && argc > 1 && atoi(argv[1]) > 0 && atoi(argv[1]) < MAX_ROUNDS ? atoi(argv[1]) : 51;
    if (sched_getaffinity(0, sizeof mask, &mask)) return perror("bench_handoff"), 1;
    if (models && (CPU_COUNT(&mask) < 2 || atoi(argv[2]) < 2 || atoi(argv[3]) < 1 || atoi(argv[3]) > atoi(argv[2]) ||
                   atoi(argv[4]) < 1 || atof(argv[5]) <= 0))
        return fprintf(stderr, "bench_handoff: the model needs 2 CPUs here, 2 threads or more, and positive numbers\n"),
               2;
    struct costs c;
    for (int k = 0, cpus = CPU_COUNT(&mask); k <= cpus; k++) {
        const int n = k ? k : 2 * cpus; /* the last one is for the model */
        if (measure(n, rounds, &c)) return 1;
        printf(
            "%3d threads: pool_run %7.0f ns, after a gap %7.0f ns, pool_share %6.0f ns, a task %5.1f ns, a line handed "
            "over %5.1f ns, a contended decrement "
            "%5.1f ns\n",
            n, c.run, c.after_gap, c.share, c.task, c.line, c.decrement);
    }
    if (models && argc > 6 && atof(argv[6]) > 0) c.line = atof(argv[6]);
    if (models) model(&c, atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), atof(argv[5]));
    return 0;
}

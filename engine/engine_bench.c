/* CPU benchmarks for --bench: kernel throughput, and the read bandwidth that limits decode. */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minifloat.h"
#include "base/test_limits.h"
#include "cpu/kernel_bench.h"
#include "cpu/kernels.h"
#include "engine/session/engine_state.h"
#include "engine/session/engine_tasks.h"

struct rows {
    int (*fn)(void *ctx, const char *json_row);
    void *ctx;
    _Atomic int stop;
};

static void on_row(void *ctx, const struct bench_row *r) {
    struct rows *to = ctx;
    struct buf b = {0};
    const char *unit = r->is_flops ? "gflops" : "gbps";
    buf_fmt(&b,
            "{\"kernel\":\"%s\",\"format\":\"%s\",\"level\":\"%s\",\"shape\":\"%s\",\"threads\":%d,\"tokens\":%d,\"%"
            "s\":%.2f",
            r->kernel, r->format, r->level, r->shape, r->threads, r->tokens, unit, r->rate);
    if (r->limit > 0) buf_fmt(&b, ",\"limit\":%.2f,\"share\":%.3f", r->limit, r->limit_share);
    buf_str(&b, "}");
    if (b.failed || to->fn(to->ctx, b.data)) atomic_store(&to->stop, 1);
    buf_free(&b);
}

int engine_bench_kernels(int threads, int (*fn)(void *ctx, const char *json_row), void *ctx, struct error *e) {
    struct rows to = {.fn = fn, .ctx = ctx};
    enum cpu_level best = cpu_level_best();
    for (int l = CPU_LEVELS; l-- > 0;) { /* best level first, with the most rounds */
        if (!cpu_level_has((enum cpu_level)l)) continue;
        struct bench_options o = {
            .level = (enum cpu_level)l, .threads = threads, .cancel = &to.stop, .rounds = l == (int)best ? 7 : 3};
        if (l == CPU_SCALAR) o.bytes = (size_t)64 << 20; /* compute-bound, so less data suffices */
        int rc = kernel_bench_run(&o, on_row, &to, e);
        if (rc) return rc;
    }
    return 0;
}

/* --- The limit of decode: a streaming read of much more than the caches hold ------------------ */

struct reading {
    struct pool *pool;
    const struct kernels *k;
    const uint8_t *data;
    size_t part;
    int streams, ahead;
    double seconds;
    _Atomic uint32_t keep; /* keeps the compiler from dropping the reads */
};
static void read_share(void *arg, int thread, int n) {
    struct reading *r = arg;
    atomic_fetch_xor(&r->keep, f32_bits(r->k->read(r->data + (size_t)thread * r->part, r->part, r->streams, r->ahead)));
}

/* On the engine thread, which owns the pool. */
static int run_read(void *arg) {
    struct reading *r = arg;
    double begin = clock_now();
    pool_run(r->pool, read_share, r);
    r->seconds = clock_now() - begin;
    return 0;
}

double engine_read_bandwidth(struct engine *eng, int rounds) {
    static const int patterns[][2] = {{1, 0}, {1, 2048}, {4, 0}, {4, 1024}, {8, 0}};
    int n = pool_threads(eng->pool);
    size_t size = test_limits_get(TEST_LIMIT_BANDWIDTH_BYTES, (size_t)1 << 30), have = mem_available();
    if (have && size > have / 4) size = have / 4;
    struct kernels k;
    kernels_fill(&k, cpu_level_best());
    struct reading r = {.pool = eng->pool, .k = &k, .part = size / (size_t)n / 4096 * 4096};
    uint8_t *data = mem_pages(size, MEM_HUGE);
    if (!data) return 0;
    memset(data, 1, size);
    r.data = data;
    double best = 0;
    for (int round = 0; round < rounds; round++)
        for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
            r.streams = patterns[i][0], r.ahead = patterns[i][1];
            engine_run_on_thread(eng, run_read, &r);
            double rate = (double)r.part * n / r.seconds;
            if (rate > best) best = rate;
        }
    mem_pages_free(data, size);
    return best;
}

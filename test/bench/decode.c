/* Measures where the time of a decoded token goes: decode batches alternate with plain memory reads, and a table of
 * operations wraps the CPU's and times each. bench_decode <checkpoint> [threads] [positions before] [sessions] [steps]
 * [level] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minifloat.h"
#include "cpu/kernel_bench.h"
#include "cpu/kernels.h"
#include "engine/layer/kv_planes.h"
#include "engine/session/engine_state.h"

enum { SESSIONS = 16, MAX_STEPS = 999 };

/* --- Timed operations ------------------------------------------------------------------------- */

enum { EMBED, NORM, LINEAR, ROPE, KV_STORE, ATTENTION, ROUTE, EXPERTS, SMALL, HEAD, KINDS };
static const char *const kind_name[KINDS] = {"embed",     "norm",  "linear",  "rope",  "kv store",
                                             "attention", "route", "experts", "other", "head"};
static struct {
    double time[MAX_STEPS], bytes; /* seconds of each step; bytes and calls of all */
    long calls;
} kinds[KINDS];
static int at_step; /* index of time */
static const struct ops *inner;
static int vocab;

static void count(int kind, double begin, double bytes) {
    kinds[kind].time[at_step] += clock_now() - begin;
    kinds[kind].bytes += bytes;
    kinds[kind].calls++;
}
#define WRAP(op, kind) \
    static int on_##op(struct exec *x, const struct op_##op *o) { \
        double t = clock_now(); \
        int rc = inner->op(x, o); \
        count(kind, t, 0); \
        return rc; \
    }
// clang-format off
WRAP(embed, EMBED) WRAP(norm, NORM) WRAP(rope_table, ROPE) WRAP(rope, ROPE) WRAP(kv_store, KV_STORE) WRAP(kv_load, SMALL) WRAP(attention, ATTENTION)
WRAP(route, ROUTE) WRAP(add, SMALL) WRAP(sigmoid, SMALL) WRAP(clip, SMALL) WRAP(copy, SMALL) WRAP(merge, ATTENTION) WRAP(gate, SMALL)
WRAP(conv, ATTENTION) WRAP(delta, ATTENTION) WRAP(select, ATTENTION) WRAP(compress, ATTENTION) WRAP(spread, SMALL) WRAP(mix, SMALL)
    // clang-format on
    static int on_linear(struct exec *x, const struct op_linear *o) {
    double t = clock_now();
    int rc = inner->linear(x, o);
    count(o->w.rows == vocab ? HEAD : LINEAR, t, (double)mat_bytes(&o->w) * (o->batch > 1 ? o->batch : 1));
    return rc;
}
static int on_experts(struct exec *x, const struct op_experts *o) {
    double t = clock_now(), bytes = 0;
    int rc = inner->experts(x, o);
    for (int i = 0; i < o->n * o->topk && o->ids; i++) {
        bool again = false;
        for (int j = 0; j < i; j++) again |= o->ids[i] == o->ids[j];
        const struct expert *e = &o->experts[o->ids[i]];
        if (!again) bytes += (double)(mat_bytes(&e->gate) + mat_bytes(&e->up) + mat_bytes(&e->down));
    }
    if (o->shared)
        bytes += (double)(mat_bytes(&o->shared->gate) + mat_bytes(&o->shared->up) + mat_bytes(&o->shared->down));
    count(EXPERTS, t, bytes);
    return rc;
}
static struct ops outer = {.name = "counted",
                           .embed = on_embed,
                           .norm = on_norm,
                           .linear = on_linear,
                           .rope_table = on_rope_table,
                           .rope = on_rope,
                           .kv_store = on_kv_store,
                           .kv_load = on_kv_load,
                           .attention = on_attention,
                           .route = on_route,
                           .experts = on_experts,
                           .add = on_add,
                           .sigmoid = on_sigmoid,
                           .clip = on_clip,
                           .copy = on_copy,
                           .merge = on_merge,
                           .gate = on_gate,
                           .conv = on_conv,
                           .delta = on_delta,
                           .select = on_select,
                           .compress = on_compress,
                           .spread = on_spread,
                           .mix = on_mix};

/* --- The limit -------------------------------------------------------------------------------- */

static uint8_t *data;
static size_t part;
static struct kernels k;
static _Atomic uint32_t keep;
static void read_part(void *arg, int thread, int n) {
    atomic_fetch_xor(&keep, f32_bits(k.read(data + (size_t)thread * part, part, 4, 1024)));
}
static double read_once(struct pool *p) {
    double t = clock_now();
    pool_run(p, read_part, NULL);
    return (double)part * pool_threads(p) / (clock_now() - t);
}

static int fail(const struct error *e) { return fprintf(stderr, "%s\n", e->text), 1; }

int main(int argc, char **argv) {
    if (argc < 2)
        return fprintf(stderr,
                       "usage: bench_decode <checkpoint> [threads] [positions before] [sessions] [steps] [level]\n"),
               2;
    int arg[5] = {0, 16, 1, 40, CPU_LEVELS};
    for (int i = 2; i < argc && i < 7; i++) arg[i - 2] = atoi(argv[i]);
    int n = arg[2], steps = arg[3] < MAX_STEPS ? arg[3] : MAX_STEPS;
    struct error e = {0};
    struct engine *engine;
    if (n < 1 || n > SESSIONS ||
        engine_open(&engine,
                    &(struct engine_params){.dir = argv[1],
                                            .threads = arg[0],
                                            .context = arg[1] + steps + 2,
                                            .cpu_level = arg[4] < CPU_LEVELS ? arg[4] + 1 : 0},
                    &e))
        return fail(&e);
    struct runtime *m = &engine->machine;
    struct config *c = &engine->weights.config;
    struct kv kv[SESSIONS];
    struct decode_span spans[SESSIONS];
    int32_t tokens[SESSIONS];
    vocab = c->vocab;
    for (int s = 0; s < n; s++) {
        /* room for more, so that planes can have large pages, as those of sessions */
        if (kv_open(&kv[s], c, kv_planes, arg[1] + steps + 8192, DT_BF16, &e) || kv_commit(&kv[s], arg[1], &e))
            return fail(&e);
        for (int l = 0; l < c->n_layers; l++) { /* the content does not matter, but the rows must exist */
            struct cache_desc d[CACHE_PLANES];
            for (int p = kv_planes(c, l, d); p-- > 0;)
                memset(kv[s].layer[l].p[p].data, 0x3c, kv_row_range_of(&kv[s].layer[l].p[p], 0, arg[1]).bytes);
        }
        spans[s] = (struct decode_span){.kv = &kv[s], .tokens = &tokens[s], .n = 1};
    }
    kernels_fill(&k, cpu_level_best());
    part = ((size_t)256 << 20) / (size_t)pool_threads(engine->pool) / 32768 * 32768;
    data = mem_pages(part * (size_t)pool_threads(engine->pool) + 4096, MEM_HUGE);
    memset(data, 1, part * (size_t)pool_threads(engine->pool) + 4096);
    inner = m->cpu->ops;

    double share[MAX_STEPS], time[MAX_STEPS], limit[MAX_STEPS];
    int warm = steps, got = 0;
    for (int i = 0; i < warm + steps; i++) { /* the first round only reads experts into memory */
        for (int s = 0; s < n; s++)
            tokens[s] = (i % steps * 7919 + s * 104729 + 13) % c->vocab, spans[s].pos = arg[1] + i % steps;
        if (i == warm) memset(kinds, 0, sizeof kinds), m->cpu->ops = &outer;
        at_step = got;
        double before = i >= warm ? read_once(engine->pool) : 0, bytes = (double)atomic_load(&m->bytes_read),
               t = clock_now();
        if (decode_run(m->decode, DECODE_CPU, spans, n, NULL, &e)) return fail(&e);
        t = clock_now() - t;
        if (i < warm) continue;
        bytes = (double)atomic_load(&m->bytes_read) - bytes;
        double after = read_once(engine->pool), bound = bytes / ((before + after) / 2);
        time[got] = t, limit[got] = (before + after) / 2, share[got++] = bound / t;
    }
    printf("%d threads, %s, %d sessions, %d positions before: %.2f ms a step, %.1f tok/s; read %.1f GB/s beside it; "
           "%.2f of the bandwidth bound\n",
           pool_threads(engine->pool), inner->name, n, arg[1], kernel_bench_median(time, got) * 1e3,
           n / kernel_bench_median(time, got), kernel_bench_median(limit, got) * 1e-9, kernel_bench_median(share, got));
    const double whole = kernel_bench_median(time, got);
    for (int i = 0; i < KINDS; i++) { /* medians of steps: other programs' slices are left out */
        if (!kinds[i].calls) continue;
        const double t = kernel_bench_median(kinds[i].time, got);
        printf("  %-10s %4ld calls  %7.3f ms  %5.1f %%", kind_name[i], kinds[i].calls / got, t * 1e3, 100 * t / whole);
        if (kinds[i].bytes > 0) printf("  %6.1f GB/s", kinds[i].bytes / got / t * 1e-9);
        printf("\n");
    }
    return 0;
}

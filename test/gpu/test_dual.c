/* Dual batch overlaps: one micro-batch's attention runs on a device while the CPU computes the other's experts. In
 * slowed time: the emulated device's attention speed is set so that a token's attention blocks take as long as its
 * experts take on this machine, which a first run measures. Compares dual batch with one session, and with six that
 * take turns on the device; and, from the trace, measures for how much of the device's busy time the CPU was busy too.
 * Other processes only ever make a batch longer, so the shortest of many counts. Also: a cancel in the middle of slow
 * batches. usage: test_dual [cancel]    the built-in model; cancel: only the cancels */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/ember/ember.h"
#include "engine/layer/kv_planes.h"
#include "engine/session/engine_state.h"
#include "engine/transfer/trace.h"
#include "engine/weights/weights_open.h"
#include "test/env.h"

enum { SESSIONS = 6, LAYERS = 13, KEYS = 96, ROUNDS = 12, ATTEMPTS = 12 };

static int failures;
#define CHECK(c, ...) \
    do { \
        if (!(c)) failures++, printf("FAIL: " __VA_ARGS__), printf("\n"), fflush(stdout); \
    } while (0)
static void die(const char *what, const struct error *e) {
    printf("FAIL %s: %s\n", what, e->text);
    exit(1);
}

/* The model's layers repeated, to test the steady state. With five layers, of which one has no experts, filling and
 * draining takes a fifth of the time. */
static struct bench {
    struct weights w;
    struct layer *own, many[LAYERS];
    struct pool *pool;
    struct runtime m;
    struct kv kv[SESSIONS];
} b;

static void open_model(void) {
    struct error err = {0};
    if (weights_open(&b.w, "ember:", false, &err)) die("model", &err);
    struct config *c = &b.w.config;
    b.own = b.w.layers;
    for (int l = 0; l < LAYERS; l++) {
        int from = l ? 1 + (l - 1) % (c->n_layers - 1) : 0;
        b.many[l] = b.own[from];
        c->layer[l] = c->layer[from];
    }
    c->n_layers = LAYERS;
    b.w.layers = b.many;
    b.m.w = &b.w;
    if (pool_open(&b.pool, 1, false, &err) || !(b.m.cpu = cpu_exec_open(b.pool, CPU_SCALAR, &err)) ||
        weight_state_open(&b.m.weight_state, c, &err))
        die("processor", &err);
    b.m.scan = (struct nan_scan){&b.w, b.pool, &b.m.weight_state};
    b.m.expert_touched = mem_calloc((size_t)c->n_experts + 1, 1);
    b.m.expert_cache.request = BUDGET_OFF; /* all experts on the CPU, so that it is known what overlaps */
}
static void close_model(void) {
    cpu_exec_close(&b.m.cpu);
    pool_close(&b.pool);
    weight_state_close(&b.m.weight_state);
    mem_free(b.m.expert_touched);
    b.w.layers = b.own;
    weights_close(&b.w);
}

static void open_bench(double attn) { /* TFLOP/s of attention */
    struct error err = {0};
    char gpus[64];
    _Atomic int never = 0;
    snprintf(gpus, sizeof gpus, "emu:1,attn=%.9g", attn);
    if (gpu_set_open(&b.m.gpus, gpus, &err) || decode_open(&b.m.decode, &b.m, DT_F32, &err)) die("open", &err);
    for (int i = 0; i < SESSIONS; i++) {
        int32_t tokens[KEYS];
        if (kv_open(&b.kv[i], &b.w.config, kv_planes, 256, DT_F32, &err)) die("session", &err);
        for (int k = 0; k < KEYS; k++) tokens[k] = (k * 37 + i * 11) % 500;
        for (int at = 0; at < KEYS; at += DECODE_MAX_ROWS)
            if (decode_run(
                    b.m.decode, DECODE_CPU,
                    &(struct decode_span){.kv = &b.kv[i], .tokens = tokens + at, .pos = at, .n = DECODE_MAX_ROWS}, 1,
                    &never, &err))
                die("keys", &err);
    }
}
static void close_bench(void) {
    for (int i = 0; i < SESSIONS; i++) decode_forget(b.m.decode, &b.kv[i]);
    decode_close(&b.m.decode);
    gpu_set_close(&b.m.gpus);
    for (int i = 0; i < SESSIONS; i++) kv_close(&b.kv[i]);
}

struct times {
    double wall, device, processor, share; /* seconds; fraction of the device's time that overlaps the CPU's */
};
static struct times step(int n, enum exec_mode cut) {
    struct decode_span spans[SESSIONS];
    struct error err = {0};
    _Atomic int never = 0;
    int32_t token[SESSIONS];
    struct trace *t = trace_open();
    trace_align_clock(t, b.m.gpus->gpu[0]);
    for (int i = 0; i < n; i++)
        token[i] = 40 + i, spans[i] = (struct decode_span){.kv = &b.kv[i], .tokens = &token[i], .pos = KEYS, .n = 1};
    b.m.trace = t;
    double begin = clock_now();
    if (decode_run(b.m.decode, cut, spans, n, &never, &err)) die("step", &err);
    struct times x = {.wall = clock_now() - begin,
                      .device = trace_busy(t, 0, LANE_COMPUTE),
                      .processor = trace_busy(t, TRACE_CPU, LANE_COMPUTE)};
    if (decode_last_exec(b.m.decode) != cut) die("step", &(struct error){.text = "it ran otherwise"});
    x.share = trace_overlap(t, 0, LANE_COMPUTE, TRACE_CPU, LANE_COMPUTE) / x.device;
    b.m.trace = NULL;
    trace_close(&t);
    return x;
}
static void better(struct times *best, struct times x) {
    best->wall = !best->wall || x.wall < best->wall ? x.wall : best->wall;
    best->device = !best->device || x.device < best->device ? x.device : best->device;
    best->processor = !best->processor || x.processor < best->processor ? x.processor : best->processor;
    best->share = x.share > best->share ? x.share : best->share;
}

/* finds the attention speed at which two micro-batches' attention takes as long as their experts */
static double match(int n) {
    double attn = 6e-4;
    for (int i = 0; i < 2; i++) {
        struct times one = {0};
        open_bench(attn);
        for (int k = 0; k < ROUNDS; k++) better(&one, step(n, DECODE_DUAL));
        close_bench();
        printf("%d sessions, attn=%.3g: device %.2f ms, processor %.2f ms of %.2f ms\n", n, attn, one.device * 1e3,
               one.processor * 1e3, one.wall * 1e3);
        attn *= one.device / one.processor;
    }
    return attn;
}

/* n sessions in two micro-batches against `other` sessions that take turns on the device; the ratio of their
 * throughputs. */
static void overlap(int n, int other, double least) {
    double best = 0, share = 0, alone = 1;
    for (int attempt = 0; attempt < ATTEMPTS && (best < least || share < 0.6 || alone > 0.1); attempt++) {
        struct times dual = {0}, turns = {0};
        double longest = 1;
        open_bench(match(n));
        for (int k = 0; k < ROUNDS; k++) {
            struct times t = step(other, DECODE_HYBRID);
            longest = t.share < longest ? t.share : longest;
            better(&turns, t);
            better(&dual, step(n, DECODE_DUAL));
        }
        close_bench();
        double gain = turns.wall / other / (dual.wall / n);
        printf("%d sessions, dual: %.2f ms a step, device %.2f ms, processor %.2f ms, %.2f of the device's time beside "
               "the processor's; %d, hybrid: %.2f ms; "
               "%.2f times the throughput\n",
               n, dual.wall * 1e3, dual.device * 1e3, dual.processor * 1e3, dual.share, other, turns.wall * 1e3, gain);
        fflush(stdout);
        best = gain > best ? gain : best;
        share = dual.share > share ? dual.share : share;
        alone = longest < alone ? longest : alone;
    }
    CHECK(best >= least, "%d sessions, dual: %.2f times %d, hybrid", n, best, other);
    CHECK(share >= 0.6, "an overlap of %.2f", share);
    CHECK(alone <= 0.1, "one batch cannot overlap: %.2f", alone);
}

/* A batch takes seconds here; a cancel must not. */
static void cancel(enum exec_mode prefill, double after) {
    struct engine *eng;
    struct session *s;
    struct error e = {0};
    int32_t tokens[40];
    double least = 1e9;
    for (int i = 0; i < 40; i++) tokens[i] = 7 + i * 3;
    if (engine_open(&eng,
                    &(struct engine_params){.dir = "ember:",
                                            .threads = 1,
                                            .cpu_level = CPU_SCALAR + 1,
                                            .gpus = "emu:1,attn=0.0000001",
                                            .context = 256,
                                            .prefill = prefill,
                                            .decode = DECODE_HYBRID},
                    &e))
        die("open", &e);
    if (session_open(eng, &s, &e)) die("session", &e);
    for (int i = 0; i < ATTEMPTS && least > 0.2; i++) {
        struct event ev = {0};
        double begin = clock_now(), cancelled = 0;
        if (session_submit(
                s, &(struct request){.tokens = tokens, .n = 40 - i, .max_tokens = 20, .flags = REQ_IGNORE_EOS}, &e))
            die("submit", &e);
        while (ev.kind != EVENT_DONE && ev.kind != EVENT_ERROR && clock_now() < begin + 60) {
            if (!cancelled && clock_now() > begin + after) session_cancel(s), cancelled = clock_now();
            if (!engine_poll(eng, &ev, 10)) ev.kind = EVENT_NONE;
        }
        CHECK(ev.kind == EVENT_DONE && ev.reason == DONE_CANCELLED && cancelled, "cancel: event %d, reason %d: %s",
              ev.kind, ev.reason, ev.kind == EVENT_ERROR ? ev.error.text : "");
        if (clock_now() - cancelled < least) least = clock_now() - cancelled;
    }
    printf("cancelled after %.0f ms\n", least * 1e3);
    CHECK(least < (getenv("HEARTH_SLOW") ? 5 : 0.2), "a cancel took %.3f s", least);
    session_close(&s);
    engine_close(&eng);
}

/* One of two sessions is cancelled in the middle of a slow batch of both: it ends at once, and the other continues. */
static void cancel_in_company(void) {
    struct engine *eng;
    struct session *s[2];
    struct error e = {0};
    int32_t tokens[40];
    double least = 1e9;
    for (int i = 0; i < 40; i++) tokens[i] = 7 + i * 3;
    struct engine_params p = {.dir = "ember:",
                              .threads = 1,
                              .cpu_level = CPU_SCALAR + 1,
                              .gpus = "emu:1,attn=0.0000001",
                              .context = 256,
                              .decode = DECODE_DUAL,
                              .prefill = PREFILL_CPU};
    if (engine_open(&eng, &p, &e)) die("open", &e);
    for (int i = 0; i < 2; i++)
        if (session_open(eng, &s[i], &e)) die("session", &e);
    for (int attempt = 0; attempt < ATTEMPTS && least > 0.2; attempt++) {
        struct event ev;
        int got[2] = {0};
        double cancelled;
        for (int i = 0; i < 2; i++)
            if (session_submit(
                    s[i], &(struct request){.tokens = tokens, .n = 30 + i, .max_tokens = 50, .flags = REQ_IGNORE_EOS},
                    &e))
                die("submit", &e);
        while (got[0] < 3 || got[1] < 3) /* both are in every batch from now on */
            if (engine_poll(eng, &ev, 60000) && ev.kind == EVENT_TOKEN) got[ev.session == s[1]]++;
        usleep(50000);
        cancelled = clock_now();
        session_cancel(s[0]);
        do got[1] += engine_poll(eng, &ev, 60000) && ev.kind == EVENT_TOKEN && ev.session == s[1];
        while (ev.session != s[0] || ev.kind != EVENT_DONE);
        double took = clock_now() - cancelled;
        least = took < least ? took : least;
        CHECK(ev.reason == DONE_CANCELLED, "cancelled in company, but ended by %d", ev.reason);
        if (session_submit(s[0], &(struct request){.tokens = tokens, .n = 20, .max_tokens = 2, .flags = REQ_IGNORE_EOS},
                           &e))
            die("submit", &e); /* while its batch runs */
        for (int before = got[1]; got[1] < before + 2;)
            got[1] += engine_poll(eng, &ev, 60000) && ev.kind == EVENT_TOKEN && ev.session == s[1];
        printf("in company: cancelled after %.0f ms, a step took %.0f ms\n", took * 1e3,
               (clock_now() - cancelled) / 2 * 1e3);
        session_cancel(s[1]);
        for (int over = 0; over < 2;) over += engine_poll(eng, &ev, 60000) && ev.kind == EVENT_DONE;
    }
    CHECK(least < (getenv("HEARTH_SLOW") ? 5 : 0.2), "a cancel in company took %.3f s", least);
    for (int i = 0; i < 2; i++) session_close(&s[i]);
    engine_close(&eng);
}

static void quiet(void *ctx, enum log_level level, const char *text) {}

int main(int argc, char **argv) {
    log_set(quiet, NULL, LOG_WARN);
    file_embed(ember_files);
    cancel(PREFILL_CPU, 0.5);
    cancel(PREFILL_BLEND, 0.5);
    cancel_in_company();
    if (argc > 1) return failures != 0;
    open_model();
    overlap(2, 1, 1.6);
    overlap(6, 6, 1.4);
    close_model();
    printf("%d failed\n", failures);
    return failures != 0;
}

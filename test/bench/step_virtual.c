/* Steps and blended prefills of DeepSeek-V3 on paper A's machine (two EPYC 9355, one RTX 5090), in virtual time: the engine's own
 * walk, on a device and a processor that only move clocks. The machine is the preset of sched/cost; GEMV= in GB/s replaces what
 * its processor reads weights at (947 is paper A's kernel; the share of 1,228 that ours reach elsewhere is in NOTES.md).
 * usage: step_virtual [check | table] [GEMV] */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/pipe/pipe.h"
#include "engine/sched/cost.h"
#include "engine/sched/split.h"
#include "engine/step/step.h"
#include "virtual_v3.h"

static struct cost_machine cost;
static struct cost_model shape;
static struct machine m;
static struct gpu *host;
static double taken; /* bytes/s of host memory that a prompt's stream to another device has: the processor reads at a share of the rest, as in sched/cost */

static void fail(const struct error *e) {
    fprintf(stderr, "%s\n", e->text);
    exit(1);
}
static void curve(struct gpu_curve *to, const struct cost_curve *from) {
    to->n = from->n;
    memcpy(to->rows, from->rows, sizeof to->rows);
    memcpy(to->value, from->value, sizeof to->value);
}

/* The machine of the cost model as devices in virtual time. */
static void open_machine(double gemv, double h2d) {
    struct error e = {0};
    char gpus[160];
    cost_preset(&cost, "paper-a-1");
    struct cost_domain *cpu = &cost.domain[0], *gpu = &cost.domain[1];
    for (int k = 0; k < COST_KINDS && gemv > 0; k++)
        if (k != COST_ELEM) cpu->bw[k].value[0] = (float)gemv;
    for (int k = 0; k < COST_KINDS; k++)
        for (int i = 0; i < cpu->bw[k].n; i++) cpu->bw[k].value[i] *= (float)(1 - taken / cost.dram);
    if (h2d > 0) gpu->link[COST_H2D].rate = gpu->link[COST_D2H].rate = h2d;
    struct gpu_spec spec = {.n = 1,
                            .emu = true,
                            .is_virtual = true,
                            .host = true,
                            .bw = cost_at(&cpu->bw[COST_ELEM], 1),
                            .attn = cost_at(&cpu->rate[COST_ATTENTION][COST_16BIT], 1),
                            .launch = cpu->latency[COST_ELEM]};
    curve(&spec.bw_rows, &cpu->bw[COST_FFN]);
    curve(&spec.flops_rows, &cpu->rate[COST_FFN][COST_8BIT]);
    snprintf(gpus, sizeof gpus, "emu:1,virtual,h2d=%g,d2h=%g", gpu->link[COST_H2D].rate / 1e9, gpu->link[COST_D2H].rate / 1e9);
    m = (struct machine){.w = &model, .cost = &cost, .model = &shape, .split = &split_policies[0], .expert_bytes = 44052480};
    if (gpu_open(&host, &spec, GPU_HOST, &e) || gpu_stream_open(host, &m.processor, "processor", true, NULL, &e) || gpu_set_open(&m.gpus, gpus, &model, &e))
        fail(&e);
    m.cpu = gpu_stream_exec(m.processor);
    cost_model_of(&shape, &model.config, DT_E4M3, DT_E4M3, DT_BF16);
    if (step_open(&m.step, &m, DT_BF16, &e)) fail(&e);
}
static void close_machine(void) {
    step_close(&m.step);
    gpu_stream_close(&m.processor);
    gpu_set_close(&m.gpus);
    gpu_close(&host);
}

static double now(void) {
    struct gpu_event *ev;
    struct error e = {0};
    if (gpu_event_open(host, &ev, &e)) fail(&e);
    gpu_event_record(ev, m.processor);
    gpu_event_sync(ev);
    double t = gpu_event_time(ev);
    gpu_event_close(&ev);
    return t;
}

/* Seconds of a step of so many sessions, each with `keys` positions before it; the first one brings weights and caches. */
static double step_seconds(enum step_cut cut, int sessions, int keys) {
    enum { STEPS = 4 };
    static struct kv kv[16];
    struct step_span spans[16];
    struct error e = {0};
    int32_t token = 1;
    double begin = 0;
    for (int s = 0; s < sessions; s++)
        if (kv_open(&kv[s], &model.config, keys + STEPS + 1, DT_BF16, &e)) fail(&e);
    for (int i = 0; i <= STEPS; i++) {
        for (int s = 0; s < sessions; s++) spans[s] = (struct step_span){.kv = &kv[s], .tokens = &token, .pos = keys + i, .n = 1};
        if (step_run(m.step, cut, spans, sessions, NULL, &e)) fail(&e);
        if (step_ran(m.step) != (cut == STEP_DUAL && sessions < 2 ? STEP_HYBRID : cut)) fail(&(struct error){.text = "the step ran otherwise"});
        if (!i) begin = now();
    }
    double t = (now() - begin) / STEPS;
    for (int s = 0; s < sessions; s++) step_forget(m.step, &kv[s]), kv_close(&kv[s]);
    return t;
}

/* Parts of a step alone: on a device that takes no time, or a processor that takes none. */
static double alone(double gemv, bool experts, int sessions, int keys) {
    struct gpu_spec none = {.n = 1, .emu = true, .is_virtual = true, .host = true};
    struct error e = {0};
    double t;
    if (experts) { /* micro-batches of half the sessions each, as the processor gets them */
        close_machine();
        open_machine(gemv, 1e15);
        struct gpu_set *fast;
        if (gpu_set_open(&fast, "emu:1,virtual,h2d=1e9,d2h=1e9,flops=1e9,attn=1e9,bw=1e12,launch=1e-9", &model, &e)) fail(&e);
        step_close(&m.step);
        gpu_set_close(&m.gpus);
        m.gpus = fast;
        if (step_open(&m.step, &m, DT_BF16, &e)) fail(&e);
        t = step_seconds(sessions > 1 ? STEP_DUAL : STEP_HYBRID, sessions, keys);
    } else {
        struct gpu *idle;
        struct gpu_stream *s;
        if (gpu_open(&idle, &none, GPU_HOST, &e) || gpu_stream_open(idle, &s, "idle", true, NULL, &e)) fail(&e);
        struct gpu_stream *was = m.processor;
        struct gpu *before = host;
        step_close(&m.step);
        m.processor = s, m.cpu = gpu_stream_exec(s), host = idle;
        if (step_open(&m.step, &m, DT_BF16, &e)) fail(&e);
        t = step_seconds(sessions > 1 ? STEP_DUAL : STEP_HYBRID, sessions, keys);
        step_close(&m.step);
        m.processor = was, m.cpu = gpu_stream_exec(was), host = before;
        gpu_stream_close(&s);
        gpu_close(&idle);
    }
    close_machine();
    open_machine(gemv, 0);
    return t;
}

static double prefill_seconds(const char *split, int n) {
    struct prefill_job j = {.n = n};
    struct kv kv;
    struct error e = {0};
    int rc;
    m.split = split_find(split);
    if (kv_open(&kv, &model.config, n + 1, DT_BF16, &e)) fail(&e);
    j.kv = &kv;
    double begin = now();
    if (mode_blend.open(&m, &j, &e)) fail(&e);
    while ((rc = mode_blend.advance(&m, &j, &e)) == PREFILL_MORE) {
    }
    if (rc) fail(&e);
    mode_blend.close(&m, &j);
    double t = now() - begin;
    step_forget(m.step, &kv);
    kv_close(&kv);
    return t;
}

/* A step beside a prompt that is streamed to another device. */
static double beside_seconds(enum step_cut cut, int sessions, int keys, double gemv) {
    taken = cost.domain[1].link[COST_H2D].rate;
    close_machine();
    open_machine(gemv, 0);
    double t = step_seconds(cut, sessions, keys);
    taken = 0;
    close_machine();
    open_machine(gemv, 0);
    return t;
}

/* The processor alone, as the cost model has it: there is no virtual time without a device. */
static double model_seconds(enum cost_whole how, int n) { return cost_prefill(&cost, &shape, &(struct cost_prefill){.how = how, .n = n, .ranks = 1}); }

static double slp_seconds(int n) {
    struct kv kv;
    struct error e = {0};
    struct pipe_stats stats;
    struct gpu_set *set; /* of its own: its clocks begin anew */
    if (kv_open(&kv, &model.config, n + 1, DT_BF16, &e) || gpu_set_open(&set, "emu:1,virtual", &model, &e)) fail(&e);
    if (pipe_prefill(&(struct pipe_job){.w = &model, .set = set, .ranks = 1, .cache = kv.layer, .n = n}, &stats, &e)) fail(&e);
    gpu_set_close(&set);
    kv_close(&kv);
    return stats.seconds;
}

static void table(double gemv) {
    printf("| sessions | hybrid: a step | tok/s | dual: a step | tok/s | over hybrid | experts alone | attention halves alone | of the bound "
           "|\n|---|---|---|---|---|---|---|---|---|\n");
    static const int sessions[] = {1, 2, 4, 6};
    for (int i = 0; i < 4; i++) {
        int n = sessions[i];
        double h = step_seconds(STEP_HYBRID, n, 1000), d = step_seconds(STEP_DUAL, n, 1000), x = alone(gemv, true, n, 1000), a = alone(gemv, false, n, 1000);
        printf("| %d | %.1f ms | %.1f | %.1f ms | %.1f | %.2f | %.1f ms | %.1f ms | %.2f |\n", n, h * 1e3, n / h, d * 1e3, n / d, h / d, x * 1e3, a * 1e3,
               (x > a ? x : a) / d);
        fflush(stdout);
    }
    printf("\n| sessions | a step | beside a stream to the other device | longer by |\n|---|---|---|---|\n");
    for (int i = 0; i < 4; i++) {
        enum step_cut cut = sessions[i] > 1 ? STEP_DUAL : STEP_HYBRID;
        double t = step_seconds(cut, sessions[i], 1000), b = beside_seconds(cut, sessions[i], 1000, gemv);
        printf("| %d | %.1f ms | %.1f ms | %.1f %% |\n", sessions[i], t * 1e3, b * 1e3, (b / t - 1) * 100);
    }
    printf("\n| tokens | processor | stream-loaded | host | stream | hybrimoe | trimoe | cut | auto |\n|---|---|---|---|---|---|---|---|---|\n");
    static const int lengths[] = {64, 256, 512, 1024, 2048, 4096};
    static const char *const splits[] = {"host", "stream", "hybrimoe", "trimoe", "cut", "auto"};
    for (int i = 0; i < 6; i++) {
        printf("| %d | %.2f s | %.2f s |", lengths[i], model_seconds(COST_PREFILL_CPU, lengths[i]), slp_seconds(lengths[i]));
        for (int k = 0; k < 6; k++) printf(" %.2f s |", prefill_seconds(splits[k], lengths[i]));
        printf("\n");
        fflush(stdout);
    }
}

/* What the tables claim, held by a test. */
static int check(double gemv) {
    int failed = 0;
#define HOLD(ok, ...) \
    do { \
        if (!(ok)) failed++, printf("FAIL: " __VA_ARGS__), printf("\n"); \
    } while (0)
    double one = step_seconds(STEP_HYBRID, 1, 1000);
    HOLD(one <= 38e-3, "one session: %.1f ms a token", one * 1e3);
    for (int n = 1; n <= 2; n++) {
        double t = n > 1 ? step_seconds(STEP_DUAL, n, 1000) : one, b = beside_seconds(n > 1 ? STEP_DUAL : STEP_HYBRID, n, 1000, gemv);
        HOLD(b > 1.01 * t && b < 1.12 * t, "%d sessions beside a stream: %.1f ms a step, alone %.1f ms", n, b * 1e3, t * 1e3);
    }
    for (int n = 2; n <= 6; n += 2) {
        double h = step_seconds(STEP_HYBRID, n, 1000), d = step_seconds(STEP_DUAL, n, 1000), x = alone(gemv, true, n, 1000), a = alone(gemv, false, n, 1000);
        HOLD(d < h && (x > a ? x : a) / d >= 0.9, "%d sessions: hybrid %.1f ms, dual %.1f ms, the longer part alone %.1f ms", n, h * 1e3, d * 1e3,
             (x > a ? x : a) * 1e3);
        if (n == 2) HOLD(n / d >= 41, "two sessions: %.1f tok/s", n / d);
    }
    for (int n = 256; n <= 4096; n *= 4) {
        double b = prefill_seconds("auto", n), cpu = model_seconds(COST_PREFILL_CPU, n), slp = slp_seconds(n);
        HOLD(b < 0.95 * cpu && b < 0.95 * slp, "%d tokens: blended %.2f s, processor %.2f s, stream-loaded %.2f s", n, b, cpu, slp);
    }
    printf("%d failed\n", failed);
    return failed != 0;
}

int main(int argc, char **argv) {
    double gemv = argc > 2 ? atof(argv[2]) * 1e9 : 0;
    build(61, 3);
    open_machine(gemv, 0);
    int rc = 0;
    if (argc < 2 || !strcmp(argv[1], "table")) table(gemv);
    else if (!strcmp(argv[1], "check")) rc = check(gemv);
    else rc = 2, fprintf(stderr, "usage: step_virtual [check | table] [GEMV]\n");
    close_machine();
    arena_free(&model.arena);
    return rc;
}

/* Decoding and blended prefills of DeepSeek-V3 on paper A's machine (two EPYC 9355, one or two RTX 5090), in virtual
 * time: the engine's own code, on devices and a CPU that only advance clocks. The machine is the preset of sched/cost;
 * GEMV= in GB/s replaces the rate at which its CPU reads weights (947 is paper A's kernel; NOTES.md has the fraction of
 * 1,228 that ours reach elsewhere). As in the paper, the CPU computes all routed experts. usage: step_virtual [check |
 * table] [GEMV] */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/plan/virtual.h"
#include "test/bench/splits.h"
#include "virtual_v3.h"

static struct cost_machine cost;

static void fail(const struct error *e) {
    fprintf(stderr, "%s\n", e->text);
    exit(1);
}

/* The machine with that GEMV rate of the CPU; with a device that takes no time, or a CPU that takes none. */
enum idle { NOBODY, DEVICE, PROCESSOR };
static struct cost_machine machine(double gemv, enum idle idle) {
    struct cost_machine m = cost;
    struct cost_domain *cpu = &m.domain[0];
    for (int k = 0; k < COST_KINDS && gemv > 0; k++)
        if (k != COST_ELEM) cpu->bw[k].value[0] = (float)gemv;
    if (!idle) return m;
    struct cost_domain *d = &m.domain[idle == DEVICE ? 1 : 0];
    for (int k = 0; k < COST_KINDS; k++) {
        d->latency[k] = 0;
        for (int i = 0; i < d->bw[k].n; i++) d->bw[k].value[i] = 1e30f;
        for (int f = 0; f < COST_FORMATS; f++)
            for (int i = 0; i < d->rate[k][f].n; i++) d->rate[k][f].value[i] = 1e30f;
    }
    if (idle == DEVICE) d->link[COST_H2D].rate = d->link[COST_D2H].rate = 1e18;
    return m;
}
static struct virtual *opened(double gemv, enum idle idle, double taken, const char *split) {
    struct error e = {0};
    struct virtual *v;
    struct cost_machine m = machine(gemv, idle);
    struct virtual_options o = {.cost = &m,
                                .w = &v3.w,
                                .kv = DT_BF16,
                                .stream_rate = taken,
                                .split = split ? splits_find(split) : NULL,
                                .experts = {BUDGET_OFF}};
    if (virtual_open(&v, &o, &e)) fail(&e);
    return v;
}

/* Returns the seconds of a decode batch of that many sessions, each with `keys` positions before it. */
static double step_in(double gemv, enum idle idle, double taken, enum exec_mode cut, int sessions, int keys) {
    struct virtual *v = opened(gemv, idle, taken, NULL);
    struct error e = {0};
    enum exec_mode ran;
    double t;
    if (virtual_decode(v, cut, sessions, keys, &t, &ran, &e)) fail(&e);
    if (ran != (cut == DECODE_DUAL && sessions < 2 ? DECODE_HYBRID : cut))
        fail(&(struct error){.text = "the step ran otherwise"});
    virtual_close(&v);
    return t;
}
static double step_seconds(double gemv, enum exec_mode cut, int sessions, int keys) {
    return step_in(gemv, NOBODY, 0, cut, sessions, keys);
}
/* Parts of a batch alone; micro-batches of half the sessions each, as the CPU gets them. */
static double alone(double gemv, bool experts, int sessions, int keys) {
    return step_in(gemv, experts ? DEVICE : PROCESSOR, 0, sessions > 1 ? DECODE_DUAL : DECODE_HYBRID, sessions, keys);
}
/* A decode batch beside a prompt that is streamed to another device. */
static double beside_seconds(double gemv, enum exec_mode cut, int sessions, int keys) {
    return step_in(gemv, NOBODY, cost.domain[1].link[COST_H2D].rate, cut, sessions, keys);
}

static double prefill_seconds(double gemv, enum exec_mode mode, const char *split, int n) {
    struct virtual *v = opened(gemv, NOBODY, 0, split);
    struct error e = {0};
    double t;
    if (virtual_prefill(v, mode, n, &t, &e)) fail(&e);
    virtual_close(&v);
    return t;
}

static void cards(int n) { cost_preset(&cost, n > 1 ? "paper-a-2" : "paper-a-1"); }
/* The policy's prediction of a blend on that many cards. */
static double expected(double gemv, int ranks, int n) {
    struct cost_machine m = machine(gemv, NOBODY);
    struct cost_model q;
    cost_model_of(&q, &v3.w.config, DT_E4M3, DT_E4M3, DT_BF16);
    return cost_prefill(&m, &q,
                        &(struct cost_prefill){.mode = PREFILL_BLEND, .n = n, .ranks = ranks, .is_resident = true});
}

static void table(double gemv) {
    printf("| sessions | hybrid: a step | tok/s | dual: a step | tok/s | over hybrid | experts alone | attention "
           "halves alone | of the bound "
           "|\n|---|---|---|---|---|---|---|---|---|\n");
    static const int sessions[] = {1, 2, 4, 6};
    for (int i = 0; i < 4; i++) {
        int n = sessions[i];
        double h = step_seconds(gemv, DECODE_HYBRID, n, 1000), d = step_seconds(gemv, DECODE_DUAL, n, 1000),
               x = alone(gemv, true, n, 1000), a = alone(gemv, false, n, 1000);
        printf("| %d | %.1f ms | %.1f | %.1f ms | %.1f | %.2f | %.1f ms | %.1f ms | %.2f |\n", n, h * 1e3, n / h,
               d * 1e3, n / d, h / d, x * 1e3, a * 1e3, (x > a ? x : a) / d);
        fflush(stdout);
    }
    printf("\n| sessions | a step | beside a stream to the other device | longer by |\n|---|---|---|---|\n");
    for (int i = 0; i < 4; i++) {
        enum exec_mode cut = sessions[i] > 1 ? DECODE_DUAL : DECODE_HYBRID;
        double t = step_seconds(gemv, cut, sessions[i], 1000), b = beside_seconds(gemv, cut, sessions[i], 1000);
        printf("| %d | %.1f ms | %.1f ms | %.1f %% |\n", sessions[i], t * 1e3, b * 1e3, (b / t - 1) * 100);
    }
    printf("\n| tokens | processor | stream-loaded | host | stream | hybrimoe | trimoe | cut | auto "
           "|\n|---|---|---|---|---|---|---|---|---|\n");
    static const int lengths[] = {64, 256, 512, 1024, 2048, 4096};
    static const char *const splits[] = {"host", "stream", "hybrimoe", "trimoe", "cut", "auto"};
    for (int i = 0; i < 6; i++) {
        printf("| %d | %.2f s | %.2f s |", lengths[i], prefill_seconds(gemv, PREFILL_CPU, NULL, lengths[i]),
               prefill_seconds(gemv, PREFILL_SLP, NULL, lengths[i]));
        for (int k = 0; k < 6; k++) printf(" %.2f s |", prefill_seconds(gemv, PREFILL_BLEND, splits[k], lengths[i]));
        printf("\n");
        fflush(stdout);
    }
    printf("\n| tokens | blend, one card | two | expected | stream-loaded, one | two |\n|---|---|---|---|---|---|\n");
    static const int two[] = {64, 256, 512, 1024, 2048, 4096, 8192, 16384};
    for (int i = 0; i < 8; i++) {
        const int n = two[i];
        double one = prefill_seconds(gemv, PREFILL_BLEND, NULL, n), slp = prefill_seconds(gemv, PREFILL_SLP, NULL, n);
        cards(2);
        printf("| %d | %.2f s | %.2f s | %.2f s | %.2f s | %.2f s |\n", n, one,
               prefill_seconds(gemv, PREFILL_BLEND, NULL, n), expected(gemv, 2, n), slp,
               prefill_seconds(gemv, PREFILL_DSLP, NULL, n));
        cards(1);
        fflush(stdout);
    }
}

/* Asserts what the tables claim. */
static int check(double gemv) {
    int failed = 0;
#define HOLD(ok, ...) \
    do { \
        if (!(ok)) failed++, printf("FAIL: " __VA_ARGS__), printf("\n"); \
    } while (0)
    double one = step_seconds(gemv, DECODE_HYBRID, 1, 1000);
    HOLD(one <= 39.5e-3, "one session: %.1f ms a token", one * 1e3);
    for (int n = 1; n <= 2; n++) {
        double t = n > 1 ? step_seconds(gemv, DECODE_DUAL, n, 1000) : one,
               b = beside_seconds(gemv, n > 1 ? DECODE_DUAL : DECODE_HYBRID, n, 1000);
        HOLD(b > 1.01 * t && b < 1.12 * t, "%d sessions beside a stream: %.1f ms a step, alone %.1f ms", n, b * 1e3,
             t * 1e3);
    }
    for (int n = 2; n <= 6; n += 2) {
        double h = step_seconds(gemv, DECODE_HYBRID, n, 1000), d = step_seconds(gemv, DECODE_DUAL, n, 1000),
               x = alone(gemv, true, n, 1000), a = alone(gemv, false, n, 1000);
        HOLD(d < h && (x > a ? x : a) / d >= 0.9,
             "%d sessions: hybrid %.1f ms, dual %.1f ms, the longer part alone %.1f ms", n, h * 1e3, d * 1e3,
             (x > a ? x : a) * 1e3);
        if (n == 2) HOLD(n / d >= 40, "two sessions: %.1f tok/s", n / d);
    }
    for (int n = 256; n <= 4096; n *= 4) {
        double b = prefill_seconds(gemv, PREFILL_BLEND, NULL, n), cpu = prefill_seconds(gemv, PREFILL_CPU, NULL, n),
               slp = prefill_seconds(gemv, PREFILL_SLP, NULL, n);
        HOLD(b < 0.95 * cpu && b < 0.95 * slp, "%d tokens: blended %.2f s, processor %.2f s, stream-loaded %.2f s", n,
             b, cpu, slp);
    }
    for (int n = 1024; n <= 4096; n *= 4) { /* both links and both cards */
        double alone = prefill_seconds(gemv, PREFILL_BLEND, NULL, n);
        cards(2);
        double two = prefill_seconds(gemv, PREFILL_BLEND, NULL, n), dslp = prefill_seconds(gemv, PREFILL_DSLP, NULL, n),
               model = expected(gemv, 2, n);
        HOLD(two < 0.92 * alone && two < 0.95 * dslp && fabs(model / two - 1) < 0.1,
             "%d tokens on two cards: blended %.2f s, %.2f s on one, over both links alone %.2f s; expected %.2f s", n,
             two, alone, dslp, model);
        cards(1);
    }
    printf("%d failed\n", failed);
    return failed != 0;
}

int main(int argc, char **argv) {
    double gemv = argc > 2 ? atof(argv[2]) * 1e9 : 0;
    build(61, 3);
    cards(1);
    int rc = 0;
    if (argc < 2 || !strcmp(argv[1], "table")) table(gemv);
    else if (!strcmp(argv[1], "check")) rc = check(gemv);
    else rc = 2, fprintf(stderr, "usage: step_virtual [check | table] [GEMV]\n");
    shape_only_close(&v3);
    return rc;
}

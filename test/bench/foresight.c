/* Predicts published and measured machines in virtual time: one question per argument list, or one per line of standard
 * input; prints the seconds of each. foresight.py asks, and compares with what was published or measured. step MACHINE
 * MODEL cpu|hybrid|dual SESSIONS KEYS [OPTION ..]      prefill MACHINE MODEL cpu|blend|slp|dslp TOKENS [OPTION ..]
 * MACHINE: a preset or a machine file. MODEL: an architecture by name, or a checkpoint's directory. Options:
 * experts=Q4_K and the like (Q4_K_M: gate and up, with down in Q6_K), dense= likewise (formats of GGUF too), launch=US
 * per operation on a device, gemv=GBPS at which the CPU reads weights, matrices=TFLOPS rate of a device's products,
 * handoff=US between a device and the CPU each way, latency=US of a copy over an idle link, taken=GBPS of host memory
 * used by others, layers=N only the first ones. paged MACHINE MODEL N MICRO PROMPT ANSWER      seconds per token of N
 * prompts at once, reading included; N 0: by the policy search; link=GBPS, one: cards as one with all they have. here
 * DIR ROUNDS [GPUS [THREADS [steps | prompts | short]]] measures this machine and, in each round, decoding and prefill
 * of the checkpoint (or only these), on the CPU or (with devices, emulated ones of given speeds) hybrid and
 * stream-loaded; prints medians and the prediction for the machine as measured in that round, and the same for each
 * operation. constants MACHINE prints its numbers. check DIR GPUS is a test: one round of both, printed; asserts that
 * the device had the same work in virtual time as in reality. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "engine/layer/kv_planes.h"
#include "engine/model/known.h"
#include "engine/placement/calibrate.h"
#include "engine/placement/search.h"
#include "engine/plan/virtual.h"
#include "engine/session/engine_state.h"
#include "engine/weights/shape_only.h"
#include "engine/weights/weights_open.h"
#include "gpu/emu/emu.h"

static int fail(const char *text) {
    fprintf(stderr, "foresight: %s\n", text);
    return 1;
}
static enum dtype format(const char *name) {
    for (int t = 1; t < DT_COUNT; t++)
        if (!strcmp(dtype_name((enum dtype)t), name)) return (enum dtype)t;
    return DT_NONE;
}

/* The upper limit of tensor parallel: one card with the memory, the rates and the links of all. */
static void one_card(struct cost_machine *m) {
    struct cost_domain *d = &m->domain[1];
    const float k = (float)m->n_devices;
    d->memory *= k;
    for (int way = COST_H2D; way <= COST_D2H; way++) d->link[way].rate *= k;
    for (int kind = 0; kind < COST_KINDS; kind++) {
        for (int i = 0; i < d->bw[kind].n; i++) d->bw[kind].value[i] *= k;
        for (int f = 0; f < COST_FORMATS; f++)
            for (int i = 0; i < d->rate[kind][f].n; i++) d->rate[kind][f].value[i] *= k;
    }
    m->n_devices = 1, m->n_domains = 2;
}

static int many(int n, char **word) {
    static struct cost_machine m;
    static struct config c;
    struct error e = {0};
    if (n < 7 || calibrate_read(&m, word[1], &e))
        return fail(n < 7 ? "paged MACHINE MODEL N MICRO PROMPT ANSWER" : e.text);
    const struct known_model *k = known_model_find(word[2]);
    for (int i = 7; i < n; i++)
        if (!strncmp(word[i], "link=", 5))
            for (int d = 1; d <= m.n_devices; d++)
                for (int way = COST_H2D; way <= COST_D2H; way++) m.domain[d].link[way].rate = atof(word[i] + 5) * 1e9;
        else if (!strcmp(word[i], "one")) one_card(&m);
        else return fail("no such option");
    struct virtual_throughput q = {atoi(word[3]), atoi(word[4]), atoi(word[5]), atoi(word[6]), 0, -1};
    struct shape_only s = {0};
    struct virtual *v;
    double read, step;
    if (!k) return fail("no such architecture");
    int rc = known_model_config(k, &c, &e);
    if (!rc) rc = shape_only_open(&s, &c, k->dense, k->experts, &e);
    struct cost_model model;
    struct search_in in = {.cost = &m,
                           .model = &model,
                           .prompt_tokens = q.prompt_tokens,
                           .answer_tokens = q.answer_tokens,
                           .max_matrix_rows = BATCH_INVARIANT_ROWS,
                           .allowed_mask = 1u << SEARCH_PAGED};
    struct search_cost cost = {0};
    if (!rc) cost_model_of(&model, &c, k->dense, k->experts, DT_BF16);
    /* keeps as many experts as fit */
    for (int share = SEARCH_SHARES; share >= 0 && !rc && q.n_prompts && !cost.fits; share--)
        search_cost(&in,
                    &(struct search_policy){.n_rows = q.n_prompts,
                                            .micro_rows = q.micro_rows,
                                            .placement = SEARCH_PAGED,
                                            .n_devices = m.n_devices,
                                            .weight_share = (double)share / SEARCH_SHARES},
                    &cost);
    if (!rc && !q.n_prompts) {
        struct search_out out;
        char why[400];
        search_run(&in, &out);
        search_why(&in, &out, why, sizeof why);
        fprintf(stderr, "%s\n", why);
        if (!out.is_found) return fail("nothing fits");
        q.n_prompts = out.policy.n_rows, q.micro_rows = out.policy.micro_rows, q.n_devices = out.policy.n_devices,
        cost = out.cost;
    }
    if (!rc)
        rc = virtual_open(
            &v, &(struct virtual_options){.cost = &m, .w = &s.w, .kv = DT_BF16, .stream_rate = cost.link_rate}, &e);
    if (!rc) rc = virtual_paged(v, &q, &read, &step, &e);
    if (rc) return fail(e.text);
    fprintf(stderr, "%d at once in micro-batches of %d: read in %.4g s (the search: %.4g), %.4g s a step (%.4g)\n",
            q.n_prompts, q.micro_rows, read, cost.prefill_s, step, cost.decode_s);
    printf("%.6g\n", (read + q.answer_tokens * step) / (q.n_prompts * (double)q.answer_tokens));
    virtual_close(&v);
    shape_only_close(&s);
    return 0;
}

static void narrow(struct mat *m, enum dtype t) { m->dtype = (uint8_t)t, m->stride = dtype_bytes(t, (size_t)m->cols); }

static int question(int n, char **word) {
    static struct cost_machine m;
    static struct config c;
    struct error e = {0};
    bool step = n > 5 && !strcmp(word[0], "step");
    int from = step ? 6 : 5, layers = 0, size = n > 4 ? atoi(word[4]) : 0;
    double seconds, taken = 0;
    bool mixed = false;
    if (n && !strcmp(word[0], "paged")) return many(n, word);
    if (n < from || size < 1 || (!step && strcmp(word[0], "prefill")))
        return fail("step MACHINE MODEL CUT SESSIONS KEYS, or prefill MACHINE MODEL MODE TOKENS");
    enum exec_mode mode = exec_mode_find(step ? STAGE_DECODE : STAGE_PREFILL, word[3]);
    if (mode == MODE_AUTO || mode == DECODE_PAGED || mode == EXEC_MODES) return fail("no such mode");
    if (calibrate_read(&m, word[1], &e)) return fail(e.text);
    const struct known_model *k = known_model_find(word[2]);
    enum dtype dense = k ? k->dense : DT_NONE, experts = k ? k->experts : DT_NONE;
    for (int i = from; i < n; i++) {
        const char *value = strchr(word[i], '=');
        if (!value) return fail("an option is NAME=VALUE");
        value++;
        if (!strcmp(word[i], "experts=Q4_K_M")) experts = DT_Q6_K, mixed = true;
        else if (!strncmp(word[i], "experts=", 8)) experts = format(value);
        else if (!strncmp(word[i], "dense=", 6)) dense = format(value);
        else if (!strncmp(word[i], "taken=", 6)) taken = atof(value) * 1e9;
        else if (!strncmp(word[i], "layers=", 7)) layers = atoi(value);
        else if (!strncmp(word[i], "gemv=", 5))
            for (int kind = 0; kind < COST_ELEM; kind++)
                m.domain[0].bw[kind] = (struct cost_curve){1, {1}, {(float)(atof(value) * 1e9)}};
        else if (!strncmp(word[i], "matrices=", 9)) {
            for (int d = 1; d <= m.n_devices; d++)
                for (int kind = COST_FFN; kind <= COST_LINEAR; kind++)
                    for (int f = 0; f < COST_FORMATS; f++)
                        for (int at = 0; at < m.domain[d].rate[kind][f].n; at++)
                            m.domain[d].rate[kind][f].value[at] = (float)(atof(value) * 1e12),
                            m.domain[d].rate_fp8[kind] = (struct cost_curve){0}; /* the rate of all products */
        } else if (!strncmp(word[i], "launch=", 7))
            for (int d = 1; d <= m.n_devices; d++)
                for (int kind = 0; kind < COST_KINDS; kind++) m.domain[d].latency[kind] = atof(value) * 1e-6;
        else if (!strncmp(word[i], "handoff=", 8)) m.hand_off_s = atof(value) * 1e-6;
        else if (!strncmp(word[i], "latency=", 8))
            for (int d = 1; d <= m.n_devices; d++)
                for (int way = COST_H2D; way <= COST_D2H; way++) m.domain[d].link[way].latency = atof(value) * 1e-6;
        else return fail("no such option");
    }
    struct shape_only shape = {0};
    struct weights w = {0};
    int rc = k ? known_model_config(k, &c, &e) : weights_open(&w, word[2], false, &e);
    if (!rc && k && (!dense || !experts)) return fail("no such format");
    if (!rc && k) rc = shape_only_open(&shape, &c, dense, experts, &e);
    for (int l = 0; l < c.n_layers && mixed && !rc && k; l++)
        for (int x = 0; x < c.n_experts && shape.w.layers[l].experts; x++)
            narrow(&shape.w.layers[l].experts[x].gate, DT_Q4_K), narrow(&shape.w.layers[l].experts[x].up, DT_Q4_K);
    struct virtual *v = NULL;
    if (!rc)
        rc = virtual_open(
            &v,
            &(struct virtual_options){
                .cost = &m, .w = k ? &shape.w : &w, .kv = DT_BF16, .stream_rate = taken, .max_layers = layers},
            &e);
    if (!rc)
        rc = step ? virtual_decode(v, mode, size, atoi(word[5]), &seconds, NULL, &e)
                  : virtual_prefill(v, mode, size, &seconds, &e);
    if (!rc) printf("%.6g\n", seconds);
    fflush(stdout);
    virtual_close(&v);
    if (k) shape_only_close(&shape);
    else weights_close(&w);
    return rc ? fail(e.text) : 0;
}

/* --- Each kind of operation ------------------------------------------------------------------- */

/* An executor that times another one, by operation. */
enum { EXPERTS_MOST = 1024 };
struct watched {
    struct op_exec exec;
    struct exec *cpu;
    double op[OP_COUNT];
    long chosen, calls;          /* distinct experts in calls of OP_EXPERTS, and number of calls */
    double shares[EXPERTS_MOST]; /* of their rows, by rank in their call; sum over calls */
};
static int falling(const void *a, const void *b) { return *(const int *)b - *(const int *)a; }
static void forget(struct watched *w) {
    memset(w->op, 0, sizeof w->op), memset(w->shares, 0, sizeof w->shares);
    w->chosen = w->calls = 0;
}
static int watch(struct op_exec *x, enum op_code code, const union op_args *a) {
    struct watched *w = (struct watched *)x;
    w->cpu->cancel = x->base.cancel;
    double begin = clock_now();
    int rc = emu_compute(w->cpu, code, a);
    w->op[code] += clock_now() - begin;
    if (code != OP_EXPERTS || !a->experts.ids) return rc;
    int picks = a->experts.n * a->experts.topk, rows[EXPERTS_MOST] = {0};
    for (int i = 0; i < picks; i++)
        if (a->experts.ids[i] >= 0 && a->experts.ids[i] < EXPERTS_MOST) w->chosen += !rows[a->experts.ids[i]]++;
    qsort(rows, EXPERTS_MOST, sizeof *rows, falling);
    for (int i = 0; i < EXPERTS_MOST; i++) w->shares[i] += (double)rows[i] / picks;
    w->calls++;
    return rc;
}

/* --- This machine ----------------------------------------------------------------------------- */

enum { ROUNDS = 25, STEPS = 6, KEYS = 64, MOST = 2048, SHORT = 256, AGAIN = 4 };
static const double SAME = 0.12; /* equally fast: within this */
static const struct what {
    bool step;
    int n;
} whats[] = {{true, 1},    {true, 2},    {true, 3},     {true, 4},    {false, 64},
             {false, 256}, {false, 512}, {false, 1024}, {false, 2048}};
enum { WHATS = sizeof whats / sizeof *whats };

/* For each measured case, by round: seconds, in total and per operation. */
enum { H2D = OP_COUNT, D2H, MEMORY, ALL_OPS };
static struct here {
    int n;
    double chosen;              /* experts per layer */
    float shares[EXPERTS_MOST]; /* fraction of the rows, per expert */
    double took[ROUNDS], said[ROUNDS], ratio[ROUNDS];
    /* of the CPU; of the device, including both directions of its link */
    double took_op[2][ALL_OPS][ROUNDS], said_op[2][ALL_OPS][ROUNDS];
} seen[WHATS];

/* Spreads the largest fractions over the experts. */
static void take_choices(struct here *h, const struct watched *w, int n) {
    int step = n * 2 / 5 + 1;
    for (int i = 2; i <= step; i++)
        if (step % i == 0 && n % i == 0) step++, i = 1; /* to visit each of them once */
    h->chosen = (double)w->chosen / (double)w->calls;
    for (int i = 0; i < n; i++) h->shares[i * step % n] = (float)(w->shares[i] / (double)w->calls);
}

static struct gpu_stats on_device(const struct runtime *m) {
    return m->gpus ? gpu_stats(m->gpus->gpu[0]) : (struct gpu_stats){0};
}
static struct gpu_stats less(struct gpu_stats a, const struct gpu_stats *b) {
    for (int i = 0; i < OP_COUNT; i++) a.op_s[i] -= b->op_s[i];
    a.arithmetic_s -= b->arithmetic_s, a.memory_s -= b->memory_s, a.h2d_s -= b->h2d_s, a.d2h_s -= b->d2h_s,
        a.alloc_s -= b->alloc_s;
    return a;
}

static int prompt(struct engine *engine, const struct prefill_driver *mode, struct kv *kv, const int32_t *tokens, int n,
                  struct error *e) {
    struct runtime *m = &engine->machine;
    _Atomic int cancel = 0;
    struct prefill_job j = {.kv = kv, .tokens = tokens, .n = n, .last_logits = engine->logits, .cancel = &cancel};
    int rc = mode->open(m, &j, e);
    if (rc) return rc;
    while ((rc = mode->advance(m, &j, e)) == PREFILL_MORE) {
    }
    mode->close(m, &j);
    return rc;
}

/* Returns the measured seconds; for decoding the minimum of several, as calibrate uses the minimum of its pieces. h
 * receives the chosen experts; *used: device time. */
static int measure(struct engine *engine, struct watched *w, const struct what *q, bool devices, double *seconds,
                   struct here *h, struct gpu_stats *used, struct error *e) {
    struct runtime *m = &engine->machine;
    const struct config *c = &engine->weights.config;
    static int32_t tokens[MOST];
    double best[OP_COUNT] = {0};
    struct kv kv[4];
    struct decode_span spans[4];
    int rc = 0, sessions = q->step ? q->n : 1;
    for (int i = 0; i < sessions && !rc; i++) {
        if ((rc = kv_open(&kv[i], c, kv_planes, MOST + 8, DT_BF16, e)) || (rc = kv_commit(&kv[i], KEYS, e))) return rc;
        for (int l = 0; l < c->n_layers; l++) {
            struct cache_desc d[CACHE_PLANES];
            for (int p = kv_planes(c, l, d); p-- > 0;)
                memset(kv[i].layer[l].p[p].data, 0x3c, kv_row_range_of(&kv[i].layer[l].p[p], 0, KEYS).bytes);
        }
    }
    for (int i = 0; i < MOST; i++) tokens[i] = (int32_t)((i * 7919u + 13u) % (unsigned)c->vocab);
    for (int i = 0; i < STEPS && q->step && !rc; i++) {
        for (int s = 0; s < sessions; s++)
            spans[s] = (struct decode_span){.kv = &kv[s], .tokens = &tokens[16 * s + i], .pos = KEYS + i, .n = 1};
        forget(w);
        struct gpu_stats before = on_device(m);
        double begin = clock_now();
        rc = decode_run(m->decode, devices ? DECODE_HYBRID : DECODE_CPU, spans, sessions, NULL, e);
        double t = clock_now() - begin;
        if (i == 1 || (i && t < *seconds))
            *seconds = t, memcpy(best, w->op, sizeof best), *used = less(on_device(m), &before);
    }
    if (q->step) memcpy(w->op, best, sizeof best);
    if (!q->step && devices && !h->chosen) { /* the CPU reports which experts were chosen */
        forget(w);
        if (!(rc = prompt(engine, &prefill_mode_cpu, &kv[0], tokens, q->n, e))) take_choices(h, w, c->n_experts);
        decode_forget(m->decode, &kv[0]);
    }
    /* before a device's first run, calibrate had its memory */
    for (int i = 0; i < (devices && q->n <= SHORT ? 2 : 1) && !q->step && !rc; i++) {
        if (devices) decode_yield(m->decode);
        forget(w);
        *used = on_device(m);
        double begin = clock_now();
        rc = prompt(engine, devices ? &prefill_mode_slp : &prefill_mode_cpu, &kv[0], tokens, q->n, e);
        *seconds = clock_now() - begin;
        *used = less(on_device(m), used);
        decode_reclaim(m->decode);
        decode_forget(m->decode, &kv[0]);
    }
    if (w->calls && !rc) take_choices(h, w, c->n_experts);
    for (int i = 0; i < sessions; i++) decode_forget(m->decode, &kv[i]), kv_close(&kv[i]);
    return rc;
}

static int predict(const struct cost_machine *m, const struct weights *w, const struct what *q, bool devices,
                   const struct here *h, double *seconds, struct virtual_used *used, struct error *e) {
    struct virtual *v;
    int rc = virtual_open(
        &v,
        &(struct virtual_options){.cost = m, .w = w, .kv = DT_BF16, .n_chosen = h->chosen, .expert_shares = h->shares},
        e);
    if (rc) return rc;
    rc = q->step ? virtual_decode(v, devices ? DECODE_HYBRID : DECODE_CPU, q->n, KEYS, seconds, NULL, e)
                 : virtual_prefill(v, devices ? PREFILL_SLP : PREFILL_CPU, q->n, seconds, e);
    *used = *virtual_used(v);
    virtual_close(&v);
    return rc;
}

static int by_seconds(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(const double *v, int n) { /* leaves v unchanged */
    double sorted[ROUNDS];
    memcpy(sorted, v, (size_t)n * sizeof *v);
    qsort(sorted, (size_t)n, sizeof *sorted, by_seconds);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* Returns the seconds to read a layer's experts once, with one row each: the current memory speed. */
static double probe(const struct engine *engine, struct exec *cpu) {
    enum { ROWS = 16, CHOSEN = 8 };
    static float x[ROWS << 14], y[ROWS << 14], weights[ROWS * CHOSEN];
    static int32_t ids[ROWS * CHOSEN];
    const struct config *c = &engine->weights.config;
    double least = INFINITY;
    for (int i = 0; i < ROWS * CHOSEN; i++) ids[i] = i % c->n_experts;
    for (int i = 0; i < 3; i++) {
        double begin = clock_now();
        struct op_experts o = {
            .y = y,
            .x = x,
            .ids = ids,
            .weights = weights,
            .experts = numa_copy_layer(engine->machine.numa_copy, &engine->weights, c->n_layers - 1)->experts};
        o.n = ROWS, o.topk = CHOSEN, o.n_experts = c->n_experts, o.hidden = c->hidden;
        if (cpu->ops->experts(cpu, &o)) return NAN;
        least = fmin(least, clock_now() - begin);
    }
    return least;
}

static void print_operations(const struct here *h, const struct what *q) {
    printf("| %s %d, by operation | | | | | |\n", q->step ? "a step of" : "a prompt of", q->n);
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < ALL_OPS; i++) {
            double took = median(h->took_op[side][i], h->n), said = median(h->said_op[side][i], h->n);
            const char *name = i == H2D      ? "link to it"
                               : i == D2H    ? "link from it"
                               : i == MEMORY ? "its memory"
                                             : op_name((enum op_code)i);
            if (took + said > 0.01 * median(h->took, h->n))
                printf("| . %s%s | | | %.2f ms | %.2f ms | %+.0f %% |\n", side ? "device, " : "", name, took * 1e3,
                       said * 1e3, (said / took - 1) * 100);
        }
}
static void keep_operations(double to[2][ALL_OPS][ROUNDS], int at, const double *cpu, const struct gpu_stats *gpu) {
    for (int i = 0; i < OP_COUNT; i++) to[0][i][at] = cpu[i], to[1][i][at] = gpu->op_s[i];
    to[1][H2D][at] = gpu->h2d_s, to[1][D2H][at] = gpu->d2h_s, to[1][MEMORY][at] = gpu->alloc_s;
}

/* The device's configured speeds, not the measured ones: virtual time then predicts what the device itself counted. */
static void told(struct cost_machine *m, const char *gpus) {
    struct gpu_spec s;
    struct cost_domain *d = &m->domain[1];
    if (gpu_spec_parse(&s, gpus, &(struct error){0})) return;
    for (int k = 0; k < COST_KINDS; k++) {
        const double rate = k == COST_ATTENTION ? s.attn : s.flops;
        d->bw[k] = (struct cost_curve){1, {1}, {(float)s.bw}};
        for (int f = 0; f < COST_FORMATS; f++) d->rate[k][f] = (struct cost_curve){.n = rate > 0, {1}, {(float)rate}};
        d->latency[k] = s.launch;
    }
    d->link[COST_H2D].rate = s.h2d, d->link[COST_D2H].rate = s.d2h;
    d->link[COST_H2D].latency = d->link[COST_D2H].latency = 0;
}

/* Checks that virtual time had the same work, whatever the clock: a device limited to its speeds is never faster. */
static int same_work(const struct what *q, const struct gpu_stats *took, const struct gpu_stats *said, double seconds) {
    const struct {
        const char *what;
        double took, said, off;
    } parts[] = {{"operations", took->arithmetic_s + took->memory_s, said->arithmetic_s + said->memory_s, 0.1},
                 {"link to it", took->h2d_s, said->h2d_s, 0.05}};
    int failed = 0;
    /* a few rows of decoding sometimes include rows that its cache still lacks */
    for (int i = 0; i < (q->step ? 1 : 2); i++)
        if (!(fabs(parts[i].said - parts[i].took) <= parts[i].off * parts[i].took + 0.01 * parts[0].took) ||
            !(seconds >= 0.95 * parts[i].took))
            failed = 1,
            printf("FAIL: %s %d took %.4g s, device, %s %.4g s, in virtual time %.4g s\n",
                   q->step ? "a step of" : "a prompt of", q->n, seconds, parts[i].what, parts[i].took, parts[i].said);
    for (int i = 0; i < OP_COUNT && failed; i++)
        if (took->op_s[i] + said->op_s[i] > 0.01 * took->arithmetic_s)
            printf("  %s: %.4g s, in virtual time %.4g s\n", op_name((enum op_code)i), took->op_s[i], said->op_s[i]);
    return failed;
}

struct question {              /* about this machine */
    const char *dir, *gpus;    /* gpus NULL: none */
    int rounds, threads, most; /* most: maximum tokens of a prompt */
    /* check: one round, however busy the machine is; asserts only what does not depend on that */
    bool steps, prompts, check;
};

static bool small_pages(const struct runtime *m) {
    const struct file_map *map = &m->w->files.shards->map;
    const ptrdiff_t large = file_map_large(map->data, map->size);
    return !m->numa_copy && large >= 0 && (size_t)large < map->size / 2;
}

static int here(const struct question *ask) {
    static struct cost_machine last;
    static struct watched w;
    struct error e = {0};
    struct engine *engine;
    int rc = 0, failed = 0;
    const bool devices = ask->gpus;
    struct engine_params p = {.dir = ask->dir,
                              .context = MOST + 8,
                              .gpus = ask->gpus,
                              .threads = ask->threads,
                              .hugepages = !devices && !ask->check};
    if (engine_open(&engine, &p, &e)) return fail(e.text);
    struct runtime *m = &engine->machine;
    struct calibrate_options o = {.cpu = m->cpu,
                                  .threads = pool_threads(engine->pool),
                                  .gpu = m->gpus ? m->gpus->gpu : NULL,
                                  .n_gpus = m->gpus ? m->gpus->n : 0,
                                  .gpus = p.gpus,
                                  .seconds = ask->check ? 0.5 : 1,
                                  .bytes = (size_t)(ask->check ? 256 : 512) << 20};
    memset(&w, 0, sizeof w), memset(seen, 0, sizeof seen);
    op_exec_init(&w.exec, m->cpu->ops->name, watch, NULL);
    w.cpu = m->cpu, m->cpu = &w.exec.base;
    for (int i = -1; i < ask->rounds && !rc; i++) { /* the round before the first reads weights into memory */
        double before = probe(engine, w.cpu);
        o.small_pages = small_pages(m);
        if (i >= 0) rc = calibrate(&last, &o, &e);
        double fast = probe(engine, w.cpu);
        int again = 0;
        if (i >= 0 && fabs(fast / before - 1) > SAME && !ask->check) continue; /* while it was measured */
        last.cpu_chunk_rows = m->prefill_work->rows;
        if (ask->check && devices) told(&last, p.gpus);
        for (int k = 0; k < WHATS && !rc; k++) {
            struct here *h = &seen[k];
            double t = 0, u = 0;
            struct virtual_used used;
            struct gpu_stats device = {0};
            if (!(whats[k].step ? ask->steps : ask->prompts && whats[k].n <= ask->most)) continue;
            rc = measure(engine, &w, &whats[k], devices, &t, h, &device, &e);
            if (rc || i < 0) continue;
            /* memory speed changed during the round */
            if (fabs(probe(engine, w.cpu) / fast - 1) > SAME && !ask->check) {
                if (again++ < AGAIN) k--;
                continue;
            }
            rc = predict(&last, &engine->weights, &whats[k], devices, h, &u, &used, &e);
            if (ask->check && devices && !rc) failed |= same_work(&whats[k], &device, &used.gpu, t);
            h->took[h->n] = t, h->said[h->n] = u, h->ratio[h->n] = u / t;
            keep_operations(h->took_op, h->n, w.op, &device),
                keep_operations(h->said_op, h->n, used.cpu.op_s, &used.gpu);
            h->n++;
        }
    }
    m->cpu = w.cpu;
    if (rc) return fail(e.text);
    printf("%d threads, %s%s%s, medians of those of %d rounds in which memory kept its speed\n| | rounds | experts a "
           "layer | measured | predicted | off "
           "|\n|---|---|---|---|---|---|\n",
           o.threads, m->cpu->ops->name, devices ? ", " : "", devices ? p.gpus : "", ask->rounds);
    for (int k = 0; k < WHATS; k++)
        if (seen[k].n)
            printf("| %s %d | %d | %.1f | %.1f ms | %.1f ms | %+.0f %% |\n",
                   whats[k].step ? "a step of" : "a prompt of", whats[k].n, seen[k].n, seen[k].chosen,
                   median(seen[k].took, seen[k].n) * 1e3, median(seen[k].said, seen[k].n) * 1e3,
                   (median(seen[k].ratio, seen[k].n) - 1) * 100);
    for (int k = 0; k < WHATS && !ask->check; k++)
        if (seen[k].n) print_operations(&seen[k], &whats[k]);
    engine_close(&engine);
    struct buf text = {0};
    if (!ask->check && !calibrate_write(&last, NULL, &text))
        printf("\nThe machine of the last round:\n\n%s", text.data);
    buf_free(&text);
    fflush(stdout);
    return failed;
}

static int here_words(int n, char **word) {
    struct question q = {.rounds = n > 2 ? atoi(word[2]) : 0, .threads = n > 4 ? atoi(word[4]) : 0};
    if (n < 3 || q.rounds < 1 || q.rounds > ROUNDS)
        return fail("here DIR ROUNDS [GPUS [THREADS [steps | prompts | short]]]");
    q.dir = word[1], q.gpus = n > 3 && strcmp(word[3], "none") ? word[3] : NULL;
    q.steps = n < 6 || !strcmp(word[5], "steps"), q.prompts = n < 6 || !q.steps;
    q.most = n < 6 || strcmp(word[5], "short") ? MOST : SHORT;
    return here(&q);
}

/* A machine's numbers as a machine file, for constants.py. */
static int constants(const char *name) {
    static struct cost_machine m;
    struct error e = {0};
    struct buf text = {0};
    int rc = calibrate_read(&m, name, &e);
    if (!rc) rc = calibrate_write(&m, NULL, &text);
    if (!rc) fputs(text.data, stdout);
    buf_free(&text);
    return rc ? fail(e.text) : 0;
}

static int check(const char *dir, const char *gpus) {
    struct question q = {
        .dir = dir, .rounds = 1, .threads = 1, .most = MOST, .steps = true, .prompts = true, .check = true};
    int failed = here(&q);
    q.gpus = gpus;
    return here(&q) | failed;
}

int main(int argc, char **argv) {
    char line[4096], *word[16];
    if (argc > 3 && !strcmp(argv[1], "check")) return check(argv[2], argv[3]);
    if (argc > 2 && !strcmp(argv[1], "constants")) return constants(argv[2]);
    if (argc > 1) return !strcmp(argv[1], "here") ? here_words(argc - 1, argv + 1) : question(argc - 1, argv + 1);
    while (fgets(line, sizeof line, stdin)) {
        int n = 0;
        for (char *p = strtok(line, " \t\n"); p && n < 16; p = strtok(NULL, " \t\n")) word[n++] = p;
        if (n && question(n, word)) return 1;
    }
    return 0;
}

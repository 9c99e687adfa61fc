#include "engine/virtual.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/mem.h"
#include "engine/pipe/pipe.h"
#include "engine/sched/search.h"
#include "engine/sched/split.h"
#include "engine/step/mode.h"
#include "engine/step/paged.h"

struct virtual {
    struct cost_machine cost;
    struct cost_model model;
    struct weights w; /* as in the options, with fewer layers */
    struct gpu_spec spec;
    struct machine m;
    struct gpu *host;
    struct gpu_event *clock;
    struct work prefill;
    int32_t *tokens;
    size_t cap;
    int layers;
    enum dtype kv;
    struct virtual_used used;
    double chosen; /* from the options, as are shares and parallel */
    const float *shares;
    enum gpu_parallel parallel;
};

/* --- The cost model's machine as devices in virtual time --------------------------------------------------------------------- */

static struct gpu_curve curve(const struct cost_curve *from) {
    struct gpu_curve to = {.n = from->n};
    memcpy(to.rows, from->rows, sizeof to.rows);
    memcpy(to.value, from->value, sizeof to.value);
    return to;
}
static double finite_or(double x, double none) { return isfinite(x) ? x : none; }

/* Fills the rates that CPU and devices have in common. */
static void rates(struct gpu_spec *s, const struct cost_domain *d, const struct cost_model *q) {
    static const enum gpu_kind of_kind[COST_KINDS] = {
        [COST_FFN] = GPU_EXPERTS, [COST_LINEAR] = GPU_LINEAR, [COST_ATTENTION] = GPU_ATTENTION, [COST_ELEM] = GPU_ELEM};
    static const double no_limit = 1e30;
    s->emu = s->is_virtual = true;
    s->math = GPU_BF16;
    s->bw = finite_or(cost_at(&d->bw[COST_ELEM], 1), no_limit);
    s->attn_bw = finite_or(cost_at(&d->bw[COST_ATTENTION], 1), no_limit);
    s->attn = finite_or(cost_at(cost_rate(d, COST_ATTENTION, COST_16BIT), 1), no_limit);
    s->bw_rows = curve(&d->bw[COST_FFN]);
    s->flops_rows = curve(cost_rate(d, COST_FFN, q->experts));
    s->few_flops = curve(cost_few(d, q->experts));
    s->attn_rows = curve(cost_rate(d, COST_ATTENTION, COST_16BIT));
    s->linear_bw = curve(&d->bw[COST_LINEAR]);
    s->linear_flops[0] = curve(cost_rate(d, COST_LINEAR, q->dense > COST_8BIT ? q->dense : COST_8BIT));
    s->linear_flops[1] = curve(cost_rate(d, COST_LINEAR, COST_16BIT));
    s->flops = finite_or(cost_at(cost_rate(d, COST_FFN, q->experts), 1), no_limit);
    s->launch = d->latency[COST_ELEM] > 0 ? d->latency[COST_ELEM] : 1e-12; /* also the latency of device-local copies */
    for (int k = 0; k < COST_KINDS; k++) s->launch_of[of_kind[k]] = d->latency[k];
}

/* `ranks` devices read from the disk at once and divide its rate. */
static int open_devices(struct virtual *v, double left_out, int ranks, struct gpu_set **set, struct error *e) {
    const struct cost_domain *d = &v->cost.domain[1];
    struct gpu_spec s = {.n = v->cost.n_devices};
    if (!s.n) return 0;
    rates(&s, d, &v->model);
    s.chosen = v->chosen, s.shares = v->shares, s.parallel = v->parallel;
    if (v->cost.disk > 0 && v->cost.absent > 0) s.disk = v->cost.disk / (v->cost.absent * ranks);
    for (int i = 0; i < s.n; i++) s.id[i] = i;
    s.mem = (size_t)(d->memory > left_out ? d->memory - left_out : 1);
    s.h2d = d->link[COST_H2D].rate, s.d2h = d->link[COST_D2H].rate, s.peer = d->link[COST_PEER].rate;
    s.nopeer = !(s.peer > 0);
    return gpu_set_open_spec(set, &s, NULL, e);
}

/* Bytes that the omitted layers would occupy on a device that holds all of them, with a KV cache of `positions`. */
static double absent(const struct virtual *v, int positions) {
    double sum = 0;
    for (int l = v->w.config.n_layers; l < v->layers; l++) {
        struct param list[PARAMS_MAX];
        struct config all = v->w.config;
        all.n_layers = v->layers;
        int n = params_list(&all, l, MODULE_LAYER, list);
        sum += (double)params_bytes(&v->w.layers[l], list, n) + (double)positions * (double)kv_row_bytes(&all, l, v->kv);
    }
    return sum;
}

int virtual_open(struct virtual **out, const struct virtual_options *o, struct error *e) {
    const struct config *c = &o->w->config;
    const struct layer *last = &o->w->layers[c->n_layers - 1];
    *out = NULL;
    if (o->cost->n_devices > GPU_MAX) return error_set(e, ERR_RUNTIME, "%d devices; hearth uses at most %d", o->cost->n_devices, GPU_MAX);
    struct virtual *v = mem_calloc(1, sizeof *v);
    if (!v) return error_set(e, ERR_MEMORY, "no memory for a machine in virtual time");
    v->cost = *o->cost;
    v->w = *o->w;
    v->layers = c->n_layers;
    if (o->layers > 0 && o->layers < c->n_layers) v->w.config.n_layers = o->layers;
    v->kv = o->kv;
    cost_model_of(&v->model, &v->w.config, (enum dtype)last->o.dtype, (enum dtype)(last->experts ? last->experts[0].gate : last->dense.gate).dtype, o->kv);
    for (int k = 0; k < COST_KINDS && o->taken > 0 && v->cost.dram > 0; k++)
        for (int i = 0; i < v->cost.domain[0].bw[k].n; i++) v->cost.domain[0].bw[k].value[i] *= (float)fmax(1 - o->taken / v->cost.dram, 0.125);
    v->spec = (struct gpu_spec){.n = 1, .host = true};
    rates(&v->spec, &v->cost.domain[0], &v->model);
    v->spec.chosen = v->chosen = o->chosen, v->shares = o->shares, v->parallel = o->parallel;
    v->spec.disk = v->cost.disk, v->spec.missing = v->cost.missing, v->spec.absent = v->cost.absent;
    v->m = (struct machine){
        .w = &v->w, .cost = &v->cost, .model = &v->model, .split = o->split ? o->split : &split_policies[0], .expert_bytes = weights_expert_bytes(o->w)};
    int rc = gpu_open(&v->host, &v->spec, GPU_HOST, e);
    if (!rc) rc = gpu_stream_open(v->host, &v->m.processor, "processor", true, NULL, e);
    if (!rc) rc = gpu_event_open_timed(v->host, &v->clock, e);
    if (!rc) rc = open_devices(v, 0, 1, &v->m.gpus, e);
    if (!rc) v->m.cpu = gpu_stream_exec(v->m.processor);
    if (!rc) rc = step_open(&v->m.step, &v->m, o->kv, e);
    *out = v;
    if (rc) virtual_close(out);
    return rc;
}

void virtual_close(struct virtual **vp) {
    struct virtual *v = *vp;
    if (!v) return;
    *vp = NULL;
    step_close(&v->m.step);
    if (v->prefill.release) work_close(&v->prefill);
    if (v->clock) gpu_event_close(&v->clock);
    if (v->m.processor) gpu_stream_close(&v->m.processor);
    gpu_set_close(&v->m.gpus);
    if (v->host) gpu_close(&v->host);
    mem_free(v->tokens);
    mem_free(v);
}

const struct virtual_used *virtual_used(const struct virtual *v) { return &v->used; }
const struct step *virtual_resident(const struct virtual *v) { return v->m.step; }

/* --- Time ------------------------------------------------------------------------------------------------------------------- */

static double now(struct virtual *v) {
    gpu_event_record(v->clock, v->m.processor);
    gpu_event_sync(v->clock);
    return gpu_event_time(v->clock);
}

static struct gpu_used less(struct gpu_used a, const struct gpu_used *b) {
    for (int i = 0; i < OP_COUNT; i++) a.op[i] -= b->op[i];
    a.computing -= b->computing, a.reading -= b->reading, a.h2d -= b->h2d, a.d2h -= b->d2h, a.disk -= b->disk;
    return a;
}
static double busy(const struct gpu_used *u) { return fmax(u->computing + u->reading, fmax(u->h2d + u->disk, u->d2h)); }

struct since {
    double at;
    struct gpu_used cpu, gpu[GPU_MAX];
};
static struct since begin(struct virtual *v) {
    struct since s = {.at = now(v), .cpu = gpu_used(v->host)};
    for (int i = 0; v->m.gpus && i < v->m.gpus->n; i++) s.gpu[i] = gpu_used(v->m.gpus->gpu[i]);
    return s;
}
static void take_used(struct virtual *v, struct gpu_set *set, const struct since *s, double seconds, double parts) {
    v->used = (struct virtual_used){.seconds = seconds, .cpu = less(gpu_used(v->host), &s->cpu)};
    for (int i = 0; set && i < set->n; i++) {
        struct gpu_used u = less(gpu_used(set->gpu[i]), &s->gpu[i]);
        if (busy(&u) > busy(&v->used.gpu)) v->used.gpu = u;
    }
    double *all[] = {&v->used.cpu.computing, &v->used.cpu.reading, &v->used.gpu.computing, &v->used.gpu.reading,
                     &v->used.gpu.h2d,       &v->used.gpu.d2h,     &v->used.cpu.disk,      &v->used.gpu.disk};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) *all[i] /= parts;
    for (int i = 0; i < OP_COUNT; i++) v->used.cpu.op[i] /= parts, v->used.gpu.op[i] /= parts;
}

/* The KV memory is never written, so no page is allocated. */
static int open_kv(struct virtual *v, struct kv *kv, int capacity, struct error *e) {
    int rc = kv_open(kv, &v->w.config, capacity, v->kv, e);
    if (!rc) kv->committed = capacity;
    return rc;
}

int virtual_step(struct virtual *v, enum step_cut cut, int sessions, int keys, double *seconds, enum step_cut *ran, struct error *e) {
    enum { STEPS = 3 };
    struct kv kv[STEP_ROWS] = {0};
    struct step_span spans[STEP_ROWS];
    struct since s = {0};
    int32_t token = 1;
    int rc = 0, opened = 0;
    for (; opened < sessions && !rc; opened++)
        if ((rc = open_kv(v, &kv[opened], keys + STEPS + 1, e))) break;
    for (int i = 0; i <= STEPS && !rc; i++) {
        for (int k = 0; k < sessions; k++) spans[k] = (struct step_span){.kv = &kv[k], .tokens = &token, .pos = keys + i, .n = 1};
        struct cost_step dual = {
            .how = COST_STEP_DUAL, .rows = sessions, .keys = keys, .on_device = step_resident_layers(v->m.step), .ranks = step_ranks(v->m.step)};
        step_cut_at(v->m.step, cost_cut(&v->cost, &v->model, &dual)); /* as the policy sets it */
        rc = step_run(v->m.step, cut, spans, sessions, NULL, e);
        if (!i && !rc) s = begin(v);
    }
    if (!rc) {
        *seconds = (now(v) - s.at) / STEPS;
        take_used(v, v->m.gpus, &s, *seconds, STEPS);
        if (ran) *ran = step_ran(v->m.step);
    }
    for (int k = 0; k < opened; k++) step_forget(v->m.step, &kv[k]), kv_close(&kv[k]);
    return rc;
}

/* --- Prefills ----------------------------------------------------------------------------------------------------------------- */

/* Address space only. */
static void *pages_alloc(void *ctx, size_t size) {
    size_t *p = mmap(NULL, size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    *p = size + 4096;
    return (char *)p + 4096;
}
static void pages_free(void *ctx, void *p) {
    size_t *head = (size_t *)(void *)((char *)p - 4096);
    munmap(head, *head);
}

static int by_mode(struct virtual *v, const struct mode *mode, struct prefill_job *j, struct error *e) {
    int rc = mode->open(&v->m, j, e);
    if (rc) return rc;
    while ((rc = mode->advance(&v->m, j, e)) == PREFILL_MORE) {
    }
    mode->close(&v->m, j);
    return rc;
}

static int on_processor(struct virtual *v, struct prefill_job *j, struct error *e) {
    int rows = v->cost.cpu_chunk > 0 && v->cost.cpu_chunk < j->n ? v->cost.cpu_chunk : j->n, rc = 0;
    if (v->prefill.release && v->prefill.rows != rows) work_close(&v->prefill);
    if (!v->prefill.release && (rc = work_open(&v->prefill, &v->w.config, rows, pages_alloc, pages_free, NULL, e))) return rc;
    v->m.prefill = &v->prefill;
    return by_mode(v, &mode_cpu, j, e);
}

/* Uses fresh devices whose clocks start at 0: resident weights are evicted for such a prompt, or it runs without them. */
static int streamed(struct virtual *v, const struct prefill_job *j, int ranks, double *seconds, struct error *e) {
    struct gpu_set *set = NULL;
    struct pipe_stats stats;
    struct since s = {.cpu = gpu_used(v->host)};
    int rc = open_devices(v, 0, ranks, &set, e);
    if (!rc) rc = pipe_prefill(&(struct pipe_job){.w = &v->w, .set = set, .ranks = ranks, .cache = j->kv->layer, .n = j->n}, &stats, e);
    if (!rc) {
        const double rate = v->cost.domain[1].alloc, alloc = rate > 0 ? (double)stats.plan.own / rate : 0;
        *seconds = stats.seconds + v->cost.start + alloc, take_used(v, set, &s, *seconds, 1);
        v->used.gpu.memory = alloc;
    }
    gpu_set_close(&set);
    return rc;
}

/* Starts with the weights that are resident during decode: one decode batch loads them before time is measured. With fewer layers it uses fresh
 * devices whose memory is reduced by the omitted layers. */
static int blended(struct virtual *v, struct prefill_job *j, double *seconds, struct error *e) {
    bool all = v->w.config.n_layers == v->layers;
    struct gpu_set *set = NULL, *was = v->m.gpus;
    struct step *step = v->m.step;
    double t;
    int rc = 0;
    if (!all) {
        v->m.gpus = NULL, v->m.step = NULL;
        if (!(rc = open_devices(v, absent(v, j->n), 1, &set, e))) v->m.gpus = set, rc = step_open(&v->m.step, &v->m, v->kv, e);
    }
    if (!rc && !step_blends(v->m.step)) rc = error_set(e, ERR_MEMORY, "devices do not hold all layers: %s", step_resident(v->m.step));
    if (!rc) rc = virtual_step(v, STEP_HYBRID, 1, 1, &t, NULL, e);
    if (!rc) {
        struct since s = begin(v);
        rc = by_mode(v, &mode_blend, j, e);
        double disk = 0; /* shared by CPU and device */
        for (int at = 0; at < j->n; at += COST_BLEND_ROWS) disk += cost_disk(&v->cost, &v->model, j->n - at < COST_BLEND_ROWS ? j->n - at : COST_BLEND_ROWS);
        *seconds = fmax(now(v) - s.at, disk) + v->cost.start;
        take_used(v, v->m.gpus, &s, *seconds, 1);
    }
    if (all) return rc;
    step_close(&v->m.step);
    gpu_set_close(&set);
    v->m.gpus = was, v->m.step = step;
    return rc;
}

int virtual_prefill(struct virtual *v, enum policy_mode mode, int n, double *seconds, struct error *e) {
    struct kv kv;
    struct prefill_job j = {.n = n, .kv = &kv};
    int ranks = mode == POLICY_DSLP ? v->cost.n_devices : 1, rc;
    if (mode != POLICY_CPU && v->cost.n_devices < (mode == POLICY_DSLP ? 2 : 1)) return error_set(e, ERR_RUNTIME, "too few devices");
    if (mem_grow(&v->tokens, &v->cap, (size_t)n, sizeof *v->tokens)) return error_set(e, ERR_MEMORY, "no memory for a prompt");
    memset(v->tokens, 0, (size_t)n * sizeof *v->tokens);
    j.tokens = v->tokens;
    if ((rc = open_kv(v, &kv, n + 1, e))) return rc;
    struct since s = begin(v);
    if (mode == POLICY_BLEND) rc = blended(v, &j, seconds, e);
    else if (mode != POLICY_CPU) rc = streamed(v, &j, ranks, seconds, e);
    else if (!(rc = on_processor(v, &j, e))) *seconds = now(v) - s.at, take_used(v, NULL, &s, *seconds, 1);
    if (!rc && mode != POLICY_CPU && v->w.config.n_layers == v->layers) *seconds += cost_head(&v->cost, 0, &v->model, 1); /* on the CPU, at the end */
    step_forget(v->m.step, &kv);
    kv_close(&kv);
    return rc;
}

/* --- Many prompts ------------------------------------------------------------------------------------------------------------- */

/* One pass of `rows` rows over the layers in micro-batches of up to `most`; each session has n rows at positions from pos. */
static int pass(struct virtual *v, struct paged *p, struct kv *kv, int rows, int most, int n, int pos, struct error *e) {
    int k = 0, micro = 0, room = most, at = 0;
    struct paged_span *spans = mem_alloc((size_t)rows * sizeof *spans);
    if (!spans) return error_set(e, ERR_MEMORY, "no memory for %d rows", rows);
    for (int left = rows; left; k++) {
        int part = n - at < most - at % most ? n - at : most - at % most; /* same chunk ends as in throughput.c */
        if (part > left) part = left;
        if (part > room) micro++, room = most;
        spans[k] = (struct paged_span){.kv = kv, .tokens = v->tokens, .pos = pos + at, .n = part, .total = pos + n, .micro = micro, .tell = at + part == n};
        at = (at + part) % n, room -= part, left -= part;
    }
    int rc = paged_run(p, spans, k, &(struct paged_calls){0}, NULL, e);
    mem_free(spans);
    return rc;
}

const char *virtual_unpaged(const struct virtual *v) { return paged_cannot(&v->m); }
int virtual_paged(struct virtual *v, const struct virtual_many *q, double *read, double *step, struct error *e) {
    enum { STEPS = 2 };
    struct gpu_set *set = NULL, *was = v->m.gpus;
    struct paged *p = NULL;
    struct kv kv;
    long all = (long)q->n * q->prompt;
    int rows = all < SEARCH_READ ? (int)all : SEARCH_READ, half = q->prompt + q->answer / 2, rc;
    struct paged_options o = {.devices = q->cards, .rows = rows > q->n ? rows : q->n, .share = q->share};
    o.micro = q->micro > SEARCH_READ_MICRO ? q->micro : SEARCH_READ_MICRO;
    if (o.micro > o.rows) o.micro = o.rows;
    if (mem_grow(&v->tokens, &v->cap, (size_t)o.rows, sizeof *v->tokens)) return error_set(e, ERR_MEMORY, "no memory for a prompt");
    memset(v->tokens, 0, (size_t)o.rows * sizeof *v->tokens);
    if ((rc = open_kv(v, &kv, q->prompt + q->answer + 1, e))) return rc; /* never written: one cache serves all sessions */
    if (!(rc = open_devices(v, 0, 1, &set, e)) && !set) rc = error_set(e, ERR_RUNTIME, "no device");
    v->m.gpus = set;
    if (!rc) rc = paged_open(&p, &v->m, v->kv, &o, NULL, e);
    struct since s = {0};
    for (int i = 0; i < 2 && !rc; i++) { /* the first pass loads resident weights */
        s = begin(v);
        rc = pass(v, p, &kv, rows, o.micro, q->prompt, 0, e);
    }
    if (!rc) *read = (now(v) - s.at) * (double)all / rows;
    for (int i = 0; i <= STEPS && !rc; i++) {
        rc = pass(v, p, &kv, q->n, q->micro, 1, half, e);
        if (!i && !rc) s = begin(v);
    }
    if (!rc) *step = (now(v) - s.at) / STEPS, take_used(v, set, &s, *step, STEPS);
    paged_close(&p);
    v->m.gpus = was;
    gpu_set_close(&set);
    kv_close(&kv);
    return rc;
}

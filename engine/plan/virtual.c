#include "engine/plan/virtual.h"

#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "engine/exec/prefill.h"
#include "engine/exec/stream/slp.h"
#include "engine/exec/throughput/paged.h"
#include "engine/layer/kv_planes.h"
#include "engine/layer/work_open.h"
#include "engine/placement/search.h"
#include "engine/placement/split.h"
#include "engine/session/prefill_room.h"

struct virtual {
    struct cost_machine cost;
    struct cost_model model;
    struct weights w; /* as in the options, with fewer layers */
    struct gpu_spec spec;
    struct runtime runtime;
    struct gpu *host;
    struct gpu_event *clock;
    struct work prefill;
    int32_t *tokens;
    size_t cap;
    int all_layers;
    enum dtype kv;
    struct virtual_used used;
    double n_chosen; /* from the options, as are shares and parallel */
    const float *expert_shares;
    enum gpu_parallel parallel;
    double cpu_share; /* of host memory bandwidth that uploads leave to the CPU */
};

/* --- The cost model's machine as devices in virtual time -------------------------------------- */

static struct gpu_curve to_gpu_curve(const struct cost_curve *from) {
    struct gpu_curve to = {.n = from->n};
    memcpy(to.rows, from->rows, sizeof to.rows);
    memcpy(to.value, from->value, sizeof to.value);
    return to;
}
static double finite_or(double x, double none) { return isfinite(x) ? x : none; }

/* Fills the rates that CPU and devices have in common. */
static void fill_rates(struct gpu_spec *s, const struct cost_domain *d, const struct cost_model *q, double hand_off_s) {
    static const enum gpu_op_kind of_kind[COST_KINDS] = {[COST_FFN] = GPU_OP_EXPERTS,
                                                         [COST_LINEAR] = GPU_OP_LINEAR,
                                                         [COST_ATTENTION] = GPU_OP_ATTENTION,
                                                         [COST_ELEM] = GPU_OP_ELEM};
    static const double no_limit = 1e30;
    s->is_emulated = s->is_virtual = true;
    s->math = GPU_MATH_BF16;
    s->bw = finite_or(cost_at(&d->bw[COST_ELEM], 1), no_limit);
    s->attn_bw = finite_or(cost_at(&d->bw[COST_ATTENTION], 1), no_limit);
    s->attn = finite_or(cost_at(cost_rate(d, COST_ATTENTION, COST_16BIT), 1), no_limit);
    s->bw_rows = to_gpu_curve(&d->bw[COST_FFN]);
    s->flops_rows = to_gpu_curve(cost_rate(d, COST_FFN, q->experts));
    s->flops_few_rows = to_gpu_curve(cost_rate_few_rows(d, q->experts));
    s->attn_rows = to_gpu_curve(cost_rate(d, COST_ATTENTION, COST_16BIT));
    s->linear_bw = to_gpu_curve(&d->bw[COST_LINEAR]);
    s->linear_flops[0] = to_gpu_curve(cost_rate(d, COST_LINEAR, q->dense > COST_8BIT ? q->dense : COST_8BIT));
    s->linear_flops[1] = to_gpu_curve(cost_rate(d, COST_LINEAR, COST_16BIT));
    s->flops = finite_or(cost_at(cost_rate(d, COST_FFN, q->experts), 1), no_limit);
    s->link_latency = d->link[COST_H2D].latency, s->signal = hand_off_s;
    s->launch = d->latency[COST_ELEM] > 0 ? d->latency[COST_ELEM] : 1e-12; /* also the latency of device-local copies */
    for (int k = 0; k < COST_KINDS; k++) s->launch_by_kind[of_kind[k]] = d->latency[k];
}

/* Scales the read bandwidth of the first `kinds` kinds of operations. */
static void scale_bandwidth(struct cost_domain *d, int kinds, double factor) {
    for (int k = 0; k < kinds; k++)
        for (int i = 0; i < d->bw[k].n; i++) d->bw[k].value[i] *= (float)factor;
}

/* `ranks` devices read from the disk at once and divide its rate. */
static int open_devices(struct virtual *v, double left_out, int ranks, struct gpu_set **set, struct error *e) {
    const struct cost_domain *d = &v->cost.domain[1];
    struct gpu_spec s = {.n = v->cost.n_devices};
    if (!s.n) return 0;
    fill_rates(&s, d, &v->model, v->cost.hand_off_s);
    s.n_selected = v->n_chosen, s.expert_shares = v->expert_shares, s.parallel = v->parallel;
    if (v->cost.disk_bw > 0 && v->cost.disk_share > 0) s.disk_bw = v->cost.disk_bw / (v->cost.disk_share * ranks);
    for (int i = 0; i < s.n; i++) s.id[i] = i;
    s.mem = (size_t)(d->memory > left_out ? d->memory - left_out : 1);
    s.h2d = fmin(d->link[COST_H2D].rate, cost_upload_rate(&v->cost, s.n) / s.n), s.d2h = d->link[COST_D2H].rate,
    s.peer = d->link[COST_PEER].rate;
    s.nopeer = !(s.peer > 0);
    return gpu_set_open_spec(set, &s, e);
}

/* Bytes that the omitted layers would occupy on a device that holds all of them, with a KV cache of `positions`. */
static double omitted_bytes(const struct virtual *v, int positions) {
    double sum = 0;
    for (int l = v->w.config.n_layers; l < v->all_layers; l++) {
        struct param list[PARAMS_MAX];
        struct config all = v->w.config;
        all.n_layers = v->all_layers;
        int n = params_list(&all, l, MODULE_LAYER, list);
        sum +=
            (double)params_bytes(&v->w.layers[l], list, n) + (double)positions * (double)kv_row_bytes(&all, l, v->kv);
    }
    return sum;
}

int virtual_open(struct virtual **out, const struct virtual_options *o, struct error *e) {
    const struct config *c = &o->w->config;
    *out = NULL;
    if (o->cost->n_devices > GPU_MAX)
        return error_set(e, ERR_RUNTIME, "%d devices; hearth uses at most %d", o->cost->n_devices, GPU_MAX);
    struct virtual *v = mem_calloc(1, sizeof *v);
    if (!v) return error_set(e, ERR_MEMORY, "no memory for a machine in virtual time");
    v->cost = *o->cost;
    v->w = *o->w;
    v->all_layers = c->n_layers;
    if (o->max_layers > 0 && o->max_layers < c->n_layers) v->w.config.n_layers = o->max_layers;
    v->kv = o->kv;
    if (config_reads_in_fp8(c)) cost_use_fp8(&v->cost);
    cost_model_of(&v->model, &v->w.config, weights_dense_dtype(o->w), weights_ffn_dtype(o->w), o->kv);
    scale_bandwidth(&v->cost.domain[0], COST_KINDS, cost_cpu_share(&v->cost, o->stream_rate));
    if (v->cost.spread_bw_share > 0)
        scale_bandwidth(&v->cost.domain[0], COST_LINEAR + 1, v->cost.spread_bw_share), v->cost.spread_bw_share = 0;
    v->spec = (struct gpu_spec){.n = 1, .has_cpu_rank = true};
    v->cpu_share = 1, v->spec.bw_share = &v->cpu_share;
    fill_rates(&v->spec, &v->cost.domain[0], &v->model, v->cost.hand_off_s);
    v->spec.n_selected = v->n_chosen = o->n_chosen, v->expert_shares = o->expert_shares, v->parallel = o->parallel;
    v->spec.disk_bw = v->cost.disk_bw, v->spec.disk_share_few_rows = v->cost.disk_share_few_rows,
    v->spec.disk_share = v->cost.disk_share;
    v->runtime = (struct runtime){.w = &v->w,
                                  .cost = &v->cost,
                                  .cost_model = &v->model,
                                  .split_policy = o->split ? o->split : &split_policies[0],
                                  .expert_cache = o->experts,
                                  .usage = o->usage,
                                  .expert_bytes = weights_expert_bytes(o->w)};
    int rc = gpu_open(&v->host, &v->spec, GPU_HOST, e);
    if (!rc) rc = gpu_stream_open(v->host, &v->runtime.cpu_queue, "processor", true, NULL, e);
    if (!rc) rc = gpu_event_open_timed(v->host, &v->clock, e);
    if (!rc) rc = open_devices(v, 0, 1, &v->runtime.gpus, e);
    if (!rc) v->runtime.cpu = gpu_stream_exec(v->runtime.cpu_queue);
    if (!rc) rc = decode_open(&v->runtime.decode, &v->runtime, o->kv, e);
    *out = v;
    if (rc) virtual_close(out);
    return rc;
}

void virtual_close(struct virtual **vp) {
    struct virtual *v = *vp;
    if (!v) return;
    *vp = NULL;
    decode_close(&v->runtime.decode);
    work_close(&v->prefill);
    if (v->clock) gpu_event_close(&v->clock);
    if (v->runtime.cpu_queue) gpu_stream_close(&v->runtime.cpu_queue);
    gpu_set_close(&v->runtime.gpus);
    if (v->host) gpu_close(&v->host);
    mem_free(v->tokens);
    mem_free(v);
}

const struct virtual_used *virtual_used(const struct virtual *v) { return &v->used; }
const struct decode *virtual_decode_state(const struct virtual *v) { return v->runtime.decode; }

/* --- Time ------------------------------------------------------------------------------------- */

static double virtual_now(struct virtual *v) {
    gpu_event_record(v->clock, v->runtime.cpu_queue);
    gpu_event_sync(v->clock);
    return gpu_event_time(v->clock);
}

static struct gpu_stats used_diff(struct gpu_stats a, const struct gpu_stats *b) {
    for (int i = 0; i < OP_COUNT; i++) a.op_s[i] -= b->op_s[i];
    a.bytes -= b->bytes, a.arithmetic_s -= b->arithmetic_s, a.memory_s -= b->memory_s, a.h2d_s -= b->h2d_s,
        a.d2h_s -= b->d2h_s, a.disk_s -= b->disk_s;
    return a;
}
static double longest_busy(const struct gpu_stats *u) {
    return fmax(u->arithmetic_s + u->memory_s, fmax(u->h2d_s + u->disk_s, u->d2h_s));
}

struct measurement {
    double began_at;
    struct gpu_stats cpu, gpu[GPU_MAX];
};
static struct measurement begin_measurement(struct virtual *v) {
    struct measurement s = {.began_at = virtual_now(v), .cpu = gpu_stats(v->host)};
    for (int i = 0; v->runtime.gpus && i < v->runtime.gpus->n; i++) s.gpu[i] = gpu_stats(v->runtime.gpus->gpu[i]);
    return s;
}
static void record_used(struct virtual *v, struct gpu_set *set, const struct measurement *s, double seconds,
                        double parts) {
    v->used = (struct virtual_used){.seconds = seconds, .cpu = used_diff(gpu_stats(v->host), &s->cpu)};
    for (int i = 0; set && i < set->n; i++) {
        struct gpu_stats u = used_diff(gpu_stats(set->gpu[i]), &s->gpu[i]);
        if (longest_busy(&u) > longest_busy(&v->used.gpu)) v->used.gpu = u;
    }
    v->used.host_bytes = v->used.cpu.bytes;
    for (int i = 0; set && i < set->n; i++)
        v->used.host_bytes += used_diff(gpu_stats(set->gpu[i]), &s->gpu[i]).h2d_s * gpu_info(set->gpu[i])->h2d;
    double *all[] = {&v->used.host_bytes,       &v->used.cpu.arithmetic_s, &v->used.cpu.memory_s,
                     &v->used.gpu.arithmetic_s, &v->used.gpu.memory_s,     &v->used.gpu.h2d_s,
                     &v->used.gpu.d2h_s,        &v->used.cpu.disk_s,       &v->used.gpu.disk_s};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) *all[i] /= parts;
    for (int i = 0; i < OP_COUNT; i++) v->used.cpu.op_s[i] /= parts, v->used.gpu.op_s[i] /= parts;
}

/* The KV memory is never written, so no page is allocated. */
static int open_virtual_kv(struct virtual *v, struct kv *kv, int capacity, struct error *e) {
    int rc = kv_open(kv, &v->w.config, kv_planes, capacity, v->kv, e);
    if (!rc) kv->committed = capacity, kv->next_look = INT_MAX; /* no pages, so no large ones */
    return rc;
}

/* The position of batch i. Virtual time keeps no sums of groups of tokens that are still open, so batches of models
 * that select such groups are at the beginning of one. */
static int virtual_position(const struct config *c, int keys, int i) {
    return c->index_block > 1 ? keys / c->index_block * c->index_block : keys + i;
}

int virtual_decode(struct virtual *v, enum exec_mode cut, int sessions, int keys, double *seconds, enum exec_mode *ran,
                   struct error *e) {
    enum { STEPS = 3 };
    struct kv kv[DECODE_MAX_ROWS] = {0};
    struct decode_span spans[DECODE_MAX_ROWS];
    struct measurement s = {0};
    int32_t token = 1;
    int rc = 0, opened = 0;
    for (; opened < sessions && !rc; opened++)
        if ((rc = open_virtual_kv(v, &kv[opened], keys + STEPS + 1, e))) break;
    for (int i = 0; i <= STEPS && !rc; i++) {
        for (int k = 0; k < sessions; k++)
            spans[k] = (struct decode_span){
                .kv = &kv[k], .tokens = &token, .pos = virtual_position(&v->w.config, keys, i), .n = 1};
        struct cost_decode dual = {.mode = DECODE_DUAL,
                                   .rows = sessions,
                                   .keys = keys,
                                   .n_device_layers = decode_resident_layers(v->runtime.decode),
                                   .n_expert_layers = decode_expert_layers(v->runtime.decode),
                                   .ranks = decode_tp_ranks(v->runtime.decode)};
        /* as the policy sets it */
        decode_set_first_spans(v->runtime.decode, cost_best_cut(&v->cost, &v->model, &dual));
        rc = decode_run(v->runtime.decode, cut, spans, sessions, NULL, e);
        if (!i && !rc) s = begin_measurement(v);
    }
    if (!rc) {
        *seconds = (virtual_now(v) - s.began_at) / STEPS;
        record_used(v, v->runtime.gpus, &s, *seconds, STEPS);
        if (ran) *ran = decode_last_exec(v->runtime.decode);
    }
    for (int k = 0; k < opened; k++) decode_forget(v->runtime.decode, &kv[k]), kv_close(&kv[k]);
    return rc;
}

/* --- Prefills --------------------------------------------------------------------------------- */

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

static int run_driver(struct virtual *v, const struct prefill_driver *mode, struct prefill_job *j, struct error *e) {
    int rc = mode->open(&v->runtime, j, e);
    if (rc) return rc;
    while ((rc = mode->advance(&v->runtime, j, e)) == PREFILL_MORE) {
    }
    mode->close(&v->runtime, j);
    return rc;
}

static int prefill_on_cpu(struct virtual *v, struct prefill_job *j, struct error *e) {
    int rows = v->cost.cpu_chunk_rows > 0 && v->cost.cpu_chunk_rows < j->n ? v->cost.cpu_chunk_rows : j->n, rc = 0;
    if (v->prefill.release && v->prefill.rows != rows) work_close(&v->prefill);
    if (!v->prefill.release && (rc = work_open(&v->prefill, &v->w.config, rows, pages_alloc, pages_free, NULL, e)))
        return rc;
    v->runtime.prefill_work = &v->prefill;
    return run_driver(v, &prefill_mode_cpu, j, e);
}

/* Decode's devices with its weights loaded, for a prefill. With fewer layers these are fresh devices whose memory is
 * reduced by the omitted layers. */
struct decode_devices {
    struct gpu_set *own, *set_before;
    struct decode *decode_before;
};
static void close_decode_devices(struct virtual *v, struct decode_devices *d) {
    if (!d->own) return;
    decode_close(&v->runtime.decode);
    gpu_set_close(&d->own);
    v->runtime.gpus = d->set_before, v->runtime.decode = d->decode_before;
}
/* One decode batch loads the weights before time is measured. Close d in any case. */
static int open_decode_devices(struct virtual *v, int positions, struct decode_devices *d, struct error *e) {
    int rc = 0;
    double t;
    *d = (struct decode_devices){.set_before = v->runtime.gpus, .decode_before = v->runtime.decode};
    if (v->w.config.n_layers < v->all_layers) {
        if ((rc = open_devices(v, omitted_bytes(v, positions), 1, &d->own, e))) return rc;
        v->runtime.gpus = d->own, v->runtime.decode = NULL;
        rc = decode_open(&v->runtime.decode, &v->runtime, v->kv, e);
    }
    return rc || !decode_resident_layers(v->runtime.decode) ? rc : virtual_decode(v, DECODE_HYBRID, 1, 1, &t, NULL, e);
}

static int run_stream(struct virtual *v, struct gpu_set *set, const struct slp_job *job, double *seconds,
                      struct error *e) {
    struct slp_stats stats;
    struct measurement s = begin_measurement(v);
    int rc = slp_prefill(job, &stats, e);
    if (rc) return rc;
    const double rate = v->cost.domain[1].alloc, alloc = rate > 0 ? (double)stats.plan.own_bytes / rate : 0;
    *seconds = stats.seconds + v->cost.prefill_start_s + alloc;
    record_used(v, set, &s, *seconds, 1);
    v->used.gpu.alloc_s = alloc;
    return 0;
}

/* Without resident weights, on fresh devices whose clocks start at 0. */
static int stream_everything(struct virtual *v, const struct prefill_job *j, int ranks, double *seconds,
                             struct error *e) {
    struct gpu_set *set = NULL, *was = v->runtime.gpus;
    int rc = open_devices(v, 0, ranks, &set, e);
    v->runtime.gpus = set; /* measured */
    if (!rc)
        rc = run_stream(v, set,
                        &(struct slp_job){.w = &v->w, .set = set, .ranks = ranks, .cache = j->kv->layer, .n = j->n},
                        seconds, e);
    v->runtime.gpus = was;
    gpu_set_close(&set);
    return rc;
}

/* Starts with the weights that are resident during decode, except those that are evicted for the prompt. If memory is
 * short even then, all are, as in the engine. Readers of a disk share it: their weights come from there. */
static int prefill_streamed(struct virtual *v, const struct prefill_job *j, enum exec_mode mode, int ranks,
                            double *seconds, struct error *e) {
    struct resident_set held[GPU_MAX];
    struct decode_devices d;
    if (!decode_resident_layers(v->runtime.decode) || (v->cost.disk_share > 0 && ranks > 1))
        return stream_everything(v, j, ranks, seconds, e);
    int rc = open_decode_devices(v, 0, &d, e);
    if (!rc) prefill_make_room(&v->runtime, mode, j);
    if (!rc && !(rc = decode_lock_weights(v->runtime.decode, held, e))) {
        virtual_now(v);
        rc = run_stream(v, v->runtime.gpus,
                        &(struct slp_job){.w = &v->w,
                                          .set = v->runtime.gpus,
                                          .ranks = ranks,
                                          .cache = j->kv->layer,
                                          .n = j->n,
                                          .resident = held,
                                          .after = v->clock},
                        seconds, e);
        decode_unlock_weights(v->runtime.decode);
        for (int i = 0; i < GPU_MAX; i++) resident_set_close(&held[i]);
    }
    if (v->runtime.decode) decode_reclaim(v->runtime.decode);
    close_decode_devices(v, &d);
    if (rc != ERR_MEMORY) return rc;
    *e = (struct error){0};
    return stream_everything(v, j, ranks, seconds, e);
}

/* Host memory serves the CPU and the uploads: with `busy` of the time spent on uploads, the CPU gets what they
 * leave. */
static int prefill_blended(struct virtual *v, struct prefill_job *j, double busy, double *seconds, struct error *e) {
    const struct cost_domain whole = v->cost.domain[0];
    struct decode_devices d;
    int rc = open_decode_devices(v, j->n, &d, e);
    if (!rc && !decode_can_blend(v->runtime.decode))
        rc = error_set(e, ERR_MEMORY, "devices do not hold all layers: %s", decode_placement_why(v->runtime.decode));
    if (!rc) {
        prefill_make_room(&v->runtime, PREFILL_BLEND, j); /* as the engine does */
        struct measurement s = begin_measurement(v);
        v->cpu_share = cost_cpu_share(&v->cost, busy * cost_upload_rate(&v->cost, v->cost.n_devices));
        scale_bandwidth(&v->cost.domain[0], COST_KINDS, v->cpu_share); /* for the split */
        rc = run_driver(v, &prefill_mode_blend, j, e);
        v->cost.domain[0] = whole;
        decode_reclaim(v->runtime.decode);
        double disk = 0; /* shared by CPU and device */
        for (int at = 0; at < j->n; at += COST_BLEND_ROWS)
            disk += cost_disk_reads(&v->cost, &v->model, j->n - at < COST_BLEND_ROWS ? j->n - at : COST_BLEND_ROWS);
        *seconds = fmax(virtual_now(v) - s.began_at, disk) + v->cost.prefill_start_s;
        record_used(v, v->runtime.gpus, &s, *seconds, 1);
        v->cpu_share = 1;
    }
    close_decode_devices(v, &d);
    return rc;
}

/* First as if uploads never paused, then with the pauses seen: a faster CPU sends no more to the devices, so the
 * estimate stays on the safe side. */
static int prefill_sharing_memory(struct virtual *v, const struct prefill_job *job, double *seconds, struct error *e) {
    const double mostly_busy = 0.7;
    struct prefill_job j = *job;
    int rc = prefill_blended(v, &j, 1, seconds, e);
    const double busy = rc ? 1 : v->used.gpu.h2d_s / *seconds;
    if (busy > mostly_busy) return rc;
    decode_forget(v->runtime.decode, j.kv);
    j = *job;
    return prefill_blended(v, &j, busy, seconds, e);
}

int virtual_prefill(struct virtual *v, enum exec_mode mode, int n, double *seconds, struct error *e) {
    struct kv kv;
    struct prefill_job j = {.n = n, .kv = &kv};
    int ranks = mode == PREFILL_DSLP ? v->cost.n_devices : 1, rc;
    if (mode != PREFILL_CPU && v->cost.n_devices < exec_modes[mode].min_devices)
        return error_set(e, ERR_RUNTIME, "too few devices");
    if (mem_grow(&v->tokens, &v->cap, (size_t)n, sizeof *v->tokens))
        return error_set(e, ERR_MEMORY, "no memory for a prompt");
    memset(v->tokens, 0, (size_t)n * sizeof *v->tokens);
    j.tokens = v->tokens;
    if ((rc = open_virtual_kv(v, &kv, n + 1, e))) return rc;
    struct measurement s = begin_measurement(v);
    if (mode == PREFILL_BLEND) rc = prefill_sharing_memory(v, &j, seconds, e);
    else if (mode != PREFILL_CPU) rc = prefill_streamed(v, &j, mode, ranks, seconds, e);
    else if (!(rc = prefill_on_cpu(v, &j, e)))
        *seconds = virtual_now(v) - s.began_at, record_used(v, NULL, &s, *seconds, 1);
    /* on the CPU, at the end */
    if (!rc && mode != PREFILL_CPU && v->w.config.n_layers == v->all_layers)
        *seconds += cost_head(&v->cost, 0, &v->model, 1);
    decode_forget(v->runtime.decode, &kv);
    kv_close(&kv);
    return rc;
}

/* --- Many prompts ----------------------------------------------------------------------------- */

/* One pass of `rows` rows over the layers in micro-batches of up to `most`; each session has n rows at positions from
 * pos. */
static int run_paged_pass(struct virtual *v, struct paged *p, struct kv *kv, int rows, int most, int n, int pos,
                          struct error *e) {
    int k = 0, micro = 0, room = most, at = 0;
    struct paged_span *spans = mem_alloc((size_t)rows * sizeof *spans);
    if (!spans) return error_set(e, ERR_MEMORY, "no memory for %d rows", rows);
    for (int left = rows; left; k++) {
        int part = n - at < most - at % most ? n - at : most - at % most; /* same chunk ends as in throughput.c */
        if (part > left) part = left;
        if (part > room) micro++, room = most;
        spans[k] = (struct paged_span){.kv = kv,
                                       .tokens = v->tokens,
                                       .pos = pos + at,
                                       .n = part,
                                       .total = pos + n,
                                       .micro = micro,
                                       .want_logits = at + part == n};
        at = (at + part) % n, room -= part, left -= part;
    }
    int rc = paged_run(p, spans, k, &(struct paged_calls){0}, NULL, e);
    mem_free(spans);
    return rc;
}

void virtual_paged_rows(const struct virtual *v, struct search_rows *out) {
    paged_search_rows(&v->w.config, v->kv, out);
}
const char *virtual_why_unpaged(const struct virtual *v) { return paged_why_not(&v->runtime); }
int virtual_paged(struct virtual *v, const struct virtual_throughput *q, double *read, double *step, struct error *e) {
    enum { STEPS = 2 };
    struct gpu_set *set = NULL, *was = v->runtime.gpus;
    struct paged *p = NULL;
    struct kv kv;
    long all = (long)q->n_prompts * q->prompt_tokens;
    const int most = q->read_rows > 0 ? q->read_rows : SEARCH_PREFILL_ROWS;
    int rows = all < most ? (int)all : most, half = q->prompt_tokens + q->answer_tokens / 2, rc;
    struct paged_options o = {.devices = q->n_devices,
                              .rows = rows > q->n_prompts ? rows : q->n_prompts,
                              .resident_fraction = q->resident_share};
    o.micro = q->micro_rows > SEARCH_PREFILL_MICRO_ROWS ? q->micro_rows : SEARCH_PREFILL_MICRO_ROWS;
    if (o.micro > o.rows) o.micro = o.rows;
    if (mem_grow(&v->tokens, &v->cap, (size_t)o.rows, sizeof *v->tokens))
        return error_set(e, ERR_MEMORY, "no memory for a prompt");
    memset(v->tokens, 0, (size_t)o.rows * sizeof *v->tokens);
    /* never written: one cache serves all sessions */
    if ((rc = open_virtual_kv(v, &kv, q->prompt_tokens + q->answer_tokens + 1, e))) return rc;
    if (!(rc = open_devices(v, 0, 1, &set, e)) && !set) rc = error_set(e, ERR_RUNTIME, "no device");
    v->runtime.gpus = set;
    if (!rc) rc = paged_open(&p, &v->runtime, v->kv, &o, NULL, e);
    struct measurement s = {0};
    for (int i = 0; i < 2 && !rc; i++) { /* the first pass loads resident weights */
        s = begin_measurement(v);
        rc = run_paged_pass(v, p, &kv, rows, o.micro, q->prompt_tokens, 0, e);
    }
    if (!rc) *read = (virtual_now(v) - s.began_at) * (double)all / rows;
    for (int i = 0; i <= STEPS && !rc; i++) {
        rc = run_paged_pass(v, p, &kv, q->n_prompts, q->micro_rows, 1, half, e);
        if (!i && !rc) s = begin_measurement(v);
    }
    if (!rc) *step = (virtual_now(v) - s.began_at) / STEPS, record_used(v, set, &s, *step, STEPS);
    paged_close(&p);
    v->runtime.gpus = was;
    gpu_set_close(&set);
    kv_close(&kv);
    return rc;
}

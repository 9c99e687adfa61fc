/* Devices for decode: which layers each holds, their weights, workspaces and timelines. */
#include <stdio.h>
#include <string.h>

#include "engine/base/limit.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/model/rope.h"
#include "engine/pipe/stage.h"
#include "engine/sched/policy.h"
#include "engine/step/experts.h"
#include "engine/step/internal.h"
#include "engine/step/processor.h"
#include "engine/step/resident.h"

struct step_device *step_device_of(struct step *s, int layer) {
    for (int i = 0; i < s->n_dev; i++)
        if (layer >= s->dev[i].first && layer < s->dev[i].last) return &s->dev[i];
    return NULL;
}

/* --- Weights ------------------------------------------------------------------------------------------------------------------ */

/* Allocates memory for a module's ranges, starts the uploads and points the fields to the device. */
static int load_ranges(struct step_device *d, struct stage *stage, char **mem, struct pipe_range *ranges, int n, struct error *e) {
    struct pipe_run runs[MODULE_RANGES];
    size_t bytes;
    int k = pipe_runs(ranges, n, runs, &bytes), rc = gpu_alloc(d->g, (void **)mem, bytes, e);
    if (!rc) d->held += bytes, d->loaded += bytes;
    if (!rc) rc = stage_send(stage, &(struct stage_unit){.runs = runs, .n = k, .to = *mem});
    for (int i = 0; i < n && !rc; i++) *ranges[i].field = *mem + ranges[i].at;
    return rc;
}
static size_t ranges_bytes(struct pipe_range *ranges, int n) {
    struct pipe_run runs[MODULE_RANGES];
    size_t bytes;
    pipe_runs(ranges, n, runs, &bytes);
    return (bytes + 511) & ~(size_t)255;
}

/* Lists a whole layer, or a rank's shard; c is the shard's config. */
static int layer_ranges(const struct weights *w, const struct config *c, const struct share *share, int layer, struct layer *view, struct pipe_range *out) {
    if (share) return share_ranges(c, share, w, layer, view, out);
    *view = (struct layer){0};
    return module_ranges(c, layer, MODULE_LAYER, &w->layers[layer], view, out);
}
/* The final norm and LM head, without the embedding. block_close's weights go with the last layer. */
static int head_ranges(const struct weights *w, struct weights *view, struct pipe_range *out) {
    int n = module_ranges(&w->config, 0, MODULE_ENDS, w, view, out), kept = 0;
    for (int i = 0; i < n; i++)
        if (out[i].field != &view->embed.data && out[i].field != &view->embed.scale) out[kept++] = out[i];
    return kept;
}
static int close_ranges(const struct weights *w, struct weights *view, struct pipe_range *out) {
    return module_ranges(&w->config, 0, MODULE_CLOSE, w, view, out);
}

/* Uploads everything assigned to the device. */
static int load(struct step_device *d, struct error *e) {
    const struct weights *w = d->s->m->w;
    const struct gpu_set *set = d->s->m->gpus;
    struct pipe_range ranges[MODULE_RANGES];
    struct stage *stage;
    const int threads = d->own && !set->spec.is_virtual ? pin_stage_threads() : stage_threads(set, w); /* gathering column shards needs threads */
    int rc = stage_open(&stage, &(struct stage_options){.set = set, .g = d->g, .stream = d->main, .stop = &d->stop, .threads = threads}, e);
    for (int l = d->first; l < d->last && !rc; l++) {
        if (!d->s->processor && (rc = scan_dense(&d->s->m->scan, l, e))) break;
        rc = load_ranges(d, stage, &d->layer[l].mem, ranges, layer_ranges(w, d->c, d->own ? &d->share : NULL, l, &d->layer[l].view, ranges), e);
    }
    int close = d->last == w->config.n_layers ? close_ranges(w, d->head_weights, ranges) : 0;
    if (!rc && close) rc = load_ranges(d, stage, &d->close_mem, ranges, close, e);
    if (!rc && d->head) rc = load_ranges(d, stage, &d->head_mem, ranges, head_ranges(w, d->head_weights, ranges), e);
    if (!rc) rc = stage_flush(stage);
    stage_close(&stage);
    for (int i = 0; i < STEP_MICROS && !rc; i++) rc = gpu_copy(d->main, d->work[i].inv_freq, w->inv_freq, (size_t)rope_floats(&w->config) * 4, GPU_H2D);
    return rc ? rc : gpu_stream_sync(d->main);
}

int step_load(struct step *s, struct error *e) {
    int rc = 0;
    for (int i = 0; i < s->n_dev && !rc && !s->loaded; i++) rc = load(&s->dev[i], e);
    if (rc) step_unload(s);
    s->loaded = !rc;
    return rc;
}

void step_unload(struct step *s) {
    for (int i = 0; i < s->n_dev; i++) {
        struct step_device *d = &s->dev[i];
        if (d->main) gpu_stream_sync(d->main); /* a failed load has copies in flight */
        step_graphs_drop(d);
        step_experts_close(d);
        step_draft_close(d);
        for (int l = 0; l < s->c->n_layers && d->layer; l++) {
            gpu_free(d->g, d->layer[l].mem);
            d->layer[l].mem = NULL;
        }
        gpu_free(d->g, d->head_mem);
        gpu_free(d->g, d->close_mem);
        d->head_mem = d->close_mem = NULL;
        d->held -= d->loaded;
        d->loaded = 0;
    }
    s->loaded = false;
}

/* --- Opening ----------------------------------------------------------------------------------------------------------------------  */

static void *device_alloc(void *ctx, size_t size) {
    struct step_device *d = ctx;
    void *p;
    return gpu_alloc(d->g, &p, size, NULL) ? NULL : p;
}
static void device_release(void *ctx, void *p) { /* queued operations may still read it */
    struct step_device *d = ctx;
    gpu_stream_sync(d->main);
    gpu_free(d->g, p);
}

static int open_device(struct step_device *d, struct error *e) {
    const struct config *c = d->s->c;
    size_t hidden = (size_t)STEP_ROWS * (size_t)c->hidden * 4;
    int rc = gpu_stream_open(d->g, &d->main, "step", true, &d->stop, e);
    d->layer = mem_calloc((size_t)c->n_layers, sizeof *d->layer);
    d->head_weights = mem_alloc(sizeof *d->head_weights);
    d->c = d->own ? d->own : c;
    d->cache = &d->s->cache;
    if (d->own) {
        if ((d->cache = mem_calloc(1, sizeof *d->cache))) rc = rc ? rc : step_cache_open(d->cache, d->c, d->s->kv, e);
        else if (!rc) rc = error_set(e, ERR_MEMORY, "no memory for the layers of a device");
        for (int i = 0; i < STEP_MICROS && !rc; i++) rc = gpu_alloc(d->g, (void **)&d->part[i], hidden, e);
    }
    if (!rc && (!d->layer || !d->head_weights)) rc = error_set(e, ERR_MEMORY, "no memory for the layers of a device");
    if (!rc) *d->head_weights = *d->s->m->w;
    for (int i = 0; i < STEP_MICROS && !rc; i++) rc = work_open(&d->work[i], c, STEP_ROWS, device_alloc, device_release, d, e);
    if (!rc) rc = gpu_alloc(d->g, (void **)&d->rows, step_rows_bytes(d->cache, STEP_ROWS), e);
    if (!rc) rc = gpu_alloc(d->g, (void **)&d->x, hidden, e);
    if (!rc) rc = step_graphs_open(d, e);
    if (!rc && d->head) rc = gpu_alloc(d->g, (void **)&d->xn, hidden, e);
    if (!rc && d->head) rc = gpu_alloc(d->g, (void **)&d->logits, (size_t)STEP_ROWS * (size_t)c->vocab * 4, e);
    return rc;
}

/* Bytes kept free of resident layers: open_device's buffers, KV of the first sessions, and a prefill's ring. */
size_t step_reserve(const struct step *s, struct gpu *gpu) {
    const struct gpu_info *g = gpu_info(gpu);
    const struct config *c = s->c;
    size_t own =
        STEP_MICROS * work_bytes(c, STEP_ROWS) + step_rows_bytes(&s->cache, STEP_ROWS) + (size_t)STEP_ROWS * ((size_t)c->vocab + 2 * (size_t)c->hidden) * 4;
    size_t cache = (size_t)4096 * kv_token_bytes(c, DT_F32) + MIRROR_STATES * kv_state_bytes(c), rest = g->mem / 8;
    return own + (cache < rest ? cache : rest) + 8 * s->m->expert_bytes + rest;
}

/* Gives what is left to routed experts. */
static void budget(struct step *s, struct step_device *d, size_t free, size_t keep) {
    const struct machine *m = s->m;
    struct budget_out out;
    struct budget_in in = {.free = free,
                           .weights = d->weights,
                           .keep = keep + (size_t)STEP_ROWS * (9 * (size_t)s->c->hidden + (size_t)s->c->n_experts) * 4, /* expert_pool.c, router_lookahead.c */
                           .slot = step_experts_slot(m),
                           .each = s->c->n_experts,
                           .ask = s->processor ? BUDGET_OFF : m->expert_cache,
                           .n = m->expert_cache_n};
    for (int l = d->first; l < d->last; l++) in.layers += s->c->layer[l].moe;
    budget_give(&in, &out);
    d->each = out.each;
    snprintf(d->experts_why, sizeof d->experts_why, "%s", out.why);
    log_say(LOG_INFO, "routed experts on device %d: %s", d->rank, out.why);
}

/* Returns the ranks of tensor parallelism and each one's shard; 0: use whole layers, as in by_layers. why: the reason. */
static int choose_ranks(struct step *s, const struct resident_in *in, const struct resident_out *by_layers, struct share share[GPU_MAX],
                        struct resident_out *out, char *why, size_t cap) {
    const struct weights *w = s->m->w;
    const enum gpu_parallel ask = s->m->gpus->spec.parallel;
    const bool asked = ask == GPU_PARALLEL_TENSOR;
    const int most = asked ? in->n_devices : by_layers->n;
    struct pipe_range ranges[MODULE_RANGES];
    struct layer view;
    *why = 0;
    if (ask == GPU_PARALLEL_LAYERS || in->n_devices < 2) return 0;
    if (!asked && (most < 2 || in->most || by_layers->until[most - 1] < in->n_layers))
        return 0; /* one device holds all layers, or all devices together do not */
    if (!asked && s->m->whole) return snprintf(why, cap, "blended prefill needs whole layers"), 0;
    if (!asked && !s->processor && s->m->expert_cache != BUDGET_OFF) return snprintf(why, cap, "an expert pool needs whole layers"), 0;
    int ranks = most;
    for (bool cut = false; ranks > 1 && !cut; ranks -= !cut) {
        size_t bytes[GPU_MAX] = {0};
        if (!share_cut(w, ranks, share, why, cap)) continue;
        for (int r = 0; r < ranks; r++) {
            const struct config own = share_config(&w->config, &share[r]);
            for (int l = 0; l < in->n_layers; l++) bytes[r] += ranges_bytes(ranges, layer_ranges(w, &own, &share[r], l, &view, ranges));
        }
        cut = resident_share(in, ranks, bytes, out);
        if (!cut) snprintf(why, cap, "a shard does not fit on its device");
    }
    if (ranks < 2) return 0;
    *why = 0;
    if (!s->m->cost || !s->m->model) return asked ? ranks : (snprintf(why, cap, "the machine is not calibrated"), 0);
    struct policy_parallel_out p;
    policy_parallel(s->m->cost, s->m->model, ranks, &p);
    snprintf(why, cap, "prefill of %d tokens in %.3g s instead of %.3g s by layers, decode of %d more in %.3g ms instead of %.3g ms each", POLICY_QUESTION,
             p.question[1], p.question[0], POLICY_ANSWER, p.step[1] * 1e3, p.step[0] * 1e3);
    return asked || p.tensor ? ranks : 0;
}

static int choose(struct step *s, struct error *e) {
    const struct weights *w = s->m->w;
    const struct gpu_set *set = s->m->gpus;
    size_t *layers = mem_alloc((size_t)s->c->n_layers * sizeof *layers);
    if (!layers) return error_set(e, ERR_MEMORY, "no memory for the layers of a device");
    struct resident_in in = {.n_layers = s->c->n_layers, .layer = layers, .n_devices = set->n, .most = (int)limit_get(LIMIT_LAYERS, 0)};
    struct resident_out out;
    struct pipe_range ranges[MODULE_RANGES];
    struct layer view;
    struct weights head;
    for (int l = 0; l < s->c->n_layers; l++) layers[l] = ranges_bytes(ranges, layer_ranges(w, s->c, NULL, l, &view, ranges));
    layers[s->c->n_layers - 1] += ranges_bytes(ranges, close_ranges(w, &head, ranges));
    in.head = ranges_bytes(ranges, head_ranges(w, &head, ranges));
    for (int i = 0; i < set->n; i++) {
        in.free[i] = gpu_mem_free(set->gpu[i]);
        in.reserve[i] = step_reserve(s, set->gpu[i]);
    }
    resident_choose(&in, &out);
    struct share share[GPU_MAX];
    struct resident_out shared;
    char why[160];
    const int ranks = choose_ranks(s, &in, &out, share, &shared, why, sizeof why);
    if (ranks) out = shared;
    s->tensor = ranks > 0;
    char all[320];
    snprintf(all, sizeof all, "%s%s%s", out.why, !*why ? "" : ranks ? "; " : "; not tensor parallel: ", why);
    for (int i = 0; i < out.n; i++)
        if (s->tensor)
            s->dev[s->n_dev++] = (struct step_device){.s = s, .g = set->gpu[i], .rank = i, .last = out.until[i], .head = out.head == i, .share = share[i]};
        else if (out.until[i] > (i ? out.until[i - 1] : 0)) /* a device too small for any layer is skipped */
            s->dev[s->n_dev++] =
                (struct step_device){.s = s, .g = set->gpu[i], .rank = i, .first = i ? out.until[i - 1] : 0, .last = out.until[i], .head = out.head == i};
    s->n_resident = out.n ? out.until[out.n - 1] : 0;
    for (int i = 0; i < s->n_dev; i++) {
        struct step_device *d = &s->dev[i];
        if (s->tensor && !(d->own = mem_alloc(sizeof *d->own))) {
            mem_free(layers);
            return error_set(e, ERR_MEMORY, "no memory for the layers of a device");
        }
        if (s->tensor) *d->own = share_config(s->c, &d->share);
        for (int l = d->first; l < d->last; l++)
            d->weights += s->tensor ? ranges_bytes(ranges, layer_ranges(w, d->own, &d->share, l, &view, ranges)) : layers[l];
        if (s->dev[i].head) s->dev[i].weights += in.head;
        d->draft_full = s->tensor; /* no draft experts: one device would need all of a layer */
        if (!s->tensor) budget(s, &s->dev[i], in.free[s->dev[i].rank], in.reserve[s->dev[i].rank]);
    }
    mem_free(layers);
    step_tell(s, all);
    if (s->n_resident < s->c->n_layers) log_say(LOG_INFO, "%s", s->why);
    return 0;
}

void step_where(const struct step *s, struct where *out) {
    const struct weights *w = s->m->w;
    const int n_layers = s->c->n_layers;
    struct pipe_range ranges[MODULE_RANGES];
    struct weights ends = *w;
    struct layer view;
    const size_t head = ranges_bytes(ranges, head_ranges(w, &ends, ranges));
    size_t rest = 0;
    int moe = 0;
    bool headed = false;
    out->n = 0;
    for (int i = 0; i < s->n_dev; i++) {
        const struct step_device *d = &s->dev[i];
        const struct where_row row = {.device = d->rank, .first = d->first, .last = d->last};
        struct where_row layers = row, experts = row, ends_row = {.what = WHERE_HEAD, .device = d->rank, .bytes = head},
                         room = {.what = WHERE_ROOM, .device = d->rank, .bytes = step_reserve(s, d->g)};
        layers.what = WHERE_LAYERS, layers.bytes = d->weights - (d->head ? head : 0);
        where_add(out, layers, s->layers_why);
        headed |= d->head;
        if (d->head) where_add(out, ends_row, "after the last layer");
        moe = 0;
        for (int l = d->first; l < d->last; l++) moe += s->c->layer[l].moe;
        experts.what = WHERE_EXPERTS, experts.each = d->each, experts.bytes = (size_t)d->each * (size_t)moe * step_experts_slot(s->m);
        if (d->each) where_add(out, experts, d->experts_why);
        where_add(out, room, "kept free of weights");
    }
    for (int l = s->n_resident; l < n_layers; l++) rest += ranges_bytes(ranges, layer_ranges(w, s->c, NULL, l, &view, ranges));
    where_add(out, (struct where_row){.what = WHERE_EMBEDDING, .device = -1, .bytes = w->bytes_embed}, "one row is read per token");
    if (s->n_resident < n_layers)
        where_add(out, (struct where_row){.what = WHERE_LAYERS, .device = -1, .first = s->n_resident, .last = n_layers, .bytes = rest}, s->layers_why);
    if (!headed)
        where_add(out, (struct where_row){.what = WHERE_HEAD, .device = -1, .bytes = head}, s->n_dev ? "no device has room for it" : "after the last layer");
    if (s->c->n_experts)
        where_add(out, (struct where_row){.what = WHERE_EXPERTS, .device = -1, .last = n_layers, .each = s->c->n_experts, .bytes = w->bytes_routed},
                  "computed by the CPU, except those resident on or uploaded to devices");
}

void step_tell(struct step *s, const char *layers_why) {
    struct where list;
    snprintf(s->layers_why, sizeof s->layers_why, "%s", layers_why);
    step_where(s, &list);
    where_say(&list, s->why, sizeof s->why);
}

int step_devices_open(struct step *s, struct error *e) {
    int rc = choose(s, e);
    for (int i = 0; i < s->n_dev && !rc; i++) rc = open_device(&s->dev[i], e);
    if (!rc) step_blocks_open(s);
    return rc || !s->n_dev ? rc : step_numbers_open(s, e);
}

static void close_numbers(struct step *s) {
    for (int i = 0; i < STEP_MICROS; i++) {
        struct step_micro *m = &s->micro[i];
        processor_settle(s->m, (struct gpu_number *[]){m->arrived, m->answered}, 2);
        gpu_number_close(&m->arrived);
        gpu_number_close(&m->answered);
        for (int k = 0; k < GPU_MAX; k++) gpu_number_close(&m->part[k]);
        m->n_arrived = m->n_wanted = m->n_answered = m->n_parts = 0;
    }
}

int step_numbers_open(struct step *s, struct error *e) {
    int rc = 0;
    close_numbers(s);
    for (int i = 0; i < STEP_MICROS && !rc; i++) {
        struct step_micro *m = &s->micro[i];
        rc = gpu_number_open(s->dev[0].g, &m->arrived, e);
        if (!rc) rc = gpu_number_open(s->dev[0].g, &m->answered, e);
        for (int k = 0; k < s->n_dev && s->tensor && !rc; k++) rc = gpu_number_open(s->dev[k].g, &m->part[k], e);
    }
    return rc;
}

bool step_device_error(struct step *s, struct error *e) {
    for (int i = 0; i < s->n_dev; i++)
        if (gpu_error(s->dev[i].g, e)) return true;
    return false;
}

void step_devices_close(struct step *s) {
    while (s->mirrors) step_mirror_drop(s, s->mirrors);
    step_unload(s);
    close_numbers(s);
    for (int i = 0; i < s->n_dev; i++) {
        struct step_device *d = &s->dev[i];
        for (int k = 0; k < STEP_MICROS; k++)
            if (d->work[k].release) work_close(&d->work[k]);
        void *all[] = {d->rows, d->x, d->xn, d->logits, d->part[0], d->part[1]};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) gpu_free(d->g, all[k]);
        step_fill_close(d);
        step_graphs_close(d);
        mem_free(d->score_mem), mem_free(d->predict_mem);
        mem_free(d->layer);
        mem_free(d->head_weights);
        if (d->own && d->cache) step_cache_close(d->cache), mem_free(d->cache);
        mem_free(d->own);
        gpu_stream_close(&d->main);
    }
    s->n_dev = s->n_resident = 0;
    s->tensor = false;
}

/* --- Host memory ------------------------------------------------------------------------------------------------------------------- */

static void *host_alloc(struct step *s, size_t size, struct error *e) {
    void *p;
    if (s->n_dev) return gpu_host_alloc(s->dev[0].g, &p, size, e) ? NULL : p;
    if (!(p = mem_aligned(64, size))) error_set(e, ERR_MEMORY, "no memory for decode");
    return p;
}
static void host_free(struct step *s, void *p) {
    if (s->n_dev) gpu_host_free(s->dev[0].g, p);
    else mem_free(p);
}
static void *work_alloc(void *s, size_t size) { return host_alloc(s, size, &(struct error){0}); }
static void work_free(void *s, void *p) { host_free(s, p); }

int step_processor_open(struct step *s, struct error *e) {
    int rc = 0;
    for (int i = 0; i < STEP_MICROS && !rc; i++) rc = work_open(&s->micro[i].host, s->c, STEP_ROWS, work_alloc, work_free, s, e);
    if (!rc) rc = work_open(&s->head, s->c, STEP_ROWS, work_alloc, work_free, s, e);
    if (!rc && !(s->logits = host_alloc(s, (size_t)STEP_ROWS * (size_t)s->c->vocab * 4, e))) rc = e->code;
    size_t rows = 0;
    for (int i = 0; i < s->n_dev; i++) rows = s->tensor ? rows + step_rows_bytes(s->dev[i].cache, STEP_ROWS) : step_rows_bytes(&s->cache, STEP_ROWS);
    if (!rc && s->n_dev && !(s->host_rows = host_alloc(s, rows, e))) rc = e->code;
    char *at = s->host_rows;
    for (int i = 0; i < s->n_dev && !rc; i++) s->dev[i].host_rows = at, at += s->tensor ? step_rows_bytes(s->dev[i].cache, STEP_ROWS) : 0;
    if (!rc && s->tensor && !(s->parts = host_alloc(s, step_tensor_parts(s), e))) rc = e->code;
    if (!rc && s->n_dev) rc = step_states_open(s, e);
    if (!rc && s->n_dev && !(s->bad = host_alloc(s, GPU_MAX * STEP_MICROS * sizeof *s->bad, e))) rc = e->code;
    if (rc) step_processor_close(s);
    return rc;
}

void step_processor_close(struct step *s) {
    for (int i = 0; i < STEP_MICROS; i++)
        if (s->micro[i].host.release) work_close(&s->micro[i].host);
    if (s->head.release) work_close(&s->head);
    host_free(s, s->logits);
    host_free(s, s->host_rows);
    host_free(s, s->host_states);
    host_free(s, s->parts);
    host_free(s, (void *)s->bad);
    s->logits = s->parts = NULL;
    s->host_rows = s->host_states = NULL;
    s->n_host_states = 0;
    s->bad = NULL;
}

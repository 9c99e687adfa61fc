/* Devices that take part in steps: which layers each holds, their weights there, workspaces and the number hand-off. */
#include <stdio.h>
#include <string.h>

#include "engine/base/limit.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/model/rope.h"
#include "engine/pipe/stage.h"
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

/* Room for the ranges of a module, and the copies on their way; their fields then point there. */
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

static int layer_ranges(const struct weights *w, int layer, struct layer *view, struct pipe_range *out) {
    *view = (struct layer){0};
    return module_ranges(&w->config, layer, MODULE_LAYER, &w->layers[layer], view, out);
}
/* The final norm and the head; the embedding stays where it is. What makes one of several residual streams is where the last layer is. */
static int head_ranges(const struct weights *w, struct weights *view, struct pipe_range *out) {
    int n = module_ranges(&w->config, 0, MODULE_ENDS, w, view, out), kept = 0;
    for (int i = 0; i < n; i++)
        if (out[i].field != &view->embed.data && out[i].field != &view->embed.scale) out[kept++] = out[i];
    return kept;
}
static int close_ranges(const struct weights *w, struct weights *view, struct pipe_range *out) {
    return module_ranges(&w->config, 0, MODULE_CLOSE, w, view, out);
}

/* Everything that this device is to hold. */
static int load(struct step_device *d, struct error *e) {
    const struct weights *w = d->s->m->w;
    const struct gpu_set *set = d->s->m->gpus;
    struct pipe_range ranges[MODULE_RANGES];
    struct stage *stage;
    int rc = stage_open(&stage, &(struct stage_options){.set = set, .g = d->g, .stream = d->main, .stop = &d->stop, .threads = stage_threads(set, w)}, e);
    for (int l = d->first; l < d->last && !rc; l++) {
        if (!d->s->processor && (rc = scan_dense(&d->s->m->scan, l, e))) break;
        rc = load_ranges(d, stage, &d->layer[l].mem, ranges, layer_ranges(w, l, &d->layer[l].view, ranges), e);
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
        if (d->main) gpu_stream_sync(d->main); /* a load that failed has copies on their way */
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

/* --- Opening -------------------------------------------------------------------------------------------------------------------- */

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
    if (!rc && (!d->layer || !d->head_weights)) rc = error_set(e, ERR_MEMORY, "no memory for the layers of a device");
    if (!rc) *d->head_weights = *d->s->m->w;
    for (int i = 0; i < STEP_MICROS && !rc; i++) rc = work_open(&d->work[i], c, STEP_ROWS, device_alloc, device_release, d, e);
    if (!rc) rc = gpu_alloc(d->g, (void **)&d->rows, step_rows_bytes(d->s, STEP_ROWS), e);
    if (!rc) rc = gpu_alloc(d->g, (void **)&d->x, hidden, e);
    if (!rc) rc = step_graphs_open(d, e);
    if (!rc && d->head) rc = gpu_alloc(d->g, (void **)&d->xn, hidden, e);
    if (!rc && d->head) rc = gpu_alloc(d->g, (void **)&d->logits, (size_t)STEP_ROWS * (size_t)c->vocab * 4, e);
    return rc;
}

/* What a device keeps free of resident layers: what open_device takes, caches of the first sessions, and room for a prefill to
 * stream weights through. */
size_t step_reserve(const struct step *s, struct gpu *gpu) {
    const struct gpu_info *g = gpu_info(gpu);
    const struct config *c = s->c;
    size_t own = STEP_MICROS * work_bytes(c, STEP_ROWS) + step_rows_bytes(s, STEP_ROWS) + (size_t)STEP_ROWS * ((size_t)c->vocab + 2 * (size_t)c->hidden) * 4;
    size_t cache = (size_t)4096 * kv_token_bytes(c, DT_F32) + MIRROR_STATES * kv_state_bytes(c), rest = g->mem / 8;
    return own + (cache < rest ? cache : rest) + 8 * s->m->expert_bytes + rest;
}

/* What is left of it is for routed experts. */
static void budget(struct step *s, struct step_device *d, size_t free, size_t keep) {
    const struct machine *m = s->m;
    struct budget_out out;
    struct budget_in in = {.free = free,
                           .weights = d->weights,
                           .keep = keep + (size_t)STEP_ROWS * (9 * (size_t)s->c->hidden + (size_t)s->c->n_experts) * 4, /* experts.c, guess.c */
                           .slot = step_experts_slot(m),
                           .each = s->c->n_experts,
                           .ask = s->processor ? BUDGET_OFF : m->expert_cache,
                           .n = m->expert_cache_n};
    for (int l = d->first; l < d->last; l++) in.layers += s->c->layer[l].moe;
    budget_give(&in, &out);
    d->each = out.each;
    size_t at = strlen(s->why);
    if (out.each) snprintf(s->why + at, sizeof s->why - at, "; routed experts: %s", out.why);
    log_say(LOG_INFO, "routed experts on device %d: %s", d->rank, out.why);
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
    for (int l = 0; l < s->c->n_layers; l++) layers[l] = ranges_bytes(ranges, layer_ranges(w, l, &view, ranges));
    layers[s->c->n_layers - 1] += ranges_bytes(ranges, close_ranges(w, &head, ranges));
    in.head = ranges_bytes(ranges, head_ranges(w, &head, ranges));
    for (int i = 0; i < set->n; i++) {
        in.free[i] = gpu_mem_free(set->gpu[i]);
        in.reserve[i] = step_reserve(s, set->gpu[i]);
    }
    resident_choose(&in, &out);
    snprintf(s->why, sizeof s->why, "%s", out.why);
    for (int i = 0; i < out.n; i++)
        if (out.until[i] > (i ? out.until[i - 1] : 0)) /* a device too small for any layer has no part in steps */
            s->dev[s->n_dev++] =
                (struct step_device){.s = s, .g = set->gpu[i], .rank = i, .first = i ? out.until[i - 1] : 0, .last = out.until[i], .head = out.head == i};
    s->n_resident = out.n ? out.until[out.n - 1] : 0;
    for (int i = 0; i < s->n_dev; i++) {
        for (int l = s->dev[i].first; l < s->dev[i].last; l++) s->dev[i].weights += layers[l];
        if (s->dev[i].head) s->dev[i].weights += in.head;
        budget(s, &s->dev[i], in.free[s->dev[i].rank], in.reserve[s->dev[i].rank]);
    }
    mem_free(layers);
    if (s->n_resident < s->c->n_layers) log_say(LOG_INFO, "%s", s->why);
    return 0;
}

int step_devices_open(struct step *s, struct error *e) {
    int rc = choose(s, e);
    for (int i = 0; i < s->n_dev && !rc; i++) rc = open_device(&s->dev[i], e);
    return rc || !s->n_dev ? rc : step_numbers_open(s, e);
}

static void close_numbers(struct step *s) {
    for (int i = 0; i < STEP_MICROS; i++) {
        struct step_micro *m = &s->micro[i];
        processor_settle(s->m, (struct gpu_number *[]){m->arrived, m->answered}, 2);
        gpu_number_close(&m->arrived);
        gpu_number_close(&m->answered);
        m->n_arrived = m->n_wanted = m->n_answered = 0;
    }
}

int step_numbers_open(struct step *s, struct error *e) {
    int rc = 0;
    close_numbers(s);
    for (int i = 0; i < STEP_MICROS && !rc; i++) {
        struct step_micro *m = &s->micro[i];
        rc = gpu_number_open(s->dev[0].g, &m->arrived, e);
        if (!rc) rc = gpu_number_open(s->dev[0].g, &m->answered, e);
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
        void *all[] = {d->rows, d->x, d->xn, d->logits};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) gpu_free(d->g, all[k]);
        step_fill_close(d);
        step_graphs_close(d);
        mem_free(d->score_mem), mem_free(d->predict_mem);
        mem_free(d->layer);
        mem_free(d->head_weights);
        gpu_stream_close(&d->main);
    }
    s->n_dev = s->n_resident = 0;
}

/* --- Host memory ------------------------------------------------------------------------------------------------------------------- */

static void *host_alloc(struct step *s, size_t size, struct error *e) {
    void *p;
    if (s->n_dev) return gpu_host_alloc(s->dev[0].g, &p, size, e) ? NULL : p;
    if (!(p = mem_aligned(64, size))) error_set(e, ERR_MEMORY, "no memory for steps");
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
    if (!rc && s->n_dev && !(s->host_rows = host_alloc(s, step_rows_bytes(s, STEP_ROWS), e))) rc = e->code;
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
    host_free(s, (void *)s->bad);
    s->logits = NULL;
    s->host_rows = s->host_states = NULL;
    s->n_host_states = 0;
    s->bad = NULL;
}

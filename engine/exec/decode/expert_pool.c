#include "engine/exec/decode/expert_pool_internal.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/exec/cpu_layer.h"

size_t expert_pool_slot_bytes(const struct runtime *m, int layer) {
    size_t most = 0;
    for (int l = layer < 0 ? 0 : layer; l < (layer < 0 ? m->w->config.n_layers : layer + 1); l++) {
        const size_t bytes = weights_largest_expert(m->w, l);
        if (bytes > most) most = bytes;
    }
    return (most + 4096) & ~(size_t)255; /* parts are aligned to 256 bytes */
}

/* --- Open, close ------------------------------------------------------------------------------ */

static void close_queues(struct expert_pool *x) {
    atomic_store(&x->stop, 1);
    router_lookahead_abort(&x->lookahead);
    upload_abort(&x->uploads);
    for (int i = 0; i < DECODE_MICRO_BATCHES; i++)
        if (x->done[i]) gpu_timeline_abort(x->done[i]);
    router_lookahead_close_stream(&x->lookahead);
    if (x->compute) gpu_stream_sync(x->compute);
    gpu_stream_close(&x->compute);
    upload_close(&x->uploads);
    for (int i = 0; i < DECODE_MICRO_BATCHES; i++) gpu_timeline_close(&x->done[i]);
    for (int i = 0; i < 2 * DECODE_MICRO_BATCHES; i++) gpu_event_close(&x->ready[i / 2][i % 2]);
    for (int i = 0; i < DECODE_MICRO_BATCHES; i++)
        gpu_event_close(&x->begin[i]), gpu_event_close(&x->end[i]), x->timed_rows[i] = 0;
    atomic_store(&x->stop, 0);
    memset(x->n_done, 0, sizeof x->n_done);
    memset(x->n_awaited, 0, sizeof x->n_awaited);
}

static int open_queues(struct expert_pool *x, struct error *e) {
    const struct runtime *m = x->d->s->m;
    struct gpu *g = x->d->g;
    const struct stage_options to = {.set = m->gpus,
                                     .g = g,
                                     .stop = &x->stop,
                                     .threads = stage_threads(m->gpus, m->w),
                                     .trace = m->trace,
                                     .rank = x->d->rank};
    int rc = upload_open(&x->uploads, "experts' link", &to, e);
    if (!rc) rc = gpu_stream_open(g, &x->compute, "experts", true, &x->stop, e);
    if (!rc) rc = router_lookahead_open_stream(&x->lookahead, &x->stop, e);
    for (int i = 0; i < DECODE_MICRO_BATCHES && !rc; i++) {
        rc = gpu_timeline_open(g, &x->done[i], e);
        for (int k = 0; k < 2 && !rc; k++) rc = gpu_event_open(g, &x->ready[i][k], e);
        if (!rc) rc = gpu_event_open_timed(g, &x->begin[i], e);
        if (!rc) rc = gpu_event_open_timed(g, &x->end[i], e);
    }
    return rc;
}

static int load_best_experts(struct expert_pool *x, struct error *e);

void expert_pool_fill_costs(struct expert_pool *x) {
    const struct runtime *m = x->d->s->m;
    const int device = 1 + x->d->rank;
    cost_table_fill(&x->cost[0], m->cost, 0, m->cost_model, BATCH_INVARIANT_ROWS);
    cost_table_fill(&x->cost[1], m->cost, device, m->cost_model, BATCH_INVARIANT_ROWS);
    x->upload_s = cost_transfer(m->cost, device, COST_H2D, m->cost_model->expert_bytes);
    for (int n = 0; n <= DECODE_MAX_ROWS; n++) x->shared_s[n] = cost_shared(m->cost, device, m->cost_model, n);
}

static int open_buffers(struct expert_pool *x, struct error *e) {
    const struct config *c = x->d->s->c;
    struct gpu *g = x->d->g;
    size_t rows = (size_t)DECODE_MAX_ROWS * (size_t)config_row_width(c) * 4,
           pairs = (size_t)DECODE_MAX_ROWS * (size_t)c->topk * 4, n = (size_t)c->n_experts;
    int rc = gpu_alloc(g, (void **)&x->expert_in, rows, e);
    if (!rc) rc = gpu_alloc(g, (void **)&x->expert_out, rows, e);
    for (int i = 0; i < DECODE_MICRO_BATCHES && !rc; i++) {
        rc = gpu_alloc(g, (void **)&x->y[i], rows, e);
        if (!rc) rc = gpu_alloc(g, (void **)&x->token[i], pairs, e);
        if (!rc) rc = gpu_alloc(g, (void **)&x->weight[i], pairs, e);
        if (!rc) rc = gpu_host_alloc(g, (void **)&x->host_token[i], pairs, e);
        if (!rc) rc = gpu_host_alloc(g, (void **)&x->host_weight[i], pairs, e);
    }
    if (rc) return rc;
    x->cpu_ids = mem_alloc(pairs);
    x->ids = mem_alloc(pairs);
    x->router = mem_alloc((size_t)DECODE_MAX_ROWS * (size_t)config_n_choices(c) * sizeof *x->router);
    x->best = mem_alloc(2 * pairs);
    x->best_score = mem_alloc(2 * pairs);
    x->expert_rows = mem_alloc(n * sizeof *x->expert_rows);
    x->expert_ids = mem_alloc(n * sizeof *x->expert_ids);
    x->split_experts = mem_alloc(n * sizeof *x->split_experts);
    x->plan = mem_alloc(sizeof *x->plan);
    x->slots = mem_calloc((size_t)c->n_layers * (size_t)x->slots_per_layer, sizeof *x->slots);
    x->slot_of = mem_alloc((size_t)c->n_layers * n * sizeof *x->slot_of);
    if (!x->cpu_ids || !x->ids || !x->router || !x->best || !x->best_score || !x->expert_rows || !x->expert_ids ||
        !x->split_experts || !x->plan || !x->slots || !x->slot_of)
        return error_set(e, ERR_MEMORY, "no memory for an expert pool");
    memset(x->slot_of, 0xff, (size_t)c->n_layers * n * sizeof *x->slot_of);
    return 0;
}

/* Allocates slots, one per layer at a time, until memory runs out. */
static void open_slots(struct expert_pool *x) {
    struct decode_device *d = x->d;
    for (int k = 0; k < x->slots_per_layer; k++)
        for (int l = d->first; l < d->last; l++) {
            struct expert_slot *t = &expert_pool_slots(x, l)[k];
            t->expert = -1;
            if (!expert_pool_has_layer(d, l)) continue;
            if (ledger_alloc(d->ledger, LEDGER_CACHED, expert_pool_slot_bytes(d->s->m, l), &t->mem, NULL)) {
                log_say(LOG_INFO, "a device has room for %d experts per layer, %d were planned", k, x->slots_per_layer);
                while (x->slots_per_layer > k) expert_pool_shrink(d);
                return;
            }
        }
}

static int open_transit(struct expert_pool *x, struct error *e) {
    struct decode_device *d = x->d;
    int rc = 0;
    for (int k = 0; k < EXPERT_POOL_TRANSIT; k++) x->transit[k].expert = -1;
    for (int k = 0; k < EXPERT_POOL_TRANSIT && d->s->m->expert_cache.is_sent && !rc; k++)
        rc = ledger_alloc(d->ledger, LEDGER_CACHED, expert_pool_slot_bytes(d->s->m, -1), &x->transit[k].mem, e);
    return rc;
}

/* Allocates scores and predictions, which outlive the slots. */
static int open_statistics(struct decode_device *d, struct error *e) {
    const struct config *c = d->s->c;
    if (d->predict_mem) return 0;
    if (!d->score_mem) d->score_mem = mem_calloc(1, score_bytes(c->n_layers, c->n_experts));
    d->predict_mem = mem_calloc(1, predict_bytes(c->n_layers, c->n_experts));
    if (!d->score_mem || !d->predict_mem) return error_set(e, ERR_MEMORY, "no memory for expert scores");
    score_open(&d->score, d->s->m->evict_policy, c->n_layers, c->n_experts, c->topk, d->score_mem);
    float *share = mem_alloc((size_t)c->n_experts * sizeof *share);
    if (!share) return error_set(e, ERR_MEMORY, "no memory for expert scores");
    for (int l = d->first; l < d->last; l++)
        if (c->layer[l].moe && usage_profile_shares(d->s->m->usage, l, share)) score_seed(&d->score, l, share);
    mem_free(share);
    predict_open(&d->predict, c->n_layers, c->n_experts, d->predict_mem);
    return 0;
}

int expert_pool_open(struct decode_device *d, struct error *e) {
    struct expert_pool *x = d->pool;
    int rc = 0;
    if (!d->pool_per_layer || x) return 0;
    if (!(x = d->pool = mem_calloc(1, sizeof *x))) return error_set(e, ERR_MEMORY, "no memory for an expert pool");
    x->d = d;
    x->slots_per_layer = d->pool_per_layer;
    rc = open_buffers(x, e);
    if (!rc) rc = open_queues(x, e);
    if (!rc) rc = router_lookahead_open(&x->lookahead, d, &x->stop, e);
    if (!rc) rc = open_statistics(d, e);
    if (!rc) rc = open_transit(x, e);
    if (!rc) open_slots(x);
    if (!rc) rc = load_best_experts(x, e);
    if (rc == ERR_MEMORY) { /* a pool is optional */
        log_say(LOG_INFO, "no expert pool on a device: %s", e->text);
        *e = (struct error){0};
        rc = 0;
        d->pool_per_layer = 0;
    }
    if (rc || !d->pool_per_layer) expert_pool_close(d);
    if (!d->pool) return rc;
    expert_pool_fill_costs(x);
    return 0;
}

static void empty_slot(struct expert_pool *x, int layer, struct expert_slot *t) {
    *expert_pool_slot_of(x, layer, t->expert) = -1;
    upload_evict_expert(t);
}
static void free_slot(struct expert_pool *x, int layer, struct expert_slot *t) {
    if (!t->mem.at) return;
    if (t->expert >= 0) empty_slot(x, layer, t);
    ledger_free(x->d->ledger, &t->mem);
    *t = (struct expert_slot){.expert = -1};
}

void expert_pool_close(struct decode_device *d) {
    struct expert_pool *x = d->pool;
    if (!x) return;
    if (d->main) gpu_stream_sync(d->main);
    close_queues(x);
    router_lookahead_close(&x->lookahead);
    for (int l = d->first; l < d->last && x->slots && x->slot_of; l++)
        for (int k = 0; k < x->slots_per_layer; k++) free_slot(x, l, &expert_pool_slots(x, l)[k]);
    for (int k = 0; k < EXPERT_POOL_TRANSIT; k++) ledger_free(d->ledger, &x->transit[k].mem);
    for (int i = 0; i < DECODE_MICRO_BATCHES; i++) {
        gpu_free(d->g, x->y[i]), gpu_free(d->g, x->token[i]), gpu_free(d->g, x->weight[i]);
        gpu_host_free(d->g, x->host_token[i]), gpu_host_free(d->g, x->host_weight[i]);
    }
    gpu_free(d->g, x->expert_in), gpu_free(d->g, x->expert_out);
    void *own[] = {x->cpu_ids,    x->ids,           x->router, x->best,  x->best_score, x->expert_rows,
                   x->expert_ids, x->split_experts, x->plan,   x->slots, x->slot_of,    x};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) mem_free(own[i]);
    d->pool = NULL;
}

void expert_pool_freeze(struct decode_device *d, bool frozen) {
    if (d->pool) d->pool->is_frozen = frozen;
}
const struct expert *expert_pool_expert(const struct decode_device *d, int layer, int expert) {
    const struct expert_pool *x = d->pool;
    const struct expert_slot *t = x && expert_pool_has_layer(d, layer) ? expert_pool_resident(x, layer, expert) : NULL;
    return t && upload_has_arrived(&x->uploads, &t->upload) ? &t->view : NULL;
}

bool expert_pool_shrink(struct decode_device *d) {
    struct expert_pool *x = d->pool;
    if (!x || !x->slots_per_layer) return false;
    upload_finish(&x->uploads);
    gpu_stream_sync(d->main); /* a blended prefill reads slots there */
    gpu_stream_sync(x->compute);
    for (int l = d->first; l < d->last; l++) free_slot(x, l, &expert_pool_slots(x, l)[x->slots_per_layer - 1]);
    struct expert_slot *from = x->slots; /* shrinks the rows of the table in place */
    int was = x->slots_per_layer--;
    for (int l = 0; l < d->s->c->n_layers; l++)
        for (int k = 0; k < x->slots_per_layer; k++) x->slots[l * x->slots_per_layer + k] = from[l * was + k];
    return true;
}

void expert_pool_mark_resident(const struct decode_device *d, int8_t *where) {
    const struct expert_pool *x = d->pool;
    size_t n = (size_t)d->s->c->n_experts;
    for (int l = d->first; l < d->last && x; l++)
        for (int k = 0; k < x->slots_per_layer; k++)
            if (expert_pool_slots(x, l)[k].expert >= 0)
                where[(size_t)l * n + (size_t)expert_pool_slots(x, l)[k].expert] = (int8_t)d->rank;
}

int expert_pool_count(const struct decode_device *d, uint64_t *bytes) {
    const struct expert_pool *x = d->pool;
    int n = 0;
    *bytes = 0;
    for (int l = d->first; l < d->last && x; l++)
        for (int k = 0; k < x->slots_per_layer; k++)
            if (expert_pool_has_layer(d, l) && expert_pool_slots(x, l)[k].expert >= 0)
                n++, *bytes += expert_pool_slot_bytes(d->s->m, l);
    return n;
}

bool expert_pool_pays(const struct expert_pool *x) {
    return cost_table_at(&x->cost[1], 1) < x->d->s->c->topk * cost_table_at(&x->cost[0], 1);
}

void expert_pool_begin_batch(struct decode_device *d) {
    if (!d->pool) return;
    d->pool->layer_begin_s = 0;
    router_lookahead_begin_batch(&d->pool->lookahead, !d->s->m->expert_cache.is_sent && expert_pool_pays(d->pool));
}

void expert_pool_abort(struct decode_device *d) {
    if (d->pool) router_lookahead_abort(&d->pool->lookahead);
    for (int i = 0; i < DECODE_MICRO_BATCHES && d->pool; i++) gpu_timeline_abort(d->pool->done[i]);
}

int expert_pool_reset(struct decode_device *d, struct error *e) {
    struct expert_pool *x = d->pool;
    if (!x) return 0;
    for (int l = d->first; l < d->last; l++)
        for (int k = 0; k < x->slots_per_layer; k++) {
            struct expert_slot *t = &expert_pool_slots(x, l)[k];
            if (t->expert >= 0 && !upload_has_arrived(&x->uploads, &t->upload)) empty_slot(x, l, t);
        }
    struct error device;
    bool failed = gpu_error(d->g, &device);
    close_queues(x);
    if (failed) return 0; /* the caller drops the device */
    for (int l = d->first; l < d->last; l++)
        for (int k = 0; k < x->slots_per_layer; k++) {
            struct expert_slot *t = &expert_pool_slots(x, l)[k];
            t->upload = (struct upload_slot){.is_filled = t->expert >= 0};
        }
    for (int k = 0; k < EXPERT_POOL_TRANSIT; k++)
        x->transit[k].upload = (struct upload_slot){0}, x->transit[k].expert = -1;
    return open_queues(x, e);
}

/* --- Uploads ---------------------------------------------------------------------------------- */

int expert_pool_upload_to(struct expert_pool *x, struct expert_slot *t, int layer, int expert) {
    struct decode *s = x->d->s;
    TRY(upload_expert(&x->uploads, t, s->m->w, layer, expert));
    s->counts.uploaded++, s->counts.uploaded_bytes += s->m->expert_bytes;
    cpu_count_read(s->m, s->m->expert_bytes);
    return 0;
}
int expert_pool_upload(struct expert_pool *x, int layer, int k, int expert, bool ahead) {
    struct decode *s = x->d->s;
    struct expert_slot *t = &expert_pool_slots(x, layer)[k];
    if (t->expert >= 0) {
        empty_slot(x, layer, t);
        s->counts.wasted += !t->was_used;
        s->counts.prefetched_wasted += !t->was_used && t->is_prefetched;
    }
    TRY(expert_pool_upload_to(x, t, layer, expert));
    t->was_used = false, t->is_prefetched = ahead;
    *expert_pool_slot_of(x, layer, expert) = (int16_t)k;
    s->counts.prefetched += ahead;
    return 0;
}
int expert_pool_victim(const struct expert_pool *x, int layer, const int32_t *needed) {
    int at = -1;
    double least = 0;
    for (int k = 0; k < x->slots_per_layer; k++) {
        const struct expert_slot *t = &expert_pool_slots(x, layer)[k];
        if (t->expert < 0) return k;
        if (needed && needed[t->expert]) continue;
        double v = score_of(&x->d->score, layer, t->expert);
        if (at < 0 || v < least) at = k, least = v;
    }
    return at;
}

/* Returns the missing expert with the highest score above 0; -1: none. */
static int best_missing(const struct expert_pool *x, int layer) {
    double best = 0;
    int at = -1;
    for (int i = 0; i < x->d->s->c->n_experts; i++)
        if (*expert_pool_slot_of(x, layer, i) < 0 && score_of(&x->d->score, layer, i) > best)
            best = score_of(&x->d->score, layer, i), at = i;
    return at;
}
/* Starts to upload the experts that earlier runs and the first prompt used most, or that the pool held before a prompt
 * took its memory. Batches do not wait for them. */
static int load_best_experts(struct expert_pool *x, struct error *e) {
    struct decode_device *d = x->d;
    for (int k = 0; k < x->slots_per_layer; k++)
        for (int l = d->first; l < d->last; l++) {
            const int32_t id = expert_pool_has_layer(d, l) ? best_missing(x, l) : -1;
            if (id < 0) continue;
            TRY(nan_scan_experts(&d->s->m->scan, l, &id, 1, e));
            TRY(expert_pool_upload(x, l, k, id, false));
        }
    return 0;
}

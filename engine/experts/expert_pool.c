#include "engine/experts/expert_pool.h"

#include <math.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/exec/cpu_layer.h"
#include "engine/experts/lookahead.h"
#include "engine/placement/split.h"
#include "engine/transfer/stage.h"

enum { USED_MOST = 256 }; /* experts of a layer that the device computes at most */
size_t expert_pool_slot_bytes(const struct runtime *m, int layer) {
    size_t most = 0;
    for (int l = layer < 0 ? 0 : layer; l < (layer < 0 ? m->w->config.n_layers : layer + 1); l++) {
        const size_t bytes = weights_largest_expert(m->w, l);
        if (bytes > most) most = bytes;
    }
    return (most + 4096) & ~(size_t)255; /* parts are aligned to 256 bytes */
}
static struct expert_slot *layer_slots(const struct expert_pool *x, int layer) { return x->slots + (size_t)layer * (size_t)x->slots_per_layer; }
static int16_t *slot_index(const struct expert_pool *x, int layer, int expert) {
    return &x->slot_of[(size_t)layer * (size_t)x->d->s->c->n_experts + (size_t)expert];
}
static struct expert_slot *resident_slot(const struct expert_pool *x, int layer, int expert) {
    int i = *slot_index(x, layer, expert);
    return i < 0 ? NULL : &layer_slots(x, layer)[i];
}
static bool is_pool_layer(const struct decode_device *d, int layer) { return layer >= d->first && layer < d->last && d->s->c->layer[layer].moe; }
/* --- Open, close -------------------------------------------------------------------------------------------------------------- */

static void close_queues(struct expert_pool *x) {
    atomic_store(&x->stop, 1);
    router_lookahead_abort(&x->lookahead);
    struct gpu_timeline **numbers[] = {&x->loaded, &x->freed, &x->done[0], &x->done[1]};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (*numbers[i]) gpu_timeline_abort(*numbers[i]);
    stage_close(&x->stage);
    router_lookahead_close_stream(&x->lookahead);
    if (x->link) gpu_stream_sync(x->link);
    if (x->compute) gpu_stream_sync(x->compute);
    gpu_stream_close(&x->link);
    gpu_stream_close(&x->compute);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) gpu_timeline_close(numbers[i]);
    for (int i = 0; i < 2 * DECODE_MICRO_BATCHES; i++) gpu_event_close(&x->ready[i / 2][i % 2]);
    for (int i = 0; i < DECODE_MICRO_BATCHES; i++) gpu_event_close(&x->begin[i]), gpu_event_close(&x->end[i]), x->is_timed[i] = false;
    atomic_store(&x->stop, 0);
    x->n_loaded = x->n_freed = 0;
    memset(x->n_done, 0, sizeof x->n_done);
    memset(x->n_awaited, 0, sizeof x->n_awaited);
}

static int open_queues(struct expert_pool *x, struct error *e) {
    const struct runtime *m = x->d->s->m;
    struct gpu *g = x->d->g;
    int rc = gpu_stream_open(g, &x->link, "experts' link", false, &x->stop, e);
    if (!rc) rc = gpu_stream_open(g, &x->compute, "experts", true, &x->stop, e);
    if (!rc) rc = gpu_timeline_open(g, &x->loaded, e);
    if (!rc) rc = gpu_timeline_open(g, &x->freed, e);
    if (!rc) rc = router_lookahead_open_stream(&x->lookahead, &x->stop, e);
    for (int i = 0; i < DECODE_MICRO_BATCHES && !rc; i++) {
        rc = gpu_timeline_open(g, &x->done[i], e);
        for (int k = 0; k < 2 && !rc; k++) rc = gpu_event_open(g, &x->ready[i][k], e);
        if (!rc) rc = gpu_event_open_timed(g, &x->begin[i], e);
        if (!rc) rc = gpu_event_open_timed(g, &x->end[i], e);
    }
    if (!rc)
        rc = stage_open(&x->stage,
                        &(struct stage_options){.set = m->gpus,
                                                .g = g,
                                                .stream = x->link,
                                                .stop = &x->stop,
                                                .loaded = x->loaded,
                                                .freed = x->freed,
                                                .threads = stage_threads(m->gpus, m->w),
                                                .trace = m->trace,
                                                .rank = x->d->rank},
                        e);
    return rc;
}

static int load_fixed_experts(struct expert_pool *x, struct error *e);
static int load_best_experts(struct expert_pool *x, struct error *e);

/* Tabulates the cost model by rows, for use in every layer. */
static void fill_cost_tables(struct expert_pool *x) {
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
    size_t rows = (size_t)DECODE_MAX_ROWS * (size_t)c->hidden * 4, pairs = (size_t)DECODE_MAX_ROWS * (size_t)c->topk * 4, n = (size_t)c->n_experts,
           latent = (size_t)DECODE_MAX_ROWS * (size_t)c->moe_latent * 4;
    int rc = gpu_alloc(g, (void **)&x->expert_in, rows, e);
    if (!rc) rc = gpu_alloc(g, (void **)&x->expert_out, rows, e);
    if (!rc && latent) rc = gpu_alloc(g, (void **)&x->routed_in, latent, e);
    if (!rc && latent) rc = gpu_alloc(g, (void **)&x->routed_sum, latent, e);
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
    x->near = mem_alloc(2 * pairs);
    x->chance = mem_alloc(2 * pairs);
    x->expert_rows = mem_alloc(n * sizeof *x->expert_rows);
    x->expert_ids = mem_alloc(n * sizeof *x->expert_ids);
    x->split_experts = mem_alloc(n * sizeof *x->split_experts);
    x->plan = mem_alloc(sizeof *x->plan);
    x->slots = mem_calloc((size_t)c->n_layers * (size_t)x->slots_per_layer, sizeof *x->slots);
    x->slot_of = mem_alloc((size_t)c->n_layers * n * sizeof *x->slot_of);
    if (!x->cpu_ids || !x->ids || !x->router || !x->near || !x->chance || !x->expert_rows || !x->expert_ids || !x->split_experts || !x->plan || !x->slots ||
        !x->slot_of)
        return error_set(e, ERR_MEMORY, "no memory for an expert pool");
    memset(x->slot_of, 0xff, (size_t)c->n_layers * n * sizeof *x->slot_of);
    return 0;
}

/* Allocates slots, one per layer at a time, until memory runs out. */
static void open_slots(struct expert_pool *x) {
    struct decode_device *d = x->d;
    for (int k = 0; k < x->slots_per_layer; k++)
        for (int l = d->first; l < d->last; l++) {
            struct expert_slot *t = &layer_slots(x, l)[k];
            t->expert = -1;
            if (!is_pool_layer(d, l)) continue;
            if (ledger_alloc(d->ledger, LEDGER_CACHED, expert_pool_slot_bytes(d->s->m, l), &t->mem, NULL)) {
                log_say(LOG_INFO, "a device has room for %d experts per layer, %d were planned", k, x->slots_per_layer);
                while (x->slots_per_layer > k) expert_pool_shrink(d);
                return;
            }
        }
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
    for (int l = d->first; l < d->last && !d->s->m->cost->is_deterministic; l++)
        if (c->layer[l].moe && usage_profile_shares(d->s->m->usage, l, share)) score_seed(&d->score, l, share);
    mem_free(share);
    predict_open(&d->predict, c->n_layers, c->n_experts, d->predict_mem);
    return 0;
}

int expert_pool_open(struct decode_device *d, struct error *e) {
    const struct runtime *m = d->s->m;
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
    if (!rc) open_slots(x);
    if (!rc) rc = m->cost->is_deterministic ? load_fixed_experts(x, e) : load_best_experts(x, e);
    if (rc == ERR_MEMORY) { /* a pool is optional */
        log_say(LOG_INFO, "no expert pool on a device: %s", e->text);
        *e = (struct error){0};
        rc = 0;
        d->pool_per_layer = 0;
    }
    if (rc || !d->pool_per_layer) expert_pool_close(d);
    if (!d->pool) return rc;
    fill_cost_tables(x);
    return 0;
}

static void free_slot(struct expert_pool *x, int layer, struct expert_slot *t) {
    if (!t->mem.at) return;
    if (t->expert >= 0) *slot_index(x, layer, t->expert) = -1;
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
        for (int k = 0; k < x->slots_per_layer; k++) free_slot(x, l, &layer_slots(x, l)[k]);
    for (int i = 0; i < DECODE_MICRO_BATCHES; i++) {
        gpu_free(d->g, x->y[i]), gpu_free(d->g, x->token[i]), gpu_free(d->g, x->weight[i]);
        gpu_host_free(d->g, x->host_token[i]), gpu_host_free(d->g, x->host_weight[i]);
    }
    gpu_free(d->g, x->expert_in), gpu_free(d->g, x->expert_out), gpu_free(d->g, x->routed_in), gpu_free(d->g, x->routed_sum);
    void *own[] = {x->cpu_ids, x->ids, x->router, x->near, x->chance, x->expert_rows, x->expert_ids, x->split_experts, x->plan, x->slots, x->slot_of, x};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) mem_free(own[i]);
    d->pool = NULL;
}

void expert_pool_freeze(struct decode_device *d, bool frozen) {
    if (d->pool) d->pool->is_frozen = frozen;
}
const struct expert *expert_pool_expert(const struct decode_device *d, int layer, int expert) {
    const struct expert_pool *x = d->pool;
    const struct expert_slot *t = x && is_pool_layer(d, layer) ? resident_slot(x, layer, expert) : NULL;
    return t && gpu_timeline_reached(x->loaded, t->loaded_value) ? &t->view : NULL;
}

bool expert_pool_shrink(struct decode_device *d) {
    struct expert_pool *x = d->pool;
    if (!x || !x->slots_per_layer) return false;
    stage_flush(x->stage);
    gpu_stream_sync(d->main); /* a blended prefill reads slots there */
    gpu_stream_sync(x->link);
    gpu_stream_sync(x->compute);
    for (int l = d->first; l < d->last; l++) free_slot(x, l, &layer_slots(x, l)[x->slots_per_layer - 1]);
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
            if (layer_slots(x, l)[k].expert >= 0) where[(size_t)l * n + (size_t)layer_slots(x, l)[k].expert] = (int8_t)d->rank;
}

int expert_pool_count(const struct decode_device *d, uint64_t *bytes) {
    const struct expert_pool *x = d->pool;
    int n = 0;
    *bytes = 0;
    for (int l = d->first; l < d->last && x; l++)
        for (int k = 0; k < x->slots_per_layer; k++)
            if (is_pool_layer(d, l) && layer_slots(x, l)[k].expert >= 0) n++, *bytes += expert_pool_slot_bytes(d->s->m, l);
    return n;
}

/* False when the device takes longer for one expert than the CPU for all of a token's. */
static bool device_pays(const struct expert_pool *x) { return cost_table_at(&x->cost[1], 1) < x->d->s->c->topk * cost_table_at(&x->cost[0], 1); }

void expert_pool_begin_batch(struct decode_device *d) {
    if (!d->pool) return;
    d->pool->layer_begin_s = 0;
    router_lookahead_begin_batch(&d->pool->lookahead, device_pays(d->pool));
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
            struct expert_slot *t = &layer_slots(x, l)[k];
            if (t->expert >= 0 && !gpu_timeline_reached(x->loaded, t->loaded_value)) *slot_index(x, l, t->expert) = -1, t->expert = -1;
        }
    struct error device;
    bool failed = gpu_error(d->g, &device);
    close_queues(x);
    if (failed) return 0; /* the caller drops the device */
    for (int l = d->first; l < d->last; l++)
        for (int k = 0; k < x->slots_per_layer; k++) layer_slots(x, l)[k].loaded_value = layer_slots(x, l)[k].freed_value = 0;
    return open_queues(x, e);
}

/* --- Uploads --------------------------------------------------------------------------------------------------------------------  */

static int upload_expert(struct expert_pool *x, int layer, int k, int expert, bool ahead) {
    struct decode *s = x->d->s;
    struct copy_range ranges[COPY_RANGES_MAX];
    struct expert_slot *t = &layer_slots(x, layer)[k];
    const int n = copy_ranges_list(s->c, layer, MODULE_EXPERT, &s->m->w->layers[layer].experts[expert], &t->view, ranges);
    if (t->expert >= 0) {
        *slot_index(x, layer, t->expert) = -1;
        s->counts.wasted += !t->was_used;
        s->counts.prefetched_wasted += !t->was_used && t->is_prefetched;
    }
    t->expert = -1;
    TRY(stage_send_ranges(x->stage, ranges, n, t->mem.at,
                          (struct stage_unit){.after = t->freed_value, .loaded = ++x->n_loaded, .layer = layer, .item = expert}));
    t->loaded_value = x->n_loaded, t->expert = expert, t->was_used = false, t->is_prefetched = ahead;
    *slot_index(x, layer, expert) = (int16_t)k;
    s->counts.uploaded++, s->counts.prefetched += ahead;
    s->counts.uploaded_bytes += s->m->expert_bytes;
    cpu_count_read(s->m, s->m->expert_bytes);
    return 0;
}
static bool link_is_idle(const struct expert_pool *x) { return gpu_timeline_reached(x->loaded, x->n_loaded); }

/* Picks the eviction victim: an empty slot, else the lowest score. Experts with rows in but [n_experts] (or NULL) are skipped. -1:
 * none. */
static int eviction_victim(const struct expert_pool *x, int layer, const int32_t *but) {
    int at = -1;
    double least = 0;
    for (int k = 0; k < x->slots_per_layer; k++) {
        const struct expert_slot *t = &layer_slots(x, layer)[k];
        if (t->expert < 0) return k;
        if (but && but[t->expert]) continue;
        double v = score_of(&x->d->score, layer, t->expert);
        if (at < 0 || v < least) at = k, least = v;
    }
    return at;
}

/* --deterministic: loads the first experts of each layer for good. */
static int load_fixed_experts(struct expert_pool *x, struct error *e) {
    struct decode_device *d = x->d;
    for (int l = d->first; l < d->last; l++)
        for (int32_t k = 0; k < x->slots_per_layer && is_pool_layer(d, l); k++) {
            TRY(nan_scan_experts(&d->s->m->scan, l, &k, 1, e));
            TRY(upload_expert(x, l, k, k, false));
        }
    TRY(stage_flush(x->stage));
    return gpu_stream_sync(x->link);
}

/* Returns the missing expert with the highest score above 0; -1: none. */
static int best_missing(const struct expert_pool *x, int layer) {
    double best = 0;
    int at = -1;
    for (int i = 0; i < x->d->s->c->n_experts; i++)
        if (*slot_index(x, layer, i) < 0 && score_of(&x->d->score, layer, i) > best) best = score_of(&x->d->score, layer, i), at = i;
    return at;
}
/* Starts to upload the experts that earlier runs and the first prompt used most, or that the pool held before a prompt took its memory.
 * Batches do not wait for them. */
static int load_best_experts(struct expert_pool *x, struct error *e) {
    struct decode_device *d = x->d;
    for (int k = 0; k < x->slots_per_layer; k++)
        for (int l = d->first; l < d->last; l++) {
            const int32_t id = is_pool_layer(d, l) ? best_missing(x, l) : -1;
            if (id < 0) continue;
            TRY(nan_scan_experts(&d->s->m->scan, l, &id, 1, e));
            TRY(upload_expert(x, l, k, id, false));
        }
    return 0;
}

/* --- A layer ----------------------------------------------------------------------------------------------------------------------  */

int expert_pool_save_rows(struct decode_device *d, int micro, int layer, const float *x, int n) {
    return d->pool ? router_lookahead_save_rows(&d->pool->lookahead, micro, layer, x, n) : 0;
}
int expert_pool_rows_ready(struct decode_device *d, int micro, int layer) { return d->pool ? gpu_event_record(d->pool->ready[micro][layer % 2], d->main) : 0; }

int expert_pool_join(struct decode_device *d, int micro, float *to, int n) {
    struct expert_pool *x = d->pool;
    struct exec *exec = gpu_stream_exec(d->main);
    if (!x) return 0;
    TRY(gpu_timeline_wait(x->done[micro], ++x->n_awaited[micro], d->main));
    return exec->ops->add(exec, &(struct op_add){.y = to, .x = x->y[micro], .n = n, .m = d->s->c->hidden});
}

/* Counts the device rows that selected each expert; 0 if a CPU row selected it too: then the CPU reads it anyway. */
static void count_expert_rows(struct expert_pool *x, const struct decode_micro_batch *m) {
    const struct decode *s = x->d->s;
    int topk = s->c->topk;
    memset(x->expert_rows, 0, (size_t)s->c->n_experts * sizeof *x->expert_rows);
    for (int i = 0; i < m->n_dev * topk; i++) x->expert_rows[m->host.ids[i]]++;
    for (int i = m->n_dev * topk; i < m->n * topk; i++)
        if (m->host.ids[i] >= 0) x->expert_rows[m->host.ids[i]] = 0;
}

/* Describes domain 0 (CPU), domain 1 (device) and the experts in x->expert_rows for the split. link_busy: seconds before a new upload can
 * start. Returns the number of experts. */
static int describe_split(struct expert_pool *x, int layer, int n, double link_busy, struct split_domain *d) {
    struct decode *s = x->d->s;
    const struct runtime *v = s->m;
    int gone = 0, all = 0;
    d[0] = (struct split_domain){.class = COST_CPU, .expert_cost = &x->cost[0]};
    d[1] = (struct split_domain){.class = COST_GPU,
                                 .expert_cost = &x->cost[1],
                                 .busy_s = x->shared_s[n],
                                 .link_busy_s = link_busy,
                                 .transfer_s = v->cost->is_deterministic || x->is_frozen ? 0 : x->upload_s};
    for (int i = 0; i < s->c->n_experts; i++) {
        if (!x->expert_rows[i]) continue;
        struct expert_slot *t = resident_slot(x, layer, i);
        bool here = t && (v->cost->is_deterministic || gpu_timeline_reached(x->loaded, t->loaded_value));
        gone += t != NULL;
        x->expert_ids[all] = (int16_t)i;
        x->split_experts[all++] = (struct split_expert){.rows = x->expert_rows[i], .resident = 1u | (here ? 2u : 0)};
    }
    d[1].max_transfers = x->slots_per_layer > gone ? x->slots_per_layer - gone : 0;
    for (int i = 0; i < all && d[1].transfer_s > 0; i++) /* an upload needs a scan first, which costs more than it saves */
        if (!weight_state_has(&v->weight_state, layer, x->expert_ids[i], WEIGHT_CHECKED)) d[1].transfer_s = 0;
    return all;
}
static const struct split_policy *split_policy_of(const struct decode *s) { return s->m->cost->is_deterministic ? split_find("host") : s->m->split_policy; }

/* Fills x->plan for a layer's rows; returns the number of experts. */
static int split_layer(struct expert_pool *x, const struct decode_micro_batch *m, int layer) {
    struct split_domain d[2];
    count_expert_rows(x, m);
    int n = describe_split(x, layer, m->n_dev, link_is_idle(x) ? 0 : x->upload_s, d);
    split_run(split_policy_of(x->d->s), &(struct split_in){.domain = d, .expert = x->split_experts, .n_domains = 2, .n = n}, x->plan);
    return n;
}

/* --- Uploads on an idle link: for good, or for the next layers -------------------------------------------------------------------- */

struct upload_choice {
    int layer, slot, expert; /* slot -1: nothing */
    double saved_s;          /* seconds saved in later batches */
    bool is_prefetch;
};

/* Picks a swap: the best missing expert for the worst resident one, if worth more over about as many batches as scores look back. */
static struct upload_choice pick_swap(const struct expert_pool *x, int layer) {
    enum { STEPS = 14 };
    const struct decode *s = x->d->s;
    const struct predict *p = &x->d->predict;
    struct upload_choice w = {.layer = layer, .slot = eviction_victim(x, layer, NULL), .expert = -1};
    double most = 0;
    if (w.slot < 0) return w;
    for (int i = 0; i < s->c->n_experts; i++) {
        double v = score_of(&x->d->score, layer, i);
        if (v > most && *slot_index(x, layer, i) < 0 && weight_state_has(&s->m->weight_state, layer, i, WEIGHT_CHECKED)) most = v, w.expert = i;
    }
    int was = layer_slots(x, layer)[w.slot].expert;
    if (w.expert < 0 || (was >= 0 && most <= score_of(&x->d->score, layer, was))) w.slot = -1;
    else w.saved_s = STEPS * cost_table_at(&x->cost[0], 1) * (predict_rate(p, layer, w.expert) - (was >= 0 ? predict_rate(p, layer, was) : 0));
    return w;
}

/* Picks the best prefetch for the next layers, from each layer's newest prediction. now: seconds since this layer's experts began. */
static struct upload_choice pick_prefetch(struct expert_pool *x, int micro, int layer, int n, double now) {
    struct decode_device *d = x->d;
    const struct config *c = d->s->c;
    struct upload_choice best = {.slot = -1};
    for (int l = layer + 1; l <= layer + PREDICT_LAYERS && l < d->last; l++) {
        const int32_t *said = NULL;
        int distance = 0;
        while (!said && ++distance <= PREDICT_LAYERS) said = router_lookahead_get(&x->lookahead, micro, l, distance, n);
        if (!said) continue;
        memset(x->expert_rows, 0, (size_t)c->n_experts * sizeof *x->expert_rows);
        for (int i = 0; i < n * c->topk; i++)
            if (said[i] >= 0 && said[i] < c->n_experts) x->expert_rows[said[i]]++;
        struct split_domain domain[2];
        int all = describe_split(x, l, n, 0, domain), k = eviction_victim(x, l, x->expert_rows);
        if (k < 0 || !(domain[1].transfer_s > 0)) continue; /* or one of them was never scanned */
        struct predict_in split_layer = {.layer = l,
                                         .distance = distance,
                                         .split = split_policy_of(d->s),
                                         .domain = domain,
                                         .expert = x->split_experts,
                                         .id = x->expert_ids,
                                         .n = all,
                                         .arrival_s = domain[1].transfer_s - ((l - layer) * x->layer_period_s - now),
                                         .victim = layer_slots(x, l)[k].expert};
        struct predict_out a = predict_upload(&d->predict, &split_layer, x->plan);
        if (a.expert >= 0 && a.worth_s > best.saved_s && *slot_index(x, l, x->expert_ids[a.expert]) < 0)
            best = (struct upload_choice){l, k, x->expert_ids[a.expert], a.worth_s, true};
    }
    return best;
}

/* Uploads in flight, counted up to MANY. */
static int n_uploads_in_flight(const struct expert_pool *x) {
    enum { MANY = 256 };
    int n = 0;
    while (n < MANY && (uint32_t)n < x->n_loaded && !gpu_timeline_reached(x->loaded, x->n_loaded - (uint32_t)n)) n++;
    return n;
}

int expert_pool_prefetch(struct decode_device *d, const struct lookahead *a, enum decode_prefetch_phase phase, double before) {
    struct expert_pool *x = d->pool;
    struct decode *s = d->s;
    struct lookahead_need want[USED_MOST];
    if (!x || x->is_frozen || s->m->cost->is_deterministic) return 0;
    int queue = n_uploads_in_flight(x);
    for (int l = d->first; l < d->last; l++) {
        if (!is_pool_layer(d, l)) continue;
        const int n = lookahead_needs(a, l, want, USED_MOST);
        memset(x->expert_rows, 0, (size_t)s->c->n_experts * sizeof *x->expert_rows);
        for (int i = 0; i < n; i++) {
            score_announce(&d->score, l, &want[i].expert, 1, want[i].distance + 1);
            x->expert_rows[want[i].expert] = 1;
        }
        for (int i = 0; i < n && phase != PREFETCH_NONE; i++) {
            const int id = want[i].expert, k = eviction_victim(x, l, x->expert_rows);
            if (*slot_index(x, l, id) >= 0 || !weight_state_has(&s->m->weight_state, l, id, WEIGHT_CHECKED)) continue;
            if (phase == PREFETCH_LIKELY && want[i].confidence * (float)s->c->topk < 1) continue;        /* below an equal share */
            if (k < 0 || (queue + 1) * x->upload_s > before + (l - d->first) * x->layer_period_s) break; /* no slot, or too late for this layer */
            TRY(upload_expert(x, l, k, id, true));
            queue++;
        }
    }
    return 0;
}

static struct upload_choice pick_upload(struct expert_pool *x, int micro, int layer, int n, double now) {
    if (x->is_frozen || !link_is_idle(x) || !device_pays(x)) return (struct upload_choice){.slot = -1};
    struct upload_choice w = pick_swap(x, layer), ahead = {.slot = -1};
    if (x->lookahead.is_active) {
        ahead = pick_prefetch(x, micro, layer, n, now);
        predict_report(&x->d->predict, ahead.slot >= 0);
    }
    return ahead.slot >= 0 && (w.slot < 0 || ahead.saved_s > w.saved_s) ? ahead : w;
}

/* --- Computing a layer ----------------------------------------------------------------------------------------------------------------  */

/* Computes one expert: gathers its rows, runs it with the small-batch kernels, adds its output. */
static int run_expert(struct expert_pool *x, const struct work *w, int micro, const struct expert_slot *t, int at, int n) {
    struct exec *exec = gpu_stream_exec(x->compute);
    const int hidden = config_routed_width(x->d->s->c);
    const float *from = x->routed_in ? x->routed_in : w->xn;
    float *to = x->routed_sum ? x->routed_sum : x->y[micro];
    TRY(op_run(exec, OP_GATHER, &(struct op_gather){.out = x->expert_in, .x = from, .index = x->token[micro] + at, .n = n, .dim = hidden, .ldx = hidden}));
    TRY(op_run(exec, OP_FFN, &(struct op_ffn){.y = x->expert_out, .x = x->expert_in, .expert = t->view, .n = n, .hidden = hidden}));
    return op_run(exec, OP_SCATTER_ADD,
                  &(struct op_scatter_add){
                      .y = to, .x = x->expert_out, .index = x->token[micro] + at, .weight = x->weight[micro] + at, .n = n, .dim = hidden, .ldy = hidden});
}

/* Prepares the input and the sum of experts in a latent space; and adds that sum to the micro-batch's. */
static int begin_latent(struct expert_pool *x, const struct work *w, int layer, int n) {
    const struct config *c = x->d->s->c;
    if (!c->moe_latent) return 0;
    TRY(gpu_fill(x->compute, x->routed_sum, 0, (size_t)n * (size_t)c->moe_latent * 4));
    return block_routed_input(gpu_stream_exec(x->compute), c, &x->d->layers[layer].view, w->xn, x->routed_in, n);
}
static int end_latent(struct expert_pool *x, int micro, int layer, int n) {
    const struct config *c = x->d->s->c;
    if (!c->moe_latent) return 0;
    return block_routed_output(gpu_stream_exec(x->compute), c, &x->d->layers[layer].view, x->routed_sum, x->y[micro], n);
}

/* Records the device's time for the previous layer, which has ended since its rows have moved on. */
static void record_device_time(struct expert_pool *x, int micro, int n) {
    struct decode *s = x->d->s;
    struct cost_machine *cost = s->m->cost;
    if (x->is_timed[micro] && gpu_event_is_done(x->end[micro])) {
        double took = gpu_event_elapsed(x->begin[micro], x->end[micro]);
        s->counts.device_s += took;
        if (!cost->is_deterministic) cost_observe(cost, &cost->domain[1 + x->d->rank].observed[COST_FFN], n, x->expected_s[micro], took);
    }
    x->is_timed[micro] = false;
}

int expert_pool_run(struct decode_device *d, struct decode_micro_batch *m, int layer, int32_t **mine, double *expected) {
    struct expert_pool *x = d->pool;
    struct decode *s = d->s;
    const struct split_plan *p = x->plan;
    int micro = (int)(m - s->micro_batch), topk = s->c->topk, n, pairs = 0, many = 0, begin[USED_MOST];
    struct expert_slot *use[USED_MOST];
    double now = clock_now();
    if (x->layer_begin_s > 0) x->layer_period_s += (now - x->layer_begin_s - x->layer_period_s) / (x->layer_period_s > 0 ? 16 : 1);
    x->layer_begin_s = now;
    record_device_time(x, micro, m->n_dev);
    x->expected_s[micro] = 0;
    router_lookahead_judge(&x->lookahead, micro, layer, m->host.ids, m->n_dev);
    n = split_layer(x, m, layer);
    s->counts.decision_s += clock_now() - now, s->counts.n_decisions++;
    *expected = 0;
    *mine = x->cpu_ids;
    memcpy(x->cpu_ids, m->host.ids, (size_t)(m->n * topk) * sizeof *x->cpu_ids);
    memcpy(x->ids, x->cpu_ids, (size_t)(m->n * topk) * sizeof *x->ids);
    memcpy(x->router, m->host.router, (size_t)m->n * (size_t)config_n_choices(s->c) * sizeof *x->router);
    for (int i = 0; i < n; i++) {
        int id = x->expert_ids[i], k;
        if (p->domain[i] != 1) {
            *expected += cost_table_at(&x->cost[0], x->expert_rows[id]);
            continue;
        }
        struct expert_slot *t = resident_slot(x, layer, id);
        if (!t && !x->is_frozen && (k = eviction_victim(x, layer, x->expert_rows)) >= 0) {
            TRY(upload_expert(x, layer, k, id, false));
            t = &layer_slots(x, layer)[k];
        }
        if (!t || many == USED_MOST) continue; /* left to the CPU */
        use[many] = t, begin[many++] = pairs;
        x->expected_s[micro] += gpu_timeline_reached(x->loaded, t->loaded_value) ? cost_table_at(&x->cost[1], x->expert_rows[id])
                                                                                 : -INFINITY; /* not measurable: it waits for an upload */
        t->was_used = true;
        for (int r = 0; r < m->n_dev * topk; r++)
            if (m->host.ids[r] == id) {
                x->host_token[micro][pairs] = r / topk, x->host_weight[micro][pairs++] = m->host.weights[r];
                x->cpu_ids[r] = -1;
            }
    }
    s->counts.selected += (uint64_t)n, s->counts.hits += (uint64_t)many;
    d->n_hits += (uint64_t)pairs;
    if (s->cpu_queue) TRY(gpu_event_wait(x->ready[micro][layer % 2], x->compute)); /* else the host has seen the rows arrive, and the last sum before them */
    TRY(gpu_fill(x->compute, x->y[micro], 0, (size_t)m->n_dev * (size_t)s->c->hidden * 4));
    TRY(gpu_copy(x->compute, x->token[micro], x->host_token[micro], (size_t)pairs * 4, GPU_H2D)); /* 0 bytes: no copy */
    TRY(gpu_copy(x->compute, x->weight[micro], x->host_weight[micro], (size_t)pairs * 4, GPU_H2D));
    if (many) TRY(gpu_event_record(x->begin[micro], x->compute));
    int span = many ? trace_begin(s->m->trace, x->compute, d->rank, LANE_COMPUTE, "experts", layer, micro) : -1;
    if (many) TRY(begin_latent(x, &d->work[micro], layer, m->n_dev));
    for (int i = 0; i < many; i++) {
        TRY(gpu_timeline_wait(x->loaded, use[i]->loaded_value, x->compute));
        TRY(run_expert(x, &d->work[micro], micro, use[i], begin[i], (i + 1 < many ? begin[i + 1] : pairs) - begin[i]));
    }
    if (many) TRY(end_latent(x, micro, layer, m->n_dev));
    trace_end(s->m->trace, span, x->compute);
    if (many) {
        TRY(gpu_event_record(x->end[micro], x->compute));
        x->is_timed[micro] = true;
        TRY(gpu_timeline_signal(x->freed, ++x->n_freed, x->compute));
        for (int i = 0; i < many; i++) use[i]->freed_value = x->n_freed;
    }
    return gpu_timeline_signal(x->done[micro], ++x->n_done[micro], x->compute);
}

int expert_pool_after(struct decode_device *d, struct decode_micro_batch *m, int layer, double expected, double took) {
    struct expert_pool *x = d->pool;
    const struct decode *s = d->s;
    const struct config *c = s->c;
    const struct layer *y = &s->m->w->layers[layer];
    struct cost_machine *cost = s->m->cost;
    bool known = !y->router_table;
    size_t p = 2 * (size_t)c->topk;
    struct decode_counts *counts = &d->s->counts;
    double begun = clock_now(), now;
    counts->cpu_s += took;
    if (cost->is_deterministic) return 0;
    if (expected > 0 && m->n == m->n_dev) {
        cost_observe(cost, &cost->domain[0].observed[COST_FFN], m->n, expected, took);
    }
    if ((s->clock % 16 == 0 || !(s->clock & (s->clock - 1))) && layer == d->last - 1) fill_cost_tables(x); /* more often at first */
    for (int i = 0; i < m->n && known; i++)
        score_best(c->score, y->router_bias, x->router + (size_t)i * (size_t)config_n_choices(c), c->n_experts, (int)p, x->near + (size_t)i * p,
                   x->chance + (size_t)i * p);
    score_update(&d->score, layer, &(struct score_rows){m->n, x->ids, known ? x->near : NULL, x->chance});
    predict_update_rates(&d->predict, layer, x->expert_rows);
    int micro = (int)(m - s->micro_batch);
    counts->decision_s += (now = clock_now()) - begun;
    TRY(router_lookahead_run(&x->lookahead, micro, layer + 1, x->ready[micro][(layer + 1) % 2], m->n_dev));
    counts->decision_s -= clock_now();
    struct upload_choice w = pick_upload(x, micro, layer, m->n_dev, now - x->layer_begin_s);
    counts->decision_s += clock_now();
    return w.slot >= 0 ? upload_expert(x, w.layer, w.slot, w.expert, w.is_prefetch) : 0;
}

#include "engine/exec/decode/pinned_experts.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/exec/cpu_layer.h"
#include "engine/exec/decode/decode_device.h"
#include "engine/exec/decode/decode_graph.h"
#include "engine/layer/expert_io.h"

bool pinned_experts_are_used(const struct runtime *m) {
    return m->expert_cache.is_pinned || (!m->expert_cache.is_sent && m->cost && m->cost->is_deterministic);
}

double pinned_experts_share(const struct runtime *m, int layer, int n) {
    const double by_profile = m->expert_cache.is_pinned ? usage_profile_pinned_share(m->usage, layer, n) : -1,
                 skew = m->cost_model ? m->cost_model->skew : 0;
    double pinned = 0, all = 0;
    if (by_profile >= 0) return by_profile;
    for (int i = 0; i < m->w->config.n_experts; i++) {
        const double one = pow(i + 1, -skew);
        all += one, pinned += i < n ? one : 0;
    }
    return all > 0 ? pinned / all : 0;
}

static bool has_layer(const struct decode_device *d, int layer) {
    return layer >= d->first && layer < d->last && d->s->c->layer[layer].moe;
}
static const int32_t *layer_slots(const struct decode_device *d, int layer) {
    return d->pinned->slot + (size_t)layer * (size_t)d->s->c->n_experts;
}
static bool is_loaded(const struct decode_device *d, int layer) {
    return d->pinned && has_layer(d, layer) && d->pinned->layer[layer].view;
}

/* Tokens from which --expert-cache auto leaves the profile that it pinned experts by as it is. */
enum { SETTLED_TOKENS = 2048 };

/* --- Loading ---------------------------------------------------------------------------------- */

static int open_pinned(struct decode_device *d, struct error *e) {
    const struct config *c = d->s->c;
    const size_t experts = (size_t)c->n_layers * (size_t)c->n_experts,
                 pairs = (size_t)DECODE_MAX_ROWS * (size_t)c->topk;
    struct pinned_experts *x = d->pinned;
    int rc = 0;
    if (x) return 0;
    if (!(x = d->pinned = mem_calloc(1, sizeof *x))) return error_set(e, ERR_MEMORY, "no memory for pinned experts");
    x->layer = mem_calloc((size_t)c->n_layers, sizeof *x->layer);
    x->slot = mem_alloc(experts * sizeof *x->slot);
    x->share = mem_calloc((size_t)c->n_layers, sizeof *x->share);
    x->cpu_ids = mem_alloc(pairs * sizeof *x->cpu_ids);
    if (!x->layer || !x->slot || !x->share || !x->cpu_ids)
        rc = error_set(e, ERR_MEMORY, "no memory for pinned experts");
    else memset(x->slot, 0xff, experts * sizeof *x->slot);
    x->end = d->last;
    if (!rc) rc = gpu_alloc(d->g, (void **)&x->device_slot, experts * sizeof *x->device_slot, e);
    for (int i = 0; i < DECODE_MICRO_BATCHES && !rc; i++)
        rc = gpu_alloc(d->g, (void **)&x->ids[i], pairs * sizeof *x->ids[i], e);
    if (rc) pinned_experts_free(d);
    return rc;
}

bool pinned_experts_free(struct decode_device *d) {
    struct pinned_experts *x = d->pinned;
    if (!x) return false;
    if (d->main) gpu_stream_sync(d->main); /* queued work and recorded graphs read them */
    decode_graph_drop(d);
    for (int l = d->first; l < d->last && x->layer; l++) resident_experts_free(&x->layer[l], d->ledger);
    gpu_free(d->g, x->device_slot);
    for (int i = 0; i < DECODE_MICRO_BATCHES; i++) gpu_free(d->g, x->ids[i]);
    void *own[] = {x->layer, x->slot, x->share, x->cpu_ids, x};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) mem_free(own[i]);
    d->pinned = NULL;
    return true;
}

/* Identifies the experts of the loaded layers and their device. */
static uint64_t hash_pinned(const struct decode_device *d) {
    const size_t row = (size_t)d->s->c->n_experts * sizeof *d->pinned->slot;
    uint64_t hash = hash64(&d->rank, sizeof d->rank, d->s->m->w->files.fingerprint);
    for (int l = d->first; l < d->last; l++)
        if (is_loaded(d, l)) hash = hash64(layer_slots(d, l), row, hash64(&l, sizeof l, hash));
    return hash;
}

/* After the last load or an eviction for good: what the loaded layers have, kept while a prompt borrows their memory.
 */
static void describe_pinned(struct decode_device *d) {
    int n = 0;
    d->pinned_hash = hash_pinned(d), d->pinned_share = 0;
    for (int l = d->first; l < d->last; l++) {
        n += has_layer(d, l);
        if (is_loaded(d, l)) d->pinned_share += (double)d->pinned->share[l];
    }
    d->pinned_share /= n ? n : 1;
}
/* Sends a layer's experts and its map. ERR_MEMORY: they do not fit. */
static int send_layer(struct decode_device *d, int layer, const int32_t *ids, int n, struct error *e) {
    struct runtime *m = d->s->m;
    const struct config *c = d->s->c;
    struct pinned_experts *x = d->pinned;
    struct stage *stage = NULL;
    int32_t *slot = x->slot + (size_t)layer * (size_t)c->n_experts;
    if (!d->s->cpu_queue) TRY(nan_scan_experts(&m->scan, layer, ids, n, e));
    for (int i = 0; i < n; i++) slot[ids[i]] = i;
    int rc = decode_device_open_stage(d, &stage, e);
    if (!rc)
        rc = resident_experts_load(&x->layer[layer], LEDGER_CACHED, c, layer, m->w->layers[layer].experts, ids, n,
                                   d->ledger, stage, e);
    if (stage && !rc) rc = stage_flush(stage);
    stage_close(&stage);
    const size_t row = (size_t)c->n_experts * sizeof *slot;
    if (!rc) rc = gpu_copy(d->main, x->device_slot + (size_t)layer * (size_t)c->n_experts, slot, row, GPU_H2D);
    const int synced = gpu_stream_sync(d->main);
    rc = rc ? rc : synced;
    if (!rc) {
        x->share[layer] = (float)fmin(fmax(pinned_experts_share(m, layer, n), 1e-6), 1 - 1e-6); /* 0: all */
        cpu_count_read(m, x->layer[layer].mem.bytes);
        return 0;
    }
    memset(slot, 0xff, row);
    resident_experts_free(&x->layer[layer], d->ledger);
    return rc;
}

/* Returns the first layer that lacks its experts; d->last: none. */
static int first_missing(const struct decode_device *d) {
    for (int l = d->first; l < d->pinned->end; l++)
        if (has_layer(d, l) && !is_loaded(d, l)) return l;
    return d->last;
}
int pinned_experts_load_next(struct decode_device *d, bool *more, struct error *e) {
    struct runtime *m = d->s->m;
    const int n = d->pinned_per_layer, settled = m->expert_cache.request == BUDGET_AUTO ? SETTLED_TOKENS : 0;
    *more = false;
    if (!n || (m->expert_cache.is_pinned && m->usage && !usage_profile_pin(m->usage, settled))) return 0;
    if (open_pinned(d, e)) { /* pinned experts are optional */
        if (e->code != ERR_MEMORY) return e->code;
        log_say(LOG_INFO, "no pinned experts on device %d: %s", d->rank, e->text);
        *e = (struct error){0};
        d->pinned_per_layer = 0;
        return 0;
    }
    const int layer = first_missing(d);
    if (layer == d->last) return 0;
    int32_t *ids = mem_alloc((size_t)n * sizeof *ids);
    if (!ids) return error_set(e, ERR_MEMORY, "no memory for pinned experts");
    for (int i = 0; i < n; i++) ids[i] = i;
    if (m->expert_cache.is_pinned && m->usage) usage_profile_pinned(m->usage, layer, n, ids);
    decode_graph_drop(d); /* recorded graphs leave all of this layer's experts to the CPU */
    const int rc = send_layer(d, layer, ids, n, e);
    mem_free(ids);
    *more = !rc;
    if (rc && rc != ERR_MEMORY) return rc;
    if (rc) {
        log_say(LOG_INFO, "device %d has room for pinned experts up to layer %d", d->rank, layer - 1);
        *e = (struct error){0};
        d->pinned->end = layer;
    }
    if (first_missing(d) == d->last) describe_pinned(d);
    return 0;
}
int pinned_experts_load(struct decode_device *d, struct error *e) {
    for (bool more = true; more;) TRY(pinned_experts_load_next(d, &more, e));
    return 0;
}

bool pinned_experts_evict_layer(struct decode_device *d, bool for_good) {
    for (int l = d->last - 1; l >= d->first && d->pinned; l--) {
        if (!is_loaded(d, l)) continue;
        gpu_stream_sync(d->main); /* queued work and recorded graphs read them */
        decode_graph_drop(d);
        resident_experts_free(&d->pinned->layer[l], d->ledger);
        if (for_good) d->pinned->end = l, describe_pinned(d);
        return true;
    }
    return false;
}

/* --- Queries ---------------------------------------------------------------------------------- */

const struct expert *pinned_experts_view(const struct decode_device *d, int layer, int expert) {
    if (!is_loaded(d, layer)) return NULL;
    const int slot = layer_slots(d, layer)[expert];
    return slot >= 0 ? &d->pinned->layer[layer].view[slot] : NULL;
}
int pinned_experts_count(const struct decode_device *d, uint64_t *bytes) {
    int n = 0;
    *bytes = 0;
    for (int l = d->first; l < d->last; l++)
        if (is_loaded(d, l)) n += d->pinned->layer[l].n, *bytes += d->pinned->layer[l].mem.bytes;
    return n;
}

/* --- Computing a layer ------------------------------------------------------------------------ */

int pinned_experts_add(struct decode_device *d, struct decode_micro_batch *m, int layer) {
    const struct decode *s = d->s;
    const struct config *c = s->c;
    if (!is_loaded(d, layer)) return 0;
    const struct pinned_experts *x = d->pinned;
    struct exec *exec = decode_device_exec(d);
    struct work w = *decode_device_work(d, m);
    const int micro = (int)(m - s->micro_batch);
    TRY(op_run(exec, OP_REMAP,
               &(struct op_remap){.out = x->ids[micro],
                                  .ids = w.ids,
                                  .map = x->device_slot + (size_t)layer * (size_t)c->n_experts,
                                  .n = m->n_dev * c->topk,
                                  .n_map = c->n_experts}));
    w.ids = x->ids[micro], w.late_experts = NULL, w.computed_fraction = x->share[layer];
    return expert_io_add_some(exec, c, &d->layers[layer].view, x->layer[layer].view, x->layer[layer].n, &w, w.x,
                              m->n_dev);
}

int32_t *pinned_experts_mask(struct decode_device *d, const struct decode_micro_batch *m, int layer, float *cpu_share) {
    const struct decode *s = d->s;
    const int topk = s->c->topk;
    if (!is_loaded(d, layer)) return m->host.ids;
    *cpu_share = 1 - d->pinned->share[layer];
    if (s->cpu_queue) return m->host.ids; /* virtual time: nothing was chosen */
    const int32_t *slot = layer_slots(d, layer);
    uint64_t hits = 0;
    for (int i = 0; i < m->n * topk; i++) {
        const int32_t id = m->host.ids[i];
        const bool is_hit = i < m->n_dev * topk && id >= 0 && slot[id] >= 0;
        d->pinned->cpu_ids[i] = is_hit ? -1 : id;
        hits += is_hit;
    }
    d->n_hits += hits;
    d->s->counts.hits += hits, d->s->counts.selected += (uint64_t)(m->n_dev * topk);
    return d->pinned->cpu_ids;
}

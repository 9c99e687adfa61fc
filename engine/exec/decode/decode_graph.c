/* Decode batches of one shape enqueue the same work again and again, some thirty operations per layer; only KV
 * addresses and positions change. Operations read both from memory, so a layer's work is recorded once per shape and
 * replayed with one call. The first batch of a shape is not recorded, so that workspaces have grown before the second
 * is. Rows for which an indexer selects keys have other shapes than rows that see all of few keys. Results are the same
 * bits. */
#include <string.h>

#include "base/mem.h"
#include "engine/exec/decode/decode_graph.h"
#include "engine/exec/decode/device_kv.h"
#include "engine/layer/attention.h"

/* fewest keys that a graph is recorded for; recordings of one graph, each of which may find a workspace that has to
 * grow */
enum { MIN_KEYS = 512, MAX_RECORDINGS = 8 };

static size_t n_places(const struct decode *s) { return (size_t)s->c->n_layers * CACHE_PLANES; }

int decode_graph_open(struct decode_device *d, struct error *e) {
    const struct gpu_set *set = d->s->m->gpus;
    bool any_recordable = false;
    for (int l = d->first; l < d->last; l++) any_recordable |= block_is_recordable(d->s->c, l);
    if (d->s->cpu_queue || set->spec.nograph || !any_recordable) return 0;
    size_t bytes = DECODE_MICRO_BATCHES * DECODE_MAX_ROWS * n_places(d->s) * sizeof *d->places;
    int rc = gpu_alloc(d->g, (void **)&d->places, bytes, e);
    return rc ? rc : gpu_host_alloc(d->g, (void **)&d->host_places, bytes, e);
}

static void drop_shape(struct decode_device *d, struct graph_shape *t) {
    for (int part = 0; part < GRAPH_PARTS; part++) {
        for (int l = 0; t->graph[part] && l < d->s->c->n_layers; l++) gpu_graph_close(&t->graph[part][l]);
        mem_free(t->graph[part]);
    }
    *t = (struct graph_shape){0};
}
void decode_graph_drop(struct decode_device *d) {
    for (int i = 0; i < GRAPH_SHAPES; i++) drop_shape(d, &d->shapes[i]);
    for (int i = 0; i < DECODE_MICRO_BATCHES; i++) d->active_shape[i] = NULL;
}
void decode_graph_close(struct decode_device *d) {
    decode_graph_drop(d);
    gpu_free(d->g, d->places);
    gpu_host_free(d->g, d->host_places);
    d->places = d->host_places = NULL;
}

static bool same_shape(const struct graph_shape *a, const struct graph_shape *b) {
    return a->micro == b->micro && a->row0 == b->row0 && a->n_total == b->n_total && a->keys == b->keys &&
           a->has_router == b->has_router && a->few_key_spans == b->few_key_spans && a->is_draft == b->is_draft &&
           !memcmp(a->rows, b->rows, sizeof a->rows);
}
/* Returns the slot of an equal shape, or reuses the least recently used one. */
static struct graph_shape *find_shape(struct decode_device *d, const struct graph_shape *wanted) {
    struct graph_shape *oldest = &d->shapes[0];
    for (int i = 0; i < GRAPH_SHAPES; i++) {
        if (d->shapes[i].last_used && same_shape(&d->shapes[i], wanted)) return &d->shapes[i];
        if (d->shapes[i].last_used < oldest->last_used) oldest = &d->shapes[i];
    }
    drop_shape(d, oldest);
    *oldest = *wanted;
    oldest->is_unrecordable = true; /* until decode_graph_begin() sees the shape again */
    return oldest;
}

const struct span *decode_graph_spans(const struct decode_device *d, const struct decode_micro_batch *m,
                                      struct span out[DECODE_MAX_ROWS]) {
    if (!d->shard_config || !d->shard.rank) return m->dev_spans;
    for (int i = 0; i < m->n_dev_spans; i++) {
        out[i] = m->dev_spans[i];
        out[i].cache += (size_t)d->shard.rank * (size_t)d->s->c->n_layers;
    }
    return out;
}

/* Returns the limit of block_few_keys_limit(), which is equal in all layers that have one; 0: no layer has one. */
static int few_keys_limit(const struct decode_device *d) {
    int limit = 0;
    for (int l = d->first; l < d->last; l++)
        if (block_few_keys_limit(d->s->c, l)) limit = block_few_keys_limit(d->s->c, l);
    return limit;
}
static struct op_address op_place_of(const struct cache_desc *d, const struct kv_plane *p, const struct span *t) {
    if (!d->fixed_rows) return (struct op_address){.blocks = p->blocks, .pos = t->pos};
    return (struct op_address){.data =
                                   t->state_step.from_row < 0 ? NULL : attention_plane(*p, t->state_step.from_row).data,
                               .after = attention_plane(*p, t->state_step.to_row).data,
                               .pos = t->pos};
}

int decode_graph_begin(struct decode_device *d, struct decode_micro_batch *m, int total) {
    struct decode *s = d->s;
    const int micro = (int)(m - s->micro_batch);
    d->active_shape[micro] = NULL;
    if (!d->places || s->m->trace || !m->n_dev) return 0; /* trace spans are events, which cannot be recorded */
    struct graph_shape wanted = {.micro = micro,
                                 .row0 = m->row0,
                                 .n_total = total,
                                 .keys = MIN_KEYS,
                                 .has_router = s->m->routing || d->pool,
                                 .is_draft = s->draft != NULL};
    const int few_limit = few_keys_limit(d);
    for (int k = 0; k < m->n_dev_spans; k++) {
        const struct span *t = &m->dev_spans[k];
        if (t->pos < few_limit && t->pos + t->n > few_limit) return 0; /* rows on both sides of the limit */
        wanted.few_key_spans |= t->pos < few_limit ? 1u << k : 0;
        wanted.rows[k] = (uint8_t)t->n;
        while (wanted.keys < t->pos + t->n) wanted.keys *= 2;
    }
    struct graph_shape *t = find_shape(d, &wanted);
    if (t->last_used && t->last_used < s->clock && !t->graph[0]) {
        t->is_unrecordable = false;
        for (int part = 0; part < GRAPH_PARTS; part++)
            t->graph[part] = mem_calloc((size_t)s->c->n_layers, sizeof *t->graph[part]);
        for (int part = 0; part < GRAPH_PARTS; part++) t->is_unrecordable |= !t->graph[part];
    }
    t->last_used = s->clock;
    if (t->is_unrecordable) return 0;
    d->active_shape[micro] = t;
    size_t at = (size_t)micro * DECODE_MAX_ROWS * n_places(s);
    struct span own[DECODE_MAX_ROWS];
    const struct span *spans = decode_graph_spans(d, m, own);
    for (int k = 0; k < m->n_dev_spans; k++)
        for (int l = d->first; l < d->last; l++)
            for (int p = 0; p < s->layout.planes[l]; p++)
                d->host_places[at + (size_t)k * n_places(s) + (size_t)l * CACHE_PLANES + (size_t)p] =
                    op_place_of(&s->layout.desc[l][p], &spans[k].cache[l].p[p], &m->dev_spans[k]);
    return gpu_copy(d->main, &d->places[at], &d->host_places[at],
                    (size_t)m->n_dev_spans * n_places(s) * sizeof *d->places, GPU_H2D);
}

/* Records fn. *g stays NULL if it cannot be recorded; then nothing has run. */
static int record_graph(struct decode_device *d, struct decode_micro_batch *m, int layer, int total, graph_fn fn,
                        struct gpu_graph **g) {
    struct decode *s = d->s;
    const int micro = (int)(m - s->micro_batch);
    const int few_limit = few_keys_limit(d);
    struct span spans[DECODE_MAX_ROWS], own[DECODE_MAX_ROWS];
    for (int k = 0; k < m->n_dev_spans; k++) {
        spans[k] = decode_graph_spans(d, m, own)[k];
        spans[k].pos = (d->active_shape[micro]->few_key_spans >> k & 1 && few_limit < d->active_shape[micro]->keys
                            ? few_limit
                            : d->active_shape[micro]->keys) -
                       spans[k].n;
        spans[k].addresses = &d->places[((size_t)micro * DECODE_MAX_ROWS + (size_t)k) * n_places(s)];
    }
    int rc = GPU_STALE;
    for (int tries = 0; tries < MAX_RECORDINGS && rc == GPU_STALE; tries++) {
        TRY(gpu_graph_begin(d->main));
        int fn_rc = fn(d, m, layer, total, spans);
        rc = gpu_graph_end(d->main, g);
        if (fn_rc) gpu_graph_close(g);
    }
    return rc == GPU_STALE ? 0 : rc;
}

int decode_graph_run(struct decode_device *d, struct decode_micro_batch *m, int layer, enum graph_part part, int total,
                     graph_fn fn) {
    struct graph_shape *t = d->active_shape[m - d->s->micro_batch];
    struct span own[DECODE_MAX_ROWS];
    if (!t || t->is_unrecordable || t->unrecordable_parts >> part & 1 || !block_is_recordable(d->s->c, layer))
        return fn(d, m, layer, total, decode_graph_spans(d, m, own));
    struct gpu_graph **g = &t->graph[part][layer];
    int rc = *g ? gpu_graph_run(*g) : GPU_STALE;
    if (rc == GPU_STALE) {
        gpu_graph_close(g);
        TRY(record_graph(d, m, layer, total, fn, g));
        rc = *g ? gpu_graph_run(*g) : GPU_STALE;
    }
    if (rc != GPU_STALE) {
        d->s->counts.graph_launches++;
        return rc;
    }
    t->unrecordable_parts |= 1u << part;
    return fn(d, m, layer, total, decode_graph_spans(d, m, own));
}

/* Decode batches of one shape enqueue the same work again and again, some thirty operations per layer; only KV addresses and
 * positions change. Those are read from memory, so a layer's work is recorded once per shape and replayed with one call. The first
 * batch of a shape is not recorded, so that workspaces have grown before the second is. Rows for which an indexer selects keys
 * have other shapes than rows that see all of few keys. Results are the same bits. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/step/internal.h"

enum { KEYS_LEAST = 512, TRIES = 8 };

static size_t places_of(const struct step *s) { return (size_t)s->c->n_layers * CACHE_PLANES; }

int step_graphs_open(struct step_device *d, struct error *e) {
    const struct gpu_set *set = d->s->m->gpus;
    bool placed = false;
    for (int l = d->first; l < d->last; l++) placed |= block_placed(d->s->c, l);
    if (d->s->processor || set->spec.nograph || !placed) return 0;
    size_t bytes = STEP_MICROS * STEP_ROWS * places_of(d->s) * sizeof *d->places;
    int rc = gpu_alloc(d->g, (void **)&d->places, bytes, e);
    return rc ? rc : gpu_host_alloc(d->g, (void **)&d->host_places, bytes, e);
}

static void drop(struct step_device *d, struct step_shape *t) {
    for (int part = 0; part < STEP_PARTS; part++) {
        for (int l = 0; t->graph[part] && l < d->s->c->n_layers; l++) gpu_graph_close(&t->graph[part][l]);
        mem_free(t->graph[part]);
    }
    *t = (struct step_shape){0};
}
void step_graphs_drop(struct step_device *d) {
    for (int i = 0; i < STEP_SHAPES; i++) drop(d, &d->shape[i]);
    for (int i = 0; i < STEP_MICROS; i++) d->now[i] = NULL;
}
void step_graphs_close(struct step_device *d) {
    step_graphs_drop(d);
    gpu_free(d->g, d->places);
    gpu_host_free(d->g, d->host_places);
    d->places = d->host_places = NULL;
}

static bool alike(const struct step_shape *a, const struct step_shape *b) {
    return a->micro == b->micro && a->n == b->n && a->row0 == b->row0 && a->total == b->total && a->keys == b->keys && a->router == b->router &&
           a->few == b->few && !memcmp(a->rows, b->rows, sizeof a->rows);
}
/* Returns the slot of an equal shape, or reuses the least recently used one. */
static struct step_shape *shape_of(struct step_device *d, const struct step_shape *like) {
    struct step_shape *oldest = &d->shape[0];
    for (int i = 0; i < STEP_SHAPES; i++) {
        if (d->shape[i].used && alike(&d->shape[i], like)) return &d->shape[i];
        if (d->shape[i].used < oldest->used) oldest = &d->shape[i];
    }
    drop(d, oldest);
    *oldest = *like;
    oldest->off = true; /* not in its first batch */
    return oldest;
}

const struct span *step_spans(const struct step_device *d, const struct step_micro *m, struct span out[STEP_ROWS]) {
    if (!d->own || !d->share.rank) return m->dev;
    for (int i = 0; i < m->n_dev_spans; i++) {
        out[i] = m->dev[i];
        out[i].cache += (size_t)d->share.rank * (size_t)d->s->c->n_layers;
    }
    return out;
}

/* The block_few_keys limit, equal in all layers that have one; 0: no layer has one. */
static int few_keys(const struct step_device *d) {
    int few = 0;
    for (int l = d->first; l < d->last; l++)
        if (block_few_keys(d->s->c, l)) few = block_few_keys(d->s->c, l);
    return few;
}
static struct op_place place_of(const struct cache_desc *d, const struct kv_plane *p, const struct span *t) {
    if (!d->rows) return (struct op_place){.blocks = p->blocks, .pos = t->pos};
    return (struct op_place){
        .data = t->move.from < 0 ? NULL : attention_plane(*p, t->move.from).data, .after = attention_plane(*p, t->move.to).data, .pos = t->pos};
}

int step_graphs_begin(struct step_device *d, struct step_micro *m, int total) {
    struct step *s = d->s;
    const int i = (int)(m - s->micro);
    d->now[i] = NULL;
    if (!d->places || s->m->trace || !m->n_dev) return 0; /* trace spans are events, which cannot be recorded */
    struct step_shape like = {.micro = i, .n = m->n_dev, .row0 = m->row0, .total = total, .keys = KEYS_LEAST, .router = s->m->routing || d->experts};
    const int few = few_keys(d);
    for (int k = 0; k < m->n_dev_spans; k++) {
        const struct span *t = &m->dev[k];
        if (t->pos < few && t->pos + t->n > few) return 0; /* rows on both sides of the limit */
        like.few |= t->pos < few ? 1u << k : 0;
        like.rows[k] = (uint8_t)t->n;
        while (like.keys < t->pos + t->n) like.keys *= 2;
    }
    struct step_shape *t = shape_of(d, &like);
    if (t->used && t->used < s->clock && !t->graph[0]) {
        t->off = false;
        for (int part = 0; part < STEP_PARTS; part++) t->graph[part] = mem_calloc((size_t)s->c->n_layers, sizeof *t->graph[part]);
        for (int part = 0; part < STEP_PARTS; part++) t->off |= !t->graph[part];
    }
    t->used = s->clock;
    if (t->off) return 0;
    d->now[i] = t;
    size_t at = (size_t)i * STEP_ROWS * places_of(s);
    struct span own[STEP_ROWS];
    const struct span *spans = step_spans(d, m, own);
    for (int k = 0; k < m->n_dev_spans; k++)
        for (int l = d->first; l < d->last; l++)
            for (int p = 0; p < s->cache.planes[l]; p++)
                d->host_places[at + (size_t)k * places_of(s) + (size_t)l * CACHE_PLANES + (size_t)p] =
                    place_of(&s->cache.desc[l][p], &spans[k].cache[l].p[p], &m->dev[k]);
    return gpu_copy(d->main, &d->places[at], &d->host_places[at], (size_t)m->n_dev_spans * places_of(s) * sizeof *d->places, GPU_H2D);
}

/* Records fn. *g stays NULL if it cannot be recorded; then nothing has run. */
static int record(struct step_device *d, struct step_micro *m, int layer, int total, step_work fn, struct gpu_graph **g) {
    struct step *s = d->s;
    const int i = (int)(m - s->micro);
    const int few = few_keys(d);
    struct span spans[STEP_ROWS], own[STEP_ROWS];
    for (int k = 0; k < m->n_dev_spans; k++) {
        spans[k] = step_spans(d, m, own)[k];
        spans[k].pos = (d->now[i]->few >> k & 1 && few < d->now[i]->keys ? few : d->now[i]->keys) - spans[k].n;
        spans[k].at = &d->places[((size_t)i * STEP_ROWS + (size_t)k) * places_of(s)];
    }
    int rc = GPU_STALE;
    for (int tries = 0; tries < TRIES && rc == GPU_STALE; tries++) { /* each attempt may find a workspace that has to grow */
        TRY(gpu_graph_begin(d->main));
        int did = fn(d, m, layer, total, spans);
        rc = gpu_graph_end(d->main, g);
        if (did) gpu_graph_close(g);
    }
    return rc == GPU_STALE ? 0 : rc;
}

int step_replay(struct step_device *d, struct step_micro *m, int layer, enum step_part part, int total, step_work fn) {
    struct step_shape *t = d->now[m - d->s->micro];
    struct span own[STEP_ROWS];
    if (!t || t->off || !block_placed(d->s->c, layer)) return fn(d, m, layer, total, step_spans(d, m, own));
    struct gpu_graph **g = &t->graph[part][layer];
    int rc = *g ? gpu_graph_run(*g) : GPU_STALE;
    if (rc == GPU_STALE) {
        gpu_graph_close(g);
        TRY(record(d, m, layer, total, fn, g));
        rc = *g ? gpu_graph_run(*g) : GPU_STALE;
    }
    if (rc != GPU_STALE) {
        d->s->counts.replayed++;
        return rc;
    }
    t->off = true;
    return fn(d, m, layer, total, step_spans(d, m, own));
}

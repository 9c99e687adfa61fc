#include "engine/store/place.h"

#include <pthread.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/store/shard.h"

enum { COPIERS = 4, SPREAD = MODULE_ATTENTION | MODULE_ROUTER }; /* threads per node; modules whose matrices are spread by rows */

struct copier {
    struct place *p;
    int node, beside; /* node; number of copiers on it */
    pthread_t thread;
};

/* The work of a node is a list of items: for each layer the routed experts, then everything else. The head counts as one more layer, after the last. */
struct place {
    const struct weights *w;
    struct numa nodes;
    struct residency *known;
    bool copies;                  /* false: views of the mapping */
    int n_nodes, per_layer;       /* items per layer: n_experts + 1 */
    bool works[NUMA_NODES];       /* nodes that get a part */
    struct layer *placed;         /* [n_layers] */
    struct expert_shards *shards; /* [n_layers] */
    struct expert *parts;         /* all parts */
    size_t n_parts;
    struct numa_part hidden[NUMA_NODES]; /* rows of every down */
    int32_t rows[NUMA_NODES + 1];        /* where these parts begin */
    struct weights whole;                /* w with the copied head */
    _Atomic(const struct weights *) head;
    _Atomic int *left;              /* [n_layers + 1] items still to copy */
    _Atomic int *bad;               /* [n_layers + 1] a NaN was found */
    uint8_t *pages[NUMA_NODES + 1]; /* one per node, then the area spread by rows */
    size_t size[NUMA_NODES + 1];
    _Atomic int64_t next[NUMA_NODES]; /* next item per node */
    _Atomic int done;                 /* finished layers, including the head */
    double begun;
    struct copier *copiers;
    int n_copiers;
    _Atomic int quit;
};

/* Lists the matrices of layer i outside its FFNs; returns their number. */
static int spread(const struct place *p, int i, struct param *list) {
    int n = params_list(&p->w->config, i, SPREAD, list), mats = 0;
    for (int k = 0; k < n; k++)
        if (list[k].cols) list[mats++] = list[k];
    return mats;
}

/* --- Layout --- */

/* Returns the unsplit expert k of a layer; the shared or dense FFN is the last one. NULL: none. */
static const struct expert *whole(const struct place *p, const struct layer *y, int k) {
    if (k < p->per_layer - 1) return y->experts ? &y->experts[k] : NULL;
    return y->dense.gate.data ? &y->dense : NULL;
}
static int slots(const struct place *p, const struct layer *y) { return y->experts ? p->per_layer : 1; }

/* Returns node a's part of an expert: a view of the mapping. */
static struct expert part_of(const struct place *p, const struct expert *e, int a) {
    struct numa_part inter[NUMA_NODES];
    numa_split(&p->nodes, e->gate.rows, SHARD_UNIT, inter);
    return shard_view(e, inter[a], p->hidden[a]);
}

/* Splits layer i and lays out the copies. pages NULL: sizes only. *part: next free entries for the parts. */
static void lay_layer(struct place *p, int i, struct expert **part, size_t *at) {
    const struct layer *y = &p->w->layers[i];
    struct expert *placed = *part;
    *part += slots(p, y) * p->n_nodes;
    for (int k = p->per_layer - slots(p, y), s = 0; k < p->per_layer; k++, s++) {
        const struct expert *e = whole(p, y, k);
        for (int a = 0; a < p->n_nodes && e; a++) {
            struct expert view = part_of(p, e, a);
            placed[s * p->n_nodes + a] = p->copies ? shard_lay_expert(&view, p->pages[a], &at[a]) : view;
        }
    }
    struct layer *yp = &p->placed[i];
    struct param list[PARAMS_MAX];
    *yp = *y;
    for (int k = 0, mats = spread(p, i, list); k < mats && p->copies; k++)
        *params_mat(yp, &list[k]) = shard_lay(params_mat(y, &list[k]), p->pages[p->n_nodes], &at[p->n_nodes]);
    p->shards[i] = (struct expert_shards){placed, p->rows, p->n_nodes};
    yp->shards = &p->shards[i];
}

static void lay_all(struct place *p) {
    struct expert *part = p->parts;
    size_t at[NUMA_NODES + 1] = {0};
    for (int i = 0; i < p->w->config.n_layers; i++) lay_layer(p, i, &part, at);
    p->whole = *p->w;
    if (p->copies) p->whole.head = shard_lay(&p->w->head, p->pages[p->n_nodes], &at[p->n_nodes]);
    memcpy(p->size, at, sizeof at);
}

/* Binds the rows of a spread matrix to the nodes in order, as the threads take them. */
static void bind_rows(struct place *p, const struct mat *m, struct error *e) {
    struct numa_part cut[NUMA_NODES];
    if (e->code) return;
    numa_split(&p->nodes, m->rows, 1, cut);
    for (int a = 0; a < p->n_nodes && !e->code; a++)
        numa_place(&p->nodes, (uint8_t *)m->data + (size_t)cut[a].first * m->stride, (size_t)cut[a].count * m->stride, a, e);
}
static void bind_all(struct place *p) {
    struct error e = {0};
    for (int a = 0; a < p->n_nodes && !e.code; a++) numa_place(&p->nodes, p->pages[a], p->size[a], a, &e);
    for (int i = 0; i < p->w->config.n_layers; i++) {
        struct param list[PARAMS_MAX];
        for (int k = 0, mats = spread(p, i, list); k < mats; k++) bind_rows(p, params_mat(&p->placed[i], &list[k]), &e);
    }
    bind_rows(p, &p->whole.head, &e);
    if (e.code) log_say(LOG_WARN, "%s: weights are not bound to their NUMA nodes", e.text);
}

/* --- Copying --- */

static bool copy_rows(const struct place *p, const struct mat *to, const struct mat *from, int node) {
    struct numa_part cut[NUMA_NODES];
    numa_split(&p->nodes, from->rows, 1, cut);
    return shard_copy(to, from, cut[node].first, cut[node].count);
}

/* Calls fn for the ranges that are prefetched and later dropped from the page cache: matrices without their (small) scales. */
static void each_mat(const struct place *p, int layer, unsigned modules, const void *base, void (*fn)(const void *, size_t)) {
    struct param list[PARAMS_MAX];
    for (int i = 0, n = params_list(&p->w->config, layer, modules, list); i < n; i++)
        if (list[i].cols) fn(params_mat(base, &list[i])->data, mat_span(params_mat(base, &list[i])));
}

static void publish(struct place *p, int layer) {
    for (int x = 0; x < p->per_layer; x++) {
        /* layer 0's dense item includes embedding and head, which were not checked here */
        bool good = !atomic_load(&p->bad[layer]) && (layer || x < p->per_layer - 1);
        residency_set(p->known, layer, x, RESIDENCY_PLACED | (good ? RESIDENCY_GOOD : 0));
    }
    const struct layer *y = &p->w->layers[layer];
    each_mat(p, layer, MODULE_LAYER, y, file_map_drop);
    for (int k = 0; y->experts && k < p->per_layer - 1; k++) each_mat(p, layer, MODULE_EXPERT, &y->experts[k], file_map_drop);
}

static void copy_item(struct place *p, int node, int layer, int k) {
    int n = p->w->config.n_layers;
    bool good = true;
    if (layer == n) {
        if (k == p->per_layer - 1) copy_rows(p, &p->whole.head, &p->w->head, node);
    } else {
        const struct layer *y = &p->w->layers[layer];
        int s = k - (p->per_layer - slots(p, y));
        if (whole(p, y, k)) {
            const struct expert view = part_of(p, whole(p, y, k), node);
            good = shard_copy_expert(&p->shards[layer].part[(size_t)s * (size_t)p->n_nodes + (size_t)node], &view);
        }
        if (k == p->per_layer - 1) {
            struct param list[PARAMS_MAX];
            for (int d = spread(p, layer, list); d-- > 0;) good &= copy_rows(p, params_mat(&p->placed[layer], &list[d]), params_mat(y, &list[d]), node);
        }
    }
    /* nan_scan.c will find the position in the mapping before the layer is used, and report it */
    if (!good) atomic_store(&p->bad[layer], 1);
    if (atomic_fetch_sub(&p->left[layer], 1) != 1) return;
    if (layer == n) {
        atomic_store(&p->head, &p->whole);
        file_map_drop(p->w->head.data, (size_t)p->w->head.rows * p->w->head.stride);
    } else publish(p, layer);
    if (atomic_fetch_add(&p->done, 1) == n)
        log_say(LOG_INFO, "weights copied for %d NUMA node%s in %.1f s", p->n_nodes, p->n_nodes > 1 ? "s" : "", clock_now() - p->begun);
}

/* Prefetches the items that this node's copiers will need next; ranges that are already cached cost nothing. */
static void read_ahead(const struct place *p, int layer, int k) {
    if (layer == p->w->config.n_layers) return;
    const struct layer *y = &p->w->layers[layer];
    if (k == p->per_layer - 1) each_mat(p, layer, MODULE_SHARED, y, file_map_ahead);
    else if (y->experts) each_mat(p, layer, MODULE_EXPERT, &y->experts[k], file_map_ahead);
}

static void *copy(void *arg) {
    struct copier *c = arg;
    struct place *p = c->p;
    int64_t items = (int64_t)(p->w->config.n_layers + 1) * p->per_layer;
    numa_enter(&p->nodes, c->node);
    for (int64_t item; !atomic_load(&p->quit) && (item = atomic_fetch_add(&p->next[c->node], 1)) < items;) {
        int64_t soon = item + c->beside;
        if (soon < items) read_ahead(p, (int)(soon / p->per_layer), (int)(soon % p->per_layer));
        copy_item(p, c->node, (int)(item / p->per_layer), (int)(item % p->per_layer));
    }
    return NULL;
}

/* --- Open, close, look up --- */

static int start(struct place *p, struct error *e) {
    for (int a = 0; a < p->n_nodes; a++) {
        int n = p->nodes.cpus[a] / 8;
        if (!p->works[a]) continue;
        n = n < 1 ? 1 : n > COPIERS ? COPIERS : n;
        for (int i = 0; i < n; i++) {
            struct copier *c = &p->copiers[p->n_copiers];
            *c = (struct copier){.p = p, .node = a, .beside = n};
            if (pthread_create(&c->thread, NULL, copy, c)) return error_set(e, ERR_RUNTIME, "cannot start a thread to copy the weights of NUMA node %d", a);
            p->n_copiers++;
        }
    }
    return 0;
}

int place_open(struct place **out, const struct weights *w, const struct numa *nodes, bool copies, bool huge, struct residency *known, struct error *e) {
    *out = NULL;
    struct place *p = mem_calloc(1, sizeof *p);
    size_t layers = (size_t)w->config.n_layers;
    int total = 0, working = 0, rc = 0;
    if (!p) goto no_memory;
    *p = (struct place){.w = w, .nodes = *nodes, .known = known, .copies = copies, .n_nodes = nodes->n_nodes, .per_layer = w->config.n_experts + 1};
    for (int a = 0; a < p->n_nodes; a++) total += nodes->cpus[a];
    for (int a = 0; a < p->n_nodes; a++) working += p->works[a] = !total || nodes->cpus[a];
    for (size_t i = 0; i < layers; i++) p->n_parts += (size_t)slots(p, &w->layers[i]) * (size_t)p->n_nodes;
    p->placed = mem_calloc(layers, sizeof *p->placed);
    p->shards = mem_calloc(layers, sizeof *p->shards);
    p->parts = mem_calloc(p->n_parts, sizeof *p->parts);
    p->left = mem_calloc(layers + 1, sizeof *p->left);
    p->bad = mem_calloc(layers + 1, sizeof *p->bad);
    p->copiers = mem_calloc((size_t)p->n_nodes * COPIERS, sizeof *p->copiers);
    if (!p->placed || !p->shards || !p->parts || !p->left || !p->bad || !p->copiers) goto no_memory;
    numa_split(&p->nodes, w->config.hidden, SHARD_UNIT, p->hidden);
    for (int a = 0; a < p->n_nodes; a++) p->rows[a + 1] = p->rows[a] + p->hidden[a].count;
    lay_all(p);
    p->head = w;
    *out = p;
    if (!copies) return 0;
    for (int a = 0; a <= p->n_nodes; a++)
        if (p->size[a] && !(p->pages[a] = mem_pages(p->size[a], huge ? MEM_HUGE : 0))) goto no_memory;
    lay_all(p);
    bind_all(p);
    for (size_t i = 0; i <= layers; i++) p->left[i] = working * p->per_layer;
    p->begun = clock_now();
    if ((rc = start(p, e))) place_close(out);
    return rc;
no_memory:
    *out = p;
    place_close(out);
    return error_set(e, ERR_MEMORY, "no memory for NUMA copies of the weights");
}

void place_close(struct place **pp) {
    struct place *p = *pp;
    if (!p) return;
    atomic_store(&p->quit, 1);
    for (int i = 0; i < p->n_copiers; i++) pthread_join(p->copiers[i].thread, NULL);
    for (int a = 0; a <= p->n_nodes; a++) mem_pages_free(p->pages[a], p->size[a]);
    mem_free(p->placed);
    mem_free(p->shards);
    mem_free(p->parts);
    mem_free((void *)p->left);
    mem_free((void *)p->bad);
    mem_free(p->copiers);
    mem_free(p);
    *pp = NULL;
}

const struct layer *place_layer(const struct place *p, const struct weights *w, int layer) {
    if (!p) return &w->layers[layer];
    if (!p->copies) return &p->placed[layer];
    return residency_is(p->known, layer, p->known->n_experts, RESIDENCY_PLACED) ? &p->placed[layer] : &w->layers[layer];
}
const struct weights *place_head(const struct place *p, const struct weights *w) { return p ? atomic_load(&p->head) : w; }

bool place_copies(const struct place *p) { return p && p->copies; }
bool place_fits(const struct numa *nodes, size_t bytes, bool huge) {
    size_t all = 0, have = mem_available();
    for (int a = 0; a < nodes->n_nodes; a++) all += nodes->memory[a];
    /* leave an eighth for KV caches, workspaces and other processes */
    if (have && bytes > have / 8 * 7) return false;
    return nodes->n_nodes > 1 ? numa_binds(nodes, bytes, all / (size_t)nodes->n_nodes / 8) : huge;
}

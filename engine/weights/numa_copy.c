#include "engine/weights/numa_copy.h"

#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/weights/numa_shard.h"

/* Most copier threads per node, and one for each CPUS_PER_COPIER CPUs; modules whose matrices are spread by rows. */
enum { COPIERS = 4, CPUS_PER_COPIER = 8, SPREAD = MODULE_ATTENTION | MODULE_ROUTER };

struct copier {
    struct numa_copy *p;
    int node, n_copiers; /* n_copiers: on this node */
    pthread_t thread;
};

/* The work of a node is a list of items: for each layer the routed experts, then everything else. The head counts as
 * one more layer, after the last. */
struct numa_copy {
    const struct weights *w;
    struct numa nodes;
    struct weight_state *known;
    bool copies;                    /* false: views of the mapping */
    int n_nodes, per_layer;         /* items per layer: n_experts + 1 */
    bool node_has_part[NUMA_NODES]; /* nodes that get a part */
    struct layer *layers;           /* [n_layers] */
    struct expert_shards *shards;   /* [n_layers] */
    struct expert *parts;           /* all parts */
    size_t n_parts;
    /* where the nodes' rows of down begin: of routed experts; of dense FFNs and shared experts */
    int32_t row_begin[2][NUMA_NODES + 1];
    struct weights head_weights; /* w with the copied head */
    _Atomic(const struct weights *) head;
    _Atomic int *n_items_left;      /* [n_layers + 1] items still to copy */
    _Atomic int *has_nan;           /* [n_layers + 1] a NaN was found */
    uint8_t *pages[NUMA_NODES + 1]; /* one per node, then the area spread by rows */
    size_t size[NUMA_NODES + 1];
    _Atomic int64_t next_item[NUMA_NODES]; /* next item per node */
    _Atomic int n_layers_done;             /* finished layers, including the head */
    double begin_s;                        /* clock_now() at the start */
    struct copier *copiers;
    int n_copiers;
    _Atomic int quit;
};

/* Lists the matrices of layer i outside its FFNs; returns their number. */
static int list_spread_matrices(const struct numa_copy *p, int i, struct param *list) {
    int n = params_list(&p->w->config, i, SPREAD, list), mats = 0;
    for (int k = 0; k < n; k++)
        if (list[k].cols) list[mats++] = list[k];
    return mats;
}

/* --- Layout ----------------------------------------------------------------------------------- */

/* Returns the unsplit expert k of a layer; the shared or dense FFN is the last one. NULL: none. */
static const struct expert *unsplit_expert(const struct numa_copy *p, const struct layer *y, int k) {
    if (k < p->per_layer - 1) return y->experts ? &y->experts[k] : NULL;
    return y->dense.gate.data ? &y->dense : NULL;
}
/* Number of a layer's FFNs that are split: routed experts, and the shared or dense one. */
static int n_ffns(const struct numa_copy *p, const struct layer *y) { return y->experts ? p->per_layer : 1; }

/* Returns node a's part of an expert: a view of the mapping. */
static struct expert node_part(const struct numa_copy *p, const struct expert *e, int a) {
    struct numa_part inter[NUMA_NODES], hidden[NUMA_NODES];
    numa_split(&p->nodes, expert_inter(e), NUMA_SHARD_UNIT, inter);
    numa_split(&p->nodes, expert_hidden(e), NUMA_SHARD_UNIT, hidden);
    return numa_shard_view(e, inter[a], hidden[a]);
}

/* Splits layer i and lays out the copies. pages NULL: sizes only. *part: next free entries for the parts. */
static void layout_layer(struct numa_copy *p, int i, struct expert **part, size_t *at) {
    const struct layer *y = &p->w->layers[i];
    struct expert *placed = *part;
    *part += n_ffns(p, y) * p->n_nodes;
    for (int k = p->per_layer - n_ffns(p, y), s = 0; k < p->per_layer; k++, s++) {
        const struct expert *e = unsplit_expert(p, y, k);
        for (int a = 0; a < p->n_nodes && e; a++) {
            struct expert view = node_part(p, e, a);
            placed[s * p->n_nodes + a] = p->copies ? numa_shard_layout_expert(&view, p->pages[a], &at[a]) : view;
        }
    }
    struct layer *yp = &p->layers[i];
    struct param list[PARAMS_MAX];
    *yp = *y;
    for (int k = 0, mats = list_spread_matrices(p, i, list); k < mats && p->copies; k++)
        *params_mat(yp, &list[k]) = numa_shard_layout(params_mat(y, &list[k]), p->pages[p->n_nodes], &at[p->n_nodes]);
    p->shards[i] = (struct expert_shards){placed, p->row_begin[!y->experts], p->n_nodes, p->row_begin[1]};
    yp->shards = &p->shards[i];
}

static void layout_all(struct numa_copy *p) {
    struct expert *part = p->parts;
    size_t at[NUMA_NODES + 1] = {0};
    for (int i = 0; i < p->w->config.n_layers; i++) layout_layer(p, i, &part, at);
    p->head_weights = *p->w;
    if (p->copies) p->head_weights.head = numa_shard_layout(&p->w->head, p->pages[p->n_nodes], &at[p->n_nodes]);
    memcpy(p->size, at, sizeof at);
}

/* Binds the rows of a spread matrix to the nodes in order, as the threads take them. */
static void bind_spread_rows(struct numa_copy *p, const struct mat *m, struct error *e) {
    struct numa_part cut[NUMA_NODES];
    if (e->code) return;
    numa_split(&p->nodes, m->rows, 1, cut);
    for (int a = 0; a < p->n_nodes && !e->code; a++)
        numa_bind_memory(&p->nodes, (uint8_t *)m->data + (size_t)cut[a].first * m->stride,
                         (size_t)cut[a].count * m->stride, a, e);
}
static void bind_all(struct numa_copy *p) {
    struct error e = {0};
    for (int a = 0; a < p->n_nodes && !e.code; a++) numa_bind_memory(&p->nodes, p->pages[a], p->size[a], a, &e);
    for (int i = 0; i < p->w->config.n_layers; i++) {
        struct param list[PARAMS_MAX];
        for (int k = 0, mats = list_spread_matrices(p, i, list); k < mats; k++)
            bind_spread_rows(p, params_mat(&p->layers[i], &list[k]), &e);
    }
    bind_spread_rows(p, &p->head_weights.head, &e);
    if (e.code) log_say(LOG_WARN, "%s: weights are not bound to their NUMA nodes", e.text);
}

/* --- Copying ---------------------------------------------------------------------------------- */

static bool copy_rows(const struct numa_copy *p, const struct mat *to, const struct mat *from, int node) {
    struct numa_part cut[NUMA_NODES];
    numa_split(&p->nodes, from->rows, 1, cut);
    return numa_shard_copy(to, from, cut[node].first, cut[node].count);
}

/* Calls fn for the ranges that are prefetched and later dropped from the page cache: matrices without their (small)
 * scales. */
static void for_each_matrix(const struct numa_copy *p, int layer, unsigned modules, const void *base,
                            void (*fn)(const void *, size_t)) {
    struct param list[PARAMS_MAX];
    for (int i = 0, n = params_list(&p->w->config, layer, modules, list); i < n; i++)
        if (list[i].cols) fn(params_mat(base, &list[i])->data, mat_span(params_mat(base, &list[i])));
}

static void publish(struct numa_copy *p, int layer) {
    for (int x = 0; x < p->per_layer; x++) {
        /* layer 0's dense item includes embedding and head, which were not checked here */
        bool good = !atomic_load(&p->has_nan[layer]) && (layer || x < p->per_layer - 1);
        weight_state_set(p->known, layer, x, WEIGHT_NUMA_COPIED | (good ? WEIGHT_CHECKED : 0));
    }
    const struct layer *y = &p->w->layers[layer];
    for_each_matrix(p, layer, MODULE_LAYER, y, file_map_drop);
    for (int k = 0; y->experts && k < p->per_layer - 1; k++)
        for_each_matrix(p, layer, MODULE_EXPERT, &y->experts[k], file_map_drop);
}

static void copy_item(struct numa_copy *p, int node, int layer, int k) {
    int n = p->w->config.n_layers;
    bool good = true;
    if (layer == n) {
        if (k == p->per_layer - 1) copy_rows(p, &p->head_weights.head, &p->w->head, node);
    } else {
        const struct layer *y = &p->w->layers[layer];
        int s = k - (p->per_layer - n_ffns(p, y));
        if (unsplit_expert(p, y, k)) {
            const struct expert view = node_part(p, unsplit_expert(p, y, k), node);
            good = numa_shard_copy_expert(&p->shards[layer].part[(size_t)s * (size_t)p->n_nodes + (size_t)node], &view);
        }
        if (k == p->per_layer - 1) {
            struct param list[PARAMS_MAX];
            for (int d = list_spread_matrices(p, layer, list); d-- > 0;)
                good &= copy_rows(p, params_mat(&p->layers[layer], &list[d]), params_mat(y, &list[d]), node);
        }
    }
    /* nan_scan.c will find the position in the mapping before the layer is used, and report it */
    if (!good) atomic_store(&p->has_nan[layer], 1);
    if (atomic_fetch_sub(&p->n_items_left[layer], 1) != 1) return;
    if (layer == n) {
        atomic_store(&p->head, &p->head_weights);
        file_map_drop(p->w->head.data, (size_t)p->w->head.rows * p->w->head.stride);
    } else publish(p, layer);
    if (atomic_fetch_add(&p->n_layers_done, 1) == n)
        log_say(LOG_INFO, "weights copied for %d NUMA node%s in %.1f s", p->n_nodes, p->n_nodes > 1 ? "s" : "",
                clock_now() - p->begin_s);
}

/* Prefetches the items that this node's copiers will need next; ranges that are already cached cost nothing. */
static void prefetch_items(const struct numa_copy *p, int layer, int k) {
    if (layer == p->w->config.n_layers) return;
    const struct layer *y = &p->w->layers[layer];
    if (k == p->per_layer - 1) for_each_matrix(p, layer, MODULE_SHARED, y, file_map_prefetch);
    else if (y->experts) for_each_matrix(p, layer, MODULE_EXPERT, &y->experts[k], file_map_prefetch);
}

static void *copier_thread(void *arg) {
    struct copier *c = arg;
    struct numa_copy *p = c->p;
    int64_t items = (int64_t)(p->w->config.n_layers + 1) * p->per_layer;
    numa_pin_thread(&p->nodes, c->node);
    for (int64_t item; !atomic_load(&p->quit) && (item = atomic_fetch_add(&p->next_item[c->node], 1)) < items;) {
        int64_t soon = item + c->n_copiers;
        if (soon < items) prefetch_items(p, (int)(soon / p->per_layer), (int)(soon % p->per_layer));
        copy_item(p, c->node, (int)(item / p->per_layer), (int)(item % p->per_layer));
    }
    return NULL;
}

/* --- Open, close, look up --------------------------------------------------------------------- */

static int start_copiers(struct numa_copy *p, struct error *e) {
    for (int a = 0; a < p->n_nodes; a++) {
        int n = p->nodes.cpus[a] / CPUS_PER_COPIER;
        if (!p->node_has_part[a]) continue;
        n = n < 1 ? 1 : n > COPIERS ? COPIERS : n;
        for (int i = 0; i < n; i++) {
            struct copier *c = &p->copiers[p->n_copiers];
            *c = (struct copier){.p = p, .node = a, .n_copiers = n};
            if (pthread_create(&c->thread, NULL, copier_thread, c))
                return error_set(e, ERR_RUNTIME, "cannot start a thread to copy the weights of NUMA node %d", a);
            p->n_copiers++;
        }
    }
    return 0;
}

int numa_copy_open(struct numa_copy **out, const struct weights *w, const struct numa *nodes, bool copies, bool huge,
                   struct weight_state *known, struct error *e) {
    *out = NULL;
    struct numa_copy *p = mem_calloc(1, sizeof *p);
    size_t layers = (size_t)w->config.n_layers;
    int total = 0, working = 0, rc = 0;
    if (!p) goto no_memory;
    *p = (struct numa_copy){.w = w,
                            .nodes = *nodes,
                            .known = known,
                            .copies = copies,
                            .n_nodes = nodes->n_nodes,
                            .per_layer = w->config.n_experts + 1};
    for (int a = 0; a < p->n_nodes; a++) total += nodes->cpus[a];
    for (int a = 0; a < p->n_nodes; a++) working += p->node_has_part[a] = !total || nodes->cpus[a];
    for (size_t i = 0; i < layers; i++) p->n_parts += (size_t)n_ffns(p, &w->layers[i]) * (size_t)p->n_nodes;
    p->layers = mem_calloc(layers, sizeof *p->layers);
    p->shards = mem_calloc(layers, sizeof *p->shards);
    p->parts = mem_calloc(p->n_parts, sizeof *p->parts);
    p->n_items_left = mem_calloc(layers + 1, sizeof *p->n_items_left);
    p->has_nan = mem_calloc(layers + 1, sizeof *p->has_nan);
    p->copiers = mem_calloc((size_t)p->n_nodes * COPIERS, sizeof *p->copiers);
    if (!p->layers || !p->shards || !p->parts || !p->n_items_left || !p->has_nan || !p->copiers) goto no_memory;
    for (int i = 0; i < 2; i++) {
        struct numa_part part[NUMA_NODES];
        numa_split(&p->nodes, i ? w->config.hidden : config_routed_width(&w->config), NUMA_SHARD_UNIT, part);
        for (int a = 0; a < p->n_nodes; a++) p->row_begin[i][a + 1] = p->row_begin[i][a] + part[a].count;
    }
    layout_all(p);
    p->head = w;
    *out = p;
    if (!copies) return 0;
    for (int a = 0; a <= p->n_nodes; a++)
        if (p->size[a] && !(p->pages[a] = mem_pages(p->size[a], huge ? MEM_HUGE : 0))) goto no_memory;
    layout_all(p);
    bind_all(p);
    for (size_t i = 0; i <= layers; i++) p->n_items_left[i] = working * p->per_layer;
    p->begin_s = clock_now();
    if ((rc = start_copiers(p, e))) numa_copy_close(out);
    return rc;
no_memory:
    *out = p;
    numa_copy_close(out);
    return error_set(e, ERR_MEMORY, "no memory for NUMA copies of the weights");
}

void numa_copy_close(struct numa_copy **pp) {
    struct numa_copy *p = *pp;
    if (!p) return;
    atomic_store(&p->quit, 1);
    for (int i = 0; i < p->n_copiers; i++) pthread_join(p->copiers[i].thread, NULL);
    for (int a = 0; a <= p->n_nodes; a++) mem_pages_free(p->pages[a], p->size[a]);
    mem_free(p->layers);
    mem_free(p->shards);
    mem_free(p->parts);
    mem_free((void *)p->n_items_left);
    mem_free((void *)p->has_nan);
    mem_free(p->copiers);
    mem_free(p);
    *pp = NULL;
}

const struct layer *numa_copy_layer(const struct numa_copy *p, const struct weights *w, int layer) {
    if (!p) return &w->layers[layer];
    if (!p->copies) return &p->layers[layer];
    return weight_state_has(p->known, layer, p->known->n_experts, WEIGHT_NUMA_COPIED) ? &p->layers[layer]
                                                                                      : &w->layers[layer];
}
const struct weights *numa_copy_head(const struct numa_copy *p, const struct weights *w) {
    return p ? atomic_load(&p->head) : w;
}

bool numa_copy_is_copying(const struct numa_copy *p) { return p && p->copies; }
bool numa_copy_fits(const struct numa *nodes, size_t bytes, bool huge) {
    size_t all = 0, have = mem_available();
    for (int a = 0; a < nodes->n_nodes; a++) all += nodes->memory[a];
    /* leave an eighth for KV caches, workspaces and other processes */
    if (have && bytes > have / 8 * 7) return false;
    return nodes->n_nodes > 1 ? numa_should_bind(nodes, bytes, all / (size_t)nodes->n_nodes / 8) : huge;
}

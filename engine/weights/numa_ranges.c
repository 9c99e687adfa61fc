#include "engine/weights/numa_ranges.h"

#include <stdlib.h>

#include "base/mem.h"
#include "engine/weights/numa_shard.h"

static void add_matrix(struct numa_ranges *s, const struct mat *m, const struct numa *nodes, int unit) {
    struct numa_part part[NUMA_NODES];
    numa_split(nodes, m->rows, unit, part);
    for (int a = 0; a < nodes->n_nodes && m->data; a++) {
        struct mat rows = mat_rows(*m, part[a].first, part[a].first + part[a].count);
        if (!rows.rows) continue;
        if (s->range) s->range[s->n] = (struct numa_range){.at = rows.data, .bytes = mat_span(&rows), .node = a};
        s->n++;
    }
}
static void add_expert(struct numa_ranges *s, const struct expert *e, const struct numa *nodes) {
    if (!e->gate.data) return;
    if (!e->gate_up_transposed)
        add_matrix(s, &e->gate, nodes, NUMA_SHARD_UNIT), add_matrix(s, &e->up, nodes, NUMA_SHARD_UNIT);
    if (!e->is_transposed) add_matrix(s, &e->down, nodes, NUMA_SHARD_UNIT);
}
static void add_all(struct numa_ranges *s, const struct weights *w, const struct numa *nodes) {
    s->n = 0;
    add_matrix(s, &w->head, nodes, 1);
    for (int i = 0; i < w->config.n_layers; i++) {
        const struct layer *y = &w->layers[i];
        struct param list[PARAMS_MAX];
        for (int k = 0, n = params_list(&w->config, i, MODULE_ATTENTION | MODULE_ROUTER, list); k < n; k++)
            if (list[k].cols) add_matrix(s, params_mat(y, &list[k]), nodes, 1);
        for (int x = 0; y->experts && x < w->config.n_experts; x++) add_expert(s, &y->experts[x], nodes);
        add_expert(s, &y->dense, nodes);
    }
}
static int by_address(const void *a, const void *b) {
    const struct numa_range *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

int numa_ranges_open(struct numa_ranges *s, const struct weights *w, const struct numa *nodes, struct error *e) {
    *s = (struct numa_ranges){0};
    if (nodes->n_nodes < 2) return 0;
    add_all(s, w, nodes);
    if (!s->n) return 0;
    if (!(s->range = mem_alloc((size_t)s->n * sizeof *s->range))) {
        s->n = 0;
        return error_set(e, ERR_MEMORY, "no memory to map weights to NUMA nodes");
    }
    add_all(s, w, nodes);
    qsort(s->range, (size_t)s->n, sizeof *s->range, by_address);
    const uint8_t *end = NULL;
    for (struct numa_range *x = s->range; x < s->range + s->n; x++)
        x->end = end = x->at + x->bytes > end ? x->at + x->bytes : end;
    return 0;
}
void numa_ranges_close(struct numa_ranges *s) {
    mem_free(s->range);
    *s = (struct numa_ranges){0};
}

/* Returns the node that owns most of [p, p + bytes), -1 without one; ties go to the lower node. *others: bytes that
 * other nodes own. */
static int majority_node(const struct numa_ranges *s, const uint8_t *p, size_t bytes, size_t *others) {
    size_t has[NUMA_NODES] = {0}, owned = 0;
    const uint8_t *end = p + bytes;
    int lo = 0, best = -1;
    for (int hi = s->n; lo < hi;) { /* the first that may overlap p */
        int mid = lo + (hi - lo) / 2;
        if (s->range[mid].end <= p) lo = mid + 1;
        else hi = mid;
    }
    for (; lo < s->n && s->range[lo].at < end; lo++) {
        const struct numa_range *x = &s->range[lo];
        const uint8_t *a = x->at > p ? x->at : p, *b = x->at + x->bytes < end ? x->at + x->bytes : end;
        if (b > a) has[x->node] += (size_t)(b - a), owned += (size_t)(b - a);
    }
    for (int a = 0; a < NUMA_NODES; a++)
        if (has[a] && (best < 0 || has[a] > has[best])) best = a;
    *others = best < 0 ? 0 : owned - has[best];
    return best;
}

size_t numa_ranges_run(const struct numa_ranges *s, const uint8_t *p, size_t left, uintptr_t to, size_t page,
                       size_t most, int *node) {
    size_t len = 0, others;
    if (most > left) most = left;
    *node = -1;
    if (!s->n) return most;
    while (len < most) {
        size_t n = page - (to + len) % page;
        if (n > left - len) n = left - len;
        int of = majority_node(s, p + len, n, &others);
        if (len && of != *node) break;
        *node = of;
        len += n;
    }
    return len;
}

size_t numa_ranges_misplaced(const struct numa_ranges *s, const uint8_t *p, size_t bytes, size_t page) {
    size_t sum = 0, others;
    for (size_t at = 0; s->n && at < bytes; at += page)
        majority_node(s, p + at, bytes - at < page ? bytes - at : page, &others), sum += others;
    return sum;
}

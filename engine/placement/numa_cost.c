#include "engine/placement/numa_cost.h"

#include <string.h>

void numa_cost_even(struct cost_machine *m, int n, double memory) {
    m->n_nodes = n < 2 ? 0 : n < COST_NODES ? n : COST_NODES;
    for (int a = 0; a < m->n_nodes; a++)
        m->node[a] = (struct cost_node){memory / m->n_nodes, 1.0 / m->n_nodes, 1.0 / m->n_nodes};
    m->inter_node_bw = m->n_nodes ? NUMA_COST_INTER_NODE_BW : 0;
}

static void scale_curve(struct cost_curve *c, double by) {
    for (int i = 0; i < c->n; i++) c->value[i] = (float)((double)c->value[i] * by);
}
static void node_domain(struct cost_domain *d, const struct cost_machine *m, int a) {
    const struct cost_node *n = &m->node[a];
    *d = m->domain[0];
    if (n->memory > 0) d->memory = n->memory;
    for (int k = 0; k < COST_KINDS; k++) {
        scale_curve(&d->bw[k], n->bw_share);
        for (int f = 0; f < COST_FORMATS; f++) scale_curve(&d->rate[k][f], n->rate_share);
    }
    for (int f = 0; f < COST_FORMATS; f++) scale_curve(&d->rate_few_rows[f], n->rate_share);
    memset(d->link, 0, sizeof d->link);
    if (m->n_nodes > 1) d->link[COST_H2D].rate = m->inter_node_bw;
}
void numa_cost_machine(struct cost_machine *out, const struct cost_machine *m) {
    *out = *m;
    out->n_devices = 0;
    out->n_domains = m->n_nodes;
    memset(out->domain, 0, sizeof out->domain);
    for (int a = 0; a < m->n_nodes; a++) node_domain(&out->domain[a], m, a);
}

struct numa_shares numa_cost_balanced(const struct cost_machine *m, const struct cost_model *q, double rows,
                                      double of) {
    struct numa_shares l = {.is_local = true};
    struct cost_machine one = {.is_deterministic = m->is_deterministic};
    double sum = 0;
    for (int a = 0; a < m->n_nodes; a++) {
        node_domain(&one.domain[0], m, a);
        sum += l.stored[a] = 1 / cost_expert(&one, 0, q, rows, of);
    }
    for (int a = 0; a < m->n_nodes; a++) l.computed[a] = l.stored[a] /= sum;
    return l;
}
struct numa_shares numa_cost_interleaved(const struct cost_machine *m) {
    struct numa_shares l = {0};
    int n = 0;
    for (int a = 0; a < m->n_nodes; a++) n += m->node[a].rate_share > 0;
    for (int a = 0; a < m->n_nodes; a++)
        l.stored[a] = m->node[a].rate_share > 0 ? 1.0 / n : 0, l.computed[a] = m->node[a].rate_share;
    return l;
}
struct numa_shares numa_cost_single(const struct cost_machine *m, int node) {
    struct numa_shares l = numa_cost_interleaved(m);
    for (int a = 0; a < m->n_nodes; a++) l.stored[a] = a == node;
    return l;
}

double numa_cost_expert(const struct cost_machine *m, const struct cost_model *q, double rows, double of,
                        const struct numa_shares *l, int *hot) {
    struct cost_machine one = {.is_deterministic = m->is_deterministic};
    struct cost_model reads = *q, computes = *q;
    double end = 0;
    reads.expert_flops = 0, computes.expert_bytes = 0;
    for (int a = 0; a < m->n_nodes; a++) {
        node_domain(&one.domain[0], m, a);
        if (!(l->stored[a] > 0) && !(l->computed[a] > 0)) continue;
        double t = l->stored[a] * cost_expert(&one, 0, &reads, rows, of),
               work = l->computed[a] * cost_expert(&one, 0, &computes, rows, of);
        double in = l->is_local ? 0 : l->computed[a] * (1 - l->stored[a]) * q->expert_bytes,
               out = l->is_local ? 0 : l->stored[a] * (1 - l->computed[a]) * q->expert_bytes;
        if (work > t) t = work;
        if (m->inter_node_bw > 0 && in / m->inter_node_bw > t) t = in / m->inter_node_bw;
        if (m->inter_node_bw > 0 && out / m->inter_node_bw > t) t = out / m->inter_node_bw;
        if (t > end) {
            end = t;
            if (hot) *hot = a;
        }
    }
    return end;
}

double numa_cost_reach(const struct cost_machine *m, const struct cost_model *q) {
    if (m->n_nodes < 2) return 1;
    if (m->reach > 0) return m->reach;
    const struct numa_shares shares = numa_cost_balanced(m, q, 1, BATCH_INVARIANT_ROWS),
                             spread = numa_cost_interleaved(m);
    const double reach = numa_cost_expert(m, q, 1, BATCH_INVARIANT_ROWS, &shares, NULL) /
                         numa_cost_expert(m, q, 1, BATCH_INVARIANT_ROWS, &spread, NULL);
    return reach < 1 ? reach : 1;
}

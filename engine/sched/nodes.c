#include "engine/sched/nodes.h"

#include <string.h>

void nodes_even(struct cost_machine *m, int n, double memory) {
    m->n_nodes = n < 2 ? 0 : n < COST_NODES ? n : COST_NODES;
    for (int a = 0; a < m->n_nodes; a++) m->node[a] = (struct cost_node){memory / m->n_nodes, 1.0 / m->n_nodes, 1.0 / m->n_nodes};
    m->between = m->n_nodes ? NODES_BETWEEN : 0;
}

static void scale(struct cost_curve *c, double by) {
    for (int i = 0; i < c->n; i++) c->value[i] = (float)((double)c->value[i] * by);
}
static void node_domain(struct cost_domain *d, const struct cost_machine *m, int a) {
    const struct cost_node *n = &m->node[a];
    *d = m->domain[0];
    if (n->memory > 0) d->memory = n->memory;
    for (int k = 0; k < COST_KINDS; k++) {
        scale(&d->bw[k], n->bw);
        for (int f = 0; f < COST_FORMATS; f++) scale(&d->rate[k][f], n->rate);
    }
    for (int f = 0; f < COST_FORMATS; f++) scale(&d->few[f], n->rate);
    memset(d->link, 0, sizeof d->link);
    if (m->n_nodes > 1) d->link[COST_H2D].rate = m->between;
}
void nodes_machine(struct cost_machine *out, const struct cost_machine *m) {
    *out = *m;
    out->n_devices = 0;
    out->n_domains = m->n_nodes;
    memset(out->domain, 0, sizeof out->domain);
    for (int a = 0; a < m->n_nodes; a++) node_domain(&out->domain[a], m, a);
}

struct nodes_lie nodes_shares(const struct cost_machine *m, const struct cost_model *q, double rows, double of) {
    struct nodes_lie l = {.home = true};
    struct cost_machine one = {.deterministic = m->deterministic};
    double sum = 0;
    for (int a = 0; a < m->n_nodes; a++) {
        node_domain(&one.domain[0], m, a);
        sum += l.lies[a] = 1 / cost_expert(&one, 0, q, rows, of);
    }
    for (int a = 0; a < m->n_nodes; a++) l.works[a] = l.lies[a] /= sum;
    return l;
}
struct nodes_lie nodes_spread(const struct cost_machine *m) {
    struct nodes_lie l = {0};
    int n = 0;
    for (int a = 0; a < m->n_nodes; a++) n += m->node[a].rate > 0;
    for (int a = 0; a < m->n_nodes; a++) l.lies[a] = m->node[a].rate > 0 ? 1.0 / n : 0, l.works[a] = m->node[a].rate;
    return l;
}
struct nodes_lie nodes_on(const struct cost_machine *m, int node) {
    struct nodes_lie l = nodes_spread(m);
    for (int a = 0; a < m->n_nodes; a++) l.lies[a] = a == node;
    return l;
}

double nodes_expert(const struct cost_machine *m, const struct cost_model *q, double rows, double of, const struct nodes_lie *l, int *hot) {
    struct cost_machine one = {.deterministic = m->deterministic};
    struct cost_model reads = *q, computes = *q;
    double end = 0;
    reads.expert_flops = 0, computes.expert_bytes = 0;
    for (int a = 0; a < m->n_nodes; a++) {
        node_domain(&one.domain[0], m, a);
        if (!(l->lies[a] > 0) && !(l->works[a] > 0)) continue;
        double t = l->lies[a] * cost_expert(&one, 0, &reads, rows, of), work = l->works[a] * cost_expert(&one, 0, &computes, rows, of);
        double in = l->home ? 0 : l->works[a] * (1 - l->lies[a]) * q->expert_bytes, out = l->home ? 0 : l->lies[a] * (1 - l->works[a]) * q->expert_bytes;
        if (work > t) t = work;
        if (m->between > 0 && in / m->between > t) t = in / m->between;
        if (m->between > 0 && out / m->between > t) t = out / m->between;
        if (t > end) {
            end = t;
            if (hot) *hot = a;
        }
    }
    return end;
}

#pragma once
/* Shared by the split policies: a domain's load and its end time. Only split*.c include this. */
#include <math.h>
#include <string.h>

#include "engine/sched/split.h"

/* A domain's load. The optimal order is known (Johnson's rule with equal transfer times): resident experts first, then transferred ones, the most
 * expensive first, both on the link and in the queue. So three sums determine the end time. */
struct load {
    double work, moved; /* cost of all experts; of transferred ones */
    double least;       /* the cheapest transferred expert */
    int n, n_moved;
};

static inline bool has(const struct split_in *in, int d, int i) { return in->expert[i].resident >> d & 1; }
static inline bool is_gpu(const struct split_in *in, int d) { return in->domain[d].class == COST_GPU; }
static inline bool on_gpu(const struct split_in *in, const struct split_plan *p, int i) { return in->expert[i].resident & p->work.gpus; }

static inline double load_end(const struct split_domain *d, const struct load *l) {
    if (!l->n) return 0;
    double end = d->busy + d->first + l->work;
    if (l->n_moved) {
        double steady = d->link_busy + d->move + l->moved, starved = d->link_busy + l->n_moved * d->move + l->least;
        if (steady > end) end = steady;
        if (starved > end) end = starved;
    }
    return end;
}
static inline bool comes(const struct split_in *in, int d, int i) { return in->domain[d].move > 0 && !in->expert[i].still; }
static inline bool load_takes(const struct split_in *in, int d, const struct load *l, int i) {
    return has(in, d, i) || (comes(in, d, i) && l->n_moved < in->domain[d].room);
}
static inline struct load load_with(const struct split_in *in, const struct split_plan *p, int d, struct load l, int i) {
    double c = (double)p->work.cost[d][i];
    l.work += c;
    l.n++;
    if (!has(in, d, i)) {
        l.moved += c;
        if (!l.n_moved++ || c < l.least) l.least = c;
    }
    return l;
}

void split_hybrimoe(const struct split_in *in, struct split_plan *p);

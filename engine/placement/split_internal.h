#pragma once
/* Shared by the split policies: a domain's load and its end time. Only split*.c include this. */
#include <math.h>
#include <string.h>

#include "engine/placement/split.h"

/* A domain's load. The optimal order is known (Johnson's rule with equal transfer times): resident experts first, then
 * transferred ones, the most expensive first, both on the link and in the queue. So three sums determine the end
 * time. */
struct load {
    double work, moved; /* cost of all experts; of transferred ones */
    double least;       /* the cheapest transferred expert */
    int n, n_moved;
};

static inline bool is_resident(const struct split_in *in, int d, int i) { return in->expert[i].resident >> d & 1; }
static inline bool is_gpu(const struct split_in *in, int d) { return in->domain[d].class == COST_GPU; }
static inline bool is_on_gpu(const struct split_in *in, const struct split_plan *p, int i) {
    return in->expert[i].resident & p->work.gpus;
}

static inline double load_end(const struct split_domain *d, const struct load *l) {
    if (!l->n) return 0;
    double end = d->busy_s + d->start_s + l->work;
    if (l->n_moved) {
        double steady = d->link_busy_s + d->transfer_s + l->moved,
               starved = d->link_busy_s + l->n_moved * d->transfer_s + l->least;
        if (steady > end) end = steady;
        if (starved > end) end = starved;
    }
    return end;
}
static inline bool can_transfer(const struct split_in *in, int d, int i) {
    return in->domain[d].transfer_s > 0 && !in->expert[i].no_transfer;
}
static inline bool load_can_take(const struct split_in *in, int d, const struct load *l, int i) {
    return is_resident(in, d, i) || (can_transfer(in, d, i) && l->n_moved < in->domain[d].max_transfers);
}
static inline struct load load_with(const struct split_in *in, const struct split_plan *p, int d, struct load l,
                                    int i) {
    double c = (double)p->work.cost[d][i];
    l.work += c;
    l.n++;
    if (!is_resident(in, d, i)) {
        l.moved += c;
        if (!l.n_moved++ || c < l.least) l.least = c;
    }
    return l;
}

void split_hybrimoe(const struct split_in *in, struct split_plan *p);

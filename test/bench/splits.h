#pragma once
/* Split policies for comparison beside those of --split: host, stream, and exact, the best assignment of few experts,
 * found by search. */
#include "engine/placement/split_internal.h"

enum { SPLITS_EXACT = 14 };   /* most experts that exact searches; with more it is auto */
static bool splits_is_proven; /* whether the last plan of exact is proven optimal */

/* Branch and bound over all placements, heaviest experts first. */
struct splits_search {
    const struct split_in *in;
    struct split_plan *p;
    struct load load[SPLIT_DOMAINS];
    double end, rest[SPLITS_EXACT + 1]; /* rest: least total cost of experts k and later */
    long left;                          /* remaining node budget */
};
static void splits_search(struct splits_search *s, int k, double longest, double area) {
    const struct split_in *in = s->in;
    if (k == in->n) {
        s->end = longest;
        memcpy(s->p->work.best, s->p->domain, (size_t)in->n);
        return;
    }
    int i = s->p->work.by_rows[k];
    for (int d = 0; d < in->n_domains && s->left > 0; d++) {
        if (!load_can_take(in, d, &s->load[d], i)) continue;
        struct load before = s->load[d];
        s->load[d] = load_with(in, s->p, d, before, i);
        s->p->domain[i] = (uint8_t)d;
        double end = load_end(&in->domain[d], &s->load[d]), all = end > longest ? end : longest,
               sum = area + (double)s->p->work.cost[d][i];
        s->left--;
        if (all < s->end && (sum + s->rest[k + 1]) / in->n_domains < s->end) splits_search(s, k + 1, all, sum);
        s->load[d] = before;
    }
}
static void splits_exact(const struct split_in *in, struct split_plan *p) {
    struct splits_search s = {.in = in, .p = p, .left = 1L << 22};
    split_policies[0].run(in, p);
    p->policy = "exact", splits_is_proven = false;
    if (in->n > SPLITS_EXACT) return;
    for (int i = 0; i < in->n; i++) s.load[p->domain[i]] = load_with(in, p, p->domain[i], s.load[p->domain[i]], i);
    for (int d = 0; d < in->n_domains; d++) s.end = fmax(s.end, load_end(&in->domain[d], &s.load[d]));
    memset(s.load, 0, sizeof s.load);
    memcpy(p->work.best, p->domain, (size_t)in->n);
    for (int k = in->n; k-- > 0;) {
        double least = INFINITY;
        for (int d = 0; d < in->n_domains; d++) least = fmin(least, (double)p->work.cost[d][p->work.by_rows[k]]);
        s.rest[k] = s.rest[k + 1] + least;
    }
    splits_search(&s, 0, 0, 0);
    splits_is_proven = s.left > 0;
    memcpy(p->domain, p->work.best, (size_t)in->n);
}

/* Like split_find(), also for the policies above. */
static inline const struct split_policy *splits_find(const char *name) {
    static const struct split_policy exact = {"exact", "optimal, for few experts", splits_exact};
    const struct split_policy *const more[] = {&split_host, &split_stream, &exact};
    for (int i = 0; i < 3; i++)
        if (!strcmp(name, more[i]->name)) return more[i];
    return split_find(name);
}

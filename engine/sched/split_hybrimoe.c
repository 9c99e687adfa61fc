#include "engine/sched/split_inner.h"

/* Paper D. Timelines of CPUs, devices and links; the earliest free one takes its next expert: a device the heaviest resident one,
 * a CPU the lightest that is on no device or, if there is none, the lightest that is on one; a link the heaviest that is on no device.
 * Differs from the paper to avoid losses: a CPU takes no expert that a device would finish sooner,
 * and a link transfers no expert that the CPUs would have finished by then. */
enum { FREE, TAKEN, COMING };
struct timeline {
    double t, link, left; /* when the timeline and its link are free; cost of assigned experts that have not started */
    int own, own_end;     /* next of the device's own experts from the heavy end; for CPUs from the light end */
    int first, last, n;   /* transferred experts in order, linked through work.swap */
    double arrives;       /* arrival of the first one */
    bool done, closed;
};
static int light(const struct split_in *in, const struct split_plan *p, int from, int d, bool resident) {
    for (int k = from; k >= 0; k--) {
        int i = p->work.heavy[k];
        if (p->work.at[i] == FREE && has(in, d, i) && on_gpu(in, p, i) == resident) return k;
    }
    return -1;
}
static double nearest(const struct split_in *in, const struct split_plan *p, int i) { /* its cost on the best CPU domain that has it */
    double c = INFINITY;
    for (int d = 0; d < in->n_domains; d++)
        if (!is_gpu(in, d) && has(in, d, i) && (double)p->work.cost[d][i] < c) c = (double)p->work.cost[d][i];
    return c;
}
/* Whether a device that may still transfer the expert would finish it before t. */
static bool sooner(const struct split_in *in, const struct split_plan *p, const struct timeline *line, const int *brought, int i, double t) {
    for (uint32_t left = p->work.gpus; left; left &= left - 1) {
        int d = __builtin_ctz(left);
        const struct timeline *l = &line[d];
        double there = l->link + in->domain[d].move, free = l->t + l->left;
        if (!l->closed && comes(in, d, i) && brought[d] < in->domain[d].room && (there > free ? there : free) + (double)p->work.cost[d][i] < t) return true;
    }
    return false;
}
void split_hybrimoe(const struct split_in *in, struct split_plan *p) {
    struct timeline line[SPLIT_DOMAINS] = {0};
    double waiting = 0; /* CPU cost of experts that are on no device */
    int left = in->n, missing = 0, brought[SPLIT_DOMAINS] = {0};
    memset(p->work.at, FREE, (size_t)in->n);
    for (int d = 0; d < in->n_domains; d++) {
        line[d] = (struct timeline){.t = in->domain[d].busy + in->domain[d].first,
                                    .link = in->domain[d].link_busy,
                                    .own_end = in->n - 1,
                                    .first = -1,
                                    .last = -1,
                                    .closed = !is_gpu(in, d) || !(in->domain[d].move > 0)};
        for (int i = 0; i < in->n && is_gpu(in, d); i++) line[d].left += has(in, d, i) ? (double)p->work.cost[d][i] : 0;
    }
    for (int i = 0; i < in->n; i++)
        if (!on_gpu(in, p, i)) waiting += nearest(in, p, i);
    while (left) {
        int who = -1, what = -1;
        bool link = false;
        double when = INFINITY, soon = INFINITY; /* soon: when the first CPU domain is free */
        for (int d = 0; d < in->n_domains; d++) {
            struct timeline *l = &line[d];
            if (!is_gpu(in, d) && l->t < soon) soon = l->t;
            if (is_gpu(in, d)) {
                while (l->own < in->n && !(p->work.at[p->work.heavy[l->own]] == FREE && has(in, d, p->work.heavy[l->own]))) l->own++;
                bool mine = l->own < in->n, come = l->first >= 0;
                double t = mine || !come || l->arrives < l->t ? l->t : l->arrives;
                if ((mine || come) && t < when) {
                    bool take = come && l->arrives <= t && (!mine || in->expert[l->first].rows > in->expert[p->work.heavy[l->own]].rows);
                    when = t, who = d, what = take ? l->first : mine ? p->work.heavy[l->own] : l->first, link = false;
                }
            } else if (!l->done && l->t < when) {
                int k = light(in, p, l->own_end, d, false);
                if (k >= 0) {
                    l->own_end = k;
                    if (!sooner(in, p, line, brought, p->work.heavy[k], l->t + (double)p->work.cost[d][p->work.heavy[k]]))
                        when = l->t, who = d, what = p->work.heavy[k], link = false;
                } else {
                    k = light(in, p, in->n - 1, d, true);
                    int i = k < 0 ? -1 : p->work.heavy[k], g = i < 0 ? -1 : __builtin_ctz(in->expert[i].resident & p->work.gpus);
                    if (i >= 0 && l->t + (double)p->work.cost[d][i] < line[g].t + line[g].left) when = l->t, who = d, what = i, link = false;
                    else l->done = true;
                }
            }
        }
        for (int d = 0; d < in->n_domains; d++) {
            struct timeline *l = &line[d];
            if (l->closed || l->link >= when) continue;
            while (missing < in->n &&
                   (p->work.at[p->work.heavy[missing]] != FREE || on_gpu(in, p, p->work.heavy[missing]) || in->expert[p->work.heavy[missing]].still))
                missing++;
            int i = missing < in->n ? p->work.heavy[missing] : -1;
            double there = l->link + in->domain[d].move, free = l->t + l->left;
            if (i < 0 || brought[d] >= in->domain[d].room || (there > free ? there : free) + (double)p->work.cost[d][i] >= soon + waiting) l->closed = true;
            else when = l->link, who = d, what = i, link = true;
        }
        if (who < 0) continue; /* a link was just closed: look again */
        struct timeline *l = &line[who];
        if (!on_gpu(in, p, what) && p->work.at[what] == FREE) waiting -= nearest(in, p, what);
        if (link) {
            l->link += in->domain[who].move;
            if (l->first < 0) l->first = what, l->arrives = l->link;
            else p->work.swap[l->last] = (uint16_t)what;
            l->last = what, l->n++, brought[who]++;
            l->left += (double)p->work.cost[who][what];
            p->work.at[what] = COMING;
            continue;
        }
        if (p->work.at[what] == COMING) {
            bool more = --l->n > 0;
            l->first = more ? p->work.swap[what] : -1;
            l->arrives += in->domain[who].move;
        }
        uint32_t there = in->expert[what].resident & p->work.gpus;
        if (is_gpu(in, who)) l->left -= (double)p->work.cost[who][what];
        for (int d = 0; d < in->n_domains; d++)
            if (d != who && there >> d & 1) line[d].left -= (double)p->work.cost[d][what];
        l->t = (when > l->t ? when : l->t) + (double)p->work.cost[who][what];
        p->work.at[what] = TAKEN;
        p->domain[what] = (uint8_t)who;
        left--;
    }
}

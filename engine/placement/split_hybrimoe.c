#include "engine/placement/split_internal.h"

/* Paper D. Timelines of CPUs, devices and links; the earliest free one takes its next expert: a device the heaviest resident one,
 * a CPU the lightest that is on no device or, if there is none, the lightest that is on one; a link the heaviest that is on no device.
 * Differs from the paper to avoid losses: a CPU takes no expert that a device would finish sooner,
 * and a link transfers no expert that the CPUs would have finished by then. */
enum { FREE, TAKEN, COMING };
struct timeline {
    double free_at, link_free_at, pending_s; /* when the timeline and its link are free; cost of assigned experts that have not started */
    int own, own_end;                        /* next of the device's own experts from the heavy end; for CPUs from the light end */
    int first, last, n;                      /* transferred experts in order, linked through work.swap */
    double first_arrival;                    /* arrival of the first one */
    bool is_done, link_closed;
};
static int next_lightest(const struct split_in *in, const struct split_plan *p, int from, int d, bool resident) {
    for (int k = from; k >= 0; k--) {
        int i = p->work.by_rows[k];
        if (p->work.at[i] == FREE && is_resident(in, d, i) && is_on_gpu(in, p, i) == resident) return k;
    }
    return -1;
}
static double best_cpu_cost(const struct split_in *in, const struct split_plan *p, int i) { /* its cost on the best CPU domain that has it */
    double c = INFINITY;
    for (int d = 0; d < in->n_domains; d++)
        if (!is_gpu(in, d) && is_resident(in, d, i) && (double)p->work.cost[d][i] < c) c = (double)p->work.cost[d][i];
    return c;
}
/* Whether a device that may still transfer the expert would finish it before t. */
static bool device_is_sooner(const struct split_in *in, const struct split_plan *p, const struct timeline *line, const int *brought, int i, double t) {
    for (uint32_t left = p->work.gpus; left; left &= left - 1) {
        int d = __builtin_ctz(left);
        const struct timeline *l = &line[d];
        double there = l->link_free_at + in->domain[d].transfer_s, free = l->free_at + l->pending_s;
        if (!l->link_closed && can_transfer(in, d, i) && brought[d] < in->domain[d].max_transfers &&
            (there > free ? there : free) + (double)p->work.cost[d][i] < t)
            return true;
    }
    return false;
}
void split_hybrimoe(const struct split_in *in, struct split_plan *p) {
    struct timeline line[SPLIT_DOMAINS] = {0};
    double waiting = 0; /* CPU cost of experts that are on no device */
    int left = in->n, missing = 0, brought[SPLIT_DOMAINS] = {0};
    memset(p->work.at, FREE, (size_t)in->n);
    for (int d = 0; d < in->n_domains; d++) {
        line[d] = (struct timeline){.free_at = in->domain[d].busy_s + in->domain[d].start_s,
                                    .link_free_at = in->domain[d].link_busy_s,
                                    .own_end = in->n - 1,
                                    .first = -1,
                                    .last = -1,
                                    .link_closed = !is_gpu(in, d) || !(in->domain[d].transfer_s > 0)};
        for (int i = 0; i < in->n && is_gpu(in, d); i++) line[d].pending_s += is_resident(in, d, i) ? (double)p->work.cost[d][i] : 0;
    }
    for (int i = 0; i < in->n; i++)
        if (!is_on_gpu(in, p, i)) waiting += best_cpu_cost(in, p, i);
    while (left) {
        int who = -1, what = -1;
        bool link = false;
        double when = INFINITY, soon = INFINITY; /* soon: when the first CPU domain is free */
        for (int d = 0; d < in->n_domains; d++) {
            struct timeline *l = &line[d];
            if (!is_gpu(in, d) && l->free_at < soon) soon = l->free_at;
            if (is_gpu(in, d)) {
                while (l->own < in->n && !(p->work.at[p->work.by_rows[l->own]] == FREE && is_resident(in, d, p->work.by_rows[l->own]))) l->own++;
                bool mine = l->own < in->n, come = l->first >= 0;
                double t = mine || !come || l->first_arrival < l->free_at ? l->free_at : l->first_arrival;
                if ((mine || come) && t < when) {
                    bool take = come && l->first_arrival <= t && (!mine || in->expert[l->first].rows > in->expert[p->work.by_rows[l->own]].rows);
                    when = t, who = d, what = take ? l->first : mine ? p->work.by_rows[l->own] : l->first, link = false;
                }
            } else if (!l->is_done && l->free_at < when) {
                int k = next_lightest(in, p, l->own_end, d, false);
                if (k >= 0) {
                    l->own_end = k;
                    if (!device_is_sooner(in, p, line, brought, p->work.by_rows[k], l->free_at + (double)p->work.cost[d][p->work.by_rows[k]]))
                        when = l->free_at, who = d, what = p->work.by_rows[k], link = false;
                } else {
                    k = next_lightest(in, p, in->n - 1, d, true);
                    int i = k < 0 ? -1 : p->work.by_rows[k], g = i < 0 ? -1 : __builtin_ctz(in->expert[i].resident & p->work.gpus);
                    if (i >= 0 && l->free_at + (double)p->work.cost[d][i] < line[g].free_at + line[g].pending_s)
                        when = l->free_at, who = d, what = i, link = false;
                    else l->is_done = true;
                }
            }
        }
        for (int d = 0; d < in->n_domains; d++) {
            struct timeline *l = &line[d];
            if (l->link_closed || l->link_free_at >= when) continue;
            while (missing < in->n && (p->work.at[p->work.by_rows[missing]] != FREE || is_on_gpu(in, p, p->work.by_rows[missing]) ||
                                       in->expert[p->work.by_rows[missing]].no_transfer))
                missing++;
            int i = missing < in->n ? p->work.by_rows[missing] : -1;
            double there = l->link_free_at + in->domain[d].transfer_s, free = l->free_at + l->pending_s;
            if (i < 0 || brought[d] >= in->domain[d].max_transfers || (there > free ? there : free) + (double)p->work.cost[d][i] >= soon + waiting)
                l->link_closed = true;
            else when = l->link_free_at, who = d, what = i, link = true;
        }
        if (who < 0) continue; /* a link was just closed: look again */
        struct timeline *l = &line[who];
        if (!is_on_gpu(in, p, what) && p->work.at[what] == FREE) waiting -= best_cpu_cost(in, p, what);
        if (link) {
            l->link_free_at += in->domain[who].transfer_s;
            if (l->first < 0) l->first = what, l->first_arrival = l->link_free_at;
            else p->work.swap[l->last] = (uint16_t)what;
            l->last = what, l->n++, brought[who]++;
            l->pending_s += (double)p->work.cost[who][what];
            p->work.at[what] = COMING;
            continue;
        }
        if (p->work.at[what] == COMING) {
            bool more = --l->n > 0;
            l->first = more ? p->work.swap[what] : -1;
            l->first_arrival += in->domain[who].transfer_s;
        }
        uint32_t there = in->expert[what].resident & p->work.gpus;
        if (is_gpu(in, who)) l->pending_s -= (double)p->work.cost[who][what];
        for (int d = 0; d < in->n_domains; d++)
            if (d != who && there >> d & 1) line[d].pending_s -= (double)p->work.cost[d][what];
        l->free_at = (when > l->free_at ? when : l->free_at) + (double)p->work.cost[who][what];
        p->work.at[what] = TAKEN;
        p->domain[what] = (uint8_t)who;
        left--;
    }
}

#include "engine/placement/split_internal.h"

/* Paper D. Timelines of CPUs, devices and links; the earliest free one takes its next expert: a device the heaviest
 * resident one, a CPU the lightest that is on no device or, if there is none, the lightest that is on one; a link the
 * heaviest that is on no device. Differs from the paper to avoid losses: a CPU takes no expert that a device would
 * finish sooner, and a link transfers no expert that the CPUs would have finished by then. */
enum { FREE, TAKEN, COMING };
struct timeline {
    /* when the timeline and its link are free; cost of assigned experts that have not started */
    double free_at, link_free_at, pending_s;
    /* next of the device's own experts from the heavy end; for CPUs from the light end */
    int own, own_end;
    int first, last, n;   /* transferred experts in order, linked through work.swap */
    double first_arrival; /* arrival of the first one */
    bool is_done, link_closed;
};
/* The state of one plan. */
struct schedule {
    const struct split_in *in;
    struct split_plan *p;
    struct timeline line[SPLIT_DOMAINS];
    int brought[SPLIT_DOMAINS]; /* experts that each link transfers */
    double waiting;             /* CPU cost of experts that are on no device and not assigned */
    int missing;                /* next expert on no device, from the heavy end */
};
/* What happens next: a domain takes an expert, or its link does. */
struct choice {
    double at; /* when */
    int domain, expert;
    bool by_link;
};

/* Returns the place, from `from` to the heavy end, of the lightest free expert that domain d has and that is (resident)
 * or is not on a device; -1: none. */
static int next_lightest(const struct schedule *s, int from, int d, bool resident) {
    for (int k = from; k >= 0; k--) {
        int i = s->p->work.by_rows[k];
        if (s->p->work.at[i] == FREE && is_resident(s->in, d, i) && is_on_gpu(s->in, s->p, i) == resident) return k;
    }
    return -1;
}
static double cost_of(const struct schedule *s, int d, int i) { return (double)s->p->work.cost[d][i]; }
static double best_cpu_cost(const struct schedule *s, int i) { /* its cost on the best CPU domain that has it */
    double c = INFINITY;
    for (int d = 0; d < s->in->n_domains; d++)
        if (!is_gpu(s->in, d) && is_resident(s->in, d, i) && cost_of(s, d, i) < c) c = cost_of(s, d, i);
    return c;
}
/* When device d would have finished expert i if its link took it now. */
static double end_after_transfer(const struct schedule *s, int d, int i) {
    const struct timeline *l = &s->line[d];
    double there = l->link_free_at + s->in->domain[d].transfer_s, free = l->free_at + l->pending_s;
    return (there > free ? there : free) + cost_of(s, d, i);
}
/* Whether a device that may still transfer the expert would finish it before t. */
static bool device_is_sooner(const struct schedule *s, int i, double t) {
    for (uint32_t left = s->p->work.gpus; left; left &= left - 1) {
        int d = __builtin_ctz(left);
        if (!s->line[d].link_closed && can_transfer(s->in, d, i) && s->brought[d] < s->in->domain[d].max_transfers &&
            end_after_transfer(s, d, i) < t)
            return true;
    }
    return false;
}

static void begin_schedule(struct schedule *s, const struct split_in *in, struct split_plan *p) {
    *s = (struct schedule){.in = in, .p = p};
    memset(p->work.at, FREE, (size_t)in->n);
    for (int d = 0; d < in->n_domains; d++) {
        struct timeline *l = &s->line[d];
        *l = (struct timeline){.free_at = in->domain[d].busy_s + in->domain[d].start_s,
                               .link_free_at = in->domain[d].link_busy_s,
                               .own_end = in->n - 1,
                               .first = -1,
                               .last = -1,
                               .link_closed = !is_gpu(in, d) || !(in->domain[d].transfer_s > 0)};
        for (int i = 0; i < in->n && is_gpu(in, d); i++) l->pending_s += is_resident(in, d, i) ? cost_of(s, d, i) : 0;
    }
    for (int i = 0; i < in->n; i++)
        if (!is_on_gpu(in, p, i)) s->waiting += best_cpu_cost(s, i);
}

/* The heavier of a device's own next expert and the first transferred one, if that has arrived. */
static void choose_for_gpu(struct schedule *s, int d, struct choice *next) {
    const uint16_t *by_rows = s->p->work.by_rows;
    struct timeline *l = &s->line[d];
    while (l->own < s->in->n && !(s->p->work.at[by_rows[l->own]] == FREE && is_resident(s->in, d, by_rows[l->own])))
        l->own++;
    const bool has_own = l->own < s->in->n, has_transferred = l->first >= 0;
    const int own = has_own ? by_rows[l->own] : -1;
    const double t = has_own || !has_transferred || l->first_arrival < l->free_at ? l->free_at : l->first_arrival;
    if ((!has_own && !has_transferred) || t >= next->at) return;
    const bool takes_transferred = has_transferred && l->first_arrival <= t &&
                                   (!has_own || s->in->expert[l->first].rows > s->in->expert[own].rows);
    *next = (struct choice){.at = t, .domain = d, .expert = takes_transferred || !has_own ? l->first : own};
}

static void choose_for_cpu(struct schedule *s, int d, struct choice *next) {
    struct timeline *l = &s->line[d];
    if (l->is_done || l->free_at >= next->at) return;
    int k = next_lightest(s, l->own_end, d, false), i;
    if (k >= 0) {
        l->own_end = k, i = s->p->work.by_rows[k];
        if (device_is_sooner(s, i, l->free_at + cost_of(s, d, i))) return;
    } else {
        k = next_lightest(s, s->in->n - 1, d, true);
        i = k < 0 ? -1 : s->p->work.by_rows[k];
        const int gpu = i < 0 ? -1 : __builtin_ctz(s->in->expert[i].resident & s->p->work.gpus);
        l->is_done = i < 0 || !(l->free_at + cost_of(s, d, i) < s->line[gpu].free_at + s->line[gpu].pending_s);
        if (l->is_done) return;
    }
    *next = (struct choice){.at = l->free_at, .domain = d, .expert = i};
}

/* cpu_free_at: when the first CPU domain is free. */
static void choose_for_link(struct schedule *s, int d, double cpu_free_at, struct choice *next) {
    const uint16_t *by_rows = s->p->work.by_rows;
    struct timeline *l = &s->line[d];
    if (l->link_closed || l->link_free_at >= next->at) return;
    for (; s->missing < s->in->n; s->missing++) {
        const int i = by_rows[s->missing];
        if (s->p->work.at[i] == FREE && !is_on_gpu(s->in, s->p, i) && !s->in->expert[i].no_transfer) break;
    }
    const int i = s->missing < s->in->n ? by_rows[s->missing] : -1;
    if (i < 0 || s->brought[d] >= s->in->domain[d].max_transfers ||
        end_after_transfer(s, d, i) >= cpu_free_at + s->waiting)
        l->link_closed = true;
    else *next = (struct choice){.at = l->link_free_at, .domain = d, .expert = i, .by_link = true};
}

/* Returns what happens next. Its domain is -1 if only a link was closed: choose again. */
static struct choice choose_next(struct schedule *s) {
    struct choice next = {.at = INFINITY, .domain = -1, .expert = -1};
    double cpu_free_at = INFINITY;
    for (int d = 0; d < s->in->n_domains; d++) {
        if (is_gpu(s->in, d)) choose_for_gpu(s, d, &next);
        else {
            if (s->line[d].free_at < cpu_free_at) cpu_free_at = s->line[d].free_at;
            choose_for_cpu(s, d, &next);
        }
    }
    for (int d = 0; d < s->in->n_domains; d++) choose_for_link(s, d, cpu_free_at, &next);
    return next;
}

static void begin_transfer(struct schedule *s, int d, int i) {
    struct timeline *l = &s->line[d];
    l->link_free_at += s->in->domain[d].transfer_s;
    if (l->first < 0) l->first = i, l->first_arrival = l->link_free_at;
    else s->p->work.swap[l->last] = (uint16_t)i;
    l->last = i, l->n++, s->brought[d]++;
    l->pending_s += cost_of(s, d, i);
    s->p->work.at[i] = COMING;
}

static void begin_expert(struct schedule *s, const struct choice *c) {
    const int i = c->expert;
    struct timeline *l = &s->line[c->domain];
    if (s->p->work.at[i] == COMING) {
        const bool more = --l->n > 0;
        l->first = more ? s->p->work.swap[i] : -1;
        l->first_arrival += s->in->domain[c->domain].transfer_s;
    }
    const uint32_t there = s->in->expert[i].resident & s->p->work.gpus;
    if (is_gpu(s->in, c->domain)) l->pending_s -= cost_of(s, c->domain, i);
    for (int d = 0; d < s->in->n_domains; d++)
        if (d != c->domain && there >> d & 1) s->line[d].pending_s -= cost_of(s, d, i);
    l->free_at = (c->at > l->free_at ? c->at : l->free_at) + cost_of(s, c->domain, i);
    s->p->work.at[i] = TAKEN;
    s->p->domain[i] = (uint8_t)c->domain;
}

void split_hybrimoe(const struct split_in *in, struct split_plan *p) {
    struct schedule s;
    begin_schedule(&s, in, p);
    for (int left = in->n; left;) {
        const struct choice next = choose_next(&s);
        if (next.domain < 0) continue;
        if (!is_on_gpu(in, p, next.expert) && p->work.at[next.expert] == FREE)
            s.waiting -= best_cpu_cost(&s, next.expert);
        if (next.by_link) {
            begin_transfer(&s, next.domain, next.expert);
            continue;
        }
        begin_expert(&s, &next);
        left--;
    }
}

#include "engine/placement/split_internal.h"

static double max_of(double a, double b) { return a > b ? a : b; }
static void compute_loads(const struct split_in *in, const struct split_plan *p, struct load *load) {
    memset(load, 0, (size_t)in->n_domains * sizeof *load);
    for (int i = 0; i < in->n; i++) {
        int d = p->domain[i];
        load[d] = load_with(in, p, d, load[d], i);
    }
}
/* The second cheapest transferred expert of a domain: the new `least` if the cheapest is removed. */
static double second_cheapest(const struct split_in *in, const struct split_plan *p, int d) {
    double a = INFINITY, b = INFINITY;
    for (int k = 0; k < in->n; k++) {
        double c = (double)p->work.cost[d][k];
        if (p->domain[k] != d || is_resident(in, d, k) || c >= b) continue;
        if (c < a) b = a, a = c;
        else b = c;
    }
    return b;
}
static struct load load_without(const struct split_in *in, const struct split_plan *p, int d, struct load l, int i,
                                double after) {
    double c = (double)p->work.cost[d][i];
    l.work -= c;
    l.n--;
    if (is_resident(in, d, i)) return l;
    l.moved -= c;
    l.n_moved--;
    if (c <= l.least) l.least = after;
    return l;
}
static double load_longest(const struct split_in *in, const struct load *load, int *at) {
    double end = 0;
    *at = 0;
    for (int d = 0; d < in->n_domains; d++) {
        double e = load_end(&in->domain[d], &load[d]);
        if (e > end) end = e, *at = d;
    }
    return end;
}

/* Returns the domain in `among` that would end first with the expert added; -1: none can take it. */
static int earliest_domain(const struct split_in *in, const struct split_plan *p, const struct load *load, int i,
                           uint32_t among) {
    int best = -1;
    double end = INFINITY;
    for (uint32_t left = among; left; left &= left - 1) {
        int d = __builtin_ctz(left);
        if (!load_can_take(in, d, &load[d], i)) continue;
        if (left == among && !(left & (left - 1))) return d;
        struct load with = load_with(in, p, d, load[d], i);
        double e = load_end(&in->domain[d], &with);
        if (e < end) end = e, best = d;
    }
    return best;
}
static void assign_expert(const struct split_in *in, struct split_plan *p, struct load *load, int i, int d) {
    load[d] = load_with(in, p, d, load[d], i);
    p->domain[i] = (uint8_t)d;
}

/* --- Policies: each fills p->domain ----------------------------------------------------------- */

/* Every expert where it is resident: on a device, otherwise on the CPU. */
static void plan_host(const struct split_in *in, struct split_plan *p) {
    struct load load[SPLIT_DOMAINS] = {0};
    uint32_t devices = 0; /* near-memory units included */
    for (int d = 0; d < in->n_domains; d++) devices |= (uint32_t)(in->domain[d].class != COST_CPU) << d;
    for (int k = 0; k < in->n; k++) {
        int i = p->work.by_rows[k];
        uint32_t where = in->expert[i].resident;
        assign_expert(in, p, load, i, earliest_domain(in, p, load, i, where & devices ? where & devices : where));
    }
}
const struct split_policy split_host = {"host", "each expert where it is resident: on a device, otherwise on the CPU",
                                        plan_host};

/* Everything on devices, missing weights over their links, up to the room. */
static void plan_stream(const struct split_in *in, struct split_plan *p) {
    struct load load[SPLIT_DOMAINS] = {0};
    for (int k = 0; k < in->n; k++) {
        int i = p->work.by_rows[k];
        uint32_t resident = in->expert[i].resident & p->work.gpus;
        int d = earliest_domain(in, p, load, i, resident ? resident : p->work.gpus);
        assign_expert(in, p, load, i, d >= 0 ? d : earliest_domain(in, p, load, i, in->expert[i].resident));
    }
}
const struct split_policy split_stream = {"stream", "everything on devices, missing weights over the link",
                                          plan_stream};

static double plan_end(const struct split_in *in, const struct split_plan *p) {
    struct load load[SPLIT_DOMAINS];
    int at;
    compute_loads(in, p, load);
    return load_longest(in, load, &at);
}
/* Returns the most expensive expert of a domain, as an index into work.by_rows, or -1. In descending rows that is the
 * first resident one or the first transferred one. Transferred experts bound by the link all cost the same; then the
 * lightest is the easiest to place. at[3]: start positions in work.by_rows for the three searches. */
static int most_expensive(const struct split_in *in, const struct split_plan *p, int d, int *at) {
    int found[3];
    for (int kind = 0; kind < 3; kind++) {
        int k = at[kind], step = kind < 2 ? 1 : -1;
        while (k >= 0 && k < in->n &&
               !(p->domain[p->work.by_rows[k]] == d && is_resident(in, d, p->work.by_rows[k]) == !kind))
            k += step;
        at[kind] = k;
        found[kind] = k < in->n ? k : -1;
    }
    double resident = found[0] < 0 ? -1 : (double)p->work.cost[d][p->work.by_rows[found[0]]],
           transferred = found[1] < 0 ? -1 : (double)p->work.cost[d][p->work.by_rows[found[1]]];
    bool is_link_bound = found[1] >= 0 && in->domain[d].transfer_s >= transferred;
    if (is_link_bound) transferred = in->domain[d].transfer_s;
    return resident > transferred ? found[0] : is_link_bound ? found[2] : found[1];
}
/* Sets end[0] to the latest end of all domains but `excluded`, reached by *slowest, and end[1] to the second latest. */
static void latest_others(const struct split_in *in, const struct load *load, int excluded, double *end, int *slowest) {
    end[0] = end[1] = 0;
    *slowest = -1;
    for (int d = 0; d < in->n_domains; d++) {
        double e = d == excluded ? 0 : load_end(&in->domain[d], &load[d]);
        if (e > end[0]) end[1] = end[0], end[0] = e, *slowest = d;
        else if (e > end[1]) end[1] = e;
    }
}
/* Paper C: repeatedly moves the most expensive expert of the domain that ends last to where the whole then ends first,
 * while that helps. Ties: lowest added cost. */
static void refine_plan(const struct split_in *in, struct split_plan *p) {
    struct load load[SPLIT_DOMAINS];
    int at[SPLIT_DOMAINS][3];
    for (int d = 0; d < in->n_domains; d++) at[d][0] = at[d][1] = 0, at[d][2] = in->n - 1;
    compute_loads(in, p, load);
    for (int round = 0; round < in->n; round++) {
        int from, to = -1;
        double end = load_longest(in, load, &from), best = end, rise = INFINITY, other[2];
        int k = most_expensive(in, p, from, at[from]), i = k < 0 ? -1 : p->work.by_rows[k], slowest;
        if (i < 0) break;
        bool cheapest = !is_resident(in, from, i) && (double)p->work.cost[from][i] <= load[from].least;
        struct load less = load_without(in, p, from, load[from], i, cheapest ? second_cheapest(in, p, from) : 0);
        latest_others(in, load, from, other, &slowest);
        for (int d = 0; d < in->n_domains; d++) {
            if (d == from || !load_can_take(in, d, &load[d], i)) continue;
            struct load with = load_with(in, p, d, load[d], i);
            double there = load_end(&in->domain[d], &with), all = load_end(&in->domain[from], &less),
                   up = there - load_end(&in->domain[d], &load[d]);
            if (there > all) all = there;
            if (other[d == slowest] > all) all = other[d == slowest];
            if (all < best || (all == best && to >= 0 && up < rise)) best = all, to = d, rise = up;
        }
        if (to < 0) break;
        load[from] = less;
        assign_expert(in, p, load, i, to);
        for (int kind = 0; kind < 3; kind++)
            if (kind < 2 ? at[to][kind] > k : at[to][kind] < k) at[to][kind] = k;
    }
}
/* Each expert on its best domain: where the longer of its computation and its transfer takes least. */
static void plan_best_each(const struct split_in *in, struct split_plan *p) {
    int n_moved[SPLIT_DOMAINS] = {0};
    for (int k = 0; k < in->n; k++) {
        int i = p->work.by_rows[k], at = 0;
        double least = INFINITY;
        for (int d = 0; d < in->n_domains; d++) {
            double c = (double)p->work.cost[d][i];
            if (!is_resident(in, d, i) && (!can_transfer(in, d, i) || n_moved[d] >= in->domain[d].max_transfers))
                continue;
            if (!is_resident(in, d, i) && in->domain[d].transfer_s > c) c = in->domain[d].transfer_s;
            if (c < least) least = c, at = d;
        }
        n_moved[at] += !is_resident(in, at, i);
        p->domain[i] = (uint8_t)at;
    }
}
/* Runs policies and keeps the plan that ends first; ties go to the first. */
static int run_best_of(const struct split_in *in, struct split_plan *p,
                       void (*const *run)(const struct split_in *, struct split_plan *), int n) {
    double end = INFINITY;
    int which = 0;
    for (int k = 0; k < n; k++) {
        run[k](in, p);
        double e = plan_end(in, p);
        if (e >= end) continue;
        end = e, which = k;
        memcpy(p->work.best, p->domain, (size_t)in->n);
    }
    memcpy(p->domain, p->work.best, (size_t)in->n);
    return which;
}
/* Paper C's moves, from the best of its own start and the plain policies. */
static void plan_trimoe(const struct split_in *in, struct split_plan *p) {
    static void (*const starts[])(const struct split_in *, struct split_plan *) = {plan_best_each, plan_host,
                                                                                   plan_stream};
    run_best_of(in, p, starts, 3);
    refine_plan(in, p);
}

/* Improves a plan: moves one expert off the domain that ends last; the target may pass one of its own to a third domain
 * or back. Takes the best such move while one helps. Pairs are tried only for few experts; with many, single moves are
 * fine enough. */
enum { EXCHANGES = 12, EXCHANGE_PAIRS = 400 };
struct exchange {
    const struct split_in *in;
    const struct split_plan *p;
    const struct load *load;
    int from, slowest;              /* the domain that finishes last, and the slowest of the others */
    double longest[2];              /* as in latest_others() */
    double cheapest[SPLIT_DOMAINS]; /* the second cheapest transferred expert of each */
    double end[SPLIT_DOMAINS];      /* when each ends */
    double best_end;                /* after the best move yet */
    /* that move: expert `what` goes to domain `to` (-1: no move helps), which passes `other` (-1: none) to `beyond` */
    int to, what, other, beyond;
};
/* Tries to move expert i, without which its domain ends at `rest`. */
static void try_single_moves(struct exchange *x, int i, double rest) {
    for (int d = 0; d < x->in->n_domains && rest < x->best_end; d++) {
        if (d == x->from || x->longest[d == x->slowest] >= x->best_end || !load_can_take(x->in, d, &x->load[d], i))
            continue;
        struct load with = load_with(x->in, x->p, d, x->load[d], i);
        double all = max_of(load_end(&x->in->domain[d], &with), max_of(rest, x->longest[d == x->slowest]));
        if (all < x->best_end) x->best_end = all, x->to = d, x->what = i, x->other = -1;
    }
}
/* Tries to move expert i to the domain of expert k, and k to any other domain. */
static void try_pair(struct exchange *x, int i, int k, const struct load *less, double rest) {
    const struct split_in *in = x->in;
    const int d = x->p->domain[k];
    if (d == x->from) return;
    struct load with = load_without(in, x->p, d, x->load[d], k, x->cheapest[d]);
    if (!load_can_take(in, d, &with, i)) return;
    with = load_with(in, x->p, d, with, i);
    const double target_end = load_end(&in->domain[d], &with);
    for (int c = 0; c < in->n_domains && target_end < x->best_end; c++) {
        const struct load *l = c == x->from ? less : &x->load[c];
        if (c == d || !load_can_take(in, c, l, k)) continue;
        struct load more = load_with(in, x->p, c, *l, k);
        double all = max_of(load_end(&in->domain[c], &more), c == x->from ? target_end : max_of(target_end, rest));
        for (int o = 0; o < in->n_domains; o++)
            if (o != x->from && o != d && o != c) all = max_of(all, x->end[o]);
        if (all < x->best_end) x->best_end = all, x->to = d, x->what = i, x->other = k, x->beyond = c;
    }
}
static void exchange_experts(const struct split_in *in, struct split_plan *p) {
    struct load load[SPLIT_DOMAINS];
    compute_loads(in, p, load);
    for (int round = 0; round < EXCHANGES; round++) {
        struct exchange x = {.in = in, .p = p, .load = load, .to = -1, .what = -1, .other = -1, .beyond = -1};
        x.best_end = load_longest(in, load, &x.from);
        const int from = x.from;
        bool pairs = load[from].n * (in->n - load[from].n) * (in->n_domains - 1) <= EXCHANGE_PAIRS;
        latest_others(in, load, from, x.longest, &x.slowest);
        for (int d = 0; d < in->n_domains; d++)
            x.cheapest[d] = d == from || pairs ? second_cheapest(in, p, d) : 0,
            x.end[d] = load_end(&in->domain[d], &load[d]);
        for (int i = 0; i < in->n; i++) {
            if (p->domain[i] != from) continue;
            struct load less = load_without(in, p, from, load[from], i, x.cheapest[from]);
            double rest = load_end(&in->domain[from], &less);
            try_single_moves(&x, i, rest);
            for (int k = 0; k < in->n && pairs && rest < x.best_end; k++) try_pair(&x, i, k, &less, rest);
        }
        if (x.to < 0) break;
        load[from] = load_without(in, p, from, load[from], x.what, x.cheapest[from]);
        if (x.other >= 0)
            load[x.to] = load_without(in, p, x.to, load[x.to], x.other, x.cheapest[x.to]),
            assign_expert(in, p, load, x.other, x.beyond);
        assign_expert(in, p, load, x.what, x.to);
    }
}

/* hearth's own policy. A transfer takes the same time for any expert, CPU time grows with rows and near-memory time
 * grows faster. So of the experts on no device the heaviest go to devices, the next to the CPU and the lightest to
 * near-memory units. Tries every length of the first list; the length of the second follows. Then exchanges. */
enum { SIDE_CPU, SIDE_NDP }; /* CPUs; near-memory units */
struct side {
    uint32_t domains; /* bit mask */
    double begin;     /* mean seconds until start: busy and fixed cost */
    double work;      /* total cost */
    int n;            /* experts */
};
static double side_end(const struct side *s, double more) {
    return s->n || more > 0 ? s->begin + (s->work + more) / __builtin_popcount(s->domains) : 0;
}
static double side_cost(const struct split_in *in, const struct split_plan *p, const struct side *s, int i) {
    uint32_t where = in->expert[i].resident & s->domains;
    return where ? (double)p->work.cost[__builtin_ctz(where)][i] : INFINITY;
}
static void side_add(struct side *s, double cost, int n) { s->work += cost, s->n += n; }
/* Divides the n experts of work.swap between CPUs and near-memory units when the first k are transferred, for k from n
 * down to `least`. Returns the position where the units' experts begin, as far as units have them. work.tail[k]: when
 * both end. */
static int divide_rest(const struct split_in *in, struct split_plan *p, const struct side *given, int n, int least) {
    struct side s[2] = {given[SIDE_CPU], given[SIDE_NDP]};
    int at = n;
    for (int k = n;; k--) {
        if (k < n) {
            double cpu = side_cost(in, p, &s[SIDE_CPU], p->work.swap[k]);
            bool only_ndp = isinf(cpu);
            side_add(&s[only_ndp], only_ndp ? side_cost(in, p, &s[SIDE_NDP], p->work.swap[k]) : cpu, 1);
        }
        for (; s[SIDE_NDP].domains && at > k; at--) {
            double cpu = side_cost(in, p, &s[SIDE_CPU], p->work.swap[at - 1]),
                   ndp = side_cost(in, p, &s[SIDE_NDP], p->work.swap[at - 1]);
            if (isinf(cpu) || isinf(ndp)) continue;
            if (side_end(&s[SIDE_NDP], ndp) >= side_end(&s[SIDE_CPU], 0)) break;
            side_add(&s[SIDE_CPU], -cpu, -1), side_add(&s[SIDE_NDP], ndp, 1);
        }
        p->work.tail[k] = (float)max_of(side_end(&s[SIDE_CPU], 0), side_end(&s[SIDE_NDP], 0));
        if (k == least) return at;
    }
}
static void plan_cut(const struct split_in *in, struct split_plan *p) {
    struct load load[SPLIT_DOMAINS] = {0};
    struct side given[2] = {0};
    uint32_t gpus = p->work.gpus, all = ((uint32_t)1 << in->n_domains) - 1;
    int at, missing = 0, best = 0;
    for (int k = 0; k < in->n; k++) {
        int i = p->work.by_rows[k];
        if (in->expert[i].resident & gpus)
            assign_expert(in, p, load, i, earliest_domain(in, p, load, i, in->expert[i].resident & gpus));
        else if (in->expert[i].no_transfer)
            assign_expert(in, p, load, i, earliest_domain(in, p, load, i, in->expert[i].resident & all));
        else p->work.swap[missing++] = (uint16_t)i;
    }
    for (int d = 0; d < in->n_domains; d++) {
        if (gpus >> d & 1) continue;
        struct side *s = &given[in->domain[d].class == COST_NDP];
        s->domains |= (uint32_t)1 << d;
        s->begin += in->domain[d].busy_s + in->domain[d].start_s;
        side_add(s, load[d].work, load[d].n);
    }
    for (int k = 0; k < 2; k++)
        if (given[k].domains) given[k].begin /= __builtin_popcount(given[k].domains);
    divide_rest(in, p, given, missing, 0);
    double least = INFINITY;
    struct load kept[SPLIT_DOMAINS];
    memcpy(kept, load, sizeof kept);
    for (int k = 0; k <= missing; k++) {
        double end = 0;
        for (int d = 0; d < in->n_domains; d++)
            if (gpus >> d & 1) end = max_of(end, load_end(&in->domain[d], &load[d]));
        end = max_of(end, (double)p->work.tail[k]);
        if (end < least) least = end, best = k;
        int d = k < missing ? earliest_domain(in, p, load, p->work.swap[k], gpus) : -1;
        if (d < 0) break;
        load[d] = load_with(in, p, d, load[d], p->work.swap[k]);
    }
    memcpy(load, kept, sizeof load);
    at = divide_rest(in, p, given, missing, best);
    for (int k = 0; k < missing; k++) {
        int i = p->work.swap[k];
        uint32_t where = in->expert[i].resident & all & ~gpus,
                 preferred = where & given[k < at ? SIDE_CPU : SIDE_NDP].domains;
        assign_expert(in, p, load, i, earliest_domain(in, p, load, i, k < best ? gpus : preferred ? preferred : where));
    }
    exchange_experts(in, p);
}

/* host and stream are covered as trimoe's starting points. */
static void (*const auto_policies[])(const struct split_in *, struct split_plan *) = {split_hybrimoe, plan_trimoe,
                                                                                      plan_cut};
static const char *const auto_policy_names[] = {"hybrimoe", "trimoe", "cut"};

/* Lower bound on any plan's end, for one CPU domain; otherwise 0. If k experts on no device are transferred, the links
 * need at least k transfers and the CPU at least the work of all but the k most expensive. */
static double lower_bound(const struct split_in *in, const struct split_plan *p) {
    double rest = 0, link = 0, least = INFINITY, next[SPLIT_DOMAINS];
    int left = 0;
    for (int d = 0; d < in->n_domains; d++) {
        if (is_gpu(in, d) != (d > 0)) return 0;
        next[d] = d && in->domain[d].transfer_s > 0 ? in->domain[d].link_busy_s + in->domain[d].transfer_s : INFINITY;
    }
    for (int i = 0; i < in->n; i++)
        if (!is_on_gpu(in, p, i)) rest += (double)p->work.cost[0][i], left++;
    for (int at = 0;; at++) {
        while (at < in->n && is_on_gpu(in, p, p->work.by_rows[at])) at++;
        double cpu = left ? in->domain[0].busy_s + in->domain[0].start_s + rest : 0, end = link > cpu ? link : cpu;
        if (end < least) least = end;
        int soon = 0; /* the next transfer goes to the link that finishes first */
        for (int d = 1; d < in->n_domains; d++)
            if (next[d] < next[soon]) soon = d;
        if (!left || link > cpu || !soon) return least;
        if (next[soon] > link) link = next[soon];
        next[soon] += in->domain[soon].transfer_s;
        rest -= (double)p->work.cost[0][p->work.by_rows[at]];
        left--;
    }
}

static void plan_auto(const struct split_in *in, struct split_plan *p) {
    /* trimoe uses work.best, so results are compared one by one. */
    double end = INFINITY, enough = lower_bound(in, p) * 1.005;
    for (int k = 0; k < (int)(sizeof auto_policies / sizeof *auto_policies) && end > enough; k++) {
        auto_policies[k](in, p);
        if (auto_policies[k] != plan_cut) exchange_experts(in, p);
        double e = plan_end(in, p);
        if (e >= end) continue;
        end = e, p->policy = auto_policy_names[k];
        memcpy(p->work.kept, p->domain, (size_t)in->n);
    }
    if (in->join_s > 0 && memchr(p->work.kept, 0, (size_t)in->n)) { /* would devices alone finish sooner? */
        plan_stream(in, p);
        double alone = plan_end(in, p);
        if (!memchr(p->domain, 0, (size_t)in->n) && alone < end + in->join_s) {
            p->policy = split_stream.name;
            return;
        }
    }
    memcpy(p->domain, p->work.kept, (size_t)in->n);
}

const struct split_policy split_policies[] = {
    {"auto", "the best of those below, by expected time", plan_auto},
    {"hybrimoe", "three timelines: device heaviest first, CPU lightest first, link the heavy missing ones",
     split_hybrimoe},
    {"trimoe", "each expert's best domain, then moves the most expensive off the one that ends last", plan_trimoe},
    {"cut", "the heaviest missing ones to devices, as many as pay off; then the moves that help most", plan_cut},
    {0},
};
const struct split_policy *split_find(const char *name) {
    for (const struct split_policy *p = split_policies; p->name; p++)
        if (!strcmp(p->name, name)) return p;
    return NULL;
}

/* --- Running a policy ------------------------------------------------------------------------- */

/* Fills work.by_rows: stable radix sort by descending rows. */
static void sort_by_rows(const struct split_in *in, struct split_plan *p) {
    uint16_t *a = p->work.by_rows, *b = p->work.swap;
    int32_t most = 0;
    for (int i = 0; i < in->n; i++) {
        a[i] = (uint16_t)i;
        if (in->expert[i].rows > most) most = in->expert[i].rows;
    }
    for (int shift = 0; most >> shift; shift += 8) {
        int count[257] = {0};
        for (int i = 0; i < in->n; i++) count[256 - (in->expert[i].rows >> shift & 255)]++; /* descending */
        for (int k = 1; k < 257; k++) count[k] += count[k - 1];
        for (int k = 0; k < in->n; k++) b[count[255 - (in->expert[a[k]].rows >> shift & 255)]++] = a[k];
        uint16_t *t = a;
        a = b, b = t;
        if (shift == 24) break;
    }
    if (a != p->work.by_rows) memcpy(p->work.by_rows, a, (size_t)in->n * sizeof *a);
}

void split_run(const struct split_policy *policy, const struct split_in *in, struct split_plan *p) {
    p->policy = policy->name;
    p->work.gpus = 0;
    for (int d = 0; d < in->n_domains; d++) p->work.gpus |= (uint32_t)is_gpu(in, d) << d;
    sort_by_rows(in, p);
    for (int d = 0; d < in->n_domains; d++) {
        const struct split_domain *s = &in->domain[d];
        double scale = s->scale > 0 ? s->scale : 1, last = 0;
        int32_t rows = 0;
        for (int k = 0; k < in->n; k++) { /* neighbours often have equal rows */
            int i = p->work.by_rows[k];
            if (in->expert[i].rows != rows)
                rows = in->expert[i].rows, last = cost_table_at(s->expert_cost, rows) * scale;
            p->work.cost[d][i] = is_resident(in, d, i) || can_transfer(in, d, i) ? (float)last : INFINITY;
            if (s->class == COST_CPU && in->expert[i].min_cpu_s > p->work.cost[d][i])
                p->work.cost[d][i] = in->expert[i].min_cpu_s;
        }
    }
    policy->run(in, p);
    /* The order that load_end() assumes. */
    struct load load[SPLIT_DOMAINS];
    int n = 0, moves = 0;
    compute_loads(in, p, load);
    for (int d = 0; d < in->n_domains; d++) {
        p->queue_begin[d] = (uint16_t)n, p->transfer_begin[d] = (uint16_t)moves;
        p->domain_end_s[d] = load_end(&in->domain[d], &load[d]);
        n += load[d].n, moves += load[d].n_moved;
    }
    p->queue_begin[in->n_domains] = (uint16_t)n, p->transfer_begin[in->n_domains] = (uint16_t)moves;
    int at;
    p->end_s = load_longest(in, load, &at) + (p->queue_begin[1] > p->queue_begin[0] ? in->join_s : 0);
    /* positions in queue, queue and transfer */
    uint16_t next_resident[SPLIT_DOMAINS], next_moved[SPLIT_DOMAINS], next_transfer[SPLIT_DOMAINS];
    for (int d = 0; d < in->n_domains; d++)
        next_resident[d] = p->queue_begin[d], next_moved[d] = (uint16_t)(p->queue_begin[d + 1] - load[d].n_moved),
        next_transfer[d] = p->transfer_begin[d];
    for (int k = 0; k < in->n; k++) {
        int i = p->work.by_rows[k], d = p->domain[i];
        if (is_resident(in, d, i)) p->queue[next_resident[d]++] = (uint16_t)i;
        else p->queue[next_moved[d]++] = p->transfer[next_transfer[d]++] = (uint16_t)i;
    }
}

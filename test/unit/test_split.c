/* The split of a layer's experts over domains: invariants of every policy, cases by hand from papers C and D, and the
 * distance of each from the optimum. A simulator that shares no code with the policies replays the queues. */
#include "test/unit/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "test/bench/splits.h"

static struct split_plan plan, other;
static uint64_t seed = 1;
static uint32_t draw(uint32_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

struct problem {
    struct split_in in;
    struct cost_table table[SPLIT_DOMAINS];
    struct split_domain domain[SPLIT_DOMAINS];
    struct split_expert expert[512];
};
/* An expert takes `once` + `row` * its rows on a domain. */
static void linear_table(struct cost_table *t, double once, double row) {
    t->t[0] = 0;
    for (int i = 1; i <= COST_TABLE; i++)
        t->t[i] = (float)(once + row * (i < 8 ? i : (8 + (i - 8) % 8) * exp2((i - 8) / 8)));
}
static void begin(struct problem *c, int n_domains, int n) {
    memset(c, 0, sizeof *c);
    c->in = (struct split_in){.domain = c->domain, .expert = c->expert, .n_domains = n_domains, .n = n};
    for (int d = 0; d < n_domains; d++) c->domain[d].expert_cost = &c->table[d];
}

static double seconds(const struct split_domain *s, const struct split_expert *e) {
    double t = cost_table_at(s->expert_cost, e->rows) * (s->scale > 0 ? s->scale : 1);
    return s->class == COST_CPU && (double)e->min_cpu_s > t ? (double)e->min_cpu_s : t;
}
/* Executes the queues as the header specifies; fails where an expert is not resident or missing. */
static double replay(const struct split_in *in, const struct split_plan *p) {
    static double arrives[SPLIT_EXPERTS];
    static int seen[SPLIT_EXPERTS];
    double last = 0;
    memset(seen, 0, sizeof seen);
    for (int d = 0; d < in->n_domains; d++) {
        const struct split_domain *s = &in->domain[d];
        double link = s->link_busy_s, t = s->busy_s + s->start_s;
        assert_true(p->transfer_begin[d + 1] - p->transfer_begin[d] <= s->max_transfers ||
                    p->transfer_begin[d + 1] == p->transfer_begin[d]);
        for (int k = p->transfer_begin[d]; k < p->transfer_begin[d + 1]; k++) {
            assert_true(s->transfer_s > 0 && !in->expert[p->transfer[k]].no_transfer);
            assert_false(in->expert[p->transfer[k]].resident >> d & 1);
            arrives[p->transfer[k]] = link += s->transfer_s;
        }
        int come = 0;
        for (int k = p->queue_begin[d]; k < p->queue_begin[d + 1]; k++) {
            int i = p->queue[k];
            bool there = in->expert[i].resident >> d & 1;
            assert_int_equal(p->domain[i], d);
            assert_false(seen[i]++);
            come += !there;
            if (!there && arrives[i] > t) t = arrives[i];
            t += seconds(s, &in->expert[i]);
        }
        assert_int_equal(come, p->transfer_begin[d + 1] - p->transfer_begin[d]);
        if (p->queue_begin[d] == p->queue_begin[d + 1]) t = 0;
        assert_true(fabs(t - p->domain_end_s[d]) <= 1e-5 * (t + 1e-9));
        if (t > last) last = t;
    }
    assert_int_equal(p->queue_begin[in->n_domains], in->n);
    for (int i = 0; i < in->n; i++) assert_int_equal(seen[i], 1);
    return last;
}
static double run(const char *policy, const struct split_in *in, struct split_plan *p) {
    const struct split_policy *which = splits_find(policy);
    assert_non_null(which);
    split_run(which, in, p);
    double end = replay(in, p);
    if (!(fabs(end - p->end_s) <= 1e-5 * (end + 1e-9)))
        fail_msg("%s expects %.9g, its queues take %.9g", policy, p->end_s, end);
    return end;
}

/* Makes a random case: one CPU, up to three devices, up to two near-memory units. */
static void random_problem(struct problem *c, int most) {
    int n_gpus = (int)draw(4), n_near = (int)draw(8) ? 0 : (int)draw(3), nd = 1 + n_gpus + n_near;
    begin(c, nd, 1 + (int)draw((uint32_t)most));
    for (int d = 0; d < nd; d++) {
        struct split_domain *s = &c->domain[d];
        s->class = !d ? COST_CPU : d <= n_gpus ? COST_GPU : COST_NDP;
        linear_table(&c->table[d], (1 + draw(20)) * 1e-5,
                     s->class == COST_GPU ? draw(3) * 1e-6 : (1 + draw(40)) * 1e-6);
        s->scale = draw(4) ? 0 : 0.5 + draw(100) * 0.01;
        s->busy_s = draw(3) ? 0 : draw(30) * 1e-5;
        s->start_s = draw(2) ? 0 : draw(10) * 1e-5;
        if (s->class == COST_GPU && draw(8))
            s->transfer_s = (1 + draw(60)) * 1e-5, s->link_busy_s = draw(3) ? 0 : draw(50) * 1e-5,
            s->max_transfers = draw(3) ? 512 : (int)draw(4);
    }
    bool decode = draw(2);
    for (int i = 0; i < c->in.n; i++) {
        c->expert[i].rows = decode ? 1 + (int32_t)draw(4) : 1 + (int32_t)(draw(600) * draw(100) / 100);
        c->expert[i].resident = 1;
        if (n_gpus && !draw(4)) c->expert[i].resident |= 2u << draw((uint32_t)n_gpus);
        if (n_near && !draw(3)) c->expert[i].resident |= 1u << (1 + n_gpus + (int)draw((uint32_t)n_near));
        /* on one DIMM, not striped */
        if (c->expert[i].resident >> (1 + n_gpus) && draw(2)) c->expert[i].resident &= ~1u;
        c->expert[i].min_cpu_s = i % 7 == 2 && n_near ? 1e-3f : 0;
        c->expert[i].no_transfer = i % 5 == 3 && c->in.n % 2;
    }
}

static const char *const names[] = {"host", "stream", "hybrimoe", "trimoe", "cut", "auto", "exact"};
enum { HOST, STREAM, HYBRIMOE, TRIMOE, CUT, AUTO, EXACT, N };

static void random_splits_keep_their_bounds(void **st) {
    static struct problem c;
    double worst[N] = {0}, sum[N] = {0};
    int cases = 0, proved = 0, equal[N] = {0};
    for (int k = 0; k < 10000; k++) {
        random_problem(&c, 9);
        double end[N];
        for (int i = 0; i < N; i++) end[i] = run(names[i], &c.in, &plan);
        proved += splits_is_proven;
        cases++;
        for (int i = 0; i < N; i++) {
            double ratio = end[i] / end[EXACT];
            assert_true(end[EXACT] <= end[i] * (1 + 1e-6));
            if (i < EXACT) assert_true(end[AUTO] <= end[i] * 1.00501); /* it stops within 0.5 % of the lower bound */
            if (ratio > worst[i]) worst[i] = ratio;
            sum[i] += ratio, equal[i] += ratio < 1 + 1e-6;
        }
        assert_true(end[TRIMOE] <= end[HOST] * (1 + 1e-6) && end[TRIMOE] <= end[STREAM] * (1 + 1e-6));
    }
    for (int i = 0; i < N; i++)
        printf("%-9s of the best there is: mean %.3f, worst %.2f, equal in %.1f%%\n", names[i], sum[i] / cases,
               worst[i], 100.0 * equal[i] / cases);
    assert_true(proved > cases * 95 / 100);
    assert_true(sum[HYBRIMOE] / cases < 1.12);
    assert_true(sum[TRIMOE] / cases < 1.05 && sum[CUT] / cases < 1.005);
    assert_true(sum[AUTO] / cases < 1.002 && worst[AUTO] < 1.15);
}

static void many_experts(void **st) {
    static struct problem c;
    double gain[N] = {0};
    for (int k = 0; k < 1000; k++) {
        random_problem(&c, 400);
        double end[EXACT];
        for (int i = 0; i < EXACT; i++) end[i] = run(names[i], &c.in, &plan);
        for (int i = 0; i < EXACT; i++) gain[i] += end[i] / end[AUTO] / 1000;
        assert_true(end[TRIMOE] <= end[HOST] * (1 + 1e-6) && end[TRIMOE] <= end[STREAM] * (1 + 1e-6));
    }
    for (int i = 0; i < AUTO; i++) printf("%-9s of auto, up to 400 experts: mean %.3f\n", names[i], gain[i]);
}

/* Paper C's machine: a CPU that reads any expert in the same time, a device behind a link, sixteen near-memory units
 * that are slow for many rows; every expert is everywhere. Lower bound: no plan ends before w_p * p + w_l * l + w_u *
 * u, with the loads of CPU, link and all units, for weights that sum to 1. */
static void units_near_memory(void **st) {
    static struct problem c;
    enum { UNITS = 16 };
    double worst = 0, mean = 0;
    for (int k = 0; k < 40; k++) {
        begin(&c, 2 + UNITS, 100 + 20 * (k % 5));
        linear_table(&c.table[0], 150e-6, 0.2e-6), linear_table(&c.table[1], 25e-6, 0.1e-6),
            linear_table(&c.table[2], 130e-6, 184e-6);
        c.domain[1] = (struct split_domain){
            .class = COST_GPU, .expert_cost = &c.table[1], .transfer_s = 737e-6, .max_transfers = 512};
        for (int u = 0; u < UNITS; u++)
            c.domain[2 + u] = (struct split_domain){.class = COST_NDP, .expert_cost = &c.table[2]};
        for (int i = 0; i < c.in.n; i++) { /* a tail of cold experts, some warm ones */
            int32_t rows = draw(10) < 7 ? 1 + (int32_t)draw(6) : 10 + (int32_t)draw(80);
            c.expert[i] = (struct split_expert){rows, (((uint32_t)1 << UNITS) - 1) << 2 | 1};
        }
        double bound = 0, end = run("auto", &c.in, &plan);
        for (int p = 0; p <= 50; p++)
            for (int l = 0; p + l <= 50; l++) {
                double sum = 0, w[3] = {p / 50.0, l / 50.0, (50 - p - l) / 50.0 / UNITS};
                for (int i = 0; i < c.in.n; i++) {
                    double a = w[0] * cost_table_at(&c.table[0], c.expert[i].rows),
                           b = w[2] * cost_table_at(&c.table[2], c.expert[i].rows);
                    sum += fmin(fmin(a, b), w[1] * 737e-6);
                }
                bound = fmax(bound, sum);
            }
        assert_true(bound <= end);
        worst = fmax(worst, end / bound), mean += end / bound / 40;
    }
    printf("auto      of what none can beat, with sixteen units near memory: mean %.3f, worst %.3f\n", mean, worst);
    /* experts are not divisible: with a handful on each unit, one more is a lot */
    assert_true(mean < 1.1 && worst < 1.2);
}

/* Exact: against every placement in every order of work and of transfers. */
static void permute(int *v, int n, int code) {
    for (int i = n; i > 1; code /= i, i--) {
        int t = v[i - 1];
        v[i - 1] = v[code % i], v[code % i] = t;
    }
}
static double best_order(const struct problem *c, int d, const int *mine, int n) {
    const struct split_domain *s = &c->domain[d];
    int come[4], nm = 0, orders = 1, move_orders = 1;
    for (int i = 0; i < n; i++)
        if (!(c->expert[mine[i]].resident >> d & 1)) {
            if (c->expert[mine[i]].no_transfer) return INFINITY;
            come[nm++] = mine[i];
        }
    if (nm && (!(s->transfer_s > 0) || nm > s->max_transfers)) return INFINITY;
    for (int i = 2; i <= n; i++) orders *= i;
    for (int i = 2; i <= nm; i++) move_orders *= i;
    double best = n ? INFINITY : 0;
    for (int o = 0; o < orders; o++)
        for (int w = 0; w < move_orders; w++) {
            int q[4], mv[4];
            double at[16] = {0}, t = s->busy_s + s->start_s;
            memcpy(q, mine, (size_t)n * sizeof *q), memcpy(mv, come, (size_t)nm * sizeof *mv);
            permute(q, n, o), permute(mv, nm, w);
            for (int i = 0; i < nm; i++) at[mv[i]] = s->link_busy_s + (i + 1) * s->transfer_s;
            for (int i = 0; i < n; i++) t = (t > at[q[i]] ? t : at[q[i]]) + seconds(s, &c->expert[q[i]]);
            if (t < best) best = t;
        }
    return n ? best : 0;
}
static void exact_is_the_best(void **st) {
    static struct problem c;
    for (int k = 0; k < 1500; k++) {
        do random_problem(&c, 4);
        while (c.in.n_domains > 3);
        int codes = 1, nd = c.in.n_domains, n = c.in.n;
        for (int i = 0; i < n; i++) codes *= nd;
        double best = INFINITY;
        for (int code = 0; code < codes; code++) {
            double end = 0;
            for (int d = 0; d < nd; d++) {
                int mine[4], m = 0;
                for (int i = 0, x = code; i < n; i++, x /= nd)
                    if (x % nd == d) mine[m++] = i;
                double e = best_order(&c, d, mine, m);
                if (e > end) end = e;
            }
            if (end < best) best = end;
        }
        double end = run("exact", &c.in, &plan);
        assert_true(splits_is_proven);
        if (!(fabs(end - best) <= 1e-5 * best)) fail_msg("case %d: exact %.9g, all orders %.9g", k, end, best);
    }
}

/* Paper D, figure 6's kind: a device takes one unit for any expert, the processor one a row, a transfer three. Device:
 * 4, 3, 2 and E of 1 row; missing: 1, 1 and C of 5. Processor: 1, 1 until 2, idle, so it takes E until 3; the link has
 * C there at 3; the device does 4, 3, 2 until 3 and then C until 4, not E. */
static void paper_d(void **st) {
    static struct problem c;
    static const int rows[] = {4, 3, 2, 1, 1, 1, 5}, there[] = {1, 1, 1, 1, 0, 0, 0};
    begin(&c, 2, 7);
    linear_table(&c.table[0], 0, 1), linear_table(&c.table[1], 1, 0);
    c.domain[1] =
        (struct split_domain){.class = COST_GPU, .expert_cost = &c.table[1], .transfer_s = 3, .max_transfers = 9};
    for (int i = 0; i < 7; i++) c.expert[i] = (struct split_expert){rows[i], 1 | (uint32_t)there[i] << 1};
    assert_true(run("hybrimoe", &c.in, &plan) == 4);
    assert_int_equal(plan.domain[3], 0); /* E */
    assert_int_equal(plan.domain[6], 1); /* C */
    assert_int_equal(plan.transfer_begin[2] - plan.transfer_begin[1], 1);
    assert_int_equal(plan.queue[plan.queue_begin[2] - 1], 6);
    assert_true(run("host", &c.in, &plan) == 7);    /* 5 + 1 + 1 against 4 */
    assert_true(run("stream", &c.in, &plan) == 10); /* three transfers, then the last */
    assert_true(run("exact", &c.in, &plan) == 4 && splits_is_proven);
}

/* Paper C: best domain each, then off the bottleneck. Processor one unit a row, device one unit, transfer three.
 * Rows 8, 7, 6, 5: each alone is best fetched (3 against 5 to 8), together 4 * 3 + 1 = 13. All cost the link the same,
 * so the lightest goes to the processor: 5 against 10. The next, 6: 11 against 7, no better. */
static void paper_c(void **st) {
    static struct problem c;
    begin(&c, 2, 4);
    linear_table(&c.table[0], 0, 1), linear_table(&c.table[1], 1, 0);
    c.domain[1] =
        (struct split_domain){.class = COST_GPU, .expert_cost = &c.table[1], .transfer_s = 3, .max_transfers = 9};
    for (int i = 0; i < 4; i++) c.expert[i] = (struct split_expert){8 - i, 1};
    assert_true(run("stream", &c.in, &plan) == 13);
    assert_true(run("host", &c.in, &plan) == 26);
    assert_true(run("trimoe", &c.in, &plan) == 10);
    assert_int_equal(plan.domain[3], 0);
    assert_int_equal(plan.domain_end_s[0], 5);
    assert_true(run("cut", &c.in, &plan) == 10);
    assert_true(run("exact", &c.in, &plan) == 10 && splits_is_proven);
    /* A third domain: near-memory units that have the two coldest experts, at two units of time per row. */
    begin(&c, 3, 4);
    linear_table(&c.table[0], 4, 0.5), linear_table(&c.table[1], 1, 0), linear_table(&c.table[2], 0, 2);
    c.domain[1] =
        (struct split_domain){.class = COST_GPU, .expert_cost = &c.table[1], .transfer_s = 6, .max_transfers = 9};
    c.domain[2] = (struct split_domain){.class = COST_NDP, .expert_cost = &c.table[2]};
    static const int rows[] = {40, 8, 1, 1};
    for (int i = 0; i < 4; i++) c.expert[i] = (struct split_expert){rows[i], i < 2 ? 1u : 5u};
    /* hot over the link 7, warm on the processor 8, cold near memory 2 + 2 */
    assert_true(run("trimoe", &c.in, &plan) == 8);
    assert_int_equal(plan.domain[0], 1);
    assert_int_equal(plan.domain[1], 0);
    assert_int_equal(plan.domain[2], 2);
    assert_int_equal(plan.domain[3], 2);
}

/* No work, no device, no room, an infinitely slow link; and the same answer every time. */
static void splits_of_extreme_inputs(void **st) {
    static struct problem c;
    begin(&c, 1, 0);
    linear_table(&c.table[0], 1, 1);
    for (int i = 0; i < N; i++) assert_true(run(names[i], &c.in, &plan) == 0);
    begin(&c, 2, 3);
    linear_table(&c.table[0], 1, 1), linear_table(&c.table[1], 1, 0);
    c.domain[1] =
        (struct split_domain){.class = COST_GPU, .expert_cost = &c.table[1], .transfer_s = 0.1, .max_transfers = 0};
    for (int i = 0; i < 3; i++) c.expert[i] = (struct split_expert){100, 1};
    for (int i = 0; i < N; i++) {
        assert_true(fabs(run(names[i], &c.in, &plan) - 303) < 1e-3); /* nothing may be uploaded */
        assert_int_equal(plan.transfer_begin[2], 0);
    }
    c.domain[1].max_transfers = 2;
    assert_true(run("stream", &c.in, &plan) > 100 && plan.transfer_begin[2] == 2);
    for (int k = 0; k < 200; k++) {
        random_problem(&c, 300);
        for (int i = 0; i < EXACT; i++) {
            run(names[i], &c.in, &plan);
            run(names[i], &c.in, &other);
            assert_memory_equal(plan.domain, other.domain, (size_t)c.in.n);
            assert_memory_equal(plan.queue, other.queue, (size_t)c.in.n * 2);
        }
    }
    assert_null(split_find("fastest"));
    assert_null(split_find("host")); /* for comparison only */
    assert_string_equal(split_policies[0].name, "auto");
}

/* The cost of merging the CPU's sum does not move work off it; it decides whether the CPU gets any. */
static void the_sum_comes_back(void **st) {
    static const struct {
        double row, join;
        int least, most; /* experts on the CPU */
        double end;
    } cases[] = {
        {0.1, 0, 9, 10, 75}, {0.1, 60, 9, 10, 135}, {0.1, 120, 0, 0, 177}, {2, 0, 1, 1, 166}, {2, 60, 0, 0, 177}};
    struct problem c;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(&c, 2, 16);
        linear_table(&c.table[0], 0, cases[i].row);
        linear_table(&c.table[1], 0, 1e-3);
        c.domain[0].class = COST_CPU;
        c.domain[1] =
            (struct split_domain){.class = COST_GPU, .expert_cost = &c.table[1], .transfer_s = 11, .max_transfers = 16};
        c.in.join_s = cases[i].join;
        for (int x = 0; x < 16; x++) c.expert[x] = (struct split_expert){.rows = 80, .resident = 1};
        split_run(split_policies, &c.in, &plan);
        int n = plan.queue_begin[1] - plan.queue_begin[0];
        if (n < cases[i].least || n > cases[i].most || fabs(plan.end_s - cases[i].end) > 6)
            fail_msg("case %zu: %d experts on the processor, end %.1f by %s", i, n, plan.end_s, plan.policy);
        replay(&c.in, &plan);
    }
}

/* 256 experts, a CPU and two devices, as in a prefill of DeepSeek-V3. The time is printed, and bounded loosely. */
static void quick(void **st) {
    static struct problem c;
    for (int many = 0; many < 2; many++) {
        begin(&c, 3, many ? 256 : 40);
        linear_table(&c.table[0], 46e-6, 4e-6), linear_table(&c.table[1], 29e-6, 0.3e-6),
            linear_table(&c.table[2], 29e-6, 0.3e-6);
        for (int d = 1; d < 3; d++)
            c.domain[d] = (struct split_domain){
                .class = COST_GPU, .expert_cost = &c.table[d], .transfer_s = 0.77e-3, .max_transfers = 256};
        for (int i = 0; i < c.in.n; i++)
            c.expert[i] = (struct split_expert){
                many ? 1 + (int32_t)(draw(300) * draw(300) / 300) : 1 + (int32_t)draw(3), draw(8) ? 1 : 3};
        for (int i = 0; i < EXACT; i++) {
            const struct split_policy *policy = splits_find(names[i]);
            double best = INFINITY;
            for (int round = 0; round < 20; round++) {
                double t = cpu_time();
                for (int k = 0; k < 20; k++) split_run(policy, &c.in, &plan);
                t = (cpu_time() - t) / 20;
                if (t < best) best = t;
            }
            printf("%-9s %3d experts, 3 domains: %5.1f us, end %.3f ms\n", names[i], c.in.n, best * 1e6,
                   plan.end_s * 1e3);
            assert_true(best < 2e-3);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_splits_keep_their_bounds),
                                       cmocka_unit_test(many_experts),
                                       cmocka_unit_test(units_near_memory),
                                       cmocka_unit_test(exact_is_the_best),
                                       cmocka_unit_test(paper_d),
                                       cmocka_unit_test(paper_c),
                                       cmocka_unit_test(splits_of_extreme_inputs),
                                       cmocka_unit_test(the_sum_comes_back),
                                       cmocka_unit_test(quick)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

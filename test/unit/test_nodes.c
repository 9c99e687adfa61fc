/* Memory nodes as domains of the cost model, against cases computed by hand, and which bytes of a checkpoint belong to
 * which node. */
#include "test/unit/unit.h"

#include <math.h>
#include <stdlib.h>

#include "engine/model/known.h"
#include "engine/placement/calibrate.h"
#include "engine/placement/numa_cost.h"
#include "engine/placement/split.h"
#include "engine/weights/numa_ranges.h"
#include "engine/weights/numa_shard.h"
#include "engine/weights/shape_only.h"

static struct cost_machine m, parts;
static struct cost_model v3;

static void near(double got, double want, double share) {
    if (!(fabs(got - want) <= share * fabs(want))) fail_msg("%.9g, by hand %.9g", got, want);
}
static int setup(void **st) {
    static struct config c;
    struct error e = {0};
    if (known_model_config(known_model_find("deepseek-v3"), &c, &e)) return -1;
    cost_model_of(&v3, &c, DT_E4M3, DT_E4M3, DT_BF16);
    return 0;
}

/* Paper A: 947 GB/s in two halves, 50 GB/s from one to the other. An expert of 44,050,944 bytes: by rows half on
 * each, 46.52 us, as domain 0 says. In pages by turns a quarter of it goes each way: 220.25 us. All on one node: half
 * of it goes over, 440.5 us; without that limit what one node serves, 93.03 us. */
static void cost_of_an_expert_by_placement_on_nodes(void **st) {
    int hot = -1;
    assert_true(cost_preset(&m, "paper-a-1") && m.n_nodes == 2);
    struct numa_shares shares = numa_cost_balanced(&m, &v3, 1, COST_MANY_ROWS), spread = numa_cost_interleaved(&m),
                       one = numa_cost_single(&m, 1);
    near(shares.stored[0], 0.5, 1e-9);
    near(numa_cost_expert(&m, &v3, 1, COST_MANY_ROWS, &shares, NULL), 46.516e-6, 1e-4);
    near(numa_cost_expert(&m, &v3, 1, COST_MANY_ROWS, &shares, NULL), cost_expert(&m, 0, &v3, 1, COST_MANY_ROWS), 1e-9);
    near(numa_cost_expert(&m, &v3, 1, COST_MANY_ROWS, &spread, NULL), 220.25e-6, 1e-3);
    near(numa_cost_expert(&m, &v3, 1, COST_MANY_ROWS, &one, &hot), 440.5e-6, 1e-3);
    m.inter_node_bw = 0;
    near(numa_cost_expert(&m, &v3, 1, COST_MANY_ROWS, &one, &hot), 93.03e-6, 1e-3);
    assert_int_equal(hot, 1);
    numa_cost_even(&m, 4, 0); /* three quarters of it leave the one of four: 660.8 us, at 50 GB/s */
    one = numa_cost_single(&m, 0);
    near(numa_cost_expert(&m, &v3, 1, COST_MANY_ROWS, &one, &hot), 660.8e-6, 1e-3);
    assert_int_equal(hot, 0);
    numa_cost_even(&m, 2, 0);
    m.inter_node_bw = 0;
    /* 512 rows: 45.1 GFLOP at 24 TFLOP/s, wherever the weights are */
    near(numa_cost_expert(&m, &v3, 512, COST_MANY_ROWS, &spread, NULL), 512 * 88080384.0 / 24e12, 1e-3);
    /* a machine whose weights are placed at random reads that much less: as the speed between nodes allows, or as given
     */
    assert_true(cost_preset(&m, "paper-a-1"));
    near(numa_cost_reach(&m, &v3), 46.516 / 220.25, 1e-3);
    m.inter_node_bw = 1e12;
    near(numa_cost_reach(&m, &v3), 1, 1e-9);
    m.reach = 0.4;
    near(numa_cost_reach(&m, &v3), 0.4, 1e-9);
    m.n_nodes = 0;
    near(numa_cost_reach(&m, &v3), 1, 1e-9);
    double whole = cost_expert(&m, 0, &v3, 1, COST_MANY_ROWS);
    m.spread_bw_share = 0.5;
    near(cost_expert(&m, 0, &v3, 1, COST_MANY_ROWS), 2 * whole, 1e-6);
}

/* A third of the memory's bandwidth on node 1, as many cores: cut by cores it is hot, 0.5 * 44.05 MB / 315.7 GB/s
 * = 69.8 us; by what it serves 46.5 again. Many rows are a matter of cores. */
static void a_hot_node(void **st) {
    int hot = -1;
    assert_true(cost_preset(&m, "paper-a-1"));
    m.node[0].bw_share = 2.0 / 3, m.node[1].bw_share = 1.0 / 3;
    struct numa_shares even = {{0.5, 0.5}, {0.5, 0.5}, true}, few = numa_cost_balanced(&m, &v3, 1, COST_MANY_ROWS),
                       many = numa_cost_balanced(&m, &v3, 512, COST_MANY_ROWS);
    near(numa_cost_expert(&m, &v3, 1, COST_MANY_ROWS, &even, &hot), 69.77e-6, 1e-3);
    assert_int_equal(hot, 1);
    near(few.stored[1], 1.0 / 3, 1e-6);
    near(numa_cost_expert(&m, &v3, 1, COST_MANY_ROWS, &few, NULL), 46.516e-6, 1e-4);
    near(many.stored[1], 0.5, 1e-6);
}

/* Rows of whole experts assigned to nodes, as the split assigns them to devices: eight experts of a token alternating
 * over two nodes take as long as four; five on one side take as long as five, or one is read over the link between the
 * nodes, if that is fast enough. */
static void whole_experts(void **st) {
    static struct cost_table t[2];
    static struct split_plan plan;
    struct split_expert x[8];
    assert_true(cost_preset(&m, "paper-a-1"));
    numa_cost_machine(&parts, &m);
    assert_true(parts.n_domains == 2 && parts.n_devices == 0 && parts.domain[1].memory == m.domain[0].memory / 2);
    for (int a = 0; a < 2; a++) cost_table_fill(&t[a], &parts, a, &v3, COST_MANY_ROWS);
    near(cost_table_at(&t[1], 1), 93.03e-6, 1e-3);
    for (int ways = 0; ways < 2; ways++) {
        struct split_domain d[2];
        for (int a = 0; a < 2; a++)
            d[a] = (struct split_domain){.class = COST_CPU,
                                         .expert_cost = &t[a],
                                         .transfer_s = ways ? cost_transfer(&parts, a, COST_H2D, v3.expert_bytes) : 0,
                                         .max_transfers = 8};
        for (int right = 4; right <= 6; right++) {
            for (int i = 0; i < 8; i++) x[i] = (struct split_expert){.rows = 1, .resident = i < right ? 2u : 1u};
            split_run(split_find("auto"), &(struct split_in){.domain = d, .expert = x, .n_domains = 2, .n = 8}, &plan);
            near(plan.end_s, right * 93.03e-6, 1e-3); /* 881 us to fetch one: never */
            assert_true(plan.end_s >= 8 * cost_expert(&m, 0, &v3, 1, COST_MANY_ROWS) * (1 - 1e-6));
        }
    }
}

static void text(void **st) {
    static const char said[] = "nodes = 3\nbetween = 100G\nreach = 0.5\nnode0.bw = 2\nnode1.bw = 1\nnode2.bw = "
                               "1\nnode.memory = 64G\ncpu.bw = 100G\ncpu.rate = 1T\n";
    struct error e = {0};
    if (calibrate_parse(&m, said, sizeof said - 1, "x", NULL, &e)) fail_msg("%s", e.text);
    assert_true(m.n_nodes == 3 && m.inter_node_bw == 100e9 && m.reach == 0.5 && m.node[0].bw_share == 0.5 &&
                m.node[2].bw_share == 0.25 && m.node[1].memory == 64e9);
    near(m.node[1].rate_share, 1.0 / 3, 1e-9);
    static const char *const bad[] = {"nodes = 1\n",
                                      "nodes = 9\n",
                                      "nodes = two\n",
                                      "node0.bw = 1\ncpu.bw = 1G\n",
                                      "nodes = 2\nnode2.bw = 1\ncpu.bw = 1G\n",
                                      "nodes = 2\nnode0.speed = 1\ncpu.bw = 1G\n",
                                      "nodes = 2\nreach = 1.1\ncpu.bw = 1G\n",
                                      "nodes = 2\nreach = 0\ncpu.bw = 1G\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (calibrate_parse(&m, bad[i], strlen(bad[i]), "x", NULL, &e) != ERR_USAGE) fail_msg("taken: %s", bad[i]);
}

/* Every byte of an expert has the node of its row. Ranges cover what they are asked for, in whole pages as mapped. */
static void bytes_of_nodes(void **st) {
    static struct config c;
    struct shape_only shape = {0};
    struct numa nodes;
    struct numa_ranges s;
    struct error e = {0};
    if (known_model_config(known_model_find("qwen3-30b"), &c, &e) || shape_only_open(&shape, &c, DT_BF16, DT_E4M3, &e))
        fail_msg("%s", e.text);
    const struct weights *w = &shape.w;
    if (numa_parse(&nodes, "node 1000 0\nnode 1000 1\n", &e) || numa_ranges_open(&s, w, &nodes, &e))
        fail_msg("%s", e.text);
    assert_true(s.n > 0);
    for (int i = 1; i < s.n; i++) assert_true(s.range[i].at >= s.range[i - 1].at);
    const struct mat *down = &w->layers[0].experts[3].down;
    struct numa_part part[NUMA_NODES];
    numa_split(&nodes, down->rows, NUMA_SHARD_UNIT, part);
    for (int r = 0; r < down->rows; r++) {
        int node = -1;
        const uint8_t *row = (const uint8_t *)down->data + (size_t)r * down->stride;
        size_t n = numa_ranges_run(&s, row, down->stride, (uintptr_t)row, down->stride, down->stride, &node);
        assert_true(n > 0 && node == (r >= part[1].first));
    }
    size_t all = (size_t)down->rows * down->stride, at = 0;
    int changes = 0, node = -1, last = -1;
    for (size_t n; at < all; at += n) {
        n = numa_ranges_run(&s, (const uint8_t *)down->data + at, all - at, 4096 + 64 + at, 256, 1 << 20, &node);
        assert_true(n > 0 && at + n <= all && node >= 0);
        if (at + n < all) assert_true((4096 + 64 + at + n) % 256 == 0);
        /* half a page */
        if (last >= 0 && node != last)
            changes++, assert_true(labs((long)at - (long)((size_t)part[1].first * down->stride)) <= 128);
        last = node;
    }
    assert_int_equal(changes, 1);
    numa_ranges_close(&s);
    nodes.n_nodes = 1;
    assert_int_equal(numa_ranges_open(&s, w, &nodes, &e), 0);
    assert_int_equal(numa_ranges_run(&s, down->data, 5000, 0, 4096, 3000, &node), 3000);
    assert_true(node == -1 && !s.n);
    shape_only_close(&shape);
}

/* Large pages hold rows of several nodes. Few of large experts' rows are then read from another node, but up to half of
 * small experts'; small pages place nearly all. */
static void pages_of_nodes(void **st) {
    static const struct {
        const char *model;
        double least, most; /* share of a layer's experts in 2 MB pages of the other node */
    } rows[] = {{"deepseek-v3", 0, 1.0 / 12}, {"qwen3-30b", 0.2, 0.5}, {"gpt-oss-120b", 1.0 / 12, 0.5}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static struct config c;
        const struct known_model *k = known_model_find(rows[i].model);
        struct shape_only shape = {0};
        struct numa nodes;
        struct numa_ranges s;
        struct error e = {0};
        if (known_model_config(k, &c, &e) || shape_only_open(&shape, &c, DT_BF16, k->experts, &e) ||
            numa_parse(&nodes, "node 1000 0\nnode 1000 1\n", &e) || numa_ranges_open(&s, &shape.w, &nodes, &e))
            fail_msg("%s", e.text);
        const struct expert *x = shape.w.layers[c.n_layers - 1].experts;
        const uint8_t *first = x[0].gate.data;
        const size_t bytes = (size_t)((const uint8_t *)x[c.n_experts - 1].down.data - first);
        const double large = (double)numa_ranges_misplaced(&s, first, bytes, 2 << 20) / (double)bytes,
                     small = (double)numa_ranges_misplaced(&s, first, bytes, 4096) / (double)bytes;
        printf("%s, %zu MB of experts: %.1f %% misplaced in 2 MB pages, %.2f %% in small ones\n", rows[i].model,
               bytes >> 20, 100 * large, 100 * small);
        assert_true(large >= rows[i].least && large <= rows[i].most && small < 0.01);
        numa_ranges_close(&s);
        shape_only_close(&shape);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(cost_of_an_expert_by_placement_on_nodes),
                                       cmocka_unit_test(a_hot_node),
                                       cmocka_unit_test(whole_experts),
                                       cmocka_unit_test(text),
                                       cmocka_unit_test(bytes_of_nodes),
                                       cmocka_unit_test(pages_of_nodes)};
    return cmocka_run_group_tests(tests, setup, NULL);
}

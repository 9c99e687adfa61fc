/* The policy search against cases computed by hand, and against exhaustive search. */
#include "test/unit/unit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/placement/search.h"

static struct cost_machine m;
static struct cost_model q;
static struct policy_machine machine;

static void near(double got, double want, double share) {
    if (!(fabs(got - want) <= share * fabs(want))) fail_msg("%.9g, by hand %.9g", got, want);
}
static void domain(struct cost_domain *d, double memory, double bw, double rate) {
    d->memory = memory;
    for (int k = 0; k < COST_KINDS; k++) {
        d->bw[k] = (struct cost_curve){1, {1}, {(float)bw}};
        d->rate[k][COST_16BIT] = (struct cost_curve){1, {1}, {(float)rate}};
    }
}
/* A processor with 100 GB/s and 1 TFLOP/s, a card with 1,000 and 100, 10 GB/s between them. Ten layers of four experts
 * of 100 MB, two of which a row takes; the half before them 50 MB; 1,000 bytes of keys and values a position, 4,000
 * FLOP a query and key. */
static int setup(void **st) {
    memset(&m, 0, sizeof m);
    m.n_devices = 1, m.n_domains = 2, m.dram_bw = 100e9;
    domain(&m.domain[0], 100e9, 100e9, 1e12);
    domain(&m.domain[1], 10e9, 1e12, 100e12);
    m.domain[1].class = COST_GPU;
    m.domain[1].link[COST_H2D].rate = m.domain[1].link[COST_D2H].rate = 10e9;
    q = (struct cost_model){.layers = 10,
                            .n_experts = 4,
                            .topk = 2,
                            .experts = COST_16BIT,
                            .dense = COST_16BIT,
                            .kv = COST_16BIT,
                            .expert_bytes = 100e6,
                            .expert_flops = 100e6,
                            .attn_block_bytes = 50e6,
                            .attn_block_flops = 50e6,
                            .kv_row_bytes = 1000,
                            .query_bytes = 16e3,
                            .pair_flops = 4000,
                            .row_bytes = 4e3};
    machine = (struct policy_machine){.n_devices = 1,
                                      .n_device_layers = 10,
                                      .prefill_mask = 1 << PREFILL_SLP,
                                      .decode_mask = 1 << DECODE_HYBRID | 1 << DECODE_DUAL};
    return 0;
}
static struct search_in question(void) {
    return (struct search_in){.cost = &m,
                              .model = &q,
                              .machine = &machine,
                              .prompt_tokens = 100,
                              .answer_tokens = 100,
                              .prefill_micro_rows = 16};
}

/* 64 rows in four micro-batches of 16, half way through their answers 151 keys each. A micro-batch: the half is read in
 * 50 us (16 rows compute for 8); all four experts in 400 us (16 rows choose all but 0.00006 of them). Attention beside
 * the keys reads 16 * 151 * 1,000 bytes in 24.16 us. The link brings 400 MB in 40 ms, and 64 results of 16,000 bytes in
 * 102.4 us; 64 queries, keys and values go back, 17,000 bytes each, in 108.8 us; for a quarter of both, 52.8 us, a
 * micro-batch has the card's stream. Host memory gives 9.664 MB of keys, what the link moves, 411.776 MB in all,
 * in 4.11776 ms. Reading: 6,400 rows in 400 micro-batches of 502.8 us: 201.12 ms a layer, where the link takes 40
 * + 10.24. */
static void paged_by_hand(void **st) {
    struct search_in in = question();
    struct search_policy p = {.n_rows = 64, .micro_rows = 16, .placement = SEARCH_PAGED};
    struct search_cost c;
    search_cost(&in, &p, &c);
    assert_true(c.fits);
    near(c.layer_s[SEARCH_BY_CARD], 4 * 502.8e-6, 1e-4);
    near(c.layer_s[SEARCH_BY_CPU], 4 * 24.16e-6, 1e-6);
    near(c.layer_s[SEARCH_BY_LINK], 40.1024e-3, 1e-6);
    near(c.layer_s[SEARCH_BY_ROWS], 108.8e-6, 1e-6);
    near(c.layer_s[SEARCH_BY_MEMORY], 4.11776e-3, 1e-6);
    near(c.layer_s[SEARCH_BY_CHAIN], 24.16e-6 + 502.8e-6, 1e-4);
    assert_int_equal(c.limit, SEARCH_BY_LINK);
    near(c.decode_s, 0.401024, 1e-6);
    near(c.prefill_s, 2.0112, 1e-4);
    near(c.tokens_per_s, 6400 / (2.0112 + 40.1024), 1e-4);
    /* 4.5 GB of weights, 64 * 200 * 10 * 1,000 bytes and the rows of prompts; on the card halves, 6,400 rows of 4,000
     * bytes while prompts are read, 88,000 for each row of a micro-batch, two layers of experts. With all experts
     * there: 4 GB of them, and no weights over the link. */
    near(c.host_bytes, 4.5e9 + 128e6 + 25.6e6, 1e-9);
    near(c.device_bytes, 500e6 + 25.6e6 + 1.408e6 + 800e6, 1e-9);
    p.weight_share = 1;
    search_cost(&in, &p, &c);
    near(c.device_bytes, 500e6 + 25.6e6 + 1.408e6 + 4000e6, 1e-9);
    near(c.layer_s[SEARCH_BY_LINK], 102.4e-6, 1e-6);
    assert_int_equal(c.limit, SEARCH_BY_CARD);
    /* Read in 13 micro-batches of 492 rows, 16 ms a layer; the link brings 400 MB, and 102.4 MB of results in 10.24 ms.
     */
    p.weight_share = 0, in.prefill_micro_rows = 512;
    search_cost(&in, &p, &c);
    near(c.prefill_s, 10 * 50.24e-3, 1e-6);
    near(c.device_bytes, 500e6 + 25.6e6 + 512 * 88e3 + 800e6, 1e-9);
    /* With all experts there: the half five times, for a prompt's 100 rows each in 50 us, and each expert once, in
     * which 246 rows compute for 246 us; all rows' copies take 21.12 ms. */
    p.weight_share = 1;
    search_cost(&in, &p, &c);
    near(c.prefill_s, 10 * (13 * (5 * 50e-6 + 4 * 246.154e-6) + 21.12e-3), 1e-4);
    in.prefill_micro_rows = 16;
    in.max_matrix_rows = 12; /* 16 rows go through attention in two parts, 8 of each expert in one */
    search_cost(&in, &p, &c);
    near(c.layer_s[SEARCH_BY_CARD], 4 * 552.8e-6, 1e-4);
}

/* The same of a model whose sessions have 80 MB of states, and half of whose attention blocks run on the processor. For
 * a micro-batch it moves 3 * 16 * 8 MB a layer in 3.84 ms, and computes half of 16 rows of a block of 50 MFLOP in 0.8
 * ms; the card has the other half of the blocks, and copies of 20,000 and 40,000 bytes a row. */
static void states_and_blocks_by_hand(void **st) {
    const struct search_rows rows = {
        .passed = 12e3, .work = 50e3, .attended = 40e3, .result = 20e3, .states = 80e6, .whole_share = 0.5};
    struct search_in in = question();
    struct search_policy p = {.n_rows = 64, .micro_rows = 16, .placement = SEARCH_PAGED};
    struct search_cost c;
    in.rows = &rows;
    search_cost(&in, &p, &c);
    assert_true(c.fits);
    near(c.layer_s[SEARCH_BY_CPU], 4 * (24.16e-6 + 3.84e-3 + 0.4e-3), 1e-6);
    near(c.layer_s[SEARCH_BY_CARD], 4 * (25e-6 + 400e-6 + 96e-6), 1e-4);
    near(c.layer_s[SEARCH_BY_LINK], 40e-3 + 128e-6, 1e-6);
    near(c.layer_s[SEARCH_BY_ROWS], 256e-6, 1e-6);
    near(c.layer_s[SEARCH_BY_MEMORY], (4 * (2.416e6 + 384e6 + 25e6) + 64 * 60e3 + 400e6) / 100e9, 1e-6);
    near(c.host_bytes, 4.5e9 + 128e6 + 64 * 240e6 + 6400 * 12e3, 1e-9);
    near(c.device_bytes, 500e6 + 6400 * 12e3 + 16 * 50e3 + 800e6, 1e-9);
}

/* Prompts of 400 tokens, a prompt a micro-batch, a layer: for the first 128 the card attends, each to 64.5 keys on
 * average, in 330 us of 330 ns for an operation of 100 TFLOP/s; the processor attends for 272, each to 264.5 keys. */
static void starts_of_prompts_by_hand(void **st) {
    struct search_rows rows = {.passed = 4e3, .work = 88e3, .attended = 17e3, .result = 16e3};
    struct search_in in = question();
    struct search_policy p = {.n_rows = 1, .micro_rows = 1, .placement = SEARCH_PAGED, .weight_share = 1};
    struct search_cost apart, start, all;
    in.prompt_tokens = 400, in.prefill_micro_rows = 400;
    q.pair_flops = 4e6; /* attention is the longest on the processor */
    in.rows = &rows;
    search_cost(&in, &p, &apart);
    near(apart.prefill_s, 10 * 400 * 200.5 * 4e6 / 1e12, 0.01);
    rows.start_rows = 128;
    search_cost(&in, &p, &start);
    near(start.prefill_s, 10 * (272 * 264.5 * 4e6 / 1e12), 0.01);
    rows.start_rows = 512; /* none is left for the processor; the card has also 400 rows of the block and experts */
    search_cost(&in, &p, &all);
    near(all.prefill_s, 10 * (400 * 200.5 * 4e6 / 100e12 + 200e-6 + 4 * 200e-6 + 400 * 1e3 / 10e9), 0.01);
    rows.start_rows = 100; /* short starts stay on the processor */
    search_cost(&in, &p, &start);
    near(start.prefill_s, apart.prefill_s, 1e-9);
}

/* Weights that cross the link once for 8,192 rows of prompts: longer passes where memory and the bound allow them. */
static void prompts_are_read_in_long_passes(void **st) {
    struct search_in in = question();
    struct search_out out, bounded, small;
    in.allowed_mask = 1u << SEARCH_PAGED, in.prompt_tokens = 1000, in.answer_tokens = 10;
    m.domain[1].memory = 3e9, m.domain[1].link[COST_H2D].rate = 1e9;
    search_run(&in, &out);
    assert_true(out.is_found && out.policy.read_rows == SEARCH_PREFILL_ROWS_MOST);
    struct search_policy p = out.policy;
    struct search_cost c;
    p.read_rows = 0;
    search_cost(&in, &p, &c);
    assert_true(c.fits && c.prefill_s > out.cost.prefill_s);
    near(out.cost.host_bytes - c.host_bytes,
         (SEARCH_PREFILL_ROWS_MOST - fmax(SEARCH_PREFILL_ROWS, p.n_rows)) * q.row_bytes, 1e-9);
    in.max_tpot_s = 100;
    search_run(&in, &bounded);
    assert_true(bounded.is_found && !bounded.policy.read_rows);
    in.max_tpot_s = 0, in.n_prompts = 4; /* 4,000 rows in all */
    search_run(&in, &small);
    assert_true(small.is_found && !small.policy.read_rows);
}

/* Eight sessions at once, attention on the card: 50 us and 1.208 us there; they choose 4 * (1 - 2^-8) = 3.984375
 * experts, which the processor reads in 1 ms each. Only what the engine runs is scored: its two decode modes with
 * devices, in batches that the policy cuts, and prompts one after the other. */
static void hybrid_by_hand(void **st) {
    struct search_in in = question();
    struct search_policy p = {.n_rows = 8, .micro_rows = 8, .placement = SEARCH_HYBRID};
    struct search_cost c, with;
    machine.decode_mask = 1 << DECODE_HYBRID;
    search_cost(&in, &p, &c);
    near(c.decode_s, 10 * (3.984375e-3 + 51.208e-6), 0.01); /* and rows to and fro */
    near(c.prefill_s, 8 * cost_prefill(&m, &q, &(struct cost_prefill){.mode = PREFILL_CPU, .n = 100}), 1e-9);
    near(c.tokens_per_s, 800 / (c.prefill_s + 100 * c.decode_s), 1e-9);
    p.placement = SEARCH_CPU;
    search_cost(&in, &p, &with);
    near(with.decode_s, 10 * (3.984375e-3 + 500e-6 + 12.08e-6), 0.01);
    p.placement = SEARCH_HYBRID;
    machine.n_expert_layers = 5; /* half of the experts are on the card: 3.984375 of 0.1 ms each */
    search_cost(&in, &p, &with);
    near(c.decode_s - with.decode_s, 5 * 3.984375 * 0.9e-3, 0.01);
    for (int n = 1; n <= 16; n++) { /* as the policy decides */
        struct policy_machine now = machine;
        struct policy_decode_out out;
        now.cost = &m, now.model = &q, p.n_rows = n;
        policy_decode_batch(
            &now, &(struct policy_decode_in){.n_decoding = n, .max_rows = n, .keys = 151, .context_tokens = 200}, &out);
        search_cost(&in, &p, &c);
        near(c.decode_s, out.tpot_s, 1e-12);
    }
}

/* The same as above on two cards: half of what links take, 4,000 bytes a row more each way (12.8 us of a micro-batch),
 * five layers and their share of the weights on each. A layer is three micro-batches behind the one before it, so a
 * card has its four, 515.6 us each, in the time of six, and the last layer ends one later than three for each layer.
 * With twelve it is six behind, and no card waits. With pages for one layer and a half, half of the weights come when
 * the last of four micro-batches has begun, which leaves one page after the other. */
static void two_cards_by_hand(void **st) {
    struct search_in in = question();
    struct search_policy p = {.n_rows = 64, .micro_rows = 16, .placement = SEARCH_PAGED, .n_devices = 2};
    struct search_cost c;
    m.n_devices = 2;
    search_cost(&in, &p, &c);
    near(c.layer_s[SEARCH_BY_CARD], 3 * 515.6e-6, 1e-4);
    near(c.layer_s[SEARCH_BY_CPU], 4 * 24.16e-6, 1e-6);
    near(c.layer_s[SEARCH_BY_LINK], (40.1024e-3 + 25.6e-6) / 2, 1e-6);
    near(c.layer_s[SEARCH_BY_ROWS], (108.8e-6 + 25.6e-6) / 2, 1e-6);
    near(c.layer_s[SEARCH_BY_MEMORY], 4.11776e-3 + 5.12e-6, 1e-6);
    near(c.decode_s, 10 * 20.064e-3 + 515.6e-6, 1e-5);
    near(c.device_bytes, 250e6 + 25.6e6 + 1.408e6 + 800e6, 1e-9);
    near(c.link_rate, 411.776e6 / 20.064e-3 - 9.664e6 / 20.064e-3 + 0.512e6 / 20.064e-3, 1e-3);
    p.n_rows = 192;
    search_cost(&in, &p, &c);
    near(c.layer_s[SEARCH_BY_CARD], 6 * 515.6e-6, 1e-4);
    assert_int_equal(search_stagger(12, 4), 3);
    assert_int_equal(search_stagger(8, 4), 3);
    assert_int_equal(search_stagger(2, 4), 2);
    assert_int_equal(search_stagger(9, 1), 9);
    p.n_rows = 64;
    m.n_devices = 1, p.n_devices = 1, p.ring_layers = 1.5;
    search_cost(&in, &p, &c);
    near(c.layer_s[SEARCH_BY_LINK], 40.1024e-3, 1e-6);
    near(c.device_bytes, 500e6 + 25.6e6 + 1.408e6 + 600e6, 1e-9);
    p.ring_layers = 1;
    search_cost(&in, &p, &c);
    near(c.layer_s[SEARCH_BY_LINK], 40e-3 + 3 * 502.8e-6, 1e-4);
}

/* A model without experts, whose FFNs of 400 MB are paged as the four experts of a layer are above: the same times. The
 * ring has whole FFNs, whatever share of the layers stays on the card, and one if two do not fit. */
static void dense_by_hand(void **st) {
    struct search_in in = question();
    struct search_policy p = {.n_rows = 64, .micro_rows = 16, .placement = SEARCH_PAGED};
    struct search_cost c;
    q.n_experts = q.topk = 0, q.dense_layers = q.layers, q.ffn_bytes = q.ffn_flops = 400e6;
    search_cost(&in, &p, &c);
    assert_true(c.fits);
    near(c.layer_s[SEARCH_BY_CARD], 4 * 502.8e-6, 1e-4);
    near(c.layer_s[SEARCH_BY_LINK], 40.1024e-3, 1e-6);
    near(c.layer_s[SEARCH_BY_MEMORY], 4.11776e-3, 1e-6);
    near(c.decode_s, 0.401024, 1e-6);
    near(c.host_bytes, 4.5e9 + 128e6 + 25.6e6, 1e-9);
    near(c.device_bytes, 500e6 + 25.6e6 + 1.408e6 + 800e6, 1e-9);
    p.weight_share = 0.5;
    search_cost(&in, &p, &c);
    near(c.layer_s[SEARCH_BY_LINK], 20.1024e-3, 1e-6);
    near(c.device_bytes, 500e6 + 25.6e6 + 1.408e6 + 2000e6 + 800e6, 1e-9);
    p.weight_share = 1;
    search_cost(&in, &p, &c);
    near(c.layer_s[SEARCH_BY_LINK], 102.4e-6, 1e-6);
    near(c.device_bytes, 500e6 + 25.6e6 + 1.408e6 + 4000e6, 1e-9);
    for (int i = 0; i < 3; i++) { /* room for two FFNs; for one and a half; for less than one */
        struct search_out out;
        char why[400];
        in.device_bytes = (double[]){1400e6, 1200e6, 850e6}[i], in.allowed_mask = 1 << SEARCH_PAGED;
        search_run(&in, &out);
        assert_int_equal(out.is_found, i < 2);
        if (out.is_found) near(out.policy.ring_layers, 2 - i, 1e-9);
        search_why(&in, &out, why, sizeof why);
        assert_true(!out.is_found || strstr(why, "FFNs on the card"));
    }
}

/* Latents: a fifth of the attention block's matrices is used on the processor, which reads those 10 MB once for the 16
 * rows of a micro-batch and computes 160 MFLOP in 160 us; attention over 151 keys takes 16 * 151 * 100,000 FLOP, 241.6
 * us. At most 12 rows at a time read the 10 MB twice, in 100 us each. Prompts of 100 tokens expand their keys: a row
 * takes 50.5 keys of 1,000 FLOP and 1.01 expansions of 10 MFLOP, 492.3 rows 4.997 ms. */
static void latents_by_hand(void **st) {
    struct search_in in = question();
    struct search_policy p = {.n_rows = 64, .micro_rows = 16, .placement = SEARCH_PAGED};
    struct search_cost c;
    q.expand_flops = 10e6, q.expanded_pair_flops = 1000, q.pair_flops = 100e3;
    search_cost(&in, &p, &c);
    near(c.layer_s[SEARCH_BY_CPU], 4 * 401.6e-6, 1e-6);
    near(c.layer_s[SEARCH_BY_CARD], 4 * 492.8e-6, 1e-4);
    near(c.layer_s[SEARCH_BY_MEMORY], 4.11776e-3 + 40e6 / 100e9, 1e-6);
    in.max_matrix_rows = 12;
    search_cost(&in, &p, &c);
    near(c.layer_s[SEARCH_BY_CPU], 4 * 441.6e-6, 1e-6);
    in.prefill_micro_rows = 512;
    search_cost(&in, &p, &c);
    near(c.prefill_s, 10 * 13 * 4.99717e-3, 1e-5);
}

static void policies_that_do_not_fit_name_what_they_lack(void **st) {
    struct search_in in = question();
    struct search_policy p = {.n_rows = 64, .micro_rows = 16, .placement = SEARCH_PAGED};
    struct search_cost c;
    in.host_bytes = 4.6e9;
    search_cost(&in, &p, &c);
    assert_true(!c.fits && c.lacks == SEARCH_HOST_MEMORY);
    in.host_bytes = 4.7e9, in.device_bytes = 1.3e9;
    search_cost(&in, &p, &c);
    assert_true(!c.fits && c.lacks == SEARCH_CARD_MEMORY);
    in.device_bytes = 1.4e9, in.n_prompts = 60;
    search_cost(&in, &p, &c);
    assert_true(!c.fits && c.lacks == SEARCH_PROMPTS);
    in.n_prompts = 64, in.max_rows[SEARCH_PAGED] = 63;
    search_cost(&in, &p, &c);
    assert_true(!c.fits && c.lacks == SEARCH_ROWS);
    in.max_rows[SEARCH_PAGED] = 64;
    search_cost(&in, &p, &c);
    assert_true(c.fits);
}

/* The best point of the grid, with every fraction of weights tried. */
static double brute(const struct search_in *in, int *tried) {
    int rings = 0;
    while (search_grid_ring(rings)) rings++;
    const int ways = rings * in->cost->n_devices; /* pages, and cards */
    const unsigned allowed = in->allowed_mask ? in->allowed_mask : ~0u;
    double best = 0;
    struct search_cost c;
    *tried = 0;
    for (int place = SEARCH_CPU; place <= SEARCH_HYBRID && (place != SEARCH_HYBRID || in->machine->n_device_layers);
         place++)
        for (int n = 1; n <= SEARCH_SESSIONS && allowed >> place & 1; n++) {
            search_cost(
                in, &(struct search_policy){.n_rows = n, .micro_rows = n, .placement = (enum search_placement)place},
                &c);
            ++*tried;
            if (c.fits && c.tokens_per_s > best) best = c.tokens_per_s;
        }
    for (int i = 0; search_grid_micro_rows(i) && allowed >> SEARCH_PAGED & 1; i++)
        for (int k = 0; search_grid_micro_batches(k); k++)
            for (int at = 0; at < (SEARCH_SHARES + 1) * ways; at++) {
                const int w = at / ways, ring = at % ways % rings, cards = at % ways / rings + 1;
                /* same as the previous one */
                if (in->n_prompts && i && search_grid_micro_rows(i - 1) >= in->n_prompts) continue;
                struct search_policy p = {.n_rows = search_grid_micro_rows(i) * search_grid_micro_batches(k),
                                          .micro_rows = search_grid_micro_rows(i),
                                          .placement = SEARCH_PAGED,
                                          .n_devices = cards,
                                          .ring_layers = search_grid_ring(ring),
                                          .weight_share = (double)w / SEARCH_SHARES};
                if (in->n_prompts && p.n_rows > in->n_prompts) p.n_rows = in->n_prompts;
                struct search_policy more = p;
                c.fits = true;
                more.ring_layers = search_grid_ring(ring ? ring - 1 : 0), more.weight_share = 0;
                if (ring) search_cost(in, &more, &c);
                /* fewer pages only where more do not fit */
                if (ring && (c.fits || c.lacks != SEARCH_CARD_MEMORY || w)) continue;
                search_cost(in, &p, &c);
                ++*tried;
                if (c.fits && c.tokens_per_s > best) best = c.tokens_per_s;
            }
    return best;
}

/* Between two sizes of the grid; one more row in each micro-batch would not fit. */
static bool fills(const struct search_in *in, const struct search_policy *found) {
    struct search_policy more = *found;
    struct search_cost c;
    for (int i = 0; search_grid_micro_rows(i); i++)
        if (found->micro_rows == search_grid_micro_rows(i)) return false;
    more.n_rows += more.n_rows / more.micro_rows, more.micro_rows++, more.weight_share = 0, more.ring_layers = 1;
    search_cost(in, &more, &c);
    return !c.fits;
}

static void search_equals_a_full_enumeration(void **st) {
    static const struct {
        double host, device, link, dram;
        int prompts, few;
        unsigned can;
        enum search_placement place;
        enum search_bound bound;
        int cards;
    } cases[] = {
        /* everything fits, and the CPU computes attention in parallel */
        {100e9, 10e9, 10e9, 100e9, 0, 0, 7, SEARCH_PAGED, SEARCH_NO_GAIN},
        /* the last expert matters */
        {100e9, 10e9, 0.1e9, 100e9, 64, 0, 1 << SEARCH_PAGED, SEARCH_PAGED, SEARCH_PROMPTS},
        {100e9, 2e9, 10e9, 100e9, 0, 24, 1 << SEARCH_PAGED | 1 << SEARCH_HYBRID | 1, SEARCH_PAGED, SEARCH_NO_GAIN},
        {5e9, 2e9, 10e9, 100e9, 0, 24, 7, SEARCH_PAGED, SEARCH_HOST_MEMORY},
        /* too few rows for uploading weights */
        {100e9, 2e9, 10e9, 100e9, 40, 24, 7, SEARCH_HYBRID, SEARCH_ROWS},
        /* a very slow link; two of eight would wait for their turn */
        {100e9, 2e9, 0.1e9, 400e9, 8, 24, 7, SEARCH_HYBRID, SEARCH_NO_GAIN},
        {100e9, 0.3e9, 10e9, 100e9, 0, 24, 7, SEARCH_CPU, SEARCH_ROWS},          /* no layer fits the card */
        {100e9, 1.2e9, 1e9, 100e9, 0, 24, 7, SEARCH_PAGED, SEARCH_NO_GAIN, 2},   /* layers alternating over two cards */
        {100e9, 1.0e9, 10e9, 100e9, 0, 24, 7, SEARCH_PAGED, SEARCH_CARD_MEMORY}, /* pages for one layer only */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct search_in in = question();
        struct search_out out;
        int tried;
        in.n_prompts = cases[i].prompts, in.max_matrix_rows = cases[i].few, in.allowed_mask = cases[i].can;
        in.host_bytes = cases[i].host, in.device_bytes = cases[i].device;
        in.max_tpot_s = 1e6; /* no longer passes for prompts, which are tried for the best policy only */
        m.domain[1].link[COST_H2D].rate = m.domain[1].link[COST_D2H].rate = cases[i].link, m.dram_bw = cases[i].dram;
        m.domain[0].bw[COST_FFN].value[0] = (float)cases[i].dram;
        m.n_devices = cases[i].cards > 0 ? cases[i].cards : 1;
        if (cases[i].place == SEARCH_CPU) machine.n_device_layers = 0;
        search_run(&in, &out);
        char why[400];
        search_why(&in, &out, why, sizeof why);
        double best = brute(&in, &tried);
        if (!out.is_found || !(out.cost.tokens_per_s >= best * (1 - 1e-12)) ||
            (out.cost.tokens_per_s > best * (1 + 1e-12) && !fills(&in, &out.policy)) || out.n_tried > 30000 ||
            out.n_tried > tried)
            fail_msg("case %zu: %.9g of %.9g tok/s, %d tried of %d; %s", i, out.cost.tokens_per_s, best, out.n_tried,
                     tried, why);
        if (out.policy.placement != cases[i].place || out.bound != cases[i].bound) fail_msg("case %zu: %s", i, why);
        if (cases[i].cards && (out.policy.n_devices != cases[i].cards || !strstr(why, "alternate over 2")))
            fail_msg("case %zu: %s", i, why);
        for (int k = 0; k < SEARCH_PLACEMENTS; k++)
            assert_true(out.best_tokens_per_s[k] <= out.cost.tokens_per_s &&
                        (!in.allowed_mask || in.allowed_mask >> k & 1 || !out.best_tokens_per_s[k]));
        assert_non_null(strstr(why, (const char *[]){"cpu", "hybrid", "paged"}[out.policy.placement]));
        assert_non_null(strstr(why, search_bound_name(out.bound)));
        assert_true(out.policy.placement != SEARCH_PAGED || strstr(why, search_limit_name(out.cost.limit)));
        setup(NULL);
    }
    struct search_in in = question();
    struct search_out out;
    in.host_bytes = 1e9; /* too little even for the weights */
    search_run(&in, &out);
    assert_false(out.is_found);
}

/* Fewer rows at once where a batch of more would be longer than the bound; where none is shorter, the shortest. */
static void a_bound_on_time_per_token(void **st) {
    struct search_out free, out;
    char why[400];
    struct search_in in = question();
    search_run(&in, &free);
    assert_true(free.is_found && !free.misses_tpot && free.policy.placement == SEARCH_PAGED);
    in.max_tpot_s = 2 * free.cost.decode_s;
    search_run(&in, &out);
    assert_memory_equal(&out.policy, &free.policy, sizeof out.policy);
    double last = 0;
    for (double share = 0.05; share < 1; share *= 1.3) {
        int tried;
        in.max_tpot_s = share * free.cost.decode_s;
        search_run(&in, &out);
        const double best = brute(&in, &tried);
        assert_true(out.is_found && !out.misses_tpot && out.cost.decode_s <= in.max_tpot_s);
        assert_true(out.cost.tokens_per_s >= best * (1 - 1e-12) && out.cost.tokens_per_s >= 0.995 * last &&
                    out.policy.n_rows < free.policy.n_rows);
        last = out.cost.tokens_per_s;
    }
    search_why(&in, &out, why, sizeof why);
    assert_null(strstr(why, "max-tpot"));
    in.max_tpot_s = 1e-4;
    search_run(&in, &out);
    assert_true(out.is_found && out.misses_tpot && out.policy.n_rows == 1);
    search_why(&in, &out, why, sizeof why);
    assert_non_null(strstr(why, "the least time per token, above the limit of 0.1 ms (--max-tpot);"));
    in.allowed_mask = 1 << SEARCH_PAGED;
    const double least = out.cost.decode_s;
    search_run(&in, &out);
    assert_true(out.misses_tpot && out.policy.placement == SEARCH_PAGED && out.policy.n_rows < 16 &&
                out.cost.decode_s >= least);
}

/* Paper B's machine: attention beside the keys and experts on the card win on a T4 (its section 4.2), and more memory
 * on the card helps. */
static void paper_b_machine_prefers_paged_placement(void **st) {
    struct search_out out[2];
    struct cost_machine t4;
    assert_true(cost_preset(&t4, "paper-b-t4"));
    q = (struct cost_model){.layers = 32,
                            .n_experts = 8,
                            .topk = 2,
                            .experts = COST_16BIT,
                            .dense = COST_16BIT,
                            .kv = COST_16BIT,
                            .expert_bytes = 352321536,
                            .expert_flops = 352321536,
                            .attn_block_bytes = 83951616,
                            .attn_block_flops = 83951616,
                            .head_bytes = 262144000,
                            .head_flops = 262144000,
                            .kv_row_bytes = 4096,
                            .query_bytes = 16384,
                            .pair_flops = 16384,
                            .row_bytes = 16384,
                            .n_linear_ops = 5};
    struct search_in in = {.cost = &t4, .model = &q, .prompt_tokens = 77, .answer_tokens = 128};
    search_run(&in, &out[0]);
    assert_int_equal(out[0].policy.placement, SEARCH_PAGED);
    t4.domain[1].memory *= 2;
    search_run(&in, &out[1]);
    assert_true(out[1].policy.weight_share > out[0].policy.weight_share &&
                out[1].cost.tokens_per_s > out[0].cost.tokens_per_s);
    /* below the turning point uploading weights does not pay */
    in.n_prompts = 2, in.allowed_mask = 1 << SEARCH_PAGED | 1 << SEARCH_CPU;
    search_run(&in, &out[0]);
    assert_int_equal(out[0].policy.placement, SEARCH_CPU);
    assert_int_equal(out[0].bound, SEARCH_PROMPTS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(paged_by_hand, setup),
        cmocka_unit_test_setup(states_and_blocks_by_hand, setup),
        cmocka_unit_test_setup(starts_of_prompts_by_hand, setup),
        cmocka_unit_test_setup(prompts_are_read_in_long_passes, setup),
        cmocka_unit_test_setup(hybrid_by_hand, setup),
        cmocka_unit_test_setup(two_cards_by_hand, setup),
        cmocka_unit_test_setup(dense_by_hand, setup),
        cmocka_unit_test_setup(latents_by_hand, setup),
        cmocka_unit_test_setup(policies_that_do_not_fit_name_what_they_lack, setup),
        cmocka_unit_test_setup(search_equals_a_full_enumeration, setup),
        cmocka_unit_test_setup(paper_b_machine_prefers_paged_placement, setup),
        cmocka_unit_test_setup(a_bound_on_time_per_token, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

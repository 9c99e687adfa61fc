/* The cost model against cases computed by hand. Each comment is the calculation; tolerances cover its rounding. */
#include "test/unit/unit.h"

#include <math.h>
#include <stdio.h>

#include "engine/placement/cost.h"

static struct cost_machine m;
static struct cost_model v3, mixtral;
static struct config config;

static void near(double got, double want, double share) {
    if (!(fabs(got - want) <= share * fabs(want))) fail_msg("%.9g, by hand %.9g", got, want);
}

static int setup(void **st) {
    config = (struct config){.vocab = 129280,
                             .hidden = 7168,
                             .n_layers = 61,
                             .attn = ATTN_MLA,
                             .n_heads = 128,
                             .n_kv_heads = 1,
                             .head_dim = 192,
                             .v_dim = 128,
                             .q_lora = 1536,
                             .kv_lora = 512,
                             .qk_nope = 128,
                             .qk_rope = 64,
                             .dense_inter = 18432,
                             .n_experts = 256,
                             .topk = 8,
                             .moe_inter = 2048,
                             .shared_inter = 2048,
                             .block_rows = 128,
                             .block_cols = 128};
    for (int i = 3; i < 61; i++) config.layer[i].moe = true;
    cost_model_of(&v3, &config, DT_E4M3, DT_E4M3, DT_BF16);
    struct config c = {.vocab = 32000,
                       .hidden = 4096,
                       .n_layers = 32,
                       .n_heads = 32,
                       .n_kv_heads = 8,
                       .head_dim = 128,
                       .v_dim = 128,
                       .n_experts = 8,
                       .topk = 2,
                       .moe_inter = 14336};
    for (int i = 0; i < 32; i++) c.layer[i].moe = true;
    cost_model_of(&mixtral, &c, DT_BF16, DT_BF16, DT_BF16);
    return 0;
}

/* An expert of DeepSeek-V3: 3 * 2048 * 7168 = 44,040,192 bytes and a float32 for each 128 x 128 of them, 10,752 bytes.
 * An attention block: q_a 11,010,048, q_b 37,748,736, kv_a 4,128,768, kv_b 16,777,216, o 117,440,512: 187,105,280,
 * 45,680 of scales, the router in 16 bits 3,670,016. A cached position: 576 numbers of two bytes. Mixtral: 3 * 4096 *
 * 14336 * 2, q and o 4096 * 4096, k and v 4096 * 1024, router 4096 * 8. */
static void bytes_and_flops_of_known_models(void **st) {
    near(v3.expert_bytes, 44050944, 1e-12);
    near(v3.expert_flops, 88080384, 1e-12);
    near(v3.attn_block_bytes, 187105280 + 45680 + 3670016, 1e-12);
    near(v3.kv_row_bytes, 1152, 1e-12);
    near(v3.pair_flops, 2.0 * 128 * (576 + 512), 1e-12);
    near(v3.expanded_pair_flops, 2.0 * 128 * (192 + 128), 1e-12);
    assert_int_equal(v3.dense_layers, 3);
    near(58.0 * 256 * v3.expert_bytes, 654.1e9, 1e-3); /* what a prompt uploads */
    near(mixtral.expert_bytes, 352321536, 1e-12);
    near(mixtral.attn_block_bytes, 2.0 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 8), 1e-12);
    near(mixtral.kv_row_bytes, 2 * 8 * 128 * 2, 1e-12);
    assert_int_equal(mixtral.experts, COST_16BIT);
    struct cost_model f32;
    cost_model_of(&f32, &config, DT_F32, DT_E2M1, DT_E4M3);
    assert_int_equal(f32.dense, COST_F32);
    assert_int_equal(f32.experts, COST_4BIT);
    near(f32.kv_row_bytes, 576 + 4, 1e-12); /* one float32 per position with E4M3 */
}

/* A curve is straight where both scales are logarithmic: 10 at 1 row and 1000 at 100 give 100 at 10; flat outside. A
 * piece: two calls of 1 ms and the longer of 1e9 bytes at 100 GB/s (10 ms) and 3e9 FLOP at 1 TFLOP/s (3 ms); with 30e9
 * FLOP 30 ms. */
static void roofline(void **st) {
    memset(&m, 0, sizeof m);
    struct cost_curve c = {2, {1, 100}, {10, 1000}};
    near(cost_at(&c, 10), 100, 1e-6);
    near(cost_at(&c, 0.5), 10, 1e-6);
    near(cost_at(&c, 1e6), 1000, 1e-6);
    assert_true(isinf(cost_at(&(struct cost_curve){0}, 5)));
    struct cost_domain *d = &m.domain[0];
    m.n_domains = 1;
    d->bw[COST_LINEAR] = (struct cost_curve){1, {1}, {100e9f}};
    d->rate[COST_LINEAR][COST_8BIT] = (struct cost_curve){1, {1}, {1e12f}};
    d->latency[COST_LINEAR] = 1e-3;
    near(cost_time(&m, 0, &(struct cost_item){COST_LINEAR, COST_8BIT, 4, 1e9, 3e9, 2}), 12e-3, 1e-6);
    near(cost_time(&m, 0, &(struct cost_item){COST_LINEAR, COST_8BIT, 4, 1e9, 30e9, 2}), 32e-3, 1e-6);
    /* missing: uses the next wider format's */
    near(cost_time(&m, 0, &(struct cost_item){COST_LINEAR, COST_4BIT, 4, 1e9, 30e9, 0}), 30e-3, 1e-6);
    /* or any format's */
    near(cost_time(&m, 0, &(struct cost_item){COST_LINEAR, COST_F32, 4, 1e9, 30e9, 0}), 30e-3, 1e-6);
    /* nothing known: no limit */
    near(cost_time(&m, 0, &(struct cost_item){COST_FFN, COST_8BIT, 4, 1e9, 30e9, 0}) + 1, 1, 1e-12);
    assert_true(isinf(cost_transfer(&m, 0, COST_H2D, 1)));
    d->link[COST_H2D].rate = 50e9, d->link[COST_H2D].latency = 1e-5;
    near(cost_transfer(&m, 0, COST_H2D, 5e6), 1.1e-4, 1e-9);
}

/* Starts of an attention block's operations: a device joins those of few rows. Mixtral has rows of 4,096 numbers: four
 * are 16,384. The rotary parts of V3's queries have 128 * 64. */
static void joined(void **st) {
    static struct cost_machine card;
    cost_preset(&card, "paper-a-1");
    card.is_deterministic = true;
    for (int rows = 1; rows <= 32; rows++)
        for (int device = 0; device < 2; device++)
            for (int k = 0; k < 2; k++) {
                const struct cost_model *q = k ? &v3 : &mixtral;
                struct cost_domain *d = &card.domain[device];
                struct cost_rows r = cost_decode_rows(rows, 100);
                double t[2];
                const bool one_session = rows % 2;
                if (one_session) r.sessions = 1;
                for (int i = 0; i < 2; i++) {
                    d->latency[COST_LINEAR] = 1e3 * i, d->latency[COST_ELEM] = 1e6 * i, d->latency[COST_ATTENTION] = 0;
                    t[i] = cost_attention_block(&card, device, q, r);
                }
                const int products = device && rows <= 24 ? (k ? 6 : 3)
                                     : k                  ? 7
                                                          : 5,
                          small = device && rows <= (k ? 2 : 4) ? (k ? 5 : 4)
                                  : k                           ? 9
                                                                : 7,
                          /* each session stores its rows, and V3's products with kv_b are its own */
                    more = one_session ? 0 : rows - 1;
                near(t[1] - t[0], (products + (k ? 2 * more : 0)) * 1e3 + (small + more) * 1e6, 1e-9);
            }
}

/* 8 of 256 experts a row: 1 row 8; 2 rows 256 * (1 - (31/32)^2) = 15.75; 6 rows 256 * (1 - 0.826530) = 44.41; many all.
 * Skewed, with 4 experts, 1 of them a row, as 1/1, 1/2, 1/3, 1/4 of 25/12: p = 0.48, 0.24, 0.16, 0.12. Two rows: the
 * sum of 1 - (1-p)^2 = 0.7296 + 0.4224 + 0.2944 + 0.2256 = 1.672, against 1.75 without. Two of three a row as 1, 1/4,
 * 1/9: the first is sure to come, the others share one choice as 9 : 4. One row still finds two. */
static void distinct_experts_of_several_rows(void **st) {
    near(cost_distinct(&v3, 1), 8, 1e-9);
    near(cost_distinct(&v3, 2), 15.75, 1e-9);
    near(cost_distinct(&v3, 6), 44.41, 1e-3);
    near(cost_distinct(&v3, 1e5), 256, 1e-9);
    assert_true(cost_distinct(&v3, 0) == 0);
    struct cost_model q = {.n_experts = 4, .topk = 1};
    near(cost_distinct(&q, 2), 1.75, 1e-9);
    q.skew = 1;
    near(cost_distinct(&q, 2), 1.672, 1e-6);
    q = (struct cost_model){.n_experts = 3, .topk = 2, .skew = 2};
    near(cost_distinct(&q, 1), 2, 1e-9);
    near(cost_distinct(&q, 2), 1 + (1 - 16.0 / 169) + (1 - 81.0 / 169), 1e-9); /* p = 1, 9/13, 4/13 */
    q = (struct cost_model){.n_experts = 4, .topk = 4, .skew = 3};
    near(cost_distinct(&q, 1), 4, 1e-9);
}

/* Paper A. Experts of a token: 58 * 8 * 44.05 MB = 20.44 GB, at the GEMV's 947 GB/s 21.58 ms, at the memory's 1228
 * GB/s 16.64 ms. Attention blocks of the 5090 at 1.52 TB/s: 61 * 190.82 MB = 7.66 ms, dense FFNs 3 * 396.5 MB 0.78 ms,
 * head 1.853 GB 1.22 ms. The shared experts run beside the routed ones. 31.2 ms and 26.3 ms: the floor of 26 to 31.
 * With latencies and hand-offs of 15 us each way less than the paper's 46.5. */
static void decode_floor(void **st) {
    assert_true(cost_preset(&m, "paper-a-1"));
    struct cost_decode one = {.mode = DECODE_HYBRID, .rows = 1, .n_device_layers = 61};
    double real = cost_decode(&m, &v3, &one);
    for (int d = 0; d < 2; d++) memset(m.domain[d].latency, 0, sizeof m.domain[d].latency);
    m.hand_off_s = 0;
    double floor947 = cost_decode(&m, &v3, &one);
    near(floor947, 31.24e-3, 5e-3);
    m.domain[0].bw[COST_FFN].value[0] = 1228e9f;
    near(cost_decode(&m, &v3, &one), 26.30e-3, 5e-3);
    printf("decode of DeepSeek-V3 on paper A's machine: floor %.1f ms, with latencies %.1f ms\n", floor947 * 1e3,
           real * 1e3);
    assert_true(real > floor947 && real < 39.5e-3);
    /* Two sessions in one batch of 15.75 experts a layer; dual: the maximum of both micro-batches' attention on the
     * device and both micro-batches' experts on the CPU (2 * 8 experts, as each micro-batch reads its own), or one
     * micro-batch's attention and then its experts. At 947 GB/s: experts 2 * 372.1 us = 744 us a layer, attention
     * (125.5 + 29 of the shared) * 2 = 309 us, chain 125.5 + 372.1 = 498 us. So 58 * 744.2 us, 3 layers of 2 * 386.4
     * us, 2 heads. */
    m.domain[0].bw[COST_FFN].value[0] = 947e9f;
    struct cost_decode two = {.mode = DECODE_DUAL, .rows = 2, .n_device_layers = 61, .first_rows = 1};
    near(cost_decode(&m, &v3, &two), 58 * 744.2e-6 + 3 * 2 * 386.4e-6 + 2 * 1.219e-3, 5e-3);
    two.mode = DECODE_HYBRID;
    /* kv_b twice: 16.8 MB */
    near(cost_decode(&m, &v3, &two), 58 * (125.5e-6 + 15.75 * 46.52e-6) + 3 * 386.4e-6 + 61 * 11e-6 + 1.219e-3, 5e-3);
    assert_int_equal(
        cost_best_cut(&m, &v3, &(struct cost_decode){.mode = DECODE_DUAL, .rows = 2, .n_device_layers = 61}), 1);
    /* Where attention takes as long as the experts, an even split is best: 4 rows, 2 + 2. */
    struct cost_model even = {.layers = 10,
                              .n_experts = 1000000,
                              .topk = 1,
                              .experts = COST_8BIT,
                              .dense = COST_8BIT,
                              .expert_bytes = 947e6,
                              .attn_block_bytes = 1.52e6,
                              .attn_block_flops = 335e9};
    assert_int_equal(
        cost_best_cut(&m, &even, &(struct cost_decode){.mode = DECODE_DUAL, .rows = 4, .n_device_layers = 10}), 2);
    /* Layers that do not fit stay on the CPU; with none on the device it is a CPU batch. */
    one.n_device_layers = 0;
    struct cost_decode cpu = {.mode = DECODE_CPU, .rows = 1, .n_device_layers = 61};
    near(cost_decode(&m, &v3, &one), cost_decode(&m, &v3, &cpu), 1e-9);
    one.n_device_layers = 30;
    double half = cost_decode(&m, &v3, &one);
    assert_true(half < cost_decode(&m, &v3, &cpu) && half > floor947);
    assert_int_equal(cost_layers_fit(&v3,
                                     3 * (v3.attn_block_bytes + v3.ffn_bytes + 100 * 1152) +
                                         2.5 * (v3.attn_block_bytes + v3.shared_bytes + 100 * 1152),
                                     100),
                     5);
    assert_int_equal(cost_layers_fit(&v3, 1e12, 100), 61);
    assert_int_equal(cost_layers_fit(&v3, 1e6, 100), 0);
}

/* 30 of 60 layers read another layer's rows. Five layers with a million positions fit where all would need twice the
 * memory for them. */
static void rows_of_other_layers(void **st) {
    struct config sharing = config;
    struct cost_model q;
    sharing.n_layers = 60;
    for (int i = 0; i < 60; i += 2) sharing.layer[i + 1].passes_kv = KV_TAKEN, sharing.layer[i + 1].kv_source = i;
    cost_model_of(&q, &sharing, DT_E4M3, DT_E4M3, DT_BF16);
    near(q.kv_row_bytes, 1152, 1e-12);
    const double bytes = 5 * q.attn_block_bytes + 3 * q.ffn_bytes + 2 * q.shared_bytes + 5.1 * 1e6 * 576;
    assert_int_equal(cost_layers_fit(&q, bytes, 1e6), 5);
    assert_true(cost_layers_fit(&v3, bytes, 1e6) < 5);
}

/* Beside a prefill that streams 57 GB/s, host memory has 1228 - 57 = 1171 GB/s left, and the GEMV, which reaches 947 of
 * 1228, 903 of it: the 21.58 ms of experts become 22.63. With 60 in all: an eighth, at the least. */
static void beside_a_stream(void **st) {
    assert_true(cost_preset(&m, "paper-a-2"));
    struct cost_decode s = {.mode = DECODE_HYBRID, .rows = 1, .n_device_layers = 61};
    double alone = cost_decode(&m, &v3, &s);
    s.beside_prefill = true;
    near(cost_decode(&m, &v3, &s) - alone, 20.44e9 / 903e9 - 20.44e9 / 947e9, 1e-2);
    m.dram_bw = 60e9;
    near(cost_decode(&m, &v3, &s) - alone, 7 * 20.44e9 / 947e9, 1e-2);
}

/* The stream: 654.1 GB of experts at 57 GB/s, 11.48 s. With the other weights, 61 * 190.8 MB + 58 * 44.05 MB + 3 *
 * 396.5 MB = 15.4 GB more, 11.75 s; to two devices half of the experts each. A prompt that computes longer than that:
 * 32K. The CPU's crossing is between the paper's 2K and 4K; what both do together is sooner than either, at most
 * twice. */
static void prefills(void **st) {
    assert_true(cost_preset(&m, "paper-a-2"));
    struct cost_prefill p = {.mode = PREFILL_SLP, .n = 4096, .ranks = 2, .n_dense_layers = 61};
    near(cost_prefill(&m, &v3, &p), 11.476, 2e-3);
    p.n_expert_layers = 29; /* half of the experts are resident */
    near(cost_prefill(&m, &v3, &p), 11.476 / 2, 1e-2);
    p.n_dense_layers = p.n_expert_layers = 0;
    near(cost_prefill(&m, &v3, &p), 11.746, 2e-3);
    p.mode = PREFILL_DSLP;
    near(cost_prefill(&m, &v3, &p), 5.738 + 0.270 + 58 * 4096.0 * 7168 * 4 / 2 / 57e9, 5e-3);
    p.n = 32768, p.mode = PREFILL_SLP; /* as in virtual time, with BF16 products (test/bench/prefill.md) */
    near(cost_prefill(&m, &v3, &p), 35.3, 0.08);
    p.mode = PREFILL_DSLP;
    near(cost_prefill(&m, &v3, &p), 18.5, 0.10);
    p.mode = PREFILL_SLP, p.n = 1, p.n_dense_layers = 61; /* one row uploads what it chose: 8 experts per layer */
    near(cost_prefill(&m, &v3, &p), 58 * 8 * 44.05e6 / 57e9, 0.02);
    int cross = 0;
    for (int n = 256; n <= 8192; n += 256) {
        double t[EXEC_MODES];
        p = (struct cost_prefill){.n = n};
        for (int how = PREFILL_CPU; how <= PREFILL_SLP; how++)
            p.mode = (enum exec_mode)how, t[how] = cost_prefill(&m, &v3, &p);
        if (!cross && t[PREFILL_CPU] > t[PREFILL_SLP]) cross = n;
        double least = t[PREFILL_CPU] < t[PREFILL_SLP] ? t[PREFILL_CPU] : t[PREFILL_SLP];
        assert_true(t[PREFILL_BLEND] < least * 1.03);
        if (n <= 2048) assert_true(t[PREFILL_BLEND] > least / 4); /* its attention is on the device as well */
    }
    printf("CPU prefill and streaming take equally long at %d tokens\n", cross);
    assert_true(cross >= 2048 && cross <= 4096);
    p = (struct cost_prefill){.mode = PREFILL_DSLP, .n = 4096, .ranks = 3};
    assert_true(isinf(cost_prefill(&m, &v3, &p)));
    m.n_devices = 0;
    p.mode = PREFILL_BLEND;
    assert_true(isinf(cost_prefill(&m, &v3, &p)));
}

/* The blend by hand: 1 layer, 10 experts that are all chosen, 1 ms over the link, 1 ms on the CPU, nothing on the
 * device. Attention: 1 ms on the CPU. x experts are uploaded in x ms; the CPU does 10 - x after attention: 1 + 10 - x.
 * x = 5.5 would balance; x = 5: 6 ms, x = 6: 6 ms. */
static void blend(void **st) {
    memset(&m, 0, sizeof m);
    m.n_domains = 2, m.n_devices = 1;
    m.domain[1].class = COST_GPU;
    m.domain[0].bw[COST_FFN] = (struct cost_curve){1, {1}, {1e9f}};
    m.domain[1].bw[COST_LINEAR] = (struct cost_curve){1, {1}, {1e9f}};
    m.domain[1].link[COST_H2D].rate = 1e9, m.domain[1].link[COST_D2H].rate = 1e9;
    struct cost_model q = {
        .layers = 1, .n_experts = 10, .topk = 1, .expert_bytes = 1e6, .expert_flops = 0, .attn_block_bytes = 1e6};
    struct cost_prefill p = {.mode = PREFILL_BLEND, .n = 1000, .is_resident = true};
    near(cost_prefill(&m, &q, &p), 6e-3, 1e-6);
    /* two batches of 4,096 rows at most: the first one's attention takes 4.096 ms, and twice its work waits for the
     * experts */
    p.n = 4096 + 1000;
    double both = cost_prefill(&m, &q, &p);
    p.n = 4096;
    double first = cost_prefill(&m, &q, &p);
    near(both, first + 6e-3, 1e-6);
    p.n = 1000;
    /* Over two links: seven experts, four and three of them, and three on the CPU. */
    m.n_devices = 2, m.n_domains = 3;
    m.domain[2] = m.domain[1];
    p.ranks = 2;
    near(cost_prefill(&m, &q, &p), 4e-3, 1e-6);
    /* a millisecond for 1,000 rows each way: the CPU's part is copied down and up, the other device's once more */
    q.row_bytes = 1000;
    near(cost_prefill(&m, &q, &p), 5e-3, 1e-6);
    p.ranks = 3; /* there are two */
    assert_true(isinf(cost_prefill(&m, &q, &p)));
    q.row_bytes = 0, p.ranks = 0, m.n_devices = 1, m.n_domains = 2;
    p.mode = PREFILL_SLP, p.n_dense_layers = 1;
    near(cost_prefill(&m, &q, &p), 10e-3, 1e-6);
    /* Two devices that compute a millisecond per expert: five each, besides half of the uploads. */
    m.n_devices = 2, m.n_domains = 3;
    m.domain[1].bw[COST_FFN] = (struct cost_curve){1, {1}, {1e9f}};
    m.domain[1].link[COST_H2D].rate = 4e9;
    m.domain[2] = m.domain[1];
    q.attn_block_bytes = 0;
    near(cost_prefill(&m, &q, &p), 10e-3, 1e-6);
    p.mode = PREFILL_DSLP, p.ranks = 2;
    near(cost_prefill(&m, &q, &p), 5e-3, 1e-6);
}

/* Paper B's points for an expert of Mixtral in 16 bits, 1 byte of weights to 1 FLOP a row (so intensity I is the rows).
 * L4 box: host 100 GB/s and 1.6 TFLOP/s, link 32 GB/s, device 300 GB/s and 121 TFLOP/s. Eq. 9: P1 where the link's roof
 * reaches the CPU's best, min(1.6e12, 100e9 I) = 32e9 I: at I = 1.6e12 / 32e9 = 50: there, or with one row more,
 * fetching begins to pay. Eq. 10: P2 where it reaches the device's, min(121e12, 300e9 I') = 32e9 I; all rows in one
 * pass: I = 121e12 / 32e9 = 3781.25. With a micro-batch of 128 rows the device gives 300e9 * 128 = 38.4 TFLOP/s,
 * balance (eq. 11) at I = 300 * 128 / 32 = 1200: the same from the other side. T4: link 16 GB/s, 65 TFLOP/s: 100 and
 * 4062.5. */
static void paper_b(void **st) {
    assert_true(cost_preset(&m, "paper-b-l4"));
    near(mixtral.expert_flops / mixtral.expert_bytes, 1, 1e-12);
    near(cost_fetch_break_even(&m, 1, &mixtral), 50.5, 0.01);
    assert_int_equal((int)cost_compute_bound_rows(&m, 1, &mixtral), 3782);
    double each = cost_expert(&m, 1, &mixtral, 128, COST_MANY_ROWS),
           move = cost_transfer(&m, 1, COST_H2D, mixtral.expert_bytes);
    near(move / each * 128, 300.0 * 128 / 32, 1e-6);
    assert_true(cost_preset(&m, "paper-b-t4"));
    near(cost_fetch_break_even(&m, 1, &mixtral), 100.5, 0.005);
    assert_int_equal((int)cost_compute_bound_rows(&m, 1, &mixtral), 4063);
    /* Attention of decode: 4 queries share a key and value: 4 * 4 * 128 FLOP over 512 bytes, I = 4 < P1: stay with the
     * cache. */
    struct cost_rows r = cost_decode_rows(1, 511);
    near(r.pairs * mixtral.pair_flops / (r.keys * mixtral.kv_row_bytes), 4, 1e-9);
    m.domain[1].link[COST_H2D].rate = 0;
    assert_int_equal((int)cost_fetch_break_even(&m, 1, &mixtral), COST_NEVER_ROWS);
}

/* Paper C, equations 1 to 4 with its table 1. An expert of 3 * 5120 * 1536 in 16 bits (DeepSeek-V2) is 47.19 MB: 0.737
 * ms over 64 GB/s, 0.154 ms of 307.2 GB/s. Missing, 1 row: the link. The CPU at 16 rows: 755 MFLOP at 6 TFLOP/s 0.126
 * ms, less than its read; at 128: 6.04 GFLOP at 30 TFLOP/s 0.201 ms. Near memory, 1 row: the read at 153.6 GB/s, 0.307
 * ms. At 4: 0.1887 GFLOP at 256 GFLOP/s = 0.737 ms. */
static void paper_c(void **st) {
    struct config c = {.hidden = 5120,
                       .n_layers = 1,
                       .n_heads = 128,
                       .n_kv_heads = 1,
                       .head_dim = 128,
                       .v_dim = 128,
                       .n_experts = 160,
                       .topk = 6,
                       .moe_inter = 1536};
    struct cost_model q;
    cost_model_of(&q, &c, DT_BF16, DT_BF16, DT_BF16);
    assert_true(cost_preset(&m, "paper-c"));
    assert_int_equal(m.n_domains, 18);
    near(cost_expert_miss(&m, 1, &q, 1), 0.7373e-3 + 8e-6, 1e-3);
    near(cost_expert_miss(&m, 0, &q, 16), 0.1536e-3, 1e-3);
    near(cost_expert_miss(&m, 0, &q, 128), 0.2013e-3, 1e-3);
    near(cost_expert(&m, 2, &q, 1, COST_MANY_ROWS), 0.3072e-3, 1e-3);
    near(cost_expert(&m, 2, &q, 4, COST_MANY_ROWS), 0.7373e-3, 1e-3);
    assert_true(isinf(cost_expert_miss(&m, 2, &q, 1)));
    m.dram_bw = 10e9; /* a layout that yields only this bandwidth limits both */
    near(cost_expert_miss(&m, 0, &q, 16), 4.719e-3, 1e-3);
    near(cost_expert_miss(&m, 1, &q, 16), 4.719e-3, 1e-3);
}

/* A machine that reads at 57 tok/s with 64 tokens (the weights' reading) and 332 with 1,024 (the arithmetic), and a
 * model of it that is a third too fast everywhere. One prefill's speed taken for all lengths is wrong by 5.8; the model
 * that saw the same prefill is not. */
static void one_length_does_not_mislead(void **st) {
    memset(&m, 0, sizeof m);
    struct cost_model q = {
        .layers = 10, .n_experts = 16, .topk = 2, .experts = COST_8BIT, .expert_bytes = 1e9 * 1.1, .expert_flops = 1e9};
    m.n_domains = 1;
    m.domain[0].bw[COST_FFN] = (struct cost_curve){1, {1}, {210e9f}};
    m.domain[0].rate[COST_FFN][COST_8BIT] = (struct cost_curve){2, {1, 1024}, {8.9e12f, 8.9e12f}};
    struct cost_prefill few = {.mode = PREFILL_CPU, .n = 64}, many = few;
    many.n = 1024;
    struct cost_observed *seen = &m.observed[PREFILL_CPU];
    const double real_few = 64 / 57.0, real_many = 1024 / 332.0;
    double before = cost_prefill(&m, &q, &many);
    assert_true(real_few / 64 * 1024 / real_many > 5.8); /* the old policy: 18 s for 3.1 */
    for (int i = 0; i < 3; i++) {
        double expected = cost_prefill(&m, &q, &few);
        cost_observe(&m, seen, 64, expected, real_few);
    }
    near(cost_prefill(&m, &q, &few), real_few, 0.05);
    double off = cost_prefill(&m, &q, &many) / real_many;
    printf("1,024 tokens after seeing 64: %.2f of what they take (table alone %.2f, the speed of 64: 5.82)\n", off,
           before / real_many);
    assert_true(off > 1 / 1.3 && off < 1.3);
    for (int i = 0; i < 3; i++) cost_observe(&m, seen, 1024, cost_prefill(&m, &q, &many), real_many);
    near(cost_prefill(&m, &q, &many), real_many, 0.05);
    near(cost_prefill(&m, &q, &few), real_few, 0.08);
}

/* Limited, slow to adapt, and ignored on request. */
static void learning(void **st) {
    memset(&m, 0, sizeof m);
    struct cost_observed *s = &m.observed[0];
    assert_true(cost_factor(&m, s, 10) == 1);
    cost_observe(&m, s, 16, 1, 2); /* the table counts a quarter of an observation: exp(ln 2 / 1.25) */
    near(cost_factor(&m, s, 16), pow(2, 0.8), 1e-5);
    for (int i = 0; i < 50; i++) cost_observe(&m, s, 16, cost_factor(&m, s, 16), 2);
    near(cost_factor(&m, s, 16), 2, 0.03);
    near(cost_factor(&m, s, 256), pow(2, 2 / 3.0), 0.03); /* four octaves on: 8 / 16 against the table's 1 / 4 */
    cost_observe(&m, s, 16, cost_factor(&m, s, 16), 200); /* one observation counts at most eight-fold */
    assert_true(cost_factor(&m, s, 16) < 2.5);
    for (int i = 0; i < 200; i++) cost_observe(&m, s, 16, cost_factor(&m, s, 16), 1e9);
    near(cost_factor(&m, s, 16), pow(8, 8 / 8.25), 0.01);
    assert_true(cost_factor(&m, s, 16) <= 8);
    double was = cost_factor(&m, s, 16);
    cost_observe(&m, s, 16, 0, 1), cost_observe(&m, s, 16, 1, 0), cost_observe(&m, s, 16, NAN, 1),
        cost_observe(&m, s, 16, 1, COST_MANY_ROWS);
    assert_true(cost_factor(&m, s, 16) == was);
    m.is_deterministic = true;
    assert_true(cost_factor(&m, s, 16) == 1);
}

/* Uploads that are slower than the link was measured to be: blends, whose CPU reads the same memory, learn it apart
 * from streamed prompts, so that a slow blend keeps no prompt from the stream. */
static void links_learn(void **st) {
    memset(&m, 0, sizeof m);
    m.n_domains = 2, m.n_devices = 1;
    struct cost_domain *d = &m.domain[1];
    d->link[COST_H2D].rate = 50e9;
    const double bytes = 5e6, alone = bytes / 50e9;
    for (int i = 0; i < 20; i++)
        cost_observe(&m, &d->observed_beside, 1, cost_upload_beside(&m, 1, bytes), 4.8 * alone);
    near(cost_upload_beside(&m, 1, bytes), 4.8 * alone, 0.06);
    near(cost_transfer(&m, 1, COST_H2D, bytes), alone, 1e-9);
    /* a link that is slow in any case */
    for (int i = 0; i < 20; i++)
        cost_observe(&m, &d->observed_link[COST_H2D], 1, cost_transfer(&m, 1, COST_H2D, bytes), 2 * alone);
    near(cost_transfer(&m, 1, COST_H2D, bytes), 2 * alone, 0.03);
    for (int i = 0; i < 30; i++)
        cost_observe(&m, &d->observed_beside, 1, cost_upload_beside(&m, 1, bytes), 4.8 * alone);
    near(cost_upload_beside(&m, 1, bytes), 4.8 * alone, 0.06);
    m.is_deterministic = true;
    near(cost_upload_beside(&m, 1, bytes), alone, 1e-9);
}

/* 8,000 tokens of Qwen3-30B-A3B in FP8, all on the H100 of test/bench/gpu.md: within 30 % of the sum of the kernels
 * that is counted there, 8.8 ms a layer. With the rate of 256 queries over 1,024 keys, of which most is latency,
 * attention alone would be charged with 12.3 ms. */
static void a_long_prompt_takes_the_sum_of_its_kernels(void **st) {
    struct config c = {.vocab = 151936,
                       .hidden = 2048,
                       .n_layers = 48,
                       .n_heads = 32,
                       .n_kv_heads = 4,
                       .head_dim = 128,
                       .v_dim = 128,
                       .qk_norm = true,
                       .n_experts = 128,
                       .topk = 8,
                       .moe_inter = 768,
                       .block_rows = 128,
                       .block_cols = 128};
    struct cost_model q;
    for (int i = 0; i < 48; i++) c.layer[i].moe = true;
    cost_model_of(&q, &c, DT_E4M3, DT_E4M3, DT_BF16);
    memset(&m, 0, sizeof m);
    m.n_domains = 2, m.n_devices = 1, m.gpu_chunk_rows = 8192;
    struct cost_domain *d = &m.domain[1];
    d->class = COST_GPU, d->link[COST_H2D].rate = 54.8e9;
    for (int k = 0; k < COST_KINDS; k++)
        d->latency[k] = 4e-6, d->bw[k] = (struct cost_curve){1, {1}, {2.94e12f}}, m.domain[0].bw[k] = d->bw[k];
    d->rate[COST_LINEAR][COST_8BIT] = (struct cost_curve){1, {1}, {588e12f}};
    d->rate[COST_FFN][COST_8BIT] = (struct cost_curve){1, {1}, {150e12f}};
    d->rate[COST_ATTENTION][COST_16BIT] = (struct cost_curve){1, {1}, {250e12f}};
    d->prompt_latency = (struct cost_curve){2, {64, 256}, {40e-6f, 76e-6f}};
    m.domain[0].rate[COST_LINEAR][COST_16BIT] = (struct cost_curve){1, {1}, {1e12f}};
    const struct cost_prefill p = {.mode = PREFILL_SLP, .n = 8000, .n_expert_layers = 48, .n_dense_layers = 48};
    const double layer = cost_prefill(&m, &q, &p) / 48, counted = 8.8e-3;
    printf("8,000 tokens: %.2f ms a layer, counted %.2f ms\n", layer * 1e3, counted * 1e3);
    near(layer, counted, 0.3);
}

/* The table that the split reads: exact below 16 rows, within 3% above (a corner between two entries), never
 * decreasing, and extrapolated past its end. */
static void tables(void **st) {
    static struct cost_table t;
    for (int i = 0; cost_preset_name(i); i++) {
        assert_true(cost_preset(&m, cost_preset_name(i)));
        for (int d = 0; d < m.n_domains; d++) {
            cost_table_fill(&t, &m, d, &v3, COST_MANY_ROWS);
            double last = 0;
            for (int rows = 0; rows < 10000; rows += rows < 600 ? 1 : 37) {
                double got = cost_table_at(&t, rows), want = rows ? cost_expert(&m, d, &v3, rows, COST_MANY_ROWS) : 0;
                near(got, want, rows < 16 ? 1e-6 : 0.03);
                assert_true(got >= last * (1 - 1e-6));
                last = got;
            }
            near(cost_table_at(&t, 1 << 22), 8 * cost_expert(&m, d, &v3, 1 << 19, COST_MANY_ROWS), 0.02);
        }
    }
    assert_false(cost_preset(&m, "paper-z"));
    cost_assumed(&m, 2, 2, 1, 0, 0, 0);
    assert_true(m.n_domains == 2 && cost_prefill(&m, &v3, &(struct cost_prefill){.mode = PREFILL_CPU, .n = 100}) > 0);
}

/* An image of twice the patches costs twice the products and four times the attention, and what was measured counts. */
static void towers(void **state) {
    struct cost_machine with;
    cost_assumed(&with, 8, 2, 0, 0, 0, 0);
    struct cost_tower one = {.weights = COST_16BIT, .patches = 4096, .flops = 3e12},
                      two = {.weights = COST_16BIT, .patches = 4096, .attention_flops = 2e12}, both = one;
    both.attention_flops = 2e12;
    const double a = cost_tower(&with, &one), b = cost_tower(&with, &two);
    assert_true(a > 0 && b > 0 && fabs(a + b - cost_tower(&with, &both)) < 1e-9 * (a + b));
    one.flops *= 2, two.attention_flops *= 4;
    assert_true(fabs(cost_tower(&with, &one) / a - 2) < 1e-6 && fabs(cost_tower(&with, &two) / b - 4) < 1e-6);
    for (int i = 0; i < 20; i++)
        cost_observe(&with, &with.observed_tower, both.patches, cost_tower(&with, &both), 3 * (a + b));
    assert_true(fabs(cost_tower(&with, &both) / (3 * (a + b)) - 1) < 0.1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(towers),          cmocka_unit_test(bytes_and_flops_of_known_models),
        cmocka_unit_test(roofline),        cmocka_unit_test(distinct_experts_of_several_rows),
        cmocka_unit_test(decode_floor),    cmocka_unit_test(rows_of_other_layers),
        cmocka_unit_test(beside_a_stream), cmocka_unit_test(prefills),
        cmocka_unit_test(blend),           cmocka_unit_test(paper_b),
        cmocka_unit_test(paper_c),         cmocka_unit_test(one_length_does_not_mislead),
        cmocka_unit_test(links_learn),     cmocka_unit_test(a_long_prompt_takes_the_sum_of_its_kernels),
        cmocka_unit_test(learning),        cmocka_unit_test(tables),
        cmocka_unit_test(joined)};
    return cmocka_run_group_tests(tests, setup, NULL);
}

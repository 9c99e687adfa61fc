/* The choice of a mode for a decode batch, of the sessions in it, and of their turns: every row of the table in
 * policy.h, and its edges. */
#include "test/unit/policy.h"

#include <math.h>
#include <stdio.h>

#include "base/clock.h"

static char why[200];
static struct policy_decode_out step(struct policy_machine m, struct policy_decode_in in) {
    struct policy_decode_out out;
    policy_decode_batch(&m, &in, &out);
    policy_decode_why(&m, &in, &out, why, sizeof why);
    assert_true(why[0]);
    assert_true(strlen(why) < sizeof why - 1);
    assert_true(out.batch >= 1 && out.batch <= in.max_rows && out.batch <= in.n_decoding);
    if (out.mode == DECODE_DUAL) assert_true(out.first_rows >= 1 && out.first_rows < out.batch);
    else assert_int_equal(out.first_rows, 0);
    return out;
}
static struct policy_decode_in sessions(int n) {
    return (struct policy_decode_in){.n_decoding = n, .max_rows = 16, .keys = 1000, .context_tokens = 4096};
}

static void steps_of_the_table(void **st) {
    struct policy_decode_out out = step(machine(0), sessions(1));
    assert_int_equal(out.mode, DECODE_CPU);
    assert_non_null(strstr(why, "no device"));
    out = step(machine(1), sessions(1));
    assert_int_equal(out.mode, DECODE_HYBRID);
    assert_int_equal(out.n_device_layers, 61);
    assert_true(out.seconds[DECODE_HYBRID] < 39.5e-3 && out.seconds[DECODE_CPU] > 45e-3);
    assert_true(isinf(out.seconds[DECODE_DUAL]));
    out = step(machine(1), sessions(2));
    assert_int_equal(out.mode, DECODE_DUAL);
    assert_int_equal(out.first_rows, 1);
    /* Dual must pay: where experts take nearly all the time, reading them twice costs more than the overlap saves. */
    struct cost_machine slow = paper;
    slow.domain[0].bw[COST_FFN].value[0] = 95e9f;
    struct policy_machine m = machine(1);
    m.cost = &slow;
    assert_int_equal(step(m, sessions(2)).mode, DECODE_HYBRID);
    m = machine(1), m.is_lost = true;
    out = step(m, sessions(2));
    assert_int_equal(out.mode, DECODE_CPU);
    assert_non_null(strstr(why, "a device was lost"));
    m = machine(1), m.decode_mask = 0; /* no layers on the device */
    assert_int_equal(step(m, sessions(2)).mode, DECODE_CPU);
    m = machine(1), m.is_yielded = true;
    assert_int_equal(step(m, sessions(2)).mode, DECODE_CPU);
    assert_non_null(strstr(why, "the devices are in use by a prefill"));
    m = machine(1), m.n_device_layers = 17, m.free[0] = 0; /* the layers on the device, whatever memory is free */
    out = step(m, sessions(1));
    assert_true(out.mode == DECODE_HYBRID && out.n_device_layers == 17);
    m.decode_mask = 1 << DECODE_HYBRID;
    assert_int_equal(step(m, sessions(2)).mode, DECODE_HYBRID);
    m.decode_mask = 1 << DECODE_DUAL; /* dual is hybrid twice */
    assert_int_equal(step(m, sessions(2)).mode, DECODE_CPU);
    m = machine(1), m.cost = NULL;
    out = step(m, sessions(9));
    assert_true(out.mode == DECODE_CPU && out.batch == 9);
}

static void small_devices(void **st) {
    struct policy_machine m = machine(1);
    m.free[0] = 5e9; /* 3 dense layers of 0.59 GB each, then 0.24 GB */
    struct policy_decode_out out = step(m, sessions(1));
    assert_int_equal(out.mode, DECODE_HYBRID);
    assert_true(out.n_device_layers > 10 && out.n_device_layers < 20);
    assert_non_null(strstr(why, "of 61 layers fit on the devices"));
    int with_one = out.n_device_layers;
    m.n_devices = 2, m.free[1] = 5e9; /* two share the layers */
    assert_true(step(m, sessions(1)).n_device_layers > with_one);
    m.n_devices = 1, m.free[0] = 1e8;
    out = step(m, sessions(1));
    assert_true(out.mode == DECODE_CPU && out.n_device_layers == 0);
    assert_non_null(strstr(why, "no layer's attention block fits"));
    m = machine(1);
    struct policy_decode_in in = sessions(6);
    in.context_tokens = 131072; /* 61 * 131072 * 1152 bytes * 6 = 55 GB of cache */
    assert_true(step(m, in).n_device_layers < 61);
}

/* Six at once; more where it pays, which on DeepSeek-V3 it does not (a seventh session brings 5.9 more experts to
 * read), and with eight experts that six rows have all chosen anyway it does. */
static void batches(void **st) {
    for (int n = 1; n <= 6; n++) assert_int_equal(step(machine(1), sessions(n)).batch, n);
    struct policy_decode_out out = step(machine(1), sessions(10));
    assert_int_equal(out.batch, POLICY_BATCH);
    assert_non_null(strstr(why, "6 of 10 sessions at once"));
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
    struct cost_model mixtral;
    cost_model_of(&mixtral, &c, DT_E4M3, DT_E4M3, DT_BF16);
    struct policy_machine m = machine(1);
    m.model = &mixtral;
    assert_int_equal(step(m, sessions(10)).batch, 10);
    int most = step(m, sessions(40)).batch; /* until arithmetic, not reading, takes the time */
    assert_true(most >= 10 && most < 16);
    struct policy_decode_in in = sessions(40);
    in.max_rows = 8; /* the maximum of a batch */
    assert_int_equal(step(m, in).batch, 8);
    in = sessions(4), in.max_rows = 3;
    assert_int_equal(step(machine(1), in).batch, 3);
}

static void forced_steps(void **st) {
    for (int mode = DECODE_CPU; mode < DECODE_PAGED; mode++) {
        struct policy_machine m = machine(1);
        m.forced_decode = (enum exec_mode)mode;
        for (int n = 2; n < 6; n++) {
            struct policy_decode_out out = step(m, sessions(n));
            assert_int_equal(out.mode, mode);
            assert_non_null(strstr(why, "requested"));
        }
        assert_int_equal(exec_mode_find(STAGE_DECODE, exec_mode_name((enum exec_mode)mode)), mode);
    }
    struct policy_machine m = machine(1);
    m.forced_decode = DECODE_DUAL;
    struct policy_decode_out out = step(m, sessions(1));
    assert_int_equal(out.mode, DECODE_HYBRID);
    assert_non_null(strstr(why, "dual was requested, but: one session"));
    m = machine(0), m.forced_decode = DECODE_HYBRID;
    out = step(m, sessions(2));
    assert_int_equal(out.mode, DECODE_CPU);
    assert_non_null(strstr(why, "hybrid was requested, but: no device"));
    m = machine(1), m.forced_decode = DECODE_PAGED; /* chat sessions do not decode paged */
    out = step(m, sessions(2));
    assert_int_equal(out.mode, DECODE_DUAL);
    assert_non_null(strstr(why, "paged was requested, but: paged mode is for throughput batches; expected "));
    assert_true(isinf(out.seconds[DECODE_PAGED]));
    static const char *const names[] = {"cpu", "hybrid", "dual", "paged"};
    for (int i = 0; i < 4; i++) {
        assert_string_equal(exec_mode_name((enum exec_mode)(DECODE_CPU + i)), names[i]);
        assert_int_equal(exec_mode_find(STAGE_DECODE, names[i]), DECODE_CPU + i);
    }
    assert_int_equal(exec_mode_find(STAGE_DECODE, "auto"), MODE_AUTO);
    assert_int_equal(exec_mode_find(STAGE_DECODE, "single"), EXEC_MODES);
}

/* The time that a decision takes of the engine's thread: printed, not asserted. */
static void time_of_a_decision_is_printed(void **st) {
    static const int n[] = {1, 2, 6, 16};
    struct policy_machine m = machine(2);
    for (int i = 0; i < 4; i++) {
        struct policy_decode_in in = sessions(n[i]);
        struct policy_decode_out out;
        double begin = clock_now();
        for (int k = 0; k < 2000; k++) policy_decode_batch(&m, &in, &out);
        printf("how a step of %d sessions runs: %.1f us\n", n[i], (clock_now() - begin) / 2000 * 1e6);
    }
    struct policy_prefill_in in = prompt(2048);
    struct policy_prefill_out out;
    double begin = clock_now();
    for (int k = 0; k < 500; k++) policy_prefill(&m, &in, &out);
    printf("how a prompt of 2,048 tokens is read: %.1f us\n", (clock_now() - begin) / 500 * 1e6);
    assert_int_equal(out.mode, PREFILL_BLEND);
}

/* --- A bound on the time per token ------------------------------------------------------------ */

static void a_bound_limits_sessions(void **st) {
    double last = 0, tpot;
    int same = 0, other = 0;
    for (int devices = 0; devices <= 2; devices++)
        for (int n = 1; n <= 16; n++) {
            struct policy_machine m = machine(devices);
            struct policy_decode_out free = step(m, sessions(n)), out;
            assert_true(fabs(free.tpot_s - free.seconds[free.mode] * n / free.batch) < 1e-12 &&
                        !strstr(why, "--max-tpot"));
            m.max_tpot_s = free.tpot_s; /* just met: the usual choice */
            out = step(m, sessions(n));
            assert_true(out.mode == free.mode && out.batch == free.batch && out.first_rows == free.first_rows &&
                        out.tpot_s == free.tpot_s);
            assert_non_null(strstr(why, "within the limit of"));
            m.max_tpot_s = free.tpot_s * 0.999; /* missed: never slower than the usual choice */
            out = step(m, sessions(n));
            assert_true(out.tpot_s <= free.tpot_s);
            *(out.tpot_s < free.tpot_s ? &other : &same) += 1;
            m.max_tpot_s = 1e-6;
            assert_true(step(m, sessions(n)).tpot_s == out.tpot_s);
            assert_non_null(strstr(why, "the least, above the limit of 0.001 (--max-tpot)"));
        }
    assert_true(same > 0 && other > 0);
    for (double ms = 1; ms < 2000; ms *= 1.3) { /* more time, more sessions; one more would be too slow */
        struct policy_machine m = machine(1);
        m.max_tpot_s = ms * 1e-3;
        const int n = policy_max_sessions(
            &m, &(struct policy_decode_in){.max_rows = 16, .keys = 1000, .context_tokens = 4096}, &tpot);
        assert_true(n >= last && n >= 1 && n <= 16);
        assert_true(n == 1 || tpot <= m.max_tpot_s);
        if (n < 16) assert_true(step(m, sessions(n + 1)).tpot_s > m.max_tpot_s);
        assert_true(tpot == step(m, sessions(n)).tpot_s);
        last = n;
    }
    assert_int_equal(last, 16);
}

/* A stream takes host memory bandwidth, and resident experts where memory is short: beside sessions that need both, the
 * prompt is read by the CPU, in the time that the bound leaves. */
static void a_bound_limits_prompts(void **st) {
    struct policy_machine m = machine(1);
    struct policy_prefill_in in = prompt(50000);
    in.n_decoding = 4, in.keys = 1000, in.need_bytes[PREFILL_SLP] = in.need_bytes[PREFILL_BLEND] = 4e9;
    m.n_device_layers = 61, m.decode_uses[0] = true;
    assert_int_equal(pick(m, in), PREFILL_SLP);
    const double alone = step(m, sessions(4)).tpot_s;
    struct policy_decode_in beside = sessions(4);
    beside.beside_prefill = true;
    const double slowed = step(m, beside).tpot_s;
    assert_true(slowed > alone);
    m.max_tpot_s = slowed * 1.001; /* the context differs a little */
    assert_int_equal(pick(m, in), PREFILL_SLP);
    m.max_tpot_s = alone;
    struct policy_prefill_out out = ask(m, in);
    assert_int_equal(out.mode, PREFILL_CPU);
    assert_true(isinf(out.seconds[PREFILL_BLEND]));
    assert_non_null(strstr(out.why, "answers beside it would be too slow (--max-tpot)"));
    m.forced_prefill = PREFILL_SLP; /* requested by name */
    assert_int_equal(pick(m, in), PREFILL_SLP);
    m.forced_prefill = MODE_AUTO, in.n_decoding = 0; /* no answer to slow */
    assert_int_equal(pick(m, in), PREFILL_SLP);
    in.n_decoding = 4, m.held[0] = 27.5e9; /* the stream evicts one of two layers of experts */
    m.n_expert_layers = 1;
    const double evicted = step(m, beside).tpot_s;
    m.n_expert_layers = m.expert_layers[0] = 2;
    m.max_tpot_s = (step(m, beside).tpot_s + evicted) / 2;
    assert_true(m.max_tpot_s < evicted && evicted < slowed);
    assert_int_equal(pick(m, in), PREFILL_CPU);
    m.held[0] = 26e9; /* room enough without */
    assert_int_equal(pick(m, in), PREFILL_SLP);
    /* the dense layers go too, and sessions decode on the CPU */
    m.held[0] = 31e9, in.need_bytes[PREFILL_SLP] = in.need_bytes[PREFILL_BLEND] = 30e9;
    m.max_tpot_s = slowed * 1.001;
    assert_int_equal(pick(m, in), PREFILL_CPU);
}

/* What is pinned to a device is not read by the CPU. */
static void pinned_experts_count(void **st) {
    struct policy_machine m = machine(1);
    m.n_device_layers = v3.layers;
    const double none = step(m, sessions(1)).tpot_s;
    m.resident_share = 0.5;
    const double half = step(m, sessions(1)).tpot_s;
    assert_true(half < 0.8 * none);
}

/* What the link could take from the CPU is said: at most what both together read, and nothing where it has no rate. */
static void dividing_is_bounded(void **st) {
    struct policy_machine m = machine(1);
    struct cost_decode s = {.mode = DECODE_HYBRID,
                            .rows = 1,
                            .keys = 1000,
                            .n_device_layers = v3.layers,
                            .resident_share = 0.3},
                       divided = s;
    const double now = cost_decode(&paper, &v3, &s), rate = paper.domain[1].link[COST_H2D].rate;
    divided.divides_missing = true;
    const double best = cost_decode(&paper, &v3, &divided);
    assert_true(best < now && best > now / (1 + rate / 400e9)); /* the CPU reads some 700 GB/s */
    paper.domain[1].link[COST_H2D].rate = 1e6;
    const double slow = cost_decode(&paper, &v3, &s), slow_divided = cost_decode(&paper, &v3, &divided);
    paper.domain[1].link[COST_H2D].rate = rate;
    assert_true(slow_divided <= slow && slow_divided > 0.99 * slow);
    m.n_device_layers = v3.layers, m.resident_share = 0.3;
    struct policy_decode_out out;
    const struct policy_decode_in in = sessions(1);
    policy_decode_batch(&m, &in, &out);
    policy_decode_why(&m, &in, &out, why, sizeof why);
    assert_non_null(strstr(why, "the CPU computes the experts that are not pinned: sending some would gain "));
    m.resident_share = 0;
    policy_decode_why(&m, &in, &out, why, sizeof why);
    assert_null(strstr(why, "not pinned"));
}

/* Experts of a pool are launched one by one, once the host knows the choice: slower than pinned ones, and not free
 * where all are there. */
static void experts_of_a_pool_are_launched_one_by_one(void **st) {
    struct policy_machine m = machine(1);
    m.n_device_layers = v3.layers, m.resident_share = 0.5;
    const double pinned = step(m, sessions(1)).tpot_s;
    m.moves_experts = true;
    const double moving = step(m, sessions(1)).tpot_s;
    assert_true(moving >= pinned && moving < 1.1 * pinned);
    m.resident_share = 1;
    const double all = step(m, sessions(1)).tpot_s;
    const int moe = v3.layers - v3.dense_layers;
    m.moves_experts = false;
    const double all_pinned = step(m, sessions(1)).tpot_s,
                 launches = moe * v3.topk * 3 * paper.domain[1].latency[COST_ELEM];
    assert_true(all > all_pinned + 0.6 * launches && all < all_pinned + 2 * launches + 2 * moe * paper.hand_off_s);
    m.n_expert_layers = moe, m.resident_share = 0, m.moves_experts = true; /* whole layers are no pool */
    assert_true(step(m, sessions(1)).tpot_s <= all_pinned);
}

/* What a device lacks crosses its link, after the attention that chose it; the CPU computes nothing. */
static void sent_experts_cross_the_link(void **st) {
    struct policy_machine m = machine(1);
    m.n_device_layers = v3.layers, m.sends_experts = true, m.forced_decode = DECODE_HYBRID;
    const int moe = v3.layers - v3.dense_layers;
    const double sent = moe * v3.topk * cost_transfer(&paper, 1, COST_H2D, v3.expert_bytes),
                 attention = moe * cost_attention_block(&paper, 1, &v3, cost_decode_rows(1, sessions(1).keys)),
                 none = step(m, sessions(1)).tpot_s;
    assert_true(none > sent + attention && none < 1.2 * (sent + attention));
    m.resident_share = 0.5;
    const double half = step(m, sessions(1)).tpot_s;
    assert_true(half < 0.6 * none && half > 0.4 * none);
}

/* Four long sessions of which three fit: they take turns, unless attention on the CPU costs little. */
static void long_caches_take_turns(void **st) {
    struct policy_machine m = machine(1), unknown = {.n_devices = 1};
    const struct policy_decode_in in = {.n_decoding = 4, .max_rows = 16, .keys = 65536},
                                  few = {.n_decoding = 4, .max_rows = 16, .keys = 1000};
    m.n_device_layers = v3.layers;
    const int batches = policy_time_slice(&m, &in, 3);
    assert_in_range(batches, 4, 16); /* 4.6 GB at 57 GB/s, batches of some 95 ms */
    assert_int_equal(policy_time_slice(&m, &few, 3), 0);
    assert_int_equal(policy_time_slice(&m, &in, 0), 0);
    assert_int_equal(policy_time_slice(&m, &in, 4), 0);
    assert_int_equal(policy_time_slice(&unknown, &in, 3), 0);
    paper.domain[1].link[COST_H2D].rate /= 100; /* uploads would take longer than the longest slice */
    assert_int_equal(policy_time_slice(&m, &in, 3), 0);
    paper.domain[1].link[COST_H2D].rate *= 100;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(pinned_experts_count),
                                       cmocka_unit_test(experts_of_a_pool_are_launched_one_by_one),
                                       cmocka_unit_test(dividing_is_bounded),
                                       cmocka_unit_test(sent_experts_cross_the_link),
                                       cmocka_unit_test(long_caches_take_turns),
                                       cmocka_unit_test(time_of_a_decision_is_printed),
                                       cmocka_unit_test(steps_of_the_table),
                                       cmocka_unit_test(small_devices),
                                       cmocka_unit_test(batches),
                                       cmocka_unit_test(forced_steps),
                                       cmocka_unit_test(a_bound_limits_sessions),
                                       cmocka_unit_test(a_bound_limits_prompts)};
    return cmocka_run_group_tests(tests, setup, NULL);
}

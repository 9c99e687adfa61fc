/* The choice of a mode for a prompt: every row of the table in policy.h, and its edges. */
#include "test/unit/policy.h"

#include <math.h>
#include <stdio.h>

/* Without measurements: the fixed lengths of paper A, as far as the engine has the modes. */
static void lengths_are_assumed(void **st) {
    struct policy_machine m = {.n_devices = 2, .prefill_mask = 1 << PREFILL_SLP | 1 << PREFILL_DSLP};
    assert_int_equal(pick(m, prompt(9000)), PREFILL_DSLP);
    m.n_devices = 1;
    assert_int_equal(pick(m, prompt(9000)), PREFILL_SLP);
    m.n_devices = 0;
    assert_int_equal(pick(m, prompt(9000)), PREFILL_CPU);
    m.n_devices = 2;
    struct policy_prefill_in in = prompt(9000);
    in.n_decoding = 1;
    assert_int_equal(pick(m, in), PREFILL_SLP);
    in = prompt(9000), in.since_decode_s = 299;
    assert_int_equal(pick(m, in), PREFILL_SLP);
    in.since_decode_s = 300;
    assert_int_equal(pick(m, in), PREFILL_DSLP);
    assert_int_equal(pick(m, prompt(2047)), PREFILL_CPU);
    assert_int_equal(pick(m, prompt(2048)), PREFILL_DSLP);
    m.prefill_mask |= 1 << PREFILL_BLEND; /* not without measurements */
    assert_int_equal(pick(m, prompt(2047)), PREFILL_CPU);
    m.prefill_mask = 1 << PREFILL_SLP;
    assert_int_equal(pick(m, prompt(9000)), PREFILL_SLP);
    m.prefill_mask = 0;
    assert_int_equal(pick(m, prompt(9000)), PREFILL_CPU);
    m = machine(2), m.is_lost = true, m.forced_prefill = PREFILL_SLP;
    assert_int_equal(pick(m, prompt(9000)), PREFILL_CPU);
}

/* Each row of the table, on paper A's machine with two devices: 0.3 s or less for a few words on the CPU, 3.9 s by a
 * blend on both for 4,096 tokens (11.7 s alone over one link, 6.1 s over both), the links alone from some 6,000 on. */
static void rows_of_the_table(void **st) {
    struct policy_machine two = machine(2), one = machine(1), none = machine(0);
    struct policy_prefill_in in = prompt(9000);
    assert_int_equal(pick(none, in), PREFILL_CPU);
    assert_non_null(strstr(ask(none, in).why, "no device"));
    assert_int_equal(pick(two, prompt(1)), PREFILL_CPU);
    assert_int_equal(pick(two, prompt(8)), PREFILL_CPU);
    for (int n = 128; n <= 4096; n *= 2) assert_int_equal(pick(two, prompt(n)), PREFILL_BLEND);
    assert_int_equal(pick(two, prompt(8192)), PREFILL_DSLP);
    assert_int_equal(pick(two, prompt(50000)), PREFILL_DSLP);
    assert_int_equal(pick(one, prompt(50000)), PREFILL_SLP);  /* one device */
    assert_int_equal(pick(one, prompt(4096)), PREFILL_BLEND); /* 5.5 s against 11.8 s */
    assert_int_equal(pick(one, prompt(16384)), PREFILL_SLP);  /* 24.4 s in four batches against 13.0 s */
    in = prompt(50000), in.n_decoding = 1, in.keys = 1000;
    struct policy_prefill_out out = ask(two, in);
    assert_int_equal(out.mode, PREFILL_SLP);
    assert_non_null(strstr(out.why, "a session is decoding"));
    assert_true(isinf(out.seconds[PREFILL_DSLP]));
    in.n_decoding = 0;
    const double all_s = ask(two, in).seconds[PREFILL_DSLP]; /* nobody else is expected within it */
    assert_true(all_s > 1 && all_s < 100);
    in.since_decode_s = 0.99 * all_s;
    assert_int_equal(pick(two, in), PREFILL_SLP);
    in.since_decode_s = 1.01 * all_s;
    assert_int_equal(pick(two, in), PREFILL_DSLP);
    in.since_decode_s = 0;
    assert_int_equal(pick(two, in), PREFILL_SLP);
    /* Modes that the engine cannot run are never chosen: today slp and dslp. */
    two.prefill_mask = 1 << PREFILL_SLP | 1 << PREFILL_DSLP;
    assert_int_equal(pick(two, prompt(1000)), PREFILL_CPU);
    assert_int_equal(pick(two, prompt(4096)), PREFILL_DSLP);
    two.prefill_mask = 1 << PREFILL_SLP;
    assert_int_equal(pick(two, prompt(2000)), PREFILL_CPU);
    assert_int_equal(pick(two, prompt(3200)), PREFILL_SLP); /* they meet between 2,048 and 3,072 */
    /* A cached prefix makes attention longer, not the stream. */
    in = prompt(2200), in.n_cached = 60000;
    assert_int_equal(pick(two, in), PREFILL_SLP);
}

/* A prompt on the CPU halves the speed of answering sessions: the more there are, the earlier streaming pays. */
static void answering_sessions_favour_streaming(void **st) {
    struct policy_machine m = machine(1);
    struct policy_prefill_in in = prompt(5000);
    in.n_decoding = 1, in.keys = 500;
    assert_int_equal(pick(m, in), PREFILL_BLEND); /* 7.2 s * 1.5 against 11.7 s * 1.15 */
    in.n_decoding = 4;
    assert_int_equal(pick(m, in), PREFILL_SLP);            /* 7.2 s * 3 against 11.7 s * 1.6 */
    assert_int_equal(pick(machine(2), in), PREFILL_BLEND); /* 5.2 s * 3 on two */
    in = prompt(256), in.n_decoding = 4;
    assert_int_equal(pick(m, in), PREFILL_BLEND); /* 0.9 s against 11.7 s */
}

static void first_come_first_served(void **st) {
    struct policy_prefill_in in = prompt(100);
    assert_false(ask(machine(2), in).must_wait);
    in.n_queued = 1;
    struct policy_prefill_out out = ask(machine(2), in);
    assert_true(out.must_wait && out.mode == MODE_AUTO);
    assert_string_equal(out.why, "first come, first served: 1 prompt before it");
    struct policy_machine m = machine(2);
    m.forced_prefill = PREFILL_SLP, in.n_queued = 3; /* a forced mode does not jump the queue */
    assert_true(ask(m, in).must_wait);
}

static void memory_of_the_devices(void **st) {
    struct policy_machine m = machine(2);
    struct policy_prefill_in in = prompt(50000);
    in.need_bytes[PREFILL_SLP] = in.need_bytes[PREFILL_DSLP] = in.need_bytes[PREFILL_BLEND] = 17e9;
    assert_int_equal(pick(m, in), PREFILL_DSLP);
    m.free[1] = 16e9;
    struct policy_prefill_out out = ask(m, in);
    assert_int_equal(out.mode, PREFILL_SLP);
    assert_non_null(strstr(out.why, "too little memory free on one of the devices"));
    m.free[0] = 16e9;
    out = ask(m, in);
    assert_int_equal(out.mode, PREFILL_CPU);
    assert_non_null(strstr(out.why, "too little memory free on the device"));
    m.forced_prefill = PREFILL_SLP; /* requested and impossible: reported, then runs on the CPU */
    out = ask(m, in);
    assert_int_equal(out.mode, PREFILL_CPU);
    assert_non_null(strstr(out.why, "slp was requested, but: too little memory"));
    m.free[0] = m.free[1] = 17e9; /* exactly enough */
    m.forced_prefill = MODE_AUTO;
    assert_int_equal(pick(m, in), PREFILL_DSLP);
}

/* Each mode has its own memory need, and a mode that does not fit is never chosen, whatever its time. */
static void each_mode_has_its_need(void **st) {
    struct policy_machine m = machine(2);
    struct policy_prefill_in in = prompt(50000);
    in.need_bytes[PREFILL_DSLP] = 32e9; /* each has half of the rows, but sums of all */
    struct policy_prefill_out out = ask(m, in);
    assert_int_equal(out.mode, PREFILL_SLP);
    assert_non_null(strstr(out.why, "not on all devices: too little memory free on the devices"));
    in = prompt(1000), in.need_bytes[PREFILL_BLEND] = 31e9;
    assert_int_equal(pick(m, in), PREFILL_BLEND); /* exactly enough */
    in.need_bytes[PREFILL_BLEND] = 31e9 + 1;
    assert_true(pick(m, in) != PREFILL_BLEND);
    m.free[0] = 8e9, m.free[1] = 64e9; /* the second device's room does not help: blend runs where the layers are */
    assert_true(pick(m, in) != PREFILL_BLEND);
    in.need_bytes[PREFILL_SLP] = in.need_bytes[PREFILL_DSLP] = 65e9;
    out = ask(m, in);
    assert_int_equal(out.mode, PREFILL_CPU);
    assert_true(isinf(out.seconds[PREFILL_BLEND]) && isinf(out.seconds[PREFILL_SLP]) &&
                isinf(out.seconds[PREFILL_DSLP]));
    for (int ask_for = MODE_AUTO; ask_for <= PREFILL_DSLP; ask_for++) /* requested or not */
        for (int k = 0; k < 200; k++) {
            m.forced_prefill = (enum exec_mode)ask_for;
            m.free[0] = k % 7 * 5e9, m.free[1] = k % 5 * 8e9;
            in = prompt(1 << k % 17), in.n_decoding = k % 3;
            for (int i = PREFILL_BLEND; i <= PREFILL_DSLP; i++) in.need_bytes[i] = (k * i * 3 % 11) * 4e9;
            out = ask(m, in);
            const double *need = &in.need_bytes[out.mode];
            if (out.mode == PREFILL_BLEND) assert_true(m.free[0] >= *need);
            if (out.mode == PREFILL_SLP) assert_true(m.free[out.device] >= *need);
            if (out.mode == PREFILL_DSLP) assert_true(m.free[0] >= *need && m.free[1] >= *need);
        }
}

/* A blend runs on the devices that have the layers; others help as far as they have room. */
static void blends_use_the_devices_with_room(void **st) {
    struct cost_machine three = paper;
    struct policy_machine m = machine(3);
    struct policy_prefill_in in = prompt(2048);
    three.n_devices = 3, three.n_domains = 4, three.domain[3] = three.domain[2];
    m.cost = &three;
    struct policy_prefill_out all = ask(m, in), out;
    assert_true(all.mode == PREFILL_BLEND && all.ranks == 3);
    in.need_bytes[PREFILL_BLEND] = 3e9, in.helper_need_bytes = 2e9;
    m.decode_uses[1] = true, m.blend_stays[1] = 28e9;
    out = ask(m, in);
    assert_true(out.mode == PREFILL_BLEND && out.ranks == 3);
    m.free[0] = 1e9; /* the first has no layers and cannot help */
    out = ask(m, in);
    assert_true(out.mode == PREFILL_BLEND && out.ranks == 2);
    assert_true(out.seconds[PREFILL_BLEND] > 1.05 * all.seconds[PREFILL_BLEND]);
    m.free[2] = 1.9e9;
    assert_int_equal(ask(m, in).ranks, 1);
    m.blend_stays[1] = 28.1e9; /* memory in use there is not available */
    assert_true(isinf(ask(m, in).seconds[PREFILL_BLEND]));
    m.blend_stays[1] = 0;
    assert_int_equal(pick(m, in), PREFILL_BLEND);
    m.decode_uses[2] = true; /* two share the layers: both need the room */
    assert_true(isinf(ask(m, in).seconds[PREFILL_BLEND]));
    m.free[2] = 3e9, m.forced_prefill = PREFILL_BLEND;
    out = ask(m, in);
    assert_true(out.mode == PREFILL_BLEND && out.ranks == 2);
    m = machine(2), m.forced_prefill = PREFILL_DSLP;
    assert_int_equal(ask(m, in).ranks, 2);
}

/* A prompt is streamed to a device that decoding sessions do not use, if it has room; otherwise to the one that keeps
 * most weights, or has most room. */
static void where_a_prompt_goes(void **st) {
    struct policy_machine m = machine(3);
    struct policy_prefill_in in = prompt(50000);
    in.n_decoding = 1, in.need_bytes[PREFILL_SLP] = 17e9;
    assert_int_equal(ask(m, in).device, 0);
    m.decode_uses[0] = true;
    assert_int_equal(ask(m, in).device, 1);
    m.free[2] = 32e9;
    assert_int_equal(ask(m, in).device, 2);
    m.free[1] = m.free[2] = 16e9;
    assert_int_equal(ask(m, in).device, 0);
    m.decode_uses[1] = m.decode_uses[2] = true, m.free[2] = 40e9;
    assert_int_equal(ask(m, in).device, 2);
    m.forced_prefill = PREFILL_SLP;
    assert_int_equal(ask(m, in).device, 2);
    const double cold = ask(m, in).seconds[PREFILL_SLP];
    m.free[1] = 40e9, m.dense_layers[1] = 61, m.expert_layers[1] = 6;
    struct policy_prefill_out out = ask(m, in);
    assert_true(out.device == 1 && out.seconds[PREFILL_SLP] <= cold);
    m.decode_uses[0] = false;
    assert_int_equal(ask(m, in).device, 0);
    in.n_decoding = 0; /* no session is disturbed */
    assert_int_equal(ask(m, in).device, 1);
    in.n_new = 4000; /* the link limits a shorter prompt */
    out = ask(m, in);
    m.dense_layers[1] = m.expert_layers[1] = 0;
    assert_true(out.seconds[PREFILL_SLP] < 0.92 * ask(m, in).seconds[PREFILL_SLP]);
}

static void forced(void **st) {
    for (int mode = PREFILL_CPU; mode <= PREFILL_DSLP; mode++)
        for (int n = 1; n < 100000; n *= 30) {
            struct policy_machine m = machine(2);
            struct policy_prefill_in in = prompt(n);
            m.forced_prefill = (enum exec_mode)mode;
            in.n_decoding = 2, in.since_decode_s = 0; /* not even the window fits */
            struct policy_prefill_out out = ask(m, in);
            assert_int_equal(out.mode, mode);
            assert_string_equal(out.why, "requested");
            assert_int_equal(exec_mode_find(STAGE_PREFILL, exec_mode_name((enum exec_mode)mode)), mode);
        }
    struct policy_machine m = machine(1);
    m.forced_prefill = PREFILL_DSLP;
    struct policy_prefill_out out = ask(m, prompt(50000));
    assert_int_equal(out.mode, PREFILL_SLP);
    assert_non_null(strstr(out.why, "dslp was requested, but: one device; "));
    m = machine(2), m.forced_prefill = PREFILL_BLEND, m.prefill_mask = 1 << PREFILL_SLP;
    out = ask(m, prompt(50000));
    assert_int_equal(out.mode, PREFILL_SLP);
    assert_non_null(strstr(out.why, "blend was requested, but: not with the current device contents; "));
    m = machine(2), m.forced_prefill = PREFILL_SLP, m.is_lost = true;
    out = ask(m, prompt(50000));
    assert_int_equal(out.mode, PREFILL_CPU);
    assert_non_null(strstr(out.why, "a device was lost"));
    assert_int_equal(exec_mode_find(STAGE_PREFILL, "single"), EXEC_MODES);
    assert_int_equal(exec_mode_find(STAGE_PREFILL, "auto"), MODE_AUTO);
}

/* The case of a policy that took one prefill's speed for all lengths: 57 tok/s at 64 tokens, 332 at 1,024, a stream of
 * 9 s. By 57 tok/s 1,024 tokens would take 18 s and be streamed; they take 3.1 s. */
static void a_short_prompt_does_not_mislead(void **st) {
    struct cost_machine c = {.n_domains = 2, .n_devices = 1};
    struct cost_model q = {
        .layers = 10, .n_experts = 16, .topk = 2, .experts = COST_8BIT, .expert_bytes = 1.1e9, .expert_flops = 1e9};
    c.domain[0].bw[COST_FFN] = (struct cost_curve){1, {1}, {210e9f}};
    c.domain[0].rate[COST_FFN][COST_8BIT] = (struct cost_curve){1, {1}, {8.9e12f}};
    c.domain[1].class = COST_GPU;
    c.domain[1].link[COST_H2D].rate = c.domain[1].link[COST_D2H].rate = 160 * 1.1e9 / 9;
    struct policy_machine m = {
        .cost = &c, .model = &q, .n_devices = 1, .free = {1e12}, .prefill_mask = 1 << PREFILL_SLP};
    for (int i = 0; i < 8; i++) {
        double expected = ask(m, prompt(64)).seconds[PREFILL_CPU];
        cost_observe(&c, &c.observed[PREFILL_CPU], 64, expected, 64 / 57.0);
    }
    struct policy_prefill_out out = ask(m, prompt(1024));
    assert_int_equal(out.mode, PREFILL_CPU);
    assert_true(out.seconds[PREFILL_CPU] < 1.3 * 1024 / 332 && out.seconds[PREFILL_CPU] > 1024 / 332.0 / 1.3);
    assert_int_equal(pick(m, prompt(6000)), PREFILL_SLP);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lengths_are_assumed),
                                       cmocka_unit_test(rows_of_the_table),
                                       cmocka_unit_test(answering_sessions_favour_streaming),
                                       cmocka_unit_test(first_come_first_served),
                                       cmocka_unit_test(memory_of_the_devices),
                                       cmocka_unit_test(each_mode_has_its_need),
                                       cmocka_unit_test(blends_use_the_devices_with_room),
                                       cmocka_unit_test(where_a_prompt_goes),
                                       cmocka_unit_test(forced),
                                       cmocka_unit_test(a_short_prompt_does_not_mislead)};
    return cmocka_run_group_tests(tests, setup, NULL);
}

/* The choice of a mode: every row of the table in policy.h, and its edges. */
#include "test/unit/unit.h"

#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "engine/placement/policy.h"

enum { ALL = 1 << PREFILL_BLEND | 1 << PREFILL_SLP | 1 << PREFILL_DSLP, STEPS = 1 << DECODE_HYBRID | 1 << DECODE_DUAL };

static struct cost_machine paper;
static struct cost_model v3;

/* DeepSeek-V3 on paper A's machine. */
static int setup(void **st) {
    static struct config c = {.vocab = 129280,
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
    for (int i = 3; i < 61; i++) c.layer[i].moe = true;
    cost_model_of(&v3, &c, DT_E4M3, DT_E4M3, DT_BF16);
    return !cost_preset(&paper, "paper-a-2");
}
static struct policy_machine machine(int n_devices) {
    struct policy_machine m = {
        .cost = &paper, .model = &v3, .n_devices = n_devices, .prefill_mask = ALL, .decode_mask = STEPS};
    for (int i = 0; i < n_devices; i++) m.free[i] = 31e9;
    return m;
}
static struct policy_prefill_in prompt(int n) { return (struct policy_prefill_in){.n_new = n, .since_decode_s = -1}; }

static struct policy_prefill_out ask(struct policy_machine m, struct policy_prefill_in in) {
    struct policy_prefill_out out;
    policy_prefill(&m, &in, &out);
    assert_true(out.why[0]);
    assert_true(strlen(out.why) < sizeof out.why - 1);
    return out;
}
static enum exec_mode pick(struct policy_machine m, struct policy_prefill_in in) { return ask(m, in).mode; }

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

/* --- Decode ----------------------------------------------------------------------------------- */

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
                                       cmocka_unit_test(long_caches_take_turns),
                                       cmocka_unit_test(lengths_are_assumed),
                                       cmocka_unit_test(rows_of_the_table),
                                       cmocka_unit_test(answering_sessions_favour_streaming),
                                       cmocka_unit_test(first_come_first_served),
                                       cmocka_unit_test(memory_of_the_devices),
                                       cmocka_unit_test(each_mode_has_its_need),
                                       cmocka_unit_test(blends_use_the_devices_with_room),
                                       cmocka_unit_test(time_of_a_decision_is_printed),
                                       cmocka_unit_test(where_a_prompt_goes),
                                       cmocka_unit_test(forced),
                                       cmocka_unit_test(a_short_prompt_does_not_mislead),
                                       cmocka_unit_test(steps_of_the_table),
                                       cmocka_unit_test(small_devices),
                                       cmocka_unit_test(batches),
                                       cmocka_unit_test(forced_steps),
                                       cmocka_unit_test(a_bound_limits_sessions),
                                       cmocka_unit_test(a_bound_limits_prompts)};
    return cmocka_run_group_tests(tests, setup, NULL);
}

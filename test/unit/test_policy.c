/* The choice of a mode: every row of the table in policy.h, and its edges. */
#include "test/unit/unit.h"

#include <math.h>
#include <stdio.h>

#include "engine/sched/policy.h"

enum { ALL = 1 << POLICY_BLEND | 1 << POLICY_SLP | 1 << POLICY_DSLP, STEPS = 1 << POLICY_DECODE_HYBRID | 1 << POLICY_DECODE_DUAL };

static struct cost_machine paper;
static struct cost_model v3;

/* DeepSeek-V3 on paper A's machine. */
static int setup(void **st) {
    static struct config c = {.vocab = 129280, .hidden = 7168, .n_layers = 61, .attn = ATTN_MLA, .n_heads = 128, .n_kv_heads = 1, .head_dim = 192, .v_dim = 128, .q_lora = 1536, .kv_lora = 512,
                              .qk_nope = 128, .qk_rope = 64, .dense_inter = 18432, .n_experts = 256, .topk = 8, .moe_inter = 2048, .shared_inter = 2048, .block_rows = 128, .block_cols = 128};
    for (int i = 3; i < 61; i++) c.layer[i].moe = true;
    cost_model_of(&v3, &c, DT_E4M3, DT_E4M3, DT_BF16);
    return !cost_preset(&paper, "paper-a-2");
}
static struct policy_machine machine(int n_devices) {
    struct policy_machine m = {.cost = &paper, .model = &v3, .n_devices = n_devices, .prefills = ALL, .decodes = STEPS};
    for (int i = 0; i < n_devices; i++) m.free[i] = 31e9;
    return m;
}
static struct policy_in prompt(int n) { return (struct policy_in){.n_new = n, .since_decode_s = -1}; }

static struct policy_out ask(struct policy_machine m, struct policy_in in) {
    struct policy_out out;
    policy_prefill(&m, &in, &out);
    assert_true(out.why[0]);
    assert_true(strlen(out.why) < sizeof out.why - 1);
    return out;
}
static enum policy_mode pick(struct policy_machine m, struct policy_in in) { return ask(m, in).mode; }

/* Without figures: the fixed lengths of paper A, as far as the engine has the modes. */
static void lengths_are_assumed(void **st) {
    struct policy_machine m = {.n_devices = 2, .prefills = 1 << POLICY_SLP | 1 << POLICY_DSLP};
    assert_int_equal(pick(m, prompt(9000)), POLICY_DSLP);
    m.n_devices = 1;
    assert_int_equal(pick(m, prompt(9000)), POLICY_SLP);
    m.n_devices = 0;
    assert_int_equal(pick(m, prompt(9000)), POLICY_CPU);
    m.n_devices = 2;
    struct policy_in in = prompt(9000);
    in.decoding = 1;
    assert_int_equal(pick(m, in), POLICY_SLP);
    in = prompt(9000), in.since_decode_s = 299;
    assert_int_equal(pick(m, in), POLICY_SLP);
    in.since_decode_s = 300;
    assert_int_equal(pick(m, in), POLICY_DSLP);
    assert_int_equal(pick(m, prompt(2047)), POLICY_CPU);
    assert_int_equal(pick(m, prompt(2048)), POLICY_DSLP);
    m.prefills |= 1 << POLICY_BLEND; /* not without figures */
    assert_int_equal(pick(m, prompt(2047)), POLICY_CPU);
    m.prefills = 1 << POLICY_SLP;
    assert_int_equal(pick(m, prompt(9000)), POLICY_SLP);
    m.prefills = 0;
    assert_int_equal(pick(m, prompt(9000)), POLICY_CPU);
    m = machine(2), m.lost = true, m.ask = POLICY_SLP;
    assert_int_equal(pick(m, prompt(9000)), POLICY_CPU);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lengths_are_assumed)};
    return cmocka_run_group_tests(tests, setup, NULL);
}

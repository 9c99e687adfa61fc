#pragma once
/* DeepSeek-V3 on the machine of paper A, and questions to the policy about it. Include once per program. */
#include "test/unit/unit.h"

#include "engine/placement/policy.h"

enum { ALL = 1 << PREFILL_BLEND | 1 << PREFILL_SLP | 1 << PREFILL_DSLP, STEPS = 1 << DECODE_HYBRID | 1 << DECODE_DUAL };

static struct cost_machine paper;
static struct cost_model v3;

/* DeepSeek-V3 on paper A's machine. */
static inline int setup(void **st) {
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
static inline struct policy_machine machine(int n_devices) {
    struct policy_machine m = {
        .cost = &paper, .model = &v3, .n_devices = n_devices, .prefill_mask = ALL, .decode_mask = STEPS};
    for (int i = 0; i < n_devices; i++) m.free[i] = 31e9;
    return m;
}
static inline struct policy_prefill_in prompt(int n) {
    return (struct policy_prefill_in){.n_new = n, .since_decode_s = -1};
}

static inline struct policy_prefill_out ask(struct policy_machine m, struct policy_prefill_in in) {
    struct policy_prefill_out out;
    policy_prefill(&m, &in, &out);
    assert_true(out.why[0]);
    assert_true(strlen(out.why) < sizeof out.why - 1);
    return out;
}
static inline enum exec_mode pick(struct policy_machine m, struct policy_prefill_in in) { return ask(m, in).mode; }

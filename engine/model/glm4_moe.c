/* GLM-4.5, 4.6 and 4.7: GQA with half-rotary heads, DeepSeek-V3's router, a shared expert. Reference: transformers,
 * models/glm4_moe. Attention bias is of q, k and v; Air has no norm over q and k. */
#include "engine/base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/deepseek.h"

static const struct deepseek_defaults defaults = {.scale = 1, .dense = 1, .norm = true};

static void parse(struct config_reader *r, struct config *c) {
    config_gqa(r, c);
    c->qkv_bias = config_bool(r, "attention_bias", false);
    c->qk_norm = config_bool(r, "use_qk_norm", false) ? QK_NORM_HEAD : QK_NORM_NONE;
    c->rope.partial = 0.5;
    config_rope(r, c, c->head_dim, 10000);
    deepseek_experts(r, c, &defaults);
    c->score = SCORE_SIGMOID;
    c->n_group = config_int(r, "n_group", 1, 1, 4096);
    c->topk_group = config_int(r, "topk_group", 1, 1, 4096);
    c->group_top2 = true;
    c->router_bias = true;
    if (c->n_group > 1 && c->n_experts / c->n_group < 2) config_fail(r, "%d experts in %d groups: a group needs two", c->n_experts, c->n_group);
}

#define L "model.layers.%d."
static const char *const types[] = {"glm4_moe", NULL};
const struct arch arch_glm4_moe = {
    .model_types = types,
    .title = "GLM-4 MoE",
    .norm_eps = 1e-5,
    .parse = parse,
    .names =
        {
            .embed = "model.embed_tokens",
            .norm = "model.norm",
            .head = "lm_head",
            .attn_norm = L "input_layernorm",
            .ffn_norm = L "post_attention_layernorm",
            .q = L "self_attn.q_proj",
            .k = L "self_attn.k_proj",
            .v = L "self_attn.v_proj",
            .o = L "self_attn.o_proj",
            .q_norm = L "self_attn.q_norm",
            .k_norm = L "self_attn.k_norm",
            .router = L "mlp.gate",
            .router_bias = L "mlp.gate.e_score_correction_bias",
            .expert_gate = L "mlp.experts.%d.gate_proj",
            .expert_up = L "mlp.experts.%d.up_proj",
            .expert_down = L "mlp.experts.%d.down_proj",
            .shared_gate_proj = L "mlp.shared_experts.gate_proj",
            .shared_up = L "mlp.shared_experts.up_proj",
            .shared_down = L "mlp.shared_experts.down_proj",
            .dense_gate = L "mlp.gate_proj",
            .dense_up = L "mlp.up_proj",
            .dense_down = L "mlp.down_proj",
        },
};

/* Laguna: GQA with its own number of heads in each layer, per-head norms of q and k, a softplus gate over the attention
 * output, and rotation by kind of layer; a sigmoid router with a selection bias, a shared expert. Mellum: the same
 * layers without gates and shared expert, and Qwen3-MoE's router. Reference: transformers, models/laguna and
 * models/mellum. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void read_layers(struct config_reader *r, struct config *c, int window, bool first_is_dense) {
    config_read_sparse_step(r, c);
    if (!config_has(r, "mlp_only_layers")) c->layer[0].moe &= !first_is_dense;
    config_read_mlp_types(r, c);
    if (config_has(r, "layer_types")) config_read_windows(r, c, window, 0);
}

static void read_experts(struct config_reader *r, struct config *c) {
    c->dense_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->n_experts = config_int(r, "num_experts", 0, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", c->arch->defaults.topk, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 0, 1, 1 << 20);
    c->norm_topk = config_bool(r, "norm_topk_prob", true);
    c->routed_scale = 1;
}

/* A gate per head (true), or per element. */
static void read_gates(struct config_reader *r, struct config *c) {
    static const char *const gatings[] = {"per-head", "per-element", NULL};
    const struct json *g = config_get(r, "gating"), *types = config_get(r, "gating_types");
    const bool per_element = g && g->type != JSON_BOOL && config_choice(r, "gating", gatings, 0) == 1;
    if (g && g->type == JSON_BOOL && !g->boolean) config_fail(r, "'gating' is false: the reference gates every layer");
    c->attn_gate = per_element ? ATTN_GATE_ELEMENT : ATTN_GATE_HEAD;
    c->attn_gate_kind = GATE_SOFTPLUS;
    for (uint32_t i = 0; types && types->type == JSON_ARRAY && i < types->n; i++)
        if (!json_is(json_at(types, i), per_element ? "per_element" : "per_head"))
            config_fail(r, "'gating_types' of layer %u is not what 'gating' says, per %s", i,
                        per_element ? "element" : "head");
}

static void read_heads(struct config_reader *r, struct config *c) {
    const struct json *heads = config_layer_list(r, c, "num_attention_heads_per_layer", false);
    for (int i = 0; heads && i < c->n_layers && !r->rc; i++)
        config_set_heads(r, c, i, json_int(json_at(heads, (uint32_t)i), 0), c->n_kv_heads);
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qk_norm = QK_NORM_HEAD;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    if (config_bool(r, "qkv_bias", false))
        config_fail(r, "'qkv_bias' is true: the reference has 'attention_bias' only");
    if (config_bool(r, "swa_attention_sink_enabled", false))
        config_fail(r, "'swa_attention_sink_enabled' is true: the reference has no sinks");
    if (config_bool(r, "moe_apply_router_weight_on_input", false))
        config_fail(r, "'moe_apply_router_weight_on_input' is true: the reference refuses it too");
    read_layers(r, c, config_int(r, "sliding_window", 512, 1, 1 << 24), true);
    config_read_ropes(r, c, 500000, 10000);
    read_heads(r, c);
    read_gates(r, c);
    read_experts(r, c);
    c->shared_inter = config_int(r, "shared_expert_intermediate_size", 0, 1, 1 << 20);
    c->routed_scale = (float)config_num(r, "moe_routed_scaling_factor", 1, 0, 1e4);
    c->router_cap = (float)config_num(r, "moe_router_logit_softcapping", 0, 0, 1e6);
    c->norm_topk = c->router_bias = true;
    c->score = SCORE_SIGMOID;
}

static void parse_mellum(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qk_norm = QK_NORM_HEAD;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    read_layers(r, c, config_int(r, "sliding_window", 1024, 1, 1 << 24), false);
    config_ignore(r, "num_mtp_layers"), config_ignore(r, "mtp_layer_types"), config_ignore(r, "mtp_mlp_layer_types");
    config_read_ropes(r, c, 500000, 10000);
    read_experts(r, c);
    c->score = SCORE_SOFTMAX;
}

#define L "model.layers.%d."
static const char *const types[] = {"laguna", NULL}, *const mellum[] = {"mellum", NULL};
const struct arch arch_laguna = {
    .model_types = types,
    .title = "Laguna",
    .defaults = {.topk = 8},
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_QK_NORM("model."), .attn_gate = L "self_attn.g_proj", NAMES_ROUTER("model."),
              .router_bias = L "mlp.experts.e_score_correction_bias", NAMES_EXPERTS("model."),
              NAMES_SHARED("model.", "shared_expert"), NAMES_DENSE("model.")},
};
const struct arch arch_mellum = {
    .model_types = mellum,
    .title = "Mellum",
    .defaults = {.topk = 8},
    .parse = parse_mellum,
    .names = {NAMES_GQA("model."), NAMES_QK_NORM("model."), NAMES_ROUTER("model."), NAMES_EXPERTS("model."),
              NAMES_DENSE("model.")},
};

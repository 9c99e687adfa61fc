/* LFM2-MoE: short gated convolutions in most layers, GQA with norms per head in the others, leading dense layers, a sigmoid router with a selection bias.
 * Reference: transformers, models/lfm2_moe. */
#include "engine/base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qk_norm = QK_NORM_HEAD;
    c->tied = config_bool(r, "tie_embedding", c->tied); /* the older key; the reference prefers it */
    config_read_rope(r, c, c->head_dim, 1000000);
    config_read_mixers(r, c, "layer_types", MIXER_CONV, "conv", "full_attention");
    c->conv.taps = config_int(r, "conv_L_cache", 3, 2, 64);
    c->conv.bias = config_bool(r, "conv_bias", false);
    const int dense = config_int(r, "num_dense_layers", 2, 0, CONFIG_MAX_LAYERS);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = i >= dense;
    c->dense_inter = config_int(r, "intermediate_size", 7168, 1, 1 << 20);
    c->n_experts = config_int(r, "num_experts", 32, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 4, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 1792, 1, 1 << 20);
    c->norm_topk = config_bool(r, "norm_topk_prob", true); /* the reference also adds 1e-6 to the sum */
    c->router_bias = config_bool(r, "use_expert_bias", true);
    c->routed_scale = (float)config_num(r, "routed_scaling_factor", 1, 0, 1e4);
    c->score = SCORE_SIGMOID;
}

#define L "model.layers.%d."
static const char *const types[] = {"lfm2_moe", NULL};
static const char *const keys[][2] = {{"rms_norm_eps", "norm_eps"}, {NULL, NULL}};
const struct arch arch_lfm2_moe = {
    .model_types = types,
    .title = "LFM2-MoE",
    .norm_eps = 1e-5,
    .defaults = {.tied = true},
    .parse = parse,
    .names = {.embed = "model.embed_tokens",
              .norm = "model.embedding_norm",
              .head = "lm_head",
              .attn_norm = L "operator_norm",
              .ffn_norm = L "ffn_norm",
              .q = L "self_attn.q_proj",
              .k = L "self_attn.k_proj",
              .v = L "self_attn.v_proj",
              .o = L "self_attn.out_proj",
              .q_norm = L "self_attn.q_layernorm",
              .k_norm = L "self_attn.k_layernorm",
              .mix_in = L "conv.in_proj",
              .mix_conv = L "conv.conv",
              .mix_out = L "conv.out_proj",
              .router = L "feed_forward.gate",
              .router_bias = L "feed_forward.expert_bias",
              .expert_gate = L "feed_forward.experts.%d.w1",
              .expert_up = L "feed_forward.experts.%d.w3",
              .expert_down = L "feed_forward.experts.%d.w2",
              .dense_gate = L "feed_forward.w1",
              .dense_up = L "feed_forward.w3",
              .dense_down = L "feed_forward.w2"},
    .key_aliases = keys,
};

/* OLMoE: GQA with a norm over all heads of q and k, experts in every layer, a softmax router. FlexOlmo: the same with
 * OLMo 2's norms, after attention and experts instead of before. Reference: transformers, models/olmoe, which clips
 * queries and keys after their norm, and models/flex_olmo. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void read_model(struct config_reader *r, struct config *c, double theta, int experts, int topk) {
    config_read_gqa(r, c);
    c->qk_norm = QK_NORM_ALL;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    config_read_rope(r, c, c->head_dim, theta);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = true;
    c->n_experts = config_int(r, "num_experts", experts, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", topk, 1, 64);
    c->moe_inter = config_int(r, "intermediate_size", c->arch->defaults.inter, 1, 1 << 20);
    c->norm_topk = config_bool(r, "norm_topk_prob", false);
    c->score = SCORE_SOFTMAX;
    c->routed_scale = 1;
}

static void parse(struct config_reader *r, struct config *c) {
    read_model(r, c, 10000, 64, 8);
    c->qkv_clip = (float)config_num(r, "clip_qkv", 0, 1e-6, 1e6);
}

static void parse_flex(struct config_reader *r, struct config *c) {
    read_model(r, c, 500000, 7, 5);
    c->no_input_norm = true;
    c->output_norm = OUTPUT_NORM_BLOCKS;
    config_keep_stream(c);
}

#define L "model.layers.%d."
static const char *const types[] = {"olmoe", NULL}, *const flex[] = {"flex_olmo", NULL};
const struct arch arch_olmoe = {
    .model_types = types,
    .title = "OLMoE",
    .norm_eps = 1e-5,
    .defaults = {.inter = 2048},
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_QK_NORM("model."), NAMES_ROUTER("model."), NAMES_EXPERTS("model.")},
};
const struct arch arch_flex_olmo = {
    .model_types = flex,
    .title = "FlexOlmo",
    .defaults = {.inter = 11008},
    .parse = parse_flex,
    .names = {NAMES_ATTENTION("model."), .attn_norm = L "post_attention_layernorm",
              .attn_out_norm = L "post_attention_layernorm", .ffn_out_norm = L "post_feedforward_layernorm",
              NAMES_QK_NORM("model."), NAMES_ROUTER("model."), NAMES_EXPERTS("model.")},
};

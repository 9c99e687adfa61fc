/* A.X K2: DeepSeek-V3.2 with these differences. The norms before attention and experts have a gate of low rank; that
 * before a dense FFN has none. Queries, and a gate per element of the attention's output, are projected from the normed
 * and the raw latent together. The router scores experts of other groups as 0. Reference: transformers, models/axk2. */
#include "base/ops.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"

static const struct deepseek_defaults defaults = {
    .scale = 2.5, .dense = 1, .shared = 1, .norm = true, .groups = 1, .topk_group = 1};

static void parse(struct config_reader *r, struct config *c) {
    deepseek_attention(r, c);
    deepseek_experts(r, c, &defaults);
    deepseek_router(r, c, &defaults);
    config_read_mlp_types(r, c);
    deepseek_indexer(r, c, 16, false);
    if (config_has(r, "n_group") != config_has(r, "topk_group"))
        config_fail(r, "'n_group' and 'topk_group' must be given together");
    if (c->qkv_bias) config_fail(r, "'attention_bias' is true: hearth reads no such tensors of this family");
    if (c->score != SCORE_SIGMOID) config_fail(r, "'scoring_func' is not sigmoid");
    c->group_zero = true;
    c->q_raw = true;
    c->attn_gate = ATTN_GATE_IN_QUERY, c->attn_gate_kind = GATE_SIGMOID;
    c->norm_gate_rank = config_int(r, "gated_norm_rank", 16, 1, 1 << 16);
}

#define L "model.layers.%d."
static const char *const types[] = {"axk2", NULL};
const struct arch arch_axk2 = {
    .model_types = types,
    .title = "A.X K2",
    .defaults = {.topk = 8},
    .parse = parse,
    .names = {NAMES_ENDS("model."), .attn_norm = L "input_layernorm.norm", .attn_norm_down = L "input_layernorm.W_down",
              .attn_norm_up = L "input_layernorm.W_up", .ffn_norm = L "post_attention_layernorm",
              .gated_ffn_norm = L "post_attention_layernorm.norm", .ffn_norm_down = L "post_attention_layernorm.W_down",
              .ffn_norm_up = L "post_attention_layernorm.W_up", .o = L "self_attn.o_proj", DEEPSEEK_MLA_NAMES("model."),
              DEEPSEEK_INDEX_NAMES, DEEPSEEK_BIAS_NAME, NAMES_ROUTER("model."), NAMES_EXPERTS("model."),
              NAMES_SHARED("model.", "shared_experts"), NAMES_DENSE("model.")}};

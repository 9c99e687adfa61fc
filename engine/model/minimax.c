/* MiniMax-Text-01 and MiniMax-M1: lightning attention in most layers, GQA with part of each head rotated in the others; a block's normed input, scaled, is what
 * the residual stream keeps. Softmax router over Mixtral's experts. Reference: the vendor's modeling_minimax_text_01.py; transformers, models/minimax, which
 * rotates whole heads. */
#include "engine/base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/names.h"

/* attn_type_list: 1 is softmax attention, 0 lightning. */
static void read_layers(struct config_reader *r, struct config *c) {
    const struct json *types = config_get(r, "attn_type_list");
    if (!types || types->type != JSON_ARRAY || types->n != (uint32_t)c->n_layers) {
        config_fail(r, "'attn_type_list' is not a list of %d", c->n_layers);
        return;
    }
    const struct branch_scale full = {(float)config_num(r, "layernorm_full_attention_alpha", 1, -1e9, 1e9),
                                      (float)config_num(r, "layernorm_full_attention_beta", 1, -1e9, 1e9)},
                              linear = {(float)config_num(r, "layernorm_linear_attention_alpha", 1, -1e9, 1e9),
                                        (float)config_num(r, "layernorm_linear_attention_beta", 1, -1e9, 1e9)},
                              mlp = {(float)config_num(r, "layernorm_mlp_alpha", 1, -1e9, 1e9), (float)config_num(r, "layernorm_mlp_beta", 1, -1e9, 1e9)};
    for (int i = 0; i < c->n_layers; i++) {
        const int64_t type = json_int(json_at(types, (uint32_t)i), -1);
        if (type != 0 && type != 1) config_fail(r, "'attn_type_list' of layer %d is neither 0, lightning attention, nor 1, softmax attention", i);
        c->layer[i] = (struct layer_config){.moe = true, .mixer = type ? MIXER_ATTENTION : MIXER_LIGHTNING, .branch = {type ? full : linear, mlp}};
    }
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    if (!config_bool(r, "postnorm", false)) config_fail(r, "'postnorm' is false: hearth knows the published models' order of norms only");
    if (config_has(r, "sliding_window")) config_fail(r, "'sliding_window' is set: the reference has full attention only");
    config_int(r, "shared_intermediate_size", 0, 0, 0);
    config_has(r, "shared_moe_mode"); /* of shared experts, which the models do not have */
    config_keep_stream(c);
    c->norms_stream = true;
    c->rope.default_partial_factor = (double)config_int(r, "rotary_dim", c->head_dim, 2, c->head_dim) / c->head_dim;
    config_read_rope(r, c, c->head_dim, 1000000);
    read_layers(r, c);
    c->n_experts = config_int(r, "num_local_experts", 0, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", c->arch->defaults.topk, 1, 64);
    c->moe_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->norm_topk = true;
    c->score = SCORE_SOFTMAX;
    c->routed_scale = 1;
}

#define L "model.layers.%d.self_attn."
static const char *const types[] = {"minimax_text_01", "minimax_m1", NULL};
const struct arch arch_minimax = {
    .model_types = types,
    .title = "MiniMax-Text-01",
    .defaults = {.topk = 2},
    .norm_eps = 1e-5,
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_SPARSE("model."), .mix_in = L "qkv_proj", .mix_gate = L "output_gate", .mix_norm = L "norm", .mix_out = L "out_proj"},
};

/* MiniMax-Text-01 and MiniMax-M1: lightning attention in most layers, GQA with part of each head rotated in the others;
 * a block's normed input, scaled, is what the residual stream keeps. Softmax router over Mixtral's experts. Reference:
 * the vendor's modeling_minimax_text_01.py; transformers, models/minimax (model_type minimax), which rotates whole
 * heads and ignores rotary_dim, which the vendor's code and vLLM obey. */
#include <string.h>

#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

/* Marks the layers with lightning attention: 0 in attn_type_list, linear_attention in the layer_types that transformers
 * saves. */
static void read_mixers(struct config_reader *r, struct config *c) {
    const struct json *types = config_layer_list(r, c, "attn_type_list", false);
    const bool saved = config_has(r, "layer_types");
    if (saved) config_read_mixers(r, c, "layer_types", MIXER_LIGHTNING, "linear_attention", "full_attention");
    else if (!types) config_fail(r, "'attn_type_list' is not a list of %d", c->n_layers);
    for (int i = 0; types && i < c->n_layers && !r->rc; i++) {
        const int64_t type = json_int(json_at(types, (uint32_t)i), -1);
        const uint8_t mixer = type ? MIXER_ATTENTION : MIXER_LIGHTNING;
        if (type != 0 && type != 1)
            config_fail(r, "'attn_type_list' of layer %d is neither 0, lightning attention, nor 1, softmax attention",
                        i);
        if (saved && mixer != c->layer[i].mixer)
            config_fail(r, "'attn_type_list' and 'layer_types' differ in layer %d", i);
        c->layer[i].mixer = mixer;
    }
}

static float factor(struct config_reader *r, const char *published, const char *saved) {
    return (float)config_num(r, config_either(r, published, saved), 1, -1e9, 1e9);
}
static void read_layers(struct config_reader *r, struct config *c) {
    const struct branch_scale full = {factor(r, "layernorm_full_attention_alpha", "full_attn_alpha_factor"),
                                      factor(r, "layernorm_full_attention_beta", "full_attn_beta_factor")},
                              linear = {factor(r, "layernorm_linear_attention_alpha", "linear_attn_alpha_factor"),
                                        factor(r, "layernorm_linear_attention_beta", "linear_attn_beta_factor")},
                              mlp = {factor(r, "layernorm_mlp_alpha", "mlp_alpha_factor"),
                                     factor(r, "layernorm_mlp_beta", "mlp_beta_factor")};
    read_mixers(r, c);
    for (int i = 0; i < c->n_layers; i++)
        c->layer[i] = (struct layer_config){.moe = true,
                                            .mixer = c->layer[i].mixer,
                                            .branch = {c->layer[i].mixer == MIXER_ATTENTION ? full : linear, mlp}};
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    const bool saved = !strcmp(c->model_type, "minimax");
    if (!config_bool(r, "postnorm", saved))
        config_fail(r, "'postnorm' is false: hearth supports the published models' order of norms only");
    if (config_has(r, "sliding_window"))
        config_fail(r, "'sliding_window' is set: the reference has full attention only");
    config_int(r, "shared_intermediate_size", 0, 0, 0);
    config_ignore(r, "shared_moe_mode"); /* of shared experts, which the models do not have */
    config_keep_stream(c);
    c->norms_stream = true;
    c->rope.default_partial_factor = (double)config_int(r, "rotary_dim", c->head_dim, 2, c->head_dim) / c->head_dim;
    config_read_rope(r, c, c->head_dim, 1000000);
    config_int(r, "block_size", 256, 1, 1 << 24); /* tokens that the reference computes together */
    read_layers(r, c);
    c->lightning = (struct lightning_config){.heads = c->n_heads, .dim = c->head_dim, .norm_groups = 1};
    c->n_experts = config_int(r, "num_local_experts", 0, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", c->arch->defaults.topk, 1, 64);
    c->moe_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->norm_topk = true;
    c->score = SCORE_SOFTMAX;
    c->routed_scale = 1;
}

#define L "model.layers.%d.self_attn."
static const char *const types[] = {"minimax_text_01", "minimax_m1", "minimax", NULL};
/* The decays of heads, which transformers saves and hearth computes. */
static const char *const decays[] = {"self_attn.slope_rate", "self_attn.query_decay", "self_attn.key_decay",
                                     "self_attn.diagonal_decay", NULL};
const struct arch arch_minimax = {
    .model_types = types,
    .title = "MiniMax-Text-01",
    .defaults = {.topk = 2},
    .norm_eps = 1e-5,
    .parse = parse,
    .skipped_tensors = decays,
    .names = {NAMES_GQA("model."), NAMES_SPARSE("model."), .mix_in = L "qkv_proj", .mix_gate = L "output_gate",
              .mix_norm = L "norm", .mix_out = L "out_proj"},
};

/* AFMoE (Arcee Trinity): GQA with a norm per head on q and k and a gated output, norms before and after both blocks, a
 * sigmoid router with a selection bias. Layers with a window are rotated, the others are not. Reference: transformers,
 * models/afmoe. */
#include <math.h>

#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

/* Refuses grouped selection, which the published models do not use. */
static void only_published(struct config_reader *r) {
    static const char *const groups[] = {"n_group", "topk_group", "num_expert_groups", "num_limited_groups", NULL},
                             *const scores[] = {"sigmoid", NULL};
    for (int i = 0; groups[i]; i++)
        if (config_int(r, groups[i], 1, 0, 4096) > 1)
            config_fail(r, "'%s' is more than 1: the reference does not select experts by groups", groups[i]);
    config_choice(r, "score_func", scores, 0);
    /* training, speed, unused */
    config_ignore(r, "load_balance_coeff"), config_ignore(r, "use_grouped_mm"), config_ignore(r, "attention_bias");
}

static void read_layers(struct config_reader *r, struct config *c) {
    const int window = config_int(r, "sliding_window", 1024, 1, 1 << 24),
              every = config_int(r, "global_attn_every_n_layers", 4, 1, CONFIG_MAX_LAYERS),
              dense = config_int(r, "num_dense_layers", 1, 0, CONFIG_MAX_LAYERS);
    if (config_has(r, "layer_types")) config_read_windows(r, c, window, 0);
    for (int i = 0; i < c->n_layers; i++) {
        if (!config_has(r, "layer_types")) c->layer[i].window = (i + 1) % every ? window : 0;
        c->layer[i].rope = c->layer[i].window ? LAYER_ROPE_FIRST : LAYER_ROPE_NONE;
        c->layer[i].moe = i >= dense;
    }
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_dense(r, c);
    c->qk_norm = QK_NORM_HEAD;
    c->attn_gate = ATTN_GATE_ELEMENT;
    config_read_rope(r, c, c->head_dim, 10000);
    only_published(r);
    read_layers(r, c);
    if (config_bool(r, "mup_enabled", false)) c->embed_scale = sqrtf((float)c->hidden);
    c->output_norm = OUTPUT_NORM_BLOCKS;
    config_keep_stream(c);
    c->n_experts = config_int(r, "num_experts", 0, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", c->arch->defaults.topk, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 0, 1, 1 << 20);
    c->shared_inter =
        config_int(r, "num_shared_experts", config_is_null(r, "num_shared_experts") ? 0 : 2, 0, 64) * c->moe_inter;
    c->norm_topk = config_bool(r, "route_norm", true);
    c->routed_scale = (float)config_num(r, "route_scale", 1, 0, 1e4);
    c->score = SCORE_SIGMOID;
    c->router_bias = true;
}

#define L "model.layers.%d."
static const char *const types[] = {"afmoe", NULL};
const struct arch arch_afmoe = {
    .model_types = types,
    .title = "AFMoE",
    .defaults = {.topk = 6},
    .norm_eps = 1e-5,
    .parse = parse,
    .names = {NAMES_ATTENTION("model."), .attn_norm = L "input_layernorm",
              .attn_out_norm = L "post_attention_layernorm", .ffn_norm = L "pre_mlp_layernorm",
              .ffn_out_norm = L "post_mlp_layernorm", NAMES_QK_NORM("model."), .attn_gate = L "self_attn.gate_proj",
              .router = L "mlp.router.gate", .router_bias = L "mlp.expert_bias", NAMES_EXPERTS("model."),
              NAMES_SHARED("model.", "shared_experts"), NAMES_DENSE("model.")},
};

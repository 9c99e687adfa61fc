/* Kolibri 1: GQA with a norm per head on q and k; layers with a window are rotated, the others are not; norms before
 * and after each block; a router that adds its bias to the logits instead of the scores, a shared expert. Reference:
 * transformers, models/kolibri1. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void read_layers(struct config_reader *r, struct config *c) {
    const bool no_windows = config_is_null(r, "sliding_window"); /* then all layers are rotated */
    const int window = no_windows ? 0 : config_int(r, "sliding_window", 513, 1, 1 << 24);
    const bool listed = config_has(r, "layer_types");
    if (listed) config_read_windows(r, c, window, 0);
    else if (no_windows) config_fail(r, "'sliding_window' is null without 'layer_types'");
    for (int i = 0; i < c->n_layers; i++) {
        struct layer_config *l = &c->layer[i];
        if (!listed) l->window = (i + 1) % 5 ? window : 0;
        l->rope = l->window || no_windows ? LAYER_ROPE_FIRST : LAYER_ROPE_NONE;
        l->moe = true;
    }
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qk_norm = QK_NORM_HEAD;
    config_read_rope(r, c, c->head_dim, 10000);
    read_layers(r, c);
    c->n_experts = config_int(r, "num_experts", 384, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 6, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 512, 1, 1 << 20);
    c->shared_inter = config_int(r, "shared_expert_intermediate_size", 512, 1, 1 << 20);
    c->norm_topk = config_bool(r, "norm_topk_prob", false);
    c->router_bias = true;
    c->score = SCORE_SIGMOID_BY_LOGIT;
    c->routed_scale = 1;
    c->output_norm = OUTPUT_NORM_BLOCKS;
    config_keep_stream(c);
}

#define L "model.layers.%d."
static const char *const types[] = {"kolibri1", NULL};
const struct arch arch_kolibri1 = {
    .model_types = types,
    .title = "Kolibri 1",
    .defaults = {.heads = 48, .kv_heads = 4, .head_dim = 128},
    .parse = parse,
    .names = {NAMES_GQA("model."), .attn_out_norm = L "post_attn_norm", .ffn_out_norm = L "post_ffn_norm",
              NAMES_QK_NORM("model."), NAMES_ROUTER("model."), .router_bias = L "moe.router.expert_bias",
              NAMES_EXPERTS("model."), NAMES_SHARED("model.", "shared_experts")},
};

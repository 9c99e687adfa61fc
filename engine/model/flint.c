/* Flint: GQA with a norm per head on q and k and a sink per head; layers with a window are rotated, the others are not;
 * a sigmoid router and a shared expert without a gate. Reference: transformers, models/flint. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void read_layers(struct config_reader *r, struct config *c) {
    const int window = config_int(r, "sliding_window", 513, 1, 1 << 24);
    const bool listed = config_has(r, "layer_types");
    if (listed) config_read_windows(r, c, window, 0);
    config_read_sparse_step(r, c);
    for (int i = 0; i < c->n_layers; i++) {
        struct layer_config *l = &c->layer[i];
        if (!listed) l->window = i < 2 || i % 4 == 1 || i == c->n_layers - 1 ? 0 : window;
        if (i < 2 && !config_has(r, "mlp_only_layers")) l->moe = false;
        l->rope = l->window ? LAYER_ROPE_FIRST : LAYER_ROPE_NONE;
    }
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qk_norm = QK_NORM_HEAD;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->sinks = true;
    config_read_rope(r, c, c->head_dim, 10000);
    read_layers(r, c);
    c->dense_inter = config_int(r, "intermediate_size", 6144, 1, 1 << 20);
    c->n_experts = config_int(r, "num_experts", 256, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 6, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 512, 1, 1 << 20);
    c->shared_inter = config_int(r, "shared_expert_intermediate_size", 1024, 1, 1 << 20);
    c->norm_topk = config_bool(r, "norm_topk_prob", true);
    c->score = SCORE_SIGMOID;
    c->routed_scale = 1;
}

static const char *const types[] = {"flint", NULL};
const struct arch arch_flint = {
    .model_types = types,
    .title = "Flint",
    .defaults = {.heads = 32, .kv_heads = 4, .head_dim = 128},
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_QK_NORM("model."), .sinks = "model.layers.%d.self_attn.softmax_offset",
              NAMES_ROUTER("model."), NAMES_EXPERTS("model."), NAMES_SHARED("model.", "shared_expert"),
              NAMES_DENSE("model.")},
};

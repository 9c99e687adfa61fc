/* Qwen1.5/2-MoE: GQA with bias on q, k, v; a shared expert with a sigmoid gate plus routed ones. Reference:
 * transformers, models/qwen2_moe; its layer_types select the layers with a sliding window. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void read_windows(struct config_reader *r, struct config *c) {
    bool use = config_bool(r, "use_sliding_window", false);
    int window = config_int(r, "sliding_window", 4096, 0, 1 << 24);
    if (!use) window = 0;
    else if (!window) config_fail(r, "'use_sliding_window' is true, but 'sliding_window' is missing or 0");
    int max_layers = config_int(r, "max_window_layers", 28, 0, 1 << 20);
    config_read_windows(r, c, window, use ? max_layers : 0);
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qkv_bias = config_bool(r, "qkv_bias", true);
    config_read_rope(r, c, c->head_dim, 10000);
    config_read_sparse_step(r, c);
    read_windows(r, c);
    c->dense_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->n_experts = config_int(r, "num_experts", 0, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", c->arch->defaults.topk, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 0, 1, 1 << 20);
    c->shared_inter = config_int(r, "shared_expert_intermediate_size", 0, 1, 1 << 20);
    c->shared_gate = true;
    c->norm_topk = config_bool(r, "norm_topk_prob", false);
    c->score = SCORE_SOFTMAX;
    c->routed_scale = 1;
}

static const char *const types[] = {"qwen2_moe", NULL};
const struct arch arch_qwen2_moe = {
    .model_types = types,
    .title = "Qwen2-MoE",
    .defaults = {.heads = 16, .topk = 4},
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_ROUTER("model."), NAMES_EXPERTS("model."),
              NAMES_SHARED("model.", "shared_expert"), .shared_gate = "model.layers.%d.mlp.shared_expert_gate",
              NAMES_DENSE("model.")},
};

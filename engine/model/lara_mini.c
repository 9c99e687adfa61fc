/* Lara Mini: gated DeltaNet whose inputs are one matrix, GQA with a window and rotation, and GQA over all keys without
 * rotation, by layer; norms per head on q and k; a softmax router, stacked experts and a shared one without a gate.
 * Reference: transformers, models/lara_mini. */
#include "base/ops.h"
#include "engine/model/config_common.h"
#include "engine/model/qwen3_next.h"

static void read_layers(struct config_reader *r, struct config *c) {
    enum { LINEAR, SLIDING, FULL };
    static const char *const kinds[] = {
        [LINEAR] = "linear_attention", [SLIDING] = "sliding_attention", [FULL] = "full_attention", NULL};
    static const uint8_t period[] = {LINEAR, SLIDING, LINEAR, FULL, SLIDING}; /* without layer_types */
    const int window = config_int(r, "sliding_window", 512, 1, 1 << 24);
    const struct json *types = config_layer_list(r, c, "layer_types", false);
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        const int kind =
            types ? config_layer_choice(r, "layer_types", types, i, kinds) : period[i % (int)sizeof period];
        c->layer[i] = (struct layer_config){.moe = true,
                                            .mixer = kind == LINEAR ? MIXER_DELTA : MIXER_ATTENTION,
                                            .window = kind == SLIDING ? window : 0,
                                            .rope = kind == SLIDING ? LAYER_ROPE_FIRST : LAYER_ROPE_NONE};
    }
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qk_norm = QK_NORM_HEAD;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    config_read_rope(r, c, c->head_dim, 10000);
    read_layers(r, c);
    qwen3_next_read_delta(r, c, 8, 16);
    c->n_experts = config_int(r, "num_experts", 128, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 4, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 512, 1, 1 << 20);
    c->shared_inter = config_int(r, "shared_expert_intermediate_size", 512, 1, 1 << 20);
    c->norm_topk = config_bool(r, "norm_topk_prob", true);
    c->score = SCORE_SOFTMAX;
    c->routed_scale = 1;
}

#define L "model.layers.%d.linear_attn."
static const char *const types[] = {"lara_mini", NULL};
const struct arch arch_lara_mini = {
    .model_types = types,
    .title = "Lara Mini",
    .defaults = {.heads = 16, .kv_heads = 4, .head_dim = 128, .tied = true},
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_QK_NORM("model."), .delta_qkv = L "in_proj", .delta_z = L "in_proj",
              .delta_b = L "in_proj", .delta_a = L "in_proj", .delta_out = L "out_proj", .delta_conv = L "conv1d",
              .delta_rate = L "A_log", .delta_dt = L "dt_bias", .delta_norm = L "out_norm", NAMES_ROUTER("model."),
              NAMES_STACKED("model."), NAMES_SHARED("model.", "shared_expert")},
    .layout = {.delta = true, .experts = true, .gate_up = GATE_UP_STACKED},
};

/* Qwen3-Next, Qwen3.5-MoE and, without experts, Qwen3.5: gated DeltaNet in most layers, gated GQA with a quarter of
 * each head rotated in the others, norms by 1
 * + w, and a gated shared expert plus routed ones. Reference: transformers, models/qwen3_next, models/qwen3_5_moe and
 * models/qwen3_5 (language models only). */
#include "engine/model/qwen3_next.h"
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

/* layer_types if present, else every full_attention_interval-th layer has attention. */
static void read_mixers(struct config_reader *r, struct config *c, const char *attention) {
    int interval = config_int(r, "full_attention_interval", 4, 1, CONFIG_MAX_LAYERS);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].mixer = (i + 1) % interval ? MIXER_DELTA : MIXER_ATTENTION;
    if (config_has(r, "layer_types"))
        config_read_mixers(r, c, "layer_types", MIXER_DELTA, "linear_attention", attention);
}

void qwen3_next_read_delta(struct config_reader *r, struct config *c, int k_heads, int v_heads) {
    struct delta_config *d = &c->delta;
    d->taps = config_int(r, "linear_conv_kernel_dim", 4, 1, 16);
    d->k_dim = config_int(r, "linear_key_head_dim", 128, 1, 1024);
    d->v_dim = config_int(r, "linear_value_head_dim", 128, 1, 1024);
    d->k_heads = config_int(r, "linear_num_key_heads", k_heads, 1, 1024);
    d->v_heads = config_int(r, "linear_num_value_heads", v_heads, 1, 1024);
    if (d->v_heads % d->k_heads)
        config_fail(r, "%d value heads do not divide among %d key heads of linear attention", d->v_heads, d->k_heads);
}

static void read_mixing(struct config_reader *r, struct config *c, const char *attention) {
    config_read_gqa(r, c);
    c->qk_norm = QK_NORM_HEAD;
    c->norm = NORM_RMS_PLUS_ONE;
    c->attn_gate = ATTN_GATE_IN_QUERY;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    if (!config_bool(r, "attn_output_gate", true))
        config_fail(r, "'attn_output_gate' is false: the reference has no such attention");
    c->rope.default_partial_factor = 0.25;
    config_read_rope(r, c, c->head_dim, 10000);
    read_mixers(r, c, attention);
    qwen3_next_read_delta(r, c, 16, 32);
    static const char *const state[] = {"float32", NULL};
    config_choice(r, "mamba_ssm_dtype", state, 0);
    if (c->n_mtp == 0) c->n_mtp = config_int(r, "mtp_num_hidden_layers", 0, 0, 16);
}

void qwen3_next_parse(struct config_reader *r, struct config *c, const char *attention) {
    read_mixing(r, c, attention);
    c->n_experts = config_int(r, "num_experts", 0, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", c->arch->defaults.topk, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 0, 1, 1 << 20);
    c->shared_inter = config_int(r, "shared_expert_intermediate_size", 0, 1, 1 << 20);
    c->shared_gate = true;
    c->score = SCORE_SOFTMAX;
    c->routed_scale = 1;
}

static void parse_next(struct config_reader *r, struct config *c) {
    qwen3_next_parse(r, c, "full_attention");
    c->delta.fused = true;
    config_read_sparse_step(r, c);
    c->dense_inter = config_int(r, "intermediate_size", 5632, 1, 1 << 20);
    c->norm_topk = config_bool(r, "norm_topk_prob", true);
}

static void read_vision(struct config_reader *r, struct config *c) {
    c->rope.default_section[0] = 11, c->rope.default_section[1] = 10;
    config_skip_vision(r, c);
}

/* Every layer has experts, whose weights are always normalized. */
static void parse_3_5(struct config_reader *r, struct config *c) {
    qwen3_next_parse(r, c, "full_attention");
    const struct json *dense = config_get(r, "mlp_only_layers");
    if (dense && dense->n) config_fail(r, "'mlp_only_layers' is not empty: the reference has experts in every layer");
    if (!config_bool(r, "norm_topk_prob", true))
        config_fail(r, "'norm_topk_prob' is false: the reference always normalizes");
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = true;
    c->norm_topk = true;
}
static void parse_3_5_nested(struct config_reader *r, struct config *c) {
    read_vision(r, c);
    parse_3_5(r, c);
}

static void parse_dense(struct config_reader *r, struct config *c) {
    read_mixing(r, c, "full_attention");
    c->dense_inter = config_int(r, "intermediate_size", 12288, 1, 1 << 20);
}
static void parse_dense_nested(struct config_reader *r, struct config *c) {
    read_vision(r, c);
    parse_dense(r, c);
}

static const char *const next[] = {"qwen3_next", NULL}, *const with_vision[] = {"qwen3_5_moe", NULL},
                         *const text[] = {"qwen3_5_moe_text", NULL};
const struct arch arch_qwen3_next = {.model_types = next,
                                     .title = "Qwen3-Next",
                                     .defaults = {.kv_heads = 2, .topk = 10},
                                     .parse = parse_next,
                                     .mlx_adds_one = true,
                                     .names = {QWEN3_NEXT_NAMES("model."), NAMES_EXPERTS("model.")}};
/* Published stacked in BF16, one by one in FP8. */
#define ARCH(types, member, parser, model, experts, ...) \
    { \
        .model_types = types, .title = "Qwen3.5-MoE", .defaults = {.kv_heads = 2, .topk = 8}, \
        .text_config_key = member, .parse = parser, .mlx_adds_one = true, \
        .names = {QWEN3_NEXT_NAMES(model), experts(model)}, __VA_ARGS__ \
    }
#define STACKED_OR_APART(name, ...) \
    static const struct arch name##_apart = ARCH(__VA_ARGS__, NAMES_EXPERTS, .layout = {0}); \
    const struct arch name = ARCH(__VA_ARGS__, NAMES_STACKED, .layout = {.experts = true, .gate_up = GATE_UP_STACKED}, \
                                  .unstacked = &name##_apart)
STACKED_OR_APART(arch_qwen3_5_moe, with_vision, "text_config", parse_3_5_nested, "model.language_model.");
STACKED_OR_APART(arch_qwen3_5_moe_text, text, NULL, parse_3_5, "model.");
static const char *const dense_with_vision[] = {"qwen3_5", NULL}, *const dense_text[] = {"qwen3_5_text", NULL};
const struct arch arch_qwen3_5 = {.model_types = dense_with_vision,
                                  .title = "Qwen3.5",
                                  .text_config_key = "text_config",
                                  .parse = parse_dense_nested,
                                  .mlx_adds_one = true,
                                  .names = {QWEN3_NEXT_NAMES("model.language_model.")}};
const struct arch arch_qwen3_5_text = {.model_types = dense_text,
                                       .title = "Qwen3.5",
                                       .parse = parse_dense,
                                       .mlx_adds_one = true,
                                       .names = {QWEN3_NEXT_NAMES("model.")}};

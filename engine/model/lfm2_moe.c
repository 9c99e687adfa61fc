/* LFM2-MoE and, without experts, LFM2: short gated convolutions in most layers, GQA with norms per head in the others;
 * leading dense layers, a sigmoid router with a selection bias. Reference: transformers, models/lfm2_moe and
 * models/lfm2. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse_common(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qk_norm = QK_NORM_HEAD;
    c->tied = config_bool(r, "tie_embedding", c->tied); /* the older key; the reference prefers it */
    config_read_rope(r, c, c->head_dim, 1000000);
    c->conv.taps = config_int(r, "conv_L_cache", 3, 2, 64);
    c->conv.bias = config_bool(r, "conv_bias", false);
}

static void parse(struct config_reader *r, struct config *c) {
    parse_common(r, c);
    config_read_mixers(r, c, "layer_types", MIXER_CONV, "conv", "full_attention");
    const int dense = config_int(r, "num_dense_layers", 2, 0, CONFIG_MAX_LAYERS);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = i >= dense;
    c->dense_inter = config_int(r, "intermediate_size", 7168, 1, 1 << 20);
    c->n_experts = config_int(r, "num_experts", 32, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 4, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 1792, 1, 1 << 20);
    c->norm_topk = config_bool(r, "norm_topk_prob", true); /* the reference also adds 1e-6 to the sum */
    c->router_bias = config_bool(r, "use_expert_bias", true);
    c->routed_scale = (float)config_num(r, "routed_scaling_factor", 1, 0, 1e4);
    c->score = SCORE_SIGMOID;
}

/* Refuses what the published code of LFM2 could do and the reference does not; other keys repeat sizes or say how
 * training began. */
static void only_published(struct config_reader *r, const struct config *c) {
    static const char *const sizes[] = {"block_dim", "conv_dim", "conv_dim_out", NULL}, *const unused[] = {
                                                                                            "block_mlp_init_scale",
                                                                                            "block_norm_eps",
                                                                                            "block_out_init_scale",
                                                                                            "block_use_xavier_init",
                                                                                            "conv_use_xavier_init",
                                                                                            "theta",
                                                                                            NULL};
    for (int i = 0; sizes[i]; i++)
        if (config_int(r, sizes[i], c->hidden, 1, 65536) != c->hidden)
            config_fail(r, "'%s' is not 'hidden_size', %d: the reference ignores it", sizes[i], c->hidden);
    if (config_int(r, "num_heads", c->n_heads, 1, 1024) != c->n_heads)
        config_fail(r, "'num_heads' is not 'num_attention_heads', %d", c->n_heads);
    if (!config_bool(r, "block_use_swiglu", true))
        config_fail(r, "'block_use_swiglu' is false: the reference always gates");
    if (!config_bool(r, "use_pos_enc", true)) config_fail(r, "'use_pos_enc' is false: the reference rotates");
    for (int i = 0; unused[i]; i++) config_ignore(r, unused[i]);
}

static void parse_dense(struct config_reader *r, struct config *c) {
    parse_common(r, c);
    only_published(r, c);
    const struct json *attends = config_get(r, "full_attn_idxs");
    for (int i = 0; i < c->n_layers; i++) c->layer[i].mixer = attends ? MIXER_CONV : MIXER_ATTENTION;
    for (uint32_t i = 0; attends && i < attends->n; i++) {
        const int64_t k = json_int(json_at(attends, i), -1);
        if (k < 0 || k >= c->n_layers)
            config_fail(r, "'full_attn_idxs' has %lld of %d layers", (long long)k, c->n_layers);
        else c->layer[k].mixer = MIXER_ATTENTION;
    }
    if (config_has(r, "layer_types")) config_read_mixers(r, c, "layer_types", MIXER_CONV, "conv", "full_attention");
    const int inter = config_int(r, "intermediate_size", 12288, 1, 1 << 20);
    c->dense_inter = config_int(r, "block_ff_dim", inter, 1, 1 << 20); /* the older key */
    const int multiple = config_int(r, "block_multiple_of", 256, 1, 1 << 16);
    const double times = config_num(r, "block_ffn_dim_multiplier", 1, 1e-3, 1e3);
    if (!config_bool(r, "block_auto_adjust_ff_dim", true)) return;
    c->dense_inter = (int)(times * (2 * c->dense_inter / 3));
    c->dense_inter = (c->dense_inter + multiple - 1) / multiple * multiple;
}

#define L "model.layers.%d."
static const char *const types[] = {"lfm2_moe", NULL};
static const char *const keys[][2] = {{"rms_norm_eps", "norm_eps"}, {NULL, NULL}};
#define NAMES \
    .embed = "model.embed_tokens", .norm = "model.embedding_norm", .head = "lm_head", .attn_norm = L "operator_norm", \
    .ffn_norm = L "ffn_norm", .q = L "self_attn.q_proj", .k = L "self_attn.k_proj", .v = L "self_attn.v_proj", \
    .o = L "self_attn.out_proj", .q_norm = L "self_attn.q_layernorm", .k_norm = L "self_attn.k_layernorm", \
    .mix_in = L "conv.in_proj", .mix_conv = L "conv.conv", .mix_out = L "conv.out_proj", \
    .router = L "feed_forward.gate", .router_bias = L "feed_forward.expert_bias", \
    .expert_gate = L "feed_forward.experts.%d.w1", .expert_up = L "feed_forward.experts.%d.w3", \
    .expert_down = L "feed_forward.experts.%d.w2", .dense_gate = L "feed_forward.w1", .dense_up = L "feed_forward.w3", \
    .dense_down = L "feed_forward.w2"
#define ARCH(types, name, parser) \
    { \
        .model_types = types, .title = name, .norm_eps = 1e-5, .defaults = {.tied = true}, .parse = parser, \
        .names = {NAMES}, .key_aliases = keys \
    }
static const char *const dense_types[] = {"lfm2", NULL};
const struct arch arch_lfm2_moe = ARCH(types, "LFM2-MoE", parse);
const struct arch arch_lfm2 = ARCH(dense_types, "LFM2", parse_dense);

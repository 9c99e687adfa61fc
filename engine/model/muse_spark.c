/* Muse Spark, language model only: GQA with unit norms of queries, keys and heads' outputs, and a gate per element;
 * windows and unrotated layers; experts in a latent space whose outputs are normed one by one; gates between the
 * residual stream and a block's normed output; normed embeddings and capped logits. Muse Glimmer, its dense sibling,
 * has neither experts nor gates of the stream. Reference: transformers, models/muse_spark and models/muse_glimmer. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

/* Every fourth layer, counted back from the last, is neither rotated nor limited to a window, unless lists say
 * otherwise. */
static bool is_fourth(const struct config *c, int layer) { return (c->n_layers - 1 - layer) % 4 == 0; }
static void read_layers(struct config_reader *r, struct config *c) {
    const struct json *thetas = config_layer_list(r, c, "layer_rope_theta", false);
    const int window = config_is_null(r, "sliding_window") ? 0 : config_int(r, "sliding_window", 2048, 1, 1 << 24);
    if (config_has(r, "layer_types")) config_read_windows(r, c, window, 0);
    else
        for (int i = 0; i < c->n_layers; i++) {
            c->layer[i].window = is_fourth(c, i) ? 0 : window;
            if (!is_fourth(c, i) && !window)
                config_fail(r, "layer %d has a sliding window by default, and 'sliding_window' is null", i);
        }
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        const double theta = thetas ? json_num(json_at(thetas, (uint32_t)i), -1) : is_fourth(c, i) ? 0 : c->rope.theta;
        c->layer[i].rope = theta > 0 ? LAYER_ROPE_FIRST : LAYER_ROPE_NONE;
        if (theta != 0 && theta != c->rope.theta) /* the reference would ignore the difference */
            config_fail(r,
                        "'layer_rope_theta' of layer %d is neither 0 nor 'rope_theta', %g; hearth supports one base "
                        "for all rotated layers",
                        i, c->rope.theta);
    }
}

static void parse_common(struct config_reader *r, struct config *c, double qk_scale, double logit_scale) {
    config_skip_vision(r, c);
    config_ignore(r, "out_hidden_size"); /* belongs to the vision encoder */
    config_read_gqa(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    /* GGUF only, as is the next one: it has the factor of scores in weights of the norms */
    c->rope.interleaved = config_bool(r, "rope_interleave", false);
    c->qk_norm = config_bool(r, "qk_norm_has_weights", false) ? QK_NORM_HEAD : QK_NORM_PLAIN;
    config_read_rope(r, c, c->head_dim, 500000);
    read_layers(r, c);
    c->attn_scale *= (float)config_num(r, "qk_scale_factor", qk_scale, 1e-6, 1e6);
    c->attn_gate = ATTN_GATE_ELEMENT;
    c->attn_gate_kind = GATE_SIGMOID;
    c->embed_norm_unit = c->centered_norms = true;
    c->output_eps = (float)config_num(r, "post_norm_eps", 1e-8, 1e-30, 1);
    c->logit_scale = (float)config_num(r, "output_multiplier", logit_scale, 1e-6, 1e6);
    c->logit_cap = (float)config_num(r, "final_logit_softcapping", 20, 1e-6, 1e6);
    c->dense_inter = config_int(r, "intermediate_size", c->arch->defaults.inter, 1, 1 << 20);
    config_keep_stream(c);
}

static void parse(struct config_reader *r, struct config *c) {
    config_ignore(r, "audio_config"), config_ignore(r, "audio_token_id");
    parse_common(r, c, 5.4730064863875, 0.1767766952966369);
    c->head_out_norm = true;
    c->output_norm = OUTPUT_NORM_UNIT;
    c->merges_stream = true;
    c->merge_temperature = (float)config_num(r, "residual_gate_temperature", 0.3, 1e-6, 1e6);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = true;
    config_read_mlp_types(r, c);
    c->n_experts = config_int(r, "num_local_experts", 256, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 8, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 4096, 1, 1 << 20);
    c->moe_latent = config_int(r, "moe_hidden_size", 4096, 1, 65536);
    c->expert_out_norm = true;
    c->router_scale = c->logit_scale; /* one key has both */
    c->score = SCORE_SIGMOID;
    c->router_bias = c->norm_topk = true;
    c->routed_scale = (float)config_num(r, "routed_scaling_factor", 1, 0, 1e4);
}

static void parse_glimmer(struct config_reader *r, struct config *c) {
    parse_common(r, c, 3.87, 0.19611613513818404);
    c->output_norm = OUTPUT_NORM_BLOCKS;
}

#define M "model.language_model."
#define L M "layers.%d."
#define SPARK \
    NAMES_ATTENTION(M), NAMES_NORMS_AROUND(M), NAMES_DENSE(M), NAMES_ROUTER(M), \
        .attn_gate = L "self_attn.gate_proj", .attn_merge_gate = L "post_attention_residual_gate.gate", \
        .ffn_merge_gate = L "post_feedforward_residual_gate.gate", \
        .router_bias = L "mlp.gate.e_score_correction_bias", .routed_in = L "mlp.pre_expert_proj", \
        .routed_in_norm = L "mlp.pre_expert_norm", .routed_out = L "mlp.post_expert_proj", \
        .expert_out_norm = L "mlp.experts.post_expert_norm"
static const char *const spark[] = {"muse_spark", NULL}, *const glimmer[] = {"muse_glimmer", NULL},
                         *const glimmer_keys[][2] = {{"hidden_act", "hidden_activation"}, {NULL, NULL}};
#define ARCH(apart, ...) \
    { \
        .model_types = spark, .title = "Muse Spark", .norm_eps = 1e-5, \
        .defaults = {.vocab = 202048, \
                     .hidden = 8192, \
                     .layers = 62, \
                     .context = 1048576, \
                     .inter = 16384, \
                     .heads = 128, \
                     .kv_heads = 16, \
                     .head_dim = 64}, \
        .text_config_key = "text_config", .parse = parse, .unstacked = apart, __VA_ARGS__ \
    }
static const struct arch spark_apart = ARCH(NULL, .names = {SPARK, NAMES_EXPERTS(M)});
const struct arch arch_muse_spark =
    ARCH(&spark_apart, .names = {SPARK, NAMES_STACKED(M)}, .layout = {.experts = true, .gate_up = GATE_UP_STACKED});
const struct arch arch_muse_glimmer = {
    .model_types = glimmer,
    .title = "Muse Glimmer",
    .norm_eps = 1e-5,
    .defaults = {.vocab = 202048,
                 .hidden = 6656,
                 .layers = 52,
                 .context = 131072,
                 .inter = 19968,
                 .heads = 32,
                 .kv_heads = 2,
                 .head_dim = 128},
    .text_config_key = "text_config",
    .parse = parse_glimmer,
    .names = {NAMES_ATTENTION(M), NAMES_NORMS_AROUND(M), NAMES_DENSE(M), .attn_gate = L "self_attn.gate_proj"},
    .key_aliases = glimmer_keys,
};

/* GGUF architectures with layers of several kinds, which metadata lists by layer, or which the tensors show. Sources of
 * keys and names: llama.cpp's conversion scripts and the gguf package's name tables. */
#include <stdio.h>
#include <string.h>

#include "engine/model/gguf_layers.h"

#define L GGUF_LAYER
/* Mamba layers. */
#define MAMBA \
    .mix_in = L "ssm_in", .mix_conv = L "ssm_conv1d", .mix_dt = L "ssm_dt.bias", .mix_rate = L "ssm_a", \
    .mix_skip = L "ssm_d", .mix_out = L "ssm_out"
#define AROUND .ffn_norm = L "ffn_norm", .attn_out_norm = L "post_attention_norm", .ffn_out_norm = L "post_ffw_norm"
static const struct tensor_names standard_names = {GGUF_NAMES, .ffn_norm = L "ffn_norm", .attn_gate = L "attn_gate"},
                                 gated_around = {GGUF_NAMES, AROUND, .attn_gate = L "attn_gate"},
                                 jamba = {GGUF_NAMES,
                                          MAMBA,
                                          .ffn_norm = L "ffn_norm",
                                          .mix_select = L "ssm_x",
                                          .mix_step = L "ssm_dt",
                                          .mix_dt_norm = L "ssm_dt_norm",
                                          .mix_b_norm = L "ssm_b_norm",
                                          .mix_c_norm = L "ssm_c_norm"},
                                 granite = {GGUF_NAMES, MAMBA, .ffn_norm = L "ffn_norm", .mix_norm = L "ssm_norm"},
                                 indexed = {GGUF_NAMES, GGUF_INDEXER, .ffn_norm = L "ffn_norm"};
/* MoVA: GGUF_NAMES and value experts. */
static const struct tensor_names k2_horizon = {GGUF_NAMES, .ffn_norm = L "ffn_norm", .attn_gate = L "attn_gate",
                                               .v_router = L "attn_v_gate", .v_experts = L "attn_v_exps"};
/* Architectures whose names differ from GGUF_NAMES: the common ones, without them. */
#define SHARED_NAMES \
    .embed = "token_embd", .head = "output", .attn_norm = L "attn_norm", .q = L "attn_q", .k = L "attn_k", \
    .v = L "attn_v", .o = L "attn_output", .q_norm = L "attn_q_norm", .k_norm = L "attn_k_norm", \
    .router_bias = L "exp_probs_b.bias"
static const struct tensor_names lfm2 = {SHARED_NAMES,
                                         .norm = "token_embd_norm", /* llama.cpp's name of the final norm */
                                         .ffn_norm = L "ffn_norm",
                                         .mix_in = L "shortconv.in_proj",
                                         .mix_conv = L "shortconv.conv",
                                         .mix_out = L "shortconv.out_proj",
                                         .router = L "ffn_gate_inp",
                                         .expert_gate = L "ffn_gate_exps",
                                         .expert_up = L "ffn_up_exps",
                                         .expert_down = L "ffn_down_exps",
                                         .dense_gate = L "ffn_gate",
                                         .dense_up = L "ffn_up",
                                         .dense_down = L "ffn_down"},
                                 nemotron = {SHARED_NAMES,
                                             MAMBA,
                                             .norm = "output_norm",
                                             .ffn_norm = L "attn_norm", /* a layer is one block */
                                             .mix_norm = L "ssm_norm",
                                             .router = L "ffn_gate_inp",
                                             .expert_gate = L "ffn_up_exps", /* FFNs have no gate */
                                             .expert_down = L "ffn_down_exps",
                                             .routed_in = L "ffn_latent_down",
                                             .routed_out = L "ffn_latent_up",
                                             .shared_gate_proj = L "ffn_up_shexp",
                                             .shared_down = L "ffn_down_shexp",
                                             .dense_gate = L "ffn_up",
                                             .dense_down = L "ffn_down"},
                                 gemma4 = {SHARED_NAMES,
                                           AROUND,
                                           .norm = "output_norm",
                                           .dense_out_norm = L "post_ffw_norm_1",
                                           .experts_out_norm = L "post_ffw_norm_2",
                                           .experts_norm = L "pre_ffw_norm_2",
                                           .stream_scale = L "layer_output_scale.weight",
                                           .token_table = "per_layer_token_embd",
                                           .token_from_embed = "per_layer_model_proj",
                                           .token_from_embed_norm = "per_layer_proj_norm",
                                           .token_gate = L "inp_gate",
                                           .token_out = L "proj",
                                           .token_out_norm = L "post_norm",
                                           .router_norm = L "ffn_gate_inp.scale",
                                           .router = L "ffn_gate_inp",
                                           .expert_scale = L "ffn_down_exps.scale",
                                           .expert_gate = L "ffn_gate_exps",
                                           .expert_up = L "ffn_up_exps",
                                           .expert_down = L "ffn_down_exps",
                                           .dense_gate = L "ffn_gate",
                                           .dense_up = L "ffn_up",
                                           .dense_down = L "ffn_down"};

static double is_sliding(const struct config_builder *t, int64_t layer) {
    return gguf_layers_at(t, GGUF_WINDOWS, layer, 0) != 0;
}

/* --- Recurrent layers: those without KV heads ------------------------------------------------- */

static const char *mamba_kind(const struct config_builder *t, int64_t layer) {
    return gguf_layers_at(t, "attention.head_count_kv", layer, 0) ? "attention" : "mamba";
}
static const char *conv_kind(const struct config_builder *t, int64_t layer) {
    return gguf_layers_at(t, "attention.head_count_kv", layer, 0) ? "full_attention" : "conv";
}
/* Returns inner_size divided by the value of `key`; the quotient must be whole. */
static int64_t inner_over(struct config_builder *t, const char *key) {
    const int64_t inner = json_int(gguf_build_meta(t, "ssm.inner_size"), 0),
                  divisor = json_int(gguf_build_meta(t, key), 0);
    if (divisor > 0 && inner > 0 && inner % divisor == 0) return inner / divisor;
    gguf_build_fail(t, "metadata '%s.ssm.inner_size' is %lld, which '%s.%s', %lld, does not divide", t->arch,
                    (long long)inner, t->arch, key, (long long)divisor);
    return 0;
}

static double jamba_experts(const struct config_builder *t, int64_t layer) {
    return gguf_layers_has(t, layer, GGUF_HAS_ROUTER) ? (double)json_int(gguf_build_meta(t, "expert_count"), 0) : 1;
}
static void derive_jamba(struct config_builder *t) {
    gguf_build_int(t, "num_key_value_heads", gguf_layers_largest(t, "attention.head_count_kv", NULL, 0));
    gguf_build_int(t, "mamba_expand", inner_over(t, "embedding_length"));
    gguf_build_bool(t, "mamba_conv_bias", t->facts->conv_bias);
    gguf_layers_kinds(t, "layers_block_type", mamba_kind);
    gguf_layers_numbers(t, "layers_num_experts", jamba_experts);
}

/* Small models have a dense FFN instead of the shared expert. rope.scaling.finetuned: whether positions rotate at
 * all. */
static void derive_granite(struct config_builder *t) {
    const struct json *shared = gguf_build_meta(t, "expert_shared_feed_forward_length"),
                      *dense = gguf_build_meta(t, "feed_forward_length");
    const bool moe = json_int(gguf_build_meta(t, "expert_count"), 0) > 0;
    gguf_build_int(t, "num_key_value_heads", gguf_layers_largest(t, "attention.head_count_kv", NULL, 0));
    gguf_build_int(t, "num_local_experts", 0);
    gguf_build_int(t, "num_experts_per_tok", 0);
    if (shared || (dense && !moe)) gguf_build_json(t, "shared_intermediate_size", shared && moe ? *shared : *dense);
    gguf_build_int(t, "mamba_expand", inner_over(t, "embedding_length"));
    gguf_build_int(t, "mamba_d_head", inner_over(t, "ssm.time_step_rank"));
    gguf_build_bool(t, "mamba_conv_bias", t->facts->conv_bias);
    gguf_build_text(t, "position_embedding_type",
                    json_bool(gguf_build_meta(t, "rope.scaling.finetuned"), false) ? "rope" : "nope");
    gguf_build_bool(t, "rope_interleave", true);
    gguf_layers_kinds(t, "layer_types", mamba_kind);
}

static const char *nemotron_kind(const struct config_builder *t, int64_t layer) {
    if (gguf_layers_has(t, layer, GGUF_HAS_ROUTER)) return "moe";
    if (gguf_layers_has(t, layer, GGUF_HAS_FFN)) return "mlp";
    return gguf_layers_has(t, layer, GGUF_HAS_QUERIES) ? "attention" : "mamba";
}
static void derive_nemotron(struct config_builder *t) {
    const struct json *eps = gguf_build_meta(t, "attention.layer_norm_epsilon");
    int64_t inter = 0;
    for (int64_t i = 0, n = gguf_build_layers(t); i < n; i++)
        if (gguf_layers_has(t, i, GGUF_HAS_FFN) && gguf_layers_at(t, "feed_forward_length", i, 0) > inter)
            inter = gguf_layers_at(t, "feed_forward_length", i, 0);
    if (inter) gguf_build_int(t, "intermediate_size", inter);
    /* files have it beside the key of RMS norms, which has precedence */
    if (eps) gguf_build_json(t, "rms_norm_eps", *eps);
    gguf_build_only_sigmoid(t);
    gguf_build_int(t, "num_key_value_heads", gguf_layers_largest(t, "attention.head_count_kv", NULL, 0));
    gguf_build_int(t, "head_dim", gguf_build_head_dim(t));
    gguf_build_int(t, "mamba_head_dim", inner_over(t, "ssm.time_step_rank"));
    gguf_build_bool(t, "use_conv_bias", t->facts->conv_bias);
    gguf_build_bool(t, "attention_bias", t->facts->qkv_bias);
    gguf_layers_kinds(t, "layers_block_type", nemotron_kind);
}

static void derive_lfm2_mixers(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_build_int(t, "num_key_value_heads", gguf_layers_largest(t, "attention.head_count_kv", NULL, 0));
    gguf_layers_kinds(t, "layer_types", conv_kind);
}
static void derive_lfm2moe(struct config_builder *t) {
    gguf_build_only_sigmoid(t);
    derive_lfm2_mixers(t);
    gguf_build_bool(t, "use_expert_bias", t->facts->router_bias);
}
static void derive_lfm2(struct config_builder *t) {
    derive_lfm2_mixers(t);
    gguf_build_bool(t, "block_auto_adjust_ff_dim", false); /* feed_forward_length is adjusted */
}

/* --- Layers with a window --------------------------------------------------------------------- */

/* Layers that take keys of earlier ones may have FFNs that are twice as wide. */
static void derive_gemma4_ffns(struct config_builder *t, int64_t first) {
    const int64_t n = gguf_build_layers(t), inter = gguf_layers_at(t, "feed_forward_length", 0, 0);
    const bool wide = first < n && gguf_layers_at(t, "feed_forward_length", first, inter) == 2 * inter;
    for (int64_t i = 0; i < n; i++)
        if (gguf_layers_at(t, "feed_forward_length", i, inter) != (wide && i >= first ? 2 : 1) * inter)
            gguf_build_fail(
                t, "metadata '%s.feed_forward_length' differs between layers in a way that hearth does not support",
                t->arch);
    if (inter) gguf_build_int(t, "intermediate_size", inter);
    gguf_build_bool(t, "use_double_wide_mlp", wide);
}

/* Heads of global layers have key_length, and no tensor of values if the keys are the values too. Their rotation is a
 * list of factors: a pair with 1e30 does not rotate. */
static void derive_gemma4(struct config_builder *t) {
    const int64_t n_own_keys = gguf_build_layers(t) - json_int(gguf_build_meta(t, "attention.shared_kv_layers"), 0);
    const struct json *dim = gguf_build_meta(t, "attention.key_length"),
                      *window_dim = gguf_build_meta(t, "attention.key_length_swa");
    const int64_t experts = json_int(gguf_build_meta(t, "expert_count"), 0);
    bool values_are_keys = false;
    for (int64_t i = 0; i < n_own_keys; i++)
        values_are_keys |= !gguf_layers_at(t, GGUF_WINDOWS, i, 0) && !gguf_layers_has(t, i, GGUF_HAS_VALUES);
    const int64_t rotated = json_int(gguf_build_meta(t, "rope.dimension_count"), json_int(dim, 0)),
                  window_rotated = json_int(gguf_build_meta(t, "rope.dimension_count_swa"), json_int(window_dim, 0));
    if (rotated != json_int(dim, 0) || window_rotated != json_int(window_dim, 0))
        gguf_build_fail(
            t, "metadata '%s.rope.dimension_count' rotates a part of the heads; hearth supports factors for that",
            t->arch);
    if (dim) gguf_build_json(t, "global_head_dim", *dim);
    if (window_dim) gguf_build_json(t, "head_dim", *window_dim);
    gguf_build_bool(t, "attention_k_eq_v", values_are_keys);
    gguf_build_int(t, "num_key_value_heads", gguf_layers_largest(t, "attention.head_count_kv", GGUF_WINDOWS, 1));
    gguf_build_int(t, "num_global_key_value_heads", gguf_layers_largest(t, "attention.head_count_kv", GGUF_WINDOWS, 0));
    gguf_build_bool(t, "enable_moe_block", experts > 0);
    gguf_build_int(t, "hidden_size_per_layer_input", 0);
    derive_gemma4_ffns(t, n_own_keys);
    gguf_layers_kinds(t, "layer_types", gguf_layers_window_kind);
    struct config_builder in;
    if (!gguf_build_open(t, &in)) return;
    gguf_build_rope_by_factors(&in, "full_attention", t->facts->freqs, -1, "rope.freq_base");
    gguf_build_rope_by_factors(&in, "sliding_attention", (struct gguf_factors){0}, 0, "rope.freq_base_swa");
    gguf_build_close(t, &in, "rope_parameters");
}

/* Layers without a window rotate half of each head, which llama.cpp's code says, and alone are scaled. */
static double step_theta(const struct config_builder *t, int64_t layer) {
    return json_num(
        gguf_build_meta(t, gguf_layers_at(t, GGUF_WINDOWS, layer, 0) ? "rope.freq_base_swa" : "rope.freq_base"), 10000);
}
static int64_t step_rotary(const struct config_builder *t, bool sliding) {
    const int64_t rotated = json_int(gguf_build_meta(t, "rope.dimension_count"), gguf_build_head_dim(t));
    return sliding ? json_int(gguf_build_meta(t, "rope.dimension_count_swa"), rotated) : rotated / 2;
}
static double step_partial(const struct config_builder *t, int64_t layer) {
    const int64_t dim = gguf_build_head_dim(t);
    return dim > 0 ? (double)step_rotary(t, gguf_layers_at(t, GGUF_WINDOWS, layer, 0) != 0) / (double)dim : 0;
}
/* Layers with experts, as a text of numbers. */
static void put_moe_layers(struct config_builder *t) {
    const uint32_t n = gguf_layers_count(t);
    char *text = arena_alloc(t->arena, (size_t)n * 5 + 1);
    size_t at = 0;
    if (!text) {
        t->rc = error_set(t->e, ERR_MEMORY, "%s: no memory for its metadata", t->what);
        return;
    }
    text[0] = 0;
    for (uint32_t i = 0; i < n; i++)
        if (gguf_layers_has(t, i, GGUF_HAS_ROUTER)) at += (size_t)snprintf(text + at, 6, "%s%u", at ? "," : "", i);
    gguf_build_text(t, "moe_layers_enum", text);
}
static void derive_step(struct config_builder *t) {
    const struct json *limits = gguf_build_meta(t, "swiglu_clamp_exp"),
                      *shared = gguf_build_meta(t, "swiglu_clamp_shexp");
    struct config_builder in;
    gguf_build_only_sigmoid(t);
    gguf_build_int(t, "head_dim", gguf_build_head_dim(t));
    gguf_build_int(t, "num_attention_heads", gguf_layers_largest(t, "attention.head_count", GGUF_WINDOWS, 0));
    gguf_build_int(t, "num_key_value_heads", gguf_layers_largest(t, "attention.head_count_kv", GGUF_WINDOWS, 0));
    gguf_layers_kinds(t, "layer_types", gguf_layers_window_kind);
    gguf_layers_numbers(t, "rope_theta", step_theta);
    gguf_layers_numbers(t, "partial_rotary_factors", step_partial);
    put_moe_layers(t);
    gguf_build_bool(t, "use_qk_norm", t->facts->qk_norm);
    gguf_build_bool(t, "use_head_wise_attn_gate", gguf_layers_has(t, 0, GGUF_HAS_GATE));
    gguf_build_bool(t, "use_moe_router_bias", t->facts->router_bias);
    if (limits) gguf_build_json(t, "swiglu_limits", *limits);
    if (shared) gguf_build_json(t, "swiglu_limits_shared", *shared);
    if (t->facts->freqs.v)
        gguf_build_rope_by_factors(t, "rope_scaling", t->facts->freqs, step_rotary(t, false) / 2, "");
    if (!gguf_build_open(t, &in)) return;
    gguf_build_int(&in, "num_attention_heads", gguf_layers_largest(t, "attention.head_count", GGUF_WINDOWS, 1));
    gguf_build_int(&in, "num_attention_groups", gguf_layers_largest(t, "attention.head_count_kv", GGUF_WINDOWS, 1));
    gguf_build_close(t, &in, "attention_other_setting");
}

static void derive_mimo(struct config_builder *t) {
    const int64_t dim = gguf_build_head_dim(t), rotary = json_int(gguf_build_meta(t, "rope.dimension_count"), dim);
    bool sinks[2] = {false, false};
    for (int64_t i = 0, n = gguf_build_layers(t); i < n; i++)
        sinks[gguf_layers_at(t, GGUF_WINDOWS, i, 0) != 0] |= gguf_layers_has(t, i, GGUF_HAS_SINKS);
    gguf_build_only_sigmoid(t);
    gguf_build_int(t, "head_dim", dim);
    gguf_build_int(t, "v_head_dim", json_int(gguf_build_meta(t, "attention.value_length"), dim));
    gguf_build_int(t, "num_key_value_heads", gguf_layers_largest(t, "attention.head_count_kv", GGUF_WINDOWS, 0));
    gguf_build_int(t, "swa_num_key_value_heads", gguf_layers_largest(t, "attention.head_count_kv", GGUF_WINDOWS, 1));
    /* is rounded down */
    if (rotary != dim && dim > 0) gguf_build_num(t, "partial_rotary_factor", ((double)rotary + 0.5) / (double)dim);
    gguf_build_bool(t, "add_full_attention_sink_bias", sinks[0]);
    gguf_build_bool(t, "add_swa_attention_sink_bias", sinks[1]);
    gguf_layers_numbers(t, "hybrid_layer_pattern", is_sliding);
    gguf_layers_numbers(t, "moe_layer_freq", gguf_layers_has_router);
}

static void derive_afmoe(struct config_builder *t) {
    gguf_build_only_sigmoid(t);
    gguf_build_attention(t);
    gguf_build_bool(t, "mup_enabled", true);
    if (gguf_build_meta(t, GGUF_WINDOWS)) gguf_layers_windows(t, 4, false); /* else every fourth has none */
}
static void derive_exaone(struct config_builder *t) {
    gguf_build_only_sigmoid(t);
    gguf_build_attention(t);
    if (gguf_build_meta(t, GGUF_WINDOWS)) gguf_layers_windows(t, 4, false);
}

/* llama.cpp's code fixes what Llama 4's metadata omit: chunks, temperatures, and that the model with 128 experts has no
 * norms of q and k. */
static void derive_llama4(struct config_builder *t) {
    const struct json *window = gguf_build_meta(t, "attention.sliding_window");
    gguf_build_attention(t);
    if (window && json_int(window, 0) == 0)
        gguf_build_fail(t, "metadata '%s.attention.sliding_window' is 0; hearth supports Llama 4 with chunks", t->arch);
    gguf_build_int(t, "attention_chunk_size", 8192);
    gguf_build_int(t, "floor_scale", 8192);
    gguf_build_num(t, "attn_scale", 0.1);
    gguf_build_bool(t, "attn_temperature_tuning", true);
    gguf_build_bool(t, "use_qk_norm", json_int(gguf_build_meta(t, "expert_count"), 0) != 128);
}

/* --- GLM-5 ------------------------------------------------------------------------------------ */

static void derive_glm_dsa(struct config_builder *t) {
    gguf_build_deepseek(t);
    gguf_layers_kinds(t, "indexer_types", gguf_layers_index_kind);
}

/* --- Tables ----------------------------------------------------------------------------------- */

#define GRANITE \
    {"attention.scale", "attention_multiplier"}, {"embedding_scale", "embedding_multiplier"}, \
        {"logit_scale", "logits_scaling"}, { \
        "residual_scale", "residual_multiplier" \
    }
#define END \
    { NULL, NULL }
static void derive_k2_horizon(struct config_builder *t) {
    const int64_t gating = json_int(gguf_build_meta(t, "expert_gating_func"), GATING_SIGMOID);
    gguf_build_head_sizes(t);
    gguf_build_rope(t, 0);
    if (gating < GATING_UNSET || gating > GATING_SIGMOID)
        gguf_build_fail(t, "metadata '%s.expert_gating_func' is %lld; hearth supports 1 and 2", t->arch,
                        (long long)gating);
    gguf_build_text(t, "router_score_func", gating == GATING_SOFTMAX ? "softmax" : "sigmoid");
    gguf_build_bool(t, "moe_gate_bias", t->facts->router_bias);
    gguf_build_bool(t, "query_key_norm", t->facts->qk_norm);
    gguf_build_bool(t, "attention_bias", t->facts->qkv_bias);
    if (gguf_layers_has(t, 0, GGUF_HAS_GATE)) gguf_build_text(t, "attention_gate_func", "softplus");
}

static const struct gguf_key
    jamba_keys[] = {{"attention.head_count_kv", NULL},
                    {"expert_count", "num_experts"},
                    {"ssm.conv_kernel", "mamba_d_conv"},
                    {"ssm.inner_size", NULL},
                    {"ssm.state_size", "mamba_d_state"},
                    {"ssm.time_step_rank", "mamba_dt_rank"},
                    END},
    granite_keys[] = {GGUF_HEAD_KEYS,
                      GRANITE,
                      {"attention.head_count_kv", NULL},
                      {"expert_count", "num_local_experts"},
                      {"expert_shared_feed_forward_length", NULL},
                      {"ssm.conv_kernel", "mamba_d_conv"},
                      {"ssm.group_count", "mamba_n_groups"},
                      {"ssm.inner_size", NULL},
                      {"ssm.state_size", "mamba_d_state"},
                      {"ssm.time_step_rank", "mamba_n_heads"},
                      END},
    nemotron_keys[] = {GGUF_HEAD_KEYS,
                       GGUF_ROUTER_KEYS("n_routed_experts", "routed_scaling_factor", "norm_topk_prob"),
                       {"attention.head_count_kv", NULL},
                       {"attention.layer_norm_epsilon", NULL},
                       {"expert_group_count", "n_group"},
                       {"expert_group_used_count", "topk_group"},
                       {"expert_shared_count", NULL},
                       {"expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size"},
                       {"feed_forward_length", NULL},
                       {"moe_latent_size", "moe_latent_size"},
                       {"ssm.conv_kernel", "conv_kernel"},
                       {"ssm.group_count", "n_groups"},
                       {"ssm.inner_size", NULL},
                       {"ssm.state_size", "ssm_state_size"},
                       {"ssm.time_step_rank", "mamba_num_heads"},
                       END},
    lfm2_keys[] = {GGUF_HEAD_KEYS,
                   GGUF_ROUTER_KEYS("num_experts", "routed_scaling_factor", "norm_topk_prob"),
                   {"attention.head_count_kv", NULL},
                   {"leading_dense_block_count", "num_dense_layers"},
                   {"shortconv.l_cache", "conv_L_cache"},
                   END},
    gemma4_keys[] = {GGUF_HEAD_KEYS,
                     GGUF_COPY_WINDOW_KEYS,
                     {"attention.head_count_kv", NULL},
                     {"attention.key_length_swa", NULL},
                     {"attention.shared_kv_layers", "num_kv_shared_layers"},
                     {"attention.value_length_swa", NULL},
                     {"embedding_length_per_layer_input", "hidden_size_per_layer_input"},
                     {"expert_count", "num_experts"},
                     {"expert_used_count", "top_k_experts"},
                     {"feed_forward_length", NULL},
                     {"final_logit_softcapping", "final_logit_softcapping"},
                     {"rope.dimension_count_swa", NULL},
                     {"rope.freq_base", NULL},
                     {"rope.freq_base_swa", NULL},
                     END},
    step_keys[] = {GGUF_HEAD_KEYS,
                   GGUF_COPY_WINDOW_KEYS,
                   GGUF_ROUTER_KEYS("moe_num_experts", "moe_router_scaling_factor", "norm_expert_weight"),
                   {"attention.head_count", NULL},
                   {"attention.head_count_kv", NULL},
                   {"expert_shared_feed_forward_length", "share_expert_dim"},
                   {"expert_used_count", "moe_top_k"},
                   {"leading_dense_block_count", NULL},
                   {"moe_every_n_layers", NULL},
                   {"rope.dimension_count_swa", NULL},
                   {"rope.freq_base", NULL},
                   {"rope.freq_base_swa", NULL},
                   {"swiglu_clamp_exp", NULL},
                   {"swiglu_clamp_shexp", NULL},
                   END},
    mimo_keys[] = {GGUF_HEAD_KEYS,
                   GGUF_COPY_WINDOW_KEYS,
                   GGUF_ROUTER_KEYS("n_routed_experts", "routed_scaling_factor", "norm_topk_prob"),
                   {"attention.head_count_kv", NULL},
                   {"attention.value_scale", "attention_value_scale"},
                   {"leading_dense_block_count", NULL},
                   {"rope.freq_base_swa", "swa_rope_theta"},
                   END},
    afmoe_keys[] = {GGUF_HEAD_KEYS,
                    GGUF_COPY_WINDOW_KEYS,
                    GGUF_ROUTER_KEYS("num_experts", "route_scale", "route_norm"),
                    {"expert_group_count", "n_group"},
                    {"expert_group_used_count", "topk_group"},
                    {"expert_shared_count", "num_shared_experts"},
                    {"leading_dense_block_count", "num_dense_layers"},
                    END},
    exaone_keys[] = {GGUF_HEAD_KEYS,
                     GGUF_COPY_WINDOW_KEYS,
                     GGUF_ROUTER_KEYS("n_routed_experts", "routed_scaling_factor", "norm_topk_prob"),
                     {"expert_group_count", "n_group"},
                     {"expert_group_used_count", "topk_group"},
                     {"expert_shared_count", "n_shared_experts"},
                     {"expert_shared_feed_forward_length", NULL},
                     {"leading_dense_block_count", "first_k_dense_replace"},
                     END},
    k2_horizon_keys[] = {GGUF_HEAD_KEYS,
                         GGUF_ROUTER_KEYS("num_experts", "router_scaling_factor", "norm_topk_prob"),
                         {"attention.group_norm_groups", "layernorm_num_groups"},
                         {"attention.value_expert_count", "mova_num_experts"},
                         {"attention.value_expert_used_count", "mova_num_experts_per_tok"},
                         {"expert_shared_count", "num_shared_experts"},
                         {"expert_shared_feed_forward_length", NULL},
                         {"leading_dense_block_count", "num_dense_layers"},
                         {"moe_every_n_layers", "decoder_sparse_step"},
                         {"rope.dimension_count", "rope_head_dim"},
                         END},
    llama4_keys[] = {GGUF_HEAD_KEYS,
                     {"attention.sliding_window", NULL},
                     {"expert_count", "num_local_experts"},
                     {"expert_feed_forward_length", "intermediate_size"},
                     {"expert_gating_func", NULL},
                     {"feed_forward_length", "intermediate_size_mlp"},
                     {"interleave_moe_layer_step", "interleave_moe_layer_step"},
                     {"leading_dense_block_count", NULL},
                     END},
    glm_dsa_keys[] = {GGUF_DEEPSEEK_KEYS, GGUF_INDEXER_KEYS, {"attention.indexer.types", NULL}, END};

const struct gguf_arch gguf_layered[] = {
    {"jamba", "jamba", &jamba, jamba_keys, derive_jamba, NULL},
    {"granitehybrid", "granitemoehybrid", &granite, granite_keys, derive_granite, NULL},
    {"nemotron_h", "nemotron_h", &nemotron, nemotron_keys, derive_nemotron, NULL},
    {"nemotron_h_moe", "nemotron_h", &nemotron, nemotron_keys, derive_nemotron, NULL},
    {"lfm2moe", "lfm2_moe", &lfm2, lfm2_keys, derive_lfm2moe, NULL},
    {"lfm2", "lfm2", &lfm2, lfm2_keys, derive_lfm2, NULL},
    {"gemma4", "gemma4_text", &gemma4, gemma4_keys, derive_gemma4, NULL},
    {"step35", "step3p5", &standard_names, step_keys, derive_step, NULL},
    {"mimo2", "mimo_v2_flash", &standard_names, mimo_keys, derive_mimo, NULL},
    {"afmoe", "afmoe", &gated_around, afmoe_keys, derive_afmoe, NULL},
    {"exaone-moe", "exaone_moe", &standard_names, exaone_keys, derive_exaone, NULL},
    {"k2-horizon", "k2_horizon", &k2_horizon, k2_horizon_keys, derive_k2_horizon, NULL},
    {"llama4", "llama4_text", &standard_names, llama4_keys, derive_llama4, NULL},
    {"deepseek32", "deepseek_v32", &indexed, glm_dsa_keys, gguf_build_deepseek, NULL},
    {"glm-dsa", "glm_moe_dsa", &indexed, glm_dsa_keys, derive_glm_dsa, NULL},
    {NULL, NULL, NULL, NULL, NULL, NULL},
};

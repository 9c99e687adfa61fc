/* GGUF architectures whose layers differ in their windows and rotations. Sources of keys and names: llama.cpp's
 * conversion scripts and graphs. */
#include "engine/model/gguf_layers.h"

#define L GGUF_LAYER
enum { WINDOW_PERIOD = 4 }; /* files without a window pattern: every fourth layer has no window */
static const struct tensor_names pre_norm = {GGUF_NAMES, .ffn_norm = L "ffn_norm", .attn_gate = L "attn_gate"},
                                 dots3 = {GGUF_NAMES, GGUF_INDEXER, .ffn_norm = L "ffn_norm",
                                          .attn_gate = L "attn_gate", .k_rope_norm = L "attn_k_norm"},
                                 post_norm = {GGUF_NAMES, .attn_out_norm = L "post_attention_norm",
                                              .ffn_out_norm = L "post_ffw_norm"},
                                 parallel = {GGUF_NAMES, .ffn_norm = L "attn_norm"},
                                 granite_swa = {GGUF_NAMES, .ffn_norm = L "ffn_norm"},
                                 around = {GGUF_NAMES, .attn_out_norm = L "post_attention_norm",
                                           .ffn_norm = L "ffn_norm", .ffn_out_norm = L "post_ffw_norm",
                                           .attn_gate = L "attn_gate"};

static const char *ffn_kind(const struct config_builder *t, int64_t layer) {
    return gguf_layers_has(t, layer, GGUF_HAS_ROUTER) ? "sparse" : "dense";
}

static double heads_at(const struct config_builder *t, int64_t layer) {
    return (double)gguf_layers_at(t, "attention.head_count", layer, 0);
}
static bool gate_is_per_head(const struct config_builder *t, int64_t layer) {
    return layer < CONFIG_MAX_LAYERS &&
           t->facts->gate_rows[layer] == gguf_layers_at(t, "attention.head_count", layer, 0);
}
static const char *gate_kind(const struct config_builder *t, int64_t layer) {
    return gate_is_per_head(t, layer) ? "per_head" : "per_element";
}
static void derive_laguna(struct config_builder *t) {
    gguf_build_only_sigmoid(t);
    gguf_build_head_sizes(t);
    gguf_build_rope_by_window(t);
    gguf_layers_windows(t, WINDOW_PERIOD, true);
    gguf_build_int(t, "num_attention_heads", gguf_layers_largest(t, "attention.head_count", NULL, 0));
    gguf_layers_numbers(t, "num_attention_heads_per_layer", heads_at);
    gguf_layers_kinds(t, "mlp_layer_types", ffn_kind);
    gguf_build_text(t, "gating", gate_is_per_head(t, 0) ? "per-head" : "per-element");
    gguf_layers_kinds(t, "gating_types", gate_kind);
    gguf_build_bool(t, "attention_bias", t->facts->qkv_bias);
    if (!json_bool(gguf_build_meta(t, "expert_weights_norm"), true))
        gguf_build_fail(
            t, "metadata '%s.expert_weights_norm' is false; hearth supports Laguna's router with weights of sum 1",
            t->arch);
}

/* llama.cpp normalizes the router's weights, without metadata for it. */
static void derive_mellum(struct config_builder *t) {
    gguf_build_head_sizes(t);
    gguf_build_rope_by_window(t);
    gguf_layers_windows(t, WINDOW_PERIOD, false);
    gguf_build_bool(t, "norm_topk_prob", true);
    gguf_build_bool(t, "attention_bias", t->facts->qkv_bias);
}

/* llama.cpp knows Maple with layers without a window that do not rotate. */
static void derive_maple(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_layers_windows(t, WINDOW_PERIOD, false);
    if (gguf_build_meta(t, "swiglu_clamp_exp")) gguf_layers_limit(t);
}

/* The family derives from layer_types and first_k_dense_replace which layers rotate. */
static void derive_cohere2moe(struct config_builder *t) {
    const int64_t gating = json_int(gguf_build_meta(t, "expert_gating_func"), GATING_SIGMOID);
    const struct json *dense = gguf_build_meta(t, "feed_forward_length");
    gguf_build_attention(t);
    gguf_layers_windows(t, WINDOW_PERIOD, true);
    if (gguf_build_meta(t, "attention.layer_norm_rms_epsilon"))
        gguf_build_fail(t,
                        "metadata '%s.attention.layer_norm_rms_epsilon': hearth supports Cohere 2 with layer norms, "
                        "whose key ends in layer_norm_epsilon",
                        t->arch);
    if (gating < GATING_UNSET || gating > GATING_SIGMOID)
        gguf_build_fail(t, "metadata '%s.expert_gating_func' is %lld; supported: 1 (softmax), 2 (sigmoid)", t->arch,
                        (long long)gating);
    gguf_build_text(t, "expert_selection_fn", gating == GATING_SOFTMAX ? "softmax" : "sigmoid");
    if (dense)
        gguf_build_json(t, "prefix_dense_intermediate_size", gguf_build_uniform(t, "feed_forward_length", dense));
    gguf_build_bool(t, "attention_bias", t->facts->qkv_bias);
}

static void derive_cohere(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_build_bool(t, "attention_bias", t->facts->qkv_bias);
}
static void derive_cohere2(struct config_builder *t) {
    derive_cohere(t);
    gguf_layers_windows(t, WINDOW_PERIOD, false);
}
/* Without a window all layers rotate, which the family expects where layer_types is absent. */
static void derive_exaone4(struct config_builder *t) {
    const struct json *window = gguf_build_meta(t, "attention.sliding_window");
    gguf_build_attention(t);
    if (json_int(window, 0) > 0) gguf_layers_windows(t, WINDOW_PERIOD, false);
}

/* Dots 3 Note: MLA of two sizes, which share the rank of queries and the rotated part of heads. Norms of latents
 * include their scale. */
static void derive_dots3(struct config_builder *t) {
    const int64_t rope = json_int(gguf_build_meta(t, "rope.dimension_count"), 0),
                  heads = gguf_layers_largest(t, "attention.head_count", GGUF_WINDOWS, 0),
                  window_heads = gguf_layers_largest(t, "attention.head_count", GGUF_WINDOWS, 1),
                  dim = json_int(gguf_build_meta(t, "attention.key_length_mla"), 0),
                  window_dim = json_int(gguf_build_meta(t, "attention.key_length_mla_swa"), 0);
    const struct json *q_lora = gguf_build_meta(t, "attention.q_lora_rank"),
                      *inter = gguf_build_meta(t, "expert_feed_forward_length");
    gguf_build_only_sigmoid(t);
    gguf_layers_windows(t, WINDOW_PERIOD, false);
    gguf_build_int(t, "num_attention_heads", heads);
    gguf_build_int(t, "num_key_value_heads", heads);
    gguf_build_int(t, "qk_rope_head_dim", rope);
    gguf_build_int(t, "qk_nope_head_dim", dim - rope);
    if (window_heads) {
        gguf_build_int(t, "swa_num_attention_heads", window_heads);
        gguf_build_int(t, "swa_num_key_value_heads", window_heads);
        gguf_build_int(t, "swa_head_dim", window_dim);
        gguf_build_int(t, "swa_qk_nope_head_dim", window_dim - rope);
    }
    if (q_lora) gguf_build_json(t, "swa_q_lora_rank", *q_lora);
    if (inter)
        gguf_build_json(t, "moe_shared_expert_intermediate_size",
                        gguf_build_uniform(t, "expert_feed_forward_length", inter));
    gguf_build_bool(t, "use_dsa", true);
    gguf_build_bool(t, "apply_mla_qkv_lora_rescale", false);
    gguf_build_bool(t, "split_kv_b", t->facts->split_kv_b);
    for (int64_t i = 0, n = gguf_build_layers(t); i < n; i++)
        if (gguf_layers_at(t, "attention.indexer.types", i, 1) == gguf_layers_at(t, GGUF_WINDOWS, i, 0))
            gguf_build_fail(
                t, "metadata '%s.attention.indexer.types' of layer %lld is not the opposite of '" GGUF_WINDOWS "'",
                t->arch, (long long)i);
}

/* With a window, llama.cpp's code fixes its layers and those without rotation: the first of four has neither. */
static double slides(const struct config_builder *t, int64_t layer) {
    return json_int(gguf_build_meta(t, "attention.sliding_window"), 0) > 0 && layer % WINDOW_PERIOD != 0;
}
static double rotates(const struct config_builder *t, int64_t layer) {
    return json_int(gguf_build_meta(t, "attention.sliding_window"), 0) == 0 || layer % WINDOW_PERIOD != 0;
}
static void derive_smallthinker(struct config_builder *t) {
    const struct json *window = gguf_build_meta(t, "attention.sliding_window");
    const int64_t gating = json_int(gguf_build_meta(t, "expert_gating_func"), GATING_UNSET);
    gguf_build_attention(t);
    if (gating != GATING_SOFTMAX && gating != GATING_SIGMOID)
        gguf_build_fail(t, "metadata '%s.expert_gating_func' is %lld; hearth supports 1 and 2", t->arch,
                        (long long)gating);
    gguf_build_bool(t, "moe_primary_router_apply_softmax", gating == GATING_SOFTMAX);
    if (json_int(window, 0) > 0) gguf_build_json(t, "sliding_window_size", *window);
    gguf_layers_numbers(t, "sliding_window_layout", slides);
    gguf_layers_numbers(t, "rope_layout", rotates);
}

/* Granite SWA: dense, or with routed experts in every layer; a shared expert is optional. */
static double granite_theta(const struct config_builder *t, int64_t layer) {
    return gguf_layers_at(t, "attention.rope_pattern", layer, 1) ? json_num(gguf_build_meta(t, "rope.freq_base"), 10000)
                                                                 : 0;
}
static void derive_granite_swa(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_build_bool(t, "rope_interleave", true); /* llama.cpp stores rotated pairs adjacently */
    gguf_build_bool(t, "attention_bias", t->facts->qkv_bias);
    gguf_layers_windows(t, WINDOW_PERIOD, true);
    gguf_layers_numbers(t, "layer_rope_theta", granite_theta);
}
static const char *granite_swa_family(const struct config_builder *t) {
    return json_int(gguf_build_meta(t, "expert_count"), 0) > 0 ? "granitemoe_swa" : "granite_swa";
}

/* Muse Glimmer: layers without a window do not rotate. */
static double glimmer_theta(const struct config_builder *t, int64_t layer) {
    return gguf_layers_at(t, GGUF_WINDOWS, layer, 0) ? json_num(gguf_build_meta(t, "rope.freq_base"), 500000) : 0;
}
static void derive_glimmer(struct config_builder *t) {
    const struct json *windows = gguf_build_meta(t, GGUF_WINDOWS), *base = gguf_build_meta(t, "rope.freq_base"),
                      *window_base = gguf_build_meta(t, "rope.freq_base_swa");
    gguf_build_attention(t);
    gguf_build_bool(t, "rope_interleave", true);
    gguf_build_bool(t, "attention_bias", t->facts->qkv_bias);
    gguf_build_bool(t, "qk_norm_has_weights", true);
    gguf_build_num(t, "qk_scale_factor", 1);
    gguf_layers_windows(t, WINDOW_PERIOD, false);
    gguf_layers_numbers(t, "layer_rope_theta", glimmer_theta);
    if (!windows || windows->type != JSON_ARRAY)
        gguf_build_fail(t, "metadata '%s." GGUF_WINDOWS "' is not a list of layers", t->arch);
    if (window_base && json_num(window_base, 0) != json_num(base, 0))
        gguf_build_fail(t,
                        "metadata '%s.rope.freq_base_swa' differs from 'rope.freq_base'; hearth supports one base for "
                        "all rotated layers",
                        t->arch);
}

#define END \
    { NULL, NULL }
static const struct gguf_key laguna_keys[] = {GGUF_HEAD_KEYS,
                                              GGUF_LAYER_WINDOW_KEYS,
                                              GGUF_ROPES_KEYS,
                                              GGUF_ROUTER_KEYS("num_experts", "moe_routed_scaling_factor", NULL),
                                              {"attention.head_count", NULL},
                                              {"expert_shared_count", NULL},
                                              {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"},
                                              {"leading_dense_block_count", NULL},
                                              END},
                             mellum_keys[] = {GGUF_HEAD_KEYS,
                                              GGUF_LAYER_WINDOW_KEYS,
                                              GGUF_ROPES_KEYS,
                                              {"expert_count", "num_experts"},
                                              END},
                             maple_keys[] = {GGUF_HEAD_KEYS,
                                             GGUF_LAYER_WINDOW_KEYS,
                                             {"expert_count", "num_experts"},
                                             {"swiglu_clamp_exp", NULL},
                                             END},
                             cohere2moe_keys[] = {GGUF_HEAD_KEYS,
                                                  GGUF_LAYER_WINDOW_KEYS,
                                                  GGUF_ROUTER_KEYS("num_experts", NULL, "norm_topk_prob"),
                                                  {"attention.layer_norm_epsilon", "layer_norm_eps"},
                                                  {"expert_feed_forward_length", "intermediate_size"},
                                                  {"expert_shared_count", "num_shared_experts"},
                                                  {"expert_shared_feed_forward_length", NULL},
                                                  {"feed_forward_length", NULL},
                                                  {"leading_dense_block_count", "first_k_dense_replace"},
                                                  {"logit_scale", "logit_scale"},
                                                  END},
                             cohere_keys[] = {GGUF_HEAD_KEYS,
                                              {"attention.layer_norm_epsilon", "layer_norm_eps"},
                                              {"logit_scale", "logit_scale"},
                                              END},
                             cohere2_keys[] = {GGUF_HEAD_KEYS,
                                               GGUF_LAYER_WINDOW_KEYS,
                                               {"attention.layer_norm_epsilon", "layer_norm_eps"},
                                               {"logit_scale", "logit_scale"},
                                               END},
                             dots3_keys[] = {{"attention.head_count", NULL},
                                             {"attention.key_length_mla_swa", NULL},
                                             {"attention.key_length_swa", NULL},
                                             {"attention.kv_lora_rank_swa", "swa_kv_lora_rank"},
                                             {"attention.value_length_mla", "v_head_dim"},
                                             {"attention.value_length_mla_swa", "swa_v_head_dim"},
                                             {"attention.value_length_swa", NULL},
                                             {"attention.indexer.types", NULL},
                                             {"rope.freq_base_swa", "swa_rope_theta"},
                                             GGUF_LAYER_WINDOW_KEYS,
                                             GGUF_INDEXER_KEYS,
                                             GGUF_DEEPSEEK_KEYS,
                                             END},
                             smallthinker_keys[] = {GGUF_HEAD_KEYS,
                                                    {"attention.sliding_window", NULL},
                                                    {"expert_count", "moe_num_primary_experts"},
                                                    {"expert_feed_forward_length", "moe_ffn_hidden_size"},
                                                    {"expert_gating_func", NULL},
                                                    {"expert_used_count", "moe_num_active_primary_experts"},
                                                    {"feed_forward_length", NULL},
                                                    END},
                             granite_swa_keys[] = {GGUF_HEAD_KEYS,
                                                   GGUF_LAYER_WINDOW_KEYS,
                                                   {"attention.rope_pattern", NULL},
                                                   {"attention.scale", "attention_multiplier"},
                                                   {"embedding_scale", "embedding_multiplier"},
                                                   {"expert_count", "num_local_experts"},
                                                   {"expert_shared_feed_forward_length", "shared_intermediate_size"},
                                                   {"logit_scale", "logits_scaling"},
                                                   {"residual_scale", "residual_multiplier"},
                                                   END},
                             glimmer_keys[] = {GGUF_HEAD_KEYS,
                                               GGUF_LAYER_WINDOW_KEYS,
                                               {"final_logit_softcapping", "final_logit_softcapping"},
                                               {"logit_scale", "output_multiplier"},
                                               {"rope.freq_base_swa", NULL},
                                               END},
                             exaone4_keys[] = {GGUF_HEAD_KEYS, GGUF_LAYER_WINDOW_KEYS, END};

const struct gguf_arch gguf_windowed[] = {
    {"laguna", "laguna", &pre_norm, laguna_keys, derive_laguna, NULL},
    {"mellum", "mellum", &pre_norm, mellum_keys, derive_mellum, NULL},
    {"maple", "maple", &pre_norm, maple_keys, derive_maple, NULL},
    {"cohere2moe", "cohere2_moe", &parallel, cohere2moe_keys, derive_cohere2moe, NULL},
    {"cohere2_moe", "cohere2_moe", &parallel, cohere2moe_keys, derive_cohere2moe, NULL}, /* of ik_llama.cpp */
    {"command-r", "cohere", &parallel, cohere_keys, derive_cohere, NULL},
    {"cohere2", "cohere2", &parallel, cohere2_keys, derive_cohere2, NULL},
    {"dots3note", "dots3_note", &dots3, dots3_keys, derive_dots3, NULL},
    {"smallthinker", "smallthinker", &pre_norm, smallthinker_keys, derive_smallthinker, NULL},
    {"exaone4", "exaone4", &post_norm, exaone4_keys, derive_exaone4, NULL},
    {"muse-glimmer", "muse_glimmer", &around, glimmer_keys, derive_glimmer, NULL},
    {"granite_swa", NULL, &granite_swa, granite_swa_keys, derive_granite_swa, granite_swa_family},
    {NULL, NULL, NULL, NULL, NULL, NULL},
};

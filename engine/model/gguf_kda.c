/* GGUF architectures with Kimi delta attention (KDA) in the layers whose head_count_kv is 0. Sources of keys and names:
 * llama.cpp's conversion scripts and graphs. */
#include "engine/model/gguf_layers.h"

#define L GGUF_LAYER
#define KDA_UNGATED \
    .kda_q_conv = L "ssm_conv1d_q", .kda_k_conv = L "ssm_conv1d_k", .kda_v_conv = L "ssm_conv1d_v", \
    .kda_beta = L "ssm_beta", .kda_decay = L "ssm_f_a", .kda_decay_up = L "ssm_f_b", .mix_rate = L "ssm_a", \
    .mix_dt = L "ssm_dt.bias", .mix_norm = L "ssm_norm", .mix_out = L "attn_output"
#define KDA KDA_UNGATED, .kda_gate = L "ssm_g_a", .kda_gate_up = L "ssm_g_b"
static const struct tensor_names kimi = {GGUF_NAMES, KDA, .ffn_norm = L "ffn_norm"},
                                 k3 = {GGUF_NAMES,
                                       KDA_UNGATED,
                                       .kda_gate = L "ssm_g",
                                       .attn_gate = L "attn_gate",
                                       .ffn_norm = L "ffn_norm",
                                       .attn_pool = L "attn_res_score", /* products of query and factors */
                                       .ffn_pool = L "ffn_res_score",
                                       .head_pool = "output_res_score",
                                       .routed_in = L "ffn_routed_down",
                                       .routed_sum_norm = L "ffn_routed_norm",
                                       .routed_out = L "ffn_routed_up"},
                                 ling3 = {GGUF_NAMES, KDA, .ffn_norm = L "ffn_norm", .attn_gate = L "attn_gate"},
                                 glm5 = {GGUF_NAMES,
                                         KDA,
                                         GGUF_INDEXER,
                                         GGUF_MIXES,
                                         .ffn_norm = L "ffn_norm",
                                         .index_compress_gate = L "indexer_compressor_gate.weight",
                                         .index_compress_bias = L "indexer_compressor_ape.weight"};

static bool is_kda(const struct config_builder *t, int64_t layer) {
    return gguf_layers_at(t, "attention.head_count_kv", layer, 0) == 0;
}
/* Fails if the metadata do not say which layers have KDA. */
static bool require_kv_heads_list(struct config_builder *t) {
    const struct json *kv_heads = gguf_build_meta(t, "attention.head_count_kv");
    if (kv_heads && kv_heads->type == JSON_ARRAY) return !t->rc;
    gguf_build_fail(
        t, "metadata '%s.attention.head_count_kv' is not a list; it is 0 in layers with Kimi delta attention", t->arch);
    return false;
}

/* Lists the layers with or without KDA, counted from `first`. */
static void put_layers(struct config_builder *t, const char *key, bool kda, int first) {
    const uint32_t all = gguf_layers_count(t);
    struct json *layers = gguf_build_list(t, key, all);
    uint32_t n = 0;
    for (uint32_t i = 0; layers && i < all; i++)
        if (is_kda(t, i) == kda) layers[n++] = (struct json){.type = JSON_INT, .integer = i + first};
    /* the list cut to its first n items */
    gguf_build_json(t, key, (struct json){.type = JSON_ARRAY, .n = n, .items = layers});
}
/* Sets linear_attn_config. */
static void put_kda(struct config_builder *t, int first, bool has_full_gate) {
    static const struct gguf_key pairs[] = {{"kda.head_dim", "head_dim"},
                                            {"kda.gate_lower_bound", "gate_lower_bound"},
                                            {"ssm.conv_kernel", "short_conv_kernel_size"}};
    struct config_builder in;
    if (!require_kv_heads_list(t) || !gguf_build_open(t, &in)) return;
    put_layers(&in, "kda_layers", true, first);
    put_layers(&in, "full_attn_layers", false, first);
    gguf_build_int(&in, "num_heads", json_int(gguf_build_meta(t, "attention.head_count"), 0));
    if (has_full_gate) gguf_build_bool(&in, "use_full_rank_gate", true);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const struct json *v = gguf_build_meta(t, pairs[i].key);
        if (v) gguf_build_json(&in, pairs[i].name, *v);
    }
    gguf_build_close(t, &in, "linear_attn_config");
}

static void derive_kimi(struct config_builder *t) {
    gguf_build_deepseek(t);
    gguf_build_bool(t, "mla_use_nope", true);
    put_kda(t, 1, false); /* Kimi's config counts layers from 1 */
}

static void derive_k3(struct config_builder *t) {
    const struct json *block = gguf_build_meta(t, "attn_res.block_size");
    gguf_build_deepseek(t);
    gguf_build_bool(t, "mla_use_nope", true);
    put_kda(t, 1, true);
    if (t->rc) return;
    gguf_build_text(t, "hidden_act", "situ");
    gguf_build_bool(t, "latent_moe_use_norm", t->facts->routed_norm);
    if (json_int(block, 0) > 0) gguf_build_json(t, "attn_res_block_size", *block);
    bool has_gates = false;
    for (int64_t i = 0; i < gguf_build_layers(t); i++) has_gates |= gguf_layers_has(t, i, GGUF_HAS_GATE);
    gguf_build_bool(t, "mla_use_output_gate", has_gates);
}

static void derive_glm5(struct config_builder *t) {
    gguf_build_deepseek(t);
    gguf_build_bool(t, "mla_use_nope", true);
    put_kda(t, 0, false);
    gguf_layers_kinds(t, "indexer_types", gguf_layers_index_kind);
    gguf_layers_limit(t);
}

/* Returns the size of the groups of layers whose last one has attention; layers after the last complete group have it
 * too. Fails for other patterns. */
static int64_t group_size(struct config_builder *t) {
    const int64_t n = gguf_build_layers(t);
    int64_t size = 1;
    while (size < n && is_kda(t, size - 1)) size++;
    for (int64_t i = 0; i < n; i++)
        if (is_kda(t, i) != (i < n / size * size && (i + 1) % size != 0))
            gguf_build_fail(t,
                            "metadata '%s.attention.head_count_kv' has layers with attention at distances that differ, "
                            "which hearth does not support",
                            t->arch);
    return size;
}
/* Lists the activation's limit by layer; the metadata may have one number for all. */
static void put_limits(struct config_builder *t, const char *key, const char *meta_key) {
    const struct json *limits = gguf_build_meta(t, meta_key);
    const uint32_t n = gguf_layers_count(t);
    struct json *v = limits ? gguf_build_list(t, key, n) : NULL;
    for (uint32_t i = 0; v && i < n; i++)
        v[i] = limits->type == JSON_ARRAY ? (i < limits->n ? *json_at(limits, i) : (struct json){.type = JSON_INT})
                                          : *limits;
}
static void derive_ling3(struct config_builder *t) {
    const int64_t gating = json_int(gguf_build_meta(t, "expert_gating_func"), GATING_SIGMOID),
                  expert_width = gguf_layers_at(t, "expert_feed_forward_length", 0, 0),
                  n_shared = json_int(gguf_build_meta(t, "expert_shared_count"), 1);
    if (!require_kv_heads_list(t)) return;
    gguf_build_mla(t);
    const struct json *sections =
        /* files with them rotate halves; in text the positions of all sections are equal */
        gguf_build_meta(t, "rope.dimension_sections");
    gguf_build_bool(t, "rope_interleave",
                    !sections || sections->type != JSON_ARRAY || sections->n < 2 ||
                        json_int(json_at(sections, 0), 0) <= 0 || json_int(json_at(sections, 1), 0) <= 0);
    gguf_build_int(t, "layer_group_size", group_size(t));
    gguf_build_bool(t, "kda_rates_are_positive", true);
    if (gating < GATING_UNSET || gating > GATING_SIGMOID)
        gguf_build_fail(t, "metadata '%s.expert_gating_func' is %lld; supported: 1 (softmax), 2 (sigmoid)", t->arch,
                        (long long)gating);
    gguf_build_text(t, "score_function", gating == GATING_SOFTMAX ? "softmax" : "sigmoid");
    gguf_build_bool(t, "moe_router_enable_expert_bias", t->facts->router_bias);
    gguf_build_int(t, "n_shared_experts", 1); /* one that is as wide as all together */
    gguf_build_int(t, "moe_shared_expert_intermediate_size",
                   json_int(gguf_build_meta(t, "expert_shared_feed_forward_length"),
                            expert_width * (n_shared > 1 ? n_shared : 1)));
    for (int64_t i = 0; i < gguf_build_layers(t); i++)
        if (gguf_layers_has(t, i, GGUF_HAS_GATE))
            gguf_build_text(t, "gated_attention_proj_granularity_type",
                            t->facts->gate_rows[i] == json_int(gguf_build_meta(t, "attention.head_count"), 0)
                                ? "head_wise"
                                : "element_wise");
    put_limits(t, "expert_swiglu_limit_list", "swiglu_clamp_exp");
    put_limits(t, "share_expert_swiglu_limit_list", "swiglu_clamp_shexp");
}

#define END \
    { NULL, NULL }
static const struct gguf_key kimi_keys[] = {GGUF_DEEPSEEK_KEYS, {"kda.head_dim", NULL}, {"ssm.conv_kernel", NULL}, END},
                             k3_keys[] = {GGUF_DEEPSEEK_KEYS,
                                          {"activation.situ_beta", "activation_situ_beta"},
                                          {"activation.situ_linear_beta", "activation_situ_linear_beta"},
                                          {"attn_res.block_size", NULL},
                                          {"expert_latent_length", "routed_expert_hidden_size"},
                                          {"kda.gate_lower_bound", NULL},
                                          {"kda.head_dim", NULL},
                                          {"ssm.conv_kernel", NULL},
                                          END},
                             glm5_keys[] = {GGUF_DEEPSEEK_KEYS,
                                            GGUF_INDEXER_KEYS,
                                            GGUF_STREAM_KEYS,
                                            {"attention.indexer.kpool", "index_kpool"},
                                            {"attention.indexer.kpool_select_tail", "index_kpool_always_select_tail"},
                                            {"attention.indexer.types", NULL},
                                            /* the family has its own for the indexer */
                                            {"attention.layer_norm_epsilon", NULL},
                                            {"hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters"},
                                            {"kda.gate_lower_bound", NULL},
                                            {"kda.head_dim", NULL},
                                            {"ssm.conv_kernel", NULL},
                                            {"swiglu_clamp_exp", NULL},
                                            {"swiglu_clamp_shexp", NULL},
                                            END},
                             ling3_keys[] = {{"expert_shared_count", NULL},
                                             GGUF_DEEPSEEK_KEYS,
                                             {"expert_shared_feed_forward_length", NULL},
                                             {"kda.gate_lower_bound", "kda_lower_bound"},
                                             {"kda.head_dim", "head_dim"},
                                             {"kda.safe_gate", "kda_safe_gate"},
                                             {"rope.dimension_sections", NULL},
                                             {"ssm.conv_kernel", "short_conv_kernel_size"},
                                             {"swiglu_clamp_exp", NULL},
                                             {"swiglu_clamp_shexp", NULL},
                                             END};

const struct gguf_arch gguf_kda[] = {
    {"kimi-linear", "kimi_linear", &kimi, kimi_keys, derive_kimi, NULL},
    {"kimi-k3", "kimi_k3", &k3, k3_keys, derive_k3, NULL},
    {"bailingmoe3", "bailing_hybrid", &ling3, ling3_keys, derive_ling3, NULL},
    {"glm5-next", "glm5_next", &glm5, glm5_keys, derive_glm5, NULL},
    {NULL, NULL, NULL, NULL, NULL, NULL},
};

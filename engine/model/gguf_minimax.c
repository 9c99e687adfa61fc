/* GGUF architectures of MiniMax-Text-01 and MiniMax-M3. Sources of keys and names: llama.cpp's conversion script and
 * graphs. */
#include "engine/model/gguf_layers.h"

#define L GGUF_LAYER
static const struct tensor_names lightning = {GGUF_NAMES,
                                              .ffn_norm = L "ffn_norm",
                                              .mix_in = L "attn_qkv",
                                              .mix_gate = L "attn_gate",
                                              .mix_norm = L "attn_norm_2",
                                              .mix_out = L "attn_output"},
                                 sparse = {GGUF_NAMES,
                                           .ffn_norm = L "ffn_norm",
                                           .index_q = L "indexer.q_proj",
                                           .index_k = L "indexer.k_proj",
                                           .index_q_norm = L "indexer.q_norm",
                                           .index_k_norm = L "indexer.k_norm"};

static void put_rotary(struct config_builder *t) {
    const struct json *rotary = gguf_build_meta(t, "rope.dimension_count");
    gguf_build_head_sizes(t);
    if (rotary) gguf_build_json(t, "rotary_dim", *rotary);
    gguf_build_rope(t, 0);
}

/* 1 is softmax attention, 0 lightning attention. */
static double attends(const struct config_builder *t, int64_t layer) {
    const int64_t every = json_int(gguf_build_meta(t, "full_attention_interval"), 8);
    if (gguf_build_meta(t, "attention.recurrent_layers"))
        return !gguf_layers_at(t, "attention.recurrent_layers", layer, 0);
    return every > 0 && (layer + 1) % every == 0;
}
static void derive_text01(struct config_builder *t) {
    static const char *const scales[] = {"layernorm_full_attention_alpha", "layernorm_linear_attention_alpha",
                                         "layernorm_mlp_alpha"};
    const struct json *scale = gguf_build_meta(t, "residual_scale");
    put_rotary(t);
    gguf_build_bool(t, "postnorm", true);
    gguf_layers_numbers(t, "attn_type_list", attends);
    for (size_t i = 0; i < sizeof scales / sizeof *scales && scale; i++) gguf_build_json(t, scales[i], *scale);
    if (!scale) gguf_build_fail(t, "metadata '%s.residual_scale' is missing", t->arch);
}

static const char *kind(const struct config_builder *t, int64_t layer) {
    return gguf_layers_has(t, layer, GGUF_HAS_INDEXER) ? "minimax_m3_sparse" : "full_attention";
}
/* llama.cpp's code has the activation, which is the default, and the norms' weights include the 1. */
static void derive_m3(struct config_builder *t) {
    put_rotary(t);
    gguf_build_only_sigmoid(t);
    gguf_layers_kinds(t, "layer_types", kind);
    gguf_layers_numbers(t, "moe_layer_freq", gguf_layers_has_router);
    gguf_build_int(t, "shared_intermediate_size",
                   json_int(gguf_build_meta(t, "expert_shared_count"), 1) *
                       gguf_layers_at(t, "expert_feed_forward_length", 0, 0));
    gguf_build_bool(t, "use_routing_bias", t->facts->router_bias);
    gguf_build_bool(t, "use_qk_norm", t->facts->qk_norm);
    if (!json_bool(gguf_build_meta(t, "expert_weights_norm"), true))
        gguf_build_fail(
            t, "metadata '%s.expert_weights_norm' is false; hearth supports MiniMax-M3's router with weights of sum 1",
            t->arch);
}

#define END \
    { NULL, NULL }
static const struct gguf_key text01_keys[] = {GGUF_HEAD_KEYS,
                                              {"attention.recurrent_layers", NULL},
                                              {"expert_count", "num_local_experts"},
                                              {"full_attention_interval", NULL},
                                              {"residual_scale", NULL},
                                              END},
                             m3_keys[] = {GGUF_HEAD_KEYS,
                                          GGUF_ROUTER_KEYS("num_local_experts", "routed_scaling_factor", NULL),
                                          {"attention.indexer.block_size", "index_block_size"},
                                          {"attention.indexer.head_count", "index_n_heads"},
                                          {"attention.indexer.key_length", "index_head_dim"},
                                          {"attention.indexer.local_blocks", "index_local_blocks"},
                                          {"attention.indexer.top_k", "index_topk_blocks"},
                                          {"expert_feed_forward_length", "intermediate_size"},
                                          {"expert_shared_count", NULL},
                                          {"feed_forward_length", "dense_intermediate_size"},
                                          {"leading_dense_block_count", NULL},
                                          END};

const struct gguf_arch gguf_minimax[] = {
    {"minimax-01", "minimax_text_01", &lightning, text01_keys, derive_text01, NULL},
    {"minimax-m3", "minimax_m3_vl", &sparse, m3_keys, derive_m3, NULL},
    {NULL, NULL, NULL, NULL, NULL, NULL},
};

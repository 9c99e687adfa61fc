/* GGUF architectures with several residual streams. Sources of keys and names: llama.cpp's conversion scripts and graphs. */
#include "engine/model/gguf_layers.h"

#define L     GGUF_LAYER
#define MIXES GGUF_MIXES, .head_mix = "output_hc_fn.weight", .head_mix_base = "output_hc_base.weight", .head_mix_scale = "output_hc_scale.weight"
static const struct tensor_names hy4 = {GGUF_NAMES, GGUF_INDEXER, MIXES, .ffn_norm = L "ffn_norm", .attn_gate = L "attn_gate"},
                                 deepseek4 = {GGUF_ENDS,
                                              GGUF_FFNS,
                                              MIXES,
                                              .ffn_norm = L "ffn_norm",
                                              .q_a = L "attn_q_a",
                                              .q_a_norm = L "attn_q_a_norm",
                                              .q_b = L "attn_q_b",
                                              .kv_a = L "attn_kv",
                                              .kv_a_norm = L "attn_kv_a_norm",
                                              .sinks = L "attn_sinks.weight",
                                              .o_a = L "attn_output_a",
                                              .o = L "attn_output_b",
                                              .compress_kv = L "attn_compressor_kv",
                                              .compress_gate = L "attn_compressor_gate",
                                              .compress_norm = L "attn_compressor_norm",
                                              .compress_bias = L "attn_compressor_ape.weight",
                                              .index_compress_kv = L "indexer_compressor_kv",
                                              .index_compress_gate = L "indexer_compressor_gate",
                                              .index_compress_norm = L "indexer_compressor_norm",
                                              .index_compress_bias = L "indexer_compressor_ape.weight",
                                              .index_q = L "indexer.attn_q_b",
                                              .index_weights = L "indexer.proj",
                                              .router_table = L "ffn_gate_tid2eid.weight"};

/* Rotated pairs are neighbours, which llama.cpp's code says. */
static void tell_hy4(struct config_builder *t) {
    gguf_build_deepseek(t);
    gguf_build_bool(t, "rope_interleave", true);
    gguf_build_bool(t, "indexer_rope_interleave", true);
    gguf_layers_kinds(t, "indexer_types", gguf_layers_index_kind);
    gguf_layers_limit(t);
    if (json_int(gguf_build_meta(t, "attention.indexer.top_k"), 0) <= 0)
        gguf_build_fail(t, "metadata '%s.attention.indexer.top_k' is missing; hearth knows Hunyuan 4 with an indexer", t->arch);
}

static void tell_deepseek4(struct config_builder *t) {
    static const char *const scores[] = {"softmax", "softmax", "sigmoid", "softmax", "sqrtsoftplus"};
    const int64_t gating = json_int(gguf_build_meta(t, "expert_gating_func"), 4);
    const struct json *dim = gguf_build_meta(t, "attention.key_length");
    const struct json *ratios = gguf_build_meta(t, "attention.compress_ratios");
    gguf_build_rope(t, 0);
    if (ratios) gguf_build_json(t, "compress_ratios", *ratios);
    if (dim) gguf_build_json(t, "head_dim", *dim);
    if (gating != 1 && gating != 2 && gating != 4)
        gguf_build_fail(t, "metadata '%s.expert_gating_func' is %lld; hearth knows 1, 2 and 4", t->arch, (long long)gating);
    else gguf_build_text(t, "scoring_func", scores[gating]);
    gguf_layers_limit(t);
}

#define END \
    { NULL, NULL }
static const struct gguf_key hy4_keys[] = {GGUF_DEEPSEEK_KEYS,
                                           GGUF_INDEXER_KEYS,
                                           GGUF_STREAM_KEYS,
                                           {"attention.indexer.types", NULL},
                                           {"hyper_connection.magnitude", "hc_magnitude"},
                                           {"swiglu_clamp_exp", NULL},
                                           END},
                             deepseek4_keys[] = {GGUF_HEAD_KEYS,
                                                 GGUF_INDEXER_KEYS,
                                                 GGUF_STREAM_KEYS,
                                                 GGUF_ROUTER_KEYS("n_routed_experts", "routed_scaling_factor", "norm_topk_prob"),
                                                 {"attention.compress_ratios", NULL},
                                                 {"attention.compress_rope_freq_base", "compress_rope_theta"},
                                                 {"attention.output_group_count", "o_groups"},
                                                 {"attention.output_lora_rank", "o_lora_rank"},
                                                 {"attention.q_lora_rank", "q_lora_rank"},
                                                 {"attention.sliding_window", "sliding_window"},
                                                 {"embedding_length_out", NULL},
                                                 {"expert_shared_count", "n_shared_experts"},
                                                 {"hash_layer_count", "num_hash_layers"},
                                                 {"hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters"},
                                                 {"rope.dimension_count", "qk_rope_head_dim"},
                                                 {"swiglu_clamp_exp", NULL},
                                                 {"swiglu_clamp_shexp", NULL},
                                                 END};

const struct gguf_arch gguf_streams[] = {
    {"hy_v4", "hy_v4", &hy4, hy4_keys, tell_hy4, NULL},
    {"deepseek4", "deepseek_v4", &deepseek4, deepseek4_keys, tell_deepseek4, NULL},
    {NULL, NULL, NULL, NULL, NULL, NULL},
};

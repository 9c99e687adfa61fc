/* GGUF architectures with several residual streams. Sources of keys and names: llama.cpp's conversion scripts and
 * graphs. */
#include "engine/model/gguf_layers.h"

#define L      GGUF_LAYER
#define RATIOS "attention.compress_ratios"
#define MIXES \
    GGUF_MIXES, .head_mix = "output_hc_fn.weight", .head_mix_base = "output_hc_base.weight", \
                .head_mix_scale = "output_hc_scale.weight"
static const struct tensor_names hy4 = {GGUF_NAMES, GGUF_INDEXER, MIXES, .ffn_norm = L "ffn_norm",
                                        .attn_gate = L "attn_gate"},
                                 qwen4 = {GGUF_NAMES,
                                          .delta_b = L "ssm_beta",
                                          .delta_a = L "ssm_alpha",
                                          .attn_gated_norm = L "hc_attn_norm",
                                          .attn_gated_down = L "hc_attn_down",
                                          .attn_gated_up = L "hc_attn_up",
                                          .attn_gated_inject = L "hc_attn_inject",
                                          .ffn_gated_norm = L "hc_ffn_norm",
                                          .ffn_gated_down = L "hc_ffn_down",
                                          .ffn_gated_up = L "hc_ffn_up",
                                          .ffn_gated_inject = L "hc_ffn_inject",
                                          .head_gated_norm = "output_hc_norm",
                                          .head_gated_down = "output_hc_down",
                                          .head_gated_up = "output_hc_up",
                                          .ngram_table = "per_layer_token_embd",
                                          .ngram_key = L "ple_key",
                                          .ngram_value = L "ple_value",
                                          .ngram_key_norm = L "ple_norm_key",
                                          .ngram_query_norm = L "ple_norm_query",
                                          .ngram_conv_norm = L "ple_norm_conv",
                                          .ngram_conv = L "ple_conv1d",
                                          .index_q = L "indexer.q_proj",
                                          .index_k = L "indexer.k_proj",
                                          .index_q_norm = L "indexer.q_norm",
                                          .index_k_norm = L "indexer.k_norm"},
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

/* Layers with attention select blocks of that many keys, or see all of them where it is 0, as in files from configs
 * that name those layers otherwise. */
static void put_index_block(struct config_builder *t) {
    const struct json *heads = gguf_build_meta(t, "attention.indexer.head_count"),
                      *dim = gguf_build_meta(t, "attention.indexer.key_length"),
                      *budget = gguf_build_meta(t, "attention.indexer.top_k"),
                      *layers = gguf_build_meta(t, "attention.recurrent_layers");
    const int64_t n = gguf_build_layers(t), every = json_int(gguf_build_meta(t, "full_attention_interval"), 4),
                  most = gguf_layers_largest(t, RATIOS, NULL, 0);
    for (int64_t i = 0; i < n && most > 0; i++) {
        const bool attends =
            layers ? !gguf_layers_at(t, "attention.recurrent_layers", i, 0) : every > 0 && (i + 1) % every == 0;
        if (attends && gguf_layers_at(t, RATIOS, i, 0) != most)
            gguf_build_fail(
                t, "metadata '%s." RATIOS "' differs between layers with attention, which hearth does not support",
                t->arch);
    }
    if (most <= 0 || !heads) return;
    gguf_build_json(t, "indexer_n_heads", *heads);
    if (dim) gguf_build_json(t, "indexer_head_dim", *dim);
    if (budget) gguf_build_json(t, "indexer_budget", *budget);
    gguf_build_int(t, "indexer_compress_ratio", most);
}
/* The embedding of hashed n-grams, and the numbers of its hashes. */
static void put_ngrams(struct config_builder *t) {
    static const struct gguf_key rows[] = {{"ple.layer_multipliers", "ple_layer_multipliers"},
                                           {"ple.head_vocab_sizes", "ple_head_vocab_sizes"},
                                           {"ple.head_offsets", "ple_head_offsets"}};
    const struct json *layers = gguf_build_meta(t, "ple.layers");
    if (!layers || layers->type != JSON_ARRAY || !layers->n) return;
    if (layers->n > 1)
        gguf_build_fail(t, "metadata '%s.ple.layers' names %u layers; hearth supports one table of n-grams in GGUF",
                        t->arch, layers->n);
    struct json *v = gguf_build_list(t, "ple_layer_ids", 1);
    if (v) v[0] = (struct json){.type = JSON_INT, .integer = json_int(json_at(layers, 0), -2) + 1};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct json *list = gguf_build_meta(t, rows[i].key);
        if (!list) gguf_build_fail(t, "metadata '%s.%s' is missing", t->arch, rows[i].key);
        else gguf_build_json(t, rows[i].name, *list);
    }
    gguf_build_int(t, "ple_rows", t->facts->table_rows);
    gguf_build_int(t, "split_ngram_parts", 1);
    gguf_build_int(t, "ple_embed_dim",
                   json_int(gguf_build_meta(t, "embedding_length_per_layer_input"), 0) *
                       (json_int(gguf_build_meta(t, "ple.ngram_size"), 0) - 1) *
                       json_int(gguf_build_meta(t, "ple.heads_per_ngram"), 0));
}
static void derive_qwen4(struct config_builder *t) {
    gguf_build_qwen3next(t);
    gguf_build_text(t, "output_gate_type", "sigmoid");
    put_index_block(t);
    put_ngrams(t);
}

/* Rotated pairs are neighbours, which llama.cpp's code says. */
static void derive_hy4(struct config_builder *t) {
    gguf_build_deepseek(t);
    gguf_build_bool(t, "rope_interleave", true);
    gguf_build_bool(t, "indexer_rope_interleave", true);
    gguf_layers_kinds(t, "indexer_types", gguf_layers_index_kind);
    gguf_layers_limit(t);
    if (json_int(gguf_build_meta(t, "attention.indexer.top_k"), 0) <= 0)
        gguf_build_fail(
            t, "metadata '%s.attention.indexer.top_k' is missing; hearth supports Hunyuan 4 with an indexer", t->arch);
}

static void derive_deepseek4(struct config_builder *t) {
    static const char *const scores[] = {"softmax", "softmax", "sigmoid", "softmax", "sqrtsoftplus"};
    const int64_t gating = json_int(gguf_build_meta(t, "expert_gating_func"), GATING_SQRT_SOFTPLUS);
    const struct json *dim = gguf_build_meta(t, "attention.key_length");
    const struct json *ratios = gguf_build_meta(t, RATIOS);
    gguf_build_rope(t, 0);
    if (ratios) gguf_build_json(t, "compress_ratios", *ratios);
    if (dim) gguf_build_json(t, "head_dim", *dim);
    if (gating != GATING_SOFTMAX && gating != GATING_SIGMOID && gating != GATING_SQRT_SOFTPLUS)
        gguf_build_fail(t, "metadata '%s.expert_gating_func' is %lld; hearth supports 1, 2 and 4", t->arch,
                        (long long)gating);
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
                             qwen4_keys[] = {GGUF_QWEN3NEXT_KEYS,
                                             {RATIOS, NULL},
                                             {"attention.indexer.head_count", NULL},
                                             {"attention.indexer.key_length", NULL},
                                             {"attention.indexer.top_k", NULL},
                                             {"embedding_length_per_layer_input", NULL},
                                             {"hyper_connection.count", "hc_count"},
                                             {"hyper_connection.low_rank", "hc_lowrank"},
                                             {"ple.conv_kernel", "ple_conv_kernel_size"},
                                             {"ple.eos_token_id", "ple_eos_token_id"},
                                             {"ple.head_offsets", NULL},
                                             {"ple.head_vocab_sizes", NULL},
                                             {"ple.heads_per_ngram", "heads_per_ngram"},
                                             {"ple.image_token_id", NULL},
                                             {"ple.layer_multipliers", NULL},
                                             {"ple.layers", NULL},
                                             {"ple.ngram_size", "ngram_size"},
                                             END},
                             deepseek4_keys[] = {
                                 GGUF_HEAD_KEYS,
                                 GGUF_INDEXER_KEYS,
                                 GGUF_STREAM_KEYS,
                                 GGUF_ROUTER_KEYS("n_routed_experts", "routed_scaling_factor", "norm_topk_prob"),
                                 {RATIOS, NULL},
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
    {"hy_v4", "hy_v4", &hy4, hy4_keys, derive_hy4, NULL},
    {"deepseek4", "deepseek_v4", &deepseek4, deepseek4_keys, derive_deepseek4, NULL},
    {"qwen4exp", "qwen4_exp", &qwen4, qwen4_keys, derive_qwen4, NULL},
    {NULL, NULL, NULL, NULL, NULL, NULL},
};

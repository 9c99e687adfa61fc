/* GGUF architectures of dense models with layer norms: both blocks side by side in some, FFNs without gate in most. */
#include "engine/model/gguf_build.h"

/* gguf_names() takes attn_norm for both blocks where a parallel block has one norm. */
#define NAMES GGUF_ENDS, GGUF_ATTENTION, .ffn_norm = GGUF_LAYER "ffn_norm", .dense_down = GGUF_LAYER "ffn_down"
static const struct tensor_names ungated = {NAMES, .dense_gate = GGUF_LAYER "ffn_up"},
                                 gated = {NAMES, .dense_gate = GGUF_LAYER "ffn_gate", .dense_up = GGUF_LAYER "ffn_up"};

/* The files omit the window. All published models have it in config.json, and transformers computes it; llama.cpp does
 * not. */
static void derive_starcoder2(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_build_bool(t, "use_bias", t->facts->qkv_bias);
    if (!gguf_build_meta(t, "attention.sliding_window")) gguf_build_int(t, "sliding_window", 4096);
}
/* llama.cpp reorders the rows of q and k so that the two elements of a rotated pair are adjacent. */
static void derive_olmo(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_build_bool(t, "rope_interleave", true);
}
static void derive_falcon(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_build_bool(t, "bias", t->facts->qkv_bias);
    gguf_build_bool(t, "new_decoder_architecture", true);
    gguf_build_int(t, "num_ln_in_parallel_attn", t->facts->second_norm ? 2 : 1);
}
static void derive_stablelm(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_build_bool(t, "use_qkv_bias", t->facts->qkv_bias);
    gguf_build_bool(t, "qk_layernorm", t->facts->qk_norm);
}
static void derive_jais2(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_build_bool(t, "attention_bias", t->facts->qkv_bias);
}

#define KEYS \
    GGUF_HEAD_KEYS, { "attention.layer_norm_epsilon", "rms_norm_eps" }
static const struct gguf_key keys[] = {KEYS, {NULL, NULL}},
                             starcoder2_keys[] = {KEYS, {"attention.sliding_window", "sliding_window"}, {NULL, NULL}},
                             parallel_keys[] = {KEYS, {"use_parallel_residual", "use_parallel_residual"}, {NULL, NULL}},
                             falcon_keys[] = {KEYS, {"tensor_data_layout", NULL}, {NULL, NULL}},
                             olmo_keys[] = {GGUF_HEAD_KEYS,
                                            {"attention.clamp_kqv", "clip_qkv"},
                                            {"attention.layer_norm_epsilon", NULL}, /* the family's own */
                                            {NULL, NULL}};
const struct gguf_arch gguf_normed[] = {
    {"starcoder2", "starcoder2", &ungated, starcoder2_keys, derive_starcoder2, NULL},
    {"phi2", "phi", &ungated, keys, gguf_build_attention, NULL},
    {"gptneox", "gpt_neox", &ungated, parallel_keys, gguf_build_attention, NULL},
    {"falcon", "falcon", &ungated, falcon_keys, derive_falcon, NULL},
    {"jais2", "jais2", &ungated, keys, derive_jais2, NULL},
    {"stablelm", "stablelm", &gated, parallel_keys, derive_stablelm, NULL},
    {"olmo", "olmo", &gated, olmo_keys, derive_olmo, NULL},
    {NULL, NULL, NULL, NULL, NULL, NULL},
};

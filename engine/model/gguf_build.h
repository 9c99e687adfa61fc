#pragma once
/* Builds a family's config.json from a GGUF file's metadata; internal to engine/model/gguf*.c. The functions keep the
 * first error in config_builder.rc, so that a caller checks it once. Pure. */
#include "engine/model/gguf_facts.h"

/* llama.cpp's names of tensors, without those that differ between architectures. */
#define GGUF_LAYER "blk.%d."
#define GGUF_ENDS  .embed = "token_embd", .norm = "output_norm", .head = "output", .attn_norm = GGUF_LAYER "attn_norm"
#define GGUF_ATTENTION \
    .q = GGUF_LAYER "attn_q", .k = GGUF_LAYER "attn_k", .v = GGUF_LAYER "attn_v", .o = GGUF_LAYER "attn_output", \
    .q_norm = GGUF_LAYER "attn_q_norm", .k_norm = GGUF_LAYER "attn_k_norm", .sinks = GGUF_LAYER "attn_sinks.weight"
#define GGUF_LATENTS \
    .q_a = GGUF_LAYER "attn_q_a", .q_a_norm = GGUF_LAYER "attn_q_a_norm", .q_b = GGUF_LAYER "attn_q_b", \
    .kv_a = GGUF_LAYER "attn_kv_a_mqa", .kv_a_norm = GGUF_LAYER "attn_kv_a_norm", .kv_b = GGUF_LAYER "attn_kv_b", \
    .k_b = GGUF_LAYER "attn_k_b", .v_b = GGUF_LAYER "attn_v_b"
#define GGUF_FFNS \
    .router = GGUF_LAYER "ffn_gate_inp", .router_bias = GGUF_LAYER "exp_probs_b.bias", \
    .expert_gate = GGUF_LAYER "ffn_gate_exps", .expert_up = GGUF_LAYER "ffn_up_exps", \
    .expert_down = GGUF_LAYER "ffn_down_exps", .shared_gate_proj = GGUF_LAYER "ffn_gate_shexp", \
    .shared_up = GGUF_LAYER "ffn_up_shexp", .shared_down = GGUF_LAYER "ffn_down_shexp", \
    .shared_gate = GGUF_LAYER "ffn_gate_inp_shexp", .dense_gate = GGUF_LAYER "ffn_gate", \
    .dense_up = GGUF_LAYER "ffn_up", .dense_down = GGUF_LAYER "ffn_down"
#define GGUF_NAMES \
    GGUF_ENDS, GGUF_ATTENTION, GGUF_LATENTS, GGUF_FFNS, \
        .delta_qkvz = GGUF_LAYER "ssm_in", .delta_qkv = GGUF_LAYER "attn_qkv", .delta_z = GGUF_LAYER "attn_gate", \
        .delta_ba = GGUF_LAYER "ssm_ba", .delta_out = GGUF_LAYER "ssm_out", .delta_conv = GGUF_LAYER "ssm_conv1d", \
        .delta_rate = GGUF_LAYER "ssm_a", .delta_dt = GGUF_LAYER "ssm_dt.bias", .delta_norm = GGUF_LAYER "ssm_norm"

struct config_builder {
    struct arena *arena;
    const struct json *meta;
    const struct gguf_facts *facts;
    const char *what, *arch; /* arch: general.architecture, the prefix of its keys */
    struct json *items;      /* [2 * capacity]: names and values */
    uint32_t n, capacity;
    struct error *e;
    int rc;
};

/* A metadata key and the config.json key that it corresponds to. name NULL: derive() reads it, or it is irrelevant. A
 * list ends with key NULL. */
struct gguf_key {
    const char *key, *name;
};
/* An architecture: llama.cpp's name, the family, its tensor names, its keys, and values that are derived. A list ends
 * with name NULL. */
struct gguf_arch {
    const char *name, *model_type; /* model_type NULL: family() decides */
    const struct tensor_names *names;
    const struct gguf_key *keys;
    void (*derive)(struct config_builder *t);
    const char *(*family)(const struct config_builder *t);
};
extern const struct gguf_arch gguf_archs[], gguf_layered[], gguf_windowed[], gguf_normed[], gguf_blocks[],
    gguf_streams[], gguf_kda[], gguf_minimax[]; /* all but the first: with layers of several kinds */

/* the architecture's key; NULL: absent */
const struct json *gguf_build_meta(const struct config_builder *t, const char *key);
/* Set a member of the config; the last value of a name wins. v and key must outlive the config. */
void gguf_build_json(struct config_builder *t, const char *key, struct json v);
void gguf_build_member(struct config_builder *t, const char *key, size_t n, struct json v); /* n: length of the key */
void gguf_build_int(struct config_builder *t, const char *key, int64_t v);
void gguf_build_num(struct config_builder *t, const char *key, double v);
void gguf_build_bool(struct config_builder *t, const char *key, bool v);
void gguf_build_text(struct config_builder *t, const char *key, const char *v);
/* Returns a number, or the value of a per-layer list whose entries are all equal. */
struct json gguf_build_uniform(struct config_builder *t, const char *key, const struct json *v);
/* Opens an object inside the config, returns whether that succeeded; close makes it the member `key`. */
bool gguf_build_open(struct config_builder *t, struct config_builder *in);
void gguf_build_close(struct config_builder *t, const struct config_builder *in, const char *key);
/* Allocates a list of n items as the member `key`, for the caller to fill. NULL: no memory. */
struct json *gguf_build_list(struct config_builder *t, const char *key, uint32_t n);
/* keeps the first error */
int gguf_build_fail(struct config_builder *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int64_t gguf_build_head_dim(const struct config_builder *t);
int64_t gguf_build_layers(const struct config_builder *t); /* number of layers without MTP layers */
/* Translates rope.scaling.*, rope.dimension_count and factors; dim: rotary dimensions if the whole head is rotated, 0:
 * unknown. */
void gguf_build_rope(struct config_builder *t, int64_t dim);
/* Rotations of layers with a window and without one: rope.freq_base and rope.scaling.* for those without a window,
 * rope.freq_base_swa and no scaling for the others. */
void gguf_build_rope_by_window(struct config_builder *t);
void gguf_build_factors(struct config_builder *t, const char *key, const char *tensor, struct gguf_factors f);
void gguf_build_head_sizes(struct config_builder *t); /* head_dim; values must have it too */
void gguf_build_attention(struct config_builder *t);  /* head_dim and rotation of standard attention */
/* attention, gated DeltaNet and the router of Qwen3-Next and later */
void gguf_build_qwen3next(struct config_builder *t);
void gguf_build_mla(struct config_builder *t);      /* DeepSeek's attention */
void gguf_build_deepseek(struct config_builder *t); /* MLA, and DeepSeek's router */
const char *gguf_build_deepseek_family(const struct config_builder *t);

/* Values of expert_gating_func, as in llama.cpp. */
enum gguf_gating { GATING_UNSET, GATING_SOFTMAX, GATING_SIGMOID, GATING_SQRT_SOFTPLUS = 4 };
/* Fails unless expert_gating_func is sigmoid, unset or absent. */
void gguf_build_only_sigmoid(struct config_builder *t);
/* Sets a rotation by the first n factors; without factors an unscaled one. */
void gguf_build_rope_by_factors(struct config_builder *t, const char *key, struct gguf_factors f, int64_t n,
                                const char *theta);

#define GGUF_HEAD_KEYS \
    {"attention.key_length", NULL}, { "attention.value_length", NULL }
/* Copies the window. A pattern is left to the family. */
#define GGUF_COPY_WINDOW_KEYS \
    {"attention.sliding_window", "sliding_window"}, { "attention.sliding_window_pattern", NULL }
#define GGUF_ROUTER_KEYS(count, scale, norm) \
    {"expert_count", count}, {"expert_gating_func", NULL}, {"expert_weights_scale", scale}, { \
        "expert_weights_norm", norm \
    }
/* Keys that gguf_build_rope_by_window() reads. */
#define GGUF_ROPES_KEYS \
    {"rope.dimension_count_swa", NULL}, {"rope.freq_base", NULL}, { "rope.freq_base_swa", NULL }
/* Keys that gguf_build_qwen3next() reads, or that are named otherwise in its config. */
#define GGUF_QWEN3NEXT_KEYS \
    {"attention.key_length", NULL}, {"attention.recurrent_layers", NULL}, {"attention.value_length", NULL}, \
        {"expert_count", "num_experts"}, {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"}, \
        {"full_attention_interval", "full_attention_interval"}, {"rope.dimension_sections", NULL}, /* equal positions \
                                                                                                      in text */ \
        {"ssm.conv_kernel", "linear_conv_kernel_dim"}, {"ssm.group_count", "linear_num_key_heads"}, \
        {"ssm.inner_size", NULL}, {"ssm.state_size", "linear_key_head_dim"}, { \
        "ssm.time_step_rank", "linear_num_value_heads" \
    }
/* Keys that gguf_build_deepseek() reads, or that are named otherwise in its config. */
#define GGUF_DEEPSEEK_KEYS \
    {"attention.head_count_kv", NULL}, {"attention.key_length", NULL}, {"attention.key_length_mla", NULL}, \
        {"attention.kv_lora_rank", "kv_lora_rank"}, {"attention.q_lora_rank", "q_lora_rank"}, \
        {"attention.value_length", NULL}, {"attention.value_length_mla", NULL}, {"expert_count", "n_routed_experts"}, \
        {"expert_gating_func", NULL}, {"expert_group_count", "n_group"}, {"expert_group_used_count", "topk_group"}, \
        {"expert_shared_count", "n_shared_experts"}, {"expert_weights_norm", "norm_topk_prob"}, \
        {"expert_weights_scale", "routed_scaling_factor"}, { \
        "leading_dense_block_count", "first_k_dense_replace" \
    }

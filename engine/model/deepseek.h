#pragma once
/* Shared by DeepSeek's generations: MLA, leading dense layers, tensor names. */
#include "engine/model/arch.h"
#include "engine/model/names.h"

/* Defaults of keys that a config omits: transformers' configuration classes. */
struct deepseek_defaults {
    double scale;           /* routed_scaling_factor */
    int dense, shared;      /* first_k_dense_replace, n_shared_experts */
    bool norm;              /* norm_topk_prob */
    int groups, topk_group; /* n_group, topk_group */
};
extern const struct deepseek_defaults deepseek_v3_defaults;
/* The softmax scale of heads of head_dim. YaRN's mscale, squared, multiplies it whenever the config scales rope
 * (vendor: MLA.__init__). */
float deepseek_attn_scale(const struct config *c);
void deepseek_mla(struct config_reader *r, struct config *c);
/* deepseek_mla(), and refuses redundant keys that differ from it */
void deepseek_attention(struct config_reader *r, struct config *c);
/* without the choice of layers */
void deepseek_moe(struct config_reader *r, struct config *c, const struct deepseek_defaults *d);
void deepseek_experts(struct config_reader *r, struct config *c, const struct deepseek_defaults *d);
/* Reads n_group and topk_group, with defaults: groups ranked by the sum of their two best experts, and a selection
 * bias. */
void deepseek_groups(struct config_reader *r, struct config *c, int groups, int topk_group);
void deepseek_router(struct config_reader *r, struct config *c, const struct deepseek_defaults *d); /* noaux_tc */
/* Reads V3.2's indexer. heads, interleaved: defaults for its heads and rope layout. */
void deepseek_indexer(struct config_reader *r, struct config *c, int heads, bool interleaved);

/* Reads which layers have their own indexer: a list of "full" and "shared", a string of F and S, or every `freq`th
 * layer after a given one. every: default of freq. */
void deepseek_index_sharing(struct config_reader *r, struct config *c, int every);

/* DeepSeek-V4 and V4.1. attention: without the layers' kinds of keys. hash_layers: default number of layers whose
 * experts are selected by a table. */
void deepseek_v4_attention(struct config_reader *r, struct config *c);
void deepseek_v4_experts(struct config_reader *r, struct config *c, int hash_layers);
void deepseek_v4_streams(struct config_reader *r, struct config *c);
#define DEEPSEEK_V4_NAMES(m, embedding, window_norm) \
    .embed = embedding, .norm = m "norm", .head = "head", .attn_mix = m "layers.%d.hc_attn_fn", \
    .attn_mix_base = m "layers.%d.hc_attn_base", .attn_mix_scale = m "layers.%d.hc_attn_scale", \
    .ffn_mix = m "layers.%d.hc_ffn_fn", .ffn_mix_base = m "layers.%d.hc_ffn_base", \
    .ffn_mix_scale = m "layers.%d.hc_ffn_scale", .attn_norm = m "layers.%d.attn_norm", \
    .ffn_norm = m "layers.%d.ffn_norm", .q_a = m "layers.%d.attn.wq_a", .q_a_norm = m "layers.%d.attn.q_norm", \
    .q_b = m "layers.%d.attn.wq_b", .kv_a = m "layers.%d.attn.wkv", .kv_a_norm = m "layers.%d.attn." window_norm, \
    .sinks = m "layers.%d.attn.attn_sink", .o_a = m "layers.%d.attn.wo_a", .o = m "layers.%d.attn.wo_b", \
    .compress_kv = m "layers.%d.attn.compressor.wkv", .compress_gate = m "layers.%d.attn.compressor.wgate", \
    .compress_norm = m "layers.%d.attn.compressor.norm", .index_q = m "layers.%d.attn.indexer.wq_b", \
    .index_weights = m "layers.%d.attn.indexer.weights_proj", .router = m "layers.%d.ffn.gate", \
    .router_bias = m "layers.%d.ffn.gate.bias", .expert_gate = m "layers.%d.ffn.experts.%d.w1", \
    .expert_up = m "layers.%d.ffn.experts.%d.w3", .expert_down = m "layers.%d.ffn.experts.%d.w2", \
    .shared_gate_proj = m "layers.%d.ffn.shared_experts.w1", .shared_up = m "layers.%d.ffn.shared_experts.w3", \
    .shared_down = m "layers.%d.ffn.shared_experts.w2"

#define DEEPSEEK_LAYER "model.layers.%d."
#define DEEPSEEK_INDEX_NAMES \
    .index_q = DEEPSEEK_LAYER "self_attn.indexer.wq_b", .index_k = DEEPSEEK_LAYER "self_attn.indexer.wk", \
    .index_k_norm = DEEPSEEK_LAYER "self_attn.indexer.k_norm", \
    .index_weights = DEEPSEEK_LAYER "self_attn.indexer.weights_proj"
#define DEEPSEEK_BIAS_NAME .router_bias = DEEPSEEK_LAYER "mlp.gate.e_score_correction_bias"
/* m: prefix of the text model's names */
#define DEEPSEEK_MLA_NAMES(m) \
    .q_a = m "layers.%d.self_attn.q_a_proj", .q_a_norm = m "layers.%d.self_attn.q_a_layernorm", \
    .q_b = m "layers.%d.self_attn.q_b_proj", .kv_a = m "layers.%d.self_attn.kv_a_proj_with_mqa", \
    .kv_a_norm = m "layers.%d.self_attn.kv_a_layernorm", .kv_b = m "layers.%d.self_attn.kv_b_proj"
/* A text model inside a multimodal checkpoint; without the experts' names. */
#define DEEPSEEK_LANGUAGE_MODEL "language_model.model."
#define DEEPSEEK_LANGUAGE_MODEL_NAMES \
    .embed = DEEPSEEK_LANGUAGE_MODEL "embed_tokens", .norm = DEEPSEEK_LANGUAGE_MODEL "norm", \
    .head = "language_model.lm_head", NAMES_NORMS_BEFORE(DEEPSEEK_LANGUAGE_MODEL), \
    .q = DEEPSEEK_LANGUAGE_MODEL "layers.%d.self_attn.q_proj", \
    .o = DEEPSEEK_LANGUAGE_MODEL "layers.%d.self_attn.o_proj", DEEPSEEK_MLA_NAMES(DEEPSEEK_LANGUAGE_MODEL), \
    NAMES_ROUTER(DEEPSEEK_LANGUAGE_MODEL), NAMES_SHARED(DEEPSEEK_LANGUAGE_MODEL, "shared_experts"), \
    NAMES_DENSE(DEEPSEEK_LANGUAGE_MODEL)
#define DEEPSEEK_NAMES \
    NAMES_USUAL("model."), DEEPSEEK_MLA_NAMES("model."), NAMES_ROUTER("model."), NAMES_EXPERTS("model."), \
        NAMES_SHARED("model.", "shared_experts"), NAMES_DENSE("model.")

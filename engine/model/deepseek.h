#pragma once
/* What DeepSeek's generations share: MLA, dense layers first, tensor names. */
#include "engine/model/arch.h"

/* What holds where a config does not say: transformers' configuration classes. */
struct deepseek_defaults {
    double scale; /* routed_scaling_factor */
    int dense;    /* first_k_dense_replace */
    bool norm;    /* norm_topk_prob */
    int groups, best;
};
extern const struct deepseek_defaults deepseek_v3_defaults;
void deepseek_attention(struct config_reader *r, struct config *c);
void deepseek_experts(struct config_reader *r, struct config *c, const struct deepseek_defaults *d);
void deepseek_router(struct config_reader *r, struct config *c, const struct deepseek_defaults *d); /* noaux_tc */
/* The indexer of V3.2. heads, interleaved: its heads and rope where the config does not say. */
void deepseek_indexer(struct config_reader *r, struct config *c, int heads, bool interleaved);

#define DEEPSEEK_LAYER "model.layers.%d."
#define DEEPSEEK_INDEX_NAMES \
    .index_q = DEEPSEEK_LAYER "self_attn.indexer.wq_b", .index_k = DEEPSEEK_LAYER "self_attn.indexer.wk", \
    .index_k_norm = DEEPSEEK_LAYER "self_attn.indexer.k_norm", .index_weights = DEEPSEEK_LAYER "self_attn.indexer.weights_proj"
#define DEEPSEEK_BIAS_NAME .router_bias = DEEPSEEK_LAYER "mlp.gate.e_score_correction_bias"
#define DEEPSEEK_NAMES \
    .embed = "model.embed_tokens", .norm = "model.norm", .head = "lm_head", .attn_norm = DEEPSEEK_LAYER "input_layernorm", \
    .ffn_norm = DEEPSEEK_LAYER "post_attention_layernorm", .q = DEEPSEEK_LAYER "self_attn.q_proj", .o = DEEPSEEK_LAYER "self_attn.o_proj", \
    .q_a = DEEPSEEK_LAYER "self_attn.q_a_proj", .q_a_norm = DEEPSEEK_LAYER "self_attn.q_a_layernorm", .q_b = DEEPSEEK_LAYER "self_attn.q_b_proj", \
    .kv_a = DEEPSEEK_LAYER "self_attn.kv_a_proj_with_mqa", .kv_a_norm = DEEPSEEK_LAYER "self_attn.kv_a_layernorm", \
    .kv_b = DEEPSEEK_LAYER "self_attn.kv_b_proj", .router = DEEPSEEK_LAYER "mlp.gate", .expert_gate = DEEPSEEK_LAYER "mlp.experts.%d.gate_proj", \
    .expert_up = DEEPSEEK_LAYER "mlp.experts.%d.up_proj", .expert_down = DEEPSEEK_LAYER "mlp.experts.%d.down_proj", \
    .shared_gate_proj = DEEPSEEK_LAYER "mlp.shared_experts.gate_proj", .shared_up = DEEPSEEK_LAYER "mlp.shared_experts.up_proj", \
    .shared_down = DEEPSEEK_LAYER "mlp.shared_experts.down_proj", .dense_gate = DEEPSEEK_LAYER "mlp.gate_proj", .dense_up = DEEPSEEK_LAYER "mlp.up_proj", \
    .dense_down = DEEPSEEK_LAYER "mlp.down_proj"

#pragma once
/* Common tensor names, for the rows of struct arch. m: prefix of the text model's names, usually "model.". */
#define NAMES_NORMS_BEFORE(m) \
    .attn_norm = m "layers.%d.input_layernorm", .ffn_norm = m "layers.%d.post_attention_layernorm"
/* Norms before and after both blocks, as in Gemma. */
#define NAMES_NORMS_AROUND(m) \
    .attn_norm = m "layers.%d.input_layernorm", .attn_out_norm = m "layers.%d.post_attention_layernorm", \
    .ffn_norm = m "layers.%d.pre_feedforward_layernorm", .ffn_out_norm = m "layers.%d.post_feedforward_layernorm"
#define NAMES_ENDS(m) .embed = m "embed_tokens", .norm = m "norm", .head = "lm_head"
#define NAMES_USUAL(m) \
    NAMES_ENDS(m), NAMES_NORMS_BEFORE(m), .q = m "layers.%d.self_attn.q_proj", .o = m "layers.%d.self_attn.o_proj"
/* GQA without the norms. */
#define NAMES_QKVO(m) \
    .q = m "layers.%d.self_attn.q_proj", .k = m "layers.%d.self_attn.k_proj", .v = m "layers.%d.self_attn.v_proj", \
    .o = m "layers.%d.self_attn.o_proj"
#define NAMES_ATTENTION(m) NAMES_ENDS(m), NAMES_QKVO(m)
#define NAMES_GQA(m)       NAMES_ATTENTION(m), NAMES_NORMS_BEFORE(m)
#define NAMES_QK_NORM(m)   .q_norm = m "layers.%d.self_attn.q_norm", .k_norm = m "layers.%d.self_attn.k_norm"
#define NAMES_ROUTER(m)    .router = m "layers.%d.mlp.gate"
#define NAMES_EXPERTS(m) \
    .expert_gate = m "layers.%d.mlp.experts.%d.gate_proj", .expert_up = m "layers.%d.mlp.experts.%d.up_proj", \
    .expert_down = m "layers.%d.mlp.experts.%d.down_proj"
/* All experts of a layer in one tensor, gate and up together. */
#define NAMES_STACKED(m) \
    .expert_gate = m "layers.%d.mlp.experts.gate_up_proj", .expert_up = m "layers.%d.mlp.experts.gate_up_proj", \
    .expert_down = m "layers.%d.mlp.experts.down_proj"
/* Mixtral's names, router included. */
#define NAMES_SPARSE(m) \
    .router = m "layers.%d.block_sparse_moe.gate", .expert_gate = m "layers.%d.block_sparse_moe.experts.%d.w1", \
    .expert_up = m "layers.%d.block_sparse_moe.experts.%d.w3", \
    .expert_down = m "layers.%d.block_sparse_moe.experts.%d.w2"
/* s: "shared_expert" or "shared_experts" */
#define NAMES_SHARED(m, s) \
    .shared_gate_proj = m "layers.%d.mlp." s ".gate_proj", .shared_up = m "layers.%d.mlp." s ".up_proj", \
    .shared_down = m "layers.%d.mlp." s ".down_proj"
#define NAMES_DENSE(m) \
    .dense_gate = m "layers.%d.mlp.gate_proj", .dense_up = m "layers.%d.mlp.up_proj", \
    .dense_down = m "layers.%d.mlp.down_proj"
/* The vendor's names in Mistral's own files. l: a layer's prefix */
#define MISTRAL_NAMES(l) \
    .embed = "tok_embeddings", .norm = "norm", .head = "output", .attn_norm = l "attention_norm", \
    .ffn_norm = l "ffn_norm", .q = l "attention.wq", .kv_a = l "attention.wkv_a_with_mqa", \
    .kv_a_norm = l "attention.kv_a_norm", .kv_b = l "attention.wkv_b", .o = l "attention.wo", .router = l "gate", \
    .expert_gate = l "experts.%d.w1", .expert_up = l "experts.%d.w3", .expert_down = l "experts.%d.w2", \
    .shared_gate_proj = l "shared_experts.w1", .shared_up = l "shared_experts.w3", \
    .shared_down = l "shared_experts.w2", .dense_gate = l "feed_forward.w1", .dense_up = l "feed_forward.w3", \
    .dense_down = l "feed_forward.w2"

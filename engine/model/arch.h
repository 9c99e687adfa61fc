#pragma once
/* A model family: how its config.json is read, and its tensor names. A new family is one file in this folder and one
 * row in arch.c. */
#include "base/buf.h"
#include "engine/model/config_read.h"

/* Names without the suffixes .weight, .bias or of scales, unless "whole name" says that the suffix is included. %d:
 * layer, then expert. NULL: the family has no such tensor. If a tensor holds several of these (struct layout), its name
 * is listed for each. */
struct tensor_names {
    const char *embed, *norm, *head, *rope_alpha; /* rope_alpha is a whole name */
    const char *fope_cos, *fope_sin;              /* whole names */
    const char *attn_norm, *ffn_norm;
    const char *attn_norm_down, *attn_norm_up, *ffn_norm_down, *ffn_norm_up; /* gates of these */
    /* ffn_norm of a layer where it has a gate */
    const char *gated_ffn_norm;
    /* norms of the outputs of attention and FFN blocks */
    const char *attn_out_norm, *ffn_out_norm;
    /* gates_all_norms: gates of these, of latents and of the last norm */
    const char *attn_out_down, *attn_out_up, *ffn_out_down, *ffn_out_up;
    const char *q_a_norm_down, *q_a_norm_up, *kv_a_norm_down, *kv_a_norm_up, *norm_down, *norm_up;
    /* a dense FFN beside experts: norms of both outputs, and of the experts' input */
    const char *dense_out_norm, *experts_out_norm, *experts_norm;
    /* token_dim; the first three: of all layers */
    const char *token_table, *token_from_embed, *token_from_embed_norm, *token_gate, *token_out, *token_out_norm;
    const char *router_norm, *expert_scale, *stream_scale; /* whole names */
    /* gate of the attention output; the bias is a whole name */
    const char *attn_gate, *attn_gate_bias;
    const char *embed_norm, *rel, *rel_table;                    /* rel_table is a whole name */
    const char *k_conv, *v_conv, *attn_conv, *ffn_conv;          /* short convolutions */
    const char *k_taps, *v_taps, *k_row_taps, *v_row_taps;       /* of layers with mixes_kv: whole names */
    const char *q_in_norm, *k_in_norm, *v_in_norm, *sink_proj;   /* the first three: of layers with mixes_kv */
    const char *q_scale, *rel_scale;                             /* QK_NORM_CLIP: whole names */
    const char *attn_pool, *ffn_pool, *head_pool;                /* attention residuals: whole names */
    const char *attn_pool_norm, *ffn_pool_norm, *head_pool_norm; /* factors of these queries, if streams.sums_raw */
    /* of queries, keys, values and the FFN; the last two: whole names, of all layers */
    const char *message_gate[4], *message_query, *message_kv_query;
    const char *dense_scale, *router_scale;              /* whole names */
    const char *q, *k, *v, *o, *q_norm, *k_norm, *sinks; /* GQA; q and o also MLA; sinks is a whole name */
    const char *sink_key;                                /* a whole name */
    const char *v_router, *v_experts;                    /* value experts; the second: %d: layer, then expert */
    const char *q_a, *q_a_norm, *q_b, *kv_a, *kv_a_norm, *kv_b, *k_rope_norm; /* MLA */
    /* kv_b split in two, as in llama.cpp */
    const char *k_b, *v_b;
    const char *index_q, *index_k, *index_k_norm, *index_weights, *index_in_norm; /* DSA */
    const char *q_slope, *q_base, *index_slope, *index_base;                      /* scales_heads: whole names */
    /* compressed keys; bias is a whole name */
    const char *compress_kv, *compress_gate, *compress_norm, *compress_bias;
    const char *index_compress_kv, *index_compress_gate, *index_compress_norm, *index_compress_bias;
    /* per-group low-rank projection of the heads before o */
    const char *o_a;
    /* router_bias and router_table are whole names */
    const char *router, *router_bias, *router_table;
    /* residual streams: whole names */
    const char *attn_mix, *attn_mix_base, *attn_mix_scale, *ffn_mix, *ffn_mix_base, *ffn_mix_scale;
    const char *head_mix, *head_mix_base, *head_mix_scale;
    const char *attn_gated_norm, *attn_gated_down, *attn_gated_up, *attn_gated_inject; /* gated streams */
    const char *ffn_gated_norm, *ffn_gated_down, *ffn_gated_up, *ffn_gated_inject;
    const char *head_gated_norm, *head_gated_down, *head_gated_up;
    /* table: %d: layer, part */
    const char *ngram_table, *ngram_key, *ngram_value, *ngram_key_norm, *ngram_query_norm, *ngram_conv_norm,
        *ngram_conv;
    /* not part of a layer; %d: hash */
    const char *input_ngram_table, *input_ngram_projection;
    /* an indexer of blocks */
    const char *index_qk, *index_q_norm;
    /* gate: the one matrix of FFNs without up, here and below */
    const char *expert_gate, *expert_up, *expert_down;
    /* projections around experts in a latent space */
    const char *routed_in, *routed_out, *routed_in_norm, *routed_sum_norm;
    const char *expert_out_norm;
    /* gated DeltaNet; the first two or the next four */
    const char *delta_qkvz, *delta_ba, *delta_qkv, *delta_z, *delta_b, *delta_a, *delta_out;
    /* rate and dt are whole names */
    const char *delta_conv, *delta_rate, *delta_dt, *delta_norm;
    /* other mixers; rate, dt and skip are whole names */
    const char *mix_in, *mix_gate, *mix_out, *mix_conv, *mix_rate, *mix_dt, *mix_skip, *mix_norm;
    /* Kimi delta attention; the others are q, k, v, mix_rate, mix_dt, mix_norm, mix_out */
    const char *kda_beta, *kda_decay, *kda_decay_up, *kda_gate, *kda_gate_up;
    const char *kda_q_conv, *kda_k_conv, *kda_v_conv;
    /* CCA; bias and temp are whole names */
    const char *v_delayed, *cca_taps, *cca_bias, *cca_temp;
    /* merges_stream: whole names, in the order of struct stream_merge */
    const char *attn_merge[4], *ffn_merge[4], *embed_merge[2];
    /* merge_temperature: whole names */
    const char *attn_merge_gate, *ffn_merge_gate;
    /* router_inter; router_carry is a whole name */
    const char *router_down, *router_carry, *router_mlp_norm, *router_fc1, *router_fc2;
    const char *mix_select, *mix_step, *mix_dt_norm, *mix_b_norm, *mix_c_norm; /* Mamba-1 */
    /* shared_gate: [1, hidden], or [2, hidden] */
    const char *shared_gate_proj, *shared_up, *shared_down, *shared_gate;
    const char *dense_gate, *dense_up, *dense_down;
    const char *xielu[3]; /* of the dense FFN, in the order of layer.xielu: whole names */
};

/* Tensors that hold more than one matrix. */
/* all rows of gate, then all of up; or alternating rows */
enum gate_up { GATE_UP_SEPARATE, GATE_UP_STACKED, GATE_UP_INTERLEAVED };
struct layout {
    bool qkv;   /* rows of q, then k, then v */
    bool delta; /* gated DeltaNet's rows of q, k and v, then z, b and a */
    /* all experts of a layer, names without .weight: [n_experts, rows, cols] or [n_experts * rows, cols] */
    bool experts;
    bool value_experts;   /* all value experts of a layer: [n_value_experts * rows, cols] */
    bool has_suffix;      /* with experts: names with .weight and .bias */
    bool transposed_down; /* the routed experts' down is stored as [inter, hidden] */
    /* the routed experts' gate and up are stored as [hidden, inter]; with GATE_UP_STACKED gate's columns come before
     * up's */
    bool transposed_gate_up;
    /* they are stored so, their columns in the order of gate_up, but are transposed when they are loaded */
    bool transposes_gate_up;
    bool transposed_router; /* the router is stored as [hidden, n_experts] */
    /* the same number of experts for images follow a layer's experts; router_bias is [2, n_experts], the second row is
     * of images */
    bool image_experts;
    uint8_t gate_up;       /* enum gate_up, of the routed experts */
    uint8_t dense_gate_up; /* enum gate_up, of the dense FFN and the shared expert */
    const char *skipped;   /* part of the names of tensors that the config makes no use of; NULL: none */
};

/* Values of common keys that a family's configs may omit; 0: the key is required, false: the usual default. */
struct config_defaults {
    int vocab, hidden, layers, context, inter, heads, kv_heads, head_dim, topk;
    double theta;        /* of MLA; 0: 10000 */
    bool tied, is_gelu;  /* is_gelu: gelu_pytorch_tanh instead of silu */
    bool own_activation; /* parse() reads hidden_act */
};

struct arch {
    const char *const *model_types; /* NULL-terminated */
    /* as "architectures" of config.json names the family, where a published one has no model_type; NULL: it has */
    const char *const *architectures;
    const char *title; /* for --inspect: "DeepSeek-V3" */
    double norm_eps;   /* default if the config has none; 0: 1e-6 */
    struct config_defaults defaults;
    /* member of config.json that holds the text model's config, or "member.member"; NULL: the whole file */
    const char *text_config_key;
    /* layers of struct config that are one published layer; a second %d in names of their tensors counts them. 0: 1 */
    int sublayers;
    const char *text_type; /* model_type that the text model's config must have; NULL: any */
    void (*parse)(struct config_reader *r, struct config *c);
    struct tensor_names names;
    struct layout layout;
    /* patterns of the tensors with the numbers of n-grams' hashes: multipliers, vocabularies, offsets; NULL: none */
    const char *const *ngram_numbers;
    /* variant with separate tensors per routed expert, as quantization tools may write it */
    const struct arch *unstacked;
    const struct arch *transposed; /* variant whose stacked experts are stored transposed: chosen by their shapes */
    /* the family with other tensor names: if some layer has this tensor, `variant_tensor` with its suffix */
    const struct arch *variant;
    const char *variant_tensor;
    /* the router has a selection bias (names.router_bias) where a checkpoint has it */
    bool has_optional_bias;
    bool mlx_adds_one; /* norms by 1 + w are 1 + w in checkpoints that MLX wrote */
    /* parts of names of layers' tensors that checkpoints have and the reference does not use; NULL: none */
    const char *const *skipped_tensors;
    /* this family's names of common config keys: {common, own}, ends with NULL; NULL: the same */
    const char *const (*key_aliases)[2];
};

static inline int arch_sublayers(const struct arch *a) { return a->sublayers > 1 ? a->sublayers : 1; }
/* Returns the family of a config.json, or NULL: unknown. root NULL: of a model_type, whatever type its text model
 * has. */
const struct arch *arch_find(const struct json *model_type, const struct json *root);
/* Returns the family by the "architectures" of a config.json whose model_type is missing or unknown; or NULL. */
const struct arch *arch_find_class(const struct json *architectures);
/* Returns the family of the text model of a larger model whose own family is unknown, and the member of config.json
 * that describes it; or NULL. The larger model must treat text as its text model does: those that do not are refused by
 * name, in `why`. */
const struct arch *arch_find_text(const struct json *model_type, const struct json *root, const char **member,
                                  const char **why);
/* model_type of such a text model, known or not; NULL: there is none */
const struct json *arch_text_type(const struct json *root);
void arch_list(struct buf *out); /* appends all families as "deepseek_v3, kimi_k2, ..." */

extern const struct arch arch_deepseek_v3, arch_kimi_k25, arch_sarvam_mla, arch_deepseek_v32, arch_deepseek_v4,
    arch_deepseek_v41, arch_glm_moe_dsa, arch_deepseek_v2, arch_deepseek_v1, arch_qwen3_moe, arch_mixtral,
    arch_qwen2_moe;
extern const struct arch arch_glm4_moe, arch_minimax_m2, arch_gpt_oss, arch_phimoe, arch_dbrx;
extern const struct arch arch_olmoe, arch_flex_olmo, arch_granitemoe, arch_granitemoeshared, arch_granitemoe_swa,
    arch_ernie4_5_moe, arch_ernie4_5, arch_ernie4_5_vl_moe, arch_ernie4_5_moe_vl, arch_glm4_moe_lite, arch_glm4v_moe,
    arch_solar_open, arch_solar_open2, arch_dots1, arch_dots3_note, arch_dots3_note_text, arch_hy_v3, arch_bailing_moe,
    arch_sarvam_moe, arch_param2moe, arch_hunyuan_v1_moe, arch_laguna, arch_mistral_large4, arch_mellum,
    arch_mimo_v2_flash, arch_mimo_v2, arch_step3p5, arch_step3p7, arch_mistral4, arch_mistral_large3,
    arch_mistral4_text, arch_qwen3_vl_moe, arch_qwen3_omni_moe, arch_llama4, arch_llama4_text, arch_longcat_flash,
    arch_longcat_flash_ngram, arch_axk1;
extern const struct arch arch_gemma, arch_glm, arch_jais2, arch_minicpm3, arch_internlm2, arch_phi4mm, arch_helium,
    arch_vaultgemma, arch_bamba, arch_stablelm, arch_stablelm_parallel, arch_starcoder2, arch_phi, arch_gpt_neox,
    arch_falcon, arch_falcon_norms, arch_falcon_h1, arch_olmo;
extern const struct arch arch_qwen2_vl, arch_qwen2_vl_text, arch_qwen2_5_omni, arch_qwen3_omni_moe_thinker, arch_exaone,
    arch_apertus1p5, arch_apertus1p5_text, arch_glm4v, arch_glm4v_text;
extern const struct arch arch_llama, arch_arcee, arch_internlm3, arch_cwm, arch_mistral, arch_mistral3, arch_ministral,
    arch_ministral3, arch_qwen2, arch_mimo, arch_qwen3, arch_smollm3, arch_phi3, arch_gemma2, arch_gemma3,
    arch_gemma3_text;
extern const struct arch arch_glm4, arch_olmo2, arch_olmo3, arch_seed_oss, arch_granite, arch_granite_swa,
    arch_hyperclovax;
extern const struct arch arch_afmoe, arch_exaone_moe, arch_exaone4, arch_exaone4_5, arch_cohere2_moe, arch_cohere2,
    arch_cohere, arch_hunyuan_v1_dense, arch_youtu, arch_nanochat, arch_minicpm, arch_nemotron;
extern const struct arch arch_lfm2_moe, arch_lfm2, arch_lfm3, arch_lfm3_vl, arch_minimax, arch_granitemoehybrid;
extern const struct arch arch_kimi_linear, arch_kimi_k3, arch_bailing_hybrid, arch_bailing_moe_linear, arch_glm5_next;
extern const struct arch arch_gemma4, arch_gemma4_text, arch_gemma4_unified, arch_gemma4_unified_text, arch_hy_v4,
    arch_hy_v4_vl, arch_inkling, arch_inkling_text, arch_inkling2, arch_inkling2_text, arch_inkling2_loop,
    arch_inkling2_loop_text, arch_qwen4_exp, arch_qwen4_exp_text;
extern const struct arch arch_k2_horizon, arch_maple, arch_iquest_q1, arch_spark2_5, arch_apertus, arch_nemotron_nas,
    arch_nemotron_h, arch_jamba, arch_zaya, arch_minimax_m3, arch_minimax_m3_text, arch_minimax_m3_published_text,
    arch_axk2, arch_beam, arch_flint, arch_kolibri1, arch_lara_mini, arch_arctic, arch_grok, arch_smallthinker,
    arch_aria, arch_aria_text, arch_klear, arch_interns1_pro, arch_gigachat35, arch_openpangu, arch_pangu_pro,
    arch_step3_text, arch_step3_vl, arch_muse_spark, arch_muse_glimmer;
extern const struct arch arch_qwen3_next, arch_qwen3_5_moe, arch_qwen3_5_moe_text, arch_qwen3_5, arch_qwen3_5_text,
    arch_qwen3_vl;

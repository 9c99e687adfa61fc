#pragma once
/* The one list of a model's tensors. Loading, verification, NUMA copies, uploads, and the counts of bytes and
 * operations all iterate over it. A new tensor is a struct field and a row in params.c; a field without a row stays
 * NULL everywhere. Pure. */
#include <stddef.h>

#include "base/ops.h"
#include "engine/model/config.h"

/* Weights of op_mix and the product before it: fn [op_mix_weights(), s * hidden], base [op_mix_weights()], scale
 * [op_mix_parts()]; before the head [s, s * hidden], [s], [1]. */
struct stream_mix {
    struct mat fn;
    float *base, *scale;
};

/* With merges_stream: biases and factors of a block's output and of the residual stream, [hidden] each; with
 * merge_temperature without biases. */
struct stream_merge {
    float *output_bias, *output_scale, *stream_bias, *stream_scale;
};

/* Weights of a block's input from gated streams: norms [streams * hidden], down [rank, streams * hidden] and up
 * [streams * hidden, rank] of the gates, inject [streams, streams * hidden] of the weights of its output. */
struct gated_mix {
    float *norm;
    struct mat down, up, inject;
};

/* Adds to the stream after a layer: out_norm(out (act(gate stream) * v)), with a vector v of the token: (table row +
 * from_embed_norm(from_embed embedding)), scaled. */
struct token_input {
    struct mat table;       /* [vocab, token_dim] */
    struct mat from_embed;  /* [token_dim, hidden] */
    float *from_embed_norm; /* [token_dim] */
    struct mat gate, out;   /* [token_dim, hidden], [hidden, token_dim] */
    float *out_norm;        /* [hidden] */
};

/* The weights of a layer, views and vectors in one executor's memory. NULL or all zero: the layer has none. Vectors are
 * float32. */
struct layer {
    /* Norms of the blocks' inputs and outputs. previous_..: of the previous layer's FFN, whose output this layer adds
     * to the stream; layer 0: NULL */
    float *attn_norm, *attn_norm_bias, *ffn_norm, *ffn_norm_bias; /* [hidden] */
    /* norm_gate_rank: down [rank, hidden], up [hidden, rank] */
    struct mat attn_norm_gate[2], ffn_norm_gate[2];
    /* gates_all_norms: of the norms of outputs, down and up */
    struct mat attn_out_gate[2], previous_out_gate[2];
    /* [hidden]; with OUTPUT_NORM_UNIT only the second, factors before the norm */
    float *attn_out_norm, *previous_out_norm;
    /* [hidden] of the sum of experts, if a dense FFN is parallel to them */
    float *previous_experts_norm;
    /* [1] factors: of a dense FFN's output, of the stream after it */
    float *previous_ffn_scale, *previous_scale;

    /* Residual streams */
    struct stream_mix attn_mix, ffn_mix; /* several residual streams */
    /* previous_merge in layer 0: of the embeddings, without stream_bias and stream_scale */
    struct stream_merge attn_merge, previous_merge;
    struct token_input previous_token_input;
    struct gated_mix attn_gated, ffn_gated;
    float *attn_pool, *ffn_pool; /* queries of op_pool [hidden]; mixes_kv: attn_pool [3, hidden] */
    /* passes after the first: queries of op_pool for messages to queries, keys, values and the FFN [hidden] */
    float *message_query[4];
    struct message_gate {
        struct mat down, forget, gain; /* [rank, 2 * hidden], [hidden, rank] twice */
    } message_gate[4];
    /* mixes_kv: norms of the inputs of keys and values [hidden]; attn_norm is that of queries */
    float *kv_norm[2];
    /* [rows, dim / hashes], [streams * hidden, dim], [hidden, dim] */
    struct mat ngram_table, ngram_key, ngram_value;
    float *ngram_key_norm, *ngram_query_norm, *ngram_conv_norm; /* [streams * hidden] */
    float *ngram_conv;                                          /* [taps, streams * hidden] */
    /* [vocab] of int32_t: numbers of tokens (config.ngram_numbers) */
    float *ngram_ids;

    /* Attention: GQA, and what other kinds share with it */
    struct mat q, k, v, o; /* [heads * dim, hidden]; o [hidden, n_heads * v_dim], also of MLA and of mixers */
    float *xielu[3];       /* [1] of the dense FFN: alphas for positive and negative numbers, before softplus; beta */
    float *sink_key;       /* [n_kv_heads, head_dim], with sink_keys */
    struct mat v_router;   /* [n_value_experts, hidden]; then v is [n_value_experts * n_kv_heads * v_dim, hidden] */
    float *v_router_bias;  /* [n_value_experts], of the selection only */
    float *q_bias, *k_bias, *v_bias, *o_bias;
    /* [head_dim], or over all heads; QK_NORM_CLIP: q_norm [n_heads * head_dim], no k_norm */
    float *q_norm, *k_norm;
    float *sinks;          /* [n_heads] */
    struct mat attn_gate;  /* GQA, MLA: [n_heads * v_dim, hidden] or [n_heads, hidden] */
    float *attn_gate_bias; /* [n_heads * v_dim] */
    /* biases by distance: coefficients [n_heads * rel_dim, hidden], table [rel_dim, extent] */
    struct mat rel, rel_table;
    /* [taps, kv_heads * dim] short convolutions, with the input added to the last tap, as in the next ones */
    float *k_conv, *v_conv;
    /* mixes_kv: more taps per row, [kv_heads * taps, hidden], the latest row's first */
    struct mat k_row_taps, v_row_taps;
    struct mat sink_proj; /* [n_heads, hidden] */
    float *rel_scale;     /* [n_heads * rel_dim] */
    float *attn_conv;     /* [taps, hidden] of the attention block's output */
    float *previous_conv; /* [taps, hidden] of the previous layer's FFN output */

    /* MLA; without low-rank q, q is used */
    struct mat q_a, q_b, kv_a, kv_b; /* kv_b: rows of head h: nope, then v */
    struct mat k_b, v_b;             /* instead of kv_b: rows of head h [kv_lora, nope] and [v, kv_lora] */
    float *q_a_norm, *q_a_bias, *kv_a_norm, *kv_a_bias;
    struct mat q_a_norm_gate[2], kv_a_norm_gate[2]; /* gates_all_norms: of these norms, as attn_norm_gate */
    float *k_rope_norm;                             /* [qk_rope] of the rotated part of keys */
    float *q_slope, *q_base;                        /* [n_heads] factors of the queries by position, as in op_scale */

    /* Multi-token keys (COMPRESSED), and indexers */
    struct mat compress_kv, compress_gate; /* [series * head_dim, hidden] */
    float *compress_norm, *compress_bias;  /* [head_dim], [ratio, series * head_dim] */
    /* [o_groups * o_lora, n_heads * head_dim / o_groups]; then o is [hidden, o_groups * o_lora] */
    struct mat o_a;
    /* [index_heads * index_dim, q_lora]; index_by_group, index_from_input: hidden */
    struct mat index_q;
    /* [index_dim, hidden], of entries [index_dim, head_dim]; [index_heads, hidden] */
    struct mat index_k, index_weights;
    /* instead of both, over blocks: [(index_heads + 1) * index_dim, hidden] queries, then the key */
    struct mat index_qk;
    float *index_q_norm, *index_k_norm, *index_k_bias; /* [index_dim] */
    float *index_in_norm, *index_in_bias;              /* [hidden] */
    float *index_slope, *index_base;                   /* [index_heads] */
    struct mat index_compress_kv, index_compress_gate; /* the indexer's multi-token keys: [2 * index_dim, hidden] */
    /* [index_dim], [ratio, 2 * index_dim]; DSA over blocks: gate and bias of one series */
    float *index_compress_norm, *index_compress_bias;

    /* Compressed convolutional attention */
    struct mat v_delayed;                  /* [n_kv_heads * head_dim / 2, hidden]; v has the other half */
    float *cca_taps, *cca_bias, *cca_temp; /* [taps, heads * dim of q and k, dim], [heads * dim], [n_kv_heads] */

    /* Mixers with a state. Their output projection is o */
    /* gated DeltaNet, fused: per key head the rows of q, k, v and z of its value heads; then b, a */
    struct mat delta_qkvz, delta_ba;
    struct mat delta_qkv, delta_z, delta_b, delta_a; /* gated DeltaNet, separate */
    float *delta_conv;                               /* [taps, channels] */
    float *delta_rate, *delta_dt, *delta_norm;       /* [v_heads] -exp(A_log), [v_heads], [v_dim] */
    struct mat kda_beta;                             /* Kimi delta attention [heads, hidden] */
    /* [heads * dim, hidden], or [rank, hidden] and [heads * dim, rank] */
    struct mat kda_decay, kda_decay_up;
    struct mat kda_gate, kda_gate_up; /* of the shapes of kda_decay and kda_decay_up */
    float *kda_conv[3];               /* of q, k, v: [taps, heads * dim] */
    /* conv [3 * hidden, hidden]: B, C, x; lightning: q, k, v; Mamba-2: z, x, B, C, dt */
    struct mat mix_in;
    float *mix_in_bias;
    struct mat mix_gate;             /* lightning [heads * dim, hidden] */
    float *mix_conv, *mix_conv_bias; /* [taps, channels], [channels] */
    /* Mamba-2: [heads] -exp(A_log), [heads], [heads]; Mamba-1: [state, inner], [inner], [inner]; KDA: rate [heads], dt
     * [heads * dim] */
    float *mix_rate, *mix_dt, *mix_skip;
    struct mat mix_select, mix_step;              /* Mamba-1: [rank + 2 * state, inner] dt, B, C; [inner, rank] */
    float *mix_dt_norm, *mix_b_norm, *mix_c_norm; /* Mamba-1: [rank], [state], [state] */
    float *mix_norm;                              /* lightning [heads * dim], Mamba-2 [inner], KDA [dim] */

    /* Router */
    /* router_inter: [inter, hidden], [inter, inter] twice */
    struct mat router_down, router_fc1, router_fc2;
    /* [inter]; carry: factor of the previous layer's */
    float *router_down_bias, *router_carry, *router_mlp_norm, *router_fc1_bias, *router_fc2_bias;
    /* [n_experts, hidden], or [n_experts, router_inter] */
    struct mat router;
    /* [n_experts], added to the scores for the selection only */
    float *router_bias;
    /* [n_experts], added to the logits */
    float *router_shift;
    /* [vocab, topk] of int32_t: experts by token */
    float *router_table;
    /* [n_experts], factors of the chosen experts' weights */
    float *expert_scale;

    /* FFNs */
    struct mat routed_in, routed_out; /* experts in a latent space: [moe_latent, hidden], [hidden, moe_latent] */
    float *routed_in_norm;            /* [moe_latent] of their input */
    float *expert_out_norm;           /* [moe_latent] factors of an expert's output before its norm */
    float *routed_sum_norm;           /* [moe_latent] */
    struct mat shared_gate;           /* [1, hidden]; mixes_shared: [2, hidden] */
    float *shared_gate_bias;          /* [2] */
    /* the dense FFN, or the shared expert of a layer with experts; gate.data NULL: none */
    struct expert dense;
    struct expert *experts;             /* [n_experts]; NULL: dense layer */
    const struct expert_shards *shards; /* experts and dense, split by NUMA node (numa_copy.h); NULL: not split */
    /* a dense FFN parallel to experts that have input and output norms of their own */
    struct expert parallel_dense;
    float *dense_out_norm; /* [hidden] norm of its output */
    /* [hidden] norms of the stream for the router, and for the experts; with EARLY_ROUTED the second is of both */
    float *router_norm, *experts_norm;
};

/* Groups of tensors, as a bit mask: the stages of a block, and tensors outside the layers. */
enum module {
    MODULE_ATTENTION = 1,
    MODULE_ROUTER = 2,        /* also the norm before it, which a dense layer has too, and the shared expert's gate */
    MODULE_SHARED = 4,        /* the shared expert or the dense FFN */
    MODULE_EXPERT = 8,        /* one routed expert: fields of struct expert */
    MODULE_EMBED = 16,        /* these three: fields of struct weights (the layer index is ignored) */
    MODULE_HEAD = 32,         /* final norm and head */
    MODULE_STREAM_MERGE = 64, /* merges several residual streams before the final norm */
    MODULE_MODEL = MODULE_EMBED | MODULE_HEAD | MODULE_STREAM_MERGE,
    MODULE_FFN = MODULE_ROUTER | MODULE_SHARED,
    MODULE_LAYER = MODULE_ATTENTION | MODULE_FFN,
};

/* The part of a stored tensor that a parameter occupies: rows first, first + step, ... of total_rows. A vector's
 * elements past the tensor are 0; with step 0 all are the same. All zero: the whole tensor. */
struct tensor_slice {
    int total_rows, first, step;
    int repeats; /* a vector has each element this many times; 0: once */
    /* a matrix or a vector has equal numbers of rows, from `first` on, of each of this many equal pieces of the tensor;
     * 0: 1 */
    int pieces;
    int total_cols, first_col; /* columns of the stored tensor, and the first of the parameter; 0: its own */
    bool stacked;              /* one expert of a tensor that holds all experts */
};

struct param {
    size_t offset;      /* offset of the field in struct layer, or in the struct that its module names */
    size_t name_offset; /* offset of its name pattern in struct tensor_names */
    const char *suffix; /* suffix of a vector's name; a matrix has .weight and the suffixes of its scales */
    uint8_t module;
    int16_t layer_shift; /* added to the layer's index in the name */
    int16_t name_shift;  /* added to the index of the checkpoint's layer that has this index */
    bool optional;       /* may be absent from a checkpoint */
    /* a matrix stored as [cols, rows], which is transposed at load time; its slice is of the transposed tensor */
    bool is_transposed;
    bool is_table; /* a token reads single rows */
    /* no executor but the CPU has the matrix: copies of its layer leave it out (block_gather_ngrams) */
    bool stays_on_host;
    int used_of[2]; /* a token reads used_of[0] of used_of[1] equal parts of the matrix; {0, 0}: all */
    int rows, cols; /* cols 0: a vector, float32 once loaded; else a struct mat */
    struct tensor_slice slice;
    uint8_t conversion; /* enum vector_conversion: conversion of a vector at load time */
    int taps, taps_in;  /* of CONVERT_TRANSPOSE: published as [channels / taps_in, taps_in, taps]; taps_in 0: 1 */
    /* with table_cols: published as [rows / table_rows / table_cols, table_rows, table_cols]; 0: [rows / table_cols,
     * table_cols] */
    int table_rows;
    int dilation; /* distance of these taps, with zeros between them; 0: 1 */
    /* number of tensors that hold the matrix, each with some of its rows; names have the layer's number, then the
     * tensor's; 0: 1 */
    int parts;
    float factor; /* multiplies a vector at load time; 0: 1 */
    /* offset of the name of a second vector, NAME.weight, that multiplies this one at load time; 0: none */
    size_t times_offset;
    bool is_padded; /* a vector whose tensor may be longer: its first numbers count */
    int table_cols; /* vector published as [rows / table_cols, table_cols]; 0: one dimension */
};
enum vector_conversion {
    CONVERT_NONE,        /* w */
    CONVERT_MINUS,       /* -w */
    CONVERT_MINUS_EXP,   /* -exp(w) */
    CONVERT_ADD_ONE,     /* 1 + w */
    CONVERT_ADD_FACTOR,  /* factor * (1 + w) */
    CONVERT_OUTPUT_GATE, /* b = sigmoid(w) */
    CONVERT_STREAM_GATE, /* sqrt(1 - b^2), at least sqrt(0.001) */
    CONVERT_TRANSPOSE,   /* taps of a convolution: [taps, channels], with zeros between them if dilated */
    /* CONVERT_TRANSPOSE, plus 1 (times factor) in the last tap, which adds the convolution's input */
    CONVERT_ADD_INPUT,
    CONVERT_TURN_TAPS,      /* CONVERT_ADD_INPUT of [taps, channels] with the latest row's tap first */
    CONVERT_EXPERT_IDS,     /* int32_t instead of float32, each a valid expert */
    CONVERT_TOKEN_NUMBERS,  /* int32_t, not of the checkpoint: weights.ngram_ids */
    CONVERT_RATES,          /* -exp(w) of a table, transposed */
    CONVERT_TRANSPOSE_TABLE /* w of a table, transposed */
};
enum { PARAMS_MAX = 288, EXPERT_PARAMS = 6 /* the most that a routed expert has */ };

/* Lists the tensors of these modules in layer `layer`, in the order of use. Returns their number. */
int params_list(const struct config *c, int layer, unsigned modules, struct param out[PARAMS_MAX]);
/* Changes a listed expert without biases into a shared one (config.n_always), whose gate and up are ordered as in the
 * layout's dense FFNs. */
void params_order_as_shared(const struct config *c, struct param *list, int n);
/* Returns the bytes of n parameters: matrices and scales as stored, vectors as float32. */
size_t params_bytes(const void *base, const struct param *list, int n);
/* Sets the non-tensor fields of a layer's routed expert (activation, orientation). */
void params_set_traits(const struct config *c, int layer, struct expert *e);
/* Copies the non-tensor fields of an FFN from src to view. Both are struct layer, or struct expert for
 * MODULE_EXPERT. */
void params_copy_traits(unsigned modules, const void *src, void *view);
/* The parameter's field in its struct. */
static inline struct mat *params_mat(const void *base, const struct param *p) {
    return (struct mat *)((char *)base + p->offset);
}
/* as loaded */
static inline int params_taps(const struct param *p) { return (p->taps - 1) * (p->dilation ? p->dilation : 1) + 1; }
static inline float **params_vector(const void *base, const struct param *p) {
    return (float **)((char *)base + p->offset);
}

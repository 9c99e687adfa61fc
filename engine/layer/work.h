#pragma once
/* The workspace of a transformer block: all memory of a batch besides weights and KV cache. Owns its buffers, except
 * those marked. One user at a time. */
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/model/config.h"

enum { FOPE_ROWS = 32 }; /* rows whose cos and sin are computed at a time */
/* Workspace for up to `rows` tokens. All pointers are in the executor's memory. */
struct work {
    const struct config *config;
    int rows;
    void *(*alloc)(void *ctx, size_t size); /* allocates executor memory; NULL: out of memory */
    void (*release)(void *ctx, void *p);
    void *ctx;
    _Atomic int *first_bad; /* first non-finite value: 2 * layer before its attention, + 1 before its FFN */

    /* Positions */
    float *cos, *sin;               /* [rows, rope_row_floats] */
    float *fope_basis;              /* FoPE: cos and sin of the frequencies, [FOPE_ROWS, rope.dim / 2] twice */
    float *second_cos, *second_sin; /* [rows, second_rope.dim / 2], if the model has one */
    float *inv_freq;                /* [rope_floats] */
    int32_t *pos, *tokens;          /* [rows] */
    int32_t *seq_length;            /* [rows] sequence length of a row; LongRoPE only, otherwise NULL */

    /* The residual stream, and what layers pass on */
    /* [rows, hidden] the residual stream; with several streams, the output of the current block */
    float *x;
    /* [rows, hidden] normed input of the block. Both have room for [rows, config_row_width()] */
    float *xn;
    /* [2, rows, hidden] normed inputs of keys and of values, where they are not xn (mixes_kv) */
    float *kv_in;
    float *messages; /* [rows, 7 * hidden + message_rank] scratch of messages between passes */
    /* [rows, norm_gate_rank], then [rows, hidden], or the widest latent with a gate */
    float *norm_gates;
    /* several streams: [rows, n, hidden], [rows, n] weight of x in each stream, [rows, (2 + n) * n] input of op_mix */
    float *streams, *post, *mix;
    float *stream_norm, *stream_gates; /* gated streams and n-grams: [rows, n, hidden] each */
    /* [rows, dim] embeddings of n-grams; with config.input_ngrams [BATCH_INVARIANT_ROWS, dim] of one hash */
    float *ngram;
    /* [rows, hashes] their rows of the table; with config.input_ngrams [hashes, BATCH_INVARIANT_ROWS] */
    int32_t *ngram_rows;
    float *token_vectors; /* [3, rows, token_dim] scratch */
    /* [rows, hidden] what a layer keeps for the next: its FFN input, or a dense FFN's output; or its own input
     * (config.reads_early); NULL: no layer does */
    float *kept;
    /* [rows, carried] what layers pass to later ones: a router's MLP to the next; the embedding, keys and values
     * (config.carried) */
    float *carried;

    /* Attention */
    float *q; /* [rows, n_heads * head_dim] */
    /* [rows, cached floats of a layer]: latent and rope key, or k [rows, n_kv_heads * head_dim], then v */
    float *kv;
    float *att; /* [rows, n_heads * v_dim] output of attention or of a mixer */
    /* [rows, q_lora]; with q_raw then [rows, 2 * q_lora], the same and the raw latent */
    float *q_latent;
    int absorb_rows;     /* most rows that absorbed MLA processes at once */
    float *absorbed_q;   /* [absorb_rows, n_heads * (kv_lora + rope)] absorbed queries */
    float *absorbed_out; /* [absorb_rows, n_heads * kv_lora] */
    /* expanded MLA: [keys, kv_lora + rope]; [keys, G, head_dim] then [keys, G, v_dim]; grown on demand */
    float *latent, *expanded_kv;
    size_t latent_floats, expanded_floats;  /* sizes of these two */
    float *entries, *entry_cos, *entry_sin; /* multi-token keys: [rows, head_dim], [rows, rope.dim / 2] */
    /* [2, rows, n_heads] log-sum-exp over the window, and over multi-token keys */
    float *part_lse;
    /* indexer: [rows, index_heads * index_dim] queries, [rows, index_heads] head weights */
    float *index_q, *index_weights;
    /* [rows, config_index_entries()] selected cache rows; kept for layers that reuse the selection */
    int32_t *selected_keys;
    /* [rows, candidate_blocks] blocks that an indexer selected for later ones */
    int32_t *candidates;
    int rel_rows; /* rows of rel_bias */
    float *rel;   /* [rows, n_heads * rel_dim] coefficients of biases by distance */
    /* [rel_rows, n_heads, extent] biases by distance of the rows being attended */
    float *rel_bias;
    float *sink_logits, *sink_lse; /* [rows, n_heads] projected sinks, negated; log-sum-exp without them */
    /* Attention in pieces, owned by the caller, may be NULL: [rows, n_heads]; one piece's result, piece_floats; its lse
     * [rows, n_heads] */
    float *lse, *piece_out, *piece_lse;
    size_t piece_floats;

    /* Mixers, and the gates of attention */
    /* [rows, ..] gated attention: output of q_proj; DeltaNet: fused inputs, then convolution output; other mixers:
     * inputs */
    float *fused;
    /* mixers: [rows, channels] input of the convolution (Mamba: output; lightning: q, k, v); short convolutions: keys,
     * then values before them */
    float *mixed;
    /* [rows, v_heads * v_dim] gates; Mamba-1: steps; CCA: delayed values; mixes_kv: taps per row of keys, then of
     * values */
    float *z;
    float *beta_alpha; /* [rows, b [v_heads], a [v_heads]]; KDA: [rows, b [heads], f [heads * dim]] */

    /* Router and experts */
    float *router;        /* [rows, n_experts + n_idle_experts] logits */
    float *router_mlp;    /* [2, rows, router_inter] scratch */
    int32_t *ids;         /* [rows, topk] selected experts */
    float *weights;       /* [rows, topk] factors of their outputs */
    float *idle;          /* [rows] weights of idle experts; NULL: the model has none */
    float *shared_weight; /* [rows] factor of the shared expert's output */
    /* [rows, hidden] input of shared experts where it is not xn (config_has_ffn_in), otherwise NULL */
    float *ffn_in;
    /* [rows, moe_latent] input and output of experts in a latent space; NULL: the model has none */
    float *routed_in, *routed_sum;
    /* [block_experts_rows(), topk, moe_latent] outputs of experts, which are normed before they are summed; or NULL */
    float *expert_rows;
    const uint8_t *late_experts; /* [n_experts] or NULL: as is_loading in op_experts; not owned */
    float computed_fraction;     /* as in op_experts */
};

#pragma once
/* Facts about a model that only the tensors of its GGUF file show, not the metadata. */
#include "engine/model/arch.h"

struct gguf_factors { /* factors of rotary frequencies, one per pair; v NULL: none */
    const float *v;
    uint32_t n;
};
/* Facts that the tensors show and the metadata omits. */
struct gguf_facts {
    int64_t vocab;         /* rows of the embedding */
    int64_t table_rows;    /* rows of per_layer_token_embd */
    int last_layer;        /* largest number of a layer with tensors */
    bool tied;             /* no lm_head tensor */
    bool router_bias;      /* the router has a selection bias */
    bool bare_router_bias; /* that tensor's name has no suffix */
    bool split_kv_b;       /* MLA's up-projection is split in two tensors */
    bool qkv_bias, qk_norm, head_bias, conv_bias;
    bool dense_gate;            /* dense FFNs have gate and up in two tensors */
    bool ffn_norm, second_norm; /* FFNs have a norm of their own; so do attention blocks, under a name of its own */
    bool mixer_norm;            /* outputs of mixers have a norm */
    bool layer_out_norm;        /* norms of FFN outputs have an older name */
    bool routed_norm;           /* the sum of experts in a latent space has a norm */
    bool shared_gate;           /* gate and up of shared experts are two tensors */
    bool gate_up;               /* gate and up of all experts in one tensor */
    /* q, k and v in one tensor; all DeltaNet inputs except b and a in one tensor */
    bool qkv, delta_in;
    /* for all sequences; for sequences up to the original context, and for longer ones */
    struct gguf_factors freqs, short_factors, long_factors;
    uint8_t layer[CONFIG_MAX_LAYERS];     /* a set of enum gguf_part for each layer */
    int64_t gate_rows[CONFIG_MAX_LAYERS]; /* rows of the gate of the attention output */
};
enum gguf_part {
    GGUF_HAS_ROUTER = 1,
    GGUF_HAS_FFN = 2,
    GGUF_HAS_QUERIES = 4,
    GGUF_HAS_VALUES = 8,
    GGUF_HAS_SINKS = 16,
    GGUF_HAS_GATE = 32,
    GGUF_HAS_INDEXER = 64
};

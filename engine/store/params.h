#pragma once
/* The one list of a model's tensors. Loading, the search for damage, placement by memory node, what a device is sent and the
 * count of bytes and operations all walk it, so that a new tensor is a field of the struct that it is loaded into and a row
 * in params.c; a field without a row stays NULL everywhere. Pure. */
#include <stddef.h>

#include "engine/base/ops.h"
#include "engine/model/config.h"

/* What op_mix and the product before it take: [(2 + s) * s, s * hidden], [(2 + s) * s], [3]; before the head [s, s * hidden], [s], [1]. */
struct stream_mix {
    struct mat fn;
    float *base, *scale;
};

struct layer {
    struct stream_mix attn_mix, ffn_mix; /* several residual streams */
    float *attn_norm, *ffn_norm;         /* [hidden] */
    float *attn_norm_bias, *ffn_norm_bias;
    struct mat q, k, v, o; /* GQA: [heads * dim, hidden]; o [hidden, n_heads * v_dim] */
    float *q_bias, *k_bias, *v_bias, *o_bias;
    float *q_norm, *k_norm;          /* [head_dim], or of all heads */
    float *sinks;                    /* [n_heads] */
    struct mat q_a, q_b, kv_a, kv_b; /* MLA; q without low rank is q. kv_b: rows of head h: nope, then v */
    struct mat k_b, v_b;             /* instead of kv_b: rows of head h [kv_lora, nope] and [v, kv_lora] */
    float *q_a_norm, *q_a_bias, *kv_a_norm, *kv_a_bias;
    struct mat compress_kv, compress_gate;             /* keys of several tokens: [series * head_dim, hidden] */
    float *compress_norm, *compress_bias;              /* [head_dim], [ratio, series * head_dim] */
    struct mat index_compress_kv, index_compress_gate; /* the indexer's: [2 * index_dim, hidden] */
    float *index_compress_norm, *index_compress_bias;  /* [index_dim], [ratio, 2 * index_dim] */
    struct mat o_a;                                    /* [o_groups * o_lora, n_heads * head_dim / o_groups]; then o is [hidden, o_groups * o_lora] */
    struct mat index_q, index_k, index_weights;        /* DSA: [index_heads * index_dim, q_lora], [index_dim, hidden], [index_heads, hidden] */
    float *index_k_norm, *index_k_bias;                /* [index_dim] */
    struct mat delta_qkvz, delta_ba;                   /* gated DeltaNet, fused: rows of a key head: q, k, v and z of its value heads; b, a */
    struct mat delta_qkv, delta_z, delta_b, delta_a;   /* apart; its output is o [hidden, v_heads * v_dim] */
    float *delta_conv;                                 /* [taps, channels] */
    float *delta_rate, *delta_dt, *delta_norm;         /* [v_heads] -exp(A_log), [v_heads], [v_dim] */
    struct mat router;                                 /* [n_experts, hidden] */
    float *router_bias;                                /* [n_experts] of the choice */
    float *router_table;                               /* [vocab, topk] of int32_t: experts by token */
    float *router_shift;                               /* [n_experts] of the logits */
    struct mat shared_gate;                            /* [1, hidden] */
    struct expert dense;                               /* the dense FFN, or the shared expert of a layer with experts; gate.data NULL: none */
    struct expert *experts;                            /* [n_experts]; NULL: dense layer */
    const struct expert_shards *shards;                /* experts and dense by memory node (place.h); NULL: whole */
};

/* What goes together, as a mask: the stages of a block, and what belongs to no layer. */
enum module {
    MODULE_ATTENTION = 1,
    MODULE_ROUTER = 2, /* the norm before it, which a dense layer has too; the shared expert's gate */
    MODULE_SHARED = 4, /* the shared expert or the dense FFN */
    MODULE_EXPERT = 8, /* one routed expert: fields of struct expert */
    MODULE_ENDS = 16,  /* fields of struct weights, and the layer does not matter: embedding, final norm and head */
    MODULE_CLOSE = 32, /* what makes one of several residual streams before that norm */
    MODULE_MODEL = MODULE_ENDS | MODULE_CLOSE,
    MODULE_FFN = MODULE_ROUTER | MODULE_SHARED,
    MODULE_LAYER = MODULE_ATTENTION | MODULE_FFN,
};

/* Where a matrix or vector lies in a tensor that holds more: rows first, first + step, ... of `of`. All zero: it is the tensor. */
struct slice {
    int of, first, step;
    bool stacked; /* in a tensor of all experts, one behind the other */
};

struct param {
    size_t at;          /* of the field in struct layer, or as its module says */
    size_t name;        /* of its pattern in struct tensor_names */
    const char *ending; /* of a vector's name; a matrix has .weight and the endings of its scales */
    uint8_t module;
    bool optional;  /* may be absent from a checkpoint */
    int rows, cols; /* cols 0: a vector, float32 once loaded; else a struct mat */
    struct slice slice;
    uint8_t made; /* enum vector_made: what becomes of a vector at loading */
    int taps;     /* of MADE_TURNED: published as [rows / taps, 1, taps] */
    int across;   /* of a vector that is published as [rows / across, across]; 0: of one dimension */
};
enum vector_made { MADE_PLAIN, MADE_MINUS_EXP, MADE_TURNED, MADE_EXPERTS }; /* w; -exp(w); [taps, channels]; numbers of experts, as int32_t */
enum { PARAMS_MAX = 90 };

/* The tensors of these modules that layer `layer` of such a model has, in the order of their use; returns how many. */
int params_list(const struct config *c, int layer, unsigned modules, struct param out[PARAMS_MAX]);
/* What n of them take in memory: matrices and their scales as stored, vectors as float32. */
size_t params_bytes(const void *base, const struct param *list, int n);
/* What of a feed-forward is no tensor; from src to view, both struct layer, or struct expert for MODULE_EXPERT. */
void params_kind(unsigned modules, const void *src, void *view);
/* Its field in the struct that holds it. */
static inline struct mat *params_mat(const void *base, const struct param *p) { return (struct mat *)((char *)base + p->at); }
static inline float **params_vector(const void *base, const struct param *p) { return (float **)((char *)base + p->at); }

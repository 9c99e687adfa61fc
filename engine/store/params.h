#pragma once
/* The one list of a model's tensors. Loading, the search for damage, placement by memory node, what a device is sent and the
 * count of bytes and operations all walk it, so that a new tensor is a field of the struct that it is loaded into and a row
 * in params.c; a field without a row stays NULL everywhere. Pure. */
#include <stddef.h>

#include "engine/base/ops.h"
#include "engine/model/config.h"

struct layer {
    float *attn_norm, *ffn_norm; /* [hidden] */
    struct mat q, k, v, o;       /* GQA: [heads * dim, hidden]; o [hidden, n_heads * v_dim] */
    float *q_bias, *k_bias, *v_bias, *o_bias;
    float *q_norm, *k_norm;          /* [head_dim] */
    struct mat q_a, q_b, kv_a, kv_b; /* MLA; q without low rank is q. kv_b: rows of head h: nope, then v */
    float *q_a_norm, *q_a_bias, *kv_a_norm, *kv_a_bias;
    struct mat router;                  /* [n_experts, hidden] */
    float *router_bias;                 /* [n_experts] */
    struct mat shared_gate;             /* [1, hidden] */
    struct expert dense;                /* the dense FFN, or the shared expert of a layer with experts; gate.data NULL: none */
    struct expert *experts;             /* [n_experts]; NULL: dense layer */
    const struct expert_shards *shards; /* experts and dense by memory node (place.h); NULL: whole */
};

/* What goes together, as a mask: the stages of a block, and what belongs to no layer. */
enum module {
    MODULE_ATTENTION = 1,
    MODULE_ROUTER = 2, /* the norm before it, which a dense layer has too; the shared expert's gate */
    MODULE_SHARED = 4, /* the shared expert or the dense FFN */
    MODULE_EXPERT = 8, /* one routed expert: fields of struct expert */
    MODULE_MODEL = 16, /* fields of struct weights; the layer does not matter */
    MODULE_FFN = MODULE_ROUTER | MODULE_SHARED,
    MODULE_LAYER = MODULE_ATTENTION | MODULE_FFN,
};

struct param {
    size_t at;          /* of the field in struct layer, or as its module says */
    size_t name;        /* of its pattern in struct tensor_names */
    const char *ending; /* of a vector's name; a matrix has .weight and the endings of its scales */
    uint8_t module;
    bool optional;  /* may be absent from a checkpoint */
    int rows, cols; /* cols 0: a vector, float32 once loaded; else a struct mat */
};
enum { PARAMS_MAX = 40 };

/* The tensors of these modules that layer `layer` of such a model has, in the order of their use; returns how many. */
int params_list(const struct config *c, int layer, unsigned modules, struct param out[PARAMS_MAX]);
/* What n of them take in memory: matrices and their scales as stored, vectors as float32. */
size_t params_bytes(const void *base, const struct param *list, int n);
/* Its field in the struct that holds it. */
static inline struct mat *params_mat(const void *base, const struct param *p) { return (struct mat *)((char *)base + p->at); }
static inline float **params_vector(const void *base, const struct param *p) { return (float **)((char *)base + p->at); }

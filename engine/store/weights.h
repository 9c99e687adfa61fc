#pragma once
/* A checkpoint as the layers want it: every weight a typed view into the mapped files, small vectors as float32 copies.
 * Read-only after opening; shared by all threads. */
#include "engine/base/ops.h"
#include "engine/model/config.h"
#include "engine/store/safetensors.h"

struct layer {
    float *attn_norm, *ffn_norm;      /* [hidden] */
    struct mat q, k, v, o;            /* GQA: [heads * dim, hidden]; o [hidden, n_heads * v_dim] */
    float *q_bias, *k_bias, *v_bias, *o_bias;
    float *q_norm, *k_norm;           /* [head_dim] */
    struct mat q_a, q_b, kv_a, kv_b;  /* MLA; q without low rank is q. kv_b: rows of head h: nope, then v */
    float *q_a_norm, *q_a_bias, *kv_a_norm, *kv_a_bias;
    struct mat router;                /* [n_experts, hidden] */
    float *router_bias;               /* [n_experts] */
    struct mat shared_gate;           /* [1, hidden] */
    struct expert *experts;           /* [n_experts]; NULL: dense layer */
    struct expert dense;              /* the dense FFN, or the shared expert of a layer with experts */
    bool has_dense;
    const struct expert_shards *shards; /* experts and dense by memory node (place.h); NULL: whole */
};

struct weights {
    struct config config;
    struct checkpoint files;
    struct arena arena;
    struct mat embed, head;
    float *norm;          /* [hidden] */
    struct layer *layers; /* [n_layers] */
    float *inv_freq;      /* [rope.dim / 2] */
    float rope_mscale;
    /* What --inspect tells: bytes by kind, tensors left alone. */
    size_t bytes_routed, bytes_dense, bytes_embed, bytes_skipped;
    size_t n_skipped, n_mtp;
};

/* Opens config.json and the weights of dir. ERR_MODEL names file, tensor and numbers. force: see config_parse. */
int weights_open(struct weights *w, const char *dir, bool force, struct error *e);
void weights_close(struct weights *w);
/* Reads every byte: NaN and infinities in weights and scales. ERR_MODEL names the first tensor, row and column. The
 * callback gets the share done, 0..1; non-zero cancels. */
int weights_verify(const struct weights *w, int (*progress)(void *ctx, double share), void *ctx, struct error *e);
/* Routed, dense and head bytes that one token reads. */
size_t weights_token_bytes(const struct weights *w);

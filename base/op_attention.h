#pragma once
/* The KV cache, attention over it, and the selection of keys. */
#include "base/op_common.h"

/* A plane of the KV cache: rows of heads * dim elements, row = token position. F32, BF16, or E4M3 with a float32 scale
 * per (row, head): amax / 448, 1 if amax is 0. On devices, rows may be in blocks, which caches with a common prefix
 * share: blocks[b] gives the memory of block b, which holds the same rows of all planes, those of each plane together.
 * The list is read when the operation runs. */
struct kv_block {
    char *mem;
    int64_t mem_index; /* index of the block in mem */
};
struct kv_plane {
    void *data;   /* unused with blocks, like scale */
    float *scale; /* [rows, heads], E4M3 only */
    int heads, dim;
    uint8_t dtype;
    int block_rows; /* rows per block */
    int first;      /* with blocks: the row of the list that is row 0 here; CUDA only, else 0 */
    /* set by CUDA's host code: 2^32 / block_rows, rounded up, so that kernels divide rows below 2^32 / block_rows by a
     * product; 0: one row per block */
    uint32_t inverse;
    const struct kv_block *blocks; /* NULL: contiguous rows */
    size_t at, scale_at;           /* offset of the rows in mem's first block, bytes */
};
OP_INLINE bool kv_planes_equal(const struct kv_plane *a, const struct kv_plane *b) {
    return a->data == b->data && a->blocks == b->blocks && a->at == b->at && a->dim == b->dim;
}
struct op_kv_store {
    struct kv_plane plane;
    const float *x; /* [n, heads * dim], rows ldx apart */
    int row0, n, ldx;
    const struct op_address *at; /* NULL, or supplies plane.data, plane.scale, row0 */
    int every,
        /* with at, for rows that cover several tokens: starts at row at->pos / every and stores the rows that `tokens`
           tokens complete, at most n */
        tokens;
};
/* out [n, heads * dim] = rows row0 .. row0 + n of the plane, as float32 */
struct op_kv_load {
    struct kv_plane plane;
    float *out;
    int row0, n, ldo;
};

/* Keys and values of `heads` heads as BF16, from rows row0 .. row0 + n of a latent cache (one head: W's columns, then
 * the rope key that all heads share): k[i][h] = W_h latent[i] and the rope key, v[i][h] = the last v_dim rows of W_h
 * times it. Expands MLA on devices whose attention reads BF16; elsewhere ops->expand is NULL and linear computes them
 * in float32. */
struct op_expand {
    void *k;                /* BF16 [n, heads, nope + latent.dim - w.cols] */
    void *v;                /* BF16 [n, heads, v_dim] */
    struct kv_plane latent; /* heads 1 */
    struct mat w;           /* [heads * (nope + v_dim), kv_lora] */
    int row0, n, heads, nope, v_dim;
};

/* Causal attention with online softmax. Query row i is at position q_pos0 + i (or q_pos[i]); key row j at k_pos0 + j,
 * or with k_step (without window) at k_pos0 + j * k_step. A key is visible if its position <= the query's, and >
 * query's - window if window > 0, and if chunk_keys > 0 in the query's chunk of that many positions, counted from 0.
 * Query head h uses KV head h / (n_heads / k.heads). The value is the first v_dim elements of v's row (absorbed MLA: v
 * is k's own plane). With `chosen`, a row sees only those visible keys that op_select chose for it. sinks [n_heads]: a
 * logit that takes part in the softmax without a value. lse, if set, receives log(sum exp) [n, n_heads] of the scaled
 * scores, for merging partial results (zig-zag stripes, split KV); a query without visible keys gives 0 and -inf. In a
 * call of at most BATCH_INVARIANT_ROWS rows, a row's bits do not depend on n_keys or on keys that it does not see.
 */
struct op_attention {
    float *out;     /* [n, n_heads, v_dim], rows ldo apart */
    const float *q; /* [n, n_heads, k.dim], rows ldq apart */
    struct kv_plane k, v;
    const float *sinks;
    float *lse;
    const int32_t *q_pos;  /* NULL: q_pos0 + i */
    const int32_t *q_last; /* NULL, or [n]: the last position that a query sees, not before its own. CPU only */
    const int32_t *chosen; /* NULL, or [n, lists, n_chosen] rows of k and v; not with window */
    int n, n_heads, v_dim, ldq, ldo;
    int q_pos0, k_pos0, k_step, n_keys, window, chunk_keys, n_chosen;
    float scale;
    float softcap; /* > 0: scores, scaled, become softcap * tanh(score / softcap) */
    /* > 1: scores of queries at later positions are then multiplied by log(position) / log(temperature_len) */
    int temperature_len;
    /* NULL, or [n, n_heads, extent]: added to the score of a key at distance 0 .. extent - 1; not with k_step above 1
     */
    const float *bias;
    int extent;
    /* with chosen: the number of keys in a block that an entry selects; each query also sees the keys after its last
     * complete block. 0: entries are keys */
    int chosen_block;
    /* with chosen_block: the block of the query's own key is not in its list and always seen, even if complete */
    bool own_block;
    int chosen_lists; /* with chosen: lists of a query, each for as many KV heads; divides k.heads. 0: 1 */
    /* NULL, or supplies the addresses of k and v, and q_pos0. Keys then end at the last query's position; n_keys is an
     * upper bound for the launch. At most BATCH_INVARIANT_ROWS rows. */
    const struct op_address *at, *v_at;
};

/* Lightning indexer: selects the `topk` best keys of each query, in ascending order; if fewer are visible, all of
 * these, padded with -1. A key's score is scale * sum over heads of weight * max(0, q . k), in float32; ties go to the
 * lower row, NaN ranks last. Positions as in op_attention; the plane has one head. Without weights each head selects
 * for itself: a key's score is scale * q . k. With `block`, each head selects blocks of that many keys among those
 * before the block of the query's own key; a block's score is the highest of its keys' scores, and the last `latest`
 * blocks (at most topk) are always selected. With both, a query has one list of blocks, by the weighted scores. A list
 * of blocks limits a later selection of keys (`among`), which the block of the query's latest visible key is also open
 * to. */
struct op_select {
    int32_t *chosen;     /* [n, op_select_lists(), topk] */
    const float *q;      /* [n, heads, k.dim], rows ldq apart */
    const float *weight; /* [n, heads], or NULL */
    struct kv_plane k;
    int block, latest; /* block 0: keys. latest without weights only */
    /* NULL, or [n, n_among] blocks of among_block keys, selected with topk n_among; n_among * among_block >= topk. With
     * weights only */
    const int32_t *among;
    int n_among, among_block;
    int n, heads, topk, ldq;
    int q_pos0, k_pos0, k_step, n_keys;
    float scale;
    /* NULL, or supplies k's addresses and q_pos0; keys then end at the last query's position, as in op_attention */
    const struct op_address *at;
};
/* Number of keys visible at position pos among n_keys rows that begin at k_pos0, k_step apart (0: 1). */
OP_INLINE int op_seen_step(int64_t pos, int k_pos0, int k_step, int n_keys) {
    int64_t n = pos < k_pos0 ? 0 : (pos - k_pos0) / (k_step ? k_step : 1) + 1;
    return n < n_keys ? (int)n : n_keys;
}
OP_INLINE int op_seen(int64_t pos, int k_pos0, int n_keys) { return op_seen_step(pos, k_pos0, 1, n_keys); }

OP_INLINE int op_select_lists(const struct op_select *o) { return o->weight ? 1 : o->heads; }

/* Blocks among `seen` keys of which a query lists some; own: without the last one, even if it is complete. */
OP_INLINE int op_listed_blocks(int seen, int block, bool own) {
    return own ? (seen > 0 ? seen - 1 : 0) / block : seen / block;
}
/* With chosen_block: number of keys that a query sees of those `seen` that its position admits; and the key at index i
 * of them, in rising order of keys. */
OP_INLINE int op_seen_blocks(int seen, int n_chosen, int block, bool own) {
    const int complete = op_listed_blocks(seen, block, own);
    return (complete < n_chosen ? complete : n_chosen) * block + seen - complete * block;
}
OP_INLINE int op_listed_key(const int32_t *chosen, int seen, int n_chosen, int block, bool own, int i) {
    const int complete = op_listed_blocks(seen, block, own),
              listed = (complete < n_chosen ? complete : n_chosen) * block;
    return i < listed ? chosen[i / block] * block + i % block : complete * block + i - listed;
}

/* Merges two partial attentions over disjoint keys into the first: lse = log(exp(lse) + exp(lse2)), out weighted
 * accordingly. */
struct op_merge {
    float *out;        /* [n, heads, dim], rows ldo apart */
    float *lse;        /* [n, heads] */
    const float *out2; /* [n, heads, dim], rows ldo2 apart */
    const float *lse2;
    int n, heads, dim, ldo, ldo2;
};

#define OPS_ATTENTION(X) \
    X(kv_store, KV_STORE, SMALL, ELEM, 6, o->n, o->plane.heads, o->plane.dim) \
    X(kv_load, KV_LOAD, KERNEL, ELEM, 6, o->n, o->plane.heads, o->plane.dim) \
    X(attention, ATTENTION, HOST, ATTENTION, 0, o->n, o->n_heads, o->v_dim) \
    X(select, SELECT, HOST, ATTENTION, 0, o->n, o->heads, o->topk) \
    X(merge, MERGE, KERNEL, ELEM, 12, o->n, o->heads, o->dim)
/* Executors may lack these: NULL in struct ops. */
#define OPS_OPTIONAL(X) X(expand, EXPAND, HOST, ELEM, 0, o->n, o->heads, o->nope + o->v_dim)

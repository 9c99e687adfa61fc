#pragma once
/* Residual streams, and table rows of hashed n-grams. */
#include "base/op_common.h"

/* Several residual streams (manifold-constrained hyper-connections). Adds the output of an attention or FFN block to
 * each stream: streams[i][s] += post[i][s] * x[i]; post NULL: initializes them, streams[i][s] = x[i]. */
struct op_spread {
    float *streams;    /* [n, n_streams, hidden] */
    const float *x;    /* [n, hidden] */
    const float *post; /* [n, n_streams] */
    int n, hidden, n_streams;
};
/* Computes the next block's input from the streams and mixes them. With r = 1 / sqrt(mean of all streams' squares +
 * norm_eps), and the parts pre [s], post [s], comb [s, s] of mix, m * r * scale[part] + base: pre = sigmoid(.) + eps,
 * post = magnitude * sigmoid(.) + post_eps comb = softmax over its last dimension + eps, then divided by the sums (+
 * eps) of its columns, and iters - 1 times by those of its rows and of its columns (Sinkhorn-Knopp) in = sum of pre[s]
 * * streams[s];  streams[t] = sum over s of comb[s][t] * streams[s];  out = 0 iters 0 (independent hyper-connections):
 * mix has no comb and the streams stay. post NULL: after the last block; mix has pre only and the streams stay. With
 * `earlier` the weights of `in` are those that the previous call left there, and pre takes their place; after the last
 * block mix is then NULL. */
struct op_mix {
    float *in;          /* [n, hidden] */
    float *out;         /* [n, hidden] or NULL: the block's accumulator */
    float *streams;     /* [n, n_streams, hidden] */
    float *post;        /* [n, n_streams] */
    const float *mix;   /* [n, (2 + s) * s], iters 0: [n, 2 * s]; or [n, s] */
    const float *base;  /* a row of that */
    const float *scale; /* [3], iters 0: [2]; or [1] */
    int n, hidden, n_streams, iters;
    float eps, norm_eps;
    float magnitude, post_eps; /* magnitude 0: 2 */
    float *earlier;            /* [n, n_streams], rows ld_earlier apart, or NULL */
    int ld_earlier;
};
/* Parts of op_mix's mix that has them all, and its numbers per row. */
OP_INLINE int op_mix_parts(int iters) { return iters ? 3 : 2; }
OP_INLINE int op_mix_weights(int n_streams, int iters) { return (2 + (iters ? n_streams : 0)) * n_streams; }
enum { STREAMS_MOST = 16 };

/* Attention residuals (Inkling 2, Kimi K3). Adds x to stream number `into` of its row's n_streams, or with `begins`
 * initializes that with x, and clears x; x NULL: neither. The sources of a row are its first n_sources streams, without
 * `skip` of them from skip_at on. Then, with the normed sources s = source / sqrt(mean(source^2) + eps), out[q] = sum
 * of p * s, where p is the softmax over the sources of query[q] . s / sqrt(hidden). sums_raw: sum of p * source. */
enum { POOL_SOURCES_MOST = 128, POOL_QUERIES_MOST = 3 };
struct op_pool {
    float *out[POOL_QUERIES_MOST];         /* [n, hidden] each */
    const float *query[POOL_QUERIES_MOST]; /* [hidden] each */
    float *streams;                        /* [n, n_streams, hidden] */
    float *x;                              /* [n, hidden] or NULL */
    int n, hidden, n_streams, n_sources, n_queries, into, skip_at, skip;
    bool begins, sums_raw;
    float eps;
};
OP_INLINE int op_pool_stream(const struct op_pool *o, int source) {
    return source < o->skip_at ? source : source + o->skip;
}

/* Rows of a table that the last 2, 3 .. size tokens hash to, for `per` hashes of each length: (xor of token *
 * multiplier, the latest token first) % vocab + offset. A token before the first, or with `end` between it and the
 * row's, counts as `end`. before: the size - 1 tokens before the first row, the latest last; NULL: none. after receives
 * those of the last row, and may be the same memory. With `ids` each token has a number, which is hashed instead; end,
 * before and after are such numbers. passes_end: only the beginning of the sequence ends n-grams. */
enum { NGRAM_MOST = 8, NGRAM_HASHES_MOST = 32 };
struct op_ngram {
    int32_t *rows;         /* [n, (size - 1) * per] */
    const int32_t *tokens; /* [n] */
    const int32_t *before; /* [size - 1] */
    int32_t *after;
    const int32_t *ids; /* [n_ids], or NULL */
    int n_ids;
    bool passes_end;
    int n, size, per, end;
    uint64_t multiplier[NGRAM_MOST];
    uint32_t vocab[NGRAM_HASHES_MOST], offset[NGRAM_HASHES_MOST];
};

#define OPS_STREAMS(X) \
    X(spread, SPREAD, KERNEL, ELEM, 4, o->n, o->hidden, 1 + 2 * o->n_streams) \
    X(mix, MIX, KERNEL, ELEM, 4, o->n, o->hidden, 2 + 2 * o->n_streams) \
    X(pool, POOL, KERNEL, ELEM, 4, o->n, o->hidden, o->n_sources + o->n_queries) \
    X(ngram, NGRAM, KERNEL, ELEM, 4, o->n, o->size, 1 + o->per)

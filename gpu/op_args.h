#pragma once
/* Operations as data: a code and an argument struct. Plain C that C++ and CUDA read too. */
#include "base/op_list.h"

/* Groups the (token, choice) pairs by expert and keeps the order of tokens inside a group. Only experts first <= e <
 * last are included. offset[e - first] is the start of e's group, offset[last - first] the number of pairs. */
struct op_sort {
    int32_t *offset;      /* [last - first + 1] */
    int32_t *token;       /* [n * topk] row of x; entries after the last group are not written */
    float *weight;        /* [n * topk] */
    const int32_t *ids;   /* [n, topk] */
    const float *weights; /* [n, topk] */
    int n, topk, first, last;
};
/* out[i] = x[index[i]], rows of dim */
struct op_gather {
    float *out;
    const float *x;
    const int32_t *index;
    int n, dim, ldx;
};
/* out[i] = map[ids[i]]; -1 for an id outside [0, n_map) */
struct op_remap {
    int32_t *out;
    const int32_t *ids, *map;
    int n, n_map;
};
/* top[i] = the index of the largest of x[i][0 .. m - 1], the first of equals; -1: one is NaN */
struct op_top {
    int32_t *top;
    const float *x;
    int n, m, ldx;
};
/* y = expert(x): one FFN on a group of tokens, y not accumulated. The host knows n: it reads OP_SORT's offsets once per
 * layer. */
struct op_ffn {
    float *y;       /* [n, hidden] */
    const float *x; /* [n, hidden] */
    struct expert expert;
    int n, hidden;
    bool wide; /* as in op_linear */
};
/* y[index[i]] += weight[i] * x[i]; an index occurs once per call. index NULL: i; weight NULL: 1 */
struct op_scatter_add {
    float *y;
    const float *x;
    const int32_t *index;
    const float *weight;
    int n, dim, ldy;
};
/* OP_GATHER, OP_FFN and OP_SCATTER_ADD of several experts in one operation: for each expert in order and each of its
 * pairs i, y[token[i]] += weight[i] * expert(x[token[i]]). Expert k has pairs [begin[k], begin[k + 1]), tokens rising
 * and distinct; its data may be NULL if it has no pairs. x and y do not overlap. How an expert is computed depends only
 * on the size of its own group, so results do not depend on the grouping. With a norm an expert's output v becomes v *
 * norm / rms(v * norm) before it is weighted. */
enum { OP_GROUP_MAX = 16 };
struct op_group {
    float *y;             /* [.., hidden] */
    const float *x;       /* [.., hidden] */
    const int32_t *token; /* [begin[n]] */
    const float *weight;  /* [begin[n]] */
    const float *norm;    /* [hidden] or NULL */
    float eps;            /* the norm adds this to the mean square */
    int n, hidden;
    bool wide; /* as in op_linear */
    int32_t begin[OP_GROUP_MAX + 1];
    struct expert expert[OP_GROUP_MAX];
};

/* Copies a few bytes, a multiple of 4, between device memory and pinned memory that the device maps; to_host: the
 * target is pinned. */
struct op_transfer {
    void *dst;
    const void *src;
    size_t size;
    bool to_host;
};

/* Several operations in one launch, with the same bits as one after another (fuse.h). OP_JOIN: products of the same
 * rows, none of which reads another's result. OP_CHAIN: operations on few numbers, in order, and on at most
 * OP_CHAIN_ROWS tokens to route. OP_EPILOGUE: the one, then the other. */
enum { OP_JOIN_MAX = 6, OP_CHAIN_MAX = 8, OP_CHAIN_ROWS = 8 };
struct op_join {
    int n;
    struct op_linear linear[OP_JOIN_MAX];
};

/* Rows as in base/op_list.h of the operations that exist only on devices. */
#define OPS_DEVICE(X) \
    X(sort, SORT, KERNEL, ELEM, 24, o->n, o->topk, 1) \
    X(gather, GATHER, KERNEL, ELEM, 8, o->n, o->dim, 1) \
    X(remap, REMAP, KERNEL, ELEM, 12, o->n, 1, 1) \
    X(top, TOP, KERNEL, ELEM, 4, o->n, o->m, 1) \
    X(ffn, FFN, HOST, EXPERTS, 0, o->n, o->hidden, 1) \
    X(scatter_add, SCATTER_ADD, KERNEL, ELEM, 12, o->n, o->dim, 1) \
    X(group, GROUP, HOST, EXPERTS, 0, o->n, o->hidden, 1) \
    X(transfer, TRANSFER, SMALL, ELEM, 4, (int)(o->size / 4), 1, 1) \
    X(join, JOIN, HOST, LINEAR, 0, o->n, 1, 1) \
    X(chain, CHAIN, HOST, ELEM, 0, o->n, 1, 1) \
    X(epilogue, EPILOGUE, HOST, LINEAR, 0, o->join.n, 1, 1)
#define OPS_ALL(X) OPS(X) OPS_OPTIONAL(X) OPS_DEVICE(X)

enum op_code {
#define X(name, CODE, ...) OP_##CODE,
    OPS_ALL(X)
#undef X
        OP_COUNT
};

#define OP_IF_SMALL_SMALL(...) __VA_ARGS__
#define OP_IF_SMALL_KERNEL(...)
#define OP_IF_SMALL_HOST(...)
union op_small {
#define X(name, CODE, class, ...) OP_IF_SMALL_##class(struct op_##name name;)
    OPS_ALL(X)
#undef X
};
struct op_step {
    enum op_code code; /* one with a member of op_small */
    bool waits;        /* set by CUDA's host code: for earlier steps, whose results it reads or overwrites */
    union op_small args;
};
struct op_chain {
    int n;
    struct op_step step[OP_CHAIN_MAX];
};
/* Products as of OP_JOIN, also of one that others could join, then operations on few numbers: one launch where the
 * device can. */
struct op_epilogue {
    struct op_join join;
    struct op_chain chain;
};

union op_args {
#define X(name, ...) struct op_##name name;
    OPS_ALL(X)
#undef X
};

#pragma once
/* Operations as data: each operation of base/ops.h, and those that only devices have, is a code and an argument struct;
 * a visitor lists the pointers inside. The emulated device's memory check, its stream queues, the cost model, and SLP
 * (which substitutes device addresses for the model's weights) share that one list. */
#include "base/ops.h"

enum op_code {
    OP_EMBED,
    OP_NORM,
    OP_LINEAR,
    OP_ROPE_TABLE,
    OP_ROPE,
    OP_KV_STORE,
    OP_KV_LOAD,
    OP_ATTENTION,
    OP_SELECT,
    OP_ROUTE,
    OP_EXPERTS,
    OP_ADD,
    OP_SIGMOID,
    OP_CLIP,
    OP_FILL,
    OP_SOFTCAP,
    OP_COPY,
    OP_MERGE,
    OP_GATE,
    OP_SCALE,
    OP_CONV,
    OP_DELTA,
    OP_SCAN,
    OP_COMPRESS,
    OP_SPREAD,
    OP_MIX,
    OP_NGRAM,
    OP_RELATE,
    OP_POOL,
    OP_ROUND,
    OP_EXPAND,
    OP_BASE, /* the rest exist only on devices */
    OP_SORT = OP_BASE,
    OP_GATHER,
    OP_FFN,
    OP_SCATTER_ADD,
    OP_GROUP,
    OP_TRANSFER,
    OP_JOIN,
    OP_CHAIN,
    OP_COUNT
};

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
 * rows, none of which reads another's result. OP_CHAIN: operations on few numbers, in order. */
enum { OP_JOIN_MAX = 6, OP_CHAIN_MAX = 8 };
struct op_join {
    int n;
    struct op_linear linear[OP_JOIN_MAX];
};
union op_small {
    struct op_norm norm;
    struct op_rope rope;
    struct op_kv_store kv_store;
    struct op_route route;
    struct op_add add;
    struct op_sigmoid sigmoid;
    struct op_clip clip;
    struct op_fill fill;
    struct op_softcap softcap;
    struct op_copy copy;
    struct op_gate gate;
    struct op_scale scale;
    struct op_conv conv;
    struct op_transfer transfer;
};
struct op_chain {
    int n;
    struct op_step {
        enum op_code code; /* one with a member of op_small */
        union op_small args;
    } step[OP_CHAIN_MAX];
};

union op_args {
    struct op_embed embed;
    struct op_norm norm;
    struct op_linear linear;
    struct op_rope_table rope_table;
    struct op_rope rope;
    struct op_kv_store kv_store;
    struct op_kv_load kv_load;
    struct op_attention attention;
    struct op_select select;
    struct op_route route;
    struct op_experts experts;
    struct op_add add;
    struct op_sigmoid sigmoid;
    struct op_clip clip;
    struct op_fill fill;
    struct op_softcap softcap;
    struct op_copy copy;
    struct op_merge merge;
    struct op_gate gate;
    struct op_scale scale;
    struct op_conv conv;
    struct op_delta delta;
    struct op_scan scan;
    struct op_compress compress;
    struct op_spread spread;
    struct op_mix mix;
    struct op_ngram ngram;
    struct op_relate relate;
    struct op_round round;
    struct op_pool pool;
    struct op_expand expand;
    struct op_sort sort;
    struct op_gather gather;
    struct op_ffn ffn;
    struct op_scatter_add scatter_add;
    struct op_group group;
    struct op_transfer transfer;
    struct op_join join;
    struct op_chain chain;
};
/* The operations that one consists of: those of an OP_JOIN or OP_CHAIN, else itself. */
int op_parts(enum op_code code, const union op_args *a);
const union op_args *op_part(enum op_code code, const union op_args *a, int i, enum op_code *part);
const char *op_name(enum op_code c);
size_t op_size(enum op_code c); /* sizeof its argument struct */

/* An executor that takes operations as data: op_exec_init points base.ops at a table whose entries all call run. */
struct op_exec {
    struct exec base;
    struct ops table;
    /* a: only the struct of `code` is readable */
    int (*run)(struct op_exec *x, enum op_code code, const union op_args *a);
};
void op_exec_init(struct op_exec *x, const char *name,
                  int (*run)(struct op_exec *, enum op_code, const union op_args *), const _Atomic int *cancel);
/* Runs an operation on an executor made by op_exec_init. */
int op_run(struct exec *x, enum op_code code, const void *args);

enum visit_kind {
    VISIT_IN,
    VISIT_OUT,     /* activations; OUT may also be read */
    VISIT_CONST,   /* weights and tables: never written */
    VISIT_KV,      /* a plane of the KV cache, rows 0 .. the last one used */
    VISIT_COUNTER, /* the counter of op_norm */
};
/* Calls fn for each non-NULL pointer in a; fn may change it. Stops at the first non-zero result and returns it.
 * Does not visit op_experts.experts: the caller owns that array. */
typedef int (*op_visit_fn)(void *ctx, void **p, size_t bytes, enum visit_kind kind);
int op_visit(enum op_code code, union op_args *a, op_visit_fn fn, void *ctx);
int op_visit_mat(struct mat *m, op_visit_fn fn, void *ctx);
int op_visit_expert(struct expert *x, op_visit_fn fn, void *ctx);

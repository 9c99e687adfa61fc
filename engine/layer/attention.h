#pragma once
/* Kinds of attention, and what they share. A new kind is one file here and one row in attention.c. */
#include "engine/layer/block.h"

struct attention {
    const char *name;                                             /* as --inspect says it */
    int (*cache)(const struct config *c, struct cache_desc *out); /* what a layer keeps of a token; returns how many planes */
    /* From w->xn: keys and values of all rows into their spans' caches; queries into w->q. From these: a span's rows of w->att. */
    int (*kv)(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *spans, int n_spans, int n);
    int (*query)(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n);
    int (*attend)(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *s, struct block_keys keys);
    size_t (*grown_bytes)(const struct config *c, int keys); /* taken on demand beside the workspace; NULL: none */
};
extern const struct attention attention_gqa, attention_mla;
const struct attention *attention_of(const struct config *c, int layer);

#define TRY(call) \
    do { \
        int rc_ = (call); \
        if (rc_) return rc_; \
    } while (0)

int block_norm(struct exec *x, float *out, int ldo, const float *in, int ldx, const float *weight, int rows, int dim, float eps, int tag, _Atomic int *bad);
int block_linear(struct exec *x, float *y, int ldy, const float *in, int ldx, struct mat m, const float *bias, int n, bool accumulate);
struct kv_plane attention_plane(struct kv_plane p, int row); /* from that row on */
/* The operation over all keys of a span, or over a piece of them. */
int attention_pieces(struct exec *x, struct work *w, struct op_attention *o, int piece, float *lse);

#pragma once
/* Kinds of attention, and what they share. A new kind is one file here and one row in attention.c. */
#include "engine/layer/block.h"

struct attention {
    const char *name;                                                        /* as --inspect says it */
    bool whole;                                                              /* a query needs all its keys at once: they cannot come in pieces */
    bool placed;                                                             /* knows span.at, of spans without a mark */
    int (*few_keys)(const struct config *c);                                 /* rows that see no more take another way; NULL: there is one */
    int (*cache)(const struct config *c, int layer, struct cache_desc *out); /* what a layer keeps; returns how many planes */
    /* From w->xn: keys and values of all rows into their spans' caches; queries into w->q. From these: a span's rows of w->att. */
    int (*kv)(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *spans, int n_spans, int n);
    int (*query)(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n);
    int (*attend)(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *s, struct block_keys keys);
    size_t (*grown_bytes)(const struct config *c, int keys); /* taken on demand beside the workspace; NULL: none */
};
extern const struct attention attention_gqa, attention_mla, attention_dsa, attention_compressed, attention_delta;
const struct attention *attention_of(const struct config *c, int layer);

#define TRY(call) \
    do { \
        int rc_ = (call); \
        if (rc_) return rc_; \
    } while (0)

/* The model's kind of norm over `rows` rows of dim. bias may be NULL. */
int block_norm(struct exec *x, const struct config *c, float *out, int ldo, const float *in, int ldx, const float *weight, const float *bias, int rows, int dim,
               int tag, _Atomic int *bad);
/* MLA of a span in absorbed form, of at most w->absorb_rows rows; chosen: NULL, or as op_attention's, index_topk of them. */
int attention_absorbed(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *s, struct block_keys keys,
                       const int32_t *chosen);
/* y[n] = m in[n] (+ bias) (+ y[n]) */
int block_linear(struct exec *x, const struct config *c, float *y, int ldy, const float *in, int ldx, struct mat m, const float *bias, int n, bool accumulate);
struct kv_plane attention_plane(struct kv_plane p, int row);                        /* from that row on */
const struct op_place *attention_place(const struct span *s, int layer, int plane); /* NULL: as the span says */
/* The operation over all keys of a span, or over a piece of them. */
int attention_pieces(struct exec *x, struct work *w, struct op_attention *o, int piece, float *lse);

#pragma once
/* How blocks read the residual stream, or several of them, and add to it. A new kind is one file in this folder and one
 * row in streams.c. Parameters are named as in block.h. */
#include "engine/layer/span.h"
#include "engine/layer/work.h"
#include "engine/weights/weights.h"

struct streams_kind {
    /* Adds the output of the block before, w->x, to the stream, which block 0 begins with the embedding, and computes
     * the normed input of block number `tag` in w->xn, and in w->kv_in with mixes_kv. w->x is then what the block adds
     * its output to: the stream itself, or zeros. tag: 2 * layer for attention, 2 * layer + 1 for the FFN, as in
     * work.first_bad. spans: of attention. */
    int (*input)(struct exec *x, const struct config *c, const struct layer *y, int tag, struct work *w,
                 const struct span *spans, int n_spans, int n);
    /* Computes what the last norm reads, in w->x, after the last layer. */
    int (*merge)(struct exec *x, const struct weights *m, struct work *w, int n);
    bool merges_normed; /* merge() has normed these rows; there is no last norm */
};
extern const struct streams_kind streams_direct, streams_plain, streams_mixed, streams_gated, streams_pooled;
const struct streams_kind *streams_of(const struct config *c);

/* The eps of norms of the stream before block number `tag`. */
float streams_eps(const struct config *c, int tag);
/* Norms rows of the stream at `from`, [n, hidden], to w->xn, the input of block number `tag`. */
int streams_norm(struct exec *x, const struct config *c, const struct layer *y, struct work *w, const float *from,
                 int n, int tag);

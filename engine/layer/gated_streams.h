#pragma once
/* Gated residual streams with hashed n-gram embeddings. Parameters are named as in block.h. */
#include "engine/layer/attention.h"

/* Adds the previous block's output w->x to the streams, or with `first` initializes them with it, and clears w->x. */
int gated_streams_add(struct exec *x, const struct config *c, struct work *w, bool first, int n);
/* Computes a block's input in out [n, hidden] and, unless it is the head's, the weights of its output in w->post. tag:
 * as in op_norm. */
int gated_streams_mix(struct exec *x, const struct config *c, const struct gated_mix *m, struct work *w, float *out,
                      int n, int tag);
/* the plane of the n-gram embeddings' states */
struct cache_desc gated_streams_ngram_plane(const struct config *c, int layer);
/* Adds the n-gram embedding before a layer, if it has one, to the streams. */
int gated_streams_add_ngram(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                            const struct span *spans, int n_spans, int n);

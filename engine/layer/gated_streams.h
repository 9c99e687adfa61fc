#pragma once
/* Embeddings of hashed n-grams, added to residual streams. Parameters are named as in block.h. */
#include "engine/layer/attention.h"

/* the plane of the n-gram embeddings' states */
struct cache_desc gated_streams_ngram_plane(const struct config *c, int layer);
/* The operation that hashes the n-grams of a layer, without rows, tokens and states. */
struct op_ngram gated_streams_ngram_op(const struct config *c, const struct layer *y, int layer);
/* Adds the n-gram embedding before a layer, if it has one, to the streams. */
int gated_streams_add_ngram(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                            const struct span *spans, int n_spans, int n);

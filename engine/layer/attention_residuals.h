#pragma once
/* Attention residuals. Parameters are named as in block.h. */
#include "engine/layer/attention.h"

/* Add the previous block's output w->x to its stream, clear it, and compute the normed input of this block: w->xn, and
 * w->kv_in with mixes_kv. */
int attention_residuals_attention(struct exec *x, const struct config *c, const struct layer *y, int layer,
                                  struct work *w, int n);
int attention_residuals_ffn(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                            int n);
/* as block_merge_streams */
int attention_residuals_merge(struct exec *x, const struct weights *m, struct work *w, int n);

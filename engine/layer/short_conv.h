#pragma once
/* Short convolutions beside attention. Parameters are named as in block.h. */
#include "engine/layer/attention.h"

struct cache_desc short_conv_plane(const struct config *c, int layer); /* the plane of their states */
/* Convolves keys and values from in to out, [rows, width] each. taps: NULL, or the further taps per row and head of
 * both, [rows, kv_heads * taps] each. Uses w->att as scratch. */
int short_conv_keys(struct exec *x, const struct config *c, const struct layer *y, int layer, const struct work *w,
                    float *const out[2], float *const in[2], float *const taps[2], const struct span *spans,
                    int n_spans);
/* Convolve the attention block's output, and the previous layer's FFN output, in w->x. Use w->xn as scratch. No-ops in
 * layers without them. */
int short_conv_attention(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                         const struct span *spans, int n_spans, int n);
int short_conv_ffn(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                   const struct span *spans, int n_spans, int n);

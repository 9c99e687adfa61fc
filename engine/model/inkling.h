#pragma once
/* Parts of the parsers of Inkling 1 and 2. */
#include "engine/model/config_read.h"

struct inkling_defaults {
    int window, heads, near_heads, near_kv;
    bool scales_by_root; /* scores are divided by the root of head_dim */
};
/* Reads the context, and heads, windows and biases by distance of `layers` layers, of which those called
 * "hybrid_sliding" have a window. No layer has rope. */
void inkling_read_layers(struct config_reader *r, struct config *c, int layers, const struct inkling_defaults *d);
/* Appends a layer for the last convolution, see config_is_bare(). Returns the number of layers before, or 0 after an
 * error. */
int inkling_append_bare(struct config_reader *r, struct config *c);

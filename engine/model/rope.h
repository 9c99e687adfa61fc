#pragma once
#include "engine/model/config.h"

/* Fills inv_freq [dim / 2] and returns the factor for cos and sin. LongRoPE fills two rows and returns the first one's factor. Sources: YaRN (Peng et al. 2023)
 * as in DeepSeek's inference/model.py and transformers' modeling_rope_utils; Llama 3.1's frequency bands. Pure. */
float rope_frequencies(const struct rope_config *r, float *inv_freq);
/* Number of frequencies of a model: those of rope, then those of second_rope. */
static inline int rope_first_floats(const struct config *c) { return c->rope.dim / 2 * (c->rope.kind == ROPE_LONG ? 2 : 1); }
static inline int rope_floats(const struct config *c) { return rope_first_floats(c) + c->second_rope.dim / 2; }
/* Leaves queries and keys of all layers as they are; c->rope then describes a table that no layer reads. */
void rope_set_none(struct config *c);

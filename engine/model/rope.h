#pragma once
#include "engine/model/config.h"

/* Fills inv_freq [rope_floats] and returns the factor for cos and sin. Of LongRoPE these are two rows, and the factor is the
 * first one's. Sources: YaRN (Peng et al. 2023) as in DeepSeek's
 * inference/model.py and transformers' modeling_rope_utils; Llama 3.1's frequency bands. Pure. */
float rope_frequencies(const struct rope_config *r, float *inv_freq);
static inline int rope_floats(const struct rope_config *r) { return r->dim / 2 * (r->kind == ROPE_LONG ? 2 : 1); }

#pragma once
#include "engine/model/config.h"

/* Fills inv_freq [dim / 2] and returns the factor for cos and sin. LongRoPE fills two rows and returns the first one's
 * factor. Sources: YaRN (Peng et al. 2023) as in DeepSeek's inference/model.py and transformers' modeling_rope_utils;
 * Llama 3.1's frequency bands. Pure. */
float rope_frequencies(const struct rope_config *r, float *inv_freq);
/* Number of frequencies of a model: those of rope, then those of second_rope; and of numbers with FoPE's matrices after
 * them. */
static inline int rope_first_floats(const struct config *c) {
    return c->rope.dim / 2 * (c->rope.kind == ROPE_LONG ? 2 : 1);
}
/* FoPE: floats of a row's cos, those of all KV heads; place of the matrices of cos and of sin [KV heads * dim / 2, dim
 * / 2] and of their bias [KV heads * dim / 2] after the frequencies. */
static inline int rope_row_floats(const struct config *c) {
    return c->rope.dim / 2 * (c->rope.fope_pairs ? c->n_kv_heads : 1);
}
static inline int rope_fope_at(const struct config *c) { return rope_first_floats(c) + c->second_rope.dim / 2; }
static inline int rope_fope_floats(const struct config *c) {
    return c->rope.fope_pairs ? rope_row_floats(c) * (c->rope.dim + 1) : 0;
}
static inline int rope_floats(const struct config *c) { return rope_fope_at(c) + rope_fope_floats(c); }
/* Fills these. coefficients: of cos, and of sin [KV heads, fope_pairs, fope_pairs], from frequency to pair. */
void rope_fill_fope(const struct config *c, const float *const coefficients[2], float *out);
/* Leaves queries and keys of all layers as they are; c->rope then describes a table that no layer reads. */
void rope_set_none(struct config *c);

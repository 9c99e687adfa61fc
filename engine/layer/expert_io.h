#pragma once
/* The routed experts' input and the buffer that their outputs are added to, for modes that split a layer's experts or
 * rows between several executors. block_experts() includes all of it. Parameters are named
 * as in block.h. */
#include "engine/layer/work.h"
#include "engine/weights/weights.h"

/* Addresses of n rows in a workspace. */
struct expert_io {
    int width;  /* of both: config_routed_width() */
    float *in;  /* [n, width] what experts read; valid after expert_io_begin() */
    float *sum; /* [n, width] to which the weighted outputs are added, from expert_io_begin() to expert_io_end() */
};
/* out: [n, hidden] to which expert_io_end() adds the sum; it may be the sum itself. */
struct expert_io expert_io_of(const struct config *c, const struct work *w, float *out);
/* Whether inputs and sums have buffers of their own, as those of experts in a latent space have. */
bool expert_io_is_apart(const struct config *c);
/* Fill `in` from w->xn, and clear `sum` if it is apart; add the sums of all executors, in place, to `out`. */
int expert_io_begin(struct exec *x, const struct config *c, const struct layer *y, const struct work *w, int n);
int expert_io_end(struct exec *x, const struct config *c, const struct layer *y, const struct work *w, float *out,
                  int n);
/* Between both: adds the outputs of the experts that w->ids selects to `sum`. */
int expert_io_add(struct exec *x, const struct config *c, const struct layer *y, struct work *w, float *out, int n);
/* The same for n_experts experts, which w->ids numbers. */
int expert_io_add_some(struct exec *x, const struct config *c, const struct layer *y, const struct expert *experts,
                       int n_experts, struct work *w, float *out, int n);
/* Norms n experts' outputs [n, width] in place, before they are weighted and summed, if the family does so. */
int expert_io_norm(struct exec *x, const struct config *c, const struct layer *y, float *rows, int n);
/* Numbers of that norm's weights in a layer, layer.expert_out_norm; 0: the family has none. */
int expert_io_norm_floats(const struct config *c);
/* The input of a layer's shared experts, or of its dense FFN, and a factor for each row of the output; NULL: 1. */
const float *expert_io_shared_in(const struct config *c, int layer, const struct work *w);
const float *expert_io_shared_weight(const struct config *c, int layer, const struct work *w);
/* Rows of the workspace's expert_rows for a batch of n rows. */
int expert_io_rows(const struct config *c, int n);

#pragma once
/* Linear maps and norms of the blocks. Parameters are named as in block.h. */
#include "engine/layer/work.h"
#include "engine/weights/weights.h"

/* Norms `rows` rows of dim with eps: in to out, ldx and ldo floats apart. tag, bad: as in op_norm. */
int block_norm_rows(struct exec *x, const struct config *c, float *out, int ldo, const float *in, int ldx,
                    const float *weight, const float *bias, int rows, int dim, float eps, int tag, _Atomic int *bad);
/* Applies the model's norm to `rows` rows of dim, other than rows of the residual stream. weight and bias may be
 * NULL. */
int block_norm(struct exec *x, const struct config *c, float *out, int ldo, const float *in, int ldx,
               const float *weight, const float *bias, int rows, int dim);
/* Multiplies dim numbers of each row of v, which are normed, by the sigmoid of an MLP of them: up silu(down v), and a
 * factor of the model. m: down, up */
int block_gate_norm(struct exec *x, const struct config *c, const struct work *w, float *v, int ld,
                    const struct mat m[2], int n, int dim);
/* y[n] = m in[n] (+ bias) (+ y[n]) */
int block_linear(struct exec *x, const struct config *c, float *y, int ldy, const float *in, int ldx, struct mat m,
                 const float *bias, int n, bool accumulate);
/* y[n] = m in[n] (+ bias). wide: inputs are not rounded to BF16, because errors in a state persist for later rows.
 * exact: in float32, because rounding must not change which keys an indexer selects. */
int block_linear_wide(struct exec *x, float *y, int ldy, const float *in, int ldx, struct mat m, const float *bias,
                      int n);
int block_linear_exact(struct exec *x, float *y, int ldy, const float *in, int ldx, struct mat m, int n);

#include "engine/layer/block_linear.h"

#include "engine/layer/rows.h"

int block_linear_wide(struct exec *x, float *y, int ldy, const float *in, int ldx, struct mat m, const float *bias,
                      int n) {
    return x->ops->linear(
        x, &(struct op_linear){.y = y, .x = in, .bias = bias, .w = m, .n = n, .ldx = ldx, .ldy = ldy, .wide = true});
}
int block_linear_exact(struct exec *x, float *y, int ldy, const float *in, int ldx, struct mat m, int n) {
    return x->ops->linear(x,
                          &(struct op_linear){.y = y, .x = in, .w = m, .n = n, .ldx = ldx, .ldy = ldy, .exact = true});
}

int block_norm_rows(struct exec *x, const struct config *c, float *out, int ldo, const float *in, int ldx,
                    const float *weight, const float *bias, int rows, int dim, float eps, int tag, _Atomic int *bad) {
    /* rows of the stream have no gaps */
    const int groups = c->norm_groups && dim == c->hidden ? c->norm_groups : 1, part = dim / groups;
    return x->ops->norm(x, &(struct op_norm){.out = out,
                                             .x = in,
                                             .w = weight,
                                             .w_rows = groups,
                                             .bias = bias,
                                             .rows = rows * groups,
                                             .dim = part,
                                             .ldx = groups > 1 ? part : ldx,
                                             .ldo = groups > 1 ? part : ldo,
                                             .eps = eps,
                                             .add = weight && c->norm == NORM_RMS_PLUS_ONE,
                                             .w_dtype = DT_F32,
                                             .layer_norm = c->norm == NORM_LAYER,
                                             .tag = tag,
                                             .bad = bad});
}
int block_norm(struct exec *x, const struct config *c, float *out, int ldo, const float *in, int ldx,
               const float *weight, const float *bias, int rows, int dim) {
    return block_norm_rows(x, c, out, ldo, in, ldx, weight, bias, rows, dim, c->norm_eps, 0, NULL);
}

int block_linear(struct exec *x, const struct config *c, float *y, int ldy, const float *in, int ldx, struct mat m,
                 const float *bias, int n, bool accumulate) {
    return x->ops->linear(x, &(struct op_linear){.y = y,
                                                 .x = in,
                                                 .bias = bias,
                                                 .w = m,
                                                 .n = n,
                                                 .ldx = ldx,
                                                 .ldy = ldy,
                                                 .accumulate = accumulate,
                                                 .wide = config_needs_wide_activations(c)});
}

int block_gate_norm(struct exec *x, const struct config *c, const struct work *w, float *v, int ld,
                    const struct mat m[2], int n, int dim) {
    const int rank = c->norm_gate_rank;
    float *low = w->norm_gates, *high = low + (size_t)n * (size_t)rank;
    TRY(block_linear_exact(x, low, rank, v, ld, m[0], n));
    TRY(rows_gate(x, low, rank, low, rank, GATE_SIGMOID, n, rank));
    TRY(block_linear_exact(x, high, dim, low, rank, m[1], n));
    TRY(rows_gate(x, v, ld, high, dim, GATE_SIGMOID, n, dim));
    return c->norm_gate_scale > 0
               ? x->ops->scale(x, &(struct op_scale){.x = v, .n = n, .m = dim, .ld = ld, .by = c->norm_gate_scale})
               : 0;
}

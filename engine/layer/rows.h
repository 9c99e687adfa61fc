#pragma once
/* Operations of the table on whole rows, which have no heads: float32 [n, dim] in the executor's memory. Return 0 or an
 * operation's error code. */
#include "base/ops.h"

/* Copies rows ldx floats apart to rows ldy apart; ldx 0 copies one row to all. */
static inline int rows_copy(struct exec *x, float *to, int ldy, const float *from, int ldx, int n, int dim) {
    return x->ops->copy(x,
                        &(struct op_copy){.y = to, .x = from, .n = n, .heads = 1, .dim = dim, .ldx = ldx, .ldy = ldy});
}
/* Copies `heads` heads of rows, head_ldx floats apart, to heads head_ldy apart; head_ldx 0 copies one head to all. */
static inline int rows_copy_heads(struct exec *x, float *to, int ldy, int head_ldy, const float *from, int ldx,
                                  int head_ldx, int n, int heads, int dim) {
    return x->ops->copy(x, &(struct op_copy){.y = to,
                                             .x = from,
                                             .n = n,
                                             .heads = heads,
                                             .dim = dim,
                                             .ldx = ldx,
                                             .ldy = ldy,
                                             .head_ldx = head_ldx,
                                             .head_ldy = head_ldy});
}
/* y += from, both without gaps. */
static inline int rows_add(struct exec *x, float *y, const float *from, int n, int dim) {
    return x->ops->add(x, &(struct op_add){.y = y, .x = from, .n = n, .m = dim});
}
/* y *= by, without gaps. */
static inline int rows_scale(struct exec *x, float *y, float by, int n, int dim) {
    return x->ops->scale(x, &(struct op_scale){.x = y, .n = n, .m = dim, .ld = dim, .by = by});
}
/* y *= the gate function of g; ldg 0: one row of gates for all. */
static inline int rows_gate(struct exec *x, float *y, int ldy, const float *g, int ldg, enum gate_kind kind, int n,
                            int dim) {
    return x->ops->gate(
        x, &(struct op_gate){
               .y = y, .g = g, .n = n, .heads = 1, .dim = dim, .ldy = ldy, .ldg = ldg, .kind = (uint8_t)kind});
}
/* Divides rows ld apart by their root mean square, and multiplies them by weights. weight NULL: by 1. */
static inline int rows_norm(struct exec *x, float *y, int ld, const float *weight, float eps, int n, int dim) {
    return x->ops->norm(
        x,
        &(struct op_norm){
            .out = y, .x = y, .w = weight, .rows = n, .dim = dim, .ldx = ld, .ldo = ld, .eps = eps, .w_dtype = DT_F32});
}
/* Multiplies rows by factors: one per row, or (by_row false) the same for all. */
static inline int rows_weigh(struct exec *x, float *y, const float *weight, bool by_row, int n, int dim) {
    return x->ops->gate(x, &(struct op_gate){.y = y,
                                             .g = weight,
                                             .n = n,
                                             .heads = 1,
                                             .dim = dim,
                                             .ldy = dim,
                                             .ldg = by_row,
                                             .head_ldy = dim,
                                             .head_ldg = 1,
                                             .kind = GATE_LINEAR,
                                             .per_head = true});
}

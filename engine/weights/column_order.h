#pragma once
/* Columns in another order than their groups (desc_act, actorder: a list g_idx of each column's group). Codes are
 * sorted by group when they are loaded, so that kernels find a group's columns side by side, and mat.order says which
 * element of x a column multiplies. */
#include "engine/weights/loader.h"

/* Sorts the columns of m, DT_I4 or DT_I8 with a scale per row and group, by the groups in t (NULL: they are sorted).
 * Copies codes and scales unless they are in repacked memory. Expands m to float32 if its groups differ in size. */
void column_order_load(struct loader *l, struct mat *m, const struct tensor *t);
/* After the tensors of these modules have been loaded into base: sorts the rows of gate and up by the columns of down,
 * which then needs no order, and expands to float32 what is not multiplied by op_linear or op_experts alone. Afterwards
 * gate and up have the same order. */
void column_order_settle(struct loader *l, unsigned modules, void *base);

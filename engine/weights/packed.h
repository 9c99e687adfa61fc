#pragma once
/* Loads packed integer weights: compressed-tensors' pack-quantized, whose codes of four bits are used in place, GPTQ
 * and AWQ, which store the transposed matrix, and w4afp8. All but the first are repacked into memory of their own
 * (weights_alloc_repacked()). */
#include "engine/weights/matrix_source.h"

/* NAME.weight_packed: U8 is FP4, two codes per byte. I32 holds codes of two to eight bits along a row, biased by half
 * of their range, with NAME.weight_scale [rows, groups] and for asymmetric codes NAME.weight_zero_point, packed along
 * the rows. */
struct mat packed_load(const struct matrix_source *s, struct tensor *t);
/* NAME.weight of w4afp8: I8 [rows, cols / 2] of signed codes of four bits, even column in the low nibble. */
struct mat packed_load_signed(const struct matrix_source *s, struct tensor *t, struct tensor *scale);
/* NAME.qweight, qzeros and scales of GPTQ (codes packed along the columns, g_idx) or AWQ (along the rows, interleaved).
 * Returns the parameter's rows only. */
struct mat packed_load_transposed(const struct matrix_source *s, struct tensor *t);
/* Folds the zero points of I8 weights (NAME.weight_zero_point, I8, shaped as the scale), if there are any, into their
 * scales. */
void packed_add_zeros(const struct matrix_source *s, struct mat *m);

#pragma once
/* Checkpoints written by MLX for Apple's machines (mlx-lm, mlx-vlm): names of tensors, and packed matrices. */
#include "engine/weights/matrix_source.h"

/* Replaces the names and the layout of w's config by those that MLX gave the tensors of this family: a layer's experts
 * in one tensor, for example. The tensors decide. */
int mlx_names(struct weights *w, struct error *e);
/* NAME.weight: 32-bit words [.., rows, cols * bits / 32] of codes, low bits first, with NAME.scales [.., rows, groups].
 * With NAME.biases of the same shape a weight is scale * code + bias: 2 to 6 and 8 bits are repacked as Q4_1, Q5_1 or
 * Q8_A, which rounds F32 scales to float16. Without, the codes are those of MXFP4, NVFP4 or MXFP8, by the columns of a
 * group, and are used in place. Returns the parameter's rows only. */
struct mat mlx_load(const struct matrix_source *s, const struct tensor *t, struct tensor *scales);

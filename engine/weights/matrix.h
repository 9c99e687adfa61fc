#pragma once
/* Loads a weight matrix in any published layout: plain, FP8 and INT8 with scales, FP4 (MXFP4, NVFP4), packed integers
 * (packed.h). The tensors' names, dtypes and shapes decide; config.json supplies what they leave open. */
#include "engine/weights/loader.h"

/* Returns a view of the parameter's matrix, all zero if it is absent and optional. On failure l->rc is set. */
struct mat matrix_load(struct loader *l, const struct param *p, const char *pattern, int layer, int expert);

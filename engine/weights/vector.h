#pragma once
/* Loads a vector, or a small table that the layers read as one: float32, converted as its parameter says (enum
 * vector_conversion). */
#include "engine/weights/loader.h"

/* Returns the parameter's p->rows numbers, owned by the arena of the weights; CONVERT_EXPERT_IDS: int32_t. NULL if it
 * is absent and optional. On failure l->rc is set. */
float *vector_load(struct loader *l, const struct param *p, const char *pattern, int layer, int expert);

#pragma once
/* Decodes single elements of a matrix: the slow reference of all kernels. */
#include "base/mat.h"

/* One element as float32; the slow reference. */
float mat_at(const struct mat *m, int32_t r, int32_t c);
/* A whole row as float32 [cols]. */
void mat_row(const struct mat *m, int32_t r, float *out);
float mat_scale_at(const struct mat *m, int32_t r, int32_t c);

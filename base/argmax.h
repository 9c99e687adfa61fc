#pragma once
/* Index of the largest of x [n], n > 0: the first of equals. NaNs are skipped, but the first value if it is one is
 * returned. *has_nan, if not NULL: whether any value is NaN. Pure. */
#include <stdbool.h>
#include <stdint.h>

int32_t argmax(const float *x, int n, bool *has_nan);

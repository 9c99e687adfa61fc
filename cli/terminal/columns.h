#pragma once
/* Widths of text on a terminal, in columns, by grapheme clusters of UTF-8. */
#include <stddef.h>

#include "base/buf.h"

/* Returns the bytes, and sets the columns, of the first grapheme cluster of n > 0 bytes. */
size_t columns_of_char(const char *s, size_t n, int *width);
/* Width in columns (no control bytes); and the number of bytes that fit in `cols` columns. */
int columns_of_text(const char *s, size_t n);
size_t columns_fit(const char *s, size_t n, int cols);
/* Appends what fits in `cols` > 0 columns. Truncated text ends at a blank if one is near, with an ellipsis. */
void columns_truncate(const char *s, size_t n, int cols, struct buf *out);

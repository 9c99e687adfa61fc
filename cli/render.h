#pragma once
/* What others wrote (a model, a file, a path), made harmless for a terminal. Control bytes that could move the cursor, change colours, set the
 * clipboard or rewrite what stands there become visible symbols (ESC shows as U+241B), whatever way they are split over
 * tokens; broken UTF-8 becomes U+FFFD. Line feed and tab pass; CR before LF is dropped. */
#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"

struct filter { /* zero-initialised is ready */
    unsigned char held[4];
    int n_held, want;
    bool cr;
};
/* Appends at most three bytes for each of data, and three for what was held back. */
void filter_add(struct filter *f, const char *data, size_t n, struct buf *out);
void filter_flush(struct filter *f, struct buf *out); /* what was held back, at the end */

/* A whole character that is shown as one U+FFFD: C1 controls (U+0080..U+009F) are what 8-bit terminals take for ESC [ and
 * the like; the bidirectional overrides would let text be read as what it is not. */
bool render_harmful(const unsigned char *s, size_t n);

/* Bytes and columns of what a person sees as one character (a grapheme cluster), at the beginning of n > 0 bytes. */
size_t render_char(const char *s, size_t n, int *width);
/* Columns that text takes on a terminal (no control bytes in it); and the bytes of it that fit in `cols` columns. */
int render_width(const char *s, size_t n);
size_t render_fit(const char *s, size_t n, int cols);
/* Appends what fits in `cols` > 0 columns; a text that is cut ends at a blank where one is near, and with an ellipsis. */
void render_cut(const char *s, size_t n, int cols, struct buf *out);

#pragma once
/* Sanitizes untrusted text (from a model, a file, a path) for a terminal. Control bytes that could move the cursor, change colours,
 * set the clipboard or overwrite output become visible symbols (ESC shows as U+241B), even when split over tokens. Invalid UTF-8
 * becomes U+FFFD. Line feed and tab pass; CR before LF is dropped. Also measures text in columns. */
#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

struct sanitizer {         /* ready when zero-initialised */
    unsigned char held[4]; /* an incomplete UTF-8 sequence */
    int n_held, want;      /* its bytes so far, and its length */
    bool cr;               /* a CR is held back: it is dropped if LF follows */
};
/* Appends at most three bytes for each of data, plus three for held bytes. */
void sanitize_add(struct sanitizer *f, const char *data, size_t n, struct buf *out);
void sanitize_flush(struct sanitizer *f, struct buf *out); /* flushes held bytes at the end of the text */

/* True for a character that is shown as U+FFFD: C1 controls (U+0080..U+009F), which 8-bit terminals read as ESC [ and the like, and
 * the bidirectional overrides, which disguise text. */
bool sanitize_is_harmful(const unsigned char *s, size_t n);

/* Returns the bytes, and sets the columns, of the first grapheme cluster of n > 0 bytes. */
size_t columns_of_char(const char *s, size_t n, int *width);
/* Width in columns (no control bytes); and the number of bytes that fit in `cols` columns. */
int columns_of_text(const char *s, size_t n);
size_t columns_fit(const char *s, size_t n, int cols);
/* Appends what fits in `cols` > 0 columns. Truncated text ends at a blank if one is near, with an ellipsis. */
void columns_truncate(const char *s, size_t n, int cols, struct buf *out);

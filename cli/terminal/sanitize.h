#pragma once
/* Sanitizes untrusted text (from a model, a file, a path) for a terminal. Control bytes that could move the cursor,
 * change colours, set the clipboard or overwrite output become visible symbols (ESC shows as U+241B), even when split
 * over tokens. Invalid UTF-8 becomes U+FFFD. Line feed and tab pass; CR before LF is dropped. */
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

/* True for a character that is shown as U+FFFD: C1 controls (U+0080..U+009F), which 8-bit terminals read as ESC [ and
 * the like, and the bidirectional overrides, which disguise text. */
bool sanitize_is_harmful(const unsigned char *s, size_t n);

#pragma once
/* Differences of two texts by lines, as diff -u shows them. Pure. */
#include "base/buf.h"

/* Appends the hunks with three lines of context; nothing if the texts are equal. Texts with many differences are shown
 * as one replaced part. Returns 0 or ERR_MEMORY. */
int agent_diff_put(struct buf *out, const char *old, size_t n_old, const char *new, size_t n_new);

#pragma once
/* Patterns that begin with conditions on all of the text, as validators write them for addresses and decimals:
 * ^(?!\\.)(?!.*\\.\\.)[a-z.]+$. Look-ahead elsewhere is refused (regex.h). */
#include "tokenizer/grammar/lang.h"

/* The strings that contain a match of the pattern, as lang_search() has them. ERR_USAGE, ERR_MEMORY. */
int look_ahead_search(struct effort *effort, struct arena *a, const char *pattern, size_t n, struct lang *out,
                      struct error *e);

#pragma once
/* Cuts a text that is too long for a model's context into parts: at paragraphs where it can, else at sentences, lines,
 * words or characters. The caller counts tokens. */
#include <stddef.h>

#include "base/error.h"

struct long_text {
    const char *data; /* valid UTF-8 */
    size_t n;
    size_t most; /* tokens of a part, as `count` counts them */
    /* Counts the tokens of a part, data[from, to). */
    int (*count)(void *ctx, size_t from, size_t to, size_t *tokens, struct error *e);
    void *ctx;
    double token_bytes; /* bytes of a token, as the last counts were; 0: not known yet */
};

/* Sets *to to the end of the part that begins at `from`: from < *to <= n. Consecutive parts are the whole text, each
 * byte once. ERR_CONTEXT: not even a character fits. */
int long_text_next(struct long_text *t, size_t from, size_t *to, struct error *e);

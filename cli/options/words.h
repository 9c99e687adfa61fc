#pragma once
/* Words of a text, separated by blanks, which may be quoted as in a shell: with ' or ", or a backslash before a
 * character outside of '. Pure. */
#include <stdbool.h>

/* Copies the next word of *at, without its quotes, and moves *at after it; false at the end. out: room for the rest of
 * the text. *closed is set to false if the word has a quote without its end. */
bool words_next(const char **at, char *out, bool *closed);

#pragma once
/* Prompts of models that fill in the middle: text before and after a gap, between marks of the vocabulary. */
#include "cli/turn/prompt.h"

/* Makes the prompt for the text between a prefix and a suffix, strings, which act as text only. ERR_USAGE: the
 * vocabulary has no marks for this. */
int infill_make_prompt(struct app *a, const struct json *prefix, const struct json *suffix, struct prompt *out,
                       struct error *e);

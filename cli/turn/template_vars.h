#pragma once
/* What options tell the chat template beside the messages: --think, --effort and --template-var. */
#include "cli/app.h"

/* Appends them as members of a conversation, each with ", " before it. think: 1, 0, or -1 for what the template
 * decides. Notes on stderr, once, what the model's template does not use. ERR_USAGE: not NAME=VALUE. */
int template_vars_put(struct app *a, int think, struct buf *b, struct error *e);
/* Notes on stderr, once for each value of --effort, what the model's template makes less of it than asked. */
void template_vars_note_effort(struct app *a);

#pragma once
/* What options tell the chat template beside the messages: --think, --effort and --template-var. */
#include "cli/app.h"

/* Appends them as members of a conversation, each with ", " before it. think: 1, 0, or -1 for what the template
 * decides. Notes on stderr, once, what the model's template does not use. ERR_USAGE: not NAME=VALUE. */
int template_vars_put(struct app *a, int think, struct buf *b, struct error *e);

enum template_effort { EFFORT_KNOWN, EFFORT_SWITCH, EFFORT_UNKNOWN };
/* Returns what the model's template knows of --effort: levels, only a switch for thinking, or nothing. Appends a
 * sentence if that is less than asked. Prompts do not note it again. Engines elsewhere decide by themselves: known. */
enum template_effort template_vars_effort(struct app *a, struct buf *out);
/* Returns the --effort that changes the model's prompts; NULL: none is given, or its template knows none. */
const char *template_vars_known_effort(const struct app *a);

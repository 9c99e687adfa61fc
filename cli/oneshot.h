#pragma once
/* One question, one answer: -p, stdin, or both. */
#include "cli/app.h"

/* Prints in the form that was asked for; e is set when it returns a negative code. Its text is empty for an answer that a
 * full context cut (ERR_CONTEXT): that has been said. */
int oneshot_run(struct app *a, struct error *e);
/* What --json and --json-lines put on stdout when the run failed; nothing without them. */
void oneshot_json_error(const struct app *a, const struct error *e);

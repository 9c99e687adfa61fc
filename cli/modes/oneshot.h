#pragma once
/* One prompt, one answer: -p, stdin, or both. */
#include "cli/app.h"

/* Prints the answer in the requested form. Returns 0 or a negative code with e set. For an answer cut by a full context
 * (ERR_CONTEXT) e->text is empty: a note has reported it. */
int oneshot_run(struct app *a, struct error *e);

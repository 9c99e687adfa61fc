#pragma once
/* What all turns of a one-shot run share: waiting for their end, and the sum of their statistics. */
#include "cli/turn/turn.h"

/* Runs a turn to its end. On a terminal stderr shows `what` until the first text, or, of a turn whose text is not
 * printed, until its end. */
void oneshot_turn_wait(struct app *a, struct turn *t, const char *what);
/* Adds what can be summed; the time to the first token remains that of `sum`. */
void oneshot_turn_add_stats(struct turn_stats *sum, const struct turn_stats *s);

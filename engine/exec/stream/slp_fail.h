#pragma once
/* Failure and progress of a run. */
#include "engine/exec/stream/slp_state.h"

/* Records the first failure and wakes everything that waits. code may be an operation's; the text then is the
 * device's. */
int slp_fail(struct slp_run *p, int code, const struct error *e);
int slp_check(struct slp_rank *r, int rc); /* passes 0 through; else slp_fail with the device's error */
void slp_layer_done(struct slp_rank *r, int layer);

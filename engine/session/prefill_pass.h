#pragma once
/* How far a prefill is, and who may be read before it ends. Engine thread. */
#include "engine/session/engine_state.h"

double prefill_done_share(const struct prefill_run *run); /* the share of its work that is done */
/* Seconds that it took so far, without the time of newer ones that it waited for. */
double prefill_own_seconds(const struct prefill_run *run);
/* Under the lock: whether a queued prompt may be read on the CPU, after others that take before_s seconds, while
 * `others`, a prefill and those below it, wait or run on devices. */
bool prefill_may_pass(const struct session *s, const struct session *others, double before_s);

#pragma once
/* The queue of prompts, and the prefills in progress. Engine thread; "locked": under the lock, and from any thread. */
#include "engine/session/engine_state.h"

/* Locked: picks the next session to prefill, if none is running or it may pass those that are (policy_may_pass). */
void prefill_queue_pick(struct engine *eng);
/* Returns the session whose prefill has a unit of work ready, NULL: none. */
struct session *prefill_queue_ready(const struct engine *eng);
/* Runs that unit; after the prompt's last one samples the first token. */
void prefill_queue_advance(struct session *s);
void prefill_queue_emit_progress(struct engine *eng); /* emits progress events, rate-limited */

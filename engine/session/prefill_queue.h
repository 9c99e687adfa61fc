#pragma once
/* The queue of prompts, and the running prefill. Engine thread, without the lock unless noted. */
#include "engine/session/engine_state.h"

void prefill_queue_pick(struct engine *eng);        /* under the lock: picks the next session to prefill */
bool prefill_queue_ready(const struct engine *eng); /* whether a unit of prefill work is ready */
/* runs that unit; after the prompt's last one samples the first token */
void prefill_queue_advance(struct engine *eng);
void prefill_queue_emit_progress(struct engine *eng); /* emits a progress event, rate-limited */

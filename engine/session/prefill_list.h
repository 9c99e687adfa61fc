#pragma once
/* The list of prefills in progress, engine->prefilling. All functions are called under the lock; the engine thread may
 * read without it. session_set_state() enters and removes sessions. */
#include "engine/session/engine_state.h"

void prefill_list_push(struct session *s);
void prefill_list_remove(struct session *s);
bool prefill_list_has(const struct session *s);
bool prefill_list_streams(const struct engine *eng);   /* whether one runs on devices */
bool prefill_list_has_begun(const struct engine *eng); /* whether one computes */

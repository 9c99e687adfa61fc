#pragma once
/* The list of prefills in progress, engine->prefilling. All functions are called under the lock; the engine thread may
 * read without it. session_set_state() enters and removes sessions. */
#include "engine/session/engine_state.h"

void prefill_list_push(struct session *s);
void prefill_list_remove(struct session *s);
bool prefill_list_has(const struct session *s);
bool prefill_list_streams(const struct engine *eng);   /* whether one runs on devices */
bool prefill_list_has_begun(const struct engine *eng); /* whether one computes */
/* The session whose prefill has the driver: s itself, unless its prompt is read with another one. */
static inline struct session *prefill_leader(struct session *s) { return s->prefill.leader ? s->prefill.leader : s; }
static inline bool prefill_is_joined(const struct session *s) { return s->prefill.leader || s->prefill.joined; }
/* Whether the turns of s, and of those whose prompts are read with its own, are over. */
bool prefill_is_abandoned(const struct session *s);
/* Whether a prompt, or those that it is read with, is read while older ones wait. */
static inline bool prefill_passes(const struct session *s) {
    return s->prefill.leader ? s->prefill.leader->prefill.below : s->prefill.below;
}

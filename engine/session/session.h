#pragma once
/* Sessions inside the engine: state transitions and event queues. engine.h declares what clients call. All functions
 * are called under the lock. */
#include "engine/session/engine_state.h"

/* QUEUED to PREFILL dequeues the prompt; fair_queue_charge() counts it as served. */
void session_set_state(struct session *s, enum session_state to);
void session_set_hold(struct session *s, enum session_hold to); /* the same hold: no change */
void session_end_turn(struct session *s, enum done_reason reason, int rc, const struct error *why);
/* probs: NULL unless wanted */
void session_emit_token(struct session *s, int32_t id, const struct token_logprobs *probs);
void session_emit_progress(struct session *s, const struct event *ev);
void session_reap_cancelled(struct engine *eng); /* ends cancelled turns that the engine thread does not hold */

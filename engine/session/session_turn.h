#pragma once
/* Samples tokens and ends turns. Engine thread, without the lock. */
#include "engine/session/engine_state.h"

void session_turn_end(struct session *s, enum done_reason reason, int rc, const struct error *why); /* takes the lock */
bool session_turn_is_stop_id(const struct session *s, int32_t id);
/* The cache holds all tokens of s: samples the next one and emits it. top: the argmax, or -1 if unknown; drafted: the
 * token that a draft has there, or -1. Returns true if the token equals the drafted one and the turn continues; the
 * session then stays claimed. Otherwise it is released and may be freed. */
bool session_turn_sample(struct session *s, float *logits, int32_t top, int32_t drafted);

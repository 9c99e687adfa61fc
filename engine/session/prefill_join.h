#pragma once
/* Short prompts of several sessions that wait together are read together on the CPU: a batch of all their rows reads
 * the weights once. A prompt's rows have the bits that they have alone (struct op_prompts). */
#include "engine/session/engine_state.h"

/* Joins waiting prompts to that of s, which the CPU is about to read and whose job is made, as long as the policy says
 * that this pays (policy_may_join). Engine thread, without the lock. */
void prefill_join_others(struct session *s);
/* Enters the seconds that the CPU took for the prompts read with that of s, all of which it has read. */
void prefill_join_observe(const struct session *s, double seconds);

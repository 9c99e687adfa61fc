#pragma once
/* The bound on time per output token, --max-tpot. The policy picks batches and modes that keep it (placement/policy.h).
 * This file decides when other work may delay answers: a prompt waits if answers would be slower than the bound with
 * one session more, and a prefill gets only the time that answers leave below the bound. Without a bound every function
 * permits everything. Engine thread. */
#include <stdbool.h>

struct engine;
struct session;

/* under the lock: whether s may begin its prefill beside the decoding sessions */
bool tpot_admits(const struct engine *eng, const struct session *s);
/* whether other work may delay the next batch by `seconds` */
bool tpot_has_room(const struct engine *eng, double seconds);
/* Records seconds by which answers were delayed; < 0: faster than the bound. */
void tpot_charge(struct engine *eng, double seconds);
/* Records a decode batch: the sessions in decode, the sum of the tokens that they got in it, and its time. */
void tpot_batch_done(struct engine *eng, int n_decoding, int n_tokens, double seconds);

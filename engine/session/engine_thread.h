#pragma once
/* The engine thread, by file: engine_thread.c schedules, prefill_queue.c prefills, decode_batch.c runs decode batches, drafts.c appends drafted tokens, session_turn.c samples
 * tokens and ends turns. All functions run on the engine thread, without the lock unless noted. */
#include "engine/session/engine_internal.h"

/* A session's entry in a decode batch: known tokens that the cache lacks, then drafted ones. A cancel may end the turn while the batch
 * runs. The batch continues for the other sessions and this entry's result is dropped. The session itself is not freed before the
 * batch ends. */
struct batch_entry {
    struct session *s;
    const _Atomic int *cancel;
    uint64_t turn_id;
    int pos, n, n_known;                            /* positions pos .. pos + n - 1; the first n_known belong to the turn, the rest are drafts */
    int event_room;                                 /* lower bound of the tokens that can be emitted */
    int n_before;                                   /* tokens before pos that text has */
    int32_t text[NGRAM_MOST - 1 + DECODE_MAX_ROWS]; /* n_before tokens, then those of the entry */
};
static inline int32_t *batch_tokens(struct batch_entry *r) { return r->text + r->n_before; }

void session_turn_end(struct session *s, enum done_reason reason, int rc, const struct error *why); /* takes the lock */
bool session_turn_is_stop_id(const struct session *s, int32_t id);
/* The cache holds all tokens of s: samples the next one and emits it. top: the argmax, or -1 if unknown; drafted: the token that a draft has there, or -1.
 * Returns true if the token equals the drafted one and the turn continues; the session then stays claimed. Otherwise it is released and may be freed. */
bool session_turn_sample(struct session *s, float *logits, int32_t top, int32_t drafted);

/* decode_batch.c; the first two under the lock */
int decode_batch_pick(const struct engine *e, struct session *batch[ENGINE_MAX_BATCH]); /* sessions in decode with room for events */
int decode_batch_fill(struct engine *e, struct session **batch, int n,
                      struct batch_entry *rows); /* fills their rows; returns how many sessions the next batch takes */
void decode_batch_run(struct engine *e, struct batch_entry *rows, int n);
struct policy_machine decode_batch_policy_machine(const struct engine *e); /* the policy's view of the machine */

const char *drafts_name(const struct engine *e); /* name of the running draft; NULL: none yet */
/* Appends as many drafted tokens to each row as are worth verifying. The sessions are held, so no other thread ends their turns. */
void drafts_add(struct engine *e, struct batch_entry *rows, int n);

void prefill_queue_pick(struct engine *e);          /* under the lock: picks the next session to prefill */
bool prefill_queue_ready(const struct engine *e);   /* whether a unit of prefill work is ready */
void prefill_queue_advance(struct engine *e);       /* runs that unit; after the prompt's last one samples the first token */
void prefill_queue_emit_progress(struct engine *e); /* emits a progress event, rate-limited */

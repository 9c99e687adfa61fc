#pragma once
/* The prefix cache: sessions with a common prefix share its KV memory, and a new session starts after it.
 *
 * A row's bits depend on the rows of its batch (ops.h). So prefill splits prompts into chunks whose ends depend on the
 * tokens alone: at multiples of the batch size, and at the end of the request's shared prefix. Chunks computed this way
 * from the first token on are bit-identical in every session with these tokens. Only they are shared, so a session that
 * reuses them gives the answer that it would give alone. Rows computed after a session's own answer, or in a fork, are
 * shared with forks only. With devices the last bits also depend on placement; with --deterministic only CPU prefills
 * are shared. */
#include <stdbool.h>

#include "base/error.h"
#include "engine/session/prefix_state.h"

struct engine;
struct kv;
struct session;

void prefix_open(struct engine *eng);  /* after everything that enters kv_fingerprint */
void prefix_close(struct engine *eng); /* after all sessions are closed */
/* Returns how many cached tokens to keep when [0, keep) match a request of n tokens. Returns fewer where little is
 * lost, so that the new KV can be shared. With REQ_EXACT_PREFIX_ONLY keeps exact chunks only. */
int prefix_tokens_to_keep(const struct session *s, int keep, int n, int flags);
int prefix_shared_end(const struct session *s); /* extra chunk end of the prompt (prefill_batch_end); 0: none */
bool prefix_is_exact(const struct session *s);  /* whether the cache holds exactly the exact chunks */
/* Lists the disk keys of the chunks that a prefill of s produces; none if it is not written to disk. ERR_MEMORY. */
int prefix_disk_keys(const struct session *s, struct prefix_keys *out);

/* Engine thread only: */
/* starts a turn that keeps s->n_kv tokens */
void prefix_begin_turn(struct session *s);
/* maps matching chunks of other sessions; advances s->n_kv */
void prefix_reuse(struct session *s);
/* runtime.kv_common_rows: number of leading positions in common blocks */
int prefix_common_rows(void *engine, const struct kv *a, const struct kv *b);
/* Loads the next chunk from the disk cache. Returns false if there is none; prefill then starts at s->n_kv. */
bool prefix_load_next(struct session *s);
void prefix_record(struct session *s); /* records the chunks up to s->n_kv, prefilled since prefix_is_exact() held */

/* Queues the next unsaved chunk of any session for the disk; false: none. */
bool prefix_save_one(struct engine *eng);

/* before closing an idle session; on a client thread */
void prefix_save_all(struct session *s);
/* makes `to`, a fresh session, a copy; both idle; on a client thread */
int prefix_fork(struct session *from, struct session *to, struct error *e);
void prefix_free(struct session *s); /* frees the prefix of a closing session */

#pragma once
#include "engine/session/engine_state.h"

/* A session's entry in a decode batch: known tokens that the cache lacks, then drafted ones. A cancel may end the turn
 * while the batch runs. The batch continues for the other sessions and this entry's result is dropped. The session
 * itself is not freed before the batch ends. */
struct batch_entry {
    struct session *s;
    const _Atomic int *cancel;
    uint64_t turn_id;
    /* positions pos .. pos + n - 1; the first n_known belong to the turn, the rest are drafts */
    int pos, n, n_known;
    int event_room;                                 /* lower bound of the tokens that can be emitted */
    int turn_shift;                                 /* that of the session */
    int n_before;                                   /* tokens before pos that text has */
    int32_t text[NGRAM_MOST - 1 + DECODE_MAX_ROWS]; /* n_before tokens, then those of the entry */
};
static inline int32_t *batch_tokens(struct batch_entry *r) { return r->text + r->n_before; }

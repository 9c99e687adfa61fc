#pragma once
/* What the engine's thread does, by file: loop.c goes round, prompt.c reads prompts, decode.c takes steps, drafts.c puts guesses behind their
 * tokens, turn.c draws tokens and ends turns. All of it belongs to the engine's thread, without the lock where nothing else is said. */
#include "engine/internal.h"

/* A session's part in a step: what it knows of its tokens and the cache does not hold yet, then what a draft guesses of those that
 * follow. Its turn may be over before the step is, when it was cancelled: the others' go on, so the step does too, but what it found
 * for this one is dropped. The session itself stays until then. */
struct row {
    struct session *s;
    const _Atomic int *cancel;
    uint64_t turn;
    int pos, n, known; /* positions pos .. pos + n - 1; the first `known` are the turn's own */
    int room;          /* tokens that there was room for to tell, at least */
    int32_t tokens[STEP_ROWS];
};

/* turn.c */
void turn_end(struct session *s, enum done_reason reason, int rc, const struct error *why); /* takes the lock */
bool turn_is_stop(const struct session *s, int32_t id);
/* The cache holds all tokens of s; draws the next one and tells it. top: the largest logit's, or -1 where that is not known. True when
 * it is `guess` and the turn goes on: then the session is still held. Else it is let go, and may be gone. */
bool turn_draw(struct session *s, float *logits, int32_t top, int32_t guess);

/* decode.c. The first two under the lock. */
int decode_pick(const struct engine *e, struct session *batch[ENGINE_BATCH]);       /* sessions that answer and have room to tell it */
int decode_rows(struct engine *e, struct session **batch, int n, struct row *rows); /* what they bring to the next step: how many of them it takes */
void decode_step(struct engine *e, struct row *rows, int n);
struct policy_machine decode_machine(const struct engine *e); /* what the policy is to know of it */

/* drafts.c */
const char *drafts_name(const struct engine *e); /* of the draft that runs; NULL: none yet */
/* Guesses behind the known tokens of each row, as many as are worth their rows. The sessions are held: nobody ends their turns meanwhile. */
void drafts_add(struct engine *e, struct row *rows, int n);

/* prompt.c */
void prompt_next(struct engine *e);        /* under the lock: whose turn it is to be read */
bool prompt_ready(const struct engine *e); /* a piece of work on it is */
void prompt_piece(struct engine *e);       /* does it, and what follows when it was the last */
void prompt_progress(struct engine *e);    /* tells it, now and then */

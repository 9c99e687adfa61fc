#pragma once
/* A draft by the checkpoint's own prediction layer (multi-token prediction: DeepSeek-V3, section 2.2; GLM-4.5): from what the last
 * layer left of a position and the token behind it, it guesses the token after that. For more tokens it goes on from what it left itself.
 * It runs on the processor, has a KV cache of its own for each chat, and sees what it was told of: the end of a prompt, and the answer.
 * All for the thread that owns the processor. */
#include "engine/layer/kv.h"
#include "engine/store/weights.h"

struct mtp;
struct mtp_chat { /* zero-initialised; of one session */
    struct kv kv;
    int first, rows, waiting; /* row i of the cache is position first + i; behind these `waiting` are told and not gone through */
    float *h;                 /* [MTP_WAITING, hidden] of those: position p's is at p % MTP_WAITING */
};
enum { MTP_WAITING = 256 };

/* *out: NULL where the checkpoint has no such layer that hearth can run. w and x must outlive it. ERR_MEMORY. */
int mtp_open(struct mtp **out, const struct weights *w, struct exec *x, int context, enum dtype kv, struct error *e);
void mtp_close(struct mtp **m);
void mtp_chat_close(struct mtp_chat *c);
/* What the last layer left of positions pos .. pos + n - 1, h [n, hidden]. Without memory it is passed over. */
void mtp_tell(struct mtp *m, struct mtp_chat *c, int pos, int n, const float *h);
void mtp_rewind(struct mtp_chat *c, int pos); /* tokens from pos on are not what they were */
/* Goes through what waits but for the last, which mtp_guess does at the latest: that this may be long is known then. */
void mtp_catch_up(struct mtp *m, struct mtp_chat *c, const int32_t *tokens);
/* The i-th guess by its logits [vocab], which it may change, and the largest of them; < 0: there is none. */
typedef int32_t (*mtp_pick_fn)(void *ctx, int i, float *logits, int32_t top);
/* Guesses up to `most` tokens behind tokens[0..n), of which all but the last were told; returns how many. pick NULL: the likeliest. */
int mtp_guess(struct mtp *m, struct mtp_chat *c, const int32_t *tokens, int n, int most, int32_t *out, mtp_pick_fn pick, void *ctx);

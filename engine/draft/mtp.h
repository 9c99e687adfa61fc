#pragma once
/* A draft by the checkpoint's own prediction layer (multi-token prediction: DeepSeek-V3, section 2.2; GLM-4.5). From
 * the last layer's output at a position and the next token it predicts the token after that; for more tokens it
 * continues from its own output. Runs on the CPU, with its own KV cache per session, over the positions it is fed: the
 * end of a prompt, and the answer. Call on the thread that owns the CPU executor. */
#include "engine/kv/kv_cache.h"
#include "engine/weights/weights.h"

struct mtp;
struct mtp_session { /* zero-initialized; per session */
    struct kv kv;
    /* row i of the cache is position first + i; `waiting` more positions are fed but not processed */
    int first, n_rows, n_waiting;
    float *hidden; /* [MTP_WAITING, hidden] hidden states of those: position p at p % MTP_WAITING */
};
enum { MTP_WAITING = 256 };

/* *out: NULL if the checkpoint has no prediction layer that hearth supports. w and x must outlive it. ERR_MEMORY. */
int mtp_open(struct mtp **out, const struct weights *w, struct exec *x, int context, enum dtype kv, struct error *e);
void mtp_close(struct mtp **m);
void mtp_session_close(struct mtp_session *c);
/* Feeds the last layer's output of positions pos .. pos + n - 1, h [n, hidden]. Dropped if memory is short. */
void mtp_feed(struct mtp *m, struct mtp_session *c, int pos, int n, const float *h);
void mtp_rewind(struct mtp_session *c, int pos); /* invalidates tokens from pos */
/* Processes all waiting positions but the last, which mtp_draft() needs. Separate because it may take long. */
void mtp_catch_up(struct mtp *m, struct mtp_session *c, const int32_t *tokens);
/* Samples the i-th drafted token from its logits [vocab], which it may modify; top: their argmax. < 0: stop. */
typedef int32_t (*mtp_pick_fn)(void *ctx, int i, float *logits, int32_t top);
/* Drafts up to `most` tokens after tokens[0..n), of which all but the last were fed. Returns their number. pick NULL:
 * argmax. */
int mtp_draft(struct mtp *m, struct mtp_session *c, const int32_t *tokens, int n, int most, int32_t *out,
              mtp_pick_fn pick, void *ctx);

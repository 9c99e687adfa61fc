#pragma once
/* Communication between ranks in a layer (DSLP), paper A section 3.2. Tokens of all ranks are numbered rank by rank.
 * Attention: KV rows travel around a ring, kvring.c.
 * Experts, SmallEP: all-gather of normed tokens and selections, each rank's experts on all tokens, exchange of partial
 * sums. */
#include "engine/exec/stream/slp_state.h"

/* A transfer through the host is split, so that one part enters the receiver while the next leaves the sender. */
enum { EXCHANGE_PARTS = 8 };
/* The two steps of a layer, in which each rank announces data and fetches the other ranks'. They have events of their
 * own, since a rank may announce its sums before another one has enqueued its wait for the tokens. */
enum exchange_step { STEP_TOKENS, STEP_SUMS, EXCHANGE_STEPS };
struct exchange {
    struct gpu_stream *send, *recv;                        /* high priority: ahead of weights on the bus */
    struct gpu_pair *ready[EXCHANGE_STEPS];                /* this rank's data is in its device memory */
    struct gpu_pair *sent[EXCHANGE_STEPS][EXCHANGE_PARTS]; /* a part of it is in host memory */
    /* orders the compute stream after a fetch, and the next fetch after the use of its buffer */
    struct gpu_event *received;
    /* KV, by layer parity and ring step: the block is in this rank's memory */
    struct gpu_pair *hop[2][GPU_MAX];
    /* Element type of transfers: float32, or BF16 if the devices compute in BF16. With BF16, own tokens are narrowed to
     * bf16_tokens, others' arrive in rank->sum before they are widened; sums are narrowed into the others' rows of
     * rank->xn, and arrive in bf16_sums. */
    bool is_bf16;
    uint16_t *bf16_tokens, *bf16_sums; /* device: [n, hidden]; [n, config_routed_width()] */
    char *tokens;                      /* pinned: own rows [n, hidden] */
    int32_t *ids;                      /* pinned: [n, topk] */
    float *weights;                    /* pinned: [n, topk] */
    char *sums;                        /* pinned: own partial sums of all tokens [all, config_routed_width()] */
    float *received_sums;              /* device: another rank's sums of own rows [n, config_routed_width()] */
    int first_row;                     /* number of this rank's first token */
    uint64_t steps;                    /* steps begun: tokens and sums of each layer alternate */
};
int exchange_open(struct slp_rank *r, struct error *e); /* no-op for a single rank; close after an error too */
void exchange_close(struct slp_rank *r);
void exchange_abort(struct slp_rank *r);          /* wakes what waits for this rank; any thread */
int exchange_first_row(const struct slp_rank *r); /* number of the rank's first token; 0 for a single rank */
bool exchange_are_peers(const struct slp_rank *r, const struct slp_rank *q);
/* SmallEP, on the compute thread; both enqueue and return an operation's error code. Tokens: xn, ids and weights of
 * r->rows receive the other ranks' tokens. Sums: the sum of all ranks' r->sum [all, config_routed_width()] for this
 * rank's tokens is added to out. */
int exchange_tokens(struct slp_rank *r, int layer);
int exchange_sums(struct slp_rank *r, float *out, int layer);

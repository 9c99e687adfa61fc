#pragma once
/* What ranks pass to each other in a layer (DSLP), paper A section 3.2. Tokens of all ranks are numbered rank by rank.
 * Attention: KV rows go round a ring, kvring.c.
 * Experts, SmallEP: all-gather of normed tokens and their choices, own experts on all tokens, exchange of the partial sums. */
#include "engine/pipe/internal.h"

/* A step goes through the host in parts, so that one leaves a device while the one before it enters the other. */
enum { EXCHANGE_PARTS = 8 };
struct exchange {
    struct gpu_stream *send, *recv; /* urgent: before weights on the bus */
    /* Tokens (0) and sums (1) are ready on the device, and a part of them is in host memory. Apart, since a rank may announce
     * its sums before another has enqueued its wait for the tokens. */
    struct gpu_pair *made[2], *sent[2][EXCHANGE_PARTS];
    struct gpu_event *here;           /* all that this layer's step receives has come */
    struct gpu_pair *hop[2][GPU_MAX]; /* KV, by the layer's parity and the step of the ring: its block is in this rank's memory */
    /* Numbers that pass between ranks: float32, or BF16 where the devices compute in BF16 anyway. Then own tokens go by way of
     * wire, others' wait in the rows of rank->sum before they are widened; sums go by way of the others' rows of rank->xn. */
    bool half;
    uint16_t *wire, *half_part; /* device; this rank's tokens [n, hidden]; what goes to part [n, hidden] */
    char *tokens;               /* pinned; this rank's rows [n, hidden] */
    int32_t *ids;               /* [n, topk] */
    float *weights;             /* [n, topk] */
    char *sums;                 /* pinned; this rank's partial sums of all tokens [all, hidden] */
    float *part;                /* device; another rank's sums of this rank's rows [n, hidden] */
    int row;                    /* number of this rank's first token */
    uint64_t steps;
    /* all_to_all.c: pairs sorted by expert, this rank's and those it computes; their numbers, known to all ranks */
    float *pack, *in, *pack_host, *in_host; /* [n * topk, hidden], [all * topk, hidden] */
    int32_t *offset, *offset_device;        /* [experts + 1] */
    int counted;                            /* layers; under the pipe's lock */
};
int exchange_open(struct rank *r, struct error *e); /* nothing for a single rank */
void exchange_close(struct rank *r);
void exchange_break(struct rank *r);
int exchange_row(const struct rank *r);
bool exchange_peers(const struct rank *r, const struct rank *q);
int exchange_tokens(struct rank *r, int layer);
int exchange_sums(struct rank *r, int layer);
/* Begins a step: made is set and, on the stream `send`, waited for. */
int exchange_announce(struct rank *r);
bool exchange_all_peers(const struct rank *r);
int exchange_wait(struct rank *r, struct rank *q, int part); /* until r may fetch that part of what q has announced in this step */
int exchange_sent(struct rank *r, int part);
int exchange_fetch(struct rank *r, struct rank *q, void *dst, const void *device, const void *host, size_t bytes);

int all_to_all_open(struct rank *r, struct error *e);
void all_to_all_close(struct rank *r);
int all_to_all_experts(struct rank *r, uint64_t *module, int layer);

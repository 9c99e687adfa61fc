#pragma once
/* Execution modes: where attention and experts of a prefill run, and how their weights get there. One file and one row
 * a mode. The decision which one is policy.h's. */
#include "engine/layer/block.h"
#include "engine/store/fetch.h"
#include "engine/store/place.h"
#include "engine/store/scan.h"

struct gpu_set; /* the devices of an engine; NULL where there are none */

/* What an engine hands to its modes. The decode workspace is separate, so that a prefill may let decodes run between its
 * chunks (yield). */
struct machine {
    const struct weights *w;
    struct exec *cpu;
    struct work *prefill, *decode; /* host memory */
    struct gpu_set *gpus;
    const char *trace;             /* file for the trace of a stream-loaded prefill; NULL: none */
    _Atomic uint64_t bytes_read;   /* of weights, since opening */
    uint64_t expert_bytes;         /* of one routed expert */
    struct residency known;        /* of the weights */
    struct scan scan;              /* damaged weights are found before they are used */
    struct place *place;           /* weights copied by memory node; NULL: as they are mapped */
    struct fetch *fetch;           /* weights do not fit in memory: reads ahead of their use; NULL: they do */
    struct work *guess;            /* with fetch: where the next layer's router is tried */
    uint8_t *touched;              /* [n_experts] scratch for counting */
};

struct prefill_job {
    struct kv *kv;
    const int32_t *tokens; /* [n], at positions pos .. pos + n - 1 */
    int pos, n;
    float *last;           /* [vocab] receives the logits of the last position; NULL: not wanted */
    int (*all)(void *ctx, int position, const float *logits); /* NULL, or each position's logits in order */
    void *all_ctx;
    const _Atomic int *cancel;
    /* Called at least once a layer with tokens (or layers) done; may run decode steps of other sessions. */
    void (*progress)(void *ctx, const char *what, double done, double total);
    void *progress_ctx;
};

struct mode {
    const char *name;
    /* Returns 0 or an error code with *e filled; the KV cache then holds garbage from pos on, which nobody reads. */
    int (*prefill)(struct machine *m, const struct prefill_job *j, struct error *e);
};
extern const struct mode mode_cpu, mode_slp, mode_dslp;

/* One token for each of n sessions (spans of one row, kv positions given): logits [n, vocab], and top [n], the largest of each. */
int decode_step(struct machine *m, const struct span *spans, const int32_t *tokens, int n, float *logits, int32_t *top, const _Atomic int *cancel,
                struct error *e);

/* Shared by modes: runs all layers over a batch on the CPU; rows of w->tokens and w->pos are filled in. Leaves the
 * residual stream in w->x. */
int layers_cpu(struct machine *m, struct work *w, const struct span *spans, int n_spans, int n, const _Atomic int *cancel,
               void (*layer_done)(void *ctx, int layer), void *ctx, struct error *e);
/* ERR_RUNTIME naming the layer when w->bad was set; 0 else. */
int check_finite(const struct weights *m, const struct work *w, struct error *e);
/* The same, and ERR_RUNTIME when one of the logits [vocab] is not finite. */
int check_logits(const struct weights *m, const struct work *w, const float *logits, struct error *e);
int op_error(int rc, struct error *e); /* text for an operation's code */

#pragma once
/* Execution modes: where attention and experts of a prefill run, and how their weights get there. One file and one row
 * a mode. The decision which one is policy.h's. */
#include "engine/cache/budget.h"
#include "engine/cache/fetch.h"
#include "engine/layer/block.h"
#include "engine/step/routing.h"
#include "engine/store/place.h"
#include "engine/store/scan.h"

struct trace;
struct gpu_set; /* the devices of an engine; NULL where there are none */
struct step;
struct split_policy;
struct score_policy;

/* What an engine hands to its modes. The engine's thread owns the processor: it alone uses the executor, the workspaces and
 * the scan. Steps have workspaces of their own, since they run between the layers of a prefill. */
struct machine {
    const struct weights *w;
    struct exec *cpu;
    struct work *prefill; /* host memory */
    struct gpu_set *gpus;
    bool alone;                /* steps keep off the devices */
    bool whole;                /* on devices layers stay whole: a blended prefill was asked for */
    struct step *step;         /* what runs steps, and what of it lies on devices */
    struct cost_machine *cost; /* this machine, corrected by what happened */
    struct cost_model *model;
    const struct split_policy *split;
    const struct score_policy *evict; /* which routed experts stay on a device */
    enum budget_ask expert_cache;     /* how many may */
    size_t expert_cache_n;
    struct gpu_stream *processor; /* virtual time: where the processor's operations are enqueued (cpu is its executor); nothing is
                                   * computed then, and no memory of the model read. NULL: they run when they are called */
    struct trace *trace;          /* what ran when; NULL: nobody asks */
    struct routing *routing;      /* what routers chose; NULL: nobody asks */
    _Atomic uint64_t bytes_read;  /* of weights, since opening; written by the owner */
    uint64_t expert_bytes;        /* of one routed expert */
    struct residency known;       /* of the weights */
    struct scan scan;             /* damaged weights are found before they are used */
    struct place *place;          /* weights copied by memory node; NULL: as they are mapped */
    struct fetch *fetch;          /* weights do not fit in memory: reads ahead of their use; NULL: they do */
    struct work *guess;           /* with fetch: where the next layer's router is tried */
    uint8_t *touched;             /* [n_experts] scratch for counting */
    /* For threads beside the owner: run has it call fn(arg), waits, and returns what that returned; wake has it look at its
     * prefill again. */
    int (*run)(void *owner, int (*fn)(void *arg), void *arg);
    void (*wake)(void *owner);
    /* So many first positions are in both caches bit by bit, since they have them from one place. By the owner. NULL: none are. */
    int (*same)(void *owner, const struct kv *a, const struct kv *b);
    void *owner;
};

/* A prefill: what is asked for, and how far it is. Whoever opened it keeps it until close. */
struct prefill_job {
    struct kv *kv;
    const int32_t *tokens; /* [n], at positions pos .. pos + n - 1 */
    int pos, n;
    float *last;                                              /* [vocab] receives the logits of the last position */
    int (*all)(void *ctx, int position, const float *logits); /* NULL, or each position's logits in order; by the owner */
    void *all_ctx;
    /* NULL, or what the last layer left of positions pos .. pos + n - 1, x [n, hidden]; by the owner. Of mode_cpu alone. */
    void (*hidden)(void *ctx, int pos, int n, const float *x);
    void *hidden_ctx;
    const _Atomic int *cancel;
    bool aligned;            /* batches on the processor end where prefill_end says; else they have as many rows as can be */
    int cut;                 /* for it */
    int device;              /* slp: of the set */
    int told;                /* tokens whose logits all has had: another mode that goes on does not send them again */
    int complete;            /* tokens whose rows in the KV cache are whole, in all layers; true after a failure as well */
    _Atomic int ready;       /* advance has something to do; else a thread works, which sets it and wakes the owner */
    _Atomic int done, total; /* of the mode's units; total 0: not known yet */
    void *state;             /* the mode's own */
};

enum { PREFILL_MORE = 1 };
struct mode {
    const char *name;
    const char *unit; /* what done and total count */
    /* Called by the owner of the processor. open begins; after an error nothing is left. advance, while j->ready, does a piece of
     * the work, at most a layer or the head of a few rows: PREFILL_MORE, 0 at the end, or an error code with *e filled; once *cancel is set
     * ERR_CANCELLED, as soon as a thread of its own has ended. Where the pieces end depends on the prompt alone. close follows the end or an error; what is not
     * complete of the KV cache then is garbage that nobody reads. To stop one, set *cancel and go on to its end, which is then near. */
    int (*open)(struct machine *m, struct prefill_job *j, struct error *e);
    int (*advance)(struct machine *m, struct prefill_job *j, struct error *e);
    void (*close)(struct machine *m, struct prefill_job *j);
};
extern const struct mode mode_cpu, mode_blend, mode_slp, mode_dslp;
size_t blend_least(const struct machine *m, int device, int pos, int n); /* bytes that mode_blend takes there at least, beside weights of layers */
size_t blend_wants(const struct machine *m, int pos, int n);             /* that it makes good use of on any device, beside these */

/* ERR_MODEL naming the layer when w->bad was set; 0 else. */
int check_finite(const struct weights *m, const struct work *w, struct error *e);
/* The same, and ERR_MODEL when one of the logits [vocab] is not finite. */
int check_logits(const struct weights *m, const struct work *w, const float *logits, struct error *e);
/* Hands on the logits [n, vocab] of tokens at .. at + n of a job; w: the workspace of the head that made them. */
int tell_logits(struct machine *m, struct prefill_job *j, const struct work *w, int at, int n, const float *logits, struct error *e);
/* Where a batch of at most `rows` that begins at position pos ends: at a multiple of rows, or before that at `cut`. */
int prefill_end(int rows, int cut, int pos);
/* Of tokens at .. at + n of a job: after how many of them the state is marked, 0: it is not there. */
int prefill_mark(const struct prefill_job *j, int at, int n);
/* Tokens at .. at + n, the next batch, are whole in the cache; of a long prompt every batch's state is kept. */
void prefill_complete(struct prefill_job *j, int at, int n, const struct kv_move *move);
int op_error(int rc, struct error *e); /* text for an operation's code */

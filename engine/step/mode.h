#pragma once
/* Prefill modes, and the context that the engine hands to execution. One file and one table row per mode. Does not choose the
 * mode: policy.h. */
#include "engine/cache/budget.h"
#include "engine/cache/fetch.h"
#include "engine/layer/block.h"
#include "engine/step/routing.h"
#include "engine/store/place.h"
#include "engine/store/scan.h"

struct trace;
struct gpu_set; /* the devices of an engine; NULL: none */
struct step;
struct split_policy;
struct score_policy;

/* Context of execution. The engine thread owns the CPU executor: only it uses the executor, the workspaces and the scan. Decode
 * has its own workspaces because batches run between the layers of a prefill. */
struct machine {
    const struct weights *w;
    struct exec *cpu;
    struct work *prefill; /* host memory */
    struct gpu_set *gpus;
    bool alone;                /* decode must not use devices */
    bool whole;                /* devices hold whole layers (a blended prefill was requested): no tensor parallelism */
    struct step *step;         /* runs decode batches and owns the weights on devices */
    struct cost_machine *cost; /* this machine, corrected by measurements */
    struct cost_model *model;
    const struct split_policy *split;
    const struct score_policy *evict; /* eviction policy of expert pools */
    enum budget_ask expert_cache;     /* size of the expert pools */
    size_t expert_cache_n;
    struct gpu_stream *processor; /* virtual time: queue of CPU operations (cpu is its executor); nothing is computed then and no weight is read. NULL: they run
                                   * immediately */
    struct trace *trace;          /* NULL: off */
    struct routing *routing;      /* routing trace; NULL: off */
    _Atomic uint64_t bytes_read;  /* weights read since opening; written by the engine thread */
    uint64_t expert_bytes;        /* of one routed expert */
    struct residency known;       /* weight states */
    struct scan scan;             /* finds damaged weights before their first use */
    struct place *place;          /* weights copied per NUMA node; NULL: used as mapped */
    struct fetch *fetch;          /* reads ahead if the weights do not fit in memory; NULL: they fit */
    struct work *guess;           /* with fetch: workspace for the next layer's router */
    uint8_t *touched;             /* [n_experts] scratch */
    /* For other threads: run has the engine thread call fn(arg), waits and returns its result; wake makes it poll its prefill. */
    int (*run)(void *owner, int (*fn)(void *arg), void *arg);
    void (*wake)(void *owner);
    /* Returns how many first positions of two caches are identical because they share storage. Engine thread. NULL: none. */
    int (*same)(void *owner, const struct kv *a, const struct kv *b);
    void *owner;
};

/* One prefill: request and progress. The opener keeps it until close. */
struct prefill_job {
    struct kv *kv;
    const int32_t *tokens; /* [n], at positions pos .. pos + n - 1 */
    int pos, n;
    float *last;                                              /* [vocab] receives the logits of the last position */
    int (*all)(void *ctx, int position, const float *logits); /* NULL, or receives each position's logits in order; engine thread */
    void *all_ctx;
    /* NULL, or receives the residual stream after the last layer, x [n, hidden]; engine thread. mode_cpu only. */
    void (*hidden)(void *ctx, int pos, int n, const float *x);
    void *hidden_ctx;
    const _Atomic int *cancel;
    bool aligned;            /* CPU batches end where prefill_end says; else they are as large as possible */
    int cut;                 /* argument of prefill_end */
    int device;              /* slp: rank of the device */
    int told;                /* tokens whose logits on_logits has received; a mode that continues the job does not repeat them */
    int complete;            /* tokens whose KV rows are complete in all layers; valid after a failure too */
    _Atomic int ready;       /* advance has work; else a thread works, which sets it and wakes the engine thread */
    _Atomic int done, total; /* in the mode's units; total 0: not known yet */
    void *state;             /* private to the mode */
};

enum { PREFILL_MORE = 1 };
struct mode {
    const char *name;
    const char *unit; /* of done and total */
    /* Called by the engine thread. open starts the prefill; after an error nothing is left open. advance, while j->is_ready, does at most
     * one layer or the head of a few rows. It returns PREFILL_MORE, 0 at the end, or an error code with *e filled; once *cancel is
     * set, ERR_CANCELLED after the mode's own thread has ended. Batch boundaries depend on the prompt alone. close follows the end or
     * an error; KV rows that are not complete then are garbage. To stop early, set *cancel and call advance until it returns an error. */
    int (*open)(struct machine *m, struct prefill_job *j, struct error *e);
    int (*advance)(struct machine *m, struct prefill_job *j, struct error *e);
    void (*close)(struct machine *m, struct prefill_job *j);
};
extern const struct mode mode_cpu, mode_blend, mode_slp, mode_dslp;
size_t blend_least(const struct machine *m, int device, int pos, int n); /* least bytes that mode_blend needs on the device, beside layer weights */
size_t blend_wants(const struct machine *m, int pos, int n);             /* bytes that it can use well on any device, beside these */

/* Returns ERR_MODEL naming the layer if w->bad was set, else 0. */
int check_finite(const struct weights *m, const struct work *w, struct error *e);
/* The same; also ERR_MODEL if one of logits [vocab] is not finite. */
int check_logits(const struct weights *m, const struct work *w, const float *logits, struct error *e);
/* Checks the logits [n, vocab] of tokens [at, at + n) of a job and passes them on; w: the workspace of the head that made them. */
int tell_logits(struct machine *m, struct prefill_job *j, const struct work *w, int at, int n, const float *logits, struct error *e);
/* Returns where a batch of at most `rows` starting at pos ends: at a multiple of rows, or earlier at `cut`. */
int prefill_end(int rows, int cut, int pos);
/* Returns after how many of the tokens [at, at + n) the state is marked; 0: not among them. */
int prefill_mark(const struct prefill_job *j, int at, int n);
/* Marks tokens [at, at + n) as complete in the cache; keeps the state after every batch but the last. */
void prefill_complete(struct prefill_job *j, int at, int n, const struct kv_move *move);
int op_error(int rc, struct error *e); /* fills e with the text for an operation's code */

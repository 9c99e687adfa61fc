#pragma once
/* Prefill modes, and the context that the engine hands to execution. One file and one table row per mode. Does not
 * choose the mode: policy.h. */
#include "base/exec_mode.h"
#include "engine/exec/image_rows.h"
#include "engine/exec/routing_trace.h"
#include "engine/exec/values_trace.h"
#include "engine/experts/budget.h"
#include "engine/experts/disk_prefetch.h"
#include "engine/experts/usage_profile.h"
#include "engine/layer/block.h"
#include "engine/transfer/resident_set.h"
#include "engine/weights/nan_scan.h"
#include "engine/weights/numa_copy.h"

struct trace;
struct gpu_set; /* the devices of an engine; NULL: none */
struct decode;
struct split_policy;
struct score_policy;

/* Context of execution. The engine thread owns the CPU executor: only it uses the executor, the workspaces and the
 * scan. Decode has its own workspaces because batches run between the layers of a prefill. */
struct runtime {
    const struct weights *w;
    struct exec *cpu;
    struct work *prefill_work; /* host memory */
    struct gpu_set *gpus;
    bool no_device_decode;     /* decode must not use devices */
    bool whole_layers;         /* devices hold whole layers (a blended prefill was requested): no tensor parallelism */
    struct decode *decode;     /* runs decode batches and owns the weights on devices */
    struct cost_machine *cost; /* this machine, corrected by measurements */
    struct cost_model *cost_model;
    const struct split_policy *split_policy;
    const struct score_policy *evict_policy; /* eviction policy of expert pools */
    struct usage_profile *usage;             /* how often prompts selected each routed expert; NULL: not counted */
    struct expert_cache expert_cache;        /* how devices choose the experts that they keep */
    char expert_cache_why[EXPERT_CACHE_WHY]; /* if --tune has measured them: what; else "" */
    /* virtual time: queue of CPU operations (cpu is its executor); nothing is computed then and no weight is read.
     * NULL: they run immediately */
    struct gpu_stream *cpu_queue;
    struct trace *trace;                 /* NULL: off */
    struct routing_trace *routing;       /* routing trace; NULL: off */
    struct values_trace *values;         /* trace of values; NULL: off */
    _Atomic uint64_t bytes_read;         /* weights read since opening; written by the engine thread */
    uint64_t expert_bytes;               /* bytes of one routed expert */
    int32_t image_token;                 /* as in struct text_rows */
    struct weight_state weight_state;    /* weight states */
    struct nan_scan scan;                /* finds damaged weights before their first use */
    struct numa_copy *numa_copy;         /* weights copied per NUMA node; NULL: used as mapped */
    struct disk_prefetch *disk_prefetch; /* reads ahead if the weights do not fit in memory; NULL: they fit */
    struct work *lookahead_work;         /* with fetch: workspace for the next layer's router */
    uint8_t *expert_touched;             /* [n_experts] scratch */
    /* For other threads: run has the engine thread call fn(arg), waits and returns its result; wake makes it poll its
     * prefill. */
    int (*run_on_engine)(void *owner, int (*fn)(void *arg), void *arg);
    void (*wake_engine)(void *owner);
    /* Returns how many first positions of two caches are identical because they share storage. Engine thread. NULL:
     * none. */
    int (*kv_common_rows)(void *owner, const struct kv *a, const struct kv *b);
    void *owner;
};

/* One prefill: request and progress. The opener keeps it until close. */
struct prefill_job {
    struct kv *kv;
    /* [n], at positions pos .. pos + n - 1; in memory the n_before tokens before pos precede them, as in struct
     * text_rows */
    const int32_t *tokens;
    int pos, n, n_before;
    struct image_rows images;
    /* [vocab] receives the logits of the last position */
    float *last_logits;
    /* NULL, or receives each position's logits in order; engine thread */
    int (*on_logits)(void *ctx, int position, const float *logits);
    void *on_logits_ctx;
    /* NULL, or receives the residual stream after the last layer, x [n, hidden]; engine thread. prefill_mode_cpu only.
     */
    void (*on_hidden)(void *ctx, int pos, int n, const float *x);
    void *on_hidden_ctx;
    const _Atomic int *cancel;
    bool is_aligned; /* CPU batches end where prefill_batch_end says; else they are as large as possible */
    int cut;         /* argument of prefill_batch_end */
    int device;      /* slp: rank of the device */
    /* prefill_mode_cpu: the next of the jobs that are read together with this one, in one batch; NULL: the last. At
     * most PREFILL_JOINED_MOST with prefill_work.rows tokens in all, all of at most BATCH_INVARIANT_ROWS tokens or all
     * of more, without images and on_logits. The first one is the driver's argument; it stops once all are cancelled.
     */
    struct prefill_job *joined;
    /* tokens whose logits on_logits has received; a mode that continues the job does not repeat them */
    int n_reported;
    int n_complete;          /* tokens whose KV rows are complete in all layers; valid after a failure too */
    _Atomic int is_ready;    /* advance has work; else a thread works, which sets it and wakes the engine thread */
    _Atomic int done, total; /* in the mode's units; total 0: not known yet */
    void *state;             /* private to the mode */
};

enum { PREFILL_JOINED_MOST = 16 };
enum { PREFILL_RING_SLOTS = 32 }; /* experts in the ring of a prefill that has memory to spare */
enum { PREFILL_MORE = 1 };
struct prefill_driver {
    enum exec_mode mode;
    /* Called by the engine thread. open starts the prefill; after an error nothing is left open. advance, while
     * j->is_ready, does at most one layer or the head of a few rows. It returns PREFILL_MORE, 0 at the end, or an error
     * code with *e filled; once *cancel is set, ERR_CANCELLED after the mode's own thread has ended. Batch boundaries
     * depend on the prompt alone. close follows the end or an error; KV rows that are not complete then are garbage. To
     * stop early, set *cancel and call advance until it returns an error. */
    int (*open)(struct runtime *m, struct prefill_job *j, struct error *e);
    int (*advance)(struct runtime *m, struct prefill_job *j, struct error *e);
    void (*close)(struct runtime *m, struct prefill_job *j);
    /* Between two calls of advance: pause leaves prefill_work to another prefill, until resume; close may also follow.
     * ERR_MEMORY: advance must come first. NULL: nothing of this prefill is in there then. */
    int (*pause)(struct runtime *m, struct prefill_job *j, struct error *e);
    void (*resume)(struct runtime *m, struct prefill_job *j);
    bool has_thread; /* works beside the engine thread: is_ready only at the end */
};
extern const struct prefill_driver prefill_mode_cpu, prefill_mode_blend, prefill_mode_slp, prefill_mode_dslp;
/* adds rows [n_layers, n_experts] that selected each expert to m->usage */
void prefill_count_experts(struct runtime *m, const uint32_t *rows);
/* Whether devices compute the prompt's products in FP8. A prompt whose logits are asked for keeps BF16, because its
 * logits are compared with an answer's. */
bool prefill_is_fp8(const struct runtime *m, const struct prefill_job *j);
/* Corrects the cost model's estimate of a device's link by a timed upload. seconds 0: no upload was timed, and nothing
 * changes. */
void prefill_observe_upload(struct runtime *m, int rank, double bytes, double seconds);

/* Returns ERR_MODEL naming the layer if first_bad (as in struct work) is set, else 0. */
int exec_check_finite(int first_bad, struct error *e);
int exec_check_logits(const float *logits, int vocab, struct error *e); /* ERR_MODEL if one is not finite */
enum { HEAD_ROWS = 16 };                                                /* most rows per call of prefill_head */
/* Computes the logits [n, vocab] of tokens [at, at + n) of a job on the CPU, checks them and passes them on. x [n,
 * hidden] is the output of the last layer; NULL: rows [row, row + n) of m->prefill_work. In virtual time nothing is
 * checked. Engine thread. */
int prefill_head(struct runtime *m, struct prefill_job *j, const float *x, int row, int at, int n, float *logits,
                 struct error *e);
/* The same for the last tokens of n jobs, in rows [0, n) of m->prefill_work; n at most HEAD_ROWS. */
int prefill_head_of_last(struct runtime *m, struct prefill_job *const *jobs, int n, float *logits, struct error *e);
/* Returns where a batch of at most `rows` starting at pos ends: at a multiple of rows, or earlier at `cut`. */
int prefill_batch_end(int rows, int cut, int pos);
/* Returns after how many of the tokens [at, at + n) the state is marked; 0: not among them. */
int prefill_mark_row(const struct prefill_job *j, int at, int n);
/* Marks tokens [at, at + n) as complete in the cache; keeps the state after every batch but the last. */
void prefill_complete(struct prefill_job *j, int at, int n, const struct kv_state_step *state_step);
/* Tokens [at, at + n) of a job. */
static inline struct text_rows prefill_text(const struct prefill_job *j, int at, int n) {
    return (struct text_rows){j->tokens + at, n, j->n_before + at, j->images.token};
}
/* Writes the residual stream of tokens [at, at + n) of a job before the first layer to x [n, hidden], on the CPU:
 * embeddings, those of n-grams, and rows of images. Uses scratch of m->prefill_work. Engine thread. */
int prefill_embed(struct runtime *m, const struct prefill_job *j, float *x, int at, int n);
/* ERR_RUNTIME: the n_before tokens before position pos are fewer than embeddings of n-grams depend on. */
int exec_check_before(const struct config *c, int pos, int n_before, struct error *e);
int exec_op_error(int rc, struct error *e); /* fills e with the text for an operation's code */

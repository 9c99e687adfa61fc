#pragma once
/* Stream-loading prefill (SLP; DSLP on several devices): a prompt runs layer by layer while the weights of the next modules are
 * uploaded from the only copy, in host memory. Paper A, sections 3.1 and 3.2. Decides when and where parts run; layer/ computes them. */
#include "engine/layer/block.h"
#include "engine/pipe/pin.h"
#include "gpu/gpu.h"

/* The devices of an engine. */
struct gpu_set {
    struct gpu_spec spec;
    struct gpu *gpu[GPU_MAX];
    int n;
    _Atomic bool lost; /* a device failed for good: no more GPU prefill */
    struct pin *pin;   /* pins the weights; NULL in virtual time or without weights */
    size_t most[3];    /* bytes of the largest attention block, FFN and expert in a slot; 0: not measured yet */
};
/* Opens the devices in list (--gpus) and starts to pin the mapped weights. 0 with *s NULL for "none". ERR_USAGE, ERR_RUNTIME, ERR_MEMORY. */
int gpu_set_open(struct gpu_set **s, const char *list, const struct weights *w, struct error *e);
int gpu_set_open_spec(struct gpu_set **s, const struct gpu_spec *spec, const struct weights *w, struct error *e); /* for spec->n > 0 devices */
void gpu_set_close(struct gpu_set **s);                                                                           /* before weights_close */
bool gpu_set_pinned(const struct gpu_set *s, const void *p, size_t size);

/* Memory plan of a prompt on a device. Pure. */
struct pipe_need {
    int n, total;                     /* rows of this rank; positions in the KV cache, prefix included */
    int all;                          /* tokens of all ranks */
    int experts;                      /* routed experts per layer that this rank computes */
    size_t expert_bytes, dense_bytes; /* largest expert; largest other module */
    size_t state_bytes;               /* this rank's states of a layer */
    size_t kv_row_bytes;              /* one position in the layer with the largest rows */
    size_t reserve;                   /* workspace that operations allocate themselves */
    int chunk, ring;                  /* > 0: forced */
};
struct pipe_plan {
    int chunk;    /* rows per attention chunk */
    int ring;     /* slots of the expert ring */
    int dense;    /* slots of the other modules: as many as 1 GB holds, at least 2 */
    size_t bytes; /* total; after ERR_MEMORY the smallest possible total */
    size_t own;   /* the part in the run's own buffers; the rest is left to operations */
};
/* Plans as many slots as a layer has experts, if they fit. Short of memory it takes smaller chunks first, then fewer slots, down to
 * two. ERR_MEMORY says need and have. */
int pipe_plan(struct pipe_plan *p, const struct config *c, const struct pipe_need *need, size_t have, struct error *e);
/* Returns whether n tokens select at most about three quarters of a layer's experts: then waiting for the router and loading only
 * those is faster than loading ahead. */
bool pipe_few(const struct config *c, int n);

/* bytes per row of a key selection that later layers reuse; 0: there is none */
size_t pipe_chosen_bytes(const struct config *c);
/* size of a partial attention output before the merge: up to `chunk` rows, all heads */
size_t pipe_part_floats(const struct config *c, int chunk);

/* Ranges of host memory, merged into runs that one copy each uploads: ranges that touch or overlap become one. Sorts in place and
 * returns the number of runs. */
struct pipe_range {
    const char *host;
    size_t bytes;
    const void **field; /* the pointer field that the range belongs to */
    size_t at;          /* set by pipe_runs: offset in the slot, 256-byte phase as on the host */
    size_t row, pitch;  /* 0: contiguous; else rows of `row` bytes, `pitch` apart on the host: a run of its own */
};
struct pipe_run {
    const char *host;
    size_t bytes, at;  /* at: offset in the slot, where rows are contiguous */
    size_t row, pitch; /* as in pipe_range */
};
int pipe_runs(struct pipe_range *r, int n, struct pipe_run *runs, size_t *bytes);
/* Copies the fields of these modules from src to view, both struct layer (MODULE_EXPERT: struct expert), and lists their host memory
 * with the addresses of the pointers in view, which the caller then points to device memory. Returns the number of ranges. */
enum { MODULE_RANGES = 2 * PARAMS_MAX };
int module_ranges(const struct config *c, int layer, unsigned modules, const void *src, void *view, struct pipe_range *out);

struct trace;
struct pipe_job {
    const struct weights *w;
    struct gpu_set *set;
    int ranks;                    /* 1: SLP; more: DSLP on that many devices */
    int device;                   /* first device in the set */
    const struct kv_layer *cache; /* [n_layers] the session's cache, host memory */
    struct kv_move move;          /* states in that cache */
    int pos, n;                   /* new positions pos .. pos + n - 1 */
    const int32_t *tokens;        /* [n]; NULL in virtual time */
    /* Writes the embeddings of new tokens row .. row + n to out [n, hidden]; NULL in virtual time. */
    int (*embed)(void *ctx, float *out, int row, int n);
    /* Receives n final residual rows starting at `row`, which is at least `first`. NULL: not wanted. */
    int (*result)(void *ctx, const float *x, int row, int n);
    int first;
    /* NULL, or checks weights before they are sent: experts ids[0..n) of a layer, or its other weights (ids NULL). An error ends the
     * run. Called on loader threads. */
    int (*check)(void *ctx, int layer, const int32_t *ids, int n, struct error *e);
    void *ctx;
    const _Atomic int *cancel;
    void (*progress)(void *ctx, const char *what, double done, double total); /* on the caller's thread; may block */
    void *progress_ctx;
    const char *trace;  /* trace file of this run; NULL: none */
    struct trace *into; /* trace that receives the spans at the end; NULL: none */
};
struct pipe_stats {
    struct pipe_plan plan;
    double seconds; /* wall time; virtual time on virtual devices */
    /* with a trace, of rank 0: busy seconds; load and compute overlapping; first event to last */
    double load, compute, exchange, both, span;
    uint64_t h2d, d2h, exchanged; /* bytes enqueued; valid after a failure too */
};
/* Returns the bytes that must be free on each device, with the smallest ring. */
size_t pipe_least(const struct pipe_job *j);
/* Runs the prefill on the caller's thread; returns 0 or the first failure of any rank. Frees everything on the devices. A trace that
 * cannot be written is a warning. */
int pipe_prefill(const struct pipe_job *j, struct pipe_stats *stats, struct error *e);

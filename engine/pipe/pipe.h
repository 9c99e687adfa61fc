#pragma once
/* Stream-loading prefill: a prompt runs layer by layer on one or more devices while the weights of the next modules stream
 * in from the one copy in host memory. Paper A, sections 3.1 and 3.2. The model is engine/layer's; here is only when and
 * where its parts run. */
#include "engine/layer/block.h"
#include "engine/pipe/pin.h"
#include "gpu/gpu.h"

/* The devices of an engine. */
struct gpu_set {
    struct gpu_spec spec;
    struct gpu *gpu[GPU_MAX];
    int n;
    _Atomic bool lost; /* a device failed for good: prefill on the processor from then on */
    struct pin *pin;   /* of the weights; NULL in virtual time, or without any */
    size_t most[3];    /* bytes of the largest attention half, feed-forward and expert in a slot; 0: not looked at yet */
};
/* list as --gpus. 0 with *s NULL for "none". Begins to pin the mapped weights. ERR_USAGE, ERR_RUNTIME, ERR_MEMORY. */
int gpu_set_open(struct gpu_set **s, const char *list, const struct weights *w, struct error *e);
int gpu_set_open_spec(struct gpu_set **s, const struct gpu_spec *spec, const struct weights *w, struct error *e); /* the same, of spec->n > 0 devices */
void gpu_set_close(struct gpu_set **s);                                                                           /* before weights_close */
bool gpu_set_pinned(const struct gpu_set *s, const void *p, size_t size);

/* How a prompt is laid out on a device. Pure: numbers in, numbers out. */
struct pipe_need {
    int n, total;                     /* rows of this rank; positions in the KV cache, prefix included */
    int all;                          /* tokens of all ranks, whose experts this rank computes */
    int experts;                      /* routed experts of a layer that this rank computes */
    size_t expert_bytes, dense_bytes; /* of the largest expert and the largest other module */
    size_t state_bytes;               /* of the states of a layer, all that a rank has of it */
    size_t kv_row_bytes;              /* of one position in the layer that keeps most of it */
    size_t reserve;                   /* workspace that operations take for themselves */
    int chunk, ring;                  /* > 0: forced */
};
struct pipe_plan {
    int chunk;    /* rows at once in attention */
    int ring;     /* slots of the expert ring */
    int dense;    /* slots for the other modules: what 1 GB holds, at least 2 */
    size_t bytes; /* all of it; after ERR_MEMORY what the least would have been */
    size_t own;   /* of these, in buffers of the run's own; the rest is left to operations */
};
/* As many slots as a layer has experts while they fit; when memory is short first smaller chunks, then fewer slots, down to
 * two. ERR_MEMORY says need and have. */
int pipe_plan(struct pipe_plan *p, const struct config *c, const struct pipe_need *need, size_t have, struct error *e);
/* So few tokens that they choose some three quarters of a layer's experts or less: better to wait for the router, and load
 * only those, than to load ahead of it. */
bool pipe_few(const struct config *c, int n);

/* Of a row's choice of keys, where it must last from layer to layer. */
size_t pipe_chosen_bytes(const struct config *c);
/* A piece of attention before it is merged: so many rows at a time, of all heads. */
size_t pipe_part_floats(const struct config *c, int chunk);

/* Runs of host memory that one copy takes: ranges that touch or overlap become one. Sorts in place, returns the number. */
struct pipe_range {
    const char *host;
    size_t bytes;
    const void **field; /* the pointer that the range came from */
    size_t at;          /* of the run it fell into: its offset in the slot, 256-byte phase as on the host */
    size_t row, pitch;  /* 0: it lies in one piece; else rows of so many bytes, so far apart on the host: a run of its own */
};
struct pipe_run {
    const char *host;
    size_t bytes, at;  /* there, without gaps */
    size_t row, pitch; /* as a range's */
};
int pipe_runs(struct pipe_range *r, int n, struct pipe_run *runs, size_t *bytes);
/* Copies the fields of these modules from src to view, both struct layer (MODULE_EXPERT: struct expert), and lists the host
 * memory behind them with the addresses of their pointers in view, where the caller puts the device's. Returns how many. */
enum { MODULE_RANGES = 2 * PARAMS_MAX };
int module_ranges(const struct config *c, int layer, unsigned modules, const void *src, void *view, struct pipe_range *out);

struct trace;
struct pipe_job {
    const struct weights *w;
    struct gpu_set *set;
    int ranks;                    /* 1: SLP; more: DSLP on that many devices */
    int device;                   /* of the set: the first of them */
    const struct kv_layer *cache; /* [n_layers] of the session, host memory */
    struct kv_move move;          /* in that cache */
    int pos, n;                   /* the new positions */
    const int32_t *tokens;        /* [n] at these; NULL in virtual time */
    /* Fills out [n, hidden] with the embeddings of new tokens row .. row + n; NULL in virtual time. */
    int (*embed)(void *ctx, float *out, int row, int n);
    /* Receives the final residual rows; n rows from row on. NULL: not wanted. Rows below `first` are not sent. */
    int (*result)(void *ctx, const float *x, int row, int n);
    int first;
    /* NULL, or whether weights may be sent, before they are: the experts ids[0..n) of a layer, or all others of it (ids NULL). 0,
     * or an error that ends the run. On the ranks' own threads. */
    int (*check)(void *ctx, int layer, const int32_t *ids, int n, struct error *e);
    void *ctx;
    const _Atomic int *cancel;
    void (*progress)(void *ctx, const char *what, double done, double total); /* on the caller's thread; may take its time */
    void *progress_ctx;
    const char *trace;  /* file for the trace of this run, NULL: none */
    struct trace *into; /* or a trace that its spans join when it is over, NULL: none */
};
struct pipe_stats {
    struct pipe_plan plan;
    double seconds; /* wall; virtual where time is */
    /* with trace, of rank 0: how long each was busy; load and compute at once; from the first event to the last */
    double load, compute, exchange, both, span;
    uint64_t h2d, d2h, exchanged; /* bytes enqueued; these three after a failure, too */
};
/* Bytes that must be free on each device of such a run, with the smallest ring. */
size_t pipe_least(const struct pipe_job *j);
/* On the caller's thread; 0, or the first failure of any rank. Nothing of the run is left on the devices. A trace that cannot
 * be written is a warning: the prompt has been read. */
int pipe_prefill(const struct pipe_job *j, struct pipe_stats *stats, struct error *e);

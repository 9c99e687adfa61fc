#pragma once
/* Stream-loading prefill (SLP; DSLP on several devices): a prompt runs layer by layer while the weights of the next
 * modules are uploaded from the only copy, in host memory. Paper A, sections 3.1 and 3.2. Decides when and where parts
 * run; layer/ computes them. */
#include "engine/exec/image_rows.h"
#include "engine/layer/block.h"
#include "engine/layer/work_open.h"
#include "engine/transfer/copy_runs.h"
#include "engine/transfer/gpu_set.h"
#include "engine/transfer/resident_set.h"

/* Memory plan of a prompt on a device. Pure. */
struct slp_need {
    int n_rows, n_positions;          /* rows of this rank; positions in the KV cache, prefix included */
    int n_tokens;                     /* tokens of all ranks */
    int n_experts;                    /* routed experts per layer that this rank computes */
    size_t expert_bytes, dense_bytes; /* largest expert; largest other module */
    size_t state_bytes;               /* this rank's states of a layer */
    size_t kv_row_bytes;              /* one position in the layer with the largest rows */
    size_t reserve;                   /* workspace that operations allocate themselves */
    int chunk, ring;                  /* > 0: forced */
};
struct slp_plan {
    int chunk_rows;   /* rows per attention chunk */
    int ring_slots;   /* slots of the expert ring */
    int dense_slots;  /* slots of the other modules: as many as 1 GB holds, 2 to 8 */
    size_t bytes;     /* total; after ERR_MEMORY the smallest possible total */
    size_t own_bytes; /* the part in the run's own buffers; the rest is left to operations */
};
/* Returns the bytes with chunks of up to 2,048 rows and a ring of that many slots. */
size_t slp_plan_bytes(const struct config *c, const struct slp_need *need, int slots);
/* Plans as many slots as a layer has experts, if they fit. Short of memory it takes fewer slots, down to eight, then
 * smaller chunks, then fewer slots, down to two. ERR_MEMORY says need and have. */
int slp_plan(struct slp_plan *p, const struct config *c, const struct slp_need *need, size_t have, struct error *e);
/* Returns whether n tokens select at most about three quarters of a layer's experts: then waiting for the router and
 * loading only those is faster than loading ahead. */
bool slp_selects_few(const struct config *c, int n);

/* Returns the bytes of a workspace's buffer for a rank's n rows of all new tokens; 0: each chunk has its own. is_split:
 * other ranks have the other tokens. */
size_t slp_row_bytes(const struct work_row *k, const struct config *c, size_t n, size_t all, bool is_split);
/* Returns the size of a partial attention output before the merge: up to `chunk` rows, all heads. */
size_t slp_partial_floats(const struct config *c, int chunk);

struct trace;
struct slp_job {
    const struct weights *w;
    struct gpu_set *set;
    int ranks;                       /* 1: SLP; more: DSLP on that many devices */
    int device;                      /* first device in the set */
    const struct kv_layer *cache;    /* [n_layers] the session's cache, host memory */
    struct kv_state_step state_step; /* states in that cache */
    int pos, n;                      /* new positions pos .. pos + n - 1 */
    struct image_rows images;
    const int32_t *tokens; /* [n]; NULL in virtual time */
    /* Writes the embeddings of new tokens row .. row + n to out [n, hidden]; NULL in virtual time. */
    int (*embed)(void *ctx, float *out, int row, int n);
    /* Likewise their embeddings of n-grams of all layers, [n, config_ngram_floats()]. */
    int (*gather_ngrams)(void *ctx, float *out, int row, int n);
    /* Receives n final residual rows starting at `row`, which is at least `first`. NULL: not wanted. */
    int (*on_rows)(void *ctx, const float *x, int row, int n);
    int first_row;
    bool is_fp8; /* products in FP8 */
    /* NULL, or by device in the set: weights that stay there during the run and are not uploaded */
    const struct resident_set *resident;
    /* NULL, or checks weights before they are sent: experts ids[0..n) of a layer, or its other weights (ids NULL). An
     * error ends the run. Called on loader threads. */
    int (*check_weights)(void *ctx, int layer, const int32_t *ids, int n, struct error *e);
    void *ctx;
    const _Atomic int *cancel;
    void (*progress)(void *ctx, int done, int total); /* layers; on the caller's thread; may block */
    void *progress_ctx;
    uint32_t *expert_rows;    /* NULL, or [n_layers, n_experts] receives the rows that selected each expert */
    struct gpu_event *after;  /* NULL, or a timed event that the run starts after, in virtual time */
    const char *trace_path;   /* trace file of this run; NULL: none */
    struct trace *merge_into; /* trace that receives the spans at the end; NULL: none */
};
struct slp_stats {
    struct slp_plan plan;
    double seconds; /* wall time; virtual time on virtual devices */
    /* with a trace, of rank 0: busy seconds; load and compute overlapping; first event to last */
    double load_s, compute_s, overlap_s, span_s;
    uint64_t h2d, d2h, exchanged;  /* bytes enqueued; valid after a failure too */
    double upload_bytes, upload_s; /* of a typical upload; 0: several ranks, or too few were timed */
};
/* Returns why a prompt cannot be split over devices; NULL: it can. Pure. */
const char *slp_why_unsplittable(const struct config *c);
/* Returns the bytes that must be free on each device, with the smallest ring; and the bytes that a run can use well,
 * without a ring if all experts are resident. */
size_t slp_min_bytes(const struct slp_job *j);
size_t slp_good_bytes(const struct slp_job *j, bool has_ring);
/* Runs the prefill on the caller's thread; returns 0 or the first failure of any rank. Frees everything on the devices.
 * A trace that cannot be written is a warning. */
int slp_prefill(const struct slp_job *j, struct slp_stats *stats, struct error *e);

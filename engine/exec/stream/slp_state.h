#pragma once
/* One SLP run: ranks, each with loader, compute and unloader threads, a stream for each thread, and two rings of
 * modules. slp_fail wakes everything that waits. */
#include <pthread.h>

#include "engine/exec/stream/ring.h"
#include "engine/exec/stream/slp.h"
#include "engine/transfer/trace.h"
#include "gpu/op.h"

/* A range of new tokens owned by a rank: positions pos + [first, first + n), its rows [row, row + n). */
struct stripe {
    int first, n, row;
};

enum { STRIPES = 2 };
/* State rows of a layer. On the device: after each stripe, at the mark, before the first token. On the host: after the
 * last stripe, at the mark, and per stripe for a rank that continues it without peer access. */
enum {
    STATE_STRIPE,
    STATE_MARK = STRIPES,
    STATE_BEFORE,
    RANK_STATES,
    HOST_LAST = 0,
    HOST_MARK,
    HOST_STRIPE,
    HOST_STATES = HOST_STRIPE + STRIPES
};
struct slp_rank {
    struct slp_run *p;
    int id;
    struct gpu *g;
    unsigned n_cleared; /* gpu_n_cleared() when the run began */
    struct ledger *ledger;
    struct gpu_stream *load_stream, *compute_stream, *unload_stream;
    pthread_t thread[3];
    int n_threads;
    struct stripe stripe[STRIPES];
    int n_stripes, n;              /* rows of all stripes */
    int first_expert, last_expert; /* routed experts [first, last) */
    struct slp_plan plan;
    struct ring dense, experts;
    const struct resident_set *resident; /* weights of this device that are not uploaded; NULL: none */
    /* [n_layers, experts of this rank] selected by any token; NULL: all are loaded */
    uint8_t *selected;
    int n_selected_layers; /* layers with valid `selected`; under slp_run.lock */
    /* [experts of this rank] scratch of the loader for job->check_weights; NULL without one */
    int32_t *check_ids;
    struct work work; /* of a chunk */
    /* device memory of all rows of this rank, and for the experts of all tokens: the buffers that outlive a chunk */
    struct work rows;
    struct weights *merge_weights; /* view of the weights in merge_mem, which merge several residual streams */
    char *merge_mem;
    /* DSLP: partial sums of all tokens [all, config_row_width()] */
    float *sum;
    /* OP_SORT: [experts + 1] where each expert's pairs begin; [all * topk] token of each pair */
    int32_t *offset, *token;
    float *weight; /* [all * topk] weight of each pair */
    /* pinned, [experts + 2]: a copy of offset, then first_bad of the workspace (slp_first_bad) */
    int32_t *host_offset;
    /* by layer parity: KV planes of a layer on the device, all positions */
    char *kv_mem[2];
    struct kv_layer *cache; /* [n_layers]: views for struct span */
    /* kvring.c, by layer parity, use layer / 2 + 1: a layer's KV has been computed; downloaded; read by attention */
    struct gpu_pair *kv_computed[2], *kv_downloaded[2], *kv_read[2];
    struct gpu_pair *state_computed[2][STRIPES]; /* the state after a stripe is ready */
    char *kv_host[2];                            /* pinned: this rank's rows of a layer */
    float *deep;                                 /* pinned: rows of images that are added to a chunk, or NULL */
    struct stage *stage;                         /* feeds the load stream */
    struct expert_params expert_params;          /* the loader's layer */
    struct pace pace_load, pace_main;
    struct gpu_event *last_event[3]; /* the last work of each stream, for the run time */
    struct exchange *exchange;
};

struct slp_run {
    const struct slp_job *job;
    const struct config *c;
    struct slp_rank rank[GPU_MAX];
    int n_ranks;
    _Atomic int stop; /* cancel flag of all streams */
    pthread_mutex_t lock;
    pthread_cond_t cond; /* a slot was freed, a layer is done, or something failed */
    struct error error;
    int layers_done; /* by all ranks */
    int rank_layers[GPU_MAX];
    _Atomic uint64_t h2d, d2h, exchanged;
    struct trace *trace;
};

/* The host's copy of r->work.first_bad, downloaded with a layer's group sizes. Not negative: a value was not finite. */
static inline int32_t *slp_first_bad(const struct slp_rank *r) {
    return &r->host_offset[r->last_expert - r->first_expert + 1];
}

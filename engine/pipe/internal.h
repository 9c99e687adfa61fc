#pragma once
/* One run of the pipe: ranks, each with a loader, a compute and an unloader thread, a stream for each, and two rings of
 * modules. Everything that waits can be woken by pipe_fail. */
#include <pthread.h>

#include "engine/pipe/ring.h"
#include "engine/pipe/trace.h"
#include "gpu/ops.h"

/* A stretch of new tokens that a rank owns: positions pos + [first, first + n), its rows [row, row + n). */
struct stripe {
    int first, n, row;
};

enum { STRIPES = 2 };
/* A rank's states of a layer, rows of its planes: after each of its stripes, at the mark, before the first. On the host: after the
 * last stripe, at the mark, and those that another rank goes on from where it cannot reach this one's memory. */
enum { STATE_STRIPE, STATE_MARK = STRIPES, STATE_BEFORE, RANK_STATES, HOST_LAST = 0, HOST_MARK, HOST_STRIPE, HOST_STATES = HOST_STRIPE + STRIPES };
struct rank {
    struct pipe *p;
    int id;
    struct gpu *g;
    struct gpu_stream *load, *main, *out;
    pthread_t thread[3];
    int n_threads;
    struct stripe stripe[STRIPES];
    int n_stripes, n; /* rows of all stripes */
    int first, last;  /* routed experts [first, last) */
    struct pipe_plan plan;
    struct ring dense, experts;
    uint8_t *chosen;    /* [n_layers, experts of this rank] by any token; NULL: all are loaded */
    int n_chosen;       /* layers; under the pipe's lock */
    int32_t *check_ids; /* [experts of this rank] the loader's, for the job's check; NULL without one */
    struct work work;   /* of a chunk */
    /* device memory of all rows of this rank, and of all tokens for the experts */
    float *x, *xn, *cos, *sin, *far_cos, *far_sin, *shared_weight;
    float *streams, *post; /* of several residual streams, as in struct work; what makes one of them in the end: close, in close_mem */
    struct weights *close;
    char *close_mem;
    int32_t *ids, *pos, *tokens, *chosen_keys; /* chosen_keys: only where layers take over a choice, else a chunk's */
    float *weights;
    float *sum; /* DSLP: partial sums of all tokens [all, hidden] */
    int32_t *offset, *token;
    float *weight;
    int32_t *host_offset;   /* pinned, [experts + 2]; the last one is the mark of a number that is not finite */
    char *kv_mem[2];        /* by the layer's parity: its planes of the cache on the device, of all positions */
    struct kv_layer *cache; /* [n_layers]: views for struct span */
    /* kvring.c, by the layer's parity, its (layer / 2 + 1)th use: KV of a layer made; in pinned memory; read by attention */
    struct gpu_pair *kv_on[2], *kv_off[2], *kv_read[2];
    struct gpu_pair *state_on[2][STRIPES]; /* the state after a stripe is there */
    char *kv_host[2];                      /* pinned: this rank's rows of a layer */
    struct stage *stage;                   /* feeds load */
    struct pace pace_load, pace_main;
    struct gpu_event *timed[3]; /* the last thing each stream did, for the time that the run took */
    struct exchange *exchange;
};

struct pipe {
    const struct pipe_job *job;
    const struct config *c;
    struct rank rank[GPU_MAX];
    int n_ranks;
    _Atomic int stop; /* every stream's cancel */
    pthread_mutex_t lock;
    pthread_cond_t cond; /* a slot came free, a layer is done, something failed */
    struct error error;
    int running;     /* threads */
    int layers_done; /* by all ranks */
    int rank_layers[GPU_MAX];
    _Atomic uint64_t h2d, d2h, exchanged;
    struct trace *trace;
};

/* The first failure counts; wakes everything that waits. code may be an operation's; the text then is the device's. */
int pipe_fail(struct pipe *p, int code, const struct error *e);
int pipe_check(struct rank *r, int rc); /* 0 stays 0; else pipe_fail with the rank's device error */
void pipe_layer_done(struct rank *r, int layer);

void *loader_thread(void *rank);
/* To the device on the loader's stream, where it is enqueued on return. */
int loader_send(struct rank *r, char *dst, const char *src, size_t size);
void *compute_thread(void *rank);
void *unloader_thread(void *rank);
/* Device memory and streams of a rank. Drain all ranks before closing the first; close frees whatever is there. */
int rank_open(struct rank *r, struct error *e);
int rank_drain(struct rank *r); /* whether all went well */
void rank_close(struct rank *r);

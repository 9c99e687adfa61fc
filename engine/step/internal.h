#pragma once
/* What the files of step/ share: devices that hold layers, micro-batches, and copies of caches on devices. */
#include <pthread.h>

#include "engine/cache/predict.h"
#include "engine/cache/score.h"
#include "engine/layer/attention.h" /* TRY */
#include "engine/pipe/pipe.h"
#include "engine/pipe/trace.h"
#include "engine/step/share.h"
#include "engine/step/step.h"
#include "gpu/ops.h"

/* All of a layer but its routed experts on a device: one piece of memory, and the layer as seen from there. draft.c: a draft's routed
 * experts, another; draft NULL: not there. */
struct step_layer {
    char *mem, *draft_mem;
    struct layer view;
    struct expert *draft; /* [n_experts] */
    size_t draft_bytes;
};

/* Attention halves and shared experts of steps of one shape, recorded layer by layer (gpu.h's graphs): which rows of which session
 * they are for stands in the device's places. graph.c */
enum step_part { STEP_HALF, STEP_ROUTE, STEP_SHARED, STEP_PARTS }; /* ROUTE: tensor alone, where it does not follow its half at once */
enum { STEP_SHAPES = 8 };
struct step_shape {
    int micro, n, row0, total;            /* rows of the micro-batch there; of those before it; of the step */
    uint8_t rows[STEP_ROWS];              /* of each of its spans: one, or with those that a draft guessed; then zeros */
    uint32_t few;                         /* bit k: rows of span k see few keys (block_few_keys), else more */
    int keys;                             /* that a row may see at most */
    bool router;                          /* its logits go to host memory, too */
    uint64_t used;                        /* the last step of this shape; 0: none */
    bool off;                             /* it cannot be recorded */
    struct gpu_graph **graph[STEP_PARTS]; /* [n_layers] NULL: not yet */
};

/* What a token adds to caches, plane by plane: to a session's, or to a rank's part of one. added.c */
struct step_cache {
    const struct config *c;
    enum dtype kv;
    int planes[CONFIG_MAX_LAYERS]; /* of a layer's cache */
    struct cache_desc desc[CONFIG_MAX_LAYERS][CACHE_PLANES];
    /* [n_layers + 1], of the layers before: bytes that a token adds to planes of one row a token, bytes of a row of the others, and
     * of a state. least_every: tokens of such a row, in the plane that has most of them; 0: no plane has. */
    size_t *row_at, *made_at, *state_at;
    int least_every;
};

struct step_experts;
/* One device and the layers [first, last) whose attention halves and dense feed-forwards it holds. */
struct step_device {
    struct step *s;
    struct gpu *g;
    int rank, first, last;
    const struct config *c;   /* the model, or a rank's share of it: share.h */
    struct config *own;       /* that; else NULL */
    struct share share;       /* with s->tensor */
    struct step_cache *cache; /* of what it keeps: the step's, or (own) of its share */
    float *part[STEP_MICROS]; /* tensor: [STEP_ROWS, hidden] what this rank adds to a sum */
    char *host_rows;          /* pinned: where `rows` go to; with layers of its own they are at their place among those of all */
    struct gpu_stream *main;
    _Atomic int stop;         /* main's cancel */
    struct step_layer *layer; /* [n_layers] */
    size_t weights, loaded;   /* bytes of the weights that it is to hold, and holds now */
    size_t held;              /* these and the caches' */
    struct work work[STEP_MICROS];
    char *rows; /* what a step adds to caches, on its way to host memory: added.c */
    bool head;  /* final norm and output head are here */
    char *head_mem, *close_mem;
    struct weights *head_weights; /* as the head sees them, and block_close behind the last layer */
    bool draft_full;              /* no further layer of a draft comes here: draft.c */
    int each;                     /* routed experts of a layer that it is to hold: experts.h */
    char experts_why[160];        /* so many */
    struct step_experts *experts; /* NULL: none now */
    struct score score;           /* what each is worth, whether it is here or not */
    struct predict predict;       /* what their routers said ahead, and how right that was */
    void *score_mem, *predict_mem;
    float *x, *xn, *logits; /* [STEP_ROWS, hidden] twice, [STEP_ROWS, vocab]: the head's */
    /* graph.c: [STEP_MICROS, STEP_ROWS, n_layers, CACHE_PLANES] there, and pinned; of the step that runs, NULL: launched piece by piece */
    struct op_place *places, *host_places;
    struct step_shape shape[STEP_SHAPES], *now[STEP_MICROS];
    /* mirror.c: caches of sessions on their way from memory that is not pinned. Opened with the first; fill NULL: not now. */
    struct gpu_stream *fill;
    struct stage *stage;
    struct gpu_number *filled; /* main waits for it */
    uint32_t n_filled;
};

/* Rows that go through the layers on their own: first those whose caches are on devices too, as far as layers are there, then
 * those of the processor. Counts are of the current step. */
struct step_micro {
    int n, n_dev, row0; /* rows; of them on devices; rows of the micro-batches before this one */
    int n_spans, n_dev_spans;
    struct span spans[STEP_ROWS];              /* of all rows: planes in host memory */
    struct span dev[STEP_ROWS];                /* of the first n_dev rows: planes on devices */
    const struct step_mirror *copy[STEP_ROWS]; /* whose those are */
    struct span rest[STEP_ROWS];               /* of the others, counted from the first of these */
    int source[STEP_ROWS];                     /* the caller's span */
    struct work host;                          /* pinned where there are devices; rows [0, n_dev) of x: what the experts add to these */
    /* Hand-off. Devices write `arrived` when rows are in host memory, and wait for `answered`: their experts are added. */
    struct gpu_number *arrived, *answered;
    uint32_t n_arrived, n_wanted, n_answered; /* written, waited for and written so far, as enqueued or done */
    uint32_t sent[2];                         /* by the layer's parity: the number that says that its rows are in host memory */
    struct gpu_number *part[GPU_MAX];         /* tensor: what a rank adds to the n_parts-th sum is in host memory */
    uint32_t n_parts;
};

/* blocks.c: rows of all layers for step.block positions, on all devices. */
struct step_block {
    struct step_slab *slab;
    int readers; /* copies; 0: free */
};
struct step_slab {
    struct step_slab *next;
    char *mem[GPU_MAX];
    int used;                  /* blocks that are not free */
    struct step_block block[]; /* [step.slab] */
};

enum { MIRROR_MARK = 2, MIRROR_STATES }; /* two states that take turns, and the one at a mark */
struct step_mirror {                     /* a session's cache on devices */
    struct step_mirror *next;
    const struct kv *kv;        /* NULL: closed */
    int rows;                   /* positions that equal the host's */
    struct kv_layer *layer;     /* [n_layers]; with s->tensor [ranks, n_layers] */
    struct step_block **blocks; /* [n_blocks]: its rows lie there. Those that others read too are whole, and below rows */
    size_t cap_blocks;
    int n_blocks, told;             /* devices know the first so many */
    struct kv_block *list[GPU_MAX]; /* [most_blocks] where they lie there; the devices' own is at the beginning of mem */
    int most_blocks;
    char *mem[GPU_MAX]; /* that list, and states; NULL: not yet */
    size_t bytes[GPU_MAX];
    uint64_t used;            /* the step that read it last */
    bool kept;                /* a prefill writes it, layer by layer: it stays */
    int state[MIRROR_STATES]; /* positions whose states stand in these rows of its state planes; -1: none */
    struct kv_move move;      /* of its own rows, from where it was asked for; marked: the last of them */
};

struct step {
    struct machine *m;
    const struct config *c;
    struct gpu_stream *processor; /* virtual time: where the processor's operations are enqueued; NULL: they run at once */
    struct step_device dev[GPU_MAX];
    int n_dev, n_resident; /* devices that hold layers; these are [0, n_resident) */
    bool tensor;           /* each of them has a share of every layer; else layers of its own. tensor.c */
    float *parts;          /* pinned: tensor.c */
    bool loaded;           /* their weights are there */
    bool lent;             /* routed experts made room for a prefill that runs */
    struct step_counts counts;
    uint32_t *used;       /* [n_layers, n_experts] rows that chose each */
    bool away;            /* they made room for a prefill that runs */
    uint64_t again;       /* the step that tries to load them again */
    char layers_why[320]; /* why devices have the layers that they have, or none */
    char why[480];        /* what where.h says of all */
    struct step_micro micro[STEP_MICROS];
    int n_micros;
    enum dtype kv;           /* of caches */
    struct step_cache cache; /* of a session's */
    char *host_rows;         /* pinned: as step_device.rows, of all layers; of all ranks, one after the other */
    char *host_states;       /* pinned [n_host_states]: what a span of a step makes of all states; added.c */
    int n_host_states;
    _Atomic int *bad; /* pinned [GPU_MAX][STEP_MICROS] */
    struct work head; /* x, xn and bad of all rows in host memory */
    float *logits;    /* [STEP_ROWS, vocab] */
    int32_t top[STEP_ROWS];
    pthread_mutex_t lock; /* the list, and whose each is */
    struct step_mirror *mirrors;
    int block, slab; /* positions of a block; blocks of a slab */
    struct step_slab *slabs;
    bool copied;    /* blocks may still be copied from: one that falls free waits for that */
    uint64_t clock; /* steps so far */
    enum step_cut ran;
    int cut_at;                     /* spans of the first micro-batch; 0: half */
    const struct step_view *view;   /* of a draft; NULL: the model as it is */
    bool hidden;                    /* the residual stream is wanted in host memory, in head.x, wherever the head runs */
    const _Atomic int *cancel;      /* of this step */
    const struct step_span *caller; /* its spans */
    uint64_t routing_step;          /* its number there */
    struct buf routing;             /* its lines */
};

/* device.c */
int step_devices_open(struct step *s, struct error *e); /* chooses what is resident where; nothing is loaded yet */
void step_devices_close(struct step *s);
int step_load(struct step *s, struct error *e); /* resident weights, before the first step that needs them */
void step_unload(struct step *s);
int step_processor_open(struct step *s, struct error *e); /* host memory, pinned where devices take part */
void step_processor_close(struct step *s);
int step_numbers_open(struct step *s, struct error *e);        /* anew: nothing may wait for them */
struct step_device *step_device_of(struct step *s, int layer); /* NULL: the processor */
size_t step_reserve(const struct step *s, struct gpu *g);      /* bytes to keep free of what could as well stay in host memory */
bool step_device_error(struct step *s, struct error *e);       /* whether a device failed, and how */
void step_tell(struct step *s, const char *layers_why);        /* what lies on devices was chosen, for that reason: s->why */

/* Goes on without devices from here on, for that reason, whether they failed or only their memory did. ERR_MEMORY. */
int step_leave(struct step *s, const char *why, struct error *e); /* step.c */

/* Enqueued: what layer - 1 leaves to the next: x, of several residual streams these and how much of x goes to each, and a choice of keys
 * that it takes over. Behind the last layer x is all. Of `to` and `from` no more is used. */
int step_carry(const struct config *c, struct gpu_stream *stream, const struct work *to, const struct work *from, int n, int layer, enum gpu_dir dir);

/* Enqueued: what the processor needs for a layer's experts goes to host memory. */
int step_hand_over(struct step_device *d, struct step_micro *m, int layer);
/* tensor.c: an attention half and what follows it, on all ranks; then what they and the processor add behind `layer`. Enqueued. */
int step_tensor_attention(struct step *s, struct step_micro *m, int layer, int total);
int step_tensor_join(struct step *s, struct step_micro *m, int layer);
size_t step_tensor_parts(const struct step *s); /* bytes of s->parts */

/* graph.c */
int step_graphs_open(struct step_device *d, struct error *e); /* ERR_MEMORY */
void step_graphs_drop(struct step_device *d);                 /* what was recorded: d->main is idle */
void step_graphs_close(struct step_device *d);
/* Where m's rows on d stand (enqueued), if their work is to be recorded or was. */
int step_graphs_begin(struct step_device *d, struct step_micro *m, int total);
/* Enqueues what fn does on d->main: as it was recorded, or recording it, or by itself. fn is given the spans to do it for. */
typedef int (*step_work)(struct step_device *d, struct step_micro *m, int layer, int total, const struct span *spans);
/* m's spans on d, in out or where they are: a rank has planes of its own. */
const struct span *step_spans(const struct step_device *d, const struct step_micro *m, struct span out[STEP_ROWS]);
int step_replay(struct step_device *d, struct step_micro *m, int layer, enum step_part part, int total, step_work fn);

/* draft.c: routed experts of s->view */
int step_draft_load(struct step_device *d, struct error *e); /* those of one more layer, if there is room; the device's failure */
bool step_draft_less(struct step_device *d);                 /* those of one layer go, and none comes any more; false: there are none */
void step_draft_close(struct step_device *d);

/* blocks.c */
void step_blocks_open(struct step *s);
/* The bytes of a slab on a device; planes, where not NULL, [n_layers]: receives those of rows, but for where their list of blocks is. */
size_t step_slab_lay(const struct step_device *d, struct kv_layer *planes);
struct step_block *step_block_take(struct step *s); /* one that the caller alone reads; NULL: no device memory */
struct step_block *step_block_hold(struct step_block *b);
void step_block_release(struct step *s, struct step_block *b);
struct kv_block step_block_on(const struct step_block *b, const struct step_device *d);

static inline size_t step_up(size_t bytes) { return (bytes + 255) & ~(size_t)255; } /* as device memory is cut */

/* A rank's heads of a plane: of its rows from one on, which lie apart. */
struct step_heads {
    char *data;
    float *scale;
    size_t row, pitch, scales, scale_pitch; /* bytes of a row's heads, and from row to row; the same of scales */
};

/* mirror.c */
struct step_heads step_heads_of(const struct kv_plane *all, int head0, int heads, int row);
/* Rows [row, row + n) of a copy's plane to another, from row `to_row` on. */
int step_mirror_copy(struct gpu_stream *stream, const struct kv_plane *to, int to_row, const struct step_mirror *m, const struct step_device *d, int layer,
                     int plane, int row, int n, enum gpu_dir dir);
/* The cache's copy with room for rows up to `end` and all before pos in it (enqueued), ready to go on from there: `from` is the row of
 * the cache's own state at pos, -1: none. NULL: no device memory left. */
struct step_mirror *step_mirror_get(struct step *s, const struct kv *kv, int from, int pos, int end);
/* d->main is idle: caches on their way to the device have arrived, or (after a failure, or with d->stop set) were dropped and are forgotten. */
void step_fill_settle(struct step_device *d);
void step_fill_close(struct step_device *d); /* d->main waits for none of it */
void step_mirrors_reap(struct step *s);      /* of sessions that are closed */
void step_mirror_drop(struct step *s, struct step_mirror *m);
void step_mirror_keep(struct step *s, const struct kv *kv, bool kept);                      /* its copy, if there is one */
size_t step_mirror_bytes(const struct step *s, const struct step_device *d, int positions); /* of a copy for so many */
void step_mirror_filled(struct step *s, const struct kv *kv, int rows);                     /* after a step: these equal the host's */
void step_mirror_stale(struct step *s, const struct kv *kv, int pos);                       /* rows from pos on do not */

/* added.c */
/* What n rows of a step add to caches, of all layers, in one piece. After a layer's attention a device puts its rows aside, those of
 * several tokens at the end, when it sends all of its layers to host memory, where they go to the sessions' caches. */
int step_cache_open(struct step_cache *p, const struct config *c, enum dtype kv, struct error *e); /* ERR_MEMORY; close it in any case */
void step_cache_close(struct step_cache *p);
size_t step_rows_bytes(const struct step_cache *p, int n);
int step_rows_keep(struct step_device *d, int layer, const struct step_micro *m, int total);
int step_rows_send(struct step_device *d, int total);
void step_rows_store(struct step *s, const struct step_micro *m, const struct step_span *caller, int total);
/* The states that a span of a step has made, of the layers that are on devices, to host memory (enqueued), and from there to their rows of
 * the sessions' caches. Spans are counted over micro-batches: a driver that is given a cache, which is not pinned, holds its caller. */
int step_states_open(struct step *s, struct error *e);
int step_states_send(struct step_device *d, int i, const struct span *dev, const struct span *host);
void step_states_store(struct step *s);
/* The same for many rows of one session: rows [pos, pos + n) of a layer to `host` (step_rows_bytes of n), from there to its cache. */
int step_mirror_save(struct step *s, const struct step_mirror *m, struct gpu_stream *stream, int layer, int pos, int n, char *host);
void step_mirror_store(struct step *s, const struct kv *kv, const struct kv_move *move, int pos, int n, char *host);
size_t step_saved_bytes(const struct step *s, int n); /* what `host` takes for n rows: those, and two states of each layer */

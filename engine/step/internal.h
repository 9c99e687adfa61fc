#pragma once
/* Shared by the decode files: devices that hold layers, micro-batches, and device copies of KV caches. */
#include <pthread.h>

#include "engine/cache/predict.h"
#include "engine/cache/score.h"
#include "engine/layer/attention.h" /* TRY */
#include "engine/pipe/pipe.h"
#include "engine/pipe/trace.h"
#include "engine/step/share.h"
#include "engine/step/step.h"
#include "gpu/ops.h"

/* One layer on a device without its routed experts: one allocation, and the layer's view with device pointers. draft_experts.c
 * keeps a draft's routed experts in a second allocation; draft is NULL without one. */
struct step_layer {
    char *mem, *draft_mem;
    struct layer view;
    struct expert *draft; /* [n_experts] */
    size_t draft_bytes;
};

/* CUDA graphs of the attention blocks and shared experts of one batch shape, one per layer (gpu.h). Graphs read positions and KV
 * addresses from the device's `places`, so one recording serves any session. decode_graph.c */
enum step_part { STEP_HALF, STEP_ROUTE, STEP_SHARED, STEP_PARTS }; /* PART_ROUTER: tensor parallel only, where the router runs after the sum over ranks */
enum { STEP_SHAPES = 8 };
struct step_shape {
    int micro, n, row0, total;            /* rows of the micro-batch on the device; of the micro-batches before it; of the batch */
    uint8_t rows[STEP_ROWS];              /* [n spans] rows of each span: 1, or more with drafted tokens; the rest is zero */
    uint32_t few;                         /* bit k: all rows of span k see at most block_few_keys keys */
    int keys;                             /* upper bound on the keys a row may see */
    bool router;                          /* router logits are downloaded too */
    uint64_t used;                        /* clock of the last batch of this shape; 0: slot is free */
    bool off;                             /* cannot be recorded */
    struct gpu_graph **graph[STEP_PARTS]; /* [n_layers]; NULL: not recorded yet */
};

/* Layout of the KV rows that tokens add, plane by plane, for whole sessions or for one rank's shard. kv_writeback.c */
struct step_cache {
    const struct config *c;
    enum dtype kv;
    int planes[CONFIG_MAX_LAYERS]; /* planes per layer */
    struct cache_desc desc[CONFIG_MAX_LAYERS][CACHE_PLANES];
    /* [n_layers + 1], sums over the layers before: bytes that a token adds to planes with one row per token; bytes of a row of the
     * other planes; bytes of a state. min_every: fewest tokens per row of any multi-token plane; 0: there is none. */
    size_t *row_at, *made_at, *state_at;
    int least_every;
};

struct step_experts;
/* A device and its layers [first, last): attention blocks and dense FFNs. */
struct step_device {
    struct step *s;
    struct gpu *g;
    int rank, first, last;
    const struct config *c;   /* the model's config, or the tensor-parallel shard's (tp_shard.h) */
    struct config *own;       /* the shard's config; NULL without tensor parallelism */
    struct share share;       /* with s->is_tensor_parallel */
    struct step_cache *cache; /* s->layout, or the shard's own layout */
    float *part[STEP_MICROS]; /* tensor parallel: [STEP_ROWS, hidden] this rank's partial sum */
    char *host_rows;          /* pinned destination of `kv_rows`; without tensor parallelism a shared buffer of all layers */
    struct gpu_stream *main;
    _Atomic int stop;         /* cancel flag of main */
    struct step_layer *layer; /* [n_layers] */
    size_t weights, loaded;   /* bytes of weights: assigned, currently loaded */
    size_t held;              /* bytes allocated for weights, expert pool and device KV */
    struct work work[STEP_MICROS];
    char *rows; /* new KV rows of the batch, staged for the download (kv_writeback.c) */
    bool head;  /* the final norm and LM head are on this device */
    char *head_mem, *close_mem;
    struct weights *head_weights; /* the head's view; also block_close after the last layer */
    bool draft_full;              /* no further draft layer fits (draft_experts.c) */
    int each;                     /* routed experts per layer that the pool may hold (expert_pool.h) */
    char experts_why[160];        /* reason for pool_per_layer */
    struct step_experts *experts; /* NULL: no pool at present */
    struct score score;           /* scores of all experts of its layers, resident or not */
    struct predict predict;       /* router predictions and their accuracy */
    void *score_mem, *predict_mem;
    float *x, *xn, *logits; /* LM head: [STEP_ROWS, hidden] twice, [STEP_ROWS, vocab] */
    /* decode_graph.c: [STEP_MICROS, STEP_ROWS, n_layers, CACHE_PLANES] on the device and pinned; the shape of the running batch, NULL:
     * launched without graphs */
    struct op_place *places, *host_places;
    struct step_shape shape[STEP_SHAPES], *now[STEP_MICROS];
    /* device_kv.c: uploads of session KV from unpinned memory. Opened with the first upload; fill is NULL before. */
    struct gpu_stream *fill;
    struct stage *stage;
    struct gpu_number *filled; /* main waits for it */
    uint32_t n_filled;
};

/* Rows that go through the layers together: rows with device KV first, then rows that run on the CPU in every layer. Counts are
 * per batch. */
struct step_micro {
    int n, n_dev, row0; /* rows; rows on devices; rows of the micro-batches before this one */
    int n_spans, n_dev_spans;
    struct span spans[STEP_ROWS];              /* all rows; host KV planes */
    struct span dev[STEP_ROWS];                /* the first n_dev rows; device KV planes */
    const struct step_mirror *copy[STEP_ROWS]; /* device KV of each span in dev_spans */
    struct span rest[STEP_ROWS];               /* the other rows, numbered from n_dev */
    int source[STEP_ROWS];                     /* index of the caller's span */
    struct work host;                          /* pinned if there are devices; x of rows [0, n_dev) receives the expert outputs */
    /* Hand-off timelines. Devices signal `arrived` when rows are in host memory, and wait for cpu_done, signalled when the CPU's
     * expert outputs are ready. */
    struct gpu_number *arrived, *answered;
    uint32_t n_arrived, n_wanted, n_answered; /* values signalled, waited for and signalled, counted when enqueued */
    uint32_t sent[2];                         /* by layer parity: value of `arrived` once the layer's rows are in host memory */
    struct gpu_number *part[GPU_MAX];         /* tensor parallel: this rank's part of sum n_parts is in host memory */
    uint32_t n_parts;
};

/* device_blocks.c: rows of all layers for `block` positions, on all devices. */
struct step_block {
    struct step_slab *slab;
    int readers; /* device KVs that use it; 0: free */
};
struct step_slab {
    struct step_slab *next;
    char *mem[GPU_MAX];
    int used;                  /* blocks in use */
    struct step_block block[]; /* [decode.slab_blocks] */
};

enum { MIRROR_MARK = 2, MIRROR_STATES }; /* two alternating states and the one at a mark */
struct step_mirror {                     /* device copy of a session's KV cache */
    struct step_mirror *next;
    const struct kv *kv;        /* NULL: the session was closed */
    int rows;                   /* positions that equal the host's */
    struct kv_layer *layer;     /* [n_layers]; with s->is_tensor_parallel [ranks, n_layers] */
    struct step_block **blocks; /* [n_blocks] of its rows; blocks shared with other sessions are full and below valid_rows */
    size_t cap_blocks;
    int n_blocks, told;             /* the first n_uploaded entries are in the devices' block tables */
    struct kv_block *list[GPU_MAX]; /* [most_blocks] host block table per device; the device's is at the start of mem */
    int most_blocks;
    char *mem[GPU_MAX]; /* device block table and states; NULL: not allocated */
    size_t bytes[GPU_MAX];
    uint64_t used;            /* clock of the last batch that read it */
    bool kept;                /* a prefill is writing it: not evictable */
    int state[MIRROR_STATES]; /* position of each state row; -1: none */
    struct kv_move move;      /* state rows of the batch; `marked` is the last row */
};

struct step {
    struct machine *m;
    const struct config *c;
    struct gpu_stream *processor; /* virtual time: the queue of CPU operations; NULL: they run immediately */
    struct step_device dev[GPU_MAX];
    int n_dev, n_resident; /* devices that hold layers; the layers they hold are [0, n_resident) */
    bool tensor;           /* tensor parallel: each device has a shard of every layer (decode_tensor.c); else whole layers */
    float *parts;          /* pinned, decode_tensor.c */
    bool loaded;           /* weights are on the devices */
    bool lent;             /* expert pools were released for a prefill */
    struct step_counts counts;
    uint32_t *used;       /* [n_layers, n_experts] rows that selected each expert */
    bool away;            /* all device memory was released for a prefill */
    uint64_t again;       /* clock at which loading is tried again */
    char layers_why[320]; /* reason for the layer assignment */
    char why[480];        /* all reasons, from placement_report.h */
    struct step_micro micro[STEP_MICROS];
    int n_micros;
    enum dtype kv;           /* of KV caches */
    struct step_cache cache; /* layout of a whole session */
    char *host_rows;         /* pinned, layout of decode_device.kv_rows: all layers, or one shard after another */
    char *host_states;       /* pinned [n_host_states]: the states that a span produces in all layers (kv_writeback.c) */
    int n_host_states;
    _Atomic int *bad; /* pinned [GPU_MAX][STEP_MICROS] */
    struct work head; /* x, xn and bad of all rows, host memory */
    float *logits;    /* [STEP_ROWS, vocab] */
    int32_t top[STEP_ROWS];
    pthread_mutex_t lock; /* protects the list and device_kv.kv */
    struct step_mirror *mirrors;
    int block, slab; /* positions per block; blocks per slab */
    struct step_slab *slabs;
    bool copied;    /* blocks may be the source of enqueued copies: synchronize before reuse */
    uint64_t clock; /* batches so far */
    enum step_cut ran;
    int cut_at;                     /* spans of the first micro-batch; 0: half */
    const struct step_view *view;   /* the draft whose experts are used; NULL: the model's */
    bool hidden;                    /* download the residual stream to head.x wherever the head runs */
    const _Atomic int *cancel;      /* of this batch */
    const struct step_span *caller; /* the batch's spans */
    uint64_t routing_step;          /* number of the batch in the routing trace */
    struct buf routing;             /* its lines */
};

/* decode_device.c */
int step_devices_open(struct step *s, struct error *e); /* assigns layers to devices and opens them; loads no weights */
void step_devices_close(struct step *s);
int step_load(struct step *s, struct error *e); /* uploads weights before the first batch that needs them */
void step_unload(struct step *s);
int step_processor_open(struct step *s, struct error *e); /* host buffers, pinned if there are devices */
void step_processor_close(struct step *s);
int step_numbers_open(struct step *s, struct error *e);        /* new timelines; nothing may wait for the old ones */
struct step_device *step_device_of(struct step *s, int layer); /* NULL: the CPU has it */
size_t step_reserve(const struct step *s, struct gpu *g);      /* bytes to keep free on g instead of weights */
bool step_device_error(struct step *s, struct error *e);       /* whether a device failed, with its error */
void step_tell(struct step *s, const char *layers_why);        /* records the reason for the layer assignment and rebuilds s->placement_why */

/* Drops all devices and continues on the CPU, for the reason `why`. ERR_MEMORY. */
int step_leave(struct step *s, const char *why, struct error *e); /* decode.c */

/* Copies what layer - 1 leaves to the next layer (enqueued): x, residual streams with their weights, and a key selection that the
 * layer reuses. After the last layer only x. Uses no other field of `to` and `from`. */
int step_carry(const struct config *c, struct gpu_stream *stream, const struct work *to, const struct work *from, int n, int layer, enum gpu_dir dir);

/* Downloads what the CPU needs for a layer's experts (enqueued). */
int step_hand_over(struct step_device *d, struct step_micro *m, int layer);
/* decode_tensor.c, enqueued on all ranks: attention block and what follows it; then the sum of the outputs of ranks and CPU. */
int step_tensor_attention(struct step *s, struct step_micro *m, int layer, int total);
int step_tensor_join(struct step *s, struct step_micro *m, int layer);
size_t step_tensor_parts(const struct step *s); /* bytes of s->tp_parts */

/* decode_graph.c */
int step_graphs_open(struct step_device *d, struct error *e); /* ERR_MEMORY */
void step_graphs_drop(struct step_device *d);                 /* frees recordings; d->main must be idle */
void step_graphs_close(struct step_device *d);
/* Looks up the graphs for m's shape and uploads m's positions and KV addresses (enqueued). */
int step_graphs_begin(struct step_device *d, struct step_micro *m, int total);
/* Runs fn's work on d->main: replays its graph, records it first, or calls fn directly. fn receives the spans to use. */
typedef int (*step_work)(struct step_device *d, struct step_micro *m, int layer, int total, const struct span *spans);
/* m's spans on d: m->dev, or copies in `out` with the rank's planes. */
const struct span *step_spans(const struct step_device *d, const struct step_micro *m, struct span out[STEP_ROWS]);
int step_replay(struct step_device *d, struct step_micro *m, int layer, enum step_part part, int total, step_work fn);

/* draft_experts.c: routed experts of s->draft */
int step_draft_load(struct step_device *d, struct error *e); /* one more layer if it fits; returns a device's failure */
bool step_draft_less(struct step_device *d);                 /* evicts one layer and loads no more; false: there is none */
void step_draft_close(struct step_device *d);

/* device_blocks.c */
void step_blocks_open(struct step *s);
/* Returns the bytes of a slab on a device. planes [n_layers], if not NULL, receives the planes of rows without their block table. */
size_t step_slab_lay(const struct step_device *d, struct kv_layer *planes);
struct step_block *step_block_take(struct step *s); /* a block with one reader; NULL: no device memory */
struct step_block *step_block_hold(struct step_block *b);
void step_block_release(struct step *s, struct step_block *b);
struct kv_block step_block_on(const struct step_block *b, const struct step_device *d);

static inline size_t step_up(size_t bytes) { return (bytes + 255) & ~(size_t)255; } /* device memory alignment */

/* A rank's heads of a plane, starting at some row; strided. */
struct step_heads {
    char *data;
    float *scale;
    size_t row, pitch, scales, scale_pitch; /* bytes of a row's heads and between rows; the same for scales */
};

/* device_kv.c */
struct step_heads step_heads_of(const struct kv_plane *all, int head0, int heads, int row);
/* Copies rows [row, row + n) of a device KV plane to another plane, starting at to_row. */
int step_mirror_copy(struct gpu_stream *stream, const struct kv_plane *to, int to_row, const struct step_mirror *m, const struct step_device *d, int layer,
                     int plane, int row, int n, enum gpu_dir dir);
/* Returns the device KV of `kv` with room for rows up to `end`, uploads of all rows before pos enqueued. `from`: host row of the
 * state at pos, -1: none. NULL: no device memory left. */
struct step_mirror *step_mirror_get(struct step *s, const struct kv *kv, int from, int pos, int end);
/* Waits until KV uploads have arrived; drops them after a failure or with d->stop set. d->main must be idle. */
void step_fill_settle(struct step_device *d);
void step_fill_close(struct step_device *d); /* d->main must not wait for any upload */
void step_mirrors_reap(struct step *s);      /* frees the device KV of closed sessions */
void step_mirror_drop(struct step *s, struct step_mirror *m);
void step_mirror_keep(struct step *s, const struct kv *kv, bool kept);                      /* sets its eviction lock, if it exists */
size_t step_mirror_bytes(const struct step *s, const struct step_device *d, int positions); /* device memory for that many positions */
void step_mirror_filled(struct step *s, const struct kv *kv, int rows);                     /* after a batch: rows below `rows` equal the host's */
void step_mirror_stale(struct step *s, const struct kv *kv, int pos);                       /* rows from pos on do not */

/* kv_writeback.c */
/* Downloads the KV rows that a batch adds. After a layer's attention the device stages its rows (rows that cover several tokens at
 * the end of the batch); one copy per batch brings all layers to host memory; from there they go to the sessions' caches. */
int step_cache_open(struct step_cache *p, const struct config *c, enum dtype kv, struct error *e); /* ERR_MEMORY; close it in any case */
void step_cache_close(struct step_cache *p);
size_t step_rows_bytes(const struct step_cache *p, int n);
int step_rows_keep(struct step_device *d, int layer, const struct step_micro *m, int total);
int step_rows_send(struct step_device *d, int total);
void step_rows_store(struct step *s, const struct step_micro *m, const struct step_span *caller, int total);
/* The states that the spans of a batch produce, downloaded (enqueued), then stored into the sessions' caches. i counts spans over
 * micro-batches. A pinned bounce buffer, because a download to unpinned memory blocks the caller. */
int step_states_open(struct step *s, struct error *e);
int step_states_send(struct step_device *d, int i, const struct span *dev, const struct span *host);
void step_states_store(struct step *s);
/* The same for one layer and rows [pos, pos + n) of one session, to `host` and from there to its cache. */
int step_mirror_save(struct step *s, const struct step_mirror *m, struct gpu_stream *stream, int layer, int pos, int n, char *host);
void step_mirror_store(struct step *s, const struct kv *kv, const struct kv_move *move, int pos, int n, char *host);
size_t step_saved_bytes(const struct step *s, int n); /* size of `host` for n rows: rows and two states of each layer */

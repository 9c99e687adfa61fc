#pragma once
/* Shared by the decode files: devices that hold layers, micro-batches, and their state (struct decode). */
#include <pthread.h>

#include "engine/exec/decode.h"
#include "engine/exec/device_kv.h"
#include "engine/exec/kv_writeback.h"
#include "engine/exec/stream/slp.h"
#include "engine/exec/tp_shard.h"
#include "engine/experts/budget.h"
#include "engine/experts/predict.h"
#include "engine/experts/resident_experts.h"
#include "engine/experts/score.h"
#include "engine/layer/attention.h" /* TRY */
#include "engine/transfer/trace.h"
#include "engine/transfer/upload.h"
#include "gpu/op.h"

/* One layer on a device: one allocation without routed experts, and the layer's view with device pointers. Routed experts, all of a
 * layer or none, have allocations of their own: the model's, and a draft's (draft_experts.c). */
struct device_layer {
    struct ledger_entry mem;
    struct layer view;
    struct resident_experts experts, draft;
};

/* decode_graph.c */
/* The part of a layer, or the layers, that a graph covers. GRAPH_ROUTER: tensor parallel only, where the router runs after the sum over ranks. GRAPH_LAYERS:
 * attention blocks and FFNs of consecutive layers without host work between them, under the index of the first. */
enum graph_part { GRAPH_ATTENTION, GRAPH_ROUTER, GRAPH_FFN, GRAPH_LAYERS, GRAPH_PARTS };
/* CUDA graphs of the attention blocks and FFNs of one batch shape, per layer, or one for consecutive layers (gpu.h). Graphs read positions and KV
 * addresses from the device's `places`, so one recording serves any session. A device keeps those of its GRAPH_SHAPES last shapes. */
enum { GRAPH_SHAPES = 8 };
struct graph_shape {
    int micro, row0, n_total;              /* rows of the micro-batches before this one; of the batch */
    uint8_t rows[DECODE_MAX_ROWS];         /* [n spans] rows of each span on the device: 1, or more with drafted tokens; the rest is zero */
    uint32_t few_key_spans;                /* bit k: all rows of span k see at most block_few_keys_limit keys */
    int keys;                              /* upper bound on the keys that a row sees: a power of two */
    bool has_router;                       /* router logits are downloaded too */
    uint64_t last_used;                    /* clock of the last batch of this shape; 0: slot is free */
    bool is_draft;                         /* experts of a draft: the CPU may need rows that it does not need otherwise */
    bool is_unrecordable;                  /* cannot be recorded */
    unsigned unrecordable_parts;           /* bit p: enum graph_part p cannot, e.g. because the host reads the routers' selection */
    struct gpu_graph **graph[GRAPH_PARTS]; /* [n_layers]; NULL: not recorded yet */
};

struct expert_pool;
/* A device and its layers [first, last): attention blocks and dense FFNs. */
struct decode_device {
    struct decode *s;
    struct gpu *g;
    unsigned n_cleared; /* gpu_n_cleared() when it was opened, or when its weights began to load */
    struct ledger *ledger;
    int rank, first, last;
    const struct config *c;               /* the model's config, or the tensor-parallel shard's (tp_shard.h) */
    struct config *shard_config;          /* the shard's config; NULL without tensor parallelism */
    struct tp_shard shard;                /* with s->is_tensor_parallel */
    struct kv_row_layout *layout;         /* s->layout, or the shard's own layout */
    float *partial[DECODE_MICRO_BATCHES]; /* tensor parallel: [DECODE_MAX_ROWS, hidden] this rank's partial sum */
    char *host_kv_rows;                   /* pinned destination of `kv_rows`; without tensor parallelism a shared buffer of all layers */
    struct gpu_stream *main;
    _Atomic int stop;            /* cancel flag of main */
    struct device_layer *layers; /* [n_layers] */
    size_t weight_bytes;         /* bytes of weights that are assigned to it */
    struct work work[DECODE_MICRO_BATCHES];
    char *kv_rows; /* new KV rows of the batch, staged for the download (kv_writeback.c) */
    bool has_head; /* the final norm and LM head are on this device */
    struct ledger_entry head_mem, merge_mem;
    struct weights *head_weights; /* the head's view; also block_merge_streams after the last layer */
    bool draft_full;              /* no further draft layer fits (draft_experts.c) */
    int planned_expert_layers;    /* its first MoE layers that have all their routed experts here: planned, */
    int n_expert_layers;          /* and as long as device KV leaves room */
    size_t load_bytes;            /* the running upload of experts: bytes so far, its seconds, and those of its search for damaged weights */
    double load_s, load_check_s;
    uint64_t n_selected, n_hits; /* as in struct decode_expert_device */
    int pool_per_layer;          /* routed experts per layer that the pool may hold (expert_pool.h) */
    int32_t *layer_ids;          /* [DECODE_MICRO_BATCHES, n_layers, DECODE_MAX_ROWS * topk] selections of layers with resident experts; NULL: none */
    int32_t *own_ids[DECODE_MICRO_BATCHES]; /* work[].ids as allocated: the other layers' selections */
    size_t expert_bytes;                    /* planned bytes of resident layers and pool */
    char pool_why[160];                     /* reason for these sizes */
    struct expert_pool *pool;               /* NULL: no pool at present */
    struct score score;                     /* scores of all experts of its layers, resident or not */
    struct predict predict;                 /* router predictions and their accuracy */
    void *score_mem, *predict_mem;
    float *x, *xn, *logits; /* LM head: [DECODE_MAX_ROWS, hidden] twice, [DECODE_MAX_ROWS, vocab] */
    /* decode_graph.c: [DECODE_MICRO_BATCHES, DECODE_MAX_ROWS, n_layers, CACHE_PLANES] on the device and pinned; the shape of the running batch, NULL:
     * launched without graphs */
    struct op_address *places, *host_places;
    struct graph_shape shapes[GRAPH_SHAPES], *active_shape[DECODE_MICRO_BATCHES];
    /* device_kv.c: uploads of session KV from unpinned memory. Opened with the first upload. */
    struct upload_queue kv_uploads; /* main waits for them */
};

/* Rows that go through the layers together: rows with device KV first, then rows that run on the CPU in every layer. Counts are
 * per batch. */
struct decode_micro_batch {
    int n, n_dev, row0; /* rows; rows on devices; rows of the micro-batches before this one */
    int n_spans, n_dev_spans;
    struct span spans[DECODE_MAX_ROWS];              /* all rows; host KV planes */
    struct span dev_spans[DECODE_MAX_ROWS];          /* the first n_dev rows; device KV planes */
    const struct device_kv *dev_kv[DECODE_MAX_ROWS]; /* device KV of each span in dev_spans */
    struct span cpu_spans[DECODE_MAX_ROWS];          /* the other rows, numbered from n_dev */
    int caller_span[DECODE_MAX_ROWS];                /* index of the caller's span */
    struct text_rows texts[DECODE_MAX_ROWS];         /* tokens of each span in spans */
    struct work host;                                /* pinned if there are devices; x of rows [0, n_dev) receives the expert outputs */
    /* Hand-off timelines. Devices signal `arrived` when rows are in host memory, and wait for cpu_done, signalled when the CPU's
     * expert outputs are ready. */
    struct gpu_timeline *arrived, *cpu_done;
    uint32_t n_arrived, n_awaited, n_cpu_done; /* values signalled, waited for and signalled, counted when enqueued */
    int queued_layers;                         /* layers before it are enqueued on their device, ahead of decode_layer_advance() */
    uint32_t sent_value[2];                    /* by layer parity: value of `arrived` once the layer's rows are in host memory */
    struct gpu_timeline *part_done[GPU_MAX];   /* tensor parallel: this rank's part of sum n_parts is in host memory */
    uint32_t n_parts;
};

/* Device memory that a prefill or paged batches borrow. Memory returns all at once, by decode_reclaim(). */
enum residency_state {
    RESIDENCY_FULL,       /* batches load weights, expert pools and device KV as they need them */
    RESIDENCY_NO_EXPERTS, /* experts were evicted and stay away */
    RESIDENCY_YIELDED     /* all memory was freed; batches run on the CPU */
};
struct decode {
    struct runtime *m;
    const struct config *c;
    struct gpu_stream *cpu_queue; /* virtual time: the queue of CPU operations; NULL: they run immediately */
    struct decode_device dev[GPU_MAX];
    int n_dev, n_resident;   /* devices that hold layers; the layers they hold are [0, n_resident) */
    bool is_tensor_parallel; /* tensor parallel: each device has a shard of every layer (decode_tensor.c); else whole layers */
    float *tp_parts;         /* pinned, decode_tensor.c */
    enum residency_state residency;
    struct decode_counts counts;
    uint32_t *expert_rows;   /* [n_layers, n_experts] rows that selected each expert */
    uint64_t retry_clock;    /* clock at which loading is tried again */
    char layers_why[320];    /* reason for the layer assignment */
    char placement_why[640]; /* all reasons, from placement_report.h */
    struct decode_micro_batch micro_batch[DECODE_MICRO_BATCHES];
    int n_micros;
    enum dtype kv;               /* of KV caches */
    struct kv_row_layout layout; /* layout of a whole session */
    char *host_rows;             /* pinned, layout of decode_device.kv_rows: all layers, or one shard after another */
    char *host_states;           /* pinned [n_host_states]: the states that a span produces in all layers (kv_writeback.c) */
    int n_host_states;
    int32_t *layer_ids; /* pinned, as decode_device.layer_ids */
    _Atomic int *bad;   /* pinned [GPU_MAX][DECODE_MICRO_BATCHES] */
    struct work head;   /* x, xn and bad of all rows, host memory */
    float *logits;      /* [DECODE_MAX_ROWS, vocab] */
    int32_t top[DECODE_MAX_ROWS];
    pthread_mutex_t lock; /* protects the list and device_kv.kv */
    struct device_kv *device_kvs;
    int block_positions, slab_blocks; /* positions per block; blocks per slab */
    struct device_slab *slabs;
    bool has_block_copies; /* blocks may be the source of enqueued copies: synchronize before reuse */
    uint64_t clock;        /* batches so far */
    enum exec_mode last_exec;
    int n_without_room;                     /* decode_n_without_room() */
    int first_spans;                        /* spans of the first micro-batch; 0: half */
    const struct decode_draft *draft;       /* the draft whose experts are used; NULL: the model's */
    bool want_hidden;                       /* download the residual stream to head.x wherever the head runs */
    const _Atomic int *cancel;              /* of this batch */
    const struct decode_span *caller_spans; /* the batch's spans */
    uint64_t routing_batch;                 /* number of the batch in the routing trace */
    struct buf routing_lines;               /* its lines */
};

/* decode_device.c */
int decode_devices_open(struct decode *s, struct error *e); /* assigns layers to devices and opens them; loads no weights */
void decode_devices_close(struct decode *s);
bool decode_weights_loaded(const struct decode *s);
int decode_weights_load(struct decode *s, struct error *e); /* uploads weights before the first batch that needs them */
void decode_weights_unload(struct decode *s);
int decode_host_open(struct decode *s, struct error *e); /* host buffers, pinned if there are devices */
void decode_host_close(struct decode *s);
int decode_timelines_open(struct decode *s, struct error *e);            /* replaces them; nothing may wait for the old ones */
struct decode_device *decode_device_of(struct decode *s, int layer);     /* NULL: the CPU has it */
size_t decode_reserve_bytes(const struct decode *s, struct gpu *g);      /* bytes to keep free on g instead of weights */
size_t decode_own_bytes(const struct decode *s);                         /* the part of them for the buffers that open_device() allocates */
bool decode_device_error(struct decode *s, struct error *e);             /* whether a device failed, with its error */
void decode_set_placement_why(struct decode *s, const char *layers_why); /* records the reason for the layer assignment and rebuilds s->placement_why */

/* Drops all devices and continues on the CPU, for the reason `why`. ERR_MEMORY. */
int decode_fall_back(struct decode *s, const char *why, struct error *e); /* decode.c */

/* Copies what layer - 1 leaves to the next layer (enqueued): x, residual streams with their weights, and a key selection that the
 * layer reuses. After the last layer only x. Uses no other field of `to` and `from`. */
int decode_carry(const struct config *c, struct gpu_stream *stream, const struct work *to, const struct work *from, int n, int layer, enum gpu_dir dir);

/* Whether executors exchange inputs and sums of experts in their latent space: the device projects both, for the CPU, too, and may norm the whole sum.
 * Deferred experts are added to the next layer's, so that their sums are projected first. */
static inline bool decode_hands_latent(const struct decode *s) { return s->c->moe_latent && !s->c->n_deferred && !s->is_tensor_parallel; }
/* Downloads what the CPU needs for a layer's experts (enqueued). */
int decode_download_inputs(struct decode_device *d, struct decode_micro_batch *m, int layer);
/* decode_tensor.c, enqueued on all ranks: attention block and what follows it; then the sum of the outputs of ranks and CPU. */
int decode_tensor_attention(struct decode *s, struct decode_micro_batch *m, int layer, int total);
int decode_tensor_join(struct decode *s, struct decode_micro_batch *m, int layer);
size_t decode_tensor_parts_bytes(const struct decode *s); /* bytes of s->tp_parts */

/* decode_experts.c */
/* Returns the layer's routed experts on its device that rows of the running batch use: the draft's, or the model's. NULL: the CPU
 * computes them, or some of them (expert_pool.h). */
const struct expert *decode_device_experts(const struct decode *s, int layer);
/* Bytes to keep free on g beside weights and routed experts of n_layers layers: decode's buffers, these layers' KV of 4096 positions or an eighth of
 * the memory, and a margin. */
size_t decode_least_reserve_bytes(const struct decode *s, struct gpu *g, int n_layers);
/* Decides how many layers' routed experts, or how large a pool, a device (by rank) with layers [first, last) holds beside their `weights` bytes.
 * room: its free memory, before the weights are uploaded. Virtual time has no pool, because
 * routers select nothing there. */
struct layer_assign_in;
struct budget_out decode_experts_budget(const struct decode *s, int device, int first, int last, size_t weights, const struct layer_assign_in *room);
/* Uploads the planned layers' experts that are missing; as many as memory allows. Returns a device's failure, or that of a damaged
 * weight. */
int decode_experts_load(struct decode_device *d, struct error *e);
/* Allocates the buffers that record which experts of resident layers are selected: layers of a batch write to different places, so
 * that one copy at its end suffices. ERR_MEMORY. */
int decode_experts_record_open(struct decode_device *d, struct error *e);
void decode_experts_record_close(struct decode_device *d);
void decode_experts_record_layer(struct decode_device *d, struct work *w, int micro, int layer); /* directs w->ids to the layer's place */
int decode_experts_record_download(struct decode_device *d);                                     /* enqueued, at the end of a batch */
void decode_experts_record_count(struct decode *s);                                              /* adds the downloaded selections to s->expert_rows */
/* Returns the share of the routers' choices in a device's layers that fall on its planned experts, by the usage profile; without one, as if all
 * experts were chosen equally often. */
double decode_experts_choices(const struct decode_device *d);
/* Writes one sentence that says which routed experts the CPU computes, and why; empty without devices or experts. */
void decode_experts_summary(const struct decode *s, char *out, size_t cap);
void decode_experts_register(struct decode_device *d, bool is_open); /* as the ledger's client for all routed experts, until it closes */
bool decode_experts_evict_layer(struct decode_device *d);            /* evicts the last layer's experts, after queued work; false: there are none */

/* decode_lock.c */
bool decode_is_locked(const struct decode *s);

/* decode_graph.c */
int decode_graph_open(struct decode_device *d, struct error *e); /* ERR_MEMORY */
void decode_graph_drop(struct decode_device *d);                 /* frees recordings; d->main must be idle */
void decode_graph_close(struct decode_device *d);
/* Looks up the graphs for m's shape and uploads m's positions and KV addresses (enqueued). */
int decode_graph_begin(struct decode_device *d, struct decode_micro_batch *m, int total);
/* Enqueues a layer's work on d->main. total: rows of the batch; spans: those of m on d, or what a recording needs instead. */
typedef int (*graph_fn)(struct decode_device *d, struct decode_micro_batch *m, int layer, int total, const struct span *spans);
/* m's spans on d: m->dev_spans, or copies in `out` with the rank's planes. */
const struct span *decode_graph_spans(const struct decode_device *d, const struct decode_micro_batch *m, struct span out[DECODE_MAX_ROWS]);
/* Runs fn's work on d->main: replays its graph, records it first, or calls fn directly. */
int decode_graph_run(struct decode_device *d, struct decode_micro_batch *m, int layer, enum graph_part part, int total, graph_fn fn);

/* draft_experts.c: routed experts of s->draft */
int draft_experts_load(struct decode_device *d, struct error *e); /* one more layer if it fits; returns a device's failure */
bool draft_experts_evict_layer(struct decode_device *d);          /* evicts one layer and loads no more; false: there is none */
void draft_experts_close(struct decode_device *d);

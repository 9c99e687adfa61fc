#pragma once
/* The state of decode: devices that hold layers, micro-batches, and struct decode. Each file of this folder declares
 * its functions in a header of its own. */
#include <pthread.h>

#include "engine/exec/decode/decode.h"
#include "engine/exec/decode/tp_shard.h"
#include "engine/experts/budget.h"
#include "engine/experts/predict.h"
#include "engine/experts/resident_experts.h"
#include "engine/experts/score.h"
#include "engine/layer/work.h"
#include "engine/transfer/trace.h"
#include "engine/transfer/upload.h"
#include "gpu/op.h"

/* Layout of the KV rows that tokens add, plane by plane, for whole sessions or for one rank's shard. */
struct kv_row_layout {
    const struct config *c;
    enum dtype kv;
    int planes[CONFIG_MAX_LAYERS]; /* planes per layer */
    struct cache_desc desc[CONFIG_MAX_LAYERS][CACHE_PLANES];
    /* [n_layers + 1], sums over the layers before: bytes that a token adds to planes with one row per token; bytes of a
     * row of the other planes; bytes of a state. min_every: fewest tokens per row of any multi-token plane; 0: there is
     * none. */
    size_t *row_bytes_before, *multi_bytes_before, *state_bytes_before;
    int min_every;
};

/* One layer on a device: one allocation without routed experts, and the layer's view with device pointers. Routed
 * experts, all of a layer or none, have allocations of their own: the model's, and a draft's (draft_experts.c). */
struct device_layer {
    struct ledger_entry mem;
    struct layer view;
    struct resident_experts experts, draft;
};

/* The part of a layer, or the layers, that a graph covers. GRAPH_ROUTER: tensor parallel only, where the router runs
 * after the sum over ranks. GRAPH_LAYERS: attention blocks and FFNs of consecutive layers without host work between
 * them, under the index of the first. */
enum graph_part { GRAPH_ATTENTION, GRAPH_ROUTER, GRAPH_FFN, GRAPH_LAYERS, GRAPH_PARTS };
/* CUDA graphs of the attention blocks and FFNs of one batch shape, per layer, or one for consecutive layers (gpu.h).
 * Graphs read positions and KV addresses from the device's `places`, so one recording serves any session. A device
 * keeps those of its GRAPH_SHAPES last shapes. */
enum { GRAPH_SHAPES = 8 };
struct graph_shape {
    int micro, row0, n_total; /* rows of the micro-batches before this one; of the batch */
    /* [n spans] rows of each span on the device: 1, or more with drafted tokens; the rest is zero */
    uint8_t rows[DECODE_MAX_ROWS];
    uint32_t few_key_spans; /* bit k: all rows of span k see at most block_few_keys_limit keys */
    int keys;               /* upper bound on the keys that a row sees: a power of two */
    bool has_router;        /* router logits are downloaded too */
    uint64_t last_used;     /* clock of the last batch of this shape; 0: slot is free */
    /* experts of a draft: the CPU may need rows that it does not need otherwise */
    bool is_draft;
    bool is_unrecordable; /* cannot be recorded */
    /* bit p: enum graph_part p cannot, e.g. because the host reads the routers' selection */
    unsigned unrecordable_parts;
    struct gpu_graph **graph[GRAPH_PARTS]; /* [n_layers]; NULL: not recorded yet */
};

struct pinned_experts;
struct expert_pool;
struct device_kv;
struct device_slab;
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
    /* pinned destination of `kv_rows`; without tensor parallelism a shared buffer of all layers */
    char *host_kv_rows;
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
    /* the running upload of experts: bytes so far, its seconds, and those of its search for damaged weights */
    size_t load_bytes;
    double load_s, load_check_s;
    uint64_t n_selected, n_hits; /* as in struct decode_expert_device */
    /* routed experts per layer that may be pinned (pinned_experts.h), or that the pool may hold (expert_pool.h) */
    int pinned_per_layer, pool_per_layer;
    uint64_t pinned_hash; /* identifies its pinned experts; 0: none were loaded yet */
    double pinned_share;  /* expected share of the choices of its layers that they have */
    /* [DECODE_MICRO_BATCHES, n_layers, DECODE_MAX_ROWS * topk] selections of layers with resident experts; NULL: none
     */
    int32_t *layer_ids;
    int32_t *own_ids[DECODE_MICRO_BATCHES]; /* work[].ids as allocated: the other layers' selections */
    size_t expert_bytes;                    /* planned bytes of resident layers and pool */
    char pool_why[160];                     /* reason for these sizes */
    struct pinned_experts *pinned;          /* NULL: none at present */
    struct expert_pool *pool;               /* NULL: no pool at present */
    struct score score;                     /* scores of all experts of its layers, resident or not */
    struct predict predict;                 /* router predictions and their accuracy */
    void *score_mem, *predict_mem;
    float *x, *xn, *logits; /* LM head: [DECODE_MAX_ROWS, hidden] twice, [DECODE_MAX_ROWS, vocab] */
    int32_t *top;           /* [DECODE_MAX_ROWS], of op_top */
    /* decode_graph.c: [DECODE_MICRO_BATCHES, DECODE_MAX_ROWS, n_layers, CACHE_PLANES] on the device and pinned; the
     * shape of the running batch, NULL: launched without graphs */
    struct op_address *places, *host_places;
    struct graph_shape shapes[GRAPH_SHAPES], *active_shape[DECODE_MICRO_BATCHES];
    /* device_kv.c: uploads of session KV from unpinned memory. Opened with the first upload. */
    struct upload_queue kv_uploads; /* main waits for them */
};

/* Rows that go through the layers together: rows with device KV first, then rows that run on the CPU in every layer.
 * Counts are per batch. */
struct decode_micro_batch {
    int n, n_dev, row0; /* rows; rows on devices; rows of the micro-batches before this one */
    int n_spans, n_dev_spans;
    struct span spans[DECODE_MAX_ROWS];              /* all rows; host KV planes */
    struct span dev_spans[DECODE_MAX_ROWS];          /* the first n_dev rows; device KV planes */
    const struct device_kv *dev_kv[DECODE_MAX_ROWS]; /* device KV of each span in dev_spans */
    struct span cpu_spans[DECODE_MAX_ROWS];          /* the other rows, numbered from n_dev */
    int caller_span[DECODE_MAX_ROWS];                /* index of the caller's span */
    struct text_rows texts[DECODE_MAX_ROWS];         /* tokens of each span in spans */
    /* pinned if there are devices; x of rows [0, n_dev) receives the expert outputs */
    struct work host;
    /* Hand-off timelines. Devices signal `arrived` when rows are in host memory, and wait for cpu_done, signalled when
     * the CPU's expert outputs are ready. */
    struct gpu_timeline *arrived, *cpu_done;
    uint32_t n_arrived, n_awaited, n_cpu_done; /* values signalled, waited for and signalled, counted when enqueued */
    /* layers before it are enqueued on their device, ahead of decode_layer_advance() */
    int queued_layers;
    /* by layer parity: value of `arrived` once the layer's rows are in host memory */
    uint32_t sent_value[2];
    struct gpu_timeline *part_done[GPU_MAX]; /* tensor parallel: this rank's part of sum n_parts is in host memory */
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
    int n_dev, n_resident; /* devices that hold layers; the layers they hold are [0, n_resident) */
    /* tensor parallel: each device has a shard of every layer (decode_tensor.c); else whole layers */
    bool is_tensor_parallel;
    float *tp_parts; /* pinned, decode_tensor.c */
    enum residency_state residency;
    struct decode_counts counts;
    uint32_t *expert_rows;   /* [n_layers, n_experts] rows that selected each expert */
    uint64_t retry_clock;    /* clock at which loading is tried again */
    char layers_why[320];    /* reason for the layer assignment */
    char placement_why[900]; /* all reasons, from placement_report.h */
    struct decode_micro_batch micro_batch[DECODE_MICRO_BATCHES];
    int n_micros;
    enum dtype kv;               /* of KV caches */
    struct kv_row_layout layout; /* layout of a whole session */
    char *host_rows;             /* pinned, layout of decode_device.kv_rows: all layers, or one shard after another */
    /* pinned [n_host_states]: the states that a span produces in all layers (kv_writeback.c) */
    char *host_states;
    int n_host_states;
    int32_t *layer_ids; /* pinned, as decode_device.layer_ids */
    _Atomic int *bad;   /* pinned [GPU_MAX][DECODE_MICRO_BATCHES] */
    struct work head;   /* x, xn and bad of all rows, host memory */
    float *logits;      /* [DECODE_MAX_ROWS, vocab] */
    int32_t top[DECODE_MAX_ROWS];
    int32_t *device_top;  /* pinned [DECODE_MAX_ROWS]: of rows whose head ran on a device */
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

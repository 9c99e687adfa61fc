#pragma once
/* Shared by the paged files: weights (paged_weights.c), one device (paged_device.c), the batch (paged.c). */
#include <pthread.h>

#include "engine/exec/throughput/paged.h"
#include "engine/layer/attention.h"
#include "engine/layer/block_apart.h"
#include "engine/placement/search.h"
#include "engine/transfer/trace.h"
#include "engine/transfer/upload.h"
#include "gpu/op.h"

enum { PAGE_GATE_UP, PAGE_DOWN, PAGES }; /* pages of an expert: gate and up; down */
enum { ENDS = 2 };                       /* after the last layer: merge of streams; final norm and LM head */

/* Page table of a device's layers. In a model without experts each layer's dense FFN is paged, as the layer's only
 * expert; dense layers among layers of experts stay on the device whole. Experts [0, resident) of a layer are resident;
 * the rest are streamed in order in each batch, counted over layers and batches, and the count-th uses slot count %
 * ring. */
struct paged_weights {
    struct runtime *m;
    struct gpu *g;
    struct upload_queue uploads;
    const _Atomic int *stop;
    /* this device has the layers l with l % ranks == rank, and the head if it has the last layer */
    int rank, ranks;
    struct upload_slot *slots; /* [ring] both pages of each */
    struct layer *views;       /* [n_layers] device views without routed experts */
    struct ledger *ledger;
    struct ledger_entry *mem;          /* [n_layers] their memory */
    int *resident, *resident_at;       /* [n_layers] resident experts; their first index in table */
    struct expert *table;              /* [n_resident] resident, then [ring]: the page table */
    struct ledger_entry *resident_mem; /* [n_resident] */
    struct ledger_entry pages[PAGES];  /* [ring] slots each */
    size_t page_bytes[PAGES];
    bool is_dense;                                             /* the model has no experts */
    int n_layers, n_experts, n_paged_layers, n_resident, ring; /* n_paged_layers: of this device */
    struct weights head; /* merge of streams, final norm and LM head, on the device that has them */
    struct ledger_entry head_mem[ENDS];
    int next_layer, next_expert; /* expert of count `sent` */
    /* counts: sent; freed (as enqueued); first streamed expert of the current layer */
    uint64_t sent, freed_until, layer_base;
};
struct paged_weights_options {
    int rank, ranks;
    double share;       /* paged_options.resident_fraction */
    size_t grown_bytes; /* that attention over the starts of prompts allocates later */
};
int paged_weights_open(struct paged_weights *w, struct runtime *m, struct gpu *g, const _Atomic int *stop,
                       const struct paged_weights_options *o, const _Atomic int *cancel, struct error *e);
void paged_weights_close(struct paged_weights *w);
/* Reopens stage and timelines; drops uploads in flight. */
int paged_weights_reset(struct paged_weights *w, struct error *e);
bool paged_weights_has_head(const struct paged_weights *w); /* whether this device has the last layer and the head */
/* Feeding thread. Streamed experts of the layer, and of the device's next layer that has any (wrapping to the next
 * batch). */
uint64_t paged_weights_streamed(const struct paged_weights *w, int layer),
    paged_weights_next_streamed(const struct paged_weights *w, int layer);
/* Uploads experts with count below `until`, as far as slots are free or will be freed by enqueued work. */
int paged_weights_send(struct paged_weights *w, uint64_t until);
/* Returns the expert's view; `stream` waits for its pages. */
int paged_weights_use(struct paged_weights *w, int layer, int expert, struct gpu_stream *stream, struct expert *view);
/* Frees the slots of the layer's experts before `expert` after the work enqueued on `stream`. */
int paged_weights_free(struct paged_weights *w, int layer, int expert, struct gpu_stream *stream);

/* The device computes queries PAGED_AHEAD micro-batches ahead; one more is with the CPU. */
enum { PAGED_BUFFERS = SEARCH_MIN_STAGGER, PAGED_AHEAD = PAGED_BUFFERS - 1 };

struct micro_batch {
    int row, n; /* rows within the batch */
    int span, n_spans, extent, n_extents;
};
/* Rows that go through a matrix together: spans of at most BATCH_INVARIANT_ROWS rows in total, or one longer span
 * alone, so that a row's bits do not depend on other sessions. */
struct row_extent {
    int at, n; /* within the micro-batch */
    int span;  /* its first */
    bool is_alone;
    bool is_start; /* alone, and from position 0 on: it has all keys that its rows see */
};
struct rows_buffer {  /* pinned, of a micro-batch between device and CPU */
    struct work rows; /* what attention reads of its rows, and its results; rows of an extent are one after another */
    char *kv;         /* its KV rows, plane by plane */
    /* [starts of a micro-batch, 2, state] of a layer: the states after them, and at their marks, plane by plane */
    char *states;
};

/* A device and its layers. A unit is one micro-batch in one of its layers, numbered layer by layer within a batch. */
struct paged_device {
    struct paged *p;
    int rank, n_layers; /* layers rank, rank + n_dev, ... */
    struct gpu *g;
    unsigned n_cleared; /* gpu_n_cleared() when it was opened */
    struct gpu_stream *main;
    struct paged_weights w;
    struct work work;       /* of a micro-batch */
    struct work rows;       /* of the batch: positions, tokens, and what layers pass on */
    struct work head;       /* of BATCH_INVARIANT_ROWS rows, on the device that has the head */
    float *logits;          /* [BATCH_INVARIANT_ROWS, vocab] */
    char *planes;           /* one layer's KV rows of a micro-batch */
    struct kv_layer *cache; /* [n_layers of the model] views of planes */
    /* attention over the starts of prompts: their rows of `cache`, [n_layers]; states after them and at their marks;
     * results, until their unit is finished */
    struct kv_layer *start;
    char *states;
    float *att[PAGED_BUFFERS];
    int32_t *offset, *token; /* [n_experts + 1], [micro * topk] */
    float *weight;           /* [micro * topk] */
    struct rows_buffer buffer[PAGED_BUFFERS];
    float *host_logits;           /* pinned: [BATCH_INVARIANT_ROWS, vocab] */
    int32_t *host_ids, *host_bad; /* pinned: [micro, topk], and the non-finite mark */
    /* unit values: projected, attended, selections downloaded, rows passed on */
    struct gpu_timeline *projected, *attended, *routed, *passed;
    uint32_t n_routed; /* signalled so far */
    /* [paged_max_runs(micro)] of the micro-batch whose experts run */
    struct row_extent *runs;
    int32_t *run_counts; /* [paged_max_runs(micro), n_experts] */
    int n_runs;
    pthread_t thread;
    int rc; /* result of the feeding thread */
};
struct paged {
    struct runtime *m;
    const struct config *c;
    struct paged_options o;
    enum dtype kv;
    struct paged_device dev[GPU_MAX];
    int n_dev;
    _Atomic int stop; /* cancel flag of all streams */
    /* pinned rows of the batch: positions, tokens, embeddings, then what layers pass on between devices, or to the CPU
     * and back. Keys that indexers selected stay here. */
    struct work host;
    size_t plane_at[CACHE_PLANES + 1]; /* offset of a plane's rows in rows_buffer.kv and planes */
    struct work cpu_work;              /* scratch of attention on the CPU */
    uint32_t base_value;               /* timeline value before this batch */
    /* the running batch: */
    struct micro_batch *micro;   /* [PAGED_MAX_MICRO_BATCHES] */
    struct row_extent *extents;  /* [rows] */
    struct span *attending;      /* [BATCH_INVARIANT_ROWS] of the extent that attends */
    struct kv_state_step *steps; /* [rows] of the spans */
    int n_micros, n, stagger;    /* stagger: micro-batches by which a layer follows the one before */
    const struct paged_span *spans;
    int n_spans;
    const struct paged_calls *calls;
    const _Atomic int *cancel;
};

static inline int paged_layer(const struct paged_device *d, int unit) {
    return d->rank + unit / d->p->n_micros * d->p->n_dev;
}
static inline struct micro_batch *paged_micro(const struct paged_device *d, int unit) {
    return &d->p->micro[unit % d->p->n_micros];
}
static inline uint32_t paged_value(const struct paged_device *d, int unit) {
    return d->p->base_value + (uint32_t)unit + 1;
}
/* Global order of units. Every queue, including the CPU's, processes units in this order, so waits cannot deadlock. */
static inline int paged_turn(const struct paged_device *d, int unit) {
    return paged_layer(d, unit) * d->p->stagger + unit % d->p->n_micros;
}
static inline uint32_t paged_end_value(const struct paged *p) {
    return p->base_value + (uint32_t)(p->c->n_layers * p->n_micros) + 1;
} /* last value of a batch */
size_t paged_max_runs(int micro); /* upper bound on runs of a micro-batch */
/* Buffers of the workspace. Whether rows of the batch have it on devices and in host memory: what the batch brings, and
 * what layers pass on; on the host alone: what indexers selected; whether rows move to the CPU for attention, in any
 * layer or in this one; and the results that come back. */
bool paged_is_batch_row(const struct config *c, const struct work_row *k), paged_is_selection(const struct work_row *k),
    paged_moves(const struct config *c, const struct work_row *k),
    paged_moves_in(const struct config *c, int layer, const struct work_row *k),
    paged_is_result(const struct work_row *k);
/* Copies a micro-batch's rows of what `layer` reads of earlier layers (-1: of all that layers pass on) between host and
 * device. */
int paged_copy_passed(struct paged_device *d, const struct micro_batch *m, int layer, enum gpu_dir way);
/* Lays out the planes of a layer for a micro-batch's rows at `mem`; returns how many. Those of states have no data. */
int paged_planes(const struct paged *p, int layer, char *mem, struct kv_plane out[CACHE_PLANES]);
void paged_plan_planes(struct paged *p); /* fills plane_at */
/* Whether the device attends for the rows of an extent, the start of a prompt, instead of the CPU. It depends on the
 * prompt only. At most paged_starts_most(micro) extents of a micro-batch are such. */
bool paged_attends_on_device(const struct config *c, int layer, const struct row_extent *t);
int paged_starts_most(int micro);
/* Bytes of a state of a layer, all planes; the largest of all layers (-1). */
size_t paged_state_bytes(const struct config *c, int layer);
/* Copies the states after a start from where the device has left them to the session's cache. */
void paged_store_states(const struct config *c, int layer, const struct kv *kv, const struct kv_state_step *step,
                        const char *states);

/* d->p, rank and g are set. The caller closes it after an error. */
int paged_device_open(struct paged_device *d, const _Atomic int *cancel, struct error *e);
void paged_device_close(struct paged_device *d);
int paged_device_open_timelines(struct paged_device *d, struct error *e); /* reopens the timelines */
void paged_device_abort(struct paged_device *d);
int paged_device_feed(struct paged_device *d); /* feeds one batch; runs on its own thread */
int paged_device_head(struct paged_device *d, const int *span_ids, const int *row, int n, struct error *e);

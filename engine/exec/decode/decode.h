#pragma once
/* Decode: runs a batch of rows from several sessions through all layers. The attention block of a layer (norms,
 * attention, router) and its shared expert run where its weights and the rows' KV are: on a GPU or on the CPU. Routed
 * experts run on the CPU, except those in a GPU's expert pool. Rows may be split into two micro-batches, so that a GPU
 * computes the attention block of one while the CPU computes the experts of the other (paper A, section 3.3). Drafted
 * rows of one session may be split too.
 *
 * Only data dependencies order the work: a GPU signals a timeline when rows are in host memory, and waits for the value
 * that says that the CPU's expert outputs are ready. On one executor a row has the same bits in any batch and any
 * split. GPU and CPU differ by rounding (5e-6 of the logits), because they add partial sums in a different order. */
#include "engine/exec/prefill.h"
#include "engine/placement/placement_report.h"
#include "gpu/spec.h"

/* batch-invariant limit on rows; micro-batches */
enum { DECODE_MAX_ROWS = BATCH_INVARIANT_ROWS, DECODE_MICRO_BATCHES = 2 };

/* n tokens of one session at positions pos .. pos + n - 1; its KV cache holds all positions before pos */
struct decode_span {
    struct kv *kv;
    const int32_t *tokens; /* in memory the n_before tokens before pos precede them, as in struct text_rows */
    int pos, n, n_before;
    int turn_shift;     /* added to pos where rows are rotated: images before them (vision/image.h) */
    float *logits;      /* out: [n, vocab]; the caller may modify it; valid until the next batch */
    const int32_t *top; /* out: [n] argmax of each row */
    /* out: [n, hidden] residual stream after the last layer, until the next batch; NULL without decode_want_hidden */
    const float *hidden;
};

struct decode;
/* Opens decode on the devices of m that can hold at least one layer beside KV caches and a prefill's ring. Weights are
 * uploaded before the first batch that uses them. m must outlive *s. All functions except decode_forget belong to the
 * engine thread. Returns 0 or ERR_MEMORY. */
int decode_open(struct decode **s, struct runtime *m, enum dtype kv, struct error *e);
void decode_close(struct decode **s);
/* Runs one batch of at most DECODE_MAX_ROWS tokens. mode: DECODE_CPU, DECODE_HYBRID or DECODE_DUAL; decode_last_exec()
 * says what was possible. On success the host KV caches contain the new positions. If a device fails, decode drops all
 * devices with a warning and repeats the batch on the CPU. Returns 0, ERR_CANCELLED, ERR_MODEL or ERR_MEMORY. */
int decode_run(struct decode *s, enum exec_mode mode, struct decode_span *spans, int n_spans, const _Atomic int *cancel,
               struct error *e);
/* Drops all devices, without a log line: a prefill has already reported the lost device. */
void decode_on_device_lost(struct decode *s, const char *why);
void decode_want_hidden(struct decode *s, bool wanted); /* sets whether later batches return the residual stream */
/* Replaces the routed experts of later batches with those of a draft (NULL: back to the model's). They run on the CPU,
 * or on a device that has room for them. In a model without experts a layer has one: its dense FFN, replaced where the
 * CPU computes it. `lookahead` records the experts that the draft's routers select. All views of one decode must have
 * the same experts. */
struct decode_draft {
    struct expert *const *experts; /* [n_layers] of [n_experts], NULL for a layer without */
    uint64_t expert_bytes;
    /* NULL, or has a token for each row of the next batch, starting at token `first_token` */
    struct lookahead *lookahead;
    int first_token;
};
void decode_set_draft(struct decode *s, const struct decode_draft *v);
/* Prefetches experts that a draft's routers selected for the next batch of the model, which starts in starts_in_s
 * seconds. Resident experts are protected from eviction; missing ones are uploaded if they arrive in time, in three
 * phases (paper E, section 3.3.2): none, then the likely ones, then all. Returns the code of a failed device; the next
 * batch reports it again. */
enum decode_prefetch_phase { PREFETCH_NONE, PREFETCH_LIKELY, PREFETCH_ALL };
struct lookahead;
int decode_prefetch(struct decode *s, const struct lookahead *a, enum decode_prefetch_phase phase, double starts_in_s);
/* DECODE_DUAL: spans, or rows of a single span, in the first micro-batch of later batches; 0: half */
void decode_set_first_spans(struct decode *s, int spans);
/* spans of the last batch whose attention was on the CPU because their caches found no room on devices */
int decode_n_without_room(const struct decode *s);
/* how the last batch ran (DECODE_DUAL needs two rows on devices) */
enum exec_mode decode_last_exec(const struct decode *s);
/* rewind: positions from pos on are about to change. forget: the cache is about to be closed, no batch uses it; any
 * thread. */
void decode_rewind(struct decode *s, struct kv *kv, int pos);
void decode_forget(struct decode *s, const struct kv *kv);
/* Frees the devices' memory for a prefill: resident weights, expert pools and device KV. Batches run on the CPU until
 * decode_reclaim. Returns false when there was nothing to free. */
bool decode_yield(struct decode *s);
void decode_reclaim(struct decode *s);
bool decode_is_yielded(const struct decode *s);
/* Evicts routed experts from a device (-1: each) with less than min_free bytes free, before a prefill; they return
 * after decode_reclaim. Returns whether any were evicted. */
bool decode_evict_experts(struct decode *s, int device, size_t min_free);
/* Loads the next part of what decode keeps on devices, before a prefill that would upload it too: dense layers, then
 * experts of one or several layers per call, as long as `keep` bytes remain free on its device. *more: something was
 * loaded. Returns the code of a failed device or of a damaged weight. */
int decode_load_next(struct decode *s, size_t keep, bool *more, struct error *e);
/* whether the device (-1: all together) holds all routed experts now */
bool decode_has_all_experts(const struct decode *s, int device);
/* Keeps the weights that devices hold in place for a prefill on threads of its own: until decode_unlock_weights nothing
 * is evicted, replaced or reused; weights of a device that fails are freed then. Fills held [GPU_MAX], by device rank,
 * with what is loaded now; close the snapshots after the unlock. Only while no other lock is held. ERR_MEMORY: nothing
 * is locked. */
int decode_lock_weights(struct decode *s, struct resident_set *held, struct error *e);
void decode_unlock_weights(struct decode *s);
struct decode_counts {         /* routed experts, since opening */
    uint64_t selected, hits;   /* selected by rows on devices; of these computed there */
    uint64_t uploaded, wasted; /* uploaded; evicted without a use */
    uint64_t uploaded_bytes;
    /* uploaded after a router's prediction; of these evicted without a use */
    uint64_t prefetched, prefetched_wasted;
    /* predicted by routers, by distance in layers (1 first); of these selected */
    uint64_t predicted[3], predicted_right[3];
    double cpu_s, device_s;  /* seconds that the CPU and the device took for their experts */
    double decision_s;       /* engine thread: split, scores, predictions, choice of uploads */
    uint64_t n_decisions;    /* micro-batch layers that decision_s covers */
    uint64_t graph_launches; /* graph launches */
    uint64_t host_waits;     /* waits of the engine thread for rows of a layer from a device */
    uint64_t pinned;         /* decode_pinned_experts() */
    uint64_t draft_layers;   /* layers of draft batches whose routed experts ran on devices */
    /* KV positions copied from another session's device KV instead of uploaded */
    uint64_t kv_rows_shared;
};
struct decode_counts decode_counts(const struct decode *s);
/* used [n_layers, n_experts]: rows that selected each expert since opening; where [n_layers, n_experts]: rank of the
 * device that has a copy, -1: none. */
void decode_expert_map(const struct decode *s, uint32_t *used, int8_t *where);
/* Reports the routed experts that each device with layers holds now, and how often it computed them. Returns the number
 * of devices. */
struct decode_expert_device {
    /* layers with experts; of these with all experts on the device; experts in its pool; pinned */
    int rank, layers, resident_layers, cached, pinned;
    uint64_t resident_bytes, cached_bytes, pinned_bytes;
    uint64_t selected, hits; /* selections by its rows in these layers since opening; of these computed on the device */
};
int decode_expert_devices(const struct decode *s, struct decode_expert_device out[GPU_MAX]);
/* Identifies the experts that are pinned and their devices (--expert-cache pinned); 0: none are yet. The same number
 * with the same checkpoint: the same experts. */
uint64_t decode_pinned_experts(const struct decode *s);
/* The expected share of the routers' choices that fall on pinned experts, in the layers whose experts are not all on
 * devices; 0: none are planned. */
double decode_pinned_share(const struct decode *s);
/* Whether devices compute all routed experts of their layers and are sent those that they lack (--expert-cache sent).
 */
bool decode_sends_experts(const struct decode *s);
/* The share of the choices that needed no upload so far; before, what the usage profile lets expect. */
double decode_sent_share(const struct decode *s);
/* [n_layers, n_experts] the counts that decode_expert_map() copies to `used` */
const uint32_t *decode_expert_rows(const struct decode *s);
/* By rank of a device: bytes that decode_yield would free on it; whether it holds layers, loaded or not yet. */
size_t decode_held_bytes(const struct decode *s, int device);
bool decode_holds_layers(const struct decode *s, int device);
bool decode_uses_devices(const struct decode *s); /* whether devices will take part in the next batch */
/* Layers [0, n) have their attention blocks on devices; the last returns the reason, one sentence. Of these layers
 * decode_expert_layers have all routed experts on the device too. */
int decode_resident_layers(const struct decode *s);
int decode_expert_layers(const struct decode *s);
/* those of one device, by rank; 0 with tensor parallelism */
int decode_device_layers(const struct decode *s, int device, bool with_experts);
const char *decode_placement_why(const struct decode *s);
/* lists the current residency of every part of the model */
void decode_placement(const struct decode *s, struct placement_report *out);
/* bytes of weights assigned to the device, loaded or not yet */
size_t decode_weight_bytes(const struct decode *s, int device);
/* whether prefill_mode_blend can run: devices hold all layers, without tensor parallelism */
bool decode_can_blend(const struct decode *s);
int decode_tp_ranks(const struct decode *s); /* tensor-parallel ranks; 1: each device has whole layers */

#pragma once
/* Decode: runs a batch of rows from several sessions through all layers. The attention block of a layer (norms, attention,
 * router) and its shared expert run where its weights and the rows' KV are: on a GPU or on the CPU. Routed experts run on the
 * CPU, except those in a GPU's expert pool. Rows may be split into two micro-batches, so that a GPU computes the attention
 * block of one while the CPU computes the experts of the other (paper A, section 3.3).
 *
 * Only data dependencies order the work: a GPU signals a timeline when rows are in host memory, and waits for the value that
 * says that the CPU's expert outputs are ready. On one executor a row has the same bits in any batch and any split. GPU and
 * CPU differ by rounding (5e-6 of the logits), because they add partial sums in a different order. */
#include "engine/step/mode.h"
#include "engine/step/where.h"

enum { STEP_ROWS = OP_FEW, STEP_MICROS = 2 }; /* batch-invariant limit on rows; micro-batches */
enum step_cut { STEP_CPU, STEP_HYBRID, STEP_DUAL };

struct step_span { /* n tokens of one session at positions pos .. pos + n - 1; its KV cache holds all positions before pos */
    struct kv *kv;
    const int32_t *tokens;
    int pos, n;
    float *logits;       /* out: [n, vocab]; the caller may modify it; valid until the next batch */
    const int32_t *top;  /* out: [n] argmax of each row */
    const float *hidden; /* out: [n, hidden] residual stream after the last layer, until the next batch; NULL without decode_want_hidden */
};

struct step;
/* Opens decode on the devices of m that can hold at least one layer beside KV caches and a prefill's ring. Weights are uploaded
 * before the first batch that uses them. m must outlive *s. All functions except decode_forget belong to the engine thread.
 * Returns 0 or ERR_MEMORY. */
int step_open(struct step **s, struct machine *m, enum dtype kv, struct error *e);
void step_close(struct step **s);
/* Runs one batch of at most DECODE_MAX_ROWS tokens. On success the host KV caches contain the new positions. If a device fails,
 * decode drops all devices with a warning and repeats the batch on the CPU. Returns 0, ERR_CANCELLED, ERR_MODEL or ERR_MEMORY. */
int step_run(struct step *s, enum step_cut cut, struct step_span *spans, int n_spans, const _Atomic int *cancel, struct error *e);
/* Drops all devices, without a log line: a prefill has already reported the lost device. */
void step_lost(struct step *s, const char *why);
void step_hidden(struct step *s, bool wanted); /* sets whether later batches return the residual stream */
/* Replaces the routed experts of later batches with those of a draft (NULL: back to the model's). They run on the CPU, or on a
 * device that has room for them. `lookahead` records the experts that the draft's routers select. All views of one decode must have
 * the same experts. */
struct step_view {
    struct expert *const *experts; /* [n_layers] of [n_experts], NULL for a layer without; a layer's experts are contiguous, each starting with its gate */
    uint64_t expert_bytes;
    struct lookahead *seen; /* NULL, or has a token for each row of the next batch, starting at token `first_token` */
    int first;
};
void step_view(struct step *s, const struct step_view *v);
/* Prefetches experts that a draft's routers selected for the next batch of the model, which starts in `before` seconds. Resident
 * experts are protected from eviction; missing ones are uploaded if they arrive in time, in three phases (paper E, section
 * 3.3.2): none, then the likely ones, then all. Returns the code of a failed device; the next batch reports it again. */
enum step_phase { STEP_PRIME, STEP_LIKELY, STEP_ALL };
struct lookahead;
int step_expect(struct step *s, const struct lookahead *a, enum step_phase phase, double before);
void step_cut_at(struct step *s, int spans);  /* DECODE_EXEC_DUAL: spans in the first micro-batch of later batches; 0: half */
enum step_cut step_ran(const struct step *s); /* how the last batch ran (DECODE_EXEC_DUAL needs two rows on devices) */
/* rewind: positions from pos on are about to change. forget: the cache is about to be closed, no batch uses it; any thread. */
void step_rewind(struct step *s, struct kv *kv, int pos);
void step_forget(struct step *s, const struct kv *kv);
/* Frees the devices' memory for a prefill: resident weights, expert pools and device KV. Batches run on the CPU until
 * decode_reclaim. Returns false when there was nothing to free. */
bool step_yield(struct step *s);
void step_back(struct step *s);
bool step_away(const struct step *s);
/* Evicts routed experts from each device with less than `free` bytes free, before a prefill; they return after decode_reclaim. */
void step_lend(struct step *s, size_t free);
struct step_counts {         /* routed experts, since opening */
    uint64_t chosen, here;   /* selected by rows on devices; of these computed there */
    uint64_t moved, in_vain; /* uploaded; evicted without a use */
    uint64_t moved_bytes;
    uint64_t ahead, ahead_in_vain; /* the same two, for uploads caused by a router prediction */
    uint64_t said[3], right[3];    /* predicted by routers, by distance in layers (1 first); of these selected */
    double processor_s, device_s;  /* seconds that the CPU and the device took for their experts */
    double deciding_s;             /* engine thread: split, scores, predictions, choice of uploads */
    uint64_t decided;              /* micro-batch layers that decision_s covers */
    uint64_t replayed;             /* graph launches */
    uint64_t drafted;              /* layers of draft batches whose routed experts ran on devices */
    uint64_t taken;                /* KV positions copied from another session's device KV instead of uploaded */
};
struct step_counts step_counts(const struct step *s);
/* used [n_layers, n_experts]: rows that selected each expert since opening; where, the same shape: rank of the device that has a copy, -1: none. */
void step_experts_map(const struct step *s, uint32_t *used, int8_t *where);
/* By rank of a device: bytes that decode_yield would free on it; whether it holds layers, loaded or not yet. */
size_t step_held(const struct step *s, int device);
bool step_holds(const struct step *s, int device);
bool step_ready(const struct step *s); /* whether devices will take part in the next batch */
/* Layers [0, n) have their attention blocks on devices; the second returns the reason, one sentence. */
int step_resident_layers(const struct step *s);
const char *step_resident(const struct step *s);
void step_where(const struct step *s, struct where *out); /* lists the current residency of every part of the model */
size_t step_weights(const struct step *s, int device);    /* bytes of weights assigned to the device, loaded or not yet */
bool step_blends(const struct step *s);                   /* devices hold all layers without tensor parallelism: mode_blend can run */
int step_ranks(const struct step *s);                     /* tensor-parallel ranks; 1: each device has whole layers */

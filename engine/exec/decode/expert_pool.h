#pragma once
/* Owns a device's expert pool: slots, uploads, eviction, and the part of a layer's experts that the device computes.
 * Each device caches experts of its own layers, the same number for each layer, shared by all sessions.
 *
 * Eviction follows scores (score.h). After a layer, an idle link uploads the most useful expert: the best missing one
 * in place of the worst, or one predicted for the next three layers (router_lookahead.h, predict.h). A batch never
 * waits for these uploads, and a slot is overwritten only after its queued readers. An expert is uploaded only after
 * the CPU has computed with it, so it was scanned for damage and is in memory. Experts that never move are
 * pinned_experts.h's.
 *
 * CPU and GPU differ by rounding: where an expert runs may decide a near tie. A pool that sends (expert_cache.is_sent)
 * lets the device compute all experts, so that results do not depend on which ones are resident. Engine thread only. */
#include "engine/exec/decode/router_lookahead.h"
#include "engine/experts/budget.h"
#include "engine/experts/score.h"
#include "engine/placement/split.h"
#include "engine/transfer/upload.h"

enum { EXPERT_POOL_TRANSIT = 2 }; /* slots of a pool that sends, for experts that no slot of their layer can take */
struct expert_pool {
    struct decode_device *d;
    int slots_per_layer;       /* slots per layer; 0: none */
    struct expert_slot *slots; /* [n_layers, slots_per_layer] */
    int16_t *slot_of;          /* [n_layers, n_experts] -1: not resident */
    struct expert_slot transit[EXPERT_POOL_TRANSIT];
    struct upload_queue uploads;
    struct gpu_stream *compute;
    _Atomic int stop; /* cancels the uploads and the stream */
    bool is_frozen;   /* no slot changes */
    /* a layer's part of a micro-batch is in y */
    struct gpu_timeline *done[DECODE_MICRO_BATCHES];
    /* by layer parity: xn is ready and the shared expert done */
    struct gpu_event *ready[DECODE_MICRO_BATCHES][2];
    /* timing of the part that the device computed last */
    struct gpu_event *begin[DECODE_MICRO_BATCHES], *end[DECODE_MICRO_BATCHES];
    double expected_s[DECODE_MICRO_BATCHES]; /* predicted seconds for it */
    /* rows of that part, until its time is recorded; 0: none */
    int timed_rows[DECODE_MICRO_BATCHES];
    uint32_t n_done[DECODE_MICRO_BATCHES], n_awaited[DECODE_MICRO_BATCHES];
    float *y[DECODE_MICRO_BATCHES], *expert_in,
        /* device [DECODE_MAX_ROWS, expert_io.width]: sum of a micro-batch; input and output of one expert */
        *expert_out;
    int32_t *token[DECODE_MICRO_BATCHES]; /* device [DECODE_MAX_ROWS * topk], and the pinned copies below */
    float *weight[DECODE_MICRO_BATCHES];
    int32_t *host_token[DECODE_MICRO_BATCHES];
    float *host_weight[DECODE_MICRO_BATCHES];
    /* Copies of the computed layer's selections and router logits, since the micro-batch's host buffers receive the
     * next layer's while scores are updated. */
    int32_t *ids;         /* [DECODE_MAX_ROWS, topk] */
    float *router;        /* [DECODE_MAX_ROWS, config_n_choices()] */
    int32_t *cpu_ids;     /* [DECODE_MAX_ROWS, topk] left to the CPU; -1: not */
    int32_t *best;        /* [DECODE_MAX_ROWS, 2 * topk] best experts of each row (score_best), with their scores */
    float *best_score;    /* [DECODE_MAX_ROWS, 2 * topk] */
    int32_t *expert_rows; /* [n_experts] rows that selected each expert; 0: the split does not consider it */
    int16_t *expert_ids;  /* [n_experts] ids of split_experts */
    struct router_lookahead lookahead;
    /* when the last layer's experts started; recent mean seconds from layer to layer */
    double layer_begin_s, layer_period_s;
    struct cost_table cost[2];
    /* seconds: upload of one expert; shared expert on the device, by rows */
    double upload_s, shared_s[DECODE_MAX_ROWS + 1];
    struct split_expert *split_experts;
    struct split_plan *plan;
};

/* Bytes of a slot of a layer, whose experts may be stored in another format than those of other layers; layer -1: of
 * the largest slot. */
size_t expert_pool_slot_bytes(const struct runtime *m, int layer);
/* Allocates as many slots as the budget allows, after the device's weights are loaded. Runs without a pool if not even
 * one fits; not an error. */
int expert_pool_open(struct decode_device *d, struct error *e);
void expert_pool_close(struct decode_device *d);
/* Stops uploads and evictions while a prefill reads the slots' experts, or lets them continue. Experts stay usable by
 * decode batches. */
void expert_pool_freeze(struct decode_device *d, bool frozen);
/* Returns the device view of an expert that has arrived; NULL: none. Valid while the pool is frozen. */
const struct expert *expert_pool_expert(const struct decode_device *d, int layer, int expert);
/* Removes one slot per layer, after queued work; false: there is none. */
bool expert_pool_shrink(struct decode_device *d);
void expert_pool_begin_batch(struct decode_device *d); /* at the start of a batch */
/* After a failed or cancelled batch. abort: releases all waits for the device's part, so that d->main can be
 * synchronized. reset: new timelines and streams; experts that have arrived stay. */
void expert_pool_abort(struct decode_device *d);
int expert_pool_reset(struct decode_device *d, struct error *e);

/* Writes the device's rank into where [n_layers, n_experts] for each resident expert. */
void expert_pool_mark_resident(const struct decode_device *d, int8_t *where);
int expert_pool_count(const struct decode_device *d, uint64_t *bytes); /* experts in slots, and their bytes */
/* Saves x [n, hidden] for router look-ahead; after the attention block, before the shared expert (enqueued on
 * d->main). */
int expert_pool_save_rows(struct decode_device *d, int micro, int layer, const float *x, int n);
/* Marks a layer's rows as ready for experts, after its attention block (enqueued on d->main). */
int expert_pool_rows_ready(struct decode_device *d, int micro, int layer);
/* Adds the sum of the device's experts to `to`, [n, expert_io.width], once it is done (enqueued on d->main). */
int expert_pool_join(struct decode_device *d, int micro, float *to, int n);
/* Splits the experts that m's rows selected, and enqueues the device's part. *cpu_ids [m->n, topk]: ids left to the
 * CPU, -1 for the rest. *expected: predicted CPU seconds. ERR_MODEL: a weight that was to be sent is damaged. */
int expert_pool_run(struct decode_device *d, struct decode_micro_batch *m, int layer, int32_t **cpu_ids,
                    double *expected, struct error *e);
/* See decode_prefetch. */
int expert_pool_prefetch(struct decode_device *d, const struct lookahead *a, enum decode_prefetch_phase phase,
                         double until_batch_s);
/* After the CPU's part, which took `took` seconds: updates scores and may start an upload. */
int expert_pool_end_layer(struct decode_device *d, struct decode_micro_batch *m, int layer, double expected,
                          double took);

#pragma once
/* Owns a device's expert pool: slots, uploads, eviction, and the part of a layer's experts that the device computes. Each device
 * caches experts of its own layers, the same number for each layer, shared by all sessions.
 *
 * Eviction follows scores (score.h). After a layer, an idle link uploads the most useful expert: the best missing one in place of
 * the worst, or one predicted for the next three layers (router_lookahead.h, predict.h). A batch never waits for these uploads,
 * and a slot is overwritten only after its queued readers. An expert is uploaded only after the CPU has computed with it, so it
 * was scanned for damage and is in memory. With --deterministic the first experts of each layer are loaded at the start, stay,
 * and always run on the device, so that results do not depend on history.
 *
 * CPU and GPU differ by rounding: where an expert runs may decide a near tie. Engine thread only. */
#include "engine/cache/budget.h"
#include "engine/cache/score.h"
#include "engine/sched/split.h"
#include "engine/step/guess.h"

struct step_slot {
    char *mem;
    struct expert view;
    uint32_t on, off; /* values: of `loaded` once the weights arrived; of `freed` after the last use, 0: no use yet */
    int expert;       /* -1: empty */
    bool used, ahead; /* used since the upload; uploaded because of a prediction */
};
struct step_experts {
    struct step_device *d;
    int each;                /* slots per layer; 0: none */
    struct step_slot *slots; /* [n_layers, each] */
    int16_t *slot_of;        /* [n_layers, n_experts] -1: not resident */
    struct gpu_stream *link, *compute;
    _Atomic int stop; /* cancel flag of both */
    struct stage *stage;
    struct gpu_number *loaded, *freed, *done[STEP_MICROS];   /* done: a layer's part of a micro-batch is in y */
    struct gpu_event *ready[STEP_MICROS][2];                 /* by layer parity: xn is ready and the shared expert done */
    struct gpu_event *begin[STEP_MICROS], *end[STEP_MICROS]; /* timing of the part that the device computed last */
    double expected[STEP_MICROS];                            /* predicted seconds for it */
    bool timed[STEP_MICROS];                                 /* end is pending and not counted yet */
    uint32_t n_loaded, n_freed, n_done[STEP_MICROS], n_wanted[STEP_MICROS];
    float *y[STEP_MICROS], *x, *part; /* device [STEP_ROWS, hidden]: sum of a micro-batch; input and output of one expert */
    int32_t *token[STEP_MICROS];      /* device [STEP_ROWS * topk], and the pinned copies below */
    float *weight[STEP_MICROS];
    int32_t *host_token[STEP_MICROS];
    float *host_weight[STEP_MICROS];
    int32_t *ids;  /* [STEP_ROWS, topk] and router logits [STEP_ROWS, n_experts] of the layer being computed: copies, since m->host receives the */
    float *router; /* next layer's after the answer */
    int32_t *mine, *near, *rows; /* [STEP_ROWS, topk] left to the CPU; [STEP_ROWS, 2 * topk]; [n_experts] */
    float *chance;
    int16_t *expert_of; /* [n_experts] ids of split_experts */
    struct step_guess guess;
    double begun, beat; /* when the last layer's experts started; recent mean seconds from layer to layer */
    struct cost_table table[2];
    double move, shared[STEP_ROWS + 1]; /* seconds: upload of one expert; shared expert on the device, by rows */
    struct split_expert *experts;
    struct split_plan *plan;
};

size_t step_experts_slot(const struct machine *m); /* bytes of a slot */
/* Allocates as many slots as the budget allows, after the device's weights are loaded. Runs without a pool if not even one fits; not an error. */
int step_experts_open(struct step_device *d, struct error *e);
void step_experts_close(struct step_device *d);
/* Removes one slot per layer, after queued work; false: there is none. */
bool step_experts_less(struct step_device *d);
void step_experts_begin(struct step_device *d); /* at the start of a batch */
/* After a failed or cancelled batch. abort: releases all waits for the device's part, so that d->main can be synchronized. reset:
 * new timelines and streams; experts that have arrived stay. */
void step_experts_break(struct step_device *d);
int step_experts_settle(struct step_device *d, struct error *e);

/* Writes the device's rank into where [n_layers, n_experts] for each resident expert. */
void step_experts_where(const struct step_device *d, int8_t *where);
/* Saves x [n, hidden] for router look-ahead; after the attention block, before the shared expert (enqueued on d->main). */
int step_experts_keep(struct step_device *d, int micro, int layer, const float *x, int n);
/* Marks a layer's rows as ready for experts, after its attention block (enqueued on d->main). */
int step_experts_ready(struct step_device *d, int micro, int layer);
/* Adds the device's expert outputs to x [n, hidden] once they are done (enqueued on d->main). */
int step_experts_join(struct step_device *d, int micro, float *x, int n);
/* Splits the experts that m's rows selected, and enqueues the device's part. *mine [m->n, topk]: ids left to the CPU, -1 for
 * the rest. *expected: predicted CPU seconds. */
int step_experts_run(struct step_device *d, struct step_micro *m, int layer, int32_t **mine, double *expected);
/* See decode_prefetch. */
int step_experts_expect(struct step_device *d, const struct lookahead *a, enum step_phase phase, double before);
/* After the CPU's part, which took `took` seconds: updates scores and may start an upload. */
int step_experts_after(struct step_device *d, struct step_micro *m, int layer, double expected, double took);

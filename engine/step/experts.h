#pragma once
/* Routed experts that lie on a device: slots, what is in them, and a layer's part that is computed there. Each device keeps
 * experts of the layers whose attention halves it has, the same number in each; all sessions share them.
 *
 * What is kept follows a score (cache/score.h). After a layer the link, when nothing is on it, brings what is of most use: the best expert that
 * is not here into the place of the worst, or what one of the next three layers will want (guess.h, cache/predict.h). A step never waits
 * for that, and what was queued before reads its slot to the end first. An expert comes only once the processor has computed with it: then it was looked at for
 * damage, and is in memory. With --deterministic the first experts of each layer are here from the beginning and stay, and are always computed here, so that no
 * token's numbers hang on what was before.
 *
 * A device and the processor differ by a rounding, as everywhere in a step: which of them has an expert may turn a near tie.
 * The engine's thread alone. */
#include "engine/cache/budget.h"
#include "engine/cache/score.h"
#include "engine/sched/split.h"
#include "engine/step/guess.h"

struct step_slot {
    char *mem;
    struct expert view;
    uint32_t on, off; /* `loaded` when it is here; `freed` after its last use, 0: none so far */
    int expert;       /* -1: nobody's */
    bool used, ahead; /* since it came; it came because it was foreseen */
};
struct step_experts {
    struct step_device *d;
    int each;                /* slots of each layer; 0: none */
    struct step_slot *slots; /* [n_layers, each] */
    int16_t *slot_of;        /* [n_layers, n_experts] -1: not here */
    struct gpu_stream *link, *compute;
    _Atomic int stop; /* their cancel */
    struct stage *stage;
    struct gpu_number *loaded, *freed, *done[STEP_MICROS];   /* done: a layer's part of a micro-batch is in y */
    struct gpu_event *ready[STEP_MICROS][2];                 /* by the layer's parity: xn is there and the shared expert through */
    struct gpu_event *begin[STEP_MICROS], *end[STEP_MICROS]; /* of the part that a device computed last */
    double expected[STEP_MICROS];                            /* seconds that it was to take */
    bool timed[STEP_MICROS];                                 /* it was, and is not in the counts yet */
    uint32_t n_loaded, n_freed, n_done[STEP_MICROS], n_wanted[STEP_MICROS];
    float *y[STEP_MICROS], *x, *part; /* device [STEP_ROWS, hidden]: a micro-batch's sum; one expert's rows and what it gives */
    int32_t *token[STEP_MICROS];      /* device [STEP_ROWS * topk], and pinned behind it */
    float *weight[STEP_MICROS];
    int32_t *host_token[STEP_MICROS];
    float *host_weight[STEP_MICROS];
    int32_t *ids;                /* [STEP_ROWS, topk] and what routers said, [STEP_ROWS, n_experts]: of the layer that is computed, when its rows */
    float *router;               /* were answered and the next layer's come to m->host */
    int32_t *mine, *near, *rows; /* [STEP_ROWS, topk] what the processor is left with; [STEP_ROWS, 2 * topk]; [n_experts] */
    float *chance;
    int16_t *expert_of; /* [n_experts] of the split's */
    struct step_guess guess;
    double begun, beat; /* when a layer's experts were begun last; seconds from one layer's to the next one's, of late */
    struct cost_table table[2];
    double move, shared[STEP_ROWS + 1]; /* seconds: an expert over the link; the shared one on the device, by rows */
    struct split_expert *experts;
    struct split_plan *plan;
};

size_t step_experts_slot(const struct machine *m); /* bytes of one expert's */
/* Slots for as many experts as the budget gives, after the device's own weights came. Without memory for any: none, no error. */
int step_experts_open(struct step_device *d, struct error *e);
void step_experts_close(struct step_device *d);
/* One expert less in each layer; false: there is none. What is queued is waited for. */
bool step_experts_less(struct step_device *d);
void step_experts_begin(struct step_device *d); /* a step */
/* After a step that failed or was stopped: nobody waits for the device's part any more, so that d->main can be waited for; then numbers and
 * streams anew, and what has arrived stays. */
void step_experts_break(struct step_device *d);
int step_experts_settle(struct step_device *d, struct error *e);

/* Writes the device's rank at each expert that is here, where [n_layers, n_experts]. */
void step_experts_where(const struct step_device *d, int8_t *where);
/* In a layer's attention half, before its shared expert (enqueued on d->main): keeps x [n, hidden] to ask the next routers. */
int step_experts_keep(struct step_device *d, int micro, int layer, const float *x, int n);
/* Where a layer's rows leave the attention half (enqueued on d->main): experts may be computed from here on. */
int step_experts_ready(struct step_device *d, int micro, int layer);
/* Adds what the device's experts gave to x [n, hidden], when it is there (enqueued on d->main). */
int step_experts_join(struct step_device *d, int micro, float *x, int n);
/* Who computes which of the experts that m's rows chose: enqueues the device's, and returns what the processor is left with [m->n, topk], -1 in
 * the place of the others. */
int step_experts_run(struct step_device *d, struct step_micro *m, int layer, int32_t **mine, double *expected);
/* As step_expect says. */
int step_experts_expect(struct step_device *d, const struct lookahead *a, enum step_phase phase, double before);
/* After the processor's part, which took so long: learns, and lets the link bring something. */
int step_experts_after(struct step_device *d, struct step_micro *m, int layer, double expected, double took);

#pragma once
/* --plan: predicts the speed of a machine with a model, as one JSON object. Each figure is a run in virtual time
 * (virtual.h); runs are distributed over this machine's cores. engine.h's engine_plan() is the caller. */
#include "base/buf.h"
#include "base/error.h"
#include "base/mat.h"
#include "engine/experts/budget.h"
#include "engine/experts/usage_profile.h"
#include "engine/placement/cost.h"
#include "engine/weights/weights.h"

/* How far these predictions are from published figures of other programs on machines of the same kind, at most, in
 * percent of the published tokens/s (column hearth of test/bench/foresight.md; paper A). Answers and, in FP8, prompts
 * are published slower than predicted. */
enum { PLAN_DECODE_ERROR = 35, PLAN_PREFILL_ERROR = 36 };
/* Time of an answer's token over the predicted one on the one card that has run hearth, an H100
 * (test/bench/first-light-predictions.md: 31.6 and 13.0 ms). */
#define PLAN_CARD_SLOWER 2.4

/* Weights that exceed memory are read from the machine's disk if its speed is known and all but routed experts fit.
 * Appends {"basis": "modelled, not measured", "machine": .., "model": title, "error": {"decode": .., "prefill": ..,
 * "card": ..}, "fits": .., "prefill": .., "decode": .., "batch": .., "more": ..}. progress: NULL, or called on the
 * caller's thread with the share of finished runs; non-zero cancels. ERR_MEMORY, ERR_CANCELLED, ERR_RUNTIME. */
struct plan_options {
    enum dtype kv;
    struct expert_cache experts; /* --expert-cache: whole layers, or pinned ones, which a pool counts as */
    struct usage_profile *usage; /* of the checkpoint; NULL: routing as assumed */
    double max_tpot_s;           /* --max-tpot: adds "max_tpot", how many sessions decode at once within it; 0: none */
    int (*progress)(void *ctx, double share);
    void *ctx;
};
int plan_write(const struct cost_machine *cost, const struct weights *w, const char *title,
               const struct plan_options *o, struct buf *out, struct error *e);

#pragma once
/* --plan: predicts the speed of a machine with a model, as one JSON object. Each figure is a run in virtual time
 * (virtual.h); runs are distributed over this machine's cores. engine.h's engine_plan() is the caller. */
#include "base/buf.h"
#include "base/error.h"
#include "base/mat.h"
#include "engine/placement/cost.h"
#include "engine/weights/weights.h"

/* How far tokens/s of published figures that no constant was fitted to were off, at most, in percent
 * (test/bench/foresight.md). */
enum { PLAN_DECODE_ERROR = 11, PLAN_PREFILL_ERROR = 14 };

/* Weights that exceed memory are read from the machine's disk if its speed is known and all but routed experts fit.
 * Appends {"basis": "modelled, not measured", "machine": .., "model": title, "error": {"decode": .., "prefill": ..},
 * "fits": .., "prefill": .., "decode": .., "batch": .., "more": ..}. progress: NULL, or called on the caller's thread
 * with the share of finished runs; non-zero cancels. ERR_MEMORY, ERR_CANCELLED, ERR_RUNTIME. */
struct plan_options {
    enum dtype kv;
    double max_tpot_s; /* --max-tpot: adds "max_tpot", how many sessions decode at once within it; 0: none */
    int (*progress)(void *ctx, double share);
    void *ctx;
};
int plan_write(const struct cost_machine *cost, const struct weights *w, const char *title,
               const struct plan_options *o, struct buf *out, struct error *e);

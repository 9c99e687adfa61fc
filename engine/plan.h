#pragma once
/* --plan: what a machine would give with a model, as one JSON object; engine.h's engine_plan. The questions are a list of runs in virtual
 * time (virtual.h), which go beside each other on this machine's cores. */
#include "engine/base/buf.h"
#include "engine/base/error.h"
#include "engine/base/mat.h"
#include "engine/sched/cost.h"
#include "engine/store/weights.h"

/* Weights that do not fit in memory are read from the machine's disk, if its speed is known and all but routed experts fit.
 * Appends {"machine": .., "model": title, "fits": .., "prefill": .., "decode": .., "batch": .., "more": ..}. progress: NULL, or told the share of the runs
 * that are done, on the caller's thread; non-zero cancels. ERR_MEMORY, ERR_CANCELLED, ERR_RUNTIME. */
int plan_write(const struct cost_machine *cost, const struct weights *w, const char *title, enum dtype kv, int (*progress)(void *ctx, double share), void *ctx,
               struct buf *out, struct error *e);

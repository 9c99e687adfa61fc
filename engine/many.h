#pragma once
/* Many prompts at once: sessions whose prompts and answers go through the layers together, in paged steps (step/paged.h). The policy
 * search says whether that pays, how many and in which micro-batches; --decode paged asks for it whatever it says. In such a step a
 * session that answers has one row, one whose prompt is not read as many of it as there is room for; those that answer are put into
 * micro-batches by how much they attend to (sched/batching.h). Whoever finds no room waits for the next step.
 *
 * All of it belongs to the engine's thread, but for many_open and many_close. */
#include <stdbool.h>

#include "engine/base/error.h"

struct engine;
struct engine_load;
struct many;
int many_open(struct engine *e, struct error *err); /* NULL stays in e->many where there is no device */
void many_close(struct engine *e);
/* The caller has the lock. Whether sessions that are queued or answer are for a paged step. */
enum many_next { MANY_NOT, MANY_HOLD, MANY_STEP }; /* HOLD: more prompts are on their way */
enum many_next many_ready(struct engine *e);
void many_step(struct engine *e);          /* without the lock */
int many_devices(const struct engine *e);  /* that have layers in turn; 0: no paged steps are open */
int many_micro(const struct engine *e);    /* rows of a micro-batch of those that answer */
double many_share(const struct engine *e); /* of the experts, what stays on the device now; -1: no paged steps are open */
/* engine_load on the engine's thread: how many to submit at once. NULL: all that were announced are there. */
int many_load(struct engine *e, const struct engine_load *load);

#pragma once
/* The speeds of this machine in the engine's cost model. */
#include "engine/session/engine_state.h"

/* The speeds that are assumed for a CPU with `threads` and devices (NULL: none). */
void speeds_assumed(struct cost_machine *m, const struct gpu_set *g, int threads, enum cpu_level level);
/* fills in assumed speeds; speeds_calibrate() replaces them and observations correct them */
void speeds_assume(struct engine *eng, enum cpu_level level);
void speeds_calibrate(struct engine *eng); /* engine thread: calibrates the machine, once */

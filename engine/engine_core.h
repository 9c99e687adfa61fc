#pragma once
#include "engine/engine.h"

/* As engine_open(), without the draft model of p->draft_model. */
int engine_core_open(struct engine **out, const struct engine_params *p, struct error *e);

#pragma once
/* What precedes a prefill's driver: the caches are asked for the prompt, the mode is chosen, the job is made. Engine
 * thread. */
#include "engine/session/engine_state.h"

/* Does one unit: looks the prompt up in the caches, loads saved KV, images, and resident weights. Returns PREFILL_MORE,
 * an error, or 0 with the driver. */
int prefill_begin_unit(struct session *s, const struct prefill_driver **driver, struct error *e);
/* Fills s->prefill.job with the tokens after s->n_kv. ERR_MEMORY. */
int prefill_begin_job(struct session *s, struct error *e);
void prefill_add_why(struct session *s, const char *text); /* appends to the reasons of a prefill */

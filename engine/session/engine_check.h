#pragma once
/* Checks the parameters of an engine that need no open model, or its config alone. */
#include "cpu/numa.h"
#include "engine/engine.h"
#include "engine/experts/budget.h"
#include "engine/model/config.h"

/* parses --expert-cache; NULL: off; ERR_USAGE */
int engine_parse_expert_cache(const char *text, struct expert_cache *out);
/* What a run of a checkpoint with these parameters, which are valid, does: the experts that devices keep, and the
 * directory of the usage profile, NULL: none. With --deterministic it knows no earlier runs, unless it is to be pinned
 * by them. why: what --tune has measured, "" if nothing. */
struct expert_cache engine_expert_cache(const struct engine_params *p, uint64_t fingerprint, const char **usage_dir,
                                        char why[EXPERT_CACHE_WHY]);
/* ERR_USAGE: the CPU lacks the requested level */
int engine_check_level(const struct engine_params *p, struct error *e);
/* from the file, or from the system if topology is NULL */
int engine_read_topology(struct numa *nodes, const char *topology, struct error *e);
/* ERR_USAGE: options that contradict each other or the devices */
int engine_check_modes(const struct engine_params *p, struct error *e);

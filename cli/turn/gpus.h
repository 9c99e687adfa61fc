#pragma once
/* The GPUs that the engine of this process uses: --gpus, its value "auto", and the default. */
#include "cli/app.h"

enum { MACHINE_LINE = 700 };                  /* bytes of engine_params.machine */
bool gpus_are_automatic(const struct app *a); /* chosen by hearth: "auto", or no option */
/* Returns --gpus as a list for the engine: "auto", which options may follow, becomes the GPUs of this machine, or
 * "none". NULL without the option. */
const char *gpus_of_option(struct app *a);
/* Returns the GPUs that answers use without the option: those of this machine, if cards of their architectures have run
 * hearth or --check-gpus has found their results right. NULL if none are used, as for the built-in model, which the CPU
 * answers at once. Sets a->has_unused_gpus and a->gpu_trouble. */
const char *gpus_by_default(struct app *a);
/* Sets p->tuned_dir and p->machine, if p->gpus are used, for what --tune has measured of a checkpoint with them. dir
 * [PATHS_MAX] and machine [cap] hold the values. */
void gpus_set_tuned(struct engine_params *p, char dir[PATHS_MAX], char *machine, size_t cap);
/* Whether --check-gpus has found the results of this machine's GPUs wrong. */
bool gpus_were_wrong(void);
/* Stores the result of --check-gpus for the GPUs that `text` names (engine_gpus). */
int gpus_store_check(const char *text, bool right, struct error *e);

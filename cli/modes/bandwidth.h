#pragma once
#include "cli/app.h"

/* Returns the memory bandwidth of this machine in bytes/s. Measured once, which takes seconds, with the open engine or
 * else with the built-in model, and kept in the cache directory for a month. 0: unknown. */
double bandwidth_of_machine(struct app *a);
/* The same without measuring. 0: not measured yet. */
double bandwidth_cached(void);

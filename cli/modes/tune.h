#pragma once
/* --tune: measures the speed of answers with the best placements of routed experts, and stores which is fastest. */
#include "cli/app.h"

int tune_run(struct app *a, struct error *e);

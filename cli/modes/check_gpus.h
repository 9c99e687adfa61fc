#pragma once
/* --check-gpus: compares what devices compute with the CPU's results. */
#include "cli/app.h"

int check_gpus_run(struct app *a, struct error *e);

#pragma once
/* --bench: measured speeds, each next to the limit measured in the same run. */
#include "cli/app.h"

int bench_run(struct app *a, struct error *e);

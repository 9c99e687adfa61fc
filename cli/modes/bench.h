#pragma once
/* --bench: measured speeds, each next to the limit measured in the same run. */
#include "cli/app.h"

int bench_run(struct app *a, struct error *e);
/* Measures the open engine: tokens/s of an answer after `keys` tokens, and of a prompt of `prompt` tokens; 0: the
 * context is too small. Others of the machine's programs lower both. */
int bench_measure(struct app *a, int keys, int prompt, double *answer, double *read, struct error *e);

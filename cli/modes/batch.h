#pragma once
/* --batch: many prompts from a file, several at once. */
#include "cli/app.h"

int batch_run(struct app *a, struct error *e);

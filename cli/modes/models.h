#pragma once
/* Lists the models that -m finds, with size and expected speed. */
#include "cli/app.h"

int models_print(struct app *a, struct error *e);                 /* --models */
int models_text(struct app *a, struct buf *out, struct error *e); /* one row each: family, size, memory, speed */

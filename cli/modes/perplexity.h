#pragma once
/* --perplexity FILE: how well a model predicts a text, and with --kl MODEL how far from another model it is. */
#include "cli/app.h"

int perplexity_run(struct app *a, struct error *e);

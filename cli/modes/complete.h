#pragma once
#include "cli/app.h"

int complete_run(struct app *a, struct error *e); /* --complete KIND: names for the completions of shells */

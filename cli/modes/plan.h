#pragma once
#include "cli/app.h"

int plan_run(struct app *a, struct error *e); /* --plan */

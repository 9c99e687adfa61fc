#pragma once
#include "cli/app.h"

int use_run(struct app *a, struct error *e); /* --use NAME: makes a model the default, in the configuration file */

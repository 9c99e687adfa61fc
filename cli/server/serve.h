#pragma once
#include "cli/app.h"

/* --serve: opens the engine and serves until --stop, a signal, or --idle. ERR_RUNTIME when a resident engine is
 * running. */
int serve_run(struct app *a, struct error *e);
int resident_status_print(struct app *a, struct error *e); /* --status; also with --json */
int resident_status_stop(struct app *a, struct error *e);  /* --stop: returns when the engine has ended */

#pragma once
/* The loop over keys, engine events and signals. */
#include "cli/chat/chat.h"

int repl_run(struct app *a, struct error *e);

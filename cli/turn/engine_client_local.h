#pragma once
/* The engine of this process as a backend. */
#include "cli/turn/engine_client.h"

extern const struct backend backend_local;

/* Sets engine parameters from the options. Strings remain owned by the options. */
void engine_client_local_params(struct app *a, struct engine_params *p);
/* Opens only the tokenizer of a->model_dir. ERR_MODEL when there is none. */
int engine_client_local_tokenizer(struct app *a, struct error *e);

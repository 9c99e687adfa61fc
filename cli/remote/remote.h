#pragma once
/* Engines in other processes that speak chat completions: the resident engine over its socket, and servers by URL. One
 * libcurl client for both, with a thread that only sends, receives and waits. */
#include "cli/app.h"
#include "cli/turn/engine_client.h"

/* backend_remote: the server at the URL of -m. backend_attached: the resident engine, after remote_attach. */
extern const struct backend backend_remote, backend_attached;
/* ERR_USAGE names an option that a remote server does not support; ERR_RUNTIME: built without libcurl. */
int remote_check_options(struct app *a, struct error *e);
/* Connects to the resident engine if it has the model and the options of this process. */
bool remote_attach(struct app *a);
/* Returns the host of the server that answers if it is another machine's; NULL: the engine is on this one. */
const char *remote_host(const struct app *a);
/* Copies the directory of the resident engine's model. False without a running engine, and with --no-attach. */
bool remote_resident_model(struct app *a, char *out, size_t cap);

#pragma once
/* Engines in other processes that speak chat completions: the resident engine over its socket, and servers by URL. One libcurl client
 * for both, with a thread that only sends, receives and waits. */
#include "cli/app.h"
#include "cli/turn/conversation.h"

bool remote_is_url(const char *model); /* true for http://… and https://… */
/* Selects the server at the URL as a->backend. ERR_USAGE names an option that a server does not support; ERR_RUNTIME: built without
 * libcurl. */
int remote_select(struct app *a, struct error *e);
/* Selects the resident engine as a->backend if it has the model and the options of this process. */
bool remote_attach(struct app *a);

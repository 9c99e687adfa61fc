#pragma once
/* Engines that are elsewhere and speak chat completions: the resident one, by its socket, and servers by a URL. One client
 * for both, over libcurl; it has a thread of its own, which does nothing but send, receive and wait. */
#include "cli/app.h"
#include "cli/conv.h"

bool remote_is_url(const char *model); /* what -m was given: http://… or https://… */
/* For a URL: a->backend is the server there from now on. ERR_USAGE names an option that it cannot serve, or what the build lacks. */
int remote_choose(struct app *a, struct error *e);
/* When the resident engine is the one that -m and the options mean, a->backend is it. */
bool remote_attach(struct app *a);

/* In place of serve.c and its like where libmicrohttpd was not there to build with. */
#include "cli/serve.h"

int serve_run(struct app *a, struct error *e) { return error_set(e, ERR_RUNTIME, "--serve: this build has no HTTP server (libmicrohttpd was not there)"); }

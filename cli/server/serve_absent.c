/* Replaces the serve*.c files in a build without libmicrohttpd. */
#include "cli/server/serve.h"

int serve_run(struct app *a, struct error *e) {
    return error_set(e, ERR_RUNTIME, "--serve: this build has no HTTP server (built without libmicrohttpd)");
}

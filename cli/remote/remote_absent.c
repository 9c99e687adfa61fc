/* Replaces the remote*.c files in a build without libcurl. */
#include "cli/remote/remote.h"

const struct backend backend_remote, backend_attached;
int remote_check_options(struct app *a, struct error *e) {
    return error_set(e, ERR_RUNTIME, "-m URL: this build has no HTTP client (built without libcurl)");
}
bool remote_attach(struct app *a) { return false; }
const char *remote_host(const struct app *a) { return NULL; }
bool remote_resident_model(struct app *a, char *out, size_t cap) { return false; }

/* Replaces the files of this folder in a build without libcurl. */
#include "cli/hub/hub.h"

int hub_pull_run(struct app *a, struct error *e) {
    return error_set(e, ERR_RUNTIME, "--pull: this build has no HTTP client (built without libcurl)");
}
int hub_pull_offer(struct app *a, const char *name, struct error *e) { return ERR_CANCELLED; }

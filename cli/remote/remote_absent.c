/* Replaces the remote_*.c files in a build without libcurl. */
#include <strings.h>

#include "cli/remote/remote.h"

bool remote_is_url(const char *model) { return model && (!strncasecmp(model, "http://", 7) || !strncasecmp(model, "https://", 8)); }
int remote_select(struct app *a, struct error *e) { return error_set(e, ERR_RUNTIME, "-m URL: this build has no HTTP client (built without libcurl)"); }
bool remote_attach(struct app *a) { return false; }

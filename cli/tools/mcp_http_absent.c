/* Replaces mcp_http.c in a build without libcurl. */
#include <strings.h>

#include "cli/tools/mcp_http.h"

bool mcp_http_is_url(const char *command) {
    return !strncasecmp(command, "http://", 7) || !strncasecmp(command, "https://", 8);
}
int mcp_http_open(struct mcp_http **h, const char *url, struct error *e) {
    *h = NULL;
    return error_set(e, ERR_USAGE, "%.200s: this build has no HTTP client (built without libcurl)", url);
}
void mcp_http_close(struct mcp_http **h, const char *version) {}
const char *mcp_http_name(const struct mcp_http *h) { return ""; }
int mcp_http_send(struct mcp_http *h, const struct mcp_http_message *q, struct arena *a, struct mcp_message *reply,
                  struct error *e) {
    return error_set(e, ERR_RUNTIME, "no HTTP client");
}
void mcp_http_forget(struct mcp_http *h) {}

#include "cli/remote/remote_connection.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"

bool remote_connection_is_loopback(const char *host) {
    struct in_addr v4;
    if (!strcasecmp(host, "localhost") || !strcasecmp(host, "localhost.") || !strcmp(host, "[::1]")) return true;
    return inet_pton(AF_INET, host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET;
}

int remote_connection_setup(struct remote *r, CURL *easy, const char *path) {
    char url[2048];
    if ((size_t)snprintf(url, sizeof url, "%s%s", r->base, path) >= sizeof url) return ERR_USAGE;
    curl.easy_setopt(easy, CURLOPT_URL, url);
    curl.easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl.easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl.easy_setopt(easy, CURLOPT_HTTPHEADER, r->headers);
    curl.easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, 20L);
    curl.easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    if (r->socket) curl.easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, r->socket);
    if (r->socket || r->is_local) curl.easy_setopt(easy, CURLOPT_PROXY, "");
    return 0;
}

int remote_connection_error(const struct remote *r, long status, const struct buf *body, struct error *e) {
    struct arena arena = {0};
    struct json j;
    bool parsed = body->len && !json_parse(&arena, body->data, body->len, 0, "reply", &j, NULL);
    const struct json *error = parsed ? json_get(&j, "error") : NULL,
                      *text = error && error->type == JSON_OBJECT ? json_get(error, "message") : error;
    const char *who = r->resident ? "the resident engine" : r->base;
    if (parsed && !text) text = json_get(&j, "message"); /* older vLLM */
    bool has_text = text && text->type == JSON_STRING && text->n;
    bool is_context_full = status == 400 && (json_is(json_get(error, "code"), "context_length_exceeded") ||
                                             json_is(json_get(error, "type"), "exceed_context_size_error") ||
                                             (has_text && memmem(text->string, text->n, "context length", 14)));
    int code = is_context_full ? ERR_CONTEXT : status == 400 || status == 404 ? ERR_USAGE : ERR_RUNTIME;
    if (status == 401 || status == 403)
        error_set(e, code, "%.200s: %s (status %ld)", who,
                  r->key ? "the key in HEARTH_API_KEY was rejected" : "a key is required; set HEARTH_API_KEY", status);
    else if (status >= 300 && status < 400)
        error_set(e, code, "%.200s: redirects are not followed (status %ld); give the address that it redirects to",
                  who, status);
    else if (has_text) error_set(e, code, "%.*s", (int)(text->n < 480 ? text->n : 480), text->string);
    else error_set(e, code, "%.200s: status %ld, without a message", who, status);
    arena_free(&arena);
    return code;
}

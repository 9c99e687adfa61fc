/* HTTP requests of --serve, as callbacks of libmicrohttpd, and their replies. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/out.h"
#include "cli/server.h"
#include "engine/base/clock.h"
#include "engine/base/hash.h"

/* --- replies --------------------------------------------------------------------------------------------------------- */

/* Sends a complete reply; takes ownership of b. */
static enum MHD_Result reply(struct ask *x, int status, struct buf *b) {
    if (b->failed) {
        buf_free(b);
        return MHD_NO;
    }
    struct MHD_Response *r = mhd.create_response_from_buffer(b->len, b->data ? b->data : "", MHD_RESPMEM_MUST_COPY);
    buf_free(b);
    if (!r) return MHD_NO;
    mhd.add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "application/json");
    if (status == 503) mhd.add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (x->many) mhd.add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
    if (status == 401) mhd.add_response_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (status == 405) mhd.add_response_header(r, MHD_HTTP_HEADER_ALLOW, strcmp(x->allowed, "GET") ? x->allowed : "GET, HEAD");
    enum MHD_Result rc = mhd.queue_response(x->conn, (unsigned)status, r);
    mhd.destroy_response(r);
    return rc;
}

static void refuse(struct ask *x, int status, const char *code, const char *text) {
    x->status = status;
    x->refusal.len = 0;
    api_error(&x->refusal, status, code, text);
    x->server->bodies -= x->body.len;
    buf_free(&x->body); /* the rest of the body is dropped */
}

static enum MHD_Result reply_error(struct ask *x, const struct error *e) {
    const char *code;
    struct buf b = {0};
    int status = api_status(e, &code);
    if (e->code == ERR_MODEL && x->state == ASK_READING) status = 404, code = "model_not_found";
    api_error(&b, status, code, e->text);
    return reply(x, status, &b);
}

/* --- streams --------------------------------------------------------------------------------------------------------- */

static void sleep_until_woken(struct ask *x) {
    if (x->suspended) return;
    x->suspended = true;
    mhd.suspend_connection(x->conn);
}

void serve_wake(struct ask *x) {
    if (!x->suspended || !x->conn) return;
    if (!x->request.stream && x->state != ASK_OVER && !x->hung_up) return;
    x->suspended = false;
    mhd.resume_connection(x->conn);
}

static ssize_t read_stream(void *ask, uint64_t at, char *to, size_t max) {
    struct ask *x = ask;
    if (x->hung_up) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (x->sent == x->out.len && !serve_chunk(x)) {
        if (x->state == ASK_OVER) return MHD_CONTENT_READER_END_OF_STREAM;
        sleep_until_woken(x);
        return 0;
    }
    if (x->out.failed) return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = x->out.len - x->sent < max ? x->out.len - x->sent : max;
    memcpy(to, x->out.data + x->sent, n);
    x->sent += n;
    return (ssize_t)n;
}

static enum MHD_Result reply_stream(struct ask *x) {
    struct MHD_Response *r = mhd.create_response_from_callback(MHD_SIZE_UNKNOWN, 16 << 10, read_stream, x, NULL);
    if (!r) return MHD_NO;
    mhd.add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream");
    mhd.add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    enum MHD_Result rc = mhd.queue_response(x->conn, MHD_HTTP_OK, r);
    mhd.destroy_response(r);
    return rc;
}

/* --- routes ---------------------------------------------------------------------------------------------------------- */

static enum MHD_Result on_chat(struct ask *x) {
    struct error e;
    if (x->state == ASK_READING) {
        if (x->server->stopping) e = (struct error){.code = ERR_MEMORY, .text = "the server is shutting down"};
        else if (!serve_enqueue(x, &e)) {
            if (x->request.stream) return reply_stream(x);
            sleep_until_woken(x);
            return MHD_YES;
        }
        return reply_error(x, &e);
    }
    if (x->hung_up) return MHD_NO;
    if (x->state != ASK_OVER) { /* spurious wake-up */
        sleep_until_woken(x);
        return MHD_YES;
    }
    if (x->turn.failed) return reply_error(x, &x->turn.error);
    struct tool_calls calls = {0};
    struct buf b = {0};
    if (api_tools(&x->request, &x->turn, &calls)) b.failed = true;
    api_whole(&b, &x->answer, &x->turn, &calls, x->request.explain);
    tools_free(&calls);
    return reply(x, 200, &b);
}

static void put_model(struct ask *x, struct buf *b) {
    const struct engine_info *i = x->server->app->info;
    buf_str(b, "{\"id\": ");
    out_json_string(b, i->name, strlen(i->name));
    buf_fmt(b, ", \"object\": \"model\", \"created\": 0, \"owned_by\": \"hearth\", \"max_model_len\": %d}", i->context);
}
static enum MHD_Result on_models(struct ask *x) {
    struct buf b = {0};
    buf_str(&b, "{\"object\": \"list\", \"data\": [");
    put_model(x, &b);
    buf_str(&b, "]}\n");
    return reply(x, 200, &b);
}
static enum MHD_Result on_model(struct ask *x) {
    struct buf b = {0};
    put_model(x, &b);
    return reply(x, 200, &b);
}
static enum MHD_Result on_status(struct ask *x) {
    struct buf b = {0};
    serve_status(x->server, &b);
    return reply(x, 200, &b);
}
static enum MHD_Result on_stop(struct ask *x) {
    struct buf b = {0};
    x->server->stopping = true;
    buf_str(&b, "{\"stopping\": true}\n");
    return reply(x, 200, &b);
}

static enum MHD_Result on_tokens(struct ask *x) {
    struct buf b = {0};
    struct error e;
    if (serve_prompt(x, &e)) return reply_error(x, &e);
    buf_fmt(&b, "{\"tokens\": %zu}\n", x->prompt.ids.n);
    return reply(x, 200, &b);
}

static const struct route {
    const char *path; /* ends in '/': followed by the model's name */
    const char *method;
    bool only_local; /* not over --listen */
    enum MHD_Result (*fn)(struct ask *x);
} routes[] = {{"/v1/chat/completions", "POST", false, on_chat}, {"/v1/models", "GET", false, on_models},      {"/v1/models/", "GET", false, on_model},
              {"/hearth/status", "GET", false, on_status},      {"/hearth/tokens", "POST", false, on_tokens}, {"/hearth/stop", "POST", true, on_stop}};

static bool matches(const struct route *r, const struct server *s, const char *url) {
    size_t n = strlen(r->path);
    return r->path[n - 1] == '/' ? !strncmp(url, r->path, n) && !strcmp(url + n, s->app->info->name) : !strcmp(url, r->path);
}

/* Compares in constant time. */
static bool same_key(const char *given, const char *key) {
    size_t n = strlen(given), m = strlen(key);
    unsigned differ = n != m;
    for (size_t i = 0; i < m; i++) differ |= (unsigned char)key[i] ^ (unsigned char)(n ? given[i % n] : 0);
    return !differ;
}

static bool has_key(struct ask *x) {
    const char *given = mhd.lookup_connection_value(x->conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    if (given && !strncasecmp(given, "Bearer ", 7) && same_key(given + 7, x->server->key)) return true;
    refuse(x, 401, "invalid_api_key", "missing or wrong key; send the one that hearth --serve printed: Authorization: Bearer KEY");
    return false;
}

static void find_route(struct ask *x, const char *url, const char *method) {
    char text[300];
    const struct route *r = NULL;
    size_t n = sizeof routes / sizeof *routes;
    for (size_t i = 0; i < n && !r; i++)
        if (matches(&routes[i], x->server, url)) r = &routes[i];
    if (!r && !strncmp(url, "/v1/models/", 11)) refuse(x, 404, "model_not_found", "no such model; /v1/models lists the one that is served");
    else if (!r) {
        snprintf(text, sizeof text, "no resource %.100s; use /v1/chat/completions or /v1/models", url);
        refuse(x, 404, NULL, text);
    } else if (strcmp(method, r->method) && (strcmp(method, "HEAD") || strcmp(r->method, "GET"))) {
        x->allowed = r->method;
        snprintf(text, sizeof text, "%s needs method %s", r->path, r->method);
        refuse(x, 405, NULL, text);
    } else if (r->only_local && !x->local) refuse(x, 403, NULL, "allowed only over the Unix socket");
    else x->route = r;
}

/* --- a request ------------------------------------------------------------------------------------------------------- */

static struct ask *ask_new(struct server *s, struct MHD_Connection *c) {
    struct ask *x = mem_calloc(1, sizeof *x);
    const union MHD_ConnectionInfo *context = mhd.get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    const struct conn *k = context ? context->socket_context : NULL;
    const char *agent = mhd.lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_USER_AGENT);
    const union MHD_ConnectionInfo *info = mhd.get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    int domain = 0;
    socklen_t size = sizeof domain;
    if (!x) return NULL;
    x->server = s;
    x->conn = c;
    x->fd = info ? info->connect_fd : -1;
    x->local = x->fd >= 0 && !getsockopt(x->fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain == AF_UNIX;
    x->job = k && k->job ? (uint64_t)k->job : hash64(agent ? agent : "", agent ? strlen(agent) : 0, 0);
    if (k) x->pid = k->pid, x->many = k->many;
    x->next = s->asks;
    s->asks = x;
    return x;
}

static void add_body(struct ask *x, const char *data, size_t n) {
    struct server *s = x->server;
    if (x->status) return;
    if (x->body.len + n > SERVE_BODY) refuse(x, 413, NULL, "the body is larger than 16 MB");
    else if (s->bodies + n > SERVE_BODIES || buf_add(&x->body, data, n)) refuse(x, 503, NULL, "too many request bytes at once; retry later");
    else s->bodies += n;
}

enum MHD_Result serve_request(void *server, struct MHD_Connection *c, const char *url, const char *method, const char *version, const char *upload, size_t *n,
                              void **state) {
    struct server *s = server;
    struct ask *x = *state;
    if (!x) {
        if (!(x = *state = ask_new(s, c))) return MHD_NO;
        serve_expect(s, c, SERVE_BODY_S);
        const char *length = mhd.lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
        if (x->many) refuse(x, 503, NULL, "too many connections from this client");
        else if (x->local || has_key(x)) find_route(x, url, method);
        if (!x->status && length && strtoull(length, NULL, 10) > SERVE_BODY) refuse(x, 413, NULL, "the body is larger than 16 MB");
        bool pieces = mhd.lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_TRANSFER_ENCODING);
        bool may_be_long = pieces || (length && strtoull(length, NULL, 10) > SERVE_HEAD);
        return x->status && may_be_long ? reply(x, x->status, &x->refusal) : MHD_YES; /* refuse before the body is sent */
    }
    if (*n) {
        x->dropped += x->status ? *n : 0;
        add_body(x, upload, *n);
        *n = 0;
        return x->dropped > SERVE_BODY ? MHD_NO : MHD_YES;
    }
    serve_expect(s, c, 0);
    if (x->status) return reply(x, x->status, &x->refusal);
    if (x->state == ASK_READING && x->route->fn == on_chat) s->last = clock_now();
    return x->route->fn(x);
}

void serve_completed(void *server, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode why) {
    struct ask *x = *state;
    if (!x) return;
    serve_expect(server, c, SERVE_HEAD_S);
    *state = NULL;
    x->conn = NULL;
    x->suspended = false;
    serve_leave(x);
}

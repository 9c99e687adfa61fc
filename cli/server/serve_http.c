/* HTTP requests of --serve, as callbacks of libmicrohttpd, and their replies. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/hex.h"
#include "base/log.h"
#include "cli/server/ollama.h"
#include "cli/server/server.h"
#include "cli/terminal/out.h"

/* --- replies ---------------------------------------------------------------------------------- */

/* Sends a complete reply; takes ownership of b. */
static enum MHD_Result send_reply(struct http_request *x, int status, struct buf *b) {
    if (b->failed) {
        buf_free(b);
        return MHD_NO;
    }
    struct MHD_Response *r = mhd.create_response_from_buffer(b->len, b->data ? b->data : "", MHD_RESPMEM_MUST_COPY);
    buf_free(b);
    if (!r) return MHD_NO;
    x->replied = status;
    mhd.add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, x->content_type ? x->content_type : "application/json");
    if (status == 503) mhd.add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (x->over_share) mhd.add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
    if (status == 401) mhd.add_response_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (status == 405)
        mhd.add_response_header(r, MHD_HTTP_HEADER_ALLOW,
                                strcmp(x->allowed_method, "GET") ? x->allowed_method : "GET, HEAD");
    if (status == 426) {
        mhd.add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "Upgrade");
        mhd.add_response_header(r, MHD_HTTP_HEADER_UPGRADE, "HTTP/1.1");
    }
    enum MHD_Result rc = mhd.queue_response(x->conn, (unsigned)status, r);
    mhd.destroy_response(r);
    return rc;
}

static void set_refusal(struct http_request *x, int status, const char *code, const char *text) {
    x->status = status;
    x->refusal.len = 0;
    x->protocol->error(&x->refusal, status, code, text);
    x->server->body_bytes -= x->body.len;
    buf_free(&x->body); /* the rest of the body is dropped */
}

static enum MHD_Result send_error(struct http_request *x, const struct error *e) {
    const char *code;
    struct buf b = {0};
    int status = api_status(e, &code);
    if (e->code == ERR_MODEL && x->state == HTTP_REQUEST_READING) status = 404, code = "model_not_found";
    x->protocol->error(&b, status, code, e->text);
    return send_reply(x, status, &b);
}

/* --- streams ---------------------------------------------------------------------------------- */

static void suspend_until_woken(struct http_request *x) {
    if (x->suspended) return;
    x->suspended = true;
    mhd.suspend_connection(x->conn);
}

static ssize_t read_stream(void *ctx, uint64_t at, char *to, size_t max) {
    struct http_request *x = ctx;
    if (x->hung_up) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (x->sent_bytes == x->formatted.len && !serve_stream_format(x)) {
        if (x->state == HTTP_REQUEST_DONE) return MHD_CONTENT_READER_END_OF_STREAM;
        suspend_until_woken(x);
        return 0;
    }
    if (x->formatted.failed) return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = x->formatted.len - x->sent_bytes < max ? x->formatted.len - x->sent_bytes : max;
    memcpy(to, x->formatted.data + x->sent_bytes, n);
    x->sent_bytes += n;
    x->sent_s = clock_now();
    return (ssize_t)n;
}

static enum MHD_Result start_stream(struct http_request *x) {
    struct MHD_Response *r = mhd.create_response_from_callback(MHD_SIZE_UNKNOWN, 16 << 10, read_stream, x, NULL);
    if (!r) return MHD_NO;
    x->replied = MHD_HTTP_OK;
    x->sent_s = clock_now();
    mhd.add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, x->protocol->stream_type);
    mhd.add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    mhd.add_response_header(r, "X-Accel-Buffering", "no"); /* nginx sends pieces on as they come */
    enum MHD_Result rc = mhd.queue_response(x->conn, MHD_HTTP_OK, r);
    mhd.destroy_response(r);
    return rc;
}

/* --- routes ----------------------------------------------------------------------------------- */

static enum MHD_Result send_loaded(struct http_request *x) {
    struct buf b = {0};
    x->protocol->loaded(&b, &x->answer);
    return send_reply(x, 200, &b);
}

/* A request for nothing but that the model is open, or, with keep_alive 0, that it is closed. */
static enum MHD_Result load(struct http_request *x) {
    const bool closes = x->server->has_models && x->request.has_keep && x->request.keep_s == 0;
    x->answer.is_unloaded = closes;
    if (closes || x->model->is_open) return send_loaded(x);
    x->state = HTTP_REQUEST_LOADING;
    x->order = ++x->server->n_orders;
    suspend_until_woken(x);
    return MHD_YES;
}

static enum MHD_Result wait_for_images(struct http_request *x) {
    if (x->state == HTTP_REQUEST_REFUSED) return send_error(x, &x->refused);
    suspend_until_woken(x);
    return MHD_YES;
}

static enum MHD_Result on_answer(struct http_request *x) {
    struct error e;
    if (x->state == HTTP_REQUEST_LOADING) {
        if (x->model->is_open) return send_loaded(x);
        suspend_until_woken(x);
        return MHD_YES;
    }
    if (x->state == HTTP_REQUEST_READING) {
        const int rc =
            x->server->stopping ? error_set(&e, ERR_MEMORY, "the server is shutting down") : serve_read(x, &e);
        if (rc > 0) return wait_for_images(x);
        if (!rc && !serve_enqueue(x, &e)) {
            if (x->request.load_only) return load(x);
            if (x->state == HTTP_REQUEST_REFUSED) return send_error(x, &x->refused);
            if (x->request.stream && x->state > HTTP_REQUEST_REFUSED) return start_stream(x);
            suspend_until_woken(x);
            return MHD_YES;
        }
        return send_error(x, &e);
    }
    if (x->hung_up) return MHD_NO;
    if (x->state == HTTP_REQUEST_REFUSED) return send_error(x, &x->refused);
    if (x->state > HTTP_REQUEST_REFUSED && x->request.stream) return start_stream(x); /* the grammar is compiled */
    if (x->state != HTTP_REQUEST_DONE) {                                              /* spurious wake-up */
        suspend_until_woken(x);
        return MHD_YES;
    }
    if (x->failed) return send_error(x, &x->failed->turn.error);
    struct buf b = {0};
    serve_stream_put_whole(x, &b);
    return send_reply(x, 200, &b);
}

/* The length of the context is known once something was asked of the model. */
static void put_model(const struct serve_model *m, struct buf *b) {
    buf_str(b, "{\"id\": ");
    out_json_string(b, m->name, strlen(m->name));
    buf_str(b, ", \"object\": \"model\", \"created\": 0, \"owned_by\": \"hearth\", \"type\": \"model\", "
               "\"created_at\": \"1970-01-01T00:00:00Z\", \"display_name\": ");
    out_json_string(b, m->name, strlen(m->name));
    if (m->app->info && m->app->info->context) buf_fmt(b, ", \"max_model_len\": %d", m->app->info->context);
    buf_char(b, '}');
}
static enum MHD_Result on_models(struct http_request *x) {
    struct buf b = {0};
    struct server *s = x->server;
    serve_model_refresh(s, clock_now());
    buf_str(&b, "{\"object\": \"list\", \"data\": [");
    for (size_t i = 0; i < s->n_models; i++) {
        if (i) buf_str(&b, ", ");
        put_model(s->models[i], &b);
    }
    buf_str(&b, "], \"has_more\": false}\n");
    return send_reply(x, 200, &b);
}
static enum MHD_Result on_model(struct http_request *x) {
    struct buf b = {0};
    put_model(x->model, &b);
    return send_reply(x, 200, &b);
}
static enum MHD_Result on_status(struct http_request *x) {
    struct buf b = {0};
    serve_status_put(x->server, &b);
    return send_reply(x, 200, &b);
}
static enum MHD_Result on_stop(struct http_request *x) {
    struct buf b = {0};
    x->server->stopping = true;
    buf_str(&b, "{\"stopping\": true}\n");
    return send_reply(x, 200, &b);
}

/* Counts the tokens of a request's prompt. */
static enum MHD_Result reply_tokens(struct http_request *x, const char *name) {
    struct buf b = {0};
    struct error e;
    const int rc = serve_read(x, &e);
    if (rc > 0) return wait_for_images(x);
    if (rc || serve_make_prompt(x, &e)) return send_error(x, &e);
    buf_fmt(&b, "{\"%s\": %zu}\n", name, x->prompt.ids.n);
    return send_reply(x, 200, &b);
}
static enum MHD_Result on_tokens(struct http_request *x) { return reply_tokens(x, "tokens"); }
static enum MHD_Result on_count_tokens(struct http_request *x) { return reply_tokens(x, "input_tokens"); }

/* open: only those that are open. */
static enum MHD_Result send_ollama_models(struct http_request *x, bool open) {
    struct server *s = x->server;
    struct buf b = {0};
    size_t n = 0;
    serve_model_refresh(s, clock_now());
    buf_str(&b, "{\"models\": [");
    for (size_t i = 0; i < s->n_models; i++) {
        const struct serve_model *m = s->models[i];
        if (open && !m->is_open) continue;
        const struct engine_info *info = m->app->info;
        struct ollama_model row = {.name = m->name,
                                   .family = info ? info->model_type : "",
                                   .bytes = info && info->weight_bytes ? info->weight_bytes : m->bytes,
                                   .changed_at = m->opened_at ? m->opened_at : s->opened_at,
                                   .context = info ? info->context : 0};
        row.digest = s->has_models ? hash64(m->app->model_dir, strlen(m->app->model_dir), 0) : info->fingerprint;
        if (open && s->has_models && m->keep_s >= 0)
            row.expires_at = (long long)time(NULL) + (long long)(m->idle_s + m->keep_s - clock_now());
        if (n++) buf_str(&b, ", ");
        ollama_put_model(&row, &b);
    }
    buf_str(&b, "]}\n");
    return send_reply(x, 200, &b);
}
static enum MHD_Result on_ollama_models(struct http_request *x) { return send_ollama_models(x, false); }
static enum MHD_Result on_ollama_open(struct http_request *x) { return send_ollama_models(x, true); }
static enum MHD_Result on_ollama_show(struct http_request *x) {
    struct buf b = {0};
    ollama_put_details(x->model->app, &b);
    return send_reply(x, 200, &b);
}
static enum MHD_Result on_ollama_version(struct http_request *x) {
    struct buf b = {0};
    /* Ollama's version, not ours: clients check it, and Copilot refuses versions below 0.6.4 */
    buf_str(&b, "{\"version\": \"0.12.0\", \"hearth\": \"" HEARTH_VERSION "\"}\n");
    return send_reply(x, 200, &b);
}
static enum MHD_Result on_embeddings(struct http_request *x) {
    const struct error e = {.code = ERR_USAGE, .text = "embeddings are not supported: the model has no embedding head"};
    return send_error(x, &e);
}

static enum MHD_Result on_health(struct http_request *x) {
    struct buf b = {0};
    buf_str(&b, x->server->stopping ? "{\"status\": \"stopping\"}\n" : "{\"status\": \"ok\"}\n");
    return send_reply(x, x->server->stopping ? 503 : 200, &b);
}
/* Answers the request that Ollama's clients send first to see whether a server is running. */
static enum MHD_Result say_running(struct http_request *x) {
    struct buf b = {0};
    buf_str(&b, "hearth is running\n");
    x->content_type = "text/plain; charset=utf-8";
    return send_reply(x, 200, &b);
}
/* The page loads nothing from elsewhere, and no other page may frame it. */
static enum MHD_Result on_root(struct http_request *x) {
    static const char *const heads[][2] = {
        {MHD_HTTP_HEADER_CONTENT_TYPE, "text/html; charset=utf-8"},
        {"Content-Security-Policy", "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                                    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"},
        {"Referrer-Policy", "no-referrer"},
        {"X-Content-Type-Options", "nosniff"},
        {MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache"}};
    const char *text;
    size_t n;
    if (!x->server->app->opts.v[OPT_PAGE].on) return say_running(x);
    serve_page_get(&text, &n);
    struct MHD_Response *r = mhd.create_response_from_buffer(n, (void *)text, MHD_RESPMEM_PERSISTENT);
    if (!r) return MHD_NO;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) mhd.add_response_header(r, heads[i][0], heads[i][1]);
    x->replied = MHD_HTTP_OK;
    enum MHD_Result rc = mhd.queue_response(x->conn, MHD_HTTP_OK, r);
    mhd.destroy_response(r);
    return rc;
}
static enum MHD_Result on_experts(struct http_request *x) {
    struct buf b = {0};
    struct error e;
    if (!serve_page_put_experts(x->server, &b, &e)) return send_reply(x, 200, &b);
    buf_free(&b);
    return send_error(x, &e);
}
static enum MHD_Result on_metrics(struct http_request *x) {
    struct buf b = {0};
    serve_info_metrics(x->server, &b);
    x->content_type = "text/plain; version=0.0.4";
    return send_reply(x, 200, &b);
}
static enum MHD_Result on_tokenize(struct http_request *x) {
    struct buf b = {0};
    struct error e;
    if (!serve_info_tokenize(x, &b, &e)) return send_reply(x, 200, &b);
    buf_free(&b);
    return send_error(x, &e);
}
static enum MHD_Result on_detokenize(struct http_request *x) {
    struct buf b = {0};
    struct error e;
    if (!serve_info_detokenize(x, &b, &e)) return send_reply(x, 200, &b);
    buf_free(&b);
    return send_error(x, &e);
}

static const struct route {
    const char *path; /* ends in '/': followed by the model's name */
    const char *method;
    enum MHD_Result (*fn)(struct http_request *x);
    const struct api_protocol *protocol; /* of requests, answers and errors */
    bool has_model;                      /* the request chooses a model */
    bool local_only;                     /* not over --listen */
} routes[] = {{"/v1/chat/completions", "POST", on_answer, &openai_chat, .has_model = true},
              {"/v1/completions", "POST", on_answer, &openai_text, .has_model = true},
              {"/infill", "POST", on_answer, &llama_infill, .has_model = true},
              {"/v1/responses", "POST", on_answer, &openai_responses, .has_model = true},
              {"/v1/messages", "POST", on_answer, &anthropic_messages, .has_model = true},
              {"/v1/messages/count_tokens", "POST", on_count_tokens, &anthropic_messages, .has_model = true},
              {"/v1/models", "GET", on_models, &openai_chat},
              {"/v1/models/", "GET", on_model, &openai_chat},
              {"/v1/embeddings", "POST", on_embeddings, &openai_chat},
              {"/api/chat", "POST", on_answer, &ollama_chat, .has_model = true},
              {"/api/generate", "POST", on_answer, &ollama_generate, .has_model = true},
              {"/api/tags", "GET", on_ollama_models, &ollama_chat},
              {"/api/ps", "GET", on_ollama_open, &ollama_chat},
              {"/api/show", "POST", on_ollama_show, &ollama_chat, .has_model = true},
              {"/api/version", "GET", on_ollama_version, &ollama_chat},
              {"/api/embed", "POST", on_embeddings, &ollama_chat},
              {"/api/embeddings", "POST", on_embeddings, &ollama_chat},
              {"/hearth/status", "GET", on_status, &openai_chat},
              {"/hearth/tokens", "POST", on_tokens, &openai_chat, .has_model = true},
              {"/hearth/experts", "GET", on_experts, &openai_chat},
              {"/", "GET", on_root, &openai_chat},
              {"/hearth/stop", "POST", on_stop, &openai_chat, .local_only = true},
              {"/health", "GET", on_health, &openai_chat},
              {"/metrics", "GET", on_metrics, &openai_chat},
              {"/tokenize", "POST", on_tokenize, &openai_chat, .has_model = true},
              {"/detokenize", "POST", on_detokenize, &openai_chat, .has_model = true}};

/* Returns what follows a path in a URL, or NULL if it does not begin with that path. Clients that join a base URL and a
 * resource write more than one slash between them. */
static const char *after_path(const char *path, const char *url) {
    for (; *path; path++, url++) {
        if (*path != *url) return NULL;
        while (*path == '/' && url[1] == '/') url++;
    }
    return url;
}

/* Sets *model if the path ends in a model's name. */
static bool route_matches(const struct route *r, struct server *s, const char *url, struct serve_model **model) {
    const size_t n = strlen(r->path);
    const char *rest = after_path(r->path, url);
    if (!rest) return false;
    if (n == 1) return !*rest;
    if (r->path[n - 1] != '/') return !rest[strspn(rest, "/")];
    return (*model = serve_model_find(s, rest, strlen(rest)));
}

/* Compares in constant time. */
static bool same_key(const char *given, const char *key) {
    size_t n = strlen(given), m = strlen(key);
    unsigned differ = n != m;
    for (size_t i = 0; i < m; i++) differ |= (unsigned char)key[i] ^ (unsigned char)(n ? given[i % n] : 0);
    return !differ;
}

static bool check_key(struct http_request *x) {
    const char *given = mhd.lookup_connection_value(x->conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    const char *api_key = mhd.lookup_connection_value(x->conn, MHD_HEADER_KIND, "X-Api-Key");
    if ((given && !strncasecmp(given, "Bearer ", 7) && same_key(given + 7, x->server->key)) ||
        (api_key && same_key(api_key, x->server->key))) {
        serve_connection_set_key(x->conn);
        return true;
    }
    set_refusal(x, 401, "invalid_api_key",
                "missing or wrong key; send the key of hearth --serve: Authorization: Bearer KEY, or X-Api-Key: KEY");
    return false;
}

/* Returns the path of a request's target, which clients may send in absolute form (RFC 9112, section 3.2.2). */
static const char *path_of(const char *target) {
    if (strncasecmp(target, "http://", 7)) return target;
    const char *path = strchr(target + 7, '/');
    return path ? path : "/";
}

static const struct route *find_route(struct server *s, const char *url, struct serve_model **model) {
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (route_matches(&routes[i], s, url, model)) return &routes[i];
    return NULL;
}

/* Codex asks for a WebSocket at /v1/responses first, and does without at once if it reads 426, not after 405. */
static bool asks_for_websocket(struct http_request *x) {
    const char *upgrade = mhd.lookup_connection_value(x->conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_UPGRADE);
    return upgrade && !strcasecmp(upgrade, "websocket");
}

/* The protocol of a request's errors. Anthropic's clients name their version everywhere, also at /v1/models. */
static const struct api_protocol *protocol_of(const struct http_request *x, const struct route *r, const char *url) {
    if (r && r->protocol != &openai_chat) return r->protocol;
    if (!strncmp(url, "/api/", 5)) return &ollama_chat;
    const bool is_anthropic =
        !strncmp(url, "/v1/messages", 12) || mhd.lookup_connection_value(x->conn, MHD_HEADER_KIND, "anthropic-version");
    return is_anthropic && (!r || r->fn != on_answer) ? &anthropic_messages : &openai_chat;
}

/* Sets the route of a request, or refuses it. */
static void set_route(struct http_request *x, const struct route *r, const char *url, const char *method) {
    char text[300];
    if (!r && !strncmp(url, "/v1/models/", 11))
        set_refusal(x, 404, "model_not_found", "no such model; /v1/models lists those that are served");
    else if (!r) {
        snprintf(text, sizeof text, "no resource %.100s; use %s or /v1/models", url,
                 x->protocol == &anthropic_messages ? "/v1/messages" : "/v1/chat/completions");
        set_refusal(x, 404, NULL, text);
    } else if (strcmp(method, r->method) && asks_for_websocket(x)) {
        snprintf(text, sizeof text, "%s is not served over WebSockets; use method %s", r->path, r->method);
        set_refusal(x, 426, NULL, text);
    } else if (strcmp(method, r->method) && (strcmp(method, "HEAD") || strcmp(r->method, "GET"))) {
        x->allowed_method = r->method;
        snprintf(text, sizeof text, "%s needs method %s", r->path, r->method);
        set_refusal(x, 405, NULL, text);
    } else if (r->local_only && !x->local) set_refusal(x, 403, NULL, "allowed only over the Unix socket");
    else x->route = r;
}

/* Carries out a request, when its model's tokenizer and template are open. */
static enum MHD_Result run_route(struct http_request *x) {
    struct error e;
    if (x->state == HTTP_REQUEST_REFUSED) return send_error(x, &x->refused);
    if (x->route->has_model && x->state == HTTP_REQUEST_READING) {
        const int rc = serve_models_take(x, &e);
        if (rc < 0) return send_error(x, &e);
        if (rc) {
            suspend_until_woken(x);
            return MHD_YES;
        }
    }
    return x->route->fn(x);
}

/* --- a request -------------------------------------------------------------------------------- */

static struct http_request *request_new(struct server *s, struct MHD_Connection *c) {
    struct http_request *x = mem_calloc(1, sizeof *x);
    const union MHD_ConnectionInfo *context = mhd.get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    const struct http_connection *k = context ? context->socket_context : NULL;
    const char *agent = mhd.lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_USER_AGENT);
    const union MHD_ConnectionInfo *info = mhd.get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    int domain = 0;
    socklen_t size = sizeof domain;
    if (!x) return NULL;
    x->server = s;
    x->conn = c;
    x->fd = info ? info->connect_fd : -1;
    x->local = x->fd >= 0 && !getsockopt(x->fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain == AF_UNIX;
    x->client_job = k && k->job ? (uint64_t)k->job : hash64(agent ? agent : "", agent ? strlen(agent) : 0, 0);
    if (k) x->pid = k->pid, x->over_share = k->over_share;
    x->next = s->requests;
    s->requests = x;
    return x;
}

static void add_body(struct http_request *x, const char *data, size_t n) {
    struct server *s = x->server;
    if (x->status) return;
    if (x->body.len + n > SERVE_BODY_BYTES) set_refusal(x, 413, NULL, "the body is larger than 16 MB");
    else if (s->body_bytes + n > SERVE_ALL_BODIES_BYTES || buf_add(&x->body, data, n))
        set_refusal(x, 503, NULL, "too many request bytes at once; retry later");
    else s->body_bytes += n;
}

static enum MHD_Result count_length(void *n, enum MHD_ValueKind kind, const char *name, const char *value) {
    *(int *)n += !strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return MHD_YES;
}

size_t serve_unescape(void *unused, struct MHD_Connection *c, char *text) {
    char *to = text;
    for (const char *s = text; *s; s++) {
        const int hi = *s == '%' ? hex_digit(s[1]) : -1, lo = hi >= 0 ? hex_digit(s[2]) : -1;
        const bool decodes = lo >= 0 && hi * 16 + lo;
        *to++ = decodes ? (char)(hi * 16 + lo) : *s;
        if (decodes) s += 2;
    }
    *to = 0;
    return (size_t)(to - text);
}

enum MHD_Result serve_request(void *server, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *upload, size_t *n, void **state) {
    struct server *s = server;
    struct http_request *x = *state;
    if (!x) {
        if (!(x = *state = request_new(s, c))) return MHD_NO;
        x->began_s = clock_now();
        x->is_old_http = strcmp(version, MHD_HTTP_VERSION_1_1) != 0;
        url = path_of(url);
        snprintf(x->line, sizeof x->line, "%.8s %.60s", method, url);
        serve_connection_set_deadline(c, SERVE_BODY_S);
        const struct route *route = find_route(s, url, &x->model);
        x->protocol = protocol_of(x, route, url);
        const char *length = mhd.lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
        int n_lengths = 0;
        mhd.get_connection_values(c, MHD_HEADER_KIND, count_length, &n_lengths);
        if (n_lengths > 1) { /* a proxy may read the body with the other length: request smuggling */
            set_refusal(x, 400, NULL, "more than one Content-Length");
            return send_reply(x, x->status, &x->refusal);
        }
        if (x->over_share) set_refusal(x, 503, NULL, "too many connections from this client");
        else if (x->local || !strcmp(url, "/health") || (route && route->fn == on_root) || check_key(x))
            set_route(x, route, url, method);
        const char *coding = mhd.lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_ENCODING);
        if (!x->status && coding && strcasecmp(coding, "identity"))
            set_refusal(x, 415, NULL, "the body is compressed (Content-Encoding); send it uncompressed");
        if (!x->status && length && strtoull(length, NULL, 10) > SERVE_BODY_BYTES)
            set_refusal(x, 413, NULL, "the body is larger than 16 MB");
        bool is_chunked = mhd.lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_TRANSFER_ENCODING);
        bool may_be_long = is_chunked || (length && strtoull(length, NULL, 10) > SERVE_HEAD_BYTES);
        /* refuse before the body is sent */
        return x->status && may_be_long ? send_reply(x, x->status, &x->refusal) : MHD_YES;
    }
    if (*n) {
        x->dropped_bytes += x->status ? *n : 0;
        add_body(x, upload, *n);
        *n = 0;
        return x->dropped_bytes > SERVE_BODY_BYTES ? MHD_NO : MHD_YES;
    }
    serve_connection_set_deadline(c, 0);
    if (x->status) return send_reply(x, x->status, &x->refusal);
    if (x->state == HTTP_REQUEST_READING && x->route->fn == on_answer) s->last_activity_s = clock_now();
    return run_route(x);
}

void serve_completed(void *server, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode why) {
    struct http_request *x = *state;
    if (!x) return;
    serve_connection_set_deadline(c, SERVE_HEAD_S);
    *state = NULL;
    x->conn = NULL;
    x->suspended = false;
    log_say(LOG_INFO, "%s %d, %d tokens, %.3f s", x->line, x->replied, serve_request_tokens(x),
            clock_now() - x->began_s);
    serve_drop_request(x);
}

#include "cli/tools/mcp_http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "cli/remote/lib_curl.h"
#include "cli/remote/remote_connection.h"

enum {
    BODY_BYTES = 16 << 20,   /* largest reply, or event of a stream */
    STREAM_BYTES = 64 << 20, /* most bytes of events before the reply */
    HEAD_BYTES = 256 << 10,  /* most bytes of headers */
    SESSION_BYTES = 512,
    REPLY_BYTES = 1 << 20, /* replies to requests of the server that it does not read */
    WAIT_MS = 100,
    CLOSE_MS = 1000
};

struct mcp_http {
    CURLM *multi;
    CURL *easy, *reply; /* of messages; of replies to requests of the server */
    char *url, *host;   /* host: with the port, if the URL has one */
    char *token;        /* NULL: none */
    bool is_local;
    char session[SESSION_BYTES + 1];
    /* the message being sent */
    const struct mcp_http_message *message;
    struct arena *arena;
    struct mcp_message *out;
    struct buf body, event; /* a whole reply, or the last line of a stream; the data of the event */
    struct buf replies;     /* lines to be posted; the first one is being posted if is_replying */
    struct buf posted;      /* the line being posted */
    struct curl_slist *reply_headers;
    bool is_stream, found, is_replying;
    bool wants_login; /* the server names OAuth */
    size_t n_head, n_stream;
    long status;
    char type[64], moved[256];
    int rc;
    struct error error;
};

bool mcp_http_is_url(const char *command) {
    return !strncasecmp(command, "http://", 7) || !strncasecmp(command, "https://", 8);
}
const char *mcp_http_name(const struct mcp_http *h) { return h->host; }
void mcp_http_forget(struct mcp_http *h) { *h->session = 0; }

/* --- opening ---------------------------------------------------------------------------------- */

/* Finds the token of this host among HOST=TOKEN, separated by blanks. */
static int find_token(struct mcp_http *h, bool is_secure, struct error *e) {
    const char *at = getenv("HEARTH_MCP_TOKEN");
    const size_t n_host = strlen(h->host);
    for (size_t n; at && *(at += strspn(at, " \t\n")); at += n) {
        n = strcspn(at, " \t\n");
        const char *equals = memchr(at, '=', n);
        if (!equals)
            return error_set(e, ERR_USAGE, "HEARTH_MCP_TOKEN: must be HOST=TOKEN, or several with blanks between");
        if ((size_t)(equals - at) != n_host || strncasecmp(at, h->host, n_host) != 0) continue;
        for (const char *c = equals + 1; c < at + n; c++)
            if (*c <= ' ' || *c > '~') return error_set(e, ERR_USAGE, "HEARTH_MCP_TOKEN: a token is printable ASCII");
        if (!is_secure && !h->is_local)
            return error_set(e, ERR_USAGE, "the token of %s would be sent unencrypted; use https://", h->host);
        mem_free(h->token);
        if (!(h->token = mem_strndup(equals + 1, (size_t)(at + n - equals - 1))))
            return error_set(e, ERR_MEMORY, "no memory");
    }
    return 0;
}

static int read_url(struct mcp_http *h, const char *text, struct error *e) {
    CURLU *u = curl.url();
    char *scheme = NULL, *host = NULL, *port = NULL, *part = NULL, *url = NULL;
    struct buf name = {0};
    int rc = 0;
    if (!u || curl.url_set(u, CURLUPART_URL, text, 0) || curl.url_get(u, CURLUPART_SCHEME, &scheme, 0) ||
        curl.url_get(u, CURLUPART_HOST, &host, 0) || curl.url_get(u, CURLUPART_URL, &url, 0))
        rc = error_set(e, ERR_USAGE, "%.200s: not a URL", text);
    else if (!curl.url_get(u, CURLUPART_USER, &part, 0) || !curl.url_get(u, CURLUPART_PASSWORD, &part, 0))
        rc = error_set(e, ERR_USAGE,
                       "a URL with a name or a password is not supported; a token goes to HEARTH_MCP_TOKEN");
    else if (!curl.url_get(u, CURLUPART_FRAGMENT, &part, 0))
        rc = error_set(e, ERR_USAGE, "%.200s: a URL without # is required", text);
    if (!rc) {
        buf_str(&name, host);
        if (!curl.url_get(u, CURLUPART_PORT, &port, 0)) buf_fmt(&name, ":%s", port);
        h->is_local = remote_connection_is_loopback(host);
        h->host = name.failed ? NULL : mem_strdup(name.data);
        h->url = mem_strdup(url);
        if (!h->host || !h->url) rc = error_set(e, ERR_MEMORY, "no memory");
    }
    if (!rc) rc = find_token(h, !strcasecmp(scheme, "https"), e);
    buf_free(&name);
    char *const parts[] = {scheme, host, port, part, url};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) curl.free(parts[i]);
    if (u) curl.url_cleanup(u);
    return rc;
}

static void set_up(const struct mcp_http *h, CURL *easy) {
    curl.easy_setopt(easy, CURLOPT_URL, h->url);
    curl.easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl.easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl.easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, 20L);
    curl.easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl.easy_setopt(easy, CURLOPT_USERAGENT, "hearth/" HEARTH_VERSION);
    if (h->is_local) curl.easy_setopt(easy, CURLOPT_PROXY, "");
}

/* --- replies ---------------------------------------------------------------------------------- */

static size_t drop(char *data, size_t size, size_t n, void *ctx) { return size * n; }

static int fail(struct mcp_http *h, int code, const char *what) {
    if (!h->rc) h->rc = error_set(&h->error, code, "MCP server %.100s: %s", h->host, what);
    return h->rc;
}

/* Takes a message of the server: keeps the reply, and answers requests. */
static void take_message(struct mcp_http *h, const char *text, size_t n) {
    struct mcp_message m;
    struct error why;
    const int rc = mcp_message_parse(h->arena, text, n, &m, &why);
    const bool is_reply = !rc && (m.kind == MCP_RESULT || m.kind == MCP_ERROR);
    if (rc == ERR_MEMORY) fail(h, rc, "no memory");
    else if (rc) fail(h, ERR_RUNTIME, why.text);
    else if (is_reply && (m.id == h->message->id || (m.kind == MCP_ERROR && h->status >= 400))) {
        *h->out = m;
        h->found = true;
    } else if (m.kind == MCP_REQUEST) {
        mcp_message_put_reply(&h->replies, &m);
        if (h->replies.failed) fail(h, ERR_MEMORY, "no memory");
        else if (h->replies.len > REPLY_BYTES) fail(h, ERR_RUNTIME, "sends requests and does not read the replies");
    }
}

/* Dispatches an event. Its data must stay: values of the reply point into it. */
static void end_event(struct mcp_http *h) {
    char *copy = h->event.len && !h->found ? arena_strndup(h->arena, h->event.data, h->event.len) : NULL;
    if (copy) take_message(h, copy, h->event.len);
    else if (h->event.len && !h->found) fail(h, ERR_MEMORY, "no memory");
    h->event.len = 0;
}

static void take_line(struct mcp_http *h, const char *line, size_t n) {
    if (n && line[n - 1] == '\r') n--;
    if (!n) end_event(h);
    if (n < 5 || memcmp(line, "data:", 5) != 0) return; /* comments, ids and names of events */
    line += 5, n -= 5;
    if (n && *line == ' ') line++, n--;
    if (h->event.len) buf_char(&h->event, '\n');
    buf_add(&h->event, line, n);
}

static void take_stream(struct mcp_http *h) {
    size_t at = 0;
    while (at < h->body.len && !h->rc) {
        const char *from = h->body.data + at, *end = memchr(from, '\n', h->body.len - at);
        if (!end) break;
        take_line(h, from, (size_t)(end - from));
        at += (size_t)(end - from) + 1;
    }
    if (at) memmove(h->body.data, h->body.data + at, h->body.len - at);
    h->body.len -= at;
}

static size_t on_body(char *data, size_t size, size_t n, void *http) {
    struct mcp_http *h = http;
    n *= size;
    if (h->rc || h->found) return h->rc ? CURL_WRITEFUNC_ERROR : n;
    h->n_stream += n;
    if (buf_add(&h->body, data, n)) fail(h, ERR_MEMORY, "no memory");
    if (h->is_stream && !h->rc) take_stream(h);
    if (h->body.len > BODY_BYTES || h->event.len > BODY_BYTES || h->n_stream > STREAM_BYTES)
        fail(h, ERR_RUNTIME, "its answer is longer than 16 MB");
    return h->rc ? CURL_WRITEFUNC_ERROR : n;
}

static bool header(const char *line, size_t n, const char *name, const char **value, size_t *n_value) {
    const size_t k = strlen(name);
    if (n <= k || line[k] != ':' || strncasecmp(line, name, k) != 0) return false;
    for (line += k + 1, n -= k + 1; n && (*line == ' ' || *line == '\t');) line++, n--;
    while (n && strchr(" \t\r\n", line[n - 1])) n--;
    *value = line, *n_value = n;
    return true;
}

/* Keeps the session's id, which goes into later heads: visible ASCII only. */
static void take_session(struct mcp_http *h, const char *value, size_t n) {
    bool bad = !n || n > SESSION_BYTES;
    for (size_t i = 0; i < n && !bad; i++) bad = value[i] < '!' || value[i] > '~';
    if (bad) {
        fail(h, ERR_RUNTIME, "its session id is not one");
        return;
    }
    memcpy(h->session, value, n);
    h->session[n] = 0;
}

static size_t on_header(char *line, size_t size, size_t n, void *http) {
    struct mcp_http *h = http;
    const char *value;
    size_t n_value;
    n *= size;
    if ((h->n_head += n) > HEAD_BYTES) fail(h, ERR_RUNTIME, "the head of its answer is too long");
    if (n > 5 && !memcmp(line, "HTTP/", 5)) { /* a status line; 100 Continue has one, too */
        *h->type = *h->moved = 0;
        h->is_stream = h->wants_login = false;
    }
    if (header(line, n, "Content-Type", &value, &n_value)) {
        snprintf(h->type, sizeof h->type, "%.*s", (int)(n_value < 200 ? n_value : 200), value);
        h->type[strcspn(h->type, "; \t")] = 0;
    }
    if (header(line, n, "Location", &value, &n_value))
        snprintf(h->moved, sizeof h->moved, "%.*s", (int)(n_value < 200 ? n_value : 200), value);
    if (header(line, n, "WWW-Authenticate", &value, &n_value))
        h->wants_login |= memmem(value, n_value, "resource_metadata", 17) != NULL;
    if (header(line, n, "Mcp-Session-Id", &value, &n_value)) take_session(h, value, n_value);
    curl.easy_getinfo(h->easy, CURLINFO_RESPONSE_CODE, &h->status);
    h->is_stream = !strcasecmp(h->type, "text/event-stream");
    return h->rc ? 0 : n;
}

/* --- sending ---------------------------------------------------------------------------------- */

static bool add_header(struct curl_slist **list, const char *name, const char *value) {
    struct buf line = {0};
    buf_fmt(&line, "%s: %s", name, value);
    struct curl_slist *more = line.failed ? NULL : curl.slist_append(*list, line.data);
    buf_free(&line);
    if (more) *list = more;
    return more != NULL;
}

static struct curl_slist *make_headers(const struct mcp_http *h, const struct mcp_http_message *q, bool names_method) {
    struct curl_slist *list = NULL;
    struct buf bearer = {0};
    bool ok = add_header(&list, "Content-Type", "application/json") &&
              add_header(&list, "Accept", "application/json, text/event-stream") && add_header(&list, "Expect", "");
    if (h->token) {
        buf_fmt(&bearer, "Bearer %s", h->token);
        ok = ok && !bearer.failed && add_header(&list, "Authorization", bearer.data);
    }
    if (q->version) ok = ok && add_header(&list, "MCP-Protocol-Version", q->version);
    if (*h->session) ok = ok && add_header(&list, "Mcp-Session-Id", h->session);
    if (names_method && q->method) ok = ok && add_header(&list, "Mcp-Method", q->method);
    if (names_method && q->tool) ok = ok && add_header(&list, "Mcp-Name", q->tool);
    buf_free(&bearer);
    if (ok) return list;
    curl.slist_free_all(list);
    return NULL;
}

/* Posts a reply beside the stream, since the server may wait for it before it sends more. */
static void post_reply(struct mcp_http *h) {
    if (h->is_replying || !h->replies.len) return;
    const size_t n = (size_t)((char *)memchr(h->replies.data, '\n', h->replies.len) - h->replies.data);
    h->posted.len = 0;
    buf_add(&h->posted, h->replies.data, n);
    memmove(h->replies.data, h->replies.data + n + 1, h->replies.len - n - 1);
    h->replies.len -= n + 1;
    curl.slist_free_all(h->reply_headers);
    h->reply_headers = make_headers(h, h->message, false);
    if (h->posted.failed || !h->reply_headers) {
        fail(h, ERR_MEMORY, "no memory");
        return;
    }
    curl.easy_setopt(h->reply, CURLOPT_HTTPHEADER, h->reply_headers);
    curl.easy_setopt(h->reply, CURLOPT_POSTFIELDS, h->posted.data);
    curl.easy_setopt(h->reply, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)h->posted.len);
    h->is_replying = !curl.multi_add_handle(h->multi, h->reply);
}

/* Waits for the end of the transfer, or for the reply. *code: of curl. */
static int run(struct mcp_http *h, CURLcode *code) {
    bool is_done = false;
    int still;
    while (!is_done && !h->rc && !(h->found && !h->is_replying && !h->replies.len)) {
        curl.multi_perform(h->multi, &still);
        for (CURLMsg *m; (m = curl.multi_info_read(h->multi, &still));) {
            if (m->msg != CURLMSG_DONE) continue;
            if (m->easy_handle == h->easy) is_done = true, *code = m->data.result;
            else curl.multi_remove_handle(h->multi, h->reply), h->is_replying = false;
        }
        post_reply(h);
        if (is_done || h->rc) break;
        struct curl_waitfd fd = {.fd = h->message->cancel_fd, .events = CURL_WAIT_POLLIN};
        curl.multi_poll(h->multi, &fd, h->message->cancel_fd >= 0, WAIT_MS, NULL);
        if (fd.revents) return error_set(&h->error, h->rc = ERR_CANCELLED, "stopped by the user");
        if (clock_now() >= h->message->until) return fail(h, ERR_RUNTIME, "no answer in time");
    }
    return h->rc;
}

/* Judges an answer without a reply by its status. */
static int judge(struct mcp_http *h, struct error *e) {
    if (h->status == 401 || h->status == 403) {
        const char *why =
            h->token ? "rejects the token; check HEARTH_MCP_TOKEN"
            : h->wants_login
                ? "wants a login with OAuth, which is not supported; if it gives out tokens, make one and set"
                : "wants a token; set";
        return h->token
                   ? error_set(e, ERR_RUNTIME, "MCP server %.100s (status %ld) %s", h->host, h->status, why)
                   : error_set(e, ERR_RUNTIME, "MCP server %.100s (status %ld) %s HEARTH_MCP_TOKEN to %.100s=TOKEN",
                               h->host, h->status, why, h->host);
    }
    if (h->status == 404 && *h->session) return MCP_HTTP_NO_SESSION;
    if (h->status >= 300 && h->status < 400)
        return error_set(
            e, ERR_RUNTIME,
            "MCP server %.100s redirects (status %ld) to %.200s, which is not followed; give that URL if you trust it",
            h->host, h->status, *h->moved ? h->moved : "nowhere");
    if (h->status >= 400)
        return error_set(e, ERR_RUNTIME, "MCP server %.100s: status %ld; check the URL", h->host, h->status);
    if (h->is_stream) return error_set(e, ERR_RUNTIME, "MCP server %.100s: its stream ended without a reply", h->host);
    return error_set(e, ERR_RUNTIME, "MCP server %.100s: answers with %.60s instead of JSON; check the URL", h->host,
                     *h->type ? h->type : "nothing");
}

static void begin(struct mcp_http *h, const struct mcp_http_message *q, struct arena *a, struct mcp_message *out) {
    h->message = q, h->arena = a, h->out = out;
    h->body.len = h->event.len = h->replies.len = 0;
    h->is_stream = h->found = h->wants_login = false;
    h->n_head = h->n_stream = 0;
    h->status = 0;
    *h->type = *h->moved = 0;
    h->rc = 0;
}

int mcp_http_send(struct mcp_http *h, const struct mcp_http_message *q, struct arena *a, struct mcp_message *reply,
                  struct error *e) {
    char why[CURL_ERROR_SIZE] = "";
    CURLcode code = CURLE_OK;
    begin(h, q, a, reply);
    struct curl_slist *headers = make_headers(h, q, true);
    if (!headers) return error_set(e, ERR_MEMORY, "no memory");
    const size_t n = q->n && q->text[q->n - 1] == '\n' ? q->n - 1 : q->n;
    curl.easy_setopt(h->easy, CURLOPT_HTTPHEADER, headers);
    curl.easy_setopt(h->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)n);
    curl.easy_setopt(h->easy, CURLOPT_POSTFIELDS, q->text);
    curl.easy_setopt(h->easy, CURLOPT_ERRORBUFFER, why);
    curl.multi_add_handle(h->multi, h->easy);
    int rc = run(h, &code);
    curl.multi_remove_handle(h->multi, h->easy);
    if (h->is_replying) curl.multi_remove_handle(h->multi, h->reply);
    h->is_replying = false;
    curl.easy_setopt(h->easy, CURLOPT_ERRORBUFFER, NULL);
    curl.easy_setopt(h->easy, CURLOPT_HTTPHEADER, NULL);
    curl.slist_free_all(headers);
    if (!rc && code)
        rc = error_set(e, ERR_RUNTIME, "MCP server %.100s: %s", h->host, *why ? why : curl.easy_strerror(code));
    else if (rc) *e = h->error;
    if (rc || h->found) return rc;
    if (q->id < 0 && h->status >= 200 && h->status < 300) return 0;
    const bool is_json = !strcasecmp(h->type, "application/json");
    if (is_json && h->body.len && h->status != 401 && h->status != 403 && !(h->status == 404 && *h->session)) {
        char *copy = arena_strndup(a, h->body.data, h->body.len);
        if (!copy) return error_set(e, ERR_MEMORY, "no memory");
        take_message(h, copy, h->body.len);
        if (h->found) return 0;
        if (h->status < 400 && h->rc) return *e = h->error, h->rc;
        if (h->status < 400) return error_set(e, ERR_RUNTIME, "MCP server %.100s: answers another request", h->host);
    }
    return judge(h, e);
}

int mcp_http_open(struct mcp_http **out, const char *url, struct error *e) {
    struct mcp_http *h = *out = mem_calloc(1, sizeof *h);
    if (!h) return error_set(e, ERR_MEMORY, "no memory");
    int rc = lib_curl(e);
    if (!rc) rc = read_url(h, url, e);
    if (!rc && (!(h->multi = curl.multi_init()) || !(h->easy = curl.easy_init()) || !(h->reply = curl.easy_init())))
        rc = error_set(e, ERR_MEMORY, "no memory");
    if (rc) {
        mcp_http_close(out, NULL);
        return rc;
    }
    set_up(h, h->easy);
    set_up(h, h->reply);
    curl.easy_setopt(h->reply, CURLOPT_WRITEFUNCTION, drop);
    curl.easy_setopt(h->easy, CURLOPT_WRITEFUNCTION, on_body);
    curl.easy_setopt(h->easy, CURLOPT_WRITEDATA, h);
    curl.easy_setopt(h->easy, CURLOPT_HEADERFUNCTION, on_header);
    curl.easy_setopt(h->easy, CURLOPT_HEADERDATA, h);
    return 0;
}

/* Ends the session. A server that does not care is not waited for. */
static void end_session(struct mcp_http *h, const char *version) {
    const struct mcp_http_message q = {.version = version};
    struct curl_slist *headers = make_headers(h, &q, false);
    if (headers) {
        curl.easy_setopt(h->easy, CURLOPT_HTTPHEADER, headers);
        curl.easy_setopt(h->easy, CURLOPT_CUSTOMREQUEST, "DELETE");
        curl.easy_setopt(h->easy, CURLOPT_HTTPGET, 1L);
        curl.easy_setopt(h->easy, CURLOPT_TIMEOUT_MS, (long)CLOSE_MS);
        curl.easy_setopt(h->easy, CURLOPT_WRITEFUNCTION, drop);
        curl.easy_setopt(h->easy, CURLOPT_HEADERFUNCTION, NULL);
        curl.easy_perform(h->easy);
    }
    curl.slist_free_all(headers);
}

void mcp_http_close(struct mcp_http **at, const char *version) {
    struct mcp_http *h = *at;
    *at = NULL;
    if (!h) return;
    if (h->easy && *h->session) end_session(h, version);
    if (h->easy) curl.easy_cleanup(h->easy);
    if (h->reply) curl.easy_cleanup(h->reply);
    if (h->multi) curl.multi_cleanup(h->multi);
    if (h->reply_headers) curl.slist_free_all(h->reply_headers);
    struct buf *const bufs[] = {&h->body, &h->event, &h->replies, &h->posted};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) buf_free(bufs[i]);
    mem_free(h->url);
    mem_free(h->host);
    mem_free(h->token);
    mem_free(h);
}

#include "cli/tools/mcp.h"

#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/test_limits.h"
#include "cli/options/words.h"
#include "cli/terminal/out.h"
#include "cli/tools/child.h"
#include "cli/tools/mcp_http.h"
#include "cli/tools/mcp_message.h"
#include "cli/tools/tool_process.h"

#define VERSION "2026-07-28"
/* the last revision whose connections begin with `initialize` */
#define OLD_VERSION "2025-06-18"
#define CLIENT_INFO "{\"name\": \"hearth\", \"version\": \"" HEARTH_VERSION "\"}"
enum {
    PROBE_S = 10,
    START_S = 30,
    MOST_PAGES = 100,
    LINE_BYTES = 16 << 20,
    STDERR_BYTES = 1024,
    CHECK_MS = 100,
    EXIT_MS = 500,
    CANCEL_S = 2
};

struct mcp {
    pthread_mutex_t lock;  /* one exchange at a time */
    struct mcp_http *http; /* NULL: a child process */
    char version[24];      /* protocol version agreed on by `initialize`, over HTTP; "": none */
    char *words;           /* owns argv */
    const char **argv;
    struct child child;
    struct buf in, unsent, err; /* received, not parsed; to be sent; the end of its stderr */
    size_t n_parsed;            /* bytes of in that are parsed */
    int64_t last_id;
    bool is_stateless;  /* speaks VERSION: each request says which revision it is of */
    bool names_version; /* its last error says that it speaks VERSION */
    bool broken;        /* it has ended or broken the protocol: every exchange fails */
};

const char *mcp_name(const struct mcp *m) { return m->http ? mcp_http_name(m->http) : m->argv[0]; }

/* --- exchange --------------------------------------------------------------------------------- */

/* Marks the connection as broken: all later exchanges fail. The message gets the last line of the server's stderr. */
static int break_off(struct mcp *m, struct error *e, const char *fmt, ...) {
    char what[300];
    struct buf last = {0};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    size_t end = m->err.len;
    while (end && strchr("\r\n ", m->err.data[end - 1])) end--;
    const char *line = end ? memrchr(m->err.data, '\n', end) : NULL;
    line = line ? line + 1 : m->err.data;
    if (end) out_utf8(&last, line, (size_t)(m->err.data + end - line));
    m->broken = true;
    int rc = error_set(e, ERR_RUNTIME, "MCP server %.100s: %s%s%.150s", mcp_name(m), what,
                       last.len ? "; its stderr ends: " : "", last.len ? last.data : "");
    buf_free(&last);
    return rc;
}

static int end_broken(struct mcp *m, struct error *e) {
    const int status = child_end(&m->child, EXIT_MS / 1e3);
    if (WIFSIGNALED(status))
        return break_off(m, e, "ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return break_off(m, e, "exited with status %d", WEXITSTATUS(status));
}

static void receive_errors(struct mcp *m) {
    char chunk[4096];
    const ssize_t n = m->child.err < 0 ? -1 : child_read(&m->child.err, chunk, sizeof chunk);
    if (n <= 0) return;
    log_say(LOG_DEBUG, "%s: %.*s", mcp_name(m), (int)(n < 500 ? n : 500), chunk);
    buf_add(&m->err, chunk, (size_t)n);
    if (m->err.len <= STDERR_BYTES) return;
    memmove(m->err.data, m->err.data + m->err.len - STDERR_BYTES, STDERR_BYTES);
    m->err.len = STDERR_BYTES;
}

static int receive(struct mcp *m, struct error *e) {
    char chunk[65536];
    const ssize_t n = child_read(&m->child.out, chunk, sizeof chunk);
    if (n < 0) return receive_errors(m), end_broken(m, e);
    if (buf_add(&m->in, chunk, (size_t)n)) return break_off(m, e, "no memory for its message");
    if (m->in.len - m->n_parsed > LINE_BYTES)
        return break_off(m, e, "sent a message of more than %d bytes", LINE_BYTES);
    return 0;
}

static void send_unsent(struct mcp *m) {
    const ssize_t n = m->child.in < 0 ? -1 : child_write(&m->child.in, m->unsent.data, m->unsent.len);
    if (n < 0) m->unsent.len = 0; /* its stdout will end, too */
    if (n <= 0) return;
    memmove(m->unsent.data, m->unsent.data + n, m->unsent.len - (size_t)n);
    m->unsent.len -= (size_t)n;
}

/* Takes the next complete line. False: no line is complete; the parsed ones are removed. */
static bool take_line(struct mcp *m, const char **line, size_t *n) {
    const char *from = m->in.data + m->n_parsed,
               *end = m->in.len > m->n_parsed ? memchr(from, '\n', m->in.len - m->n_parsed) : NULL;
    if (!end) {
        if (m->n_parsed) memmove(m->in.data, from, m->in.len -= m->n_parsed);
        m->n_parsed = 0;
        return false;
    }
    *line = from, *n = (size_t)(end - from);
    m->n_parsed += *n + 1;
    return true;
}

/* Parses received lines until the reply with this id. *found is false if it has not arrived. */
static int find_reply(struct mcp *m, int64_t id, struct arena *a, struct mcp_message *out, bool *found,
                      struct error *e) {
    const char *line;
    size_t n;
    *found = false;
    while (!*found && take_line(m, &line, &n)) {
        struct error why;
        if (!n || *line != '{') { /* servers also log to stdout; a message is an object on a line of its own */
            if (n > 1) log_say(LOG_DEBUG, "%s: not a message: %.*s", mcp_name(m), (int)(n < 500 ? n : 500), line);
            continue;
        }
        const int rc = mcp_message_parse(a, line, n, out, &why);
        if (rc == ERR_MEMORY) return error_set(e, rc, "no memory");
        if (rc) return break_off(m, e, "%s", why.text);
        if (out->kind == MCP_REQUEST) mcp_message_put_reply(&m->unsent, out);
        if (m->unsent.len > LINE_BYTES) return break_off(m, e, "sends requests and does not read the replies");
        /* late replies to cancelled requests are dropped */
        *found = (out->kind == MCP_RESULT || out->kind == MCP_ERROR) && out->id == id;
        if (!*found) arena_reset(a);
    }
    return 0;
}

static void cancel_request(struct mcp *m, int64_t id, const char *why) {
    char params[120];
    snprintf(params, sizeof params, "{\"requestId\": %lld, \"reason\": \"%s\"}", (long long)id, why);
    mcp_message_put_notification(&m->unsent, "notifications/cancelled", params);
    if (!m->http) send_unsent(m);
}

/* Appends a request. To a stateless server each request says who the client is. */
static void put_request(struct mcp *m, int64_t id, const char *method, const char *params) {
    static const char meta[] = "\"_meta\": {\"io.modelcontextprotocol/protocolVersion\": \"" VERSION
                               "\", \"io.modelcontextprotocol/clientInfo\": " CLIENT_INFO
                               ", \"io.modelcontextprotocol/clientCapabilities\": {}}";
    struct buf b = {0};
    if (m->is_stateless) buf_fmt(&b, "{%s%s%s", meta, params[1] == '}' ? "" : ", ", params + 1);
    mcp_message_put_request(&m->unsent, id, method, m->is_stateless ? b.data : params);
    m->unsent.failed |= b.failed;
    buf_free(&b);
}

static bool names(const struct json *versions) {
    bool found = false;
    for (uint32_t i = 0; versions && versions->type == JSON_ARRAY && i < versions->n; i++)
        found |= json_is(&versions->items[i], VERSION);
    return found;
}

/* A request and its deadline. tool: the name of the tool to call; NULL: another request. */
struct question {
    const char *method, *params, *tool;
    double timeout_s, until;
    int cancel_fd;
};

static int initialize(struct mcp *m, struct error *e);

/* Posts what is unsent: a message, whose reply follows, or with id -1 a notification. */
static int post(struct mcp *m, const struct question *q, int64_t id, struct arena *a, struct mcp_message *reply,
                struct error *e) {
    const struct mcp_http_message message = {.text = m->unsent.data,
                                             .n = m->unsent.len,
                                             .id = id,
                                             .version = m->is_stateless ? VERSION
                                                        : *m->version   ? m->version
                                                                        : NULL,
                                             .method = m->is_stateless ? q->method : NULL,
                                             .tool = m->is_stateless ? q->tool : NULL,
                                             .until = q->until,
                                             .cancel_fd = q->cancel_fd};
    if (m->unsent.failed) return error_set(e, ERR_MEMORY, "no memory");
    const int rc = mcp_http_send(m->http, &message, a, reply, e);
    m->unsent.len = 0;
    return rc;
}

/* Posts a notification. A server that does not take it is not told again. */
static void notify(struct mcp *m, double seconds) {
    struct arena arena = {0};
    struct mcp_message none;
    const struct question q = {.until = clock_now() + seconds, .cancel_fd = -1};
    error_ignore(post(m, &q, -1, &arena, &none, &(struct error){0}));
    arena_free(&arena);
}

/* A session that the server has forgotten is begun again, once. */
static int exchange_http(struct mcp *m, const struct question *q, int64_t id, struct arena *a,
                         struct mcp_message *reply, struct error *e) {
    int rc = post(m, q, id, a, reply, e);
    if (rc == MCP_HTTP_NO_SESSION) {
        mcp_http_forget(m->http);
        *m->version = 0;
        TRY(initialize(m, e));
        put_request(m, id, q->method, q->params);
        rc = post(m, q, id, a, reply, e);
    }
    if (rc == MCP_HTTP_NO_SESSION)
        return error_set(e, ERR_RUNTIME, "MCP server %.100s: does not keep its session", mcp_name(m));
    const bool is_late = rc == ERR_RUNTIME && clock_now() >= q->until;
    if (is_late)
        error_set(e, rc, "MCP server %.100s: no answer to %s after %g s", mcp_name(m), q->method, q->timeout_s);
    if ((rc == ERR_CANCELLED || is_late) && q->tool && !m->is_stateless) { /* else the closed connection says it */
        cancel_request(m, id, rc == ERR_CANCELLED ? "the user stopped it" : "timeout");
        notify(m, CANCEL_S);
    }
    return rc;
}

/* Waits for the reply of a child process. */
static int exchange_stdio(struct mcp *m, const struct question *q, int64_t id, struct arena *a,
                          struct mcp_message *reply, struct error *e) {
    for (bool found = false; !found;) {
        struct pollfd fds[4] = {{.fd = m->unsent.len ? m->child.in : -1, .events = POLLOUT},
                                {.fd = m->child.out, .events = POLLIN},
                                {.fd = m->child.err, .events = POLLIN},
                                {.fd = q->cancel_fd, .events = POLLIN}};
        const int ready = poll(fds, 4, CHECK_MS);
        if (ready > 0 && fds[3].revents)
            return cancel_request(m, id, "the user stopped it"), error_set(e, ERR_CANCELLED, "stopped by the user");
        if (ready > 0 && fds[0].revents) send_unsent(m);
        if (ready > 0 && fds[2].revents) receive_errors(m);
        if (ready > 0 && fds[1].revents) TRY(receive(m, e));
        TRY(find_reply(m, id, a, reply, &found, e));
        if (found || clock_now() < q->until) continue;
        if (strncmp(q->method, "tools/", 6) == 0) cancel_request(m, id, "timeout"); /* no others may be cancelled */
        return error_set(e, ERR_RUNTIME, "MCP server %.100s: no answer to %s after %g s", mcp_name(m), q->method,
                         q->timeout_s);
    }
    return 0;
}

/* Sends a request and waits for its result, an object in the arena. ERR_CANCELLED; else ERR_RUNTIME: also an error that
 * the server reports. */
static int exchange(struct mcp *m, struct question q, struct arena *a, const struct json **result, struct error *e) {
    const char *method = q.method;
    const int64_t id = ++m->last_id;
    struct mcp_message reply;
    q.until = clock_now() + q.timeout_s * (double)test_limits_get(TEST_LIMIT_SERVE_SECOND_MS, 1000) / 1e3;
    if (m->broken) return break_off(m, e, "was given up after an earlier error");
    m->names_version = false;
    put_request(m, id, method, q.params);
    if (m->unsent.failed) return break_off(m, e, "no memory");
    TRY(m->http ? exchange_http(m, &q, id, a, &reply, e) : exchange_stdio(m, &q, id, a, &reply, e));
    *result = reply.body;
    const struct json *type = json_get(reply.body, "resultType");
    if (reply.kind == MCP_RESULT && type && !json_is(type, "complete"))
        return error_set(e, ERR_RUNTIME, "MCP server %.100s: %s: its result is not complete, but %.*s: not supported",
                         mcp_name(m), method, type->type == JSON_STRING && type->n < 40 ? (int)type->n : 1,
                         type->type == JSON_STRING && type->n < 40 ? type->string : "?");
    if (reply.kind == MCP_RESULT) return 0;
    m->names_version = names(json_path(reply.body, "data.supported"));
    struct buf text = {0};
    mcp_message_error_text(reply.body, &text);
    error_set(e, ERR_RUNTIME, "MCP server %.100s: %s: %s", mcp_name(m), method, text.data ? text.data : "no memory");
    buf_free(&text);
    return e->code;
}

/* --- opening ---------------------------------------------------------------------------------- */

static int split_command(struct mcp *m, const char *command, struct error *e) {
    const size_t most = strlen(command) / 2 + 2;
    char *to = m->words = mem_alloc(strlen(command) + 1);
    size_t n = 0;
    bool closed = true;
    if (!to || !(m->argv = mem_calloc(most, sizeof *m->argv))) return error_set(e, ERR_MEMORY, "no memory");
    while (words_next(&command, to, &closed)) {
        m->argv[n++] = to;
        to += strlen(to) + 1;
    }
    if (!closed) return error_set(e, ERR_USAGE, "a quote is not closed");
    if (!n) return error_set(e, ERR_USAGE, "a program is required");
    return child_find_program(m->argv[0], e);
}

static int check_tools(struct mcp *m, const struct json *result, struct error *e) {
    return json_get(json_get(result, "capabilities"), "tools") ? 0 : break_off(m, e, "it offers no tools");
}

/* Keeps the revision that the server has chosen, for heads of HTTP. */
static void take_version(struct mcp *m, const struct json *version) {
    bool is_date = version && version->type == JSON_STRING && version->n == strlen(OLD_VERSION);
    for (uint32_t i = 0; is_date && i < version->n; i++) is_date = strchr("0123456789-", version->string[i]) != NULL;
    snprintf(m->version, sizeof m->version, "%.*s", (int)strlen(OLD_VERSION), is_date ? version->string : OLD_VERSION);
}

/* Begins a connection of OLD_VERSION. */
static int initialize(struct mcp *m, struct error *e) {
    static const char params[] =
        "{\"protocolVersion\": \"" OLD_VERSION "\", \"capabilities\": {}, \"clientInfo\": " CLIENT_INFO "}";
    struct arena arena = {0};
    const struct json *result;
    m->is_stateless = false;
    *m->version = 0;
    int rc =
        exchange(m, (struct question){"initialize", params, .timeout_s = START_S, .cancel_fd = -1}, &arena, &result, e);
    if (!rc) rc = check_tools(m, result, e);
    if (!rc) take_version(m, json_get(result, "protocolVersion"));
    arena_free(&arena);
    if (rc) return rc;
    mcp_message_put_notification(&m->unsent, "notifications/initialized", NULL);
    if (m->http) notify(m, START_S);
    return 0;
}

/* Asks whether the server speaks VERSION. *speaks is false, too, if it answers with an error or not at all. */
static int probe(struct mcp *m, bool *speaks, struct error *e) {
    struct arena arena = {0};
    const struct json *result;
    m->is_stateless = true;
    int rc = exchange(m, (struct question){"server/discover", "{}", .timeout_s = PROBE_S, .cancel_fd = -1}, &arena,
                      &result, e);
    *speaks = !rc && names(json_get(result, "supportedVersions"));
    if (*speaks) rc = check_tools(m, result, e);
    arena_free(&arena);
    return *speaks || rc == ERR_MEMORY ? rc : 0;
}

/* A server of an earlier revision may end when it gets a request before `initialize`: starts it again. */
static int start_again(struct mcp *m, struct error *e) {
    child_end(&m->child, EXIT_MS / 1e3);
    child_close(&m->child.out);
    child_close(&m->child.err);
    m->child = (struct child){.in = -1, .out = -1, .err = -1};
    m->in.len = m->unsent.len = m->err.len = m->n_parsed = 0;
    m->broken = false;
    return child_start(&m->child, m->argv, 0, e);
}

/* Finds the revision that both sides speak. A server that was too slow for the probe, and answers it later, refuses
 * `initialize`, and names VERSION. */
static int negotiate(struct mcp *m, struct error *e) {
    bool speaks;
    TRY(probe(m, &speaks, e));
    if (speaks) return 0;
    if (m->broken && !m->http) TRY(start_again(m, e));
    int rc = initialize(m, e);
    if (!rc || !m->names_version) return rc;
    rc = probe(m, &speaks, e);
    return rc || speaks ? rc : break_off(m, e, "speaks no revision of the protocol up to " VERSION);
}

int mcp_open(struct mcp **out, const char *command, struct error *e) {
    struct mcp *m = *out = mem_calloc(1, sizeof *m);
    if (!m) return error_set(e, ERR_MEMORY, "no memory");
    pthread_mutex_init(&m->lock, NULL);
    m->child = (struct child){.in = -1, .out = -1, .err = -1};
    const bool is_url = mcp_http_is_url(command);
    int rc = is_url ? mcp_http_open(&m->http, command, e) : split_command(m, command, e);
    if (!rc && !is_url) rc = child_start(&m->child, m->argv, 0, e);
    if (!rc) rc = negotiate(m, e);
    if (rc) mcp_close(out);
    return rc;
}

void mcp_close(struct mcp **at) {
    struct mcp *m = *at;
    *at = NULL;
    if (!m) return;
    mcp_http_close(&m->http, *m->version ? m->version : NULL);
    child_end(&m->child, EXIT_MS / 1e3);
    child_close(&m->child.out);
    child_close(&m->child.err);
    pthread_mutex_destroy(&m->lock);
    buf_free(&m->in);
    buf_free(&m->unsent);
    buf_free(&m->err);
    mem_free(m->words);
    mem_free(m->argv);
    mem_free(m);
}

/* --- tools ------------------------------------------------------------------------------------ */

/* Makes the parameters of the next page. Empty: there is none. */
static int put_cursor(struct mcp *m, const struct json *result, struct buf *params, struct error *e) {
    const struct json *cursor = json_get(result, "nextCursor");
    params->len = 0;
    if (!cursor || cursor->type == JSON_NULL) return 0;
    if (cursor->type != JSON_STRING) return break_off(m, e, "tools/list: nextCursor must be a string");
    buf_str(params, "{\"cursor\": ");
    json_quote(params, cursor->string, cursor->n);
    buf_char(params, '}');
    return params->failed ? error_set(e, ERR_MEMORY, "no memory") : 0;
}

int mcp_list_tools(struct mcp *m, int (*fn)(void *ctx, const struct json *tool, struct error *e), void *ctx,
                   struct error *e) {
    struct buf params = {0};
    struct arena arena = {0};
    int rc = buf_str(&params, "{}");
    for (int page = 0; !rc && params.len; page++) {
        const struct json *result;
        if (page == MOST_PAGES) rc = break_off(m, e, "its list of tools has more than %d pages", MOST_PAGES);
        if (!rc)
            rc = exchange(m, (struct question){"tools/list", params.data, .timeout_s = START_S, .cancel_fd = -1},
                          &arena, &result, e);
        const struct json *list = rc ? NULL : json_get(result, "tools");
        if (!rc && (!list || list->type != JSON_ARRAY)) rc = break_off(m, e, "tools/list: tools must be an array");
        for (uint32_t i = 0; !rc && i < list->n; i++) rc = fn(ctx, &list->items[i], e);
        if (!rc) rc = put_cursor(m, result, &params, e);
        arena_reset(&arena);
    }
    arena_free(&arena);
    buf_free(&params);
    return rc;
}

/* Waits for the calls of other threads. False: cancelled. */
static bool acquire(struct mcp *m, int cancel_fd) {
    enum { POLL_MS = 20 };
    while (pthread_mutex_trylock(&m->lock))
        if (tool_process_is_cancelled(cancel_fd, POLL_MS)) return false;
    return true;
}

static void put_result(const struct tool_definition *d, const struct json *result, struct tool_result *r) {
    struct buf text = {0};
    if (mcp_message_result_text(result, &text)) r->status = TOOL_FAILED;
    const bool is_cut = text.len > d->command.max_output;
    out_utf8(&r->text, text.data ? text.data : "", is_cut ? d->command.max_output : text.len);
    if (is_cut) tool_result_note(r, "cut at %zu bytes", d->command.max_output);
    r->text.failed |= text.failed;
    buf_free(&text);
}

void mcp_call(struct mcp *m, const struct tool_definition *d, const char *arguments, int cancel_fd,
              struct tool_result *r) {
    const double start = clock_now();
    struct arena arena = {0};
    struct buf params = {0};
    const struct json *result;
    struct error e = {.code = ERR_CANCELLED, .text = "stopped by the user"};
    buf_fmt(&params, "{\"name\": \"%s\", \"arguments\": %s}", d->name, arguments);
    int rc = ERR_CANCELLED;
    if (params.failed) rc = error_set(&e, ERR_MEMORY, "no memory");
    else if (acquire(m, cancel_fd)) {
        rc = exchange(m,
                      (struct question){"tools/call", params.data, d->name, .timeout_s = d->command.timeout_s,
                                        .cancel_fd = cancel_fd},
                      &arena, &result, &e);
        if (!rc) put_result(d, result, r);
        pthread_mutex_unlock(&m->lock);
    }
    if (rc) r->status = rc == ERR_CANCELLED ? TOOL_STOPPED : TOOL_FAILED, tool_result_note(r, "%s", e.text);
    r->text.failed |= rc == ERR_MEMORY; /* ends the answer */
    r->seconds = clock_now() - start;
    arena_free(&arena);
    buf_free(&params);
}

/* Running requests. One thread sends and receives all of them and queues events; remote_request_poll takes events from
 * the queue. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/test_limits.h"
#include "cli/app.h"
#include "cli/remote/remote_connection.h"
#include "cli/terminal/out.h"
#include "cli/terminal/sig.h"
#include "cli/turn/engine_client.h"
#include "cli/turn/prompt.h"

static void wake_reader(int fd) {
    uint64_t one = 1;
    int saved = errno;
    error_ignore(write(fd, &one, sizeof one)); /* counter full: already readable */
    errno = saved;
}

/* --- events ----------------------------------------------------------------------------------- */

static void queue_event(struct remote_request *c, const struct engine_event *news, const char *text, size_t n) {
    struct remote *r = c->remote;
    struct remote_event *p = mem_calloc(1, sizeof *p);
    if (p && text) buf_add(&p->text, text, n);
    if (!p || p->text.failed) {
        if (p) mem_free(p);
        c->parse_error = "no memory";
        return;
    }
    p->event = *news;
    p->event.client = c->client;
    if (text) p->event.text = p->text.data ? p->text.data : "", p->event.n = p->text.len;
    pthread_mutex_lock(&r->lock);
    *r->queue_tail = p;
    r->queue_tail = &p->next;
    wake_reader(r->events_fd);
    pthread_mutex_unlock(&r->lock);
}

/* Counts bytes of the answer, and gives up a server that ignores the limit of tokens. */
static void count_received(struct remote_request *c, size_t n) {
    const size_t tokens = c->max_tokens > 0 ? (size_t)c->max_tokens : 0,
                 most = tokens ? tokens * REMOTE_TOKEN_BYTES + REMOTE_SPARE_BYTES : REMOTE_ANSWER_BYTES;
    c->n_received += n;
    if (c->n_received <= most || c->remote->resident || c->parse_error) return;
    c->parse_error = tokens ? "the answer is far longer than its limit of tokens; stopped"
                            : "the answer is longer than 64 MB; stopped";
}

static void queue_text(struct remote_request *c, enum output_kind part, const char *text, size_t n) {
    if (!n) return;
    c->last = clock_now();
    if (!c->has_text) c->first = c->last;
    c->has_text = true;
    queue_event(c, &(struct engine_event){.event = {.kind = EVENT_TOKEN, .token = -1}, .part = part}, text, n);
}

/* Queues the last event. It cannot fail: its memory was allocated with the request. */
static void finish_request(struct remote_request *c, int rc, const struct error *e) {
    struct remote *r = c->remote;
    struct remote_event *p = c->last_event;
    double now = clock_now();
    if (!c->has_server_times) {
        if (c->has_text) c->stats.ttft_s = c->first - c->submitted, c->stats.decode_s = c->last - c->first;
        else c->stats.ttft_s = now - c->submitted;
    }
    p->event = (struct engine_event){
        .client = c->client, .event = {.kind = rc ? EVENT_ERROR : EVENT_DONE, .reason = c->reason, .stats = c->stats}};
    if (rc) p->event.event.error = *e;
    c->last_event = NULL;
    pthread_mutex_lock(&r->lock);
    if (c->in_multi) curl.multi_remove_handle(r->multi, c->easy);
    c->in_multi = false;
    c->finished = true;
    *r->queue_tail = p;
    r->queue_tail = &p->next;
    wake_reader(r->events_fd);
    pthread_mutex_unlock(&r->lock);
}

/* --- responses -------------------------------------------------------------------------------- */

static void queue_json_text(struct remote_request *c, enum output_kind part, const struct json *j) {
    if (!j || j->type != JSON_STRING) return;
    count_received(c, j->n);
    queue_text(c, part, j->string, j->n);
}

static void add_to_call(struct remote_request *c, struct buf *to, const struct json *j) {
    if (!j || j->type != JSON_STRING) return;
    count_received(c, j->n);
    buf_add(to, j->string, j->n);
}

static void read_tool_calls(struct remote_request *c, const struct json *list) {
    for (uint32_t i = 0; list && list->type == JSON_ARRAY && i < list->n; i++) {
        const struct json *t = &list->items[i], *name = json_path(t, "function.name"),
                          *arguments = json_path(t, "function.arguments");
        int64_t at = json_int(json_get(t, "index"), i);
        if (at < 0 || at >= (int64_t)(sizeof c->tools / sizeof *c->tools)) continue;
        add_to_call(c, &c->tools[at].name, name);
        add_to_call(c, &c->tools[at].arguments, arguments);
    }
}
/* Emits tool calls when they are complete, one a line. */
static void queue_tool_calls(struct remote_request *c) {
    for (size_t i = 0; i < sizeof c->tools / sizeof *c->tools; i++) {
        struct buf b = {0};
        if (!c->tools[i].name.len) continue;
        if (!tool_calls_put_line(&b, &c->tools[i].name, &c->tools[i].arguments))
            queue_text(c, OUTPUT_TOOL_CALL, b.data, b.len);
        else c->parse_error = "no memory";
        buf_free(&b);
    }
}

static void read_reason(struct remote_request *c, const struct json *j) {
    if (!j || j->type != JSON_STRING) return;
    c->has_reason = true;
    c->reason = json_is(j, "length") ? DONE_LENGTH : DONE_STOP;
}

static const char *mode_name(const struct json *j) {
    static const char *const names[] = {"cpu", "blend", "slp", "dslp", "hybrid", "dual", "paged", "single"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (json_is(j, names[i])) return names[i];
    return NULL;
}
static void copy_string(const struct json *j, char *out, size_t cap) {
    if (j && j->type == JSON_STRING) snprintf(out, cap, "%.*s", (int)(j->n < cap ? j->n : cap), j->string);
}

/* Returns an untrusted number of tokens, limited to 2^30. */
static int clamp_count(const struct json *j) {
    int64_t n = json_int(j, 0);
    return n < 0 ? 0 : n > 1 << 30 ? 1 << 30 : (int)n;
}

static void read_usage(struct remote_request *c, const struct json *j) {
    const struct json *u = json_get(j, "usage"), *t = json_get(j, "timings"), *k = json_get(t, "timing");
    struct turn_stats *s = &c->stats;
    if (u && u->type == JSON_OBJECT) {
        s->prompt_tokens = clamp_count(json_get(u, "prompt_tokens"));
        s->answer_tokens = clamp_count(json_get(u, "completion_tokens"));
        s->cached_tokens = clamp_count(json_path(u, "prompt_tokens_details.cached_tokens"));
    }
    if (!c->remote->resident || !k) return;
    c->has_server_times = true;
    s->queue_s = json_num(json_get(k, "queue_s"), 0);
    s->ttft_s = json_num(json_get(k, "ttft_s"), 0);
    s->prefill_s = json_num(json_get(k, "prefill_s"), 0);
    s->decode_s = json_num(json_get(k, "decode_s"), 0);
    s->bytes_read = (uint64_t)json_int(json_get(k, "bytes_read"), 0);
    s->prefill_mode = mode_name(json_get(k, "prefill"));
    s->decode_mode = mode_name(json_get(k, "decode"));
    s->drafted = (int)json_int(json_get(k, "drafted"), 0);
    s->accepted = (int)json_int(json_get(k, "accepted"), 0);
    if (json_is(json_get(t, "reason"), "context")) c->reason = DONE_CONTEXT;
    copy_string(json_get(t, "why"), s->prefill_why, sizeof s->prefill_why);
    copy_string(json_get(t, "decode_why"), s->decode_why, sizeof s->decode_why);
    s->prefill_expected_s = json_num(json_get(t, "prefill_expected_s"), 0);
    s->batch_expected_s = json_num(json_get(t, "step_expected_s"), 0);
    s->batch_s = json_num(json_get(t, "step_s"), 0);
}

static void read_chunk(struct remote_request *c, const char *text, size_t n) {
    struct arena arena = {0};
    struct json j;
    if (n == 6 && !memcmp(text, "[DONE]", 6)) {
        c->has_end_mark = true;
        return;
    }
    if (json_parse(&arena, text, n, 0, "chunk", &j, NULL)) c->parse_error = "invalid JSON in the answer";
    else if (json_get(&j, "error")) {
        buf_add(&c->error_body, text, n);
        c->parse_error = "the server reported an error";
    } else {
        const struct json *choice = json_at(json_get(&j, "choices"), 0), *delta = json_get(choice, "delta"),
                          *thought = json_get(delta, "reasoning_content");
        queue_json_text(c, OUTPUT_THINKING, thought ? thought : json_get(delta, "reasoning"));
        queue_json_text(c, OUTPUT_TEXT, json_get(delta, "content"));
        if (c->remote->resident) queue_json_text(c, OUTPUT_TOOL_CALL, json_get(delta, "tool"));
        read_tool_calls(c, json_get(delta, "tool_calls"));
        read_reason(c, json_get(choice, "finish_reason"));
        read_usage(c, &j);
    }
    arena_free(&arena);
}

/* Parses disk-cache keys, 16 hex digits and a blank each. */
static void read_disk_keys(struct remote_request *c, const char *s, size_t n) {
    enum { KEY_CHARS = 17 };
    size_t count = (n + 1) / KEY_CHARS;
    uint64_t *keys = c->disk_keys || !count ? NULL : mem_alloc(count * sizeof *keys);
    if (!keys) {
        if (!c->disk_keys && count) c->parse_error = "no memory";
        return;
    }
    for (size_t i = 0; i < count; i++) keys[i] = strtoull(s + KEY_CHARS * i, NULL, 16); /* the line is NUL-terminated */
    pthread_mutex_lock(&c->remote->lock);
    c->disk_keys = keys, c->n_disk_keys = count;
    pthread_mutex_unlock(&c->remote->lock);
    queue_event(c, &(struct engine_event){.event = {.kind = EVENT_NONE}}, NULL, 0);
}

/* Queues the ids of tokens whose text has come: numbers with blanks between them. */
static void read_ids(struct remote_request *c, const char *s) {
    char *end; /* the line is NUL-terminated */
    for (long id = strtol(s, &end, 10); end != s; id = strtol(s = end, &end, 10))
        queue_event(c, &(struct engine_event){.event = {.kind = EVENT_TOKEN, .token = (int32_t)id}, .is_id = true},
                    NULL, 0);
}

static void read_line(struct remote_request *c, const char *s, size_t n) {
    int done, total;
    double left;
    bool in_images = false;
    while (n && s[n - 1] == '\r') n--;
    if (n > 5 && !memcmp(s, "data:", 5)) {
        s += 5, n -= 5;
        while (n && *s == ' ') s++, n--;
        read_chunk(c, s, n);
    } else if (c->remote->resident && n > 7 && !memcmp(s, ": kept ", 7)) read_disk_keys(c, s + 7, n - 7);
    else if (c->remote->resident && n > 6 && !memcmp(s, ": ids ", 6)) read_ids(c, s + 6);
    else if (c->remote->resident && n == 7 && !memcmp(s, ": alone", 7)) prompt_note_dropped_document();
    else if (c->remote->resident && n < 100 &&
             (sscanf(s, ": prompt %d of %d, %lf s left", &done, &total, &left) == 3 ||
              (in_images = sscanf(s, ": images %d of %d, %lf s left", &done, &total, &left) == 3)))
        queue_event(c,
                    &(struct engine_event){.event = {.kind = EVENT_PROGRESS,
                                                     .done = done,
                                                     .total = total,
                                                     .in_images = in_images,
                                                     .left_s = left}},
                    NULL, 0);
}

static size_t on_data(char *data, size_t size, size_t n, void *call) {
    enum { LINE_MAX_BYTES = 32 << 20, ERROR_BYTES = 64 << 10 };
    struct remote_request *c = call;
    long status = 0;
    c->heard = clock_now();
    curl.easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200) {
        if (c->error_body.len < ERROR_BYTES) buf_add(&c->error_body, data, n);
        return n;
    }
    if (c->line.len + n > LINE_MAX_BYTES || buf_add(&c->line, data, n)) return 0;
    size_t from = 0;
    for (char *end; !c->parse_error && (end = memchr(c->line.data + from, '\n', c->line.len - from));
         from = (size_t)(end - c->line.data) + 1) {
        *end = 0;
        read_line(c, c->line.data + from, (size_t)(end - (c->line.data + from)));
    }
    memmove(c->line.data, c->line.data + from, c->line.len - from);
    c->line.len -= from;
    return c->parse_error ? 0 : n;
}

/* "length" is the server's word for a full context, too: an answer that is shorter than the request's limit was cut by
 * it, or by a limit of the server. */
static enum done_reason reason_of_end(const struct remote_request *c) {
    const bool is_shorter = c->max_tokens < 1 || (c->stats.answer_tokens > 0 && c->stats.answer_tokens < c->max_tokens);
    return c->reason == DONE_LENGTH && is_shorter && !c->remote->resident ? DONE_CONTEXT : c->reason;
}

/* --- completion ------------------------------------------------------------------------------- */

/* Schedules a retry if the server was busy and has sent nothing of the answer. */
static bool schedule_retry(struct remote_request *c, long status) {
    curl_off_t wait = 0;
    if (c->has_text || c->tries >= REMOTE_MAX_TRIES ||
        !(status == 429 || status == 502 || status == 503 || status == 504 || status == 529))
        return false;
    curl.easy_getinfo(c->easy, CURLINFO_RETRY_AFTER, &wait);
    if (wait > REMOTE_MAX_RETRY_AFTER_S) return false;
    double s = wait > 0 ? (double)wait : (double)(1 << (c->tries - 1));
    log_say(LOG_WARN, "the server is busy (status %ld): retrying in %.0f s", status, s);
    c->not_before = clock_now() + s;
    c->error_body.len = c->line.len = 0;
    return true;
}

/* curl's texts for these do not say what has happened. */
static bool connection_was_closed(CURLcode rc, bool resident) {
    return rc == CURLE_PARTIAL_FILE || rc == CURLE_GOT_NOTHING || (rc == CURLE_RECV_ERROR && resident);
}

static const char *name_of(const struct remote *r) { return r->resident ? "the resident engine" : r->base; }

static void end_transfer(struct remote_request *c, CURLcode rc) {
    struct remote *r = c->remote;
    struct error e = {0};
    long status = 0;
    curl.easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    pthread_mutex_lock(&r->lock);
    curl.multi_remove_handle(r->multi, c->easy);
    c->in_multi = false;
    pthread_mutex_unlock(&r->lock);
    if (!rc && status != 200 && schedule_retry(c, status)) return;
    const char *who = name_of(r);
    if (c->error_body.len && (status == 200 || !rc))
        finish_request(c, remote_connection_error(r, status == 200 ? 500 : status, &c->error_body, &e), &e);
    else if (c->parse_error) finish_request(c, error_set(&e, ERR_RUNTIME, "%.200s: %s", who, c->parse_error), &e);
    else if (rc == CURLE_COULDNT_CONNECT && r->resident)
        finish_request(c,
                       error_set(&e, ERR_RUNTIME,
                                 "the resident engine has exited; start hearth again (--last continues a saved chat)"),
                       &e);
    else if (connection_was_closed(rc, r->resident) && !(c->has_end_mark || c->has_reason))
        finish_request(c,
                       error_set(&e, ERR_RUNTIME, "%.200s: the connection was closed before the end of the answer%s",
                                 who, r->resident ? "; hearth --status shows whether the engine still runs" : ""),
                       &e);
    else if (rc && !(c->has_end_mark || c->has_reason))
        finish_request(
            c, error_set(&e, ERR_RUNTIME, "%.200s: %s", who, *c->curl_error ? c->curl_error : curl.easy_strerror(rc)),
            &e);
    else if (status != 200) finish_request(c, remote_connection_error(r, status, &c->error_body, &e), &e);
    else if (!c->has_end_mark && !c->has_reason)
        finish_request(c, error_set(&e, ERR_RUNTIME, "%.200s: the answer was cut off, or is not an event stream", who),
                       &e);
    else {
        queue_tool_calls(c);
        c->reason = reason_of_end(c);
        finish_request(c, 0, NULL);
    }
}

/* --- the thread ------------------------------------------------------------------------------- */

/* Starts due requests, and ends those that are cancelled or whose server has been silent for too long. Returns the
 * seconds until the next one is due. */
static double start_due_requests(struct remote *r) {
    const double silence_s = REMOTE_SILENCE_S * 1e-3 * (double)test_limits_get(TEST_LIMIT_SERVE_SECOND_MS, 1000);
    double now = clock_now(), due_s = 60;
    struct remote_request *cancelled, *silent;
    do {
        cancelled = silent = NULL;
        pthread_mutex_lock(&r->lock);
        for (struct remote_request *c = r->requests; c; c = c->next) {
            if (c->finished) continue;
            if (atomic_load(&c->cancelled)) cancelled = c;
            else if (!c->in_multi && c->not_before <= now) {
                c->tries++;
                c->heard = now;
                c->in_multi = !curl.multi_add_handle(r->multi, c->easy);
            } else if (c->in_multi && now - c->heard >= silence_s) silent = c;
            if (c->in_multi && c->heard + silence_s - now < due_s) due_s = c->heard + silence_s - now;
            if (!c->in_multi && c->not_before > now && c->not_before - now < due_s) due_s = c->not_before - now;
        }
        pthread_mutex_unlock(&r->lock);
        if (cancelled) {
            cancelled->reason = DONE_CANCELLED;
            finish_request(cancelled, 0, NULL);
        } else if (silent) {
            struct error e;
            finish_request(
                silent, error_set(&e, ERR_RUNTIME, "%.200s: no data for %d minutes", name_of(r), REMOTE_SILENCE_S / 60),
                &e);
        }
    } while (cancelled || silent);
    return due_s > 0 ? due_s : 0;
}

static void *request_thread(void *remote) {
    struct remote *r = remote;
    for (;;) {
        struct curl_waitfd wake = {.fd = r->wake_fd, .events = CURL_WAIT_POLLIN};
        int running, left;
        uint64_t drop;
        pthread_mutex_lock(&r->lock);
        bool closing = r->closing;
        pthread_mutex_unlock(&r->lock);
        if (closing) return NULL;
        curl.multi_perform(r->multi, &running);
        for (CURLMsg *m; (m = curl.multi_info_read(r->multi, &left));) {
            struct remote_request *c;
            CURLcode rc = m->data.result;
            if (m->msg == CURLMSG_DONE && !curl.easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&c))
                end_transfer(c, rc);
        }
        double due_s = start_due_requests(r);
        curl.multi_poll(r->multi, &wake, 1, (int)(due_s * 1e3) + 1, NULL);
        /* fails if another wake-up has drained it */
        if (wake.revents) error_ignore(read(r->wake_fd, &drop, sizeof drop));
    }
}

int remote_request_start_thread(struct remote *r, struct error *e) {
    r->events_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->events_fd < 0 || r->wake_fd < 0)
        return error_set(e, ERR_RUNTIME, "no descriptor for connections: %s", error_reason(errno));
    r->multi = curl.multi_init();
    if (!r->multi) return error_set(e, ERR_MEMORY, "no memory for connections");
    r->started = sig_start_thread(&r->thread, request_thread, r);
    return r->started ? 0 : error_set(e, ERR_RUNTIME, "cannot start a thread for connections: %s", error_reason(errno));
}

static void event_free(struct remote_event *p) {
    if (!p) return;
    buf_free(&p->text);
    mem_free(p);
}

static void request_free(struct remote_request *c) {
    struct remote_request **at = &c->remote->requests;
    while (*at && *at != c) at = &(*at)->next;
    if (*at) *at = c->next;
    if (c->easy) curl.easy_cleanup(c->easy);
    for (size_t i = 0; i < sizeof c->tools / sizeof *c->tools; i++) {
        buf_free(&c->tools[i].name);
        buf_free(&c->tools[i].arguments);
    }
    event_free(c->last_event);
    mem_free(c->disk_keys);
    buf_free(&c->body);
    buf_free(&c->line);
    buf_free(&c->error_body);
    mem_free(c);
}

void remote_request_stop_thread(struct remote *r) {
    if (r->started) {
        pthread_mutex_lock(&r->lock);
        r->closing = true;
        pthread_mutex_unlock(&r->lock);
        wake_reader(r->wake_fd);
        pthread_join(r->thread, NULL);
    }
    while (r->requests) {
        if (r->requests->in_multi) curl.multi_remove_handle(r->multi, r->requests->easy);
        request_free(r->requests);
    }
    while (r->queue_head) {
        struct remote_event *p = r->queue_head;
        r->queue_head = p->next;
        event_free(p);
    }
    event_free(r->delivered);
    if (r->multi) curl.multi_cleanup(r->multi);
    if (r->events_fd >= 0) close(r->events_fd);
    if (r->wake_fd >= 0) close(r->wake_fd);
}

/* --- clients ---------------------------------------------------------------------------------- */

void remote_request_close(struct engine_client *s) {
    struct remote_request *c = s->request;
    struct remote *r = s->app->remote;
    if (!c) return;
    remote_request_cancel(s);
    for (bool has_finished = false; !has_finished;) {
        pthread_mutex_lock(&r->lock);
        has_finished = c->finished;
        pthread_mutex_unlock(&r->lock);
        if (!has_finished) poll(&(struct pollfd){.fd = r->events_fd, .events = POLLIN}, 1, 5);
    }
    pthread_mutex_lock(&r->lock);
    for (struct remote_event **at = &r->queue_head; *at;) { /* drop queued events that point to this client */
        struct remote_event *p = *at;
        if (p->event.client != s) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        event_free(p);
    }
    r->queue_tail = &r->queue_head;
    while (*r->queue_tail) r->queue_tail = &(*r->queue_tail)->next;
    request_free(c);
    pthread_mutex_unlock(&r->lock);
    s->request = NULL;
}

int remote_request_submit(struct engine_client *s, const struct prompt *p, const struct request *q, struct error *e) {
    struct remote *r = s->app->remote;
    if (!p->body.len) return error_set(e, ERR_USAGE, "a remote server takes only conversations, not prompt text");
    remote_request_close(s); /* ends the last turn */
    struct remote_request *c = mem_calloc(1, sizeof *c);
    if (!c) return error_set(e, ERR_MEMORY, "no memory");
    c->remote = r;
    c->client = s;
    c->submitted = clock_now();
    c->max_tokens = q->max_tokens;
    c->easy = curl.easy_init();
    c->last_event = mem_calloc(1, sizeof *c->last_event);
    remote_body_put(r, p, q, &c->body);
    if (!c->easy || !c->last_event || c->body.failed || remote_connection_setup(r, c->easy, "/chat/completions")) {
        request_free(c);
        return error_set(e, ERR_MEMORY, "no memory for a request");
    }
    curl.easy_setopt(c->easy, CURLOPT_POSTFIELDS, c->body.data);
    curl.easy_setopt(c->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)c->body.len);
    curl.easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, on_data);
    curl.easy_setopt(c->easy, CURLOPT_WRITEDATA, c);
    curl.easy_setopt(c->easy, CURLOPT_PRIVATE, c);
    curl.easy_setopt(c->easy, CURLOPT_ERRORBUFFER, c->curl_error);
    s->request = c;
    pthread_mutex_lock(&r->lock);
    c->next = r->requests;
    r->requests = c;
    pthread_mutex_unlock(&r->lock);
    wake_reader(r->wake_fd);
    return 0;
}

void remote_request_cancel(struct engine_client *s) {
    struct remote_request *c = s->request;
    if (!c) return;
    atomic_store(&c->cancelled, true);
    wake_reader(c->remote->wake_fd);
}

size_t remote_request_disk_keys(const struct engine_client *s, const uint64_t **keys) {
    struct remote_request *c = s->request;
    *keys = NULL;
    if (!c) return 0;
    pthread_mutex_lock(&c->remote->lock);
    size_t n = c->n_disk_keys;
    *keys = c->disk_keys;
    pthread_mutex_unlock(&c->remote->lock);
    return n;
}

bool remote_request_poll(struct app *a, struct engine_event *out, int timeout_ms) {
    struct remote *r = a->remote;
    double until = clock_now() + timeout_ms * 1e-3;
    for (;;) {
        uint64_t drop;
        pthread_mutex_lock(&r->lock);
        struct remote_event *p = r->queue_head;
        if (p && !(r->queue_head = p->next)) r->queue_tail = &r->queue_head;
        if (!p) error_ignore(read(r->events_fd, &drop, sizeof drop)); /* fails if it was not readable */
        pthread_mutex_unlock(&r->lock);
        if (p) {
            event_free(r->delivered);
            r->delivered = p;
            *out = p->event;
            return true;
        }
        double left = until - clock_now();
        if (timeout_ms >= 0 && left <= 0) return false;
        poll(&(struct pollfd){.fd = r->events_fd, .events = POLLIN}, 1, timeout_ms < 0 ? -1 : (int)(left * 1e3) + 1);
    }
}

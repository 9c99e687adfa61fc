/* The turns of --serve. Requests wait for one of a few sessions; clients are served round-robin, and each request takes the session that
 * caches the longest prefix of its prompt. Generated text is stored and formatted into chunks when its connection can send. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "cli/open.h"
#include "cli/server/resident.h"
#include "cli/server/server.h"
#include "cli/terminal/out.h"
#include "engine/base/clock.h"
#include "engine/base/hash.h"

static const char shutting_down[] = "the server is shutting down";

/* --- requests -------------------------------------------------------------------------------------------------------- */

void serve_request_free(struct http_request *x) {
    struct server *s = x->server;
    struct http_request **at = &s->requests;
    while (*at != x) at = &(*at)->next;
    *at = x->next;
    if (x->state == HTTP_REQUEST_WAITING) fair_queue_remove(&s->queue, &x->queue_entry);
    s->body_bytes -= x->body.len;
    for (size_t i = 0; i < sizeof x->generated / sizeof *x->generated; i++) buf_free(&x->generated[i].text);
    turn_free(&x->turn);
    prompt_free(&x->prompt);
    api_free(&x->request);
    buf_free(&x->body);
    buf_free(&x->refusal);
    buf_free(&x->comments);
    buf_free(&x->formatted);
    mem_free(x);
}

void serve_drop_request(struct http_request *x) {
    if (x->state == HTTP_REQUEST_RUNNING) engine_client_cancel(x->session->client); /* freed by its last event */
    else serve_request_free(x);
}

static int check_model(const struct http_request *x, struct error *e) {
    const struct json *m = x->request.model;
    const char *name = x->server->app->info->name;
    if (!m || json_is(m, name) || !x->server->app->opts.v[OPT_STRICT].on) return 0;
    return error_set(e, ERR_MODEL, "no model %.*s; this server has %s", (int)(m->n < 100 ? m->n : 100), m->string, name);
}

/* The prompt of a text completion: BOS and the text, or ids as given. */
static int make_raw_prompt(struct http_request *x, struct error *e) {
    struct app *a = x->server->app;
    TRY(api_parse_completion(&x->request, x->body.data ? x->body.data : "", x->body.len, e));
    TRY(check_model(x, e));
    const struct json *p = x->request.raw_prompt;
    struct ids *ids = &x->prompt.ids;
    if (p->type == JSON_STRING) TRY(prompt_from_raw(a, p->string, p->n, &x->prompt, e));
    for (uint32_t i = 0; p->type == JSON_ARRAY && i < p->n; i++) {
        const int64_t id = json_int(&p->items[i], -1);
        if (id < 0 || id >= tokenizer_n_ids(a->tokenizer)) return error_set(e, ERR_USAGE, "prompt[%u]: not an id of this vocabulary", i);
        if (mem_grow(&ids->data, &ids->cap, ids->n + 1, sizeof *ids->data)) return error_set(e, ERR_MEMORY, "no memory");
        ids->data[ids->n++] = (int32_t)id;
    }
    x->prompt.n_given = ids->n;
    x->prompt.is_raw = true;
    return 0;
}

int serve_make_prompt(struct http_request *x, struct error *e) {
    struct app *a = x->server->app;
    if (x->is_completion) return make_raw_prompt(x, e);
    int rc = api_parse(&x->request, x->body.data ? x->body.data : "", x->body.len, a->template, e);
    if (rc || (rc = check_model(x, e))) return rc;
    rc = prompt_from_json(a, &x->request.template_input, &x->prompt, e);
    if (rc == ERR_RUNTIME) return e->code = ERR_USAGE; /* the template refuses this conversation */
    if (!rc && x->request.partial_answer) rc = prompt_add_partial(a, x->request.partial_answer->string, x->request.partial_answer->n, &x->prompt, e);
    return rc;
}

int serve_enqueue(struct http_request *x, struct error *e) {
    struct server *s = x->server;
    struct app *a = s->app;
    unsigned char id[12];
    int waiting = 0, unshared_tokens = 0, rc;
    for (const struct http_request *o = s->requests; o; o = o->next)
        if (o->state == HTTP_REQUEST_WAITING) waiting++, unshared_tokens += o->client_job == x->client_job;
    if (unshared_tokens && unshared_tokens >= SERVE_CLIENT_SHARE * (SERVE_MAX_WAITING - waiting))
        return error_set(e, ERR_MEMORY, "too many waiting requests: %d, %d of them from this client", waiting, unshared_tokens);
    rc = serve_make_prompt(x, e);
    if (!rc && !x->prompt.ids.n) rc = error_set(e, ERR_USAGE, "messages: the prompt is empty");
    if (!rc && !x->prompt.fixed_answer.n && x->prompt.ids.n + 1 > (size_t)a->info->context)
        rc = error_set(e, ERR_CONTEXT, "the prompt has %zu tokens, the context holds %d", x->prompt.ids.n, a->info->context);
    if (rc) return rc;
    if (getrandom(id, sizeof id, 0) != sizeof id) return error_set(e, ERR_RUNTIME, "cannot get random numbers");
    snprintf(x->answer.id, sizeof x->answer.id, "%s", x->is_completion ? "cmpl-" : "chatcmpl-");
    for (size_t i = 0, at = strlen(x->answer.id); i < sizeof id; i++) snprintf(x->answer.id + at + 2 * i, 3, "%02x", id[i]);
    x->answer.created = (long long)time(NULL);
    x->answer.model = a->info->name;
    x->n_prompt = x->prompt.ids.n;
    x->state = HTTP_REQUEST_WAITING;
    const struct json *user = x->request.user;
    fair_queue_push(&s->queue, &x->queue_entry, user ? hash64(user->string, user->n, x->client_job) : x->client_job, ++s->n_orders);
    return 0;
}

/* --- sessions -------------------------------------------------------------------------------------------------------- */

static size_t cached_tokens(const struct serve_session *k, const int32_t **tokens) {
    int n = session_tokens(k->client->session, tokens);
    return n > 0 ? (size_t)n : 0;
}
static size_t common_prefix(const struct serve_session *k, const struct prompt *p) {
    const int32_t *tokens;
    size_t n = cached_tokens(k, &tokens), i = 0;
    while (i < n && i < p->ids.n && tokens[i] == p->ids.data[i]) i++;
    return i;
}

/* Picks an idle session, or opens a new one below the limit: one that loses little of its cache, else the least recently used. NULL:
 * all are busy. */
static struct serve_session *choose_session(struct server *s, const struct prompt *p, struct error *e) {
    const int32_t *tokens;
    struct serve_session *best = NULL, *oldest = NULL;
    size_t most = 0;
    for (int i = 0; i < s->n_sessions; i++) {
        struct serve_session *k = &s->sessions[i];
        if (k->request) continue;
        size_t n = common_prefix(k, p);
        if (!best || n > most) best = k, most = n;
        if (!oldest || k->last_used < oldest->last_used) oldest = k;
    }
    if (best && most * 2 >= cached_tokens(best, &tokens)) return best;
    if (s->n_sessions < s->max_sessions) {
        struct serve_session *k = &s->sessions[s->n_sessions];
        if (!engine_client_open(s->app, &k->client, e)) {
            s->n_sessions++;
            return k;
        }
    }
    return oldest;
}

static int add_generated(void *ctx, enum output_kind part, const char *data, size_t n) {
    struct http_request *x = ctx;
    size_t k = x->n_generated;
    if ((part == OUTPUT_TOOL_CALL && !x->request.markup) || !x->request.stream) return 0; /* sent whole at the end */
    while (k && x->generated[k - 1].part != part && x->n_generated == sizeof x->generated / sizeof *x->generated) k--;
    if (!k || x->generated[k - 1].part != part) {
        k = ++x->n_generated;
        x->generated[k - 1].part = part;
        x->generated[k - 1].text.len = 0;
    }
    return buf_add(&x->generated[k - 1].text, data, n);
}

static void finish_request(struct http_request *x) {
    struct server *s = x->server;
    if (x->session) x->session->request = NULL;
    x->session = NULL;
    if (x->state == HTTP_REQUEST_WAITING) fair_queue_remove(&s->queue, &x->queue_entry);
    x->state = HTTP_REQUEST_DONE;
    s->last_activity_s = clock_now();
    if (!x->conn) serve_request_free(x);
    else serve_connection_wake(x);
}

/* Sends the disk-cache keys before anything of the prompt can be on disk. */
static void add_disk_keys_comment(struct http_request *x) {
    const uint64_t *keys;
    size_t n = engine_client_disk_keys(x->session->client, &keys);
    for (size_t i = 0; i < n; i++) buf_fmt(&x->comments, "%s%016llx", i ? " " : ": kept ", (unsigned long long)keys[i]);
    if (n) buf_str(&x->comments, "\n\n");
    if (n) serve_connection_wake(x);
}

/* True if the request continues the chat of the session's last request: its messages and more. *said: hash of the messages. */
static bool continues_chat(const struct http_request *x, const struct serve_session *k, uint64_t *said) {
    if (x->is_completion) return *said = 0, false;
    const struct json *list = json_get(&x->request.template_input, "messages");
    struct buf b = {0};
    bool same = false;
    *said = 0;
    for (uint32_t i = 0; i < list->n && !b.failed; i++) {
        b.len = 0;
        json_write(&b, &list->items[i]);
        if (!b.failed) *said = hash64(b.data, b.len, *said);
        same |= *said == k->messages_hash && (i + 1 < list->n || x->request.partial_answer);
    }
    same = same && !b.failed;
    buf_free(&b);
    return same;
}

/* Starts a request on a session. A continued chat reuses the KV cache of its own answers; any other request reuses only prefilled
 * prefixes, so that an answer does not depend on other clients. */
static int begin_turn(struct http_request *x, struct serve_session *k, struct error *e) {
    struct server *s = x->server;
    uint64_t said;
    const bool alone = x->prompt.document_dropped;
    x->prompt.document_dropped = false; /* a note for the client, not for the server's terminal */
    int flags = (x->request.no_disk_cache ? REQ_NO_DISK_CACHE : 0) | (continues_chat(x, k, &said) ? 0 : REQ_EXACT_PREFIX_ONLY);
    struct request q = {.max_tokens = x->request.max_tokens, .client = x->queue_entry.client, .flags = flags};
    open_sampling(s->app, &s->app->opts, &q.sampling);
    api_override_sampling(&x->request, &q.sampling);
    if (x->request.has_source) x->prompt.source = &x->request.source;
    int rc = turn_start(&x->turn, s->app, k->client, &x->prompt, &q, add_generated, x, e);
    if (rc) return rc;
    turn_set_stops(&x->turn, x->request.stop, x->request.n_stop);
    x->turn.text_begun = x->request.partial_answer && x->request.partial_answer->n;
    k->request = x;
    k->last_used = ++s->n_orders;
    k->messages_hash = said;
    x->session = k;
    fair_queue_serve(&s->queue, &x->queue_entry);
    x->state = HTTP_REQUEST_RUNNING;
    prompt_free(&x->prompt);
    if (x->request.report_disk_keys && x->request.stream) add_disk_keys_comment(x);
    if (alone && x->request.markup && x->request.stream) {
        buf_str(&x->comments, ": alone\n\n");
        serve_connection_wake(x);
    }
    return 0;
}

/* False for a client that has all sessions except the reserved ones: it waits until one of its own ends. */
static bool client_may_begin(const void *server, uint64_t client) {
    const struct server *s = server;
    int n = 0;
    for (int i = 0; i < s->n_sessions; i++) n += s->sessions[i].request && s->sessions[i].request->queue_entry.client == client;
    return n < s->max_sessions - s->max_sessions / SERVE_RESERVED_SHARE;
}

void serve_start_waiting(struct server *s) {
    for (;;) {
        struct fair_entry *turn = fair_queue_next(&s->queue, client_may_begin, s);
        struct http_request *first = turn ? (struct http_request *)((char *)turn - offsetof(struct http_request, queue_entry)) : NULL;
        struct error e = {.code = ERR_MEMORY, .text = "no memory for a session"};
        int busy = 0;
        for (int i = 0; i < s->n_sessions; i++) busy += s->sessions[i].request != NULL;
        struct serve_session *k = first && busy < s->max_sessions ? choose_session(s, &first->prompt, &e) : NULL;
        if (!first || (!k && busy)) return; /* retried when a request ends */
        int rc = k ? begin_turn(first, k, &e) : ERR_MEMORY;
        if (!rc) continue;
        first->turn.failed = true;
        first->turn.error = e;
        finish_request(first);
    }
}

void serve_cancel_all(struct server *s) {
    for (struct http_request *x = s->requests, *next; x; x = next) {
        next = x->next;
        if (x->state == HTTP_REQUEST_RUNNING) engine_client_cancel(x->session->client);
        if (x->state != HTTP_REQUEST_WAITING) continue;
        x->turn.failed = true;
        error_set(&x->turn.error, ERR_MEMORY, "%s", shutting_down);
        finish_request(x);
    }
}

void serve_handle_event(struct server *s, const struct engine_event *news) {
    struct http_request *x = NULL;
    for (int i = 0; i < s->n_sessions && !x; i++)
        if (s->sessions[i].client == news->client) x = s->sessions[i].request;
    if (!x) return;
    turn_event(&x->turn, news);
    if (news->event.kind == EVENT_PROGRESS && news->event.total > 0 && x->request.stream)
        snprintf(x->progress_comment, sizeof x->progress_comment, ": prompt %d of %d, %.3f s left\n\n", news->event.done, news->event.total,
                 news->event.left_s);
    if (x->turn.running) {
        if (x->n_generated || *x->progress_comment) serve_connection_wake(x);
        return;
    }
    s->n_answered++;
    serve_info_count(s, &x->turn);
    if (!x->turn.failed && x->turn.reason == DONE_CANCELLED && x->conn && !x->hung_up) {
        x->turn.failed = true;
        error_set(&x->turn.error, ERR_MEMORY, "%s", shutting_down);
    }
    finish_request(x);
}

/* --- chunks ---------------------------------------------------------------------------------------------------------- */

static void put_last_chunk(struct http_request *x) {
    struct tool_calls calls = {0};
    struct buf delta = {0};
    const struct turn *t = &x->turn;
    const char *code;
    if (t->failed) {
        int status = api_status(&t->error, &code);
        buf_str(&x->formatted, "data: ");
        api_put_error(&x->formatted, status, code, t->error.text);
        buf_str(&x->formatted, "\n\n");
        return;
    }
    if (x->is_completion) {
        api_put_text_chunk(&x->formatted, &x->answer, "", 0, api_finish_reason(t, &calls));
        if (x->request.usage) api_put_usage_chunk(&x->formatted, &x->answer, t, x->request.explain);
        buf_str(&x->formatted, "data: [DONE]\n\n");
        return;
    }
    if (api_parse_tools(&x->request, t, &calls)) x->formatted.failed = true;
    if (calls.n) api_put_calls(&delta, &calls, x->answer.id, true);
    else if (t->tool.len && !x->request.markup) api_put_text(&delta, OUTPUT_TEXT, t->tool.data, t->tool.len);
    if (delta.len) api_put_chunk(&x->formatted, &x->answer, delta.data, delta.len, NULL);
    api_put_chunk(&x->formatted, &x->answer, NULL, 0, api_finish_reason(t, &calls));
    if (x->request.usage) api_put_usage_chunk(&x->formatted, &x->answer, t, x->request.explain);
    buf_str(&x->formatted, "data: [DONE]\n\n");
    if (delta.failed) x->formatted.failed = true;
    buf_free(&delta);
    tool_calls_free(&calls);
}

bool serve_format_chunks(struct http_request *x) {
    static const char who[] = "\"role\": \"assistant\", \"content\": \"\"";
    x->formatted.len = x->sent_bytes = 0;
    if (x->comments.len) buf_add(&x->formatted, x->comments.data, x->comments.len);
    if (x->comments.failed) x->formatted.failed = true;
    x->comments.len = 0;
    if (*x->progress_comment) {
        buf_str(&x->formatted, x->progress_comment);
        *x->progress_comment = 0;
    }
    if (!x->first_chunk_made && !x->is_completion && (x->n_generated || (x->state == HTTP_REQUEST_DONE && !x->turn.failed))) {
        api_put_chunk(&x->formatted, &x->answer, who, sizeof who - 1, NULL);
        x->first_chunk_made = true;
    }
    for (size_t i = 0; i < x->n_generated; i++) {
        struct buf delta = {0};
        if (x->is_completion) {
            api_put_text_chunk(&x->formatted, &x->answer, x->generated[i].text.data, x->generated[i].text.len, NULL);
            x->generated[i].text.len = 0;
            continue;
        }
        api_put_text(&delta, x->generated[i].part, x->generated[i].text.data, x->generated[i].text.len);
        api_put_chunk(&x->formatted, &x->answer, delta.data, delta.len, NULL);
        if (delta.failed) x->formatted.failed = true;
        buf_free(&delta);
        x->generated[i].text.len = 0;
    }
    x->n_generated = 0;
    if (x->state == HTTP_REQUEST_DONE && !x->last_chunk_made) {
        put_last_chunk(x);
        x->last_chunk_made = true;
    }
    return x->formatted.len > 0;
}

/* --- status ---------------------------------------------------------------------------------------------------------- */

static uint64_t resident_bytes(void) {
    char text[128] = "";
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fgets(text, sizeof text, f)) sscanf(text, "%*u %llu", &pages);
    if (f) fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Of n cached tokens, returns those that are not shared. */
static size_t unshared_tokens(const struct serve_session *k, size_t n) {
    size_t shared = (size_t)session_shared_tokens(k->client->session);
    return n > shared ? n - shared : 0;
}

static void put_request_status(struct buf *b, const struct http_request *x, size_t *kv) {
    const struct turn *t = &x->turn;
    int prompt = (int)x->n_prompt;
    buf_str(b, "{");
    if (x->pid) buf_fmt(b, "\"process\": %ld, ", (long)x->pid);
    if (x->state == HTTP_REQUEST_WAITING) buf_fmt(b, "\"state\": \"waiting\", \"prompt_tokens\": %d}", prompt);
    else if (t->n_tokens) {
        double s = t->last_token - t->first_token;
        buf_fmt(b, "\"state\": \"decode\", \"prompt_tokens\": %d, \"tokens\": %d, \"tokens_per_s\": %.3f}", prompt, t->n_tokens,
                t->n_tokens > 1 && s > 0 ? (t->n_tokens - 1) / s : 0.0);
        *kv += unshared_tokens(x->session, (size_t)(prompt + t->n_tokens));
    } else {
        buf_fmt(b, "\"state\": \"prefill\", \"prompt_tokens\": %d, \"share\": %.4f, \"left_s\": ", prompt,
                t->prefill_total ? (double)t->prefill_done / t->prefill_total : 0.0);
        if (t->prefill_total && t->prefill_left_s >= 0) buf_fmt(b, "%.3f}", t->prefill_left_s);
        else buf_str(b, "null}");
        *kv += unshared_tokens(x->session, (size_t)(t->prefill_total && t->prefill_total <= prompt ? prompt - t->prefill_total + t->prefill_done
                                                                                                   : 0)); /* the cached prefix, and what is prefilled */
    }
}

void serve_put_status(struct server *s, struct buf *b) {
    const struct engine_info *i = s->app->info;
    const int32_t *tokens;
    size_t kv = 0; /* in tokens */
    bool first = true;
    buf_str(b, "{\"model\": ");
    out_json_string(b, i->name, strlen(i->name));
    char *real = realpath(s->app->model_dir, NULL);
    const char *dir = real ? real : s->app->model_dir;
    buf_str(b, ", \"dir\": ");
    out_json_string(b, dir, strlen(dir));
    free(real);
    buf_str(b, ", \"identity\": ");
    buf_add(b, s->identity.data, s->identity.len);
    buf_str(b, ", \"build\": ");
    resident_build(b);
    buf_fmt(b,
            ", \"pid\": %ld, \"up_s\": %.3f, \"context\": %d, \"max_context\": %d, \"kv_token_bytes\": %llu, \"fingerprint\": \"%016llx\", \"parallel\": %d, "
            "\"answered\": %llu, ",
            (long)getpid(), clock_now() - s->started_s, i->context, i->max_context, (unsigned long long)i->kv_token_bytes, (unsigned long long)i->fingerprint,
            s->max_sessions, (unsigned long long)s->n_answered);
    buf_str(b, "\"sampling\": {");
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"temperature", i->temperature}, {"top_p", i->top_p}, {"min_p", i->min_p}, {"repeat_penalty", i->repeat_penalty}};
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        if (numbers[k].value == numbers[k].value) buf_fmt(b, "\"%s\": %.17g, ", numbers[k].name, numbers[k].value);
    buf_fmt(b, "\"top_k\": %d, \"do_sample\": %s}, \"sessions\": [", i->top_k, i->do_sample ? "true" : "false");
    for (const struct http_request *x = s->requests; x; x = x->next) {
        if (x->state != HTTP_REQUEST_WAITING && x->state != HTTP_REQUEST_RUNNING) continue;
        buf_str(b, first ? "" : ", ");
        put_request_status(b, x, &kv);
        first = false;
    }
    for (int k = 0; k < s->n_sessions; k++) {
        if (s->sessions[k].request) continue;
        size_t n = cached_tokens(&s->sessions[k], &tokens);
        buf_fmt(b, "%s{\"state\": \"idle\", \"tokens\": %zu}", first ? "" : ", ", n);
        kv += unshared_tokens(&s->sessions[k], n);
        first = false;
    }
    buf_fmt(b, "], \"memory\": {\"resident_bytes\": %llu, \"kv_bytes\": %llu}}\n", (unsigned long long)resident_bytes(),
            (unsigned long long)(kv * i->kv_token_bytes + engine_shared_bytes(s->app->engine)));
}

/* The turns of --serve. Requests wait for one of a few sessions; clients are served round-robin, and each request takes
 * the session that caches the longest prefix of its prompt. Generated text is stored and formatted into chunks when its
 * connection can send. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "cli/open.h"
#include "cli/report.h"
#include "cli/server/resident.h"
#include "cli/server/server.h"
#include "cli/terminal/out.h"
#include "cli/turn/infill.h"
#include "cli/turn/tool_grammar.h"
#include "tokenizer/grammar/tool_source.h"

static const char shutting_down[] = "the server is shutting down";

/* --- requests --------------------------------------------------------------------------------- */

static void leave_queue(struct http_choice *c) {
    struct http_request *x = c->request;
    fair_queue_remove(&x->model->queue, &c->queue_entry);
    c->state = HTTP_CHOICE_DONE;
    x->n_done++;
}

static void free_choice(struct http_choice *c) {
    if (c->state == HTTP_CHOICE_WAITING) leave_queue(c);
    for (size_t i = 0; i < sizeof c->generated / sizeof *c->generated; i++) buf_free(&c->generated[i].text);
    turn_free(&c->turn);
    tool_calls_free(&c->calls);
    tool_stream_close(&c->tool_stream);
}

static void free_prompts(struct http_request *x) {
    prompt_free(&x->prompt);
    for (uint32_t i = 0; x->more && i + 1 < x->request.n_prompts; i++) prompt_free(&x->more[i]);
    mem_free(x->more);
    x->more = NULL;
}

void serve_request_free(struct http_request *x) {
    struct server *s = x->server;
    struct http_request **at = &s->requests;
    while (*at != x) at = &(*at)->next;
    *at = x->next;
    serve_compile_cancel(x);
    s->body_bytes -= x->body.len;
    for (int i = 0; i < x->n_choices; i++) free_choice(&x->choices[i]);
    mem_free(x->choices);
    source_free(&x->grammars);
    free_prompts(x);
    api_answer_free(&x->answer);
    api_free(&x->request);
    buf_free(&x->body);
    buf_free(&x->refusal);
    buf_free(&x->comments);
    buf_free(&x->formatted);
    mem_free(x);
}

/* Cancels the turns that run, whose last events then follow, and takes the others out of the queue. Returns whether any
 * runs. */
static bool stop_choices(struct http_request *x) {
    bool running = false;
    for (int i = 0; i < x->n_choices; i++) {
        struct http_choice *c = &x->choices[i];
        if (c->state == HTTP_CHOICE_RUNNING) engine_client_cancel(c->session->client), running = true;
        else if (c->state == HTTP_CHOICE_WAITING) leave_queue(c);
    }
    return running;
}

void serve_drop_request(struct http_request *x) {
    if (serve_compile_cancel(x)) return;         /* freed when the job is done */
    if (!stop_choices(x)) serve_request_free(x); /* else freed by the last event */
}

int serve_request_tokens(const struct http_request *x) {
    int n = 0;
    for (int i = 0; i < x->n_choices; i++) n += x->choices[i].turn.n_tokens;
    return n;
}

static int check_model(const struct http_request *x, struct error *e) {
    const struct json *m = x->request.model;
    const char *name = x->model->app->info->name;
    if (x->server->has_models || !m || json_is(m, name) || !x->server->app->opts.v[OPT_STRICT].on) return 0;
    return error_set(e, ERR_MODEL, "no model %.*s; this server has %s", (int)(m->n < 100 ? m->n : 100), m->string,
                     name);
}

/* Appends a list of ids to a prompt; name: of the member that has it. */
static int add_ids(struct http_request *x, struct prompt *to, const char *name, const struct json *list,
                   struct error *e) {
    struct ids *ids = &to->ids;
    for (uint32_t i = 0; i < list->n; i++) {
        const int64_t id = json_int(&list->items[i], -1);
        if (id < 0 || id >= tokenizer_n_ids(x->model->app->tokenizer))
            return error_set(e, ERR_USAGE, "%s[%u]: not an id of this vocabulary", name, i);
        if (mem_grow(&ids->data, &ids->cap, ids->n + 1, sizeof *ids->data))
            return error_set(e, ERR_MEMORY, "no memory");
        ids->data[ids->n++] = (int32_t)id;
    }
    return 0;
}

/* Makes a prompt of a text completion: BOS and the text, in which clients write control tokens, or ids as given; or the
 * text before and after a gap. */
static int make_raw_prompt(struct http_request *x, const struct json *p, struct prompt *out, struct error *e) {
    struct app *a = x->model->app;
    if (x->request.suffix) TRY(infill_make_prompt(a, p, x->request.suffix, out, e));
    else if (p->type == JSON_STRING) TRY(prompt_from_raw(a, p->string, p->n, true, out, e));
    else TRY(add_ids(x, out, "prompt", p, e));
    out->n_given = out->ids.n;
    out->is_raw = true;
    return 0;
}
static int make_raw_prompts(struct http_request *x, struct error *e) {
    const uint32_t n = x->request.n_prompts;
    if (n > 1 && !(x->more = mem_calloc(n - 1, sizeof *x->more))) return error_set(e, ERR_MEMORY, "no memory");
    for (uint32_t i = 0; i < n; i++)
        TRY(make_raw_prompt(x, &x->request.raw_prompt[i], i ? &x->more[i - 1] : &x->prompt, e));
    return 0;
}

/* Notes, once for each type of tool, that tools of this type are left out. */
static void note_skipped_tool(struct server *s, const struct json *type) {
    char name[sizeof s->noted_tool];
    snprintf(name, sizeof name, "%.*s", (int)(type->n < sizeof name ? type->n : sizeof name - 1), type->string);
    for (char *at = name; *at; at++)
        if (!tool_source_is_name(&(struct json){.type = JSON_STRING, .n = 1, .string = at})) *at = '?';
    if (!strcmp(name, s->noted_tool)) return;
    memcpy(s->noted_tool, name, sizeof name);
    report_note("a client offers tools of type %s, which are left out: models call functions only", name);
}

int serve_make_prompt(struct http_request *x, struct error *e) {
    struct app *a = x->model->app;
    if (x->request.load_only) return 0;
    if (x->request.skipped_tool) note_skipped_tool(x->server, x->request.skipped_tool);
    if (x->request.raw_prompt) return make_raw_prompts(x, e);
    struct api_request *r = &x->request;
    const bool required = r->tool_choice == API_TOOLS_REQUIRED;
    if (required || (r->has_source && r->tools)) { /* a call is an answer whatever the format */
        if (!required) r->text_source = r->source;
        const struct tool_request q = {.tools = r->tools,
                                       .name = r->forced_tool,
                                       .is_single = r->single_tool_call,
                                       .text = required ? NULL : &r->text_source};
        const char *const name = required ? "tool_choice" : "tools with a format of the answer";
        if (tool_grammar_make(&r->arena, a->template, a->tokenizer, &q, &r->source, e))
            return error_prefix(e, "%s", name);
        r->source.name = name;
        r->has_source = true;
    }
    int rc = prompt_from_json(a, &x->request.template_input, &x->prompt, e);
    if (rc == ERR_RUNTIME) return e->code = ERR_USAGE; /* the template refuses this conversation */
    if (!rc && x->request.partial_answer)
        rc = prompt_add_partial(a, x->request.partial_answer->string, x->request.partial_answer->n, &x->prompt, e);
    if (!rc && r->generated) {
        ids_free(&x->prompt.fixed_answer);
        x->prompt.is_cut = !r->generated_whole;
        rc = add_ids(x, &x->prompt, "generated", r->generated, e);
    }
    return rc;
}

static uint64_t client_of(const struct http_request *x) {
    const struct json *user = x->request.user;
    return user ? hash64(user->string, user->n, x->client_job) : x->client_job;
}

/* Queues all answers of a request. */
static int queue_choices(struct http_request *x, struct error *e) {
    struct server *s = x->server;
    const int n = api_n_choices(&x->request);
    if (!(x->choices = mem_calloc((size_t)n, sizeof *x->choices))) return error_set(e, ERR_MEMORY, "no memory");
    x->n_choices = n;
    x->state = HTTP_REQUEST_ANSWERING;
    for (int i = 0; i < x->n_choices; i++) {
        struct http_choice *c = &x->choices[i];
        const int prompt = i / x->request.n;
        c->request = x, c->index = i;
        c->prompt = prompt ? &x->more[prompt - 1] : &x->prompt;
        c->n_prompt = c->prompt->ids.n;
        fair_queue_push(&x->model->queue, &c->queue_entry, client_of(x), ++s->n_orders);
    }
    return 0;
}

static void refuse(struct http_request *x, int code, const char *text) {
    x->state = HTTP_REQUEST_REFUSED;
    x->waits_for_model = false;
    error_set(&x->refused, code, "%s", text);
    serve_connection_wake(x);
}

/* The grammar of the answers is compiled, or cannot be. */
static void on_compiled(struct http_request *x, int rc, const struct error *e) {
    struct error why = *e;
    if (!x->conn) serve_request_free(x);
    else if (x->server->stopping || rc == ERR_CANCELLED) refuse(x, ERR_MEMORY, shutting_down);
    else if (rc || queue_choices(x, &why)) refuse(x, why.code, why.text);
    else serve_connection_wake(x); /* begins the stream */
}

/* Agents that then shorten a chat know these words. */
static int check_length(const struct http_request *x, const struct prompt *p, struct error *e) {
    const struct engine_info *i = x->model->app->info;
    if (p->fixed_answer.n || !i->context || p->ids.n + 1 <= (size_t)i->context) return 0;
    return error_set(e, ERR_CONTEXT, "prompt is too long: %zu tokens > %d maximum, which the context holds", p->ids.n,
                     i->context);
}
static int check_prompt(const struct http_request *x, const struct prompt *p, struct error *e) {
    return p->ids.n ? check_length(x, p, e) : error_set(e, ERR_USAGE, "messages: the prompt is empty");
}

static void finish_choice(struct http_choice *c);

/* Makes an answer that has failed already. */
static int fail_in_stream(struct http_request *x, const struct error *why, struct error *e) {
    TRY(queue_choices(x, e));
    x->choices[0].turn.failed = true;
    x->choices[0].turn.error = *why;
    finish_choice(&x->choices[0]); /* takes the others out of the queue */
    return 0;
}

int serve_enqueue(struct http_request *x, struct error *e) {
    struct server *s = x->server;
    struct app *a = x->model->app;
    struct error why;
    x->answer.request = &x->request;
    x->answer.protocol = x->protocol;
    x->answer.tokenizer = a->tokenizer;
    x->answer.created = (long long)time(NULL);
    x->answer.model = x->model->name;
    int waiting = 0, of_client = 0;
    for (const struct http_request *o = s->requests; o; o = o->next) {
        const int n = o->state == HTTP_REQUEST_COMPILING   ? api_n_choices(&o->request)
                      : o->state == HTTP_REQUEST_ANSWERING ? o->n_choices - o->n_begun
                                                           : 0;
        waiting += n, of_client += o->client_job == x->client_job ? n : 0;
    }
    if (of_client && of_client >= SERVE_CLIENT_SHARE * (SERVE_MAX_WAITING - waiting))
        return error_set(e, ERR_MEMORY, "too many waiting requests: %d, %d of them from this client", waiting,
                         of_client);
    int rc = serve_make_prompt(x, e);
    if (!rc) serve_model_keep(x);
    if (rc || x->request.load_only) return rc;
    rc = check_prompt(x, &x->prompt, e);
    for (uint32_t i = 0; x->more && i + 1 < x->request.n_prompts && !rc; i++) rc = check_prompt(x, &x->more[i], e);
    const bool overflows = rc == ERR_CONTEXT && x->request.stream && x->protocol->fails_in_stream;
    if (rc && !overflows) return rc;
    if (overflows) why = *e;
    TRY(api_answer_make_id(&x->answer, e));
    if (overflows) return fail_in_stream(x, &why, e);
    x->answer.n_prompt = (int)x->prompt.ids.n;
    x->document_dropped = x->prompt.document_dropped;
    x->prompt.document_dropped = false; /* a note for the client, not for the server's terminal */
    return x->request.has_source ? serve_compile(x, COMPILE_GRAMMAR, client_of(x), on_compiled, e)
                                 : queue_choices(x, e);
}

static void on_images(struct http_request *x, int rc, const struct error *e) {
    if (!x->conn) return serve_request_free(x);
    if (x->server->stopping || rc == ERR_CANCELLED) return refuse(x, ERR_MEMORY, shutting_down);
    if (rc) return refuse(x, rc == ERR_RUNTIME ? ERR_USAGE : rc, e->text);
    x->state = HTTP_REQUEST_READING;
    serve_connection_wake(x);
}

int serve_read(struct http_request *x, struct error *e) {
    struct app *a = x->model->app;
    if (x->is_parsed) return 0;
    TRY(x->protocol->parse(&x->request, x->body.data ? x->body.data : "", x->body.len, a->template,
                           a->opts.v[OPT_STRICT].on, e));
    TRY(check_model(x, e));
    x->is_parsed = true;
    if (x->request.load_only || x->request.raw_prompt || !prompt_images_any(&x->request.template_input)) return 0;
    if (!a->engine) TRY(a->backend->open_engine(a, e));
    const int rc = serve_compile(x, COMPILE_IMAGES, client_of(x), on_images, e);
    return rc ? rc : 1;
}

/* --- sessions --------------------------------------------------------------------------------- */

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

static void close_session(struct serve_session *k) {
    engine_client_close(&k->client);
    buf_free(&k->answer);
    *k = (struct serve_session){0};
}

/* Closes a session, and moves the last one to its place. */
static void remove_session(struct server *s, int i) {
    close_session(&s->sessions[i]);
    struct serve_session *last = &s->sessions[--s->n_sessions];
    if (last == &s->sessions[i]) return;
    s->sessions[i] = *last;
    *last = (struct serve_session){0};
    if (s->sessions[i].choice) s->sessions[i].choice->session = &s->sessions[i];
}

void serve_drop_sessions(struct server *s, const struct serve_model *m) {
    for (int i = s->n_sessions - 1; i >= 0; i--)
        if (s->sessions[i].client->app == m->app) remove_session(s, i);
}

/* Makes room for a session of a model: closes the least recently used idle session of another model. */
static void drop_other_session(struct server *s, const struct serve_model *m) {
    int oldest = -1;
    for (int i = 0; i < s->n_sessions; i++)
        if (!s->sessions[i].choice && s->sessions[i].client->app != m->app &&
            (oldest < 0 || s->sessions[i].last_used < s->sessions[oldest].last_used))
            oldest = i;
    if (oldest >= 0) remove_session(s, oldest);
}

/* Picks a session for a prompt: the idle one that shares the longest prefix, if that is at least half of its cache;
 * else a new one, below the limit; else the idle one that was used least recently. NULL: all are busy. */
static struct serve_session *choose_session(struct server *s, const struct serve_model *m, const struct prompt *p,
                                            struct error *e) {
    const int32_t *tokens;
    struct serve_session *best = NULL, *oldest = NULL;
    size_t best_prefix = 0;
    for (int i = 0; i < s->n_sessions; i++) {
        struct serve_session *k = &s->sessions[i];
        if (k->choice || k->client->app != m->app) continue;
        size_t n = common_prefix(k, p);
        if (!best || n > best_prefix) best = k, best_prefix = n;
        if (!oldest || k->last_used < oldest->last_used) oldest = k;
    }
    if (best && best_prefix * 2 >= cached_tokens(best, &tokens)) return best;
    if (!best && s->n_sessions == s->max_sessions) drop_other_session(s, m);
    if (s->n_sessions < s->max_sessions) {
        struct serve_session *k = &s->sessions[s->n_sessions];
        if (!engine_client_open(m->app, &k->client, e)) {
            s->n_sessions++;
            return k;
        }
    }
    return oldest;
}

/* Takes what the model writes of its calls. */
static int add_call_text(struct http_choice *c, const char *data, size_t n) {
    const struct http_request *x = c->request;
    struct buf text = {0};
    size_t n_before = 0, n_now;
    if (!x->protocol->call || x->request.no_tool_calls) return 0;
    if (!c->tool_stream && !(c->tool_stream = tool_stream_open(x->request.tools))) return ERR_MEMORY;
    const size_t arguments_before = serve_stream_arguments(c, &n_before);
    out_utf8(&text, data, n);
    int rc = text.failed ? ERR_MEMORY : text.len ? tool_stream_add(c->tool_stream, text.data, text.len) : 0;
    buf_free(&text);
    c->calls_grew |= serve_stream_arguments(c, &n_now) != arguments_before || n_now != n_before;
    return rc;
}

static int add_generated(void *ctx, enum output_kind part, const char *data, size_t n) {
    struct http_choice *c = ctx;
    const struct api_request *r = &c->request->request;
    size_t k = c->n_generated;
    if (!r->stream) return 0; /* sent whole at the end */
    if (part == OUTPUT_TOOL_CALL && !r->markup) return add_call_text(c, data, n);
    while (k && c->generated[k - 1].part != part && c->n_generated == sizeof c->generated / sizeof *c->generated) k--;
    if (!k || c->generated[k - 1].part != part) {
        k = ++c->n_generated;
        c->generated[k - 1].part = part;
        c->generated[k - 1].text.len = 0;
    }
    return buf_add(&c->generated[k - 1].text, data, n);
}

/* Keeps the parts of calls that a stream has sent, even if a limit cut them or they turn out not to be calls. */
static int keep_sent_calls(struct http_choice *c) {
    size_t n;
    if (!c->n_calls_begun || tool_stream_agrees(c->tool_stream, &c->calls)) return 0;
    tool_calls_truncate(&c->calls, 0);
    TRY(tool_calls_copy(tool_stream_calls(c->tool_stream, &n), &c->calls));
    tool_calls_truncate(&c->calls, c->n_calls_begun);
    return 0;
}

/* Ends one answer. The first failure stops the other answers of its request. May free the request. */
static void finish_choice(struct http_choice *c) {
    struct http_request *x = c->request;
    struct server *s = x->server;
    if (c->session) {
        c->session->choice = NULL;
        buf_add(&c->session->answer, c->turn.text.data ? c->turn.text.data : "", c->turn.text.len);
    }
    c->session = NULL;
    if (c->state == HTTP_CHOICE_WAITING) leave_queue(c);
    else c->state = HTTP_CHOICE_DONE, x->n_done++;
    if (!c->turn.failed && (api_parse_tools(&x->request, &c->turn, &c->calls) || keep_sent_calls(c))) {
        c->turn.failed = true;
        error_set(&c->turn.error, ERR_MEMORY, "no memory");
    }
    if (c->turn.failed && !x->failed) {
        x->failed = c;
        stop_choices(x);
    }
    s->last_activity_s = clock_now();
    if (x->n_done == x->n_choices) x->state = HTTP_REQUEST_DONE;
    if (x->conn) serve_connection_wake(x);
    else if (x->state == HTTP_REQUEST_DONE) serve_request_free(x);
}

/* Sends the disk-cache keys before anything of the prompt can be on disk. */
static void add_disk_keys_comment(struct http_request *x, const struct serve_session *k) {
    const uint64_t *keys;
    size_t n = engine_client_disk_keys(k->client, &keys);
    for (size_t i = 0; i < n; i++) buf_fmt(&x->comments, "%s%016llx", i ? " " : ": kept ", (unsigned long long)keys[i]);
    if (n) buf_str(&x->comments, "\n\n");
    if (n) serve_connection_wake(x);
}

/* True if the request has what the session's last answer began with, and more of that answer. The client may lack the
 * end of an answer that it stopped. */
static bool continues_answer(const struct http_request *x, const struct serve_session *k) {
    const struct json *begun = x->request.partial_answer;
    if (x->request.generated) return true; /* the client has these ids from this server */
    if (!begun || k->answer.failed || begun->n <= k->n_begun) return false;
    return !memcmp(begun->string, k->answer.data ? k->answer.data : "",
                   begun->n < k->answer.len ? begun->n : k->answer.len);
}

/* True if the request has the messages of the session's last request, and more. *hash: that of the request's
 * messages. */
static bool continues_chat(const struct http_request *x, const struct serve_session *k, uint64_t *hash) {
    if (x->request.raw_prompt) return *hash = 0, false;
    const struct json *list = json_get(&x->request.template_input, "messages");
    struct buf b = {0};
    bool continues = false;
    *hash = 0;
    for (uint32_t i = 0; i < list->n && !b.failed; i++) {
        b.len = 0;
        json_write(&b, &list->items[i]);
        if (!b.failed) *hash = hash64(b.data, b.len, *hash);
        continues |= *hash == k->messages_hash && (i + 1 < list->n || continues_answer(x, k));
    }
    continues = continues && !b.failed;
    buf_free(&b);
    return continues;
}

/* Comments for an attached process: the disk-cache keys, and that the document was dropped. */
static void add_comments(struct http_request *x, const struct serve_session *k) {
    if (!x->request.stream || !x->protocol->has_comments) return;
    if (x->request.report_disk_keys) add_disk_keys_comment(x, k);
    if (!x->document_dropped || !x->request.markup) return;
    buf_str(&x->comments, ": alone\n\n");
    serve_connection_wake(x);
}

/* Starts an answer on a session. A continued chat reuses the KV cache of its own answers; any other request reuses only
 * prefilled prefixes, so that an answer does not depend on other clients. */
static int begin_turn(struct http_choice *c, struct serve_session *k, struct error *e) {
    struct http_request *x = c->request;
    struct server *s = x->server;
    uint64_t messages_hash;
    int flags =
        (x->request.no_disk_cache ? REQ_NO_DISK_CACHE : 0) |
        (continues_chat(x, k, &messages_hash) && !s->app->opts.v[OPT_DETERMINISTIC].on ? 0 : REQ_EXACT_PREFIX_ONLY) |
        /* an attached hearth ends with the error that it would have without a server */
        (x->request.markup ? 0 : REQ_MAY_BE_INCOMPLETE);
    struct request q = {.max_tokens = x->request.max_tokens,
                        .client = c->queue_entry.client,
                        .flags = flags,
                        .wants_logprobs = x->request.logprobs,
                        .n_top_logprobs = x->request.n_top_logprobs};
    TRY(check_length(x, c->prompt, e)); /* the engine's context may differ from the one in the file */
    open_sampling(x->model->app, &s->app->opts, &q.sampling);
    api_override_sampling(&x->request, c->index, &q.sampling);
    if (x->request.has_source) c->prompt->source = &x->request.source;
    TRY(turn_start(&c->turn, x->model->app, k->client, c->prompt, &q, add_generated, c, e));
    turn_set_stops(&c->turn, x->request.stop, x->request.n_stop);
    turn_set_text_tools(&c->turn, api_text_tools(&x->request));
    const struct json *begun = x->request.partial_answer;
    c->turn.text_begun = begun && begun->n;
    buf_free(&k->answer);
    if (begun) buf_add(&k->answer, begun->string, begun->n);
    k->n_begun = k->answer.len;
    k->choice = c;
    k->last_used = ++s->n_orders;
    k->messages_hash = messages_hash;
    c->session = k;
    fair_queue_serve(&x->model->queue, &c->queue_entry);
    x->model->last_used = s->n_orders;
    c->state = HTTP_CHOICE_RUNNING;
    c->prompt = NULL;
    if (++x->n_begun == x->n_choices) free_prompts(x);
    add_comments(x, k);
    return 0;
}

/* False for a client that has as many sessions as one may: it waits until one of its own ends. */
static bool client_may_begin(const void *server, const struct fair_entry *t) {
    const struct server *s = server;
    int n = 0;
    for (int i = 0; i < s->n_sessions; i++)
        n += s->sessions[i].choice && s->sessions[i].choice->queue_entry.client == t->client;
    return n < s->parallel;
}

/* Starts the answers that wait for sessions of a model. */
static void start_waiting(struct server *s, const struct serve_model *m) {
    for (;;) {
        struct fair_entry *entry = fair_queue_next(&m->queue, client_may_begin, s);
        struct http_choice *first =
            entry ? (struct http_choice *)((char *)entry - offsetof(struct http_choice, queue_entry)) : NULL;
        struct error e = {.code = ERR_MEMORY, .text = "no memory for a session"};
        int busy = 0;
        for (int i = 0; i < s->n_sessions; i++) busy += s->sessions[i].choice != NULL;
        struct serve_session *k = first && busy < s->max_sessions ? choose_session(s, m, first->prompt, &e) : NULL;
        if (!first || (!k && busy)) return; /* retried when a request ends */
        int rc = k ? begin_turn(first, k, &e) : ERR_MEMORY;
        if (!rc) continue;
        first->turn.failed = true;
        first->turn.error = e;
        finish_choice(first);
    }
}

void serve_start_waiting(struct server *s) {
    for (size_t i = 0; i < s->n_models; i++)
        if (s->models[i]->is_open && !s->models[i]->is_draining) start_waiting(s, s->models[i]);
}

void serve_fail_waiting(struct server *s, const struct serve_model *m, const struct error *e) {
    for (struct fair_entry *entry; (entry = m->queue.first);) {
        struct http_choice *c = (struct http_choice *)((char *)entry - offsetof(struct http_choice, queue_entry));
        c->turn.failed = true;
        c->turn.error = *e;
        finish_choice(c); /* takes the others of its request out of the queue */
    }
}

void serve_cancel_all(struct server *s) {
    for (struct http_request *x = s->requests, *next; x; x = next) {
        next = x->next;
        struct http_choice *waiting = NULL;
        for (int i = 0; i < x->n_choices; i++) {
            if (x->choices[i].state == HTTP_CHOICE_RUNNING) engine_client_cancel(x->choices[i].session->client);
            else if (x->choices[i].state == HTTP_CHOICE_WAITING) waiting = &x->choices[i];
        }
        if (x->job && !serve_compile_cancel(x)) refuse(x, ERR_MEMORY, shutting_down);
        if (x->waits_for_model || x->state == HTTP_REQUEST_LOADING) refuse(x, ERR_MEMORY, shutting_down);
        if (!waiting) continue;
        waiting->turn.failed = true;
        error_set(&waiting->turn.error, ERR_MEMORY, "%s", shutting_down);
        finish_choice(waiting); /* takes the others out of the queue */
    }
}

void serve_handle_event(struct server *s, const struct engine_event *event) {
    struct http_choice *c = NULL;
    for (int i = 0; i < s->n_sessions && !c; i++)
        if (s->sessions[i].client == event->client) c = s->sessions[i].choice;
    if (!c) return;
    struct http_request *x = c->request;
    turn_event(&c->turn, event);
    if (event->event.kind == EVENT_PROGRESS && event->event.total > 0 && x->request.stream && x->protocol->has_comments)
        snprintf(x->progress_comment, sizeof x->progress_comment, ": %s %d of %d, %.3f s left\n\n",
                 event->event.in_images ? "images" : "prompt", event->event.done, event->event.total,
                 event->event.left_s);
    if (c->turn.running) {
        if (c->n_generated || c->calls_grew || *x->progress_comment) serve_connection_wake(x);
        return;
    }
    s->n_answered++;
    serve_info_count(s, &c->turn);
    if (!c->turn.failed && c->turn.reason == DONE_CANCELLED && x->conn && !x->hung_up) {
        c->turn.failed = true;
        error_set(&c->turn.error, ERR_MEMORY, "%s", shutting_down);
    }
    finish_choice(c);
}

#include "cli/remote/remote.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/remote/remote_connection.h"
#include "cli/report.h"
#include "cli/server/resident.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "cli/turn/prompt.h"

/* --- requests --------------------------------------------------------------------------------- */

static size_t collect_body(char *data, size_t size, size_t n, void *ctx) {
    struct buf *b = ctx;
    return b->len + n > 16 << 20 || buf_add(b, data, n) ? 0 : n;
}

/* Fetches the server's list of models. */
static int fetch_models(struct remote *r, struct buf *body, long *status, struct error *e) {
    CURL *easy = curl.easy_init();
    char why[CURL_ERROR_SIZE] = "";
    if (!easy) return error_set(e, ERR_MEMORY, "no memory");
    int rc = remote_connection_setup(r, easy, "/models") ? error_set(e, ERR_USAGE, "-m: the URL is too long") : 0;
    curl.easy_setopt(easy, CURLOPT_WRITEFUNCTION, collect_body);
    curl.easy_setopt(easy, CURLOPT_WRITEDATA, body);
    curl.easy_setopt(easy, CURLOPT_ERRORBUFFER, why);
    curl.easy_setopt(easy, CURLOPT_TIMEOUT, 60L);
    CURLcode c = rc ? CURLE_OK : curl.easy_perform(easy);
    if (c) rc = error_set(e, ERR_RUNTIME, "%.200s: %s", r->base, *why ? why : curl.easy_strerror(c));
    curl.easy_getinfo(easy, CURLINFO_RESPONSE_CODE, status);
    curl.easy_cleanup(easy);
    return rc;
}

/* Finds the model that the URL names, or the only one. */
static int choose_served_model(struct remote *r, struct error *e) {
    struct buf body = {0}, names = {0};
    struct arena arena = {0};
    struct json j;
    long status = 0;
    int rc = fetch_models(r, &body, &status, e);
    const bool is_refused = status == 401 || status == 403 || (status >= 300 && status < 400);
    if (!rc && (is_refused || (status != 200 && !r->model))) rc = remote_connection_error(r, status, &body, e);
    if (rc || status != 200) goto out; /* a server without this list may still have the model */
    if (json_parse(&arena, body.data ? body.data : "", body.len, 0, "models", &j, NULL)) {
        rc = error_set(e, ERR_RUNTIME, "%.200s: not a chat-completions server (its list of models is not JSON)",
                       r->base);
        goto out;
    }
    const struct json *list = json_get(&j, "data"), *chosen = NULL;
    for (uint32_t i = 0; list && list->type == JSON_ARRAY && i < list->n; i++) {
        const struct json *id = json_get(&list->items[i], "id");
        if (!id || id->type != JSON_STRING) continue;
        if (names.len < 300)
            buf_fmt(&names, "%s%.*s", names.len ? ", " : "", (int)(id->n < 80 ? id->n : 80), id->string);
        if (r->model ? json_is(id, r->model) : list->n == 1) chosen = &list->items[i];
    }
    if (chosen) r->info.context = r->info.max_context = (int)json_int(json_get(chosen, "max_model_len"), 0);
    if (chosen && !r->model && !(r->model = json_strdup(json_get(chosen, "id"))))
        rc = error_set(e, ERR_MEMORY, "no memory");
    else if (!r->model)
        rc = error_set(e, ERR_USAGE, "%.200s: choose a model with -m URL#MODEL, one of: %s", r->base,
                       names.len ? names.data : "none at all");
out:
    arena_free(&arena);
    buf_free(&body);
    buf_free(&names);
    return rc;
}

/* --- opening ---------------------------------------------------------------------------------- */

static void remote_free(struct remote *r) {
    if (!r) return;
    remote_request_stop_thread(r);
    curl.slist_free_all(r->headers);
    mem_free(r->base);
    mem_free(r->host);
    mem_free(r->model);
    mem_free(r->socket);
    mem_free(r->key);
    mem_free(r);
}
static void remote_close(struct app *a) {
    remote_free(a->remote);
    a->remote = NULL;
}

static bool add_header(struct remote *r, const char *text) {
    struct curl_slist *more = curl.slist_append(r->headers, text);
    if (more) r->headers = more;
    return more != NULL;
}

static int remote_new(struct app *a, struct error *e) {
    int rc = lib_curl(e);
    struct remote *r = rc ? NULL : mem_calloc(1, sizeof *r);
    if (!r) return rc ? rc : error_set(e, ERR_MEMORY, "no memory");
    *r = (struct remote){
        .app = a, .events_fd = -1, .wake_fd = -1, .lock = PTHREAD_MUTEX_INITIALIZER, .queue_tail = &r->queue_head};
    r->info = (struct engine_info){.model_type = "chat completions",
                                   .name = "",
                                   .temperature = NAN,
                                   .top_p = NAN,
                                   .min_p = NAN,
                                   .repeat_penalty = NAN,
                                   .do_sample = true};
    a->remote = r;
    if (add_header(r, "Content-Type: application/json") && add_header(r, "Expect:")) return 0;
    remote_close(a);
    return error_set(e, ERR_MEMORY, "no memory");
}

/* Parses the URL: appends /v1 if it has no path, and splits off the model after '#'. */
static int parse_url(struct remote *r, const char *text, struct error *e) {
    CURLU *u = curl.url();
    char *part = NULL, *host = NULL, *scheme = NULL, *path = NULL, *url = NULL;
    int rc = !u                                        ? error_set(e, ERR_MEMORY, "no memory")
             : curl.url_set(u, CURLUPART_URL, text, 0) ? error_set(e, ERR_USAGE, "-m %.200s: not a valid URL", text)
                                                       : 0;
    if (!rc && (!curl.url_get(u, CURLUPART_USER, &part, 0) || !curl.url_get(u, CURLUPART_PASSWORD, &part, 0)))
        rc = error_set(e, ERR_USAGE, "-m: do not put a key on the command line; set HEARTH_API_KEY");
    if (!rc && !curl.url_get(u, CURLUPART_FRAGMENT, &part, CURLU_URLDECODE)) {
        if (*part && !(r->model = mem_strdup(part))) rc = error_set(e, ERR_MEMORY, "no memory");
        curl.url_set(u, CURLUPART_FRAGMENT, NULL, 0);
    }
    if (!rc && (curl.url_get(u, CURLUPART_HOST, &host, 0) || curl.url_get(u, CURLUPART_SCHEME, &scheme, 0)))
        rc = error_set(e, ERR_USAGE, "-m %.200s: not a valid URL", text);
    if (!rc && !curl.url_get(u, CURLUPART_PATH, &path, 0) && (!*path || !strcmp(path, "/")))
        curl.url_set(u, CURLUPART_PATH, "/v1", 0);
    if (!rc && curl.url_get(u, CURLUPART_URL, &url, 0)) rc = error_set(e, ERR_MEMORY, "no memory");
    for (size_t n = url ? strlen(url) : 0; n && url[n - 1] == '/';) url[--n] = 0;
    if (!rc && !(r->base = mem_strdup(url))) rc = error_set(e, ERR_MEMORY, "no memory");
    r->is_local = host && remote_connection_is_loopback(host);
    if (!rc && !(r->host = mem_strdup(host))) rc = error_set(e, ERR_MEMORY, "no memory");
    const char *key = getenv("HEARTH_API_KEY");
    if (!rc && key && *key) {
        struct buf header = {0};
        buf_fmt(&header, "Authorization: Bearer %s", key);
        if (strpbrk(key, "\r\n")) rc = error_set(e, ERR_USAGE, "HEARTH_API_KEY: contains line ends");
        else if (header.failed || !(r->key = mem_strdup(key)) || !add_header(r, header.data))
            rc = error_set(e, ERR_MEMORY, "no memory");
        buf_free(&header);
        if (!rc && !strcasecmp(scheme, "http") && !r->is_local)
            report_note("the key is sent to %s unencrypted; use https:// to protect it", host);
    }
    curl.free(part);
    curl.free(host);
    curl.free(scheme);
    curl.free(path);
    curl.free(url);
    curl.url_cleanup(u);
    return rc;
}

static int remote_open_text(struct app *a, struct error *e) {
    progress_begin("contacting the server");
    int rc = remote_new(a, e);
    if (!rc) rc = parse_url(a->remote, a->opts.v[OPT_MODEL].text, e);
    if (!rc) rc = choose_served_model(a->remote, e);
    progress_clear();
    if (!rc) snprintf(a->model_dir, sizeof a->model_dir, "%s", a->remote->model);
    if (!rc) snprintf(a->model_name, sizeof a->model_name, "%s", a->remote->model);
    return rc;
}

static int remote_open_engine(struct app *a, struct error *e) {
    struct remote *r = a->remote;
    r->info.name = r->model;
    int rc = remote_request_start_thread(r, e);
    if (!rc) a->info = &r->info;
    return rc;
}

const char *remote_host(const struct app *a) {
    return a->remote && a->remote->host && !a->remote->is_local ? a->remote->host : NULL;
}

/* --- prompts ---------------------------------------------------------------------------------- */

/* Builds members of the request: messages and tools belong to the protocol, all else goes to the chat template. */
static int remote_prompt(struct app *a, const struct json *conv, struct prompt *out, struct error *e) {
    struct buf *b = &out->body, kwargs = {0};
    for (uint32_t i = 0; i < conv->n; i++) {
        const struct json *key = &conv->items[2 * i], *value = key + 1;
        if (json_is(key, "add_generation_prompt") && json_bool(value, false)) continue;
        if (json_is(key, "continue_final_message")) {
            buf_fmt(b, "%s\"continue_final_message\": true, \"add_generation_prompt\": false", b->len ? ", " : "");
            continue;
        }
        bool is_top_level = json_is(key, "messages") || json_is(key, "tools") || json_is(key, "reasoning_effort");
        struct buf *to = is_top_level ? b : &kwargs;
        buf_str(to, to->len ? ", " : "");
        json_quote(to, key->string, key->n);
        buf_str(to, ": ");
        json_write(to, value);
    }
    if (kwargs.len) buf_fmt(b, ", \"chat_template_kwargs\": {%s}", kwargs.data);
    int rc = b->failed || kwargs.failed ? error_set(e, ERR_MEMORY, "no memory for the conversation") : 0;
    buf_free(&kwargs);
    return rc;
}

/* The resident engine renders and counts without answering. */
static int attached_count_tokens(struct app *a, const struct prompt *p, size_t *n, struct error *e) {
    struct buf body = {0}, reply = {0};
    struct arena arena = {0};
    struct json j;
    buf_fmt(&body, "{%s}", p->body.data);
    int rc = body.failed ? error_set(e, ERR_MEMORY, "no memory")
                         : resident_request("POST", "/hearth/tokens", &body, &reply, e);
    if (!rc) rc = json_parse(&arena, reply.data, reply.len, 0, "tokens", &j, e);
    if (!rc) *n = (size_t)json_int(json_get(&j, "tokens"), 0);
    arena_free(&arena);
    buf_free(&body);
    buf_free(&reply);
    return rc;
}

static int attached_open_text(struct app *a, struct error *e) { return 0; }
static int remote_client_open(struct engine_client *s, struct error *e) { return 0; }
static int remote_fd(const struct app *a) { return a->remote->events_fd; }

#define BACKEND_OVER_HTTP \
    .open_engine = remote_open_engine, .close = remote_close, .make_prompt = remote_prompt, \
    .client_open = remote_client_open, .client_close = remote_request_close, .submit = remote_request_submit, \
    .cancel = remote_request_cancel, .disk_keys = remote_request_disk_keys, .poll = remote_request_poll, \
    .fd = remote_fd
const struct backend backend_remote = {
    .name = "remote", .omits_unset_sampling = true, .open_text = remote_open_text, BACKEND_OVER_HTTP};
const struct backend backend_attached = {.name = "attached",
                                         .can_continue = true,
                                         .count_tokens = attached_count_tokens,
                                         .open_text = attached_open_text,
                                         BACKEND_OVER_HTTP};

/* --- selection -------------------------------------------------------------------------------- */

int remote_check_options(struct app *a, struct error *e) {
    static const struct {
        enum opt_id id;
        const char *why;
    } rows[] = {
        {OPT_RAW, "it takes only conversations, not prompt text"},
        {OPT_SPECIAL, "it takes only conversations, not control tokens"},
        {OPT_TEMPLATE, "it uses its own chat template"},
        {OPT_MMPROJ, "it reads images with its own files"},
        {OPT_THINK_LIMIT, "it ends thinking by its own rules; --effort asks for less"},
        {OPT_REGEX, "chat completions know only JSON objects and JSON schemas"},
        {OPT_GRAMMAR, "chat completions know only JSON objects and JSON schemas"},
        {OPT_CHOICES, "chat completions know only JSON objects and JSON schemas; a schema with enum lists choices"},
        {OPT_EXPLAIN, "the server decides this"},
        {OPT_TRACE, "the server decides this"},
        {OPT_CONTEXT, "the server sets its context"},
        {OPT_IMAGE_TOKENS, "the server decides this"},
        {OPT_THREADS, "the server decides this"},
        {OPT_CPU, "the server decides this"},
        {OPT_GPUS, "the server decides this"},
        {OPT_KV, "the server decides this"},
        {OPT_PREFILL, "the server decides this"},
        {OPT_DECODE, "the server decides this"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (a->opts.v[rows[i].id].origin >= ORIGIN_FLAG)
            return error_set(e, ERR_USAGE, "--%s is not supported with a remote server: %s", opt_table[rows[i].id].name,
                             rows[i].why);
    return 0;
}

static int read_resident_status(struct remote *r, const struct json *j) {
    const struct json *s = json_get(j, "sampling");
    const struct json *print = json_get(j, "fingerprint");
    r->info.context = (int)json_int(json_get(j, "context"), 0);
    r->info.max_context = (int)json_int(json_get(j, "max_context"), 0);
    r->info.temperature = json_num(json_get(s, "temperature"), NAN);
    r->info.top_p = json_num(json_get(s, "top_p"), NAN);
    r->info.min_p = json_num(json_get(s, "min_p"), NAN);
    r->info.repeat_penalty = json_num(json_get(s, "repeat_penalty"), NAN);
    r->info.top_k = (int)json_int(json_get(s, "top_k"), 0);
    r->info.kv_token_bytes = (uint64_t)json_int(json_get(j, "kv_token_bytes"), 0);
    r->info.do_sample = json_bool(json_get(s, "do_sample"), true);
    r->info.is_own_sampling = json_bool(json_get(s, "own"), false);
    if (print && print->type == JSON_STRING && print->n == 16) r->info.fingerprint = strtoull(print->string, NULL, 16);
    r->model = json_strdup(json_get(j, "model"));
    r->base = mem_strdup("http://hearth/v1");
    r->resident = true;
    return r->model && r->base && r->info.context > 0 ? 0 : ERR_RUNTIME;
}

static bool json_strings_equal(const struct json *a, const struct json *b) {
    return a && a->type == JSON_STRING && a->n == b->n && !memcmp(a->string, b->string, b->n);
}

bool remote_resident_model(struct app *a, char *out, size_t cap) {
    char path[RESIDENT_PATH];
    struct buf body = {0};
    struct arena arena = {0};
    struct json j;
    bool found = false;
    if (a->opts.v[OPT_NO_ATTACH].on || resident_path(path, NULL) || !resident_is_alive(path)) return false;
    if (!resident_request("GET", "/hearth/status", NULL, &body, NULL) &&
        !json_parse(&arena, body.data, body.len, 0, "status", &j, NULL)) {
        const struct json *dir = json_get(&j, "dir");
        found = dir && dir->type == JSON_STRING && dir->n && dir->n < cap;
        if (found) snprintf(out, cap, "%.*s", (int)dir->n, dir->string);
    }
    arena_free(&arena);
    buf_free(&body);
    return found;
}

bool remote_attach(struct app *a) {
    static const enum opt_id prevents_attaching[] = {OPT_NO_ATTACH, OPT_RAW, OPT_SPECIAL, OPT_TRACE, OPT_THINK_LIMIT};
    char path[RESIDENT_PATH];
    struct buf body = {0}, own_identity = {0}, build = {0};
    struct arena arena = {0};
    struct json status, identity, own_build;
    bool matches = false;
    for (size_t i = 0; i < sizeof prevents_attaching / sizeof *prevents_attaching; i++)
        if (a->opts.v[prevents_attaching[i]].text &&
            (a->opts.v[prevents_attaching[i]].on || opt_table[prevents_attaching[i]].kind != OPT_FLAG))
            return false;
    if (resident_path(path, NULL) || !resident_is_alive(path)) return false;
    struct error e = {0};
    int rc = resident_request("GET", "/hearth/status", NULL, &body, &e);
    if (rc == ERR_RUNTIME) report_note("%s; opening the model in this process", e.text);
    if (!rc) rc = resident_identity(a, &own_identity, &e);
    if (!rc) rc = json_parse(&arena, body.data, body.len, 0, "status", &status, &e);
    if (!rc) rc = json_parse(&arena, own_identity.data, own_identity.len, 0, "identity", &identity, &e);
    if (!rc) rc = resident_build(&build);
    if (!rc) rc = json_parse(&arena, build.data, build.len, 0, "build", &own_build, &e);
    if (!rc) {
        matches = json_strings_equal(json_get(&status, "identity"), &identity);
        if (!matches && a->opts.v[OPT_VERBOSE].on)
            report_note("the resident engine has another model or other options; opening the model in this process");
        if (matches && !json_strings_equal(json_get(&status, "build"), &own_build)) {
            report_note(
                "the resident engine is another build of hearth (--stop stops it); opening the model in this process");
            matches = false;
        }
    }
    if (matches &&
        (remote_new(a, &e) || !(a->remote->socket = mem_strdup(path)) || read_resident_status(a->remote, &status))) {
        remote_close(a);
        matches = false;
    }
    arena_free(&arena);
    buf_free(&body);
    buf_free(&own_identity);
    buf_free(&build);
    return matches;
}

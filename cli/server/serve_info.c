/* Resources of --serve that run no turn: tokens of texts, and metrics. */
#include <string.h>

#include "base/clock.h"
#include "cli/server/server.h"
#include "cli/terminal/out.h"

/* Parses the body of a request as an object. */
static int parse_body(const struct http_request *x, struct arena *a, struct json *out, struct error *e) {
    int rc = json_parse(a, x->body.data ? x->body.data : "", x->body.len, 0, "request", out, e);
    if (rc == ERR_MODEL || (!rc && out->type != JSON_OBJECT))
        return error_set(e, ERR_USAGE, "request: must be a JSON object");
    return rc;
}

/* A member that clients know by two names. */
static const struct json *member_of(const struct json *j, const char *name, const char *other_name) {
    return json_get(j, name) ? json_get(j, name) : json_get(j, other_name);
}

int serve_info_tokenize(const struct http_request *x, struct buf *out, struct error *e) {
    struct app *app = x->model->app;
    struct arena arena = {0};
    struct json j;
    struct ids ids = {0};
    int rc = parse_body(x, &arena, &j, e);
    const struct json *text = rc ? NULL : member_of(&j, "content", "prompt");
    const bool special = !rc && json_bool(json_get(&j, "parse_special"), false),
               bos = !rc && json_bool(member_of(&j, "add_special", "add_special_tokens"), false);
    if (!rc && (!text || text->type != JSON_STRING)) rc = error_set(e, ERR_USAGE, "content: a text is required");
    if (!rc)
        rc = tokenizer_encode(app->tokenizer, text->string, text->n, special ? TEXT_TEMPLATE : TEXT_VALUE, &ids, e);
    if (!rc) {
        buf_str(out, "{\"tokens\": [");
        const char *comma = "";
        if (bos && tokenizer_bos(app->tokenizer) >= 0) buf_fmt(out, "%d", tokenizer_bos(app->tokenizer)), comma = ", ";
        for (size_t i = 0; i < ids.n; i++, comma = ", ") buf_fmt(out, "%s%d", comma, ids.data[i]);
        buf_fmt(out, "], \"count\": %zu, \"max_model_len\": %d}\n", ids.n + (bos && tokenizer_bos(app->tokenizer) >= 0),
                app->info->context);
    }
    ids_free(&ids);
    arena_free(&arena);
    return rc;
}

int serve_info_detokenize(const struct http_request *x, struct buf *out, struct error *e) {
    struct app *app = x->model->app;
    struct arena arena = {0};
    struct json j;
    struct buf raw = {0}, text = {0};
    struct decoder d = {.t = app->tokenizer};
    int rc = parse_body(x, &arena, &j, e);
    const struct json *list = rc ? NULL : json_get(&j, "tokens");
    if (!rc && (!list || list->type != JSON_ARRAY)) rc = error_set(e, ERR_USAGE, "tokens: a list of ids is required");
    for (uint32_t i = 0; !rc && i < list->n; i++) {
        const int64_t id = json_int(&list->items[i], -1);
        if (id < 0 || id >= tokenizer_n_ids(app->tokenizer))
            rc = error_set(e, ERR_USAGE, "tokens[%u]: not an id of this vocabulary (0 to %d)", i,
                           tokenizer_n_ids(app->tokenizer) - 1);
        else if (decoder_add(&d, (int32_t)id, &raw)) rc = error_set(e, ERR_MEMORY, "no memory");
    }
    if (!rc && decoder_flush(&d, &raw)) rc = error_set(e, ERR_MEMORY, "no memory");
    if (!rc) {
        out_utf8(&text, raw.data ? raw.data : "", raw.len);
        buf_str(out, "{\"content\": ");
        out_json_string(out, text.data ? text.data : "", text.len);
        buf_str(out, ", \"prompt\": ");
        out_json_string(out, text.data ? text.data : "", text.len);
        buf_str(out, "}\n");
        out->failed |= text.failed;
    }
    buf_free(&raw);
    buf_free(&text);
    arena_free(&arena);
    return rc;
}

void serve_info_count(struct server *s, const struct turn *t) {
    const struct turn_stats *from = &t->stats;
    s->totals.failed += t->failed;
    s->totals.prompt_tokens += (uint64_t)from->prompt_tokens;
    s->totals.cached_tokens += (uint64_t)from->cached_tokens;
    s->totals.answer_tokens += (uint64_t)from->answer_tokens;
    s->totals.ttft_s += from->ttft_s;
    s->totals.decode_s += from->decode_s;
    s->totals.decoded_tokens += from->answer_tokens > 1 ? (uint64_t)from->answer_tokens - 1 : 0;
}

void serve_info_metrics(const struct server *s, struct buf *out) {
    int waiting = 0, running = 0;
    for (const struct http_request *x = s->requests; x; x = x->next)
        for (int i = 0; i < x->n_choices; i++)
            waiting += x->choices[i].state == HTTP_CHOICE_WAITING,
                running += x->choices[i].state == HTTP_CHOICE_RUNNING;
    const struct {
        const char *name, *type, *help;
        double value;
    } rows[] = {
        {"requests_total", "counter", "Ended answers", (double)s->n_answered},
        {"requests_failed_total", "counter", "Answers that ended with an error", (double)s->totals.failed},
        {"requests_running", "gauge", "Answers that are being generated", running},
        {"requests_waiting", "gauge", "Answers that wait for a session", waiting},
        {"prompt_tokens_total", "counter", "Tokens of prompts", (double)s->totals.prompt_tokens},
        {"prompt_tokens_cached_total", "counter", "Tokens of prompts whose KV cache was reused",
         (double)s->totals.cached_tokens},
        {"answer_tokens_total", "counter", "Generated tokens", (double)s->totals.answer_tokens},
        {"time_to_first_token_seconds_sum", "counter", "Sum of the times to the first token", s->totals.ttft_s},
        {"time_to_first_token_seconds_count", "counter", "Answers in that sum", (double)s->n_answered},
        {"decode_seconds_sum", "counter", "Sum of the times from the first to the last token", s->totals.decode_s},
        {"decode_tokens_total", "counter", "Tokens generated in that time", (double)s->totals.decoded_tokens},
        {"sessions", "gauge", "Open sessions", s->n_sessions},
        {"kv_cache_bytes", "gauge", "Memory of KV caches", (double)serve_status_kv_bytes(s)},
        {"resident_memory_bytes", "gauge", "Memory of the process", (double)serve_status_resident_bytes()},
        {"uptime_seconds", "gauge", "Seconds since the start", clock_now() - s->started_s},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        buf_fmt(out, "# HELP hearth_%s %s\n# TYPE hearth_%s %s\nhearth_%s %.15g\n", rows[i].name, rows[i].help,
                rows[i].name, rows[i].type, rows[i].name, rows[i].value);
}

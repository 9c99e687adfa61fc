/* Requests and answers of llama.cpp's /infill, as described in tools/server/README.md of ggml-org/llama.cpp: text
 * before and after the cursor, and passages of other files. Departs from it: the passages stand in front of the text
 * before the cursor, as text, not between marks of files; limits of time change nothing. */

#include <string.h>

#include "base/buf.h"
#include "cli/server/api_members.h"
#include "cli/server/openai.h"

static const struct api_member members[] = {
    API_OTHER("input_prefix"),
    API_OTHER("input_suffix"),
    API_OTHER("input_extra"),
    API_OTHER("prompt"),
    API_VALUE("model", MEMBER_TEXT, model),
    API_VALUE("stream", MEMBER_FLAG, stream),
    API_SAMPLING,
    API_VALUE("n_predict", MEMBER_LIMIT, max_tokens),
    {.name = "stop", .kind = MEMBER_STOP},
    API_NOTHING("cache_prompt"),
    API_NOTHING("samplers"),
    API_NOTHING("t_max_prompt_ms"),
    API_NOTHING("t_max_predict_ms"),
    API_NOTHING("n_indent"),
    API_NOTHING("n_keep"),
    API_NOTHING("id_slot"),
    API_NOTHING("repeat_last_n"),
    API_NOTHING("response_fields"),
    API_REFUSED("n_probs", 0, "use /v1/completions"),
    API_REFUSED("grammar", 0, "use guided_grammar of /v1/completions"),
    API_REFUSED("json_schema", 0, "use response_format of /v1/completions"),
};

/* --- requests --------------------------------------------------------------------------------- */

static int add_text(struct buf *b, const struct json *root, const char *name, struct error *e) {
    const struct json *text = json_get(root, name);
    if (!api_members_present(text)) return 0;
    if (text->type != JSON_STRING) return error_set(e, ERR_USAGE, "%s: must be a string", name);
    buf_add(b, text->string, text->n);
    return 0;
}

static int add_passages(struct buf *b, const struct json *extra, struct error *e) {
    if (!api_members_present(extra)) return 0;
    if (extra->type != JSON_ARRAY) return error_set(e, ERR_USAGE, "input_extra: must be an array");
    for (uint32_t i = 0; i < extra->n; i++) {
        const struct json *name = json_get(&extra->items[i], "filename"), *text = json_get(&extra->items[i], "text");
        if (!text || text->type != JSON_STRING)
            return error_set(e, ERR_USAGE, "input_extra[%u].text: must be a string", i);
        if (name && name->type == JSON_STRING) buf_add(b, name->string, name->n), buf_str(b, "\n");
        buf_add(b, text->string, text->n);
        buf_str(b, "\n\n");
    }
    return 0;
}

static int keep(struct api_request *r, const struct buf *b, const struct json **out, struct error *e) {
    struct json *j = arena_alloc(&r->arena, sizeof *j);
    char *text = b->failed ? NULL : arena_strndup(&r->arena, b->data ? b->data : "", b->len);
    if (!j || !text || b->len > UINT32_MAX) return error_set(e, ERR_MEMORY, "no memory");
    *j = (struct json){.type = JSON_STRING, .n = (uint32_t)b->len, .string = text};
    *out = j;
    return 0;
}

static int parse(struct api_request *r, const char *body, size_t n, const struct chat_template *chat, bool strict,
                 struct error *e) {
    const struct api_member_table table = {.rows = members, .n = sizeof members / sizeof *members, .prefix = ""};
    struct json root;
    struct buf before = {0}, after = {0};
    TRY(api_parse_root(r, body, n, &root, e));
    TRY(api_members_read(r, &root, &table, strict, e));
    r->no_tool_calls = true;
    int rc = add_passages(&before, json_get(&root, "input_extra"), e);
    if (!rc) rc = add_text(&before, &root, "input_prefix", e);
    if (!rc) rc = add_text(&before, &root, "prompt", e);
    if (!rc) rc = add_text(&after, &root, "input_suffix", e);
    if (!rc && !before.len && !after.len) rc = error_set(e, ERR_USAGE, "input_prefix: no text to fill in");
    if (!rc) rc = keep(r, &before, &r->raw_prompt, e);
    if (!rc) rc = keep(r, &after, &r->suffix, e);
    buf_free(&before);
    buf_free(&after);
    return rc;
}

/* --- answers ---------------------------------------------------------------------------------- */

/* Puts an object; the last one has the numbers of the answer. */
static void put(struct buf *b, const struct api_answer *a, const struct turn *t, const char *text, size_t n,
                bool ended) {
    const struct turn_stats *s = &t->stats;
    const double prompt_ms = s->ttft_s * 1e3, answer_ms = s->decode_s * 1e3;
    buf_str(b, "{\"index\": 0, ");
    api_put_text_member(b, "content", text, n);
    buf_fmt(b, ", \"stop\": %s", ended ? "true" : "false");
    if (ended) {
        buf_str(b, ", ");
        api_put_text_member(b, "model", a->model, strlen(a->model));
        buf_fmt(b,
                ", \"stop_type\": \"%s\", \"truncated\": false, \"tokens_predicted\": %d, \"tokens_evaluated\": %d, "
                "\"tokens_cached\": %d, \"timings\": {\"prompt_n\": %d, \"prompt_ms\": %.3f, \"prompt_per_second\": "
                "%.3f, \"predicted_n\": %d, \"predicted_ms\": %.3f, \"predicted_per_second\": %.3f}",
                api_is_cut(t)   ? "limit"
                : t->stop_found ? "word"
                                : "eos",
                s->answer_tokens, s->prompt_tokens, s->cached_tokens, s->prompt_tokens - s->cached_tokens, prompt_ms,
                (s->prompt_tokens - s->cached_tokens) / (s->ttft_s + 1e-9), s->answer_tokens, answer_ms,
                s->answer_tokens / (s->decode_s + 1e-9));
    }
    buf_char(b, '}');
}

static void begin(struct buf *b, struct api_answer *a) {}
static void delta(struct buf *b, struct api_answer *a, const struct api_choice *c, enum output_kind part, const char *s,
                  size_t n, size_t first_logprob) {
    buf_str(b, "data: ");
    put(b, a, c->turn, s, n, false);
    buf_str(b, "\n\n");
}
static void finish(struct buf *b, struct api_answer *a, const struct api_choice *c) {}
static void end(struct buf *b, struct api_answer *a, const struct api_choice *c, int n) {
    buf_str(b, "data: ");
    put(b, a, c->turn, "", 0, true);
    buf_str(b, "\n\n");
}
static void whole(struct buf *b, struct api_answer *a, const struct api_choice *c, int n) {
    put(b, a, c->turn, c->turn->text.data ? c->turn->text.data : "", c->turn->text.len, true);
    buf_char(b, '\n');
}

const struct api_protocol llama_infill = {.id_prefix = "infill-",
                                          .stream_type = "text/event-stream",
                                          .has_comments = true,
                                          .still_here = ": still here\n\n",
                                          .parse = parse,
                                          .begin = begin,
                                          .delta = delta,
                                          .finish = finish,
                                          .end = end,
                                          .fail = openai_fail,
                                          .whole = whole,
                                          .error = openai_error};

#include "cli/server/responses.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/server/responses_seal.h"
#include "cli/server/responses_tools.h"
#include "cli/terminal/out.h"

/* --- objects ---------------------------------------------------------------------------------- */

static const char begins[] = "in_progress", is_whole[] = "completed", is_cut[] = "incomplete"; /* status of an item */

/* Puts an item of the output: thinking or text. s NULL: it begins, and is empty. */
static void put_item(struct buf *b, const struct api_answer *a, int index, enum output_kind kind, const char *status,
                     const char *s, size_t n) {
    const bool thinking = kind == OUTPUT_THINKING;
    buf_fmt(b, "{\"id\": \"%s_%s_%d\", \"type\": \"%s\", \"status\": \"%s\", ", thinking ? "rs" : "msg", a->code, index,
            thinking ? "reasoning" : "message", status);
    buf_str(b, thinking ? "\"summary\": [], \"content\": [" : "\"role\": \"assistant\", \"content\": [");
    if (s) {
        buf_fmt(b, "{\"type\": \"%s\", ", thinking ? "reasoning_text" : "output_text");
        api_put_text_member(b, "text", s, n);
        buf_str(b, thinking ? "}" : ", \"annotations\": [], \"logprobs\": []}");
    }
    buf_char(b, ']');
    if (s && thinking && a->request->seals_thinking) {
        buf_str(b, ", \"encrypted_content\": ");
        responses_seal_put(b, s, n);
    }
    buf_char(b, '}');
}

/* The status of the last item of an answer. */
static const char *status_of(const struct turn *t) { return api_is_cut(t) ? is_cut : is_whole; }

/* The status of a call, whose arguments a limit may have cut. */
static const char *call_status(const struct turn *t, const struct tool_call *call) {
    struct arena a = {0};
    struct json root;
    if (t->running || !api_is_cut(t)) return is_whole;
    const int rc = json_parse(&a, call->arguments.data ? call->arguments.data : "", call->arguments.len, 0, "arguments",
                              &root, NULL);
    arena_free(&a);
    return rc ? is_cut : is_whole;
}

static void put_call(struct buf *b, const struct api_answer *a, int index, const struct tool_call *call,
                     const char *status) {
    const bool is_empty = status == begins;
    buf_fmt(b, "{\"id\": \"fc_%s_%d\", \"type\": \"function_call\", \"status\": \"%s\", \"call_id\": \"call_%s_%d\", ",
            a->code, index, status, a->code, index);
    responses_tools_put_name(b, a->request, call);
    buf_str(b, ", ");
    api_put_text_member(b, "arguments", is_empty ? "" : call->arguments.data, is_empty ? 0 : call->arguments.len);
    buf_char(b, '}');
}

static void put_number(struct buf *b, const char *name, float v) {
    if (isnan(v)) buf_fmt(b, "\"%s\": null, ", name);
    else buf_fmt(b, "\"%s\": %.7g, ", name, v);
}

/* Puts the response around its items. t NULL: it is in progress or, with an error's object, has failed. */
static void put_response(struct buf *b, const struct api_answer *a, const struct turn *t, const struct buf *error,
                         const char *items, size_t n) {
    const struct api_request *r = a->request;
    const bool cut = t && api_is_cut(t);
    buf_fmt(b, "{\"id\": \"%s\", \"object\": \"response\", \"created_at\": %lld, \"status\": \"%s\", ", a->id,
            a->created,
            error ? "failed"
            : !t  ? "in_progress"
            : cut ? "incomplete"
                  : "completed");
    api_put_text_member(b, "model", a->model, strlen(a->model));
    buf_str(b, ", \"error\": ");
    buf_add(b, error ? error->data : "null", error ? error->len : 4);
    buf_fmt(b, ", \"incomplete_details\": %s, \"instructions\": null, \"metadata\": {}, ",
            cut ? "{\"reason\": \"max_output_tokens\"}" : "null");
    put_number(b, "temperature", r->temperature);
    put_number(b, "top_p", r->top_p);
    buf_fmt(b,
            "\"parallel_tool_calls\": %s, \"previous_response_id\": null, \"store\": false, \"truncation\": "
            "\"disabled\", \"tool_choice\": \"%s\", \"tools\": [], ",
            r->single_tool_call ? "false" : "true",
            r->tool_choice == API_TOOLS_REQUIRED ? "required"
            : r->tools                           ? "auto"
                                                 : "none");
    buf_str(b, "\"output\": [");
    buf_add(b, items ? items : "", n);
    buf_str(b, "], \"usage\": ");
    if (!t) buf_str(b, "null}");
    else
        buf_fmt(b,
                "{\"input_tokens\": %d, \"input_tokens_details\": {\"cached_tokens\": %d}, \"output_tokens\": %d, "
                "\"output_tokens_details\": "
                "{\"reasoning_tokens\": "
                "%d}, \"total_tokens\": %d}}",
                t->stats.prompt_tokens, t->stats.cached_tokens, t->stats.answer_tokens, t->n_thinking,
                t->stats.prompt_tokens + t->stats.answer_tokens);
}

/* --- whole ------------------------------------------------------------------------------------ */

void responses_whole(struct buf *b, struct api_answer *a, const struct api_choice *c, int n) {
    const struct turn *t = c->turn;
    struct buf items = {0}, text = {0};
    int index = 0;
    buf_add(&text, t->text.data ? t->text.data : "", t->text.len);
    if (!c->calls->n && t->tool.len) buf_add(&text, t->tool.data, t->tool.len);
    const bool only_thought = !text.len && !c->calls->n && t->thinking.len;
    if (t->thinking.len)
        put_item(&items, a, index++, OUTPUT_THINKING, only_thought ? status_of(t) : is_whole, t->thinking.data,
                 t->thinking.len);
    if (text.len || !c->calls->n) {
        buf_str(&items, index ? ", " : "");
        put_item(&items, a, index++, OUTPUT_TEXT, c->calls->n ? is_whole : status_of(t), text.data ? text.data : "",
                 text.len);
    }
    for (size_t i = 0; i < c->calls->n; i++) {
        buf_str(&items, index ? ", " : "");
        put_call(&items, a, index++, &c->calls->v[i], call_status(t, &c->calls->v[i]));
    }
    put_response(b, a, t, NULL, items.data, items.len);
    buf_char(b, '\n');
    b->failed |= items.failed || text.failed;
    buf_free(&items);
    buf_free(&text);
}

/* --- streams ---------------------------------------------------------------------------------- */

/* Begins an event with its number. */
static void put_event(struct buf *b, struct api_answer *a, const char *name) {
    api_put_event(b, name);
    buf_fmt(b, ", \"sequence_number\": %d, ", a->n_events++);
}

/* Begins an event of the open item. */
static void put_item_event(struct buf *b, struct api_answer *a, const char *name) {
    put_event(b, a, name);
    buf_fmt(b, "\"output_index\": %d, ", a->n_blocks - 1);
}

/* Begins an event of the text of the open item. */
static void put_text_event(struct buf *b, struct api_answer *a, const char *step) {
    const bool thinking = a->block == OUTPUT_THINKING;
    char name[48];
    snprintf(name, sizeof name, "response.%s.%s", thinking ? "reasoning_text" : "output_text", step);
    put_item_event(b, a, name);
    buf_fmt(b, "\"item_id\": \"%s_%s_%d\", \"content_index\": 0, %s", thinking ? "rs" : "msg", a->code, a->n_blocks - 1,
            thinking ? "" : "\"logprobs\": [], ");
}

static void put_part_event(struct buf *b, struct api_answer *a, const char *name) {
    put_item_event(b, a, name);
    buf_fmt(b,
            "\"item_id\": \"msg_%s_%d\", \"content_index\": 0, \"part\": {\"type\": \"output_text\", \"annotations\": "
            "[], \"logprobs\": [], ",
            a->code, a->n_blocks - 1);
    api_put_text_member(b, "text", a->text.data, a->text.len);
    buf_str(b, "}}\n\n");
}

void responses_begin(struct buf *b, struct api_answer *a) {
    static const char *const names[] = {"response.created", "response.in_progress"};
    for (int i = 0; i < 2; i++) {
        put_event(b, a, names[i]);
        buf_str(b, "\"response\": ");
        put_response(b, a, NULL, NULL, NULL, 0);
        buf_str(b, "}\n\n");
    }
}

/* Adds the item that put_* appends to items to the finished ones, and ends its event. */
static void finish_item(struct buf *b, struct api_answer *a, struct buf *item) {
    put_item_event(b, a, "response.output_item.done");
    buf_str(b, "\"item\": ");
    buf_add(b, item->data, item->len);
    buf_str(b, "}\n\n");
    if (a->items.len) buf_str(&a->items, ", ");
    buf_add(&a->items, item->data, item->len);
    b->failed |= item->failed || a->items.failed;
    buf_free(item);
}

static void close_text(struct buf *b, struct api_answer *a, const char *status) {
    struct buf item = {0};
    if (!a->block_open) return;
    a->block_open = false;
    put_text_event(b, a, "done");
    api_put_text_member(b, "text", a->text.data, a->text.len);
    buf_str(b, "}\n\n");
    if (a->block == OUTPUT_TEXT) put_part_event(b, a, "response.content_part.done");
    put_item(&item, a, a->n_blocks - 1, a->block, status, a->text.data ? a->text.data : "", a->text.len);
    finish_item(b, a, &item);
}

static void open_text(struct buf *b, struct api_answer *a, enum output_kind kind) {
    close_text(b, a, is_whole);
    a->block_open = true, a->block = kind, a->n_blocks++, a->text.len = 0;
    put_item_event(b, a, "response.output_item.added");
    buf_str(b, "\"item\": ");
    put_item(b, a, a->n_blocks - 1, kind, begins, NULL, 0);
    buf_str(b, "}\n\n");
    if (kind == OUTPUT_TEXT) put_part_event(b, a, "response.content_part.added");
}

void responses_delta(struct buf *b, struct api_answer *a, const struct api_choice *c, enum output_kind part,
                     const char *s, size_t n, size_t first_logprob) {
    if (!a->block_open || a->block != part) open_text(b, a, part);
    put_text_event(b, a, "delta");
    api_put_text_member(b, "delta", s, n);
    buf_str(b, "}\n\n");
    if (buf_add(&a->text, s, n)) b->failed = true;
}

/* Puts an event of the arguments of the open item, a call. */
static void put_arguments_event(struct buf *b, struct api_answer *a, const struct tool_call *call, const char *step,
                                const char *member, size_t from) {
    char name[48];
    snprintf(name, sizeof name, "response.function_call_arguments.%s", step);
    put_item_event(b, a, name);
    buf_fmt(b, "\"item_id\": \"fc_%s_%d\", ", a->code, a->n_blocks - 1);
    responses_tools_put_name(b, a->request, call);
    buf_str(b, ", ");
    api_put_text_member(b, member, call->arguments.data + from, call->arguments.len - from);
    buf_str(b, "}\n\n");
}

void responses_call(struct buf *b, struct api_answer *a, const struct api_choice *c,
                    const struct api_call_piece *piece) {
    const struct tool_call *call = piece->call;
    struct buf item = {0};
    if (piece->begins) {
        close_text(b, a, is_whole);
        a->n_blocks++;
        put_item_event(b, a, "response.output_item.added");
        buf_str(b, "\"item\": ");
        put_call(b, a, a->n_blocks - 1, call, begins);
        buf_str(b, "}\n\n");
    }
    if (call->arguments.len > piece->from) put_arguments_event(b, a, call, "delta", "delta", piece->from);
    if (!piece->ends) return;
    put_arguments_event(b, a, call, "done", "arguments", 0);
    put_call(&item, a, a->n_blocks - 1, call, call_status(c->turn, call));
    finish_item(b, a, &item);
}

void responses_finish(struct buf *b, struct api_answer *a, const struct api_choice *c) {
    const struct turn *t = c->turn;
    if (!c->calls->n && t->tool.len) responses_delta(b, a, c, OUTPUT_TEXT, t->tool.data, t->tool.len, SIZE_MAX);
    else if (!c->calls->n && !t->text.len) open_text(b, a, OUTPUT_TEXT); /* an empty answer is a message, too */
    close_text(b, a, status_of(t));
}

void responses_end(struct buf *b, struct api_answer *a, const struct api_choice *c, int n) {
    put_event(b, a, api_is_cut(c->turn) ? "response.incomplete" : "response.completed");
    buf_str(b, "\"response\": ");
    put_response(b, a, c->turn, NULL, a->items.data, a->items.len);
    buf_str(b, "}\n\n");
}

/* Both events: some clients know only one, and some read the members of an error within an object. */
void responses_fail(struct buf *b, struct api_answer *a, int status, const char *code, const char *text) {
    struct buf error = {0};
    if (!a->n_events) responses_begin(b, a);
    buf_fmt(&error, "\"code\": \"%s\", ", code ? code : "server_error");
    api_put_text_member(&error, "message", text, strlen(text));
    put_event(b, a, "error");
    buf_add(b, error.data, error.len);
    buf_fmt(b, ", \"param\": null, \"error\": {\"type\": \"%s\", \"param\": null, ",
            status < 500 ? "invalid_request_error" : "server_error");
    buf_add(b, error.data, error.len);
    buf_str(b, "}}\n\n");
    put_event(b, a, "response.failed");
    buf_str(b, "\"response\": ");
    struct buf object = {0};
    buf_fmt(&object, "{%s}", error.data ? error.data : "");
    put_response(b, a, NULL, &object, a->items.data, a->items.len);
    buf_str(b, "}\n\n");
    b->failed |= error.failed || object.failed;
    buf_free(&object);
    buf_free(&error);
}

#include "cli/server/anthropic.h"

#include <string.h>

#include "cli/terminal/out.h"

/* --- parts ------------------------------------------------------------------------------------ */

/* The signature of thinking. Clients send thinking back only if it has one. Requests are read without regard to it. */
static const char signature[] = "aGVhcnRo";

static void put_head(struct buf *b, const struct api_answer *a) {
    buf_fmt(b, "{\"id\": \"%s\", \"type\": \"message\", \"role\": \"assistant\", ", a->id);
    api_put_text_member(b, "model", a->model, strlen(a->model));
    buf_str(b, ", \"content\": [");
}

static const char *stop_reason(const struct api_choice *c) {
    if (api_is_cut(c->turn)) return c->turn->reason == DONE_CONTEXT ? "model_context_window_exceeded" : "max_tokens";
    if (c->calls->n) return "tool_use";
    return c->turn->stop_found ? "stop_sequence" : "end_turn";
}
static void put_stop(struct buf *b, const struct api_choice *c) {
    const struct turn *t = c->turn;
    buf_fmt(b, "\"stop_reason\": \"%s\", \"stop_sequence\": ", stop_reason(c));
    if (t->stop_found) out_json_string(b, t->stop_found, strlen(t->stop_found));
    else buf_str(b, "null");
}

/* Input tokens are those that were not cached, as in the protocol. */
static void put_usage(struct buf *b, int prompt, int cached, int answer) {
    buf_fmt(b,
            "\"usage\": {\"input_tokens\": %d, \"cache_creation_input_tokens\": 0, \"cache_read_input_tokens\": %d, "
            "\"output_tokens\": %d}",
            prompt - cached, cached, answer);
}

static void put_call_head(struct buf *b, const struct api_answer *a, const struct tool_call *call, size_t i) {
    buf_fmt(b, "{\"type\": \"tool_use\", \"id\": \"toolu_%s_%zu\", ", a->code, i);
    api_put_text_member(b, "name", call->name.data, call->name.len);
    buf_str(b, ", \"input\": ");
}

/* --- whole ------------------------------------------------------------------------------------ */

void anthropic_whole(struct buf *b, struct api_answer *a, const struct api_choice *c, int n) {
    const struct turn *t = c->turn;
    const char *comma = "";
    put_head(b, a);
    if (t->thinking.len) {
        buf_str(b, "{\"type\": \"thinking\", ");
        api_put_text_member(b, "thinking", t->thinking.data, t->thinking.len);
        buf_fmt(b, ", \"signature\": \"%s\"}", signature);
        comma = ", ";
    }
    if (t->text.len || (t->tool.len && !c->calls->n)) {
        buf_fmt(b, "%s{\"type\": \"text\", \"text\": ", comma);
        api_put_answer_text(b, c);
        buf_char(b, '}');
        comma = ", ";
    }
    for (size_t i = 0; i < c->calls->n; i++, comma = ", ") {
        buf_str(b, comma);
        put_call_head(b, a, &c->calls->v[i], i);
        buf_add(b, c->calls->v[i].arguments.data, c->calls->v[i].arguments.len);
        buf_char(b, '}');
    }
    buf_str(b, "], ");
    put_stop(b, c);
    buf_str(b, ", ");
    put_usage(b, t->stats.prompt_tokens, t->stats.cached_tokens, t->stats.answer_tokens);
    buf_str(b, "}\n");
}

/* --- streams ---------------------------------------------------------------------------------- */

void anthropic_begin(struct buf *b, struct api_answer *a) {
    api_put_event(b, "message_start");
    buf_str(b, ", \"message\": ");
    put_head(b, a);
    buf_str(b, "], \"stop_reason\": null, \"stop_sequence\": null, ");
    put_usage(b, a->n_prompt, 0, 0);
    buf_str(b, "}}\n\n");
}

static void put_block_event(struct buf *b, const struct api_answer *a, const char *name) {
    api_put_event(b, name);
    buf_fmt(b, ", \"index\": %d", a->n_blocks - 1);
}

static void put_delta(struct buf *b, const struct api_answer *a, const char *type, const char *member, const char *s,
                      size_t n) {
    put_block_event(b, a, "content_block_delta");
    buf_fmt(b, ", \"delta\": {\"type\": \"%s\", ", type);
    api_put_text_member(b, member, s, n);
    buf_str(b, "}}\n\n");
}

static void close_block(struct buf *b, struct api_answer *a) {
    if (!a->block_open) return;
    if (a->block == OUTPUT_THINKING) put_delta(b, a, "signature_delta", "signature", signature, sizeof signature - 1);
    put_block_event(b, a, "content_block_stop");
    buf_str(b, "}\n\n");
    a->block_open = false;
}

/* Begins a block, after closing another. */
static void open_block(struct buf *b, struct api_answer *a, enum output_kind kind) {
    close_block(b, a);
    a->block_open = true;
    a->block = kind;
    a->n_blocks++;
    put_block_event(b, a, "content_block_start");
    buf_str(b, ", \"content_block\": ");
}

void anthropic_delta(struct buf *b, struct api_answer *a, const struct api_choice *c, enum output_kind part,
                     const char *s, size_t n, size_t first_logprob) {
    const bool thinking = part == OUTPUT_THINKING;
    if (!a->block_open || a->block != part) {
        open_block(b, a, part);
        buf_str(b, thinking ? "{\"type\": \"thinking\", \"thinking\": \"\", \"signature\": \"\"}}\n\n"
                            : "{\"type\": \"text\", \"text\": \"\"}}\n\n");
    }
    put_delta(b, a, thinking ? "thinking_delta" : "text_delta", thinking ? "thinking" : "text", s, n);
}

void anthropic_call(struct buf *b, struct api_answer *a, const struct api_choice *c,
                    const struct api_call_piece *piece) {
    const struct buf *arguments = &piece->call->arguments;
    if (piece->begins) {
        open_block(b, a, OUTPUT_TOOL_CALL);
        put_call_head(b, a, piece->call, piece->index);
        buf_str(b, "{}}}\n\n");
    }
    if (arguments->len > piece->from)
        put_delta(b, a, "input_json_delta", "partial_json", arguments->data + piece->from,
                  arguments->len - piece->from);
    if (piece->ends) close_block(b, a);
}

void anthropic_finish(struct buf *b, struct api_answer *a, const struct api_choice *c) {
    const struct turn *t = c->turn;
    if (!c->calls->n && t->tool.len) anthropic_delta(b, a, c, OUTPUT_TEXT, t->tool.data, t->tool.len, SIZE_MAX);
    close_block(b, a);
}

void anthropic_end(struct buf *b, struct api_answer *a, const struct api_choice *c, int n) {
    const struct turn_stats *s = &c->turn->stats;
    api_put_event(b, "message_delta");
    buf_str(b, ", \"delta\": {");
    put_stop(b, c);
    buf_str(b, "}, ");
    put_usage(b, s->prompt_tokens, s->cached_tokens, s->answer_tokens);
    buf_str(b, "}\n\n");
    api_put_event(b, "message_stop");
    buf_str(b, "}\n\n");
}

/* --- errors ----------------------------------------------------------------------------------- */

static void put_error_member(struct buf *b, int status, const char *text) {
    static const struct {
        int status;
        const char *type;
    } types[] = {{401, "authentication_error"},
                 {403, "permission_error"},
                 {404, "not_found_error"},
                 {413, "request_too_large"},
                 {503, "overloaded_error"}};
    const char *type = status >= 500 ? "api_error" : "invalid_request_error";
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == status) type = types[i].type;
    buf_fmt(b, "\"error\": {\"type\": \"%s\", ", type);
    api_put_text_member(b, "message", text, strlen(text));
    buf_char(b, '}');
}

void anthropic_error(struct buf *b, int status, const char *code, const char *text) {
    buf_str(b, "{\"type\": \"error\", ");
    put_error_member(b, status, text);
    buf_str(b, "}\n");
}

void anthropic_fail(struct buf *b, struct api_answer *a, int status, const char *code, const char *text) {
    api_put_event(b, "error");
    buf_str(b, ", ");
    put_error_member(b, status, text);
    buf_str(b, "}\n\n");
}

#include "cli/server/openai.h"

#include <math.h>
#include <string.h>

#include "cli/terminal/out.h"

/* --- log probabilities ------------------------------------------------------------------------ */

static double shown_logprob(float p) { return p < -9999 || isnan(p) ? -9999.0 : (double)p; } /* JSON has no infinity */

/* Puts a token as text: invalid UTF-8 becomes U+FFFD. */
static void put_token_text(struct buf *b, const struct tokenizer *t, int32_t id) {
    struct buf text = {0};
    size_t n = 0;
    bool special;
    const char *s = tokenizer_token_bytes(t, id, &n, &special);
    out_utf8(&text, s ? s : "", s ? n : 0);
    out_json_string(b, text.data ? text.data : "", text.len);
    b->failed |= text.failed;
    buf_free(&text);
}

static void put_token(struct buf *b, const struct tokenizer *t, int32_t id, float logprob) {
    size_t n = 0;
    bool special;
    const char *s = tokenizer_token_bytes(t, id, &n, &special);
    buf_str(b, "{\"token\": ");
    put_token_text(b, t, id);
    buf_fmt(b, ", \"logprob\": %.7g, \"bytes\": [", shown_logprob(logprob));
    for (size_t i = 0; s && i < n; i++) buf_fmt(b, "%s%d", i ? ", " : "", (unsigned char)s[i]);
    buf_char(b, ']');
}

void openai_put_logprob(struct buf *b, const struct tokenizer *t, const struct turn_logprob *p) {
    put_token(b, t, p->id, p->probs.logprob);
    buf_str(b, ", \"top_logprobs\": [");
    for (int i = 0; i < p->probs.n_top; i++) {
        buf_str(b, i ? ", " : "");
        put_token(b, t, p->probs.top[i].id, p->probs.top[i].logprob);
        buf_char(b, '}');
    }
    buf_str(b, "]}");
}

static void put_chat_logprobs(struct buf *b, const struct api_answer *a, const struct turn *t, size_t from) {
    if (!a->request->logprobs) return;
    const size_t n_logprobs = turn_shown_logprobs(t);
    buf_str(b, "\"logprobs\": {\"content\": [");
    for (size_t i = from; i < n_logprobs; i++) {
        buf_str(b, i > from ? ", " : "");
        openai_put_logprob(b, a->tokenizer, &t->logprobs[i]);
    }
    buf_str(b, "], \"refusal\": null}, ");
}

/* The older form: parallel lists. Offsets are characters of the answer. */
static void put_text_logprobs(struct buf *b, const struct api_answer *a, const struct turn *t, size_t from) {
    const size_t n_logprobs = turn_shown_logprobs(t);
    size_t offset = 0;
    if (!a->request->logprobs) {
        buf_str(b, "\"logprobs\": null, ");
        return;
    }
    buf_str(b, "\"logprobs\": {\"tokens\": [");
    for (size_t i = from; i < n_logprobs; i++) {
        buf_str(b, i > from ? ", " : "");
        put_token_text(b, a->tokenizer, t->logprobs[i].id);
    }
    buf_str(b, "], \"token_logprobs\": [");
    for (size_t i = from; i < n_logprobs; i++)
        buf_fmt(b, "%s%.7g", i > from ? ", " : "", shown_logprob(t->logprobs[i].probs.logprob));
    buf_str(b, "], \"top_logprobs\": [");
    for (size_t i = from; i < n_logprobs; i++) {
        const struct token_logprobs *p = &t->logprobs[i].probs;
        buf_str(b, i > from ? ", {" : "{");
        for (int k = 0; k < p->n_top; k++) {
            buf_str(b, k ? ", " : "");
            put_token_text(b, a->tokenizer, p->top[k].id);
            buf_fmt(b, ": %.7g", shown_logprob(p->top[k].logprob));
        }
        buf_char(b, '}');
    }
    buf_str(b, "], \"text_offset\": [");
    for (size_t i = 0; i < n_logprobs; i++) {
        size_t n = 0;
        bool special;
        const char *s = tokenizer_token_bytes(a->tokenizer, t->logprobs[i].id, &n, &special);
        if (i >= from) buf_fmt(b, "%s%zu", i > from ? ", " : "", offset);
        for (size_t k = 0; s && k < n; k++) offset += ((unsigned char)s[k] & 0xC0) != 0x80;
    }
    buf_str(b, "]}, ");
}

/* --- parts ------------------------------------------------------------------------------------ */

static void put_head(struct buf *b, const struct api_answer *a, const char *object) {
    buf_fmt(b, "{\"id\": \"%s\", \"object\": \"%s\", \"created\": %lld, ", a->id, object, a->created);
    api_put_text_member(b, "model", a->model, strlen(a->model));
}

static const char *finish_reason(const struct api_choice *c) {
    return api_is_cut(c->turn) ? "length" : c->calls->n ? "tool_calls" : "stop";
}
static void put_reason(struct buf *b, const struct api_choice *ended) {
    if (ended) buf_fmt(b, "\"finish_reason\": \"%s\"", finish_reason(ended));
    else buf_str(b, "\"finish_reason\": null");
}

/* Puts the members of a call up to its arguments. */
static void put_call_head(struct buf *b, const struct api_answer *a, const struct api_choice *c,
                          const struct tool_call *call, size_t i) {
    buf_fmt(b, "\"id\": \"call_%s_%d_%zu\", \"type\": \"function\", \"function\": {", a->code, c->index, i);
    api_put_text_member(b, "name", call->name.data, call->name.len);
    buf_str(b, ", ");
}

static void put_calls(struct buf *b, const struct api_answer *a, const struct api_choice *c) {
    buf_str(b, "\"tool_calls\": [");
    for (size_t i = 0; i < c->calls->n; i++) {
        const struct tool_call *call = &c->calls->v[i];
        buf_str(b, i ? ", {" : "{");
        put_call_head(b, a, c, call, i);
        api_put_text_member(b, "arguments", call->arguments.data, call->arguments.len);
        buf_str(b, "}}");
    }
    buf_char(b, ']');
}

/* The reasons for the modes, and what they were expected to take. */
static void put_why(struct buf *b, const struct turn_stats *s) {
    buf_str(b, ", ");
    api_put_text_member(b, "why", s->prefill_why, strlen(s->prefill_why));
    buf_str(b, ", ");
    api_put_text_member(b, "decode_why", s->decode_why, strlen(s->decode_why));
    buf_fmt(b, ", \"prefill_expected_s\": %.6f, \"step_expected_s\": %.6f, \"step_s\": %.6f", s->prefill_expected_s,
            s->batch_expected_s, s->batch_s);
}

void openai_put_usage(struct buf *b, const struct api_answer *a, const struct api_choice *c, int n) {
    const struct turn_stats *s = &c->turn->stats;
    int prompt = 0, cached = 0, answer = 0, thinking = 0;
    for (int i = 0; i < n; i++) answer += c[i].turn->stats.answer_tokens, thinking += c[i].turn->n_thinking;
    for (int i = 0; i < n; i += a->request->n) /* the first answer to each prompt */
        prompt += c[i].turn->stats.prompt_tokens, cached += c[i].turn->stats.cached_tokens;
    buf_fmt(
        b,
        "\"usage\": {\"prompt_tokens\": %d, \"completion_tokens\": %d, \"total_tokens\": %d, "
        "\"prompt_tokens_details\": {\"cached_tokens\": %d}, "
        "\"completion_tokens_details\": {\"reasoning_tokens\": %d}}, \"timings\": {\"reason\": \"%s\", \"timing\": ",
        prompt, answer, prompt + answer, cached, thinking, turn_reason_name(c->turn->reason));
    turn_json_timing(c->turn, b);
    if (a->request->explain) put_why(b, s);
    buf_char(b, '}');
}

/* --- chats ------------------------------------------------------------------------------------ */

/* Puts a chunk of a stream. delta: members of the delta object. */
static void put_chunk(struct buf *b, const struct api_answer *a, const struct api_choice *c, const char *delta,
                      size_t n, size_t logprobs, bool ended) {
    buf_str(b, "data: ");
    put_head(b, a, "chat.completion.chunk");
    buf_fmt(b, ", \"choices\": [{\"index\": %d, \"delta\": {", c->index);
    buf_add(b, delta, n);
    buf_str(b, "}, ");
    if (logprobs < turn_shown_logprobs(c->turn)) put_chat_logprobs(b, a, c->turn, logprobs);
    put_reason(b, ended ? c : NULL);
    buf_str(b, "}]}\n\n");
}

void openai_begin(struct buf *b, struct api_answer *a) {
    static const struct turn none = {0};
    static const char role[] = "\"role\": \"assistant\", \"content\": \"\"";
    for (int i = 0; i < a->request->n; i++)
        put_chunk(b, a, &(struct api_choice){.turn = &none, .index = i}, role, sizeof role - 1, 0, false);
}

static void put_part(struct buf *b, enum output_kind part, const char *s, size_t n) {
    api_put_text_member(b,
                        part == OUTPUT_THINKING    ? "reasoning_content"
                        : part == OUTPUT_TOOL_CALL ? "tool"
                                                   : "content",
                        s, n);
}

void openai_chat_delta(struct buf *b, struct api_answer *a, const struct api_choice *c, enum output_kind part,
                       const char *s, size_t n, size_t first_logprob) {
    struct buf delta = {0};
    put_part(&delta, part, s, n);
    put_chunk(b, a, c, delta.data, delta.len, first_logprob, false);
    b->failed |= delta.failed;
    buf_free(&delta);
}

void openai_chat_call(struct buf *b, struct api_answer *a, const struct api_choice *c,
                      const struct api_call_piece *piece) {
    const struct buf *arguments = &piece->call->arguments;
    const size_t n = arguments->len - piece->from;
    for (int part = !piece->begins; part < 1 + (n > 0); part++) { /* the head, the arguments */
        struct buf delta = {0};
        buf_fmt(&delta, "\"tool_calls\": [{\"index\": %zu, ", piece->index);
        if (!part) put_call_head(&delta, a, c, piece->call, piece->index);
        else buf_str(&delta, "\"function\": {");
        api_put_text_member(&delta, "arguments", part ? arguments->data + piece->from : "", part ? n : 0);
        buf_str(&delta, "}}]");
        put_chunk(b, a, c, delta.data, delta.len, SIZE_MAX, false);
        b->failed |= delta.failed;
        buf_free(&delta);
    }
}

void openai_chat_finish(struct buf *b, struct api_answer *a, const struct api_choice *c) {
    struct buf delta = {0};
    const size_t none = SIZE_MAX;
    if (!c->calls->n && c->turn->tool.len && !a->request->markup)
        put_part(&delta, OUTPUT_TEXT, c->turn->tool.data, c->turn->tool.len);
    if (delta.len) put_chunk(b, a, c, delta.data, delta.len, none, false);
    put_chunk(b, a, c, "", 0, none, true);
    b->failed |= delta.failed;
    buf_free(&delta);
}

/* The usage chunk precedes [DONE] and has no choices. */
static void put_end(struct buf *b, const struct api_answer *a, const struct api_choice *c, int n, const char *object) {
    if (a->request->usage) {
        buf_str(b, "data: ");
        put_head(b, a, object);
        buf_str(b, ", \"choices\": [], ");
        openai_put_usage(b, a, c, n);
        buf_str(b, "}\n\n");
    }
    buf_str(b, "data: [DONE]\n\n");
}
void openai_chat_end(struct buf *b, struct api_answer *a, const struct api_choice *c, int n) {
    put_end(b, a, c, n, "chat.completion.chunk");
}

static void put_message(struct buf *b, const struct api_answer *a, const struct api_choice *c) {
    const struct turn *t = c->turn;
    buf_str(b, "{\"role\": \"assistant\", \"content\": ");
    if (c->calls->n && !t->text.len) buf_str(b, "null");
    else api_put_answer_text(b, c);
    if (t->thinking.len) {
        buf_str(b, ", ");
        put_part(b, OUTPUT_THINKING, t->thinking.data, t->thinking.len);
    }
    if (c->calls->n) {
        buf_str(b, ", ");
        put_calls(b, a, c);
    }
    buf_char(b, '}');
}

void openai_chat_whole(struct buf *b, struct api_answer *a, const struct api_choice *c, int n) {
    put_head(b, a, "chat.completion");
    buf_str(b, ", \"choices\": [");
    for (int i = 0; i < n; i++) {
        buf_fmt(b, "%s{\"index\": %d, \"message\": ", i ? ", " : "", i);
        put_message(b, a, &c[i]);
        buf_str(b, ", ");
        put_chat_logprobs(b, a, c[i].turn, 0);
        put_reason(b, &c[i]);
        buf_char(b, '}');
    }
    buf_str(b, "], ");
    openai_put_usage(b, a, c, n);
    buf_str(b, "}\n");
}

/* --- text completions ------------------------------------------------------------------------- */

static void put_text_choice(struct buf *b, const struct api_answer *a, const struct api_choice *c, const char *s,
                            size_t n, size_t logprobs, bool ended) {
    buf_fmt(b, "{\"index\": %d, ", c->index);
    api_put_text_member(b, "text", s, n);
    buf_str(b, ", ");
    put_text_logprobs(b, a, c->turn, logprobs);
    put_reason(b, ended ? c : NULL);
    buf_char(b, '}');
}

static void put_text_chunk(struct buf *b, const struct api_answer *a, const struct api_choice *c, const char *s,
                           size_t n, size_t logprobs, bool ended) {
    buf_str(b, "data: ");
    put_head(b, a, "text_completion");
    buf_str(b, ", \"choices\": [");
    put_text_choice(b, a, c, s, n, logprobs, ended);
    buf_str(b, "]}\n\n");
}

void openai_text_begin(struct buf *b, struct api_answer *a) {}
void openai_text_delta(struct buf *b, struct api_answer *a, const struct api_choice *c, enum output_kind part,
                       const char *s, size_t n, size_t first_logprob) {
    put_text_chunk(b, a, c, s, n, first_logprob, false);
}
void openai_text_finish(struct buf *b, struct api_answer *a, const struct api_choice *c) {
    put_text_chunk(b, a, c, "", 0, SIZE_MAX, true);
}
void openai_text_end(struct buf *b, struct api_answer *a, const struct api_choice *c, int n) {
    put_end(b, a, c, n, "text_completion");
}

void openai_text_whole(struct buf *b, struct api_answer *a, const struct api_choice *c, int n) {
    put_head(b, a, "text_completion");
    buf_str(b, ", \"choices\": [");
    for (int i = 0; i < n; i++) {
        buf_str(b, i ? ", " : "");
        put_text_choice(b, a, &c[i], c[i].turn->text.data, c[i].turn->text.len, 0, true);
    }
    buf_str(b, "], ");
    openai_put_usage(b, a, c, n);
    buf_str(b, "}\n");
}

/* --- errors ----------------------------------------------------------------------------------- */

void openai_error(struct buf *b, int status, const char *code, const char *text) {
    buf_str(b, "{\"error\": {");
    api_put_text_member(b, "message", text, strlen(text));
    buf_fmt(b, ", \"type\": \"%s\", \"param\": null, \"code\": ",
            status == 401 || status == 403 ? "authentication_error"
            : status >= 500                ? "server_error"
                                           : "invalid_request_error");
    if (code) out_json_string(b, code, strlen(code));
    else buf_str(b, "null");
    buf_str(b, "}}");
}

void openai_fail(struct buf *b, struct api_answer *a, int status, const char *code, const char *text) {
    buf_str(b, "data: ");
    openai_error(b, status, code, text);
    buf_str(b, "\n\n");
}

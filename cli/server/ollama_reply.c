#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/app.h"
#include "cli/server/ollama.h"
#include "cli/server/openai.h"
#include "cli/terminal/out.h"

static void put_time(struct buf *b, const char *name, long long at) {
    const time_t t = (time_t)at;
    struct tm tm = {0};
    char text[40];
    gmtime_r(&t, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S.000000Z", &tm);
    buf_fmt(b, "\"%s\": \"%s\"", name, text);
}

/* --- answers ---------------------------------------------------------------------------------- */

static bool is_chat(const struct api_answer *a) { return a->protocol == &ollama_chat; }

/* Begins an object and its message. put_end() ends both. */
static void put_head(struct buf *b, const struct api_answer *a) {
    buf_char(b, '{');
    api_put_text_member(b, "model", a->model, strlen(a->model));
    buf_str(b, ", ");
    put_time(b, "created_at", a->created);
    buf_str(b, is_chat(a) ? ", \"message\": {\"role\": \"assistant\", " : ", ");
}
static void put_end(struct buf *b, const struct api_answer *a, bool done) {
    buf_fmt(b, "%s, \"done\": %s", is_chat(a) ? "}" : "", done ? "true" : "false");
}
static const char *text_name(const struct api_answer *a) { return is_chat(a) ? "content" : "response"; }

/* Puts JSON text as the model wrote it, but on one line: an object of a stream is a line. */
static void put_line(struct buf *b, const char *json, size_t n) {
    for (size_t i = 0; i < n; i++) buf_char(b, json[i] == '\n' || json[i] == '\r' ? ' ' : json[i]);
}

static void put_calls(struct buf *b, const struct api_answer *a, const struct api_choice *c) {
    buf_str(b, ", \"tool_calls\": [");
    for (size_t i = 0; i < c->calls->n; i++) {
        const struct tool_call *call = &c->calls->v[i];
        buf_fmt(b, "%s{\"id\": \"call_%s_%zu\", \"function\": {\"index\": %zu, ", i ? ", " : "", a->code, i, i);
        api_put_text_member(b, "name", call->name.data, call->name.len);
        buf_str(b, ", \"arguments\": ");
        put_line(b, call->arguments.data, call->arguments.len);
        buf_str(b, "}}");
    }
    buf_char(b, ']');
}

static void put_logprobs(struct buf *b, const struct api_answer *a, const struct turn *t, size_t from) {
    const size_t n_logprobs = turn_shown_logprobs(t);
    if (!a->request->logprobs || from >= n_logprobs) return;
    buf_str(b, ", \"logprobs\": [");
    for (size_t i = from; i < n_logprobs; i++) {
        buf_str(b, i > from ? ", " : "");
        openai_put_logprob(b, a->tokenizer, &t->logprobs[i]);
    }
    buf_char(b, ']');
}

/* The members of the last object: why the answer ended, tokens and nanoseconds. */
static void put_statistics(struct buf *b, const struct turn *t) {
    const struct turn_stats *s = &t->stats;
    const double ns = 1e9;
    buf_fmt(b,
            ", \"done_reason\": \"%s\", \"total_duration\": %.0f, \"load_duration\": 0, \"prompt_eval_count\": %d, "
            "\"prompt_eval_duration\": %.0f, "
            "\"eval_count\": %d, "
            "\"eval_duration\": %.0f}\n",
            api_is_cut(t) ? "length" : "stop", (s->ttft_s + s->decode_s) * ns, s->prompt_tokens, s->prefill_s * ns,
            s->answer_tokens, s->decode_s * ns);
}

void ollama_begin(struct buf *b, struct api_answer *a) {}

void ollama_delta(struct buf *b, struct api_answer *a, const struct api_choice *c, enum output_kind part, const char *s,
                  size_t n, size_t first_logprob) {
    const bool thinking = part == OUTPUT_THINKING;
    put_head(b, a);
    api_put_text_member(b, text_name(a), thinking ? "" : s, thinking ? 0 : n);
    if (thinking) {
        buf_str(b, ", ");
        api_put_text_member(b, "thinking", s, n);
    }
    put_end(b, a, false);
    put_logprobs(b, a, c->turn, first_logprob);
    buf_str(b, "}\n");
}

void ollama_finish(struct buf *b, struct api_answer *a, const struct api_choice *c) {
    const struct buf *markup = &c->turn->tool;
    if (!c->calls->n && markup->len) ollama_delta(b, a, c, OUTPUT_TEXT, markup->data, markup->len, SIZE_MAX);
    if (!c->calls->n) return;
    put_head(b, a);
    buf_str(b, "\"content\": \"\"");
    put_calls(b, a, c);
    put_end(b, a, false);
    buf_str(b, "}\n");
}

void ollama_end(struct buf *b, struct api_answer *a, const struct api_choice *c, int n) {
    put_head(b, a);
    api_put_text_member(b, text_name(a), "", 0);
    put_end(b, a, true);
    put_statistics(b, c->turn);
}

void ollama_whole(struct buf *b, struct api_answer *a, const struct api_choice *c, int n) {
    const struct turn *t = c->turn;
    put_head(b, a);
    buf_fmt(b, "\"%s\": ", text_name(a));
    api_put_answer_text(b, c);
    if (t->thinking.len) {
        buf_str(b, ", ");
        api_put_text_member(b, "thinking", t->thinking.data, t->thinking.len);
    }
    if (c->calls->n) put_calls(b, a, c);
    put_end(b, a, true);
    put_logprobs(b, a, t, 0);
    put_statistics(b, t);
}

void ollama_put_loaded(struct buf *b, struct api_answer *a) {
    put_head(b, a);
    api_put_text_member(b, text_name(a), "", 0);
    put_end(b, a, true);
    buf_fmt(b, ", \"done_reason\": \"%s\"}\n", a->is_unloaded ? "unload" : "load");
}

void ollama_error(struct buf *b, int status, const char *code, const char *text) {
    buf_char(b, '{');
    api_put_text_member(b, "error", text, strlen(text));
    buf_str(b, "}\n");
}
void ollama_fail(struct buf *b, struct api_answer *a, int status, const char *code, const char *text) {
    ollama_error(b, status, code, text);
}

/* --- models ----------------------------------------------------------------------------------- */

static void put_family(const char *family, struct buf *b) {
    buf_str(b, "\"details\": {\"parent_model\": \"\", \"format\": \"\", ");
    api_put_text_member(b, "family", family, strlen(family));
    buf_str(b, ", \"families\": [");
    out_json_string(b, family, strlen(family));
    buf_str(b, "], \"parameter_size\": \"\", \"quantization_level\": \"\"}");
}

void ollama_put_model(const struct ollama_model *m, struct buf *b) {
    buf_char(b, '{');
    api_put_text_member(b, "name", m->name, strlen(m->name));
    buf_str(b, ", ");
    api_put_text_member(b, "model", m->name, strlen(m->name));
    buf_str(b, ", ");
    put_time(b, "modified_at", m->changed_at);
    if (m->expires_at) {
        buf_str(b, ", ");
        put_time(b, "expires_at", m->expires_at);
    }
    if (m->context) buf_fmt(b, ", \"context_length\": %d", m->context);
    /* members that clients require: Zed a size, and others what /api/ps adds */
    buf_fmt(b, ", \"size\": %llu, \"size_vram\": 0, \"digest\": \"%016llx\", ", (unsigned long long)m->bytes,
            (unsigned long long)m->digest);
    put_family(m->family, b);
    buf_char(b, '}');
}

static bool has_thinking(const struct dialect_set *s) {
    bool any = s->headers != NULL;
    for (size_t i = 0; s->active[i]; i++) any |= s->active[i]->kind == OUTPUT_THINKING;
    return any;
}

void ollama_put_details(const struct app *a, struct buf *b) {
    const struct engine_info *i = a->info;
    const char *type = i->model_type;
    buf_str(b, "{\"modelfile\": \"\", \"parameters\": \"\", \"template\": \"\", ");
    put_family(type, b);
    buf_str(b, ", \"model_info\": {");
    api_put_text_member(b, "general.architecture", type, strlen(type));
    buf_str(b, ", ");
    api_put_text_member(b, "general.basename", i->name, strlen(i->name));
    const struct {
        const char *name;
        int value;
    } numbers[] = {{"context_length", i->context},
                   {"embedding_length", i->hidden},
                   {"block_count", i->n_layers},
                   {"expert_count", i->n_experts},
                   {"expert_used_count", i->topk}};
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
        char name[100];
        snprintf(name, sizeof name, "%.60s.%s", type, numbers[k].name);
        buf_str(b, ", ");
        out_json_string(b, name, strlen(name));
        buf_fmt(b, ": %d", numbers[k].value);
    }
    buf_fmt(b, "}, \"capabilities\": [\"completion\"%s%s%s]}\n", i->no_images ? "" : ", \"vision\"",
            a->template && chat_template_takes_tools(a->template) ? ", \"tools\"" : "",
            a->template && has_thinking(chat_template_dialects(a->template)) ? ", \"thinking\"" : "");
}

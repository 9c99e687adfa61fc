/* A tokenizer, template and output parser without files, for the fake engine. Tokens are bytes. */
#include "test/e2e/fake_text.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "tokenizer/chat/chat_template.h"

struct tokenizer {
    int unused;
};
int tokenizer_open(struct tokenizer **t, const char *dir, struct error *e) {
    *t = mem_calloc(1, sizeof **t);
    return *t ? 0 : error_set(e, ERR_MEMORY, "no memory");
}
void tokenizer_close(struct tokenizer **t) {
    mem_free(*t);
    *t = NULL;
}
int tokenizer_n_ids(const struct tokenizer *t) { return VOCAB; }
const char *tokenizer_token_bytes(const struct tokenizer *t, int32_t id, size_t *n, bool *special) {
    static char bytes[256];
    static const char *const names[] = {"<eos>", "<think>", "</think>", "<tool_call>", "</tool_call>"};
    *special = id >= EOS;
    *n = id < EOS ? 1 : strlen(names[id - EOS]);
    if (id >= EOS) return names[id - EOS];
    bytes[id] = (char)id;
    return &bytes[id];
}
int32_t tokenizer_added_id(const struct tokenizer *t, const char *piece) { return -1; }
int32_t tokenizer_bos(const struct tokenizer *t) { return -1; }
int32_t tokenizer_eos(const struct tokenizer *t) { return -1; }
bool tokenizer_strips_start(const struct tokenizer *t) { return false; }
bool tokenizer_joins_with_space(const struct tokenizer *t) { return false; }
void text_free(struct text *t) {
    mem_free(t->data);
    mem_free(t->runs);
}
void ids_free(struct ids *ids) {
    mem_free(ids->data);
    *ids = (struct ids){0};
}
int tokenizer_encode(const struct tokenizer *t, const char *data, size_t n, enum text_origin origin, struct ids *out,
                     struct error *e) {
    if (mem_grow(&out->data, &out->cap, out->n + n, sizeof *out->data)) return error_set(e, ERR_MEMORY, "no memory");
    for (size_t i = 0; i < n; i++) out->data[out->n++] = (unsigned char)data[i];
    return 0;
}
int tokenizer_encode_text(const struct tokenizer *t, const struct text *text, struct ids *out, struct error *e) {
    return tokenizer_encode(t, text->data, text->n, TEXT_TEMPLATE, out, e);
}
/* Holds back the bytes of an unfinished character. */
int decoder_add(struct decoder *d, int32_t id, struct buf *out) {
    unsigned char first = (unsigned char)(d->n_held ? d->held[0] : id);
    int want = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
    d->held[d->n_held++] = (char)id;
    return d->n_held < want ? 0 : decoder_flush(d, out);
}
int decoder_flush(struct decoder *d, struct buf *out) {
    int rc = buf_add(out, d->held, d->n_held);
    d->n_held = 0;
    return rc;
}

struct chat_template {
    int unused;
};
int chat_template_open(struct chat_template **c, const char *dir, const char *file, struct error *e) {
    *c = mem_calloc(1, sizeof **c);
    return *c ? 0 : error_set(e, ERR_MEMORY, "no memory");
}
void chat_template_close(struct chat_template **c) {
    mem_free(*c);
    *c = NULL;
}
uint64_t chat_template_hash(const struct chat_template *c) { return 42; }
int chat_template_end(const struct chat_template *c, const struct tokenizer *t, int32_t *id, struct error *e) {
    return *id = -1, 0;
}
int chat_template_render_prompt(const struct chat_template *c, const struct json *conv, struct text *out,
                                struct error *e) {
    struct buf b = {0};
    const struct json *list = json_get(conv, "messages");
    const bool shows_calls = getenv("FAKE_SHOWS_CALLS") != NULL, shows_thinking = getenv("FAKE_SHOWS_THINKING") != NULL;
    for (uint32_t i = 0; list && i < list->n; i++) {
        const struct json *role = json_get(&list->items[i], "role"), *text = json_get(&list->items[i], "content");
        buf_char(&b, 1);
        buf_add(&b, role->string, role->n);
        buf_char(&b, 2);
        const struct json *thinking = shows_thinking ? json_get(&list->items[i], "reasoning_content") : NULL;
        if (thinking) buf_fmt(&b, "(%.*s)", (int)thinking->n, thinking->string);
        if (text->type == JSON_STRING) buf_add(&b, text->string, text->n);
        for (const struct json *calls = shows_calls ? json_get(&list->items[i], "tool_calls") : NULL,
                               *k = calls ? calls->items : NULL;
             k && k < calls->items + calls->n; k++)
            json_write(&b, k);
        if (shows_calls && json_is(role, "tool")) json_write(&b, json_get(&list->items[i], "tool_call_id"));
    }
    for (uint32_t i = 0; getenv("FAKE_SHOWS_VARS") && i < conv->n; i++) { /* what options give the template */
        const struct json *key = &conv->items[2 * i];
        if (json_is(key, "messages") || json_is(key, "tools") || json_is(key, "add_generation_prompt")) continue;
        buf_fmt(&b, "<%.*s=", (int)key->n, key->string);
        json_write(&b, key + 1);
        buf_char(&b, '>');
    }
    buf_fmt(&b, "%cassistant%c", 1, 2);
    if (b.failed) {
        buf_free(&b);
        return error_set(e, ERR_MEMORY, "no memory");
    }
    *out = (struct text){.data = b.data, .n = b.len};
    return 0;
}
int chat_template_render(const struct chat_template *c, const struct json *conv, struct text *out, struct error *e) {
    return chat_template_render_prompt(c, conv, out, e);
}
bool chat_template_takes_tools(const struct chat_template *c) { return !getenv("FAKE_NO_TOOLS"); }
bool chat_template_mentions(const struct chat_template *c, const char *word, size_t n) {
    const char *more = getenv("FAKE_MENTIONS");
    return (n == 8 && !memcmp(word, "narrator", n)) || (more && memmem(more, strlen(more), word, n));
}
bool chat_template_reads(const struct chat_template *c, const char *variable) {
    return chat_template_mentions(c, variable, strlen(variable));
}
const struct dialect_set *chat_template_dialects(const struct chat_template *c) {
    static const struct dialect_set none;
    return &none;
}
struct output_parser {
    bool thinking, call;
};
struct output_parser *output_parser_open(const struct chat_template *c, const char *tail, size_t n) {
    return mem_calloc(1, sizeof(struct output_parser));
}
void output_parser_close(struct output_parser **p) {
    mem_free(*p);
    *p = NULL;
}
int output_parser_feed(struct output_parser *p, const char *data, size_t n, bool special, output_parser_fn fn,
                       void *ctx) {
    if (!special) return fn(ctx, p->call ? OUTPUT_TOOL_CALL : p->thinking ? OUTPUT_THINKING : OUTPUT_TEXT, data, n);
    if (!strncmp(data, "<think>", n)) p->thinking = true;
    if (!strncmp(data, "</think>", n)) p->thinking = false;
    if (!strncmp(data, "<tool_call>", n)) p->call = true;
    const int rc = p->call ? fn(ctx, OUTPUT_TOOL_CALL, data, n) : 0;
    if (!strncmp(data, "</tool_call>", n)) p->call = false;
    return rc;
}
int output_parser_flush(struct output_parser *p, output_parser_fn fn, void *ctx) { return 0; }
bool output_parser_is_empty(const struct output_parser *p) { return true; }
bool output_parser_in_answer(const struct output_parser *p) { return true; }
bool output_parser_in_header(const struct output_parser *p) { return false; }

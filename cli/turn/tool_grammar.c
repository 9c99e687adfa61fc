#include "cli/turn/tool_grammar.h"

#include <string.h>

#include "base/buf.h"

enum { MAX_CALLS = 16, MAX_MARKER = 63 };

/* Returns the longest added token in brackets at the beginning of s, or -1, and its size. Brackets may be other than
 * ASCII. */
static int32_t marker_at(const struct tokenizer *t, const char *s, size_t *n) {
    char name[MAX_MARKER + 1];
    for (*n = *s == '<' || *s == '[' || (unsigned char)*s >= 0x80 ? strnlen(s, MAX_MARKER) : 0; *n > 2; --*n) {
        memcpy(name, s, *n);
        name[*n] = 0;
        const int32_t id = tokenizer_added_id(t, name);
        if (id >= 0) return id;
    }
    return -1;
}

/* Puts text as a list of texts and of the ids of markers, which models write as one token. */
static void put_parts(struct buf *b, const struct tokenizer *t, const char *s) {
    const char *from = s, *comma = "[";
    size_t n = 0;
    for (;; s += n) {
        const int32_t id = *s ? marker_at(t, s, &n) : -1;
        if (*s && id < 0) n = 1;
        else if (s > from) {
            buf_str(b, comma);
            json_quote(b, from, (size_t)(s - from));
            comma = ", ";
        }
        if (!*s) break;
        if (id < 0) continue;
        buf_fmt(b, "%s%d", comma, id);
        comma = ", ";
        from = s + n;
    }
    buf_str(b, *comma == '[' ? "[]" : "]");
}

/* Puts the tags of text as strings, until there are three. */
static void put_tags(struct buf *b, const char *text, int *n) {
    for (const char *tag; *n < 3 && (tag = strchr(text, '<')); ++*n) {
        text = tag + strcspn(tag, ">") + 1;
        if (*n) buf_str(b, ", ");
        json_quote(b, tag, (size_t)(text - tag));
    }
}

static void put_format(struct buf *b, const struct tokenizer *t, const char *const *format) {
    static const char *const names[N_FORMAT] = {
        "open",    "close",      "before_name", "after_name",  "after_arguments",
        "between", "before_key", "before_text", "before_json", "after_value"};
    for (size_t i = 0; i < N_FORMAT; i++) {
        if (!format[i]) continue;
        buf_fmt(b, "%s\"%s\": ", i ? ", " : "", names[i]);
        put_parts(b, t, format[i]);
    }
    if (!format[FORMAT_BEFORE_KEY]) return;
    int n = 0;
    buf_str(b, ", \"ends\": [");
    put_tags(b, format[FORMAT_AFTER_VALUE], &n);
    put_tags(b, format[FORMAT_AFTER_ARGUMENTS], &n);
    put_tags(b, format[FORMAT_CLOSE], &n);
    buf_char(b, ']');
}

/* Puts the functions of the tools that may be called. */
static void put_tools(struct buf *b, const struct tool_request *q) {
    const char *comma = "";
    for (uint32_t i = 0; i < q->tools->n; i++) {
        const struct json *f = json_get(&q->tools->items[i], "function"), *name = json_get(f, "name"),
                          *parameters = json_get(f, "parameters");
        if (q->name && (!name || name->type != JSON_STRING || name->n != q->name->n ||
                        memcmp(name->string, q->name->string, name->n) != 0))
            continue;
        buf_fmt(b, "%s{\"name\": ", comma);
        if (name) json_write(b, name);
        else buf_str(b, "null");
        if (parameters && parameters->type != JSON_NULL) {
            buf_str(b, ", \"parameters\": ");
            json_write(b, parameters);
        }
        buf_char(b, '}');
        comma = ", ";
    }
}

int tool_grammar_make(struct arena *a, const struct chat_template *c, const struct tokenizer *t,
                      const struct tool_request *q, struct grammar_source *out, struct error *e) {
    const struct dialect *d = chat_template_dialects(c)->forced;
    struct buf b = {0};
    if (!d) return error_set(e, ERR_USAGE, "this model's calls have a form that cannot be required; use auto");
    buf_str(&b, "{\"format\": {");
    put_format(&b, t, d->format);
    buf_fmt(&b, "}, \"most\": %d, \"tools\": [", q->is_single || q->name || d->is_single ? 1 : MAX_CALLS);
    put_tools(&b, q);
    buf_char(&b, ']');
    if (q->text) {
        buf_fmt(&b, ", \"kind\": %d, \"text\": ", q->text->kind);
        json_quote(&b, q->text->text, q->text->n);
    }
    buf_char(&b, '}');
    const char *text = b.failed ? NULL : arena_strndup(a, b.data, b.len);
    *out =
        (struct grammar_source){.kind = q->text ? SOURCE_TEXT_OR_CALLS : SOURCE_TOOL_CALLS, .text = text, .n = b.len};
    buf_free(&b);
    return text ? 0 : error_set(e, ERR_MEMORY, "no memory");
}

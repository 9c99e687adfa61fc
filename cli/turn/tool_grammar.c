#include "cli/turn/tool_grammar.h"

#include <string.h>

#include "base/buf.h"
#include "tokenizer/chat/tool_format.h"

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

static void put_format(struct buf *b, const struct tokenizer *t, const struct tool_format *f) {
    const char *const members[][2] = {{"open", f->open},
                                      {"close", f->close},
                                      {"before_name", f->before_name},
                                      {"after_name", f->after_name},
                                      {"after_arguments", f->after_arguments},
                                      {"between", f->between},
                                      {"before_key", f->before_key},
                                      {"before_text", f->before_text},
                                      {"before_json", f->before_json},
                                      {"after_value", f->after_value}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        if (!members[i][1]) continue;
        buf_fmt(b, "%s\"%s\": ", i ? ", " : "", members[i][0]);
        put_parts(b, t, members[i][1]);
    }
    if (!f->before_key) return;
    buf_str(b, ", \"ends\": [");
    for (size_t i = 0; i < 3 && f->ends[i]; i++) {
        if (i) buf_str(b, ", ");
        json_quote(b, f->ends[i], strlen(f->ends[i]));
    }
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
    const struct tool_format *f = tool_format_find(c);
    struct grammar *g;
    struct buf b = {0};
    if (!f) return error_set(e, ERR_USAGE, "this model's calls have a form that cannot be required; use auto");
    buf_str(&b, "{\"format\": {");
    put_format(&b, t, f);
    buf_fmt(&b, "}, \"most\": %d, \"tools\": [", q->is_single || q->name || f->is_single ? 1 : MAX_CALLS);
    put_tools(&b, q);
    buf_str(&b, "]}");
    const char *text = b.failed ? NULL : arena_strndup(a, b.data, b.len);
    *out = (struct grammar_source){.kind = SOURCE_TOOL_CALLS, .text = text, .n = b.len};
    buf_free(&b);
    if (!text) return error_set(e, ERR_MEMORY, "no memory");
    TRY(source_compile(out, &g, e));
    grammar_free(&g);
    return 0;
}

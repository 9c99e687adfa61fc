#include "cli/turn/tool_grammar.h"

#include <string.h>

#include "engine/base/buf.h"
#include "tokenizer/chat/tool_format.h"

enum { MOST_CALLS = 16 };

/* Returns the first control token in the format's text: grammars produce text, never control tokens. */
static const char *find_control_token(const struct tokenizer *t, const struct tool_format *f, size_t *n) {
    const char *const parts[] = {f->open, f->close, f->before_name, f->after_name, f->after_arguments, f->between};
    for (int32_t id = 0; id < tokenizer_n_ids(t); id++) {
        bool special = false;
        const char *s = tokenizer_token_bytes(t, id, n, &special);
        for (size_t i = 0; s && special && *n && i < sizeof parts / sizeof *parts; i++)
            if (memmem(parts[i], strlen(parts[i]), s, *n)) return s;
    }
    return NULL;
}

static void put_format(struct buf *b, const struct tool_format *f) {
    const char *const members[][2] = {
        {"open", f->open},      {"close", f->close}, {"before_name", f->before_name}, {"after_name", f->after_name}, {"after_arguments", f->after_arguments},
        {"between", f->between}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        buf_fmt(b, "%s\"%s\": ", i ? ", " : "", members[i][0]);
        json_quote(b, members[i][1], strlen(members[i][1]));
    }
}

/* Puts the functions of the tools that may be called. */
static void put_tools(struct buf *b, const struct tool_request *q) {
    const char *comma = "";
    for (uint32_t i = 0; i < q->tools->n; i++) {
        const struct json *f = json_get(&q->tools->items[i], "function"), *name = json_get(f, "name"), *parameters = json_get(f, "parameters");
        if (q->name && (!name || name->type != JSON_STRING || name->n != q->name->n || memcmp(name->string, q->name->string, name->n) != 0)) continue;
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

int tool_grammar_make(struct arena *a, const struct chat_template *c, const struct tokenizer *t, const struct tool_request *q, struct grammar_source *out,
                      struct error *e) {
    const struct tool_format *f = tool_format_find(c);
    struct grammar *g;
    struct buf b = {0};
    size_t n;
    if (!f) return error_set(e, ERR_USAGE, "this model's calls have a form that cannot be required; use auto");
    const char *control = find_control_token(t, f, &n);
    if (control) return error_set(e, ERR_USAGE, "this model's calls need the control token %.*s, so they cannot be required; use auto", (int)n, control);
    buf_str(&b, "{\"format\": {");
    put_format(&b, f);
    buf_fmt(&b, "}, \"most\": %d, \"tools\": [", q->is_single || q->name || f->is_single ? 1 : MOST_CALLS);
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

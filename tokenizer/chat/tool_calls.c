/* Calls in a markup of any form, and lists of calls. */
#include "tokenizer/chat/tool_calls.h"

#include <string.h>

#include "tokenizer/chat/tool_calls_internal.h"

static int parse_markup(const struct call_parser *p, struct markup_range t) {
    const struct dialect *d = p->dialect;
    struct markup_range in;
    int rc = ERR_MODEL;
    if (markup_starts_with(t, "{")) return tool_calls_parse_lines(p, t);
    if (!d || !d->call.close) return d ? d->parse(p, t) : ERR_MODEL;
    while (markup_take_call(&t, d->call.open, d->call.head, d->call.close, &in))
        if ((rc = d->parse(p, in))) return rc;
    return rc;
}

static int parse_calls(struct markup_range t, bool goes_on, const struct json *tools, struct tool_calls *out) {
    const struct call_parser p = {out, tools, dialects_first(t), goes_on};
    size_t n_before = out->n;
    int rc = parse_markup(&p, t);
    if (rc) tool_calls_truncate(out, n_before);
    return rc;
}
int tool_calls_parse(const char *s, size_t n, const struct json *tools, struct tool_calls *out) {
    return parse_calls((struct markup_range){s, s + n}, false, tools, out);
}
int tool_calls_parse_begun(const char *s, size_t n, const struct json *tools, struct tool_calls *out) {
    return parse_calls((struct markup_range){s, s + n}, true, tools, out);
}

static bool is_tool(const struct json *tools, const struct buf *name) {
    for (uint32_t i = 0; tools && tools->type == JSON_ARRAY && i < tools->n; i++) {
        const struct json *t = json_at(tools, i), *f = json_get(t, "function");
        const struct json *of = json_get(f ? f : t, "name");
        if (of && of->type == JSON_STRING && of->n == name->len && !memcmp(of->string, name->data, of->n)) return true;
    }
    return false;
}
/* Without a fence or tags around all of it. */
static struct markup_range without_frame(struct markup_range t) {
    struct markup_range rest = t, in;
    if (markup_starts_with(t, "```") && markup_take_before(&rest, "\n", &in)) {
        const char *end = markup_find(rest, "```");
        if (end && end + 3 == t.end) return markup_trim((struct markup_range){rest.s, end});
    }
    rest = t;
    if (markup_starts_with(t, "<tools>") && markup_take_between(&rest, "<tools>", "</tools>", &in) && rest.s == t.end)
        return markup_trim(in);
    return t;
}
int tool_calls_parse_text(const char *s, size_t n, const struct json *tools, struct tool_calls *out) {
    const struct call_parser p = {.calls = out, .tools = tools};
    const size_t n_before = out->n;
    const struct markup_range t = without_frame(markup_trim((struct markup_range){s, s + n}));
    if (!markup_starts_with(t, "{") && !markup_starts_with(t, "[")) return ERR_MODEL;
    int rc = tool_calls_parse_json(&p, t);
    for (size_t i = n_before; i < out->n && !rc; i++) rc = is_tool(tools, &out->v[i].name) ? 0 : ERR_MODEL;
    if (rc) tool_calls_truncate(out, n_before);
    return rc;
}

int tool_calls_copy(const struct tool_calls *from, struct tool_calls *to) {
    const size_t n_before = to->n;
    for (size_t i = 0; i < from->n; i++) {
        const struct tool_call *k = &from->v[i];
        if (mem_grow(&to->v, &to->cap, to->n + 1, sizeof *to->v)) return tool_calls_truncate(to, n_before), ERR_MEMORY;
        struct tool_call *copy = &to->v[to->n++];
        *copy = (struct tool_call){0};
        buf_add(&copy->name, k->name.data ? k->name.data : "", k->name.len);
        buf_add(&copy->arguments, k->arguments.data ? k->arguments.data : "", k->arguments.len);
        buf_add(&copy->id, k->id.data ? k->id.data : "", k->id.len);
        if (copy->name.failed || copy->arguments.failed || copy->id.failed)
            return tool_calls_truncate(to, n_before), ERR_MEMORY;
    }
    return 0;
}

void tool_calls_truncate(struct tool_calls *c, size_t n) {
    while (c->n > n) {
        struct tool_call *k = &c->v[--c->n];
        buf_free(&k->id);
        buf_free(&k->name);
        buf_free(&k->arguments);
    }
}

void tool_calls_free(struct tool_calls *c) {
    tool_calls_truncate(c, 0);
    mem_free(c->v);
    *c = (struct tool_calls){0};
}

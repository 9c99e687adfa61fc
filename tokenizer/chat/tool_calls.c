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

/* Calls and their arguments as parsers of markup add them. */
#include <string.h>

#include "tokenizer/chat/tool_calls_internal.h"

struct tool_call *tool_call_add(struct tool_calls *c, struct markup_range name) {
    name = markup_trim(name);
    if (markup_starts_with(name, "functions.")) name.s += 10;
    if (mem_grow(&c->v, &c->cap, c->n + 1, sizeof *c->v)) return NULL;
    struct tool_call *k = &c->v[c->n++];
    *k = (struct tool_call){0};
    return buf_add(&k->name, name.s, (size_t)(name.end - name.s)) ? NULL : k;
}

int tool_call_check_object(struct markup_range t) {
    struct arena arena = {0};
    struct json j;
    int rc = json_parse(&arena, t.s, (size_t)(t.end - t.s), 0, "arguments", &j, NULL);
    if (!rc && j.type != JSON_OBJECT) rc = ERR_MODEL;
    arena_free(&arena);
    return rc;
}

/* Writes text as JSON on one line; text that is no JSON stays as it is. */
static void put_on_one_line(struct buf *b, const struct buf *text) {
    struct arena arena = {0};
    struct json j;
    if (!text->len) buf_str(b, "{}");
    else if (json_parse(&arena, text->data, text->len, 0, "arguments", &j, NULL)) buf_add(b, text->data, text->len);
    else json_write(b, &j);
    arena_free(&arena);
}

int tool_calls_put_line(struct buf *b, const struct buf *name, const struct buf *arguments) {
    const struct json text = {.type = JSON_STRING, .string = name->data, .n = (uint32_t)name->len};
    buf_str(b, "{\"name\": ");
    json_write(b, &text);
    buf_str(b, ", \"arguments\": ");
    put_on_one_line(b, arguments);
    return buf_str(b, "}\n");
}

int tool_call_add_json(struct tool_calls *c, struct markup_range name, struct markup_range arguments) {
    arguments = markup_trim(arguments);
    name = markup_trim(name);
    if (name.s == name.end) return ERR_MODEL;
    if (arguments.s != arguments.end) TRY(tool_call_check_object(arguments));
    struct tool_call *k = tool_call_add(c, name);
    if (!k) return ERR_MEMORY;
    return arguments.s == arguments.end ? buf_str(&k->arguments, "{}")
                                        : buf_add(&k->arguments, arguments.s, (size_t)(arguments.end - arguments.s));
}

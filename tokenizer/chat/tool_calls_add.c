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

static bool json_equals(const struct json *j, const struct buf *text) {
    return j && j->type == JSON_STRING && j->n == text->len && !memcmp(j->string, text->data, j->n);
}

int tool_call_param_is_string(const struct json *tools, const struct tool_call *k, struct markup_range key) {
    char name[128];
    for (uint32_t i = 0; tools && tools->type == JSON_ARRAY && i < tools->n; i++) {
        const struct json *f = json_get(&tools->items[i], "function");
        if (!f) f = &tools->items[i];
        if (!json_equals(json_get(f, "name"), &k->name) || (size_t)(key.end - key.s) >= sizeof name) continue;
        memcpy(name, key.s, (size_t)(key.end - key.s));
        name[key.end - key.s] = 0;
        const struct json *type = json_get(json_get(json_path(f, "parameters.properties"), name), "type");
        return type ? json_is(type, "string") : -1;
    }
    return -1;
}

int tool_call_put_value(struct buf *out, struct markup_range value, int is_string) {
    struct arena arena = {0};
    struct json j;
    const struct markup_range v = markup_trim(value);
    const int rc = is_string > 0 ? ERR_MODEL : json_parse(&arena, v.s, (size_t)(v.end - v.s), 0, "value", &j, NULL);
    arena_free(&arena);
    if (rc == ERR_MEMORY) return rc;
    if (rc) json_quote(out, value.s, (size_t)(value.end - value.s));
    else buf_add(out, v.s, (size_t)(v.end - v.s));
    return out->failed ? ERR_MEMORY : 0;
}

int tool_call_add_argument(struct tool_call *k, struct markup_range key, struct markup_range value, int is_string) {
    key = markup_trim(key);
    buf_str(&k->arguments, k->arguments.len ? ", " : "{");
    json_quote(&k->arguments, key.s, (size_t)(key.end - key.s));
    buf_str(&k->arguments, ": ");
    return tool_call_put_value(&k->arguments, value, is_string);
}

int tool_call_close_arguments(struct tool_call *k) { return buf_str(&k->arguments, k->arguments.len ? "}" : "{}"); }

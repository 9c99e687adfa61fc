#include "cli/server/responses_tools.h"

#include <string.h>

#include "cli/server/api_members.h"
#include "cli/server/api_messages.h"

static const char mark[] = "__"; /* between the names; Codex ends most names of namespaces in it */

int responses_tools_join(struct api_request *r, const struct json *space, const struct json *name, struct json *out,
                         struct error *e) {
    const size_t n_mark = sizeof mark - 1;
    const bool ends_in_mark = space->n >= n_mark && !memcmp(space->string + space->n - n_mark, mark, n_mark);
    char *s = arena_alloc(&r->arena, (size_t)space->n + n_mark + name->n + 1), *at = s;
    if (!s) return error_set(e, ERR_MEMORY, "no memory");
    memcpy(at, space->string, space->n), at += space->n;
    if (!ends_in_mark) memcpy(at, mark, n_mark), at += n_mark;
    memcpy(at, name->string, name->n), at += name->n;
    *out = (struct json){.type = JSON_STRING, .n = (uint32_t)(at - s), .string = s};
    return 0;
}

void responses_tools_put_name(struct buf *b, const struct api_request *r, const struct tool_call *call) {
    for (size_t i = 0; i < r->n_spaced; i++) {
        const struct api_spaced_tool *t = &r->spaced[i];
        if (t->joined.n != call->name.len || memcmp(t->joined.string, call->name.data, call->name.len)) continue;
        api_put_text_member(b, "name", t->name.string, t->name.n);
        buf_str(b, ", ");
        api_put_text_member(b, "namespace", t->space.string, t->space.n);
        return;
    }
    api_put_text_member(b, "name", call->name.data, call->name.len);
}

static int read_choice(struct api_request *r, const struct json *choice, struct error *e) {
    const struct json *name = json_get(choice, "name");
    if (json_is(choice, "none")) r->tool_choice = API_TOOLS_NONE;
    else if (json_is(choice, "required")) r->tool_choice = API_TOOLS_REQUIRED;
    else if (json_is(json_get(choice, "type"), "function") && name && name->type == JSON_STRING)
        r->tool_choice = API_TOOLS_REQUIRED, r->forced_tool = name;
    else if (api_members_present(choice) && !json_is(choice, "auto"))
        return error_set(e, ERR_USAGE, "tool_choice: must be none, auto, required, or a function with its name");
    return 0;
}

/* Adds tools[i], or the function k of it. name: by which the model calls it. */
static int add_tool(struct api_request *r, const struct json *t, const struct json *name, struct json *tools,
                    struct error *e) {
    struct json *list = (struct json *)tools->items;
    return api_messages_tool(r, name, json_get(t, "description"), json_get(t, "parameters"), &list[tools->n++], e);
}

static int add_namespace(struct api_request *r, const struct json *t, uint32_t i, struct json *tools, struct error *e) {
    const struct json *space = json_get(t, "name"), *functions = json_get(t, "tools");
    for (uint32_t k = 0; k < functions->n; k++) {
        const struct json *f = &functions->items[k], *name = json_get(f, "name");
        struct api_spaced_tool *s = &r->spaced[r->n_spaced];
        if (!json_is(json_get(f, "type"), "function")) continue;
        if (!name || name->type != JSON_STRING)
            return error_set(e, ERR_USAGE, "tools[%u].tools[%u].name: missing", i, k);
        *s = (struct api_spaced_tool){.space = *space, .name = *name};
        TRY(responses_tools_join(r, space, name, &s->joined, e));
        TRY(add_tool(r, f, &s->joined, tools, e));
        r->n_spaced++;
    }
    return 0;
}

static bool is_namespace(const struct json *t) {
    const struct json *name = json_get(t, "name"), *functions = json_get(t, "tools");
    return json_is(json_get(t, "type"), "namespace") && name && name->type == JSON_STRING && functions &&
           functions->type == JSON_ARRAY;
}

/* Makes a list with room for all functions. */
static int open_tools(struct api_request *r, const struct json *from, struct json **tools, struct error *e) {
    struct json *list, all;
    size_t n = 0;
    TRY(api_messages_open_tools(r, from, tools, &list, e));
    for (uint32_t i = 0; *tools && i < from->n; i++)
        if (is_namespace(&from->items[i])) n += json_get(&from->items[i], "tools")->n;
    if (!n) return 0;
    TRY(api_messages_array(r, (uint32_t)(from->n + n), &all, &list, e));
    (*tools)->items = list;
    r->spaced = arena_alloc(&r->arena, n * sizeof *r->spaced);
    return r->spaced ? 0 : error_set(e, ERR_MEMORY, "no memory");
}

int responses_tools_read(struct api_request *r, const struct json *root, bool strict, struct error *e) {
    const struct json *from = json_get(root, "tools");
    struct json *tools;
    TRY(read_choice(r, json_get(root, "tool_choice"), e));
    TRY(open_tools(r, from, &tools, e));
    for (uint32_t i = 0; tools && i < from->n; i++) {
        const struct json *t = &from->items[i], *name = json_get(t, "name"), *type = json_get(t, "type");
        if (!type) return error_set(e, ERR_USAGE, "tools[%u].type: missing", i);
        if (is_namespace(t)) TRY(add_namespace(r, t, i, tools, e));
        else if (!json_is(type, "function")) TRY(api_messages_skip_tool(r, i, type, "function", strict, e));
        else if (!name || name->type != JSON_STRING) return error_set(e, ERR_USAGE, "tools[%u].name: missing", i);
        else TRY(add_tool(r, t, name, tools, e));
    }
    r->tools = tools;
    return 0;
}

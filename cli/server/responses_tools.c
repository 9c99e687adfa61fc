#include "cli/server/responses_tools.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "cli/server/api_members.h"
#include "cli/server/api_messages.h"

static const char mark[] = "__"; /* between the names; Codex ends most names of namespaces in it */

/* Whether a namespace is that of functions without one. */
static bool is_default(const struct json *space) { return json_is(space, "functions"); }

int responses_tools_join(struct api_request *r, const struct json *space, const struct json *name, struct json *out,
                         struct error *e) {
    const size_t n_mark = sizeof mark - 1;
    const bool ends_in_mark = space->n >= n_mark && !memcmp(space->string + space->n - n_mark, mark, n_mark);
    if (is_default(space)) return *out = *name, 0;
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

/* The list that is filled, from `tools` and from items of the input that add tools. */
struct listing {
    struct api_request *r;
    struct json *tools; /* NULL: the request has no such member */
    uint32_t *index;    /* [n_index], a power of two: numbers of tools from 1 on, by the hash of their names */
    size_t n_index;
    char where[40]; /* what messages call the list that is being read */
    bool strict;
};

/* Returns the place of a name in the index: that of the tool that has it, or an empty one. */
static uint32_t *index_at(const struct listing *l, const struct json *name) {
    const uint64_t seed = (uintptr_t)l->index; /* so that no client can choose names that share a place */
    for (size_t at = hash64(name->string, name->n, seed);; at++) {
        uint32_t *slot = &l->index[at & (l->n_index - 1)];
        const struct json *other = *slot ? json_path(&l->tools->items[*slot - 1], "function.name") : NULL;
        if (!other || (other->n == name->n && !memcmp(other->string, name->string, name->n))) return slot;
    }
}

/* Adds a function, unless one of that name is there. name: by which the model calls it. */
static int add_tool(const struct listing *l, const struct json *t, const struct json *name, struct error *e) {
    struct json *list = (struct json *)l->tools->items;
    uint32_t *slot = index_at(l, name);
    if (*slot) return 0;
    *slot = l->tools->n + 1;
    return api_messages_tool(l->r, name, json_get(t, "description"), json_get(t, "parameters"), &list[l->tools->n++],
                             e);
}

static int fail_name(const struct listing *l, const char *rest, uint32_t i, struct error *e) {
    return error_set(e, ERR_USAGE, "%s%s[%u].name: missing", l->where, rest, i);
}

static int add_namespace(const struct listing *l, const struct json *t, uint32_t i, struct error *e) {
    struct api_request *r = l->r;
    const struct json *space = json_get(t, "name"), *functions = json_get(t, "tools");
    char rest[40];
    snprintf(rest, sizeof rest, "[%u].tools", i);
    for (uint32_t k = 0; k < functions->n; k++) {
        const struct json *f = &functions->items[k], *name = json_get(f, "name"), *type = json_get(f, "type");
        struct api_spaced_tool *s = &r->spaced[r->n_spaced];
        if (!json_is(type, "function")) {
            if (type && type->type == JSON_STRING) r->skipped_tool = type;
            continue;
        }
        if (!name || name->type != JSON_STRING) return fail_name(l, rest, k, e);
        if (is_default(space)) {
            TRY(add_tool(l, f, name, e));
            continue;
        }
        *s = (struct api_spaced_tool){.space = *space, .name = *name};
        TRY(responses_tools_join(r, space, name, &s->joined, e));
        TRY(add_tool(l, f, &s->joined, e));
        r->n_spaced++;
    }
    return 0;
}

static bool is_namespace(const struct json *t) {
    const struct json *name = json_get(t, "name"), *functions = json_get(t, "tools");
    return json_is(json_get(t, "type"), "namespace") && name && name->type == JSON_STRING && functions &&
           functions->type == JSON_ARRAY;
}

static int add_list(const struct listing *l, const struct json *from, struct error *e) {
    for (uint32_t i = 0; i < from->n; i++) {
        const struct json *t = &from->items[i], *name = json_get(t, "name"), *type = json_get(t, "type");
        if (!type) return error_set(e, ERR_USAGE, "%s[%u].type: missing", l->where, i);
        if (is_namespace(t)) TRY(add_namespace(l, t, i, e));
        else if (!json_is(type, "function")) TRY(api_messages_skip_tool(l->r, i, type, "function", l->strict, e));
        else if (!name || name->type != JSON_STRING) return fail_name(l, "", i, e);
        else TRY(add_tool(l, t, name, e));
    }
    return 0;
}

bool responses_tools_adds(const struct json *item) {
    return item->type == JSON_OBJECT && json_is(json_get(item, "type"), "additional_tools");
}

/* Returns the tools of an item of the input that adds some; NULL: it is another item, or names none. */
static const struct json *added_tools(const struct json *item) {
    const struct json *tools = responses_tools_adds(item) ? json_get(item, "tools") : NULL;
    return tools && tools->type == JSON_ARRAY ? tools : NULL;
}

/* Returns the number of a list's tools and of their functions. */
static size_t count_tools(const struct json *from, size_t *functions) {
    if (!from || from->type != JSON_ARRAY) return 0;
    for (uint32_t i = 0; i < from->n; i++)
        if (is_namespace(&from->items[i])) *functions += json_get(&from->items[i], "tools")->n;
    return from->n;
}

/* Makes a list with room for all functions. */
static int open_tools(struct listing *l, const struct json *from, const struct json *input, struct error *e) {
    struct json *list, all;
    size_t functions = 0, n = count_tools(from, &functions);
    TRY(api_messages_open_tools(l->r, from, &l->tools, &list, e));
    for (uint32_t i = 0; input && input->type == JSON_ARRAY && i < input->n; i++)
        n += count_tools(added_tools(&input->items[i]), &functions);
    if (!n && !functions) return 0;
    if (n + functions > UINT32_MAX) return error_set(e, ERR_MEMORY, "no memory");
    if (!l->tools && !(l->tools = arena_alloc(&l->r->arena, sizeof *l->tools)))
        return error_set(e, ERR_MEMORY, "no memory");
    TRY(api_messages_array(l->r, (uint32_t)(n + functions), &all, &list, e));
    *l->tools = (struct json){.type = JSON_ARRAY, .items = list};
    l->r->spaced = arena_alloc(&l->r->arena, (functions + 1) * sizeof *l->r->spaced);
    for (l->n_index = 2; l->n_index < 2 * (n + functions); l->n_index *= 2) continue;
    l->index = arena_calloc(&l->r->arena, l->n_index, sizeof *l->index);
    return l->r->spaced && l->index ? 0 : error_set(e, ERR_MEMORY, "no memory");
}

int responses_tools_read(struct api_request *r, const struct json *root, bool strict, struct error *e) {
    const struct json *from = json_get(root, "tools"), *input = json_get(root, "input");
    struct listing l = {.r = r, .where = "tools", .strict = strict};
    TRY(api_messages_read_choice(r, json_get(root, "tool_choice"), e));
    TRY(open_tools(&l, from, input, e));
    if (l.tools && api_members_present(from)) TRY(add_list(&l, from, e));
    for (uint32_t i = 0; l.tools && input && input->type == JSON_ARRAY && i < input->n; i++) {
        const struct json *added = added_tools(&input->items[i]);
        snprintf(l.where, sizeof l.where, "input[%u].tools", i);
        if (added) TRY(add_list(&l, added, e));
    }
    r->tools = l.tools;
    return 0;
}

#include "cli/server/api_messages.h"

#include <stdlib.h>
#include <string.h>

#include "cli/server/api_members.h"
#include "tokenizer/chat/chat_effort.h"

enum { MESSAGE_MEMBERS = 6 };

struct json api_messages_word(const char *s) {
    return (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(s), .string = s};
}

static int no_memory(struct error *e) { return error_set(e, ERR_MEMORY, "no memory"); }

int api_messages_open(struct api_messages *m, struct api_request *r, uint32_t most, struct error *e) {
    *m = (struct api_messages){.request = r, .cap = most};
    m->items = arena_alloc(&r->arena, (size_t)most * sizeof *m->items + 1);
    return m->items ? 0 : no_memory(e);
}

int api_messages_add(struct api_messages *m, const char *role, const struct json *content, struct error *e) {
    struct json *members = arena_alloc(&m->request->arena, MESSAGE_MEMBERS * 2 * sizeof *members);
    if (!members || m->n == m->cap) return no_memory(e);
    m->items[m->n++] = (struct json){.type = JSON_OBJECT, .items = members};
    const struct json word = api_messages_word(role);
    api_messages_set(m, "role", &word);
    if (content) api_messages_set(m, "content", content);
    return 0;
}

void api_messages_set(struct api_messages *m, const char *key, const struct json *value) {
    struct json *last = &m->items[m->n - 1], *members = (struct json *)last->items;
    if (last->n == MESSAGE_MEMBERS) return;
    members[2 * last->n] = api_messages_word(key);
    members[2 * last->n++ + 1] = *value;
}

int api_messages_array(struct api_request *r, uint32_t n, struct json *out, struct json **items, struct error *e) {
    if (!(*items = arena_calloc(&r->arena, (size_t)n + 1, sizeof **items))) return no_memory(e);
    *out = (struct json){.type = JSON_ARRAY, .n = n, .items = *items};
    return 0;
}

/* Makes an object of n members, leaving out those without a value. */
static int make_object(struct api_request *r, const char *const *keys, const struct json *const *values, uint32_t n,
                       struct json *out, struct error *e) {
    struct json *members = arena_alloc(&r->arena, 2 * (size_t)n * sizeof *members);
    if (!members) return no_memory(e);
    *out = (struct json){.type = JSON_OBJECT, .items = members};
    for (uint32_t i = 0; i < n; i++) {
        if (!api_members_present(values[i])) continue;
        members[2 * out->n] = api_messages_word(keys[i]);
        members[2 * out->n++ + 1] = *values[i];
    }
    return 0;
}

int api_messages_call(struct api_request *r, const struct json *id, const struct json *name,
                      const struct json *arguments, struct json *out, struct error *e) {
    const struct json type = api_messages_word("function");
    struct json function;
    TRY(make_object(r, (const char *const[]){"name", "arguments"}, (const struct json *const[]){name, arguments}, 2,
                    &function, e));
    return make_object(r, (const char *const[]){"id", "type", "function"},
                       (const struct json *const[]){id, &type, &function}, 3, out, e);
}

int api_messages_tool(struct api_request *r, const struct json *name, const struct json *description,
                      const struct json *schema, struct json *out, struct error *e) {
    const struct json type = api_messages_word("function"), any = {.type = JSON_OBJECT};
    struct json function;
    if (!api_members_present(schema)) schema = &any;
    TRY(make_object(r, (const char *const[]){"name", "description", "parameters"},
                    (const struct json *const[]){name, description, schema}, 3, &function, e));
    return make_object(r, (const char *const[]){"type", "function"}, (const struct json *const[]){&type, &function}, 2,
                       out, e);
}

int api_messages_open_tools(struct api_request *r, const struct json *from, struct json **tools, struct json **list,
                            struct error *e) {
    *tools = NULL;
    if (!api_members_present(from)) return 0;
    if (from->type != JSON_ARRAY) return error_set(e, ERR_USAGE, "tools: must be an array");
    if (!(*tools = arena_alloc(&r->arena, sizeof **tools))) return no_memory(e);
    TRY(api_messages_array(r, from->n, *tools, list, e));
    (*tools)->n = 0;
    return 0;
}

int api_messages_check_tool(const struct json *tool, uint32_t i, struct error *e) {
    const struct json *name = json_path(tool, "function.name");
    return name && name->type == JSON_STRING ? 0 : error_set(e, ERR_USAGE, "tools[%u].function.name: missing", i);
}

int api_messages_read_choice(struct api_request *r, const struct json *choice, struct error *e) {
    const struct json *type = json_get(choice, "type"), *word = type ? type : choice;
    const struct json *name = json_path(choice, "function.name"), *list = json_get(choice, "allowed_tools");
    if (!name) name = json_get(choice, "name");
    if (!api_members_present(choice) || json_is(word, "auto")) return 0;
    if (json_is(word, "none")) return r->tool_choice = API_TOOLS_NONE, 0;
    if (json_is(word, "required") || json_is(word, "any")) return r->tool_choice = API_TOOLS_REQUIRED, 0;
    if ((json_is(type, "function") || json_is(type, "tool")) && name && name->type == JSON_STRING)
        return r->tool_choice = API_TOOLS_REQUIRED, r->forced_tool = name, 0;
    if (!json_is(type, "allowed_tools"))
        return error_set(e, ERR_USAGE, "tool_choice: must be none, auto, required, or a function with its name");
    if (!list) list = choice; /* /v1/responses */
    const struct json *mode = json_get(list, "mode");
    r->allowed_tools = json_get(list, "tools");
    if (!r->allowed_tools || r->allowed_tools->type != JSON_ARRAY ||
        !(json_is(mode, "auto") || json_is(mode, "required")))
        return error_set(e, ERR_USAGE,
                         "tool_choice.allowed_tools: needs the mode auto or required, and a list of tools");
    r->tool_choice = json_is(mode, "required") ? API_TOOLS_REQUIRED : API_TOOLS_AUTO;
    return 0;
}

int api_messages_read_thinking(const struct json *thinking, int *think, struct error *e) {
    const struct json *type = json_get(thinking, "type");
    if (json_is(type, "enabled") || json_is(type, "disabled")) return *think = json_is(type, "enabled"), 0;
    if (!api_members_present(thinking) || json_is(type, "adaptive") || json_is(type, "auto")) return 0;
    return error_set(e, ERR_USAGE, "thinking.type: must be enabled, disabled or adaptive");
}

int api_messages_skip_tool(struct api_request *r, uint32_t i, const struct json *type, const char *supported,
                           bool strict, struct error *e) {
    if (strict || type->type != JSON_STRING)
        return error_set(e, ERR_USAGE, "tools[%u].type: only %s is supported", i, supported);
    r->skipped_tool = type;
    return 0;
}

static bool is_word_of(const struct json *word, const char *list) {
    for (const char *at = list; *at; at += strcspn(at, " "), at += strspn(at, " "))
        if (strcspn(at, " ") == word->n && !memcmp(at, word->string, word->n)) return true;
    return false;
}

int api_messages_take(struct api_request *r, struct buf *b, struct json *out, struct error *e) {
    const char *copy = b->failed ? NULL : arena_strndup(&r->arena, b->data ? b->data : "", b->len);
    *out = (struct json){.type = JSON_STRING, .n = (uint32_t)b->len, .string = copy};
    buf_free(b);
    return copy ? 0 : no_memory(e);
}
int api_messages_json(struct api_request *r, const struct json *value, struct json *out, struct error *e) {
    struct buf b = {0};
    b.failed |= json_write(&b, value) != 0;
    return api_messages_take(r, &b, out, e);
}

/* Returns the text of a part of a content, which LangChain's clients also send as a string. */
static const struct json *part_text(const struct json *part) {
    if (part->type == JSON_STRING) return part;
    return json_get(part, json_is(json_get(part, "type"), "refusal") ? "refusal" : "text");
}

int api_messages_join(struct api_request *r, const struct json *parts, const char *types, const char *also,
                      const char *where, struct json *out, struct error *e) {
    const int first = (int)strcspn(types, " ");
    size_t n = 0;
    for (uint32_t i = 0; i < parts->n; i++) {
        const struct json *text = part_text(&parts->items[i]), *type = json_get(&parts->items[i], "type");
        if (text == &parts->items[i]) {
            n += text->n;
            continue;
        }
        if (type && type->type == JSON_STRING && !is_word_of(type, types))
            return error_set(e, ERR_USAGE, "%s[%u]: %.*s is not supported: only parts of type %.*s%s are", where, i,
                             (int)(type->n < 60 ? type->n : 60), type->string, first, types, also);
        if (!type || type->type != JSON_STRING || !text || text->type != JSON_STRING)
            return error_set(e, ERR_USAGE, "%s[%u]: a part of type %.*s is required", where, i, first, types);
        n += text->n;
    }
    char *s = arena_alloc(&r->arena, n + 1);
    if (!s || n > UINT32_MAX) return no_memory(e);
    *out = (struct json){.type = JSON_STRING, .n = (uint32_t)n, .string = s};
    for (uint32_t i = 0; i < parts->n; i++) {
        const struct json *text = part_text(&parts->items[i]);
        memcpy(s, text->string, text->n);
        s += text->n;
    }
    return 0;
}

/* --- headers ---------------------------------------------------------------------------------- */

/* Returns the bytes of a header and its line end at the beginning of s, or 0. */
static size_t header_size(const char *s, size_t n) {
    static const char prefix[] = "x-anthropic-";
    size_t i = sizeof prefix - 1;
    if (n < i || memcmp(s, prefix, i) != 0) return 0;
    while (i < n && ((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9') || s[i] == '-')) i++;
    if (i == n || i == sizeof prefix - 1 || s[i] != ':') return 0;
    const char *end = memchr(s + i, '\n', n - i);
    return end ? (size_t)(end + 1 - s) : n;
}

struct json api_messages_without_headers(const struct json *content) {
    struct json out = *content;
    if (out.type == JSON_STRING)
        for (size_t k; (k = header_size(out.string, out.n));) out.string += k, out.n -= (uint32_t)k;
    while (out.type == JSON_ARRAY && out.n) {
        const struct json *text = json_get(out.items, "text");
        if (!text || text->type != JSON_STRING || !text->n || header_size(text->string, text->n) != text->n) break;
        out.items++, out.n--;
    }
    return out;
}

/* --- tools and template variables ------------------------------------------------------------- */

/* Returns the name of a tool, which an entry of allowed_tools may have without `function`. */
static const struct json *name_of(const struct json *tool) {
    const struct json *name = json_path(tool, "function.name");
    return name ? name : json_get(tool, "name");
}

static bool has_tool(const struct json *tools, const struct json *name) {
    for (uint32_t i = 0; i < tools->n; i++) {
        const struct json *n = name_of(&tools->items[i]);
        if (n && n->type == JSON_STRING && n->n == name->n && !memcmp(n->string, name->string, n->n)) return true;
    }
    return false;
}

static int no_tool(const struct json *name, struct error *e) {
    return error_set(e, ERR_USAGE, "tool_choice: no tool has the name %.*s", (int)(name->n < 60 ? name->n : 60),
                     name->string);
}

static int compare_names(const void *a, const void *b) {
    const struct json *x = *(const struct json *const *)a, *y = *(const struct json *const *)b;
    const int by = memcmp(x->string, y->string, x->n < y->n ? x->n : y->n);
    return by ? by : (x->n > y->n) - (x->n < y->n);
}
/* The names of a list of tools, sorted: a request may have a hundred thousand. */
struct names {
    const struct json **at;
    size_t n;
};
static int sort_names(struct api_request *r, const struct json *tools, struct names *out, struct error *e) {
    if (!(out->at = arena_alloc(&r->arena, (tools->n + 1) * sizeof *out->at))) return no_memory(e);
    for (uint32_t i = 0; i < tools->n; i++) {
        const struct json *name = name_of(&tools->items[i]);
        if (name && name->type == JSON_STRING) out->at[out->n++] = name;
    }
    qsort(out->at, out->n, sizeof *out->at, compare_names);
    return 0;
}
static bool has_name(const struct names *names, const struct json *name) {
    return name && name->type == JSON_STRING &&
           bsearch(&name, names->at, names->n, sizeof *names->at, compare_names) != NULL;
}

/* Leaves out the functions that the client does not allow in this answer. Entries of other types name tools that
 * servers carry out. */
static int keep_allowed(struct api_request *r, struct error *e) {
    const struct json *all = r->tools, *allowed = r->allowed_tools;
    struct json *kept = arena_alloc(&r->arena, sizeof *kept), *list;
    struct names there = {0}, wanted = {0};
    if (!kept) return no_memory(e);
    TRY(sort_names(r, all, &there, e));
    TRY(sort_names(r, allowed, &wanted, e));
    for (uint32_t i = 0; i < allowed->n; i++) {
        const struct json *name = name_of(&allowed->items[i]);
        if (!json_is(json_get(&allowed->items[i], "type"), "function")) continue;
        if (!name || name->type != JSON_STRING)
            return error_set(e, ERR_USAGE, "tool_choice.allowed_tools: tools[%u] has no name", i);
        if (!has_name(&there, name)) return no_tool(name, e);
    }
    TRY(api_messages_array(r, all->n, kept, &list, e));
    kept->n = 0;
    for (uint32_t i = 0; i < all->n; i++)
        if (has_name(&wanted, name_of(&all->items[i]))) list[kept->n++] = all->items[i];
    r->tools = kept->n ? kept : NULL;
    return 0;
}

static int check_tools(struct api_request *r, struct error *e) {
    if (api_members_empty(r->tools) || r->tool_choice == API_TOOLS_NONE) r->tools = NULL;
    if (r->tools && r->allowed_tools) TRY(keep_allowed(r, e));
    if (r->tool_choice != API_TOOLS_REQUIRED) return 0;
    if (!r->tools) return error_set(e, ERR_USAGE, "tool_choice: a call is required, but there are no tools");
    return !r->forced_tool || has_tool(r->tools, r->forced_tool) ? 0 : no_tool(r->forced_tool, e);
}

/* Translates an effort to the level that the template knows, and to thinking: "none" disables it. Without the variable,
 * other efforts change nothing. *effort: a string to set to, if the template reads one; NULL: none. */
static int fit_effort(const struct chat_template *chat, const struct api_template_options *o, struct json *level,
                      const struct json **effort, int *think, struct error *e) {
    const char *word;
    *effort = api_members_present(o->effort) ? o->effort : NULL;
    *think = o->think;
    if (!*effort || !chat) return 0;
    if (json_is(*effort, "none") && *think < 0) *think = 0;
    if (!chat_template_reads(chat, "reasoning_effort")) return *effort = NULL, 0;
    if ((*effort)->type != JSON_STRING) return 0;
    TRY(chat_effort_fit(chat, (*effort)->string, (*effort)->n, &word, e));
    if (word) *level = api_messages_word(word), *effort = level;
    return 0;
}

int api_messages_finish(struct api_request *r, const struct chat_template *chat, const struct json *messages,
                        const struct api_template_options *o, struct error *e) {
    const struct json no_kwargs = {.type = JSON_OBJECT}, *kwargs = o->kwargs ? o->kwargs : &no_kwargs, *effort;
    struct json level;
    int think;
    TRY(check_tools(r, e));
    TRY(fit_effort(chat, o, &level, &effort, &think, e));
    struct json *m = json_members(&r->arena, kwargs, 6), *at;
    if (!m) return no_memory(e);
    at = m + 2 * (size_t)kwargs->n;
    const struct json thinks = {.type = JSON_BOOL, .boolean = think > 0};
    if (effort) *at++ = api_messages_word("reasoning_effort"), *at++ = *effort;
    if (think >= 0) {
        *at++ = api_messages_word("enable_thinking"), *at++ = thinks;
        *at++ = api_messages_word("thinking"), *at++ = thinks;
    }
    if (r->tools) *at++ = api_messages_word("tools"), *at++ = *r->tools;
    if (!json_get(kwargs, "add_generation_prompt"))
        *at++ = api_messages_word("add_generation_prompt"),
        *at++ = (struct json){.type = JSON_BOOL, .boolean = !o->no_generation_prompt || r->partial_answer};
    *at++ = api_messages_word("messages"), *at++ = *messages;
    r->template_input = (struct json){.type = JSON_OBJECT, .n = (uint32_t)(at - m) / 2, .items = m};
    return 0;
}

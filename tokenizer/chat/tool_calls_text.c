/* Answers that are calls in JSON without the template's marks: bare, in a fenced block or between <tools> tags. */
#include <string.h>

#include "tokenizer/chat/tool_calls.h"
#include "tokenizer/chat/tool_calls_internal.h"

/* Whether the text is the name of a tool, or, if it is not whole, may become one. */
static bool is_tool(const struct json *tools, struct markup_range name, bool is_whole) {
    const size_t n = (size_t)(name.end - name.s);
    for (uint32_t i = 0; tools && tools->type == JSON_ARRAY && i < tools->n; i++) {
        const struct json *t = json_at(tools, i), *f = json_get(t, "function");
        const struct json *of = json_get(f ? f : t, "name");
        if (!of || of->type != JSON_STRING || of->n < n || (is_whole && of->n != n)) continue;
        if (!memcmp(of->string, name.s, n)) return true;
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
    for (size_t i = n_before; i < out->n && !rc; i++) {
        const struct buf *name = &out->v[i].name;
        rc = is_tool(tools, (struct markup_range){name->data, name->data + name->len}, true) ? 0 : ERR_MODEL;
    }
    if (rc) tool_calls_truncate(out, n_before);
    return rc;
}

/* Whether one text is the beginning of the other. */
static bool begins(struct markup_range t, const char *text) {
    const size_t n = (size_t)(t.end - t.s), of = strlen(text);
    return !memcmp(t.s, text, n < of ? n : of);
}

/* Moves *t past a string in JSON without escapes, whose text is *out. Returns whether it is whole. */
static bool take_string(struct markup_range *t, struct markup_range *out) {
    const char *const begin = t->s + 1, *const end = memchr(begin, '"', (size_t)(t->end - begin));
    *out = (struct markup_range){begin, end ? end : t->end};
    t->s = end ? end + 1 : t->end;
    return end != NULL;
}

/* Whether an object, which may lack its end, can be a call by its first member. */
static bool may_be_call(struct markup_range t, const struct json *tools) {
    static const char *const members[] = {"name", "tool_name", "type", "function", "arguments", "parameters", "args"};
    struct markup_range key, value;
    while (t.s < t.end && (markup_is_blank(*t.s) || *t.s == '{' || *t.s == '[')) t.s++;
    if (t.s == t.end) return true;
    if (*t.s != '"') return false;
    const bool is_whole = take_string(&t, &key);
    const size_t n = (size_t)(key.end - key.s);
    const char *member = NULL;
    for (size_t i = 0; i < sizeof members / sizeof *members && !member; i++)
        if (begins(key, members[i]) && (is_whole ? n == strlen(members[i]) : n <= strlen(members[i])))
            member = members[i];
    if (!member || !is_whole) return member != NULL;
    while (t.s < t.end && (markup_is_blank(*t.s) || *t.s == ':')) t.s++;
    if (t.s == t.end || (!strstr(member, "name") && strcmp(member, "type") != 0)) return true;
    if (*t.s != '"') return false;
    const bool is_known = take_string(&t, &value);
    return strcmp(member, "type") ? is_tool(tools, value, is_known) : begins(value, "function");
}

/* Removes what may begin a frame (without_frame()), whose end is *close then; NULL: there is none. False: the text ends
 * before what it frames. */
static bool skip_frame(struct markup_range *t, const char **close) {
    enum { LANGUAGE = 16 };
    static const struct { const char *open, *close; } frames[] = {{"```", "```"}, {"<tools>", "</tools>"}};
    *close = NULL;
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        if (!begins(*t, frames[i].open)) continue;
        if (!markup_starts_with(*t, frames[i].open)) return false;
        t->s += strlen(frames[i].open);
        *close = frames[i].close;
        const char *line = i ? t->s : memchr(t->s, '\n', (size_t)(t->end - t->s));
        if (!line && t->end - t->s <= LANGUAGE) return false;
        if (line) t->s = line;
        markup_skip_blanks(t);
        return t->s < t->end;
    }
    return true;
}

bool tool_calls_may_be_text(const char *s, size_t n, const struct json *tools) {
    struct markup_range t = markup_trim((struct markup_range){s, s + n});
    const char *close;
    if (t.s == t.end || !skip_frame(&t, &close)) return true;
    for (;;) {
        if ((*t.s != '{' && *t.s != '[') || !may_be_call(t, tools)) return false;
        const bool is_list = *t.s == '[';
        const char *const end = markup_skip_json(t);
        if (end == t.s) return true;
        t.s = end;
        markup_skip_blanks(&t);
        if (t.s == t.end) return true;
        if (is_list || *t.s != '{') break;
    }
    return close && begins(t, close) && (size_t)(t.end - t.s) <= strlen(close);
}

/* Forms of tool calls whose arguments are JSON. */
#include <string.h>

#include "tokenizer/chat/tool_calls_internal.h"

static int add_object_call(struct tool_calls *c, const struct json *j) {
    const struct json *f = json_get(j, "function");
    const struct json *name = json_get(f && f->type == JSON_OBJECT ? f : j, "name"),
                      *arguments = json_get(f && f->type == JSON_OBJECT ? f : j, "arguments");
    if (!name) name = json_get(j, "tool_name"); /* Cohere */
    if (!arguments) arguments = json_get(j, "parameters");
    if (!arguments) arguments = json_get(j, "args"); /* Inkling */
    if (!name || name->type != JSON_STRING || !name->n ||
        (arguments && arguments->type != JSON_OBJECT && arguments->type != JSON_STRING))
        return ERR_MODEL;
    struct markup_range of_name = {name->string, name->string + name->n};
    if (arguments && arguments->type == JSON_STRING)
        return tool_call_add_json(c, of_name,
                                  (struct markup_range){arguments->string, arguments->string + arguments->n});
    struct tool_call *k = tool_call_add(c, of_name);
    if (!k) return ERR_MEMORY;
    return arguments ? json_write(&k->arguments, arguments) : buf_str(&k->arguments, "{}");
}

/* Removes the outer pair of doubled braces, {{…}}. Qwen2.5-Coder's template shows calls in this form. */
static struct markup_range without_outer_braces(struct markup_range t) {
    if (!markup_starts_with(t, "{") || t.end - t.s < 2 || t.end[-1] != '}') return t;
    const struct markup_range in = markup_trim((struct markup_range){t.s + 1, t.end - 1});
    return markup_starts_with(in, "{") ? in : t;
}

/* A call, or a list of calls. */
static int add_json_value(struct tool_calls *c, struct markup_range t) {
    struct arena arena = {0};
    struct json j;
    t = without_outer_braces(t);
    int rc = json_parse(&arena, t.s, (size_t)(t.end - t.s), 0, "calls", &j, NULL);
    if (!rc && j.type == JSON_ARRAY && !j.n) rc = ERR_MODEL;
    for (uint32_t i = 0; !rc && j.type == JSON_ARRAY && i < j.n; i++) rc = add_object_call(c, &j.items[i]);
    if (!rc && j.type != JSON_ARRAY) rc = add_object_call(c, &j);
    arena_free(&arena);
    return rc;
}

/* A list of calls, or calls one after the other. */
int tool_calls_parse_json(const struct call_parser *p, struct markup_range t) {
    t = markup_trim(t);
    while (markup_starts_with(t, "{")) {
        const struct markup_range more = markup_trim((struct markup_range){markup_skip_json(t), t.end});
        if (more.s <= t.s || !markup_starts_with(more, "{")) break;
        TRY(add_json_value(p->calls, markup_trim((struct markup_range){t.s, more.s})));
        t = more;
    }
    return add_json_value(p->calls, t);
}

/* One call a line: a server's calls (remote_request.c). */
int tool_calls_parse_lines(const struct call_parser *p, struct markup_range t) {
    struct markup_range line;
    int rc = ERR_MODEL;
    while (markup_take_before(&t, "\n", &line))
        if ((rc = tool_calls_parse_json(p, line))) return rc;
    return rc;
}

/* DeepSeek: function SEP NAME ```json … ```, or NAME SEP {…} */
int tool_calls_parse_deepseek(const struct call_parser *p, struct markup_range in) {
    struct markup_range head, fence;
    if (!markup_take_before(&in, p->dialect->call.head, &head)) return ERR_MODEL;
    head = markup_trim(head);
    if (!markup_starts_with(head, "function") || head.end - head.s != 8) return tool_call_add_json(p->calls, head, in);
    struct markup_range name = in;
    if (!markup_take_call(&in, "```json", NULL, "```", &fence)) return ERR_MODEL;
    name.end = fence.s - strlen("```json");
    return tool_call_add_json(p->calls, name, fence);
}

static int add_call_with_id(const struct call_parser *p, struct markup_range name, struct markup_range arguments,
                            struct markup_range id) {
    TRY(tool_call_add_json(p->calls, name, arguments));
    return buf_add(&p->calls->v[p->calls->n - 1].id, id.s, (size_t)(id.end - id.s));
}

/* Kimi: functions.NAME:0 ARGUMENT {…} */
int tool_calls_parse_kimi(const struct call_parser *p, struct markup_range in) {
    struct markup_range name;
    if (!markup_take_before(&in, p->dialect->call.head, &name)) return ERR_MODEL;
    name = markup_trim(name);
    const struct markup_range id = name;
    const char *colon = memrchr(name.s, ':', (size_t)(name.end - name.s));
    if (colon) name.end = colon;
    return add_call_with_id(p, name, in, id);
}

/* gpt-oss: … to=functions.NAME … <|message|>{…}<|call|> */
int tool_calls_parse_gpt_oss(const struct call_parser *p, struct markup_range t) {
    struct markup_range name, in;
    int rc = ERR_MODEL;
    while (markup_take_between(&t, "to=", p->dialect->open, &name)) {
        const char *at = name.s;
        while (at < name.end && !strchr(" \t\r\n<", *at)) at++;
        name.end = at;
        if (!markup_take_call(&t, "", NULL, "<|call|>", &in)) return ERR_MODEL;
        if ((rc = tool_call_add_json(p->calls, name, in))) return rc;
    }
    return rc;
}

/* Returns what follows the mark of the calls. */
static struct markup_range after_mark(const struct call_parser *p, struct markup_range t) {
    t.s = markup_find(t, p->dialect->open) + strlen(p->dialect->open);
    return t;
}

/* Mistral: a list, or NAME[ARGS]{…} or NAME[CALL_ID]ID[ARGS]{…}, and again the mark */
int tool_calls_parse_mistral(const struct call_parser *p, struct markup_range t) {
    struct markup_range in = after_mark(p, t), name;
    if (markup_skip_json(in) != markup_trim(in).s) return tool_calls_parse_json(p, in);
    while (markup_take_before(&in, "[ARGS]", &name)) {
        const char *next = markup_find((struct markup_range){markup_skip_json(in), in.end}, p->dialect->open);
        struct markup_range id = name;
        if (!markup_take_before(&id, "[CALL_ID]", &name)) id.s = id.end;
        TRY(add_call_with_id(p, name, (struct markup_range){in.s, next ? next : in.end}, id));
        if (!next) return 0;
        in.s = next + strlen(p->dialect->open);
    }
    return ERR_MODEL;
}

/* GigaChat: one call to the end of the answer, or to the mark that ends a message. */
int tool_calls_parse_gigachat(const struct call_parser *p, struct markup_range t) {
    struct markup_range before;
    if (!markup_take_before(&t, "<|function_call|>", &before)) markup_take_before(&t, "<|role_sep|>", &before);
    return tool_calls_parse_json(p, (struct markup_range){t.s, markup_skip_json(t)});
}

int tool_calls_parse_llama(const struct call_parser *p, struct markup_range t) {
    return tool_calls_parse_json(p, after_mark(p, t));
}

/* Solar Open: ID<|tool_call:name|>NAME<|tool_call:args|>{…} */
int tool_calls_parse_solar(const struct call_parser *p, struct markup_range in) {
    struct markup_range id, name;
    if (!markup_take_before(&in, "<|tool_call:name|>", &id) || !markup_take_before(&in, p->dialect->call.head, &name))
        return ERR_MODEL;
    return add_call_with_id(p, name, in, markup_trim(id));
}

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

/* A call, or a list of calls. */
static int add_json_value(struct tool_calls *c, struct markup_range t) {
    struct arena arena = {0};
    struct json j;
    int rc = json_parse(&arena, t.s, (size_t)(t.end - t.s), 0, "calls", &j, NULL);
    if (!rc && j.type == JSON_ARRAY && !j.n) rc = ERR_MODEL;
    for (uint32_t i = 0; !rc && j.type == JSON_ARRAY && i < j.n; i++) rc = add_object_call(c, &j.items[i]);
    if (!rc && j.type != JSON_ARRAY) rc = add_object_call(c, &j);
    arena_free(&arena);
    return rc;
}

/* A list of calls, or calls one after the other. */
int tool_calls_parse_json(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    t = markup_trim(t);
    while (markup_starts_with(t, "{")) {
        const struct markup_range more = markup_trim((struct markup_range){markup_skip_json(t), t.end});
        if (more.s <= t.s || !markup_starts_with(more, "{")) break;
        TRY(add_json_value(c, markup_trim((struct markup_range){t.s, more.s})));
        t = more;
    }
    return add_json_value(c, t);
}

/* One call a line: a server's calls (remote_request.c). */
int tool_calls_parse_lines(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    struct markup_range line;
    int rc = ERR_MODEL;
    while (markup_take_before(&t, "\n", &line))
        if ((rc = tool_calls_parse_json(c, line, tools))) return rc;
    return rc;
}

/* DeepSeek: function SEP NAME ```json … ```, or NAME SEP {…} */
int tool_calls_parse_deepseek(struct tool_calls *c, struct markup_range in, const struct json *tools) {
    struct markup_range head, fence;
    if (!markup_take_before(&in, "<｜tool▁sep｜>", &head)) return ERR_MODEL;
    head = markup_trim(head);
    if (!markup_starts_with(head, "function") || head.end - head.s != 8) return tool_call_add_json(c, head, in);
    struct markup_range name = in;
    if (!markup_take_call(&in, "```json", NULL, "```", &fence)) return ERR_MODEL;
    name.end = fence.s - strlen("```json");
    return tool_call_add_json(c, name, fence);
}

/* Kimi: functions.NAME:0 ARGUMENT {…} */
int tool_calls_parse_kimi(struct tool_calls *c, struct markup_range in, const struct json *tools) {
    struct markup_range name;
    if (!markup_take_before(&in, "<|tool_call_argument_begin|>", &name)) return ERR_MODEL;
    name = markup_trim(name);
    const struct markup_range id = name;
    for (const char *p = name.end; p > name.s; p--)
        if (p[-1] == ':') {
            name.end = p - 1;
            break;
        }
    int rc = tool_call_add_json(c, name, in);
    return rc ? rc : buf_add(&c->v[c->n - 1].id, id.s, (size_t)(id.end - id.s));
}

/* gpt-oss: … to=functions.NAME … <|message|>{…}<|call|> */
int tool_calls_parse_gpt_oss(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    struct markup_range name, in;
    int rc = ERR_MODEL;
    while (markup_take_between(&t, "to=", "<|message|>", &name)) {
        const char *p = name.s;
        while (p < name.end && !strchr(" \t\r\n<", *p)) p++;
        name.end = p;
        if (!markup_take_call(&t, "", NULL, "<|call|>", &in)) return ERR_MODEL;
        if ((rc = tool_call_add_json(c, name, in))) return rc;
    }
    return rc;
}

/* Mistral: a list, or NAME[ARGS]{…} or NAME[CALL_ID]ID[ARGS]{…}, and again the mark */
int tool_calls_parse_mistral(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    struct markup_range in, name, before_id;
    if (!markup_take_between(&t, "[TOOL_CALLS]", NULL, &in)) return ERR_MODEL;
    if (markup_skip_json(in) != markup_trim(in).s) return tool_calls_parse_json(c, in, tools);
    while (markup_take_before(&in, "[ARGS]", &name)) {
        const char *next = markup_find((struct markup_range){markup_skip_json(in), in.end}, "[TOOL_CALLS]");
        struct markup_range id = name;
        const bool has_id = markup_take_before(&id, "[CALL_ID]", &before_id);
        int rc = tool_call_add_json(c, has_id ? before_id : name, (struct markup_range){in.s, next ? next : in.end});
        if (!rc && has_id) rc = buf_add(&c->v[c->n - 1].id, id.s, (size_t)(id.end - id.s));
        if (rc || !next) return rc;
        in.s = next + strlen("[TOOL_CALLS]");
    }
    return ERR_MODEL;
}

/* GigaChat: one call to the end of the answer, or to the mark that ends a message. */
int tool_calls_parse_gigachat(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    struct markup_range in;
    if (!markup_take_before(&t, "<|function_call|>", &in) && !markup_take_before(&t, "<|role_sep|>", &in))
        return ERR_MODEL;
    return tool_calls_parse_json(c, (struct markup_range){t.s, markup_skip_json(t)}, tools);
}

/* Solar Open: ID<|tool_call:name|>NAME<|tool_call:args|>{…} */
int tool_calls_parse_solar(struct tool_calls *c, struct markup_range in, const struct json *tools) {
    struct markup_range id, name;
    if (!markup_take_before(&in, "<|tool_call:name|>", &id) || !markup_take_before(&in, "<|tool_call:args|>", &name))
        return ERR_MODEL;
    TRY(tool_call_add_json(c, name, in));
    id = markup_trim(id);
    return buf_add(&c->v[c->n - 1].id, id.s, (size_t)(id.end - id.s));
}

int tool_calls_parse_llama(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    struct markup_range in;
    return markup_take_between(&t, "<|python_tag|>", NULL, &in) ? tool_calls_parse_json(c, in, tools) : ERR_MODEL;
}

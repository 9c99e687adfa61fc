#include "cli/tools.h"

#include <stdio.h>
#include <string.h>

/* A range of the markup. */
struct span {
    const char *s, *end;
};

static const char *find(struct span t, const char *what) { return memmem(t.s, (size_t)(t.end - t.s), what, strlen(what)); }
static bool starts(struct span t, const char *what) { return (size_t)(t.end - t.s) >= strlen(what) && !memcmp(t.s, what, strlen(what)); }
static struct span trim(struct span t) {
    while (t.s < t.end && strchr(" \t\r\n", *t.s) && *t.s) t.s++;
    while (t.end > t.s && strchr(" \t\r\n", t.end[-1]) && t.end[-1]) t.end--;
    return t;
}
/* Finds the text between the next `open` and the following `close`, and advances *rest past it. close NULL or missing: to the end. */
static bool between(struct span *rest, const char *open, const char *close, struct span *in) {
    const char *a = find(*rest, open), *b;
    if (!a) return false;
    in->s = a + strlen(open);
    in->end = rest->end;
    rest->s = rest->end;
    if (close && (b = find(*in, close))) {
        in->end = b;
        rest->s = b + strlen(close);
    }
    return true;
}

/* Finds the text before a mark, and advances *rest past the mark. */
static bool before(struct span *rest, const char *mark, struct span *head) {
    const char *at = find(*rest, mark);
    if (!at) return false;
    *head = (struct span){rest->s, at};
    rest->s = at + strlen(mark);
    return true;
}

static struct tool_call *add(struct tool_calls *c, struct span name) {
    name = trim(name);
    if (starts(name, "functions.")) name.s += 10;
    if (mem_grow(&c->v, &c->cap, c->n + 1, sizeof *c->v)) return NULL;
    struct tool_call *k = &c->v[c->n++];
    *k = (struct tool_call){0};
    return buf_add(&k->name, name.s, (size_t)(name.end - name.s)) ? NULL : k;
}

static bool is_object(struct span t) {
    struct arena arena = {0};
    struct json j;
    bool ok = !json_parse(&arena, t.s, (size_t)(t.end - t.s), 0, "arguments", &j, NULL) && j.type == JSON_OBJECT;
    arena_free(&arena);
    return ok;
}

/* Adds a call whose arguments are JSON. */
static int add_json(struct tool_calls *c, struct span name, struct span arguments) {
    arguments = trim(arguments);
    name = trim(name);
    if (name.s == name.end) return ERR_MODEL;
    if (arguments.s != arguments.end && !is_object(arguments)) return ERR_MODEL;
    struct tool_call *k = add(c, name);
    if (!k) return ERR_MEMORY;
    return arguments.s == arguments.end ? buf_str(&k->arguments, "{}") : buf_add(&k->arguments, arguments.s, (size_t)(arguments.end - arguments.s));
}

/* --- typed parameters ------------------------------------------------------------------------------------------------ */

static bool same(const struct json *j, const struct buf *text) {
    return j && j->type == JSON_STRING && j->n == text->len && !memcmp(j->string, text->data, j->n);
}

/* Returns 1 if the tool's schema declares the parameter a string, 0 if another type, -1 if it has no type. */
static int wants_string(const struct json *tools, const struct tool_call *k, struct span key) {
    char name[128];
    for (uint32_t i = 0; tools && tools->type == JSON_ARRAY && i < tools->n; i++) {
        const struct json *f = json_get(&tools->items[i], "function");
        if (!f) f = &tools->items[i];
        if (!same(json_get(f, "name"), &k->name) || (size_t)(key.end - key.s) >= sizeof name) continue;
        memcpy(name, key.s, (size_t)(key.end - key.s));
        name[key.end - key.s] = 0;
        const struct json *type = json_get(json_get(json_path(f, "parameters.properties"), name), "type");
        return type ? json_is(type, "string") : -1;
    }
    return -1;
}

/* Adds an argument. An untyped value is JSON if it parses, else a string. */
static int put(struct tool_call *k, struct span key, struct span value, int string) {
    struct arena arena = {0};
    struct json j;
    struct span v = trim(value);
    if (string < 0 || !string) string = json_parse(&arena, v.s, (size_t)(v.end - v.s), 0, "value", &j, NULL) != 0;
    arena_free(&arena);
    key = trim(key);
    buf_str(&k->arguments, k->arguments.len ? ", " : "{");
    json_quote(&k->arguments, key.s, (size_t)(key.end - key.s));
    buf_str(&k->arguments, ": ");
    if (string) json_quote(&k->arguments, value.s, (size_t)(value.end - value.s));
    else buf_add(&k->arguments, v.s, (size_t)(v.end - v.s));
    return k->arguments.failed ? ERR_MEMORY : 0;
}
static int close_object(struct tool_call *k) { return buf_str(&k->arguments, k->arguments.len ? "}" : "{}"); }

static struct span line_ends_off(struct span t) {
    if (t.s < t.end && *t.s == '\n') t.s++;
    if (t.end > t.s && t.end[-1] == '\n') t.end--;
    return t;
}

/* GLM: NAME, then <arg_key>K</arg_key> <arg_value>V</arg_value> … */
static int keys_and_values(struct tool_calls *c, struct span body, const struct json *tools) {
    const char *first = find(body, "<arg_key>");
    struct span name = {body.s, first ? first : body.end}, key, value;
    if (trim(name).s == trim(name).end || find(name, "<") || find(name, "{")) return ERR_MODEL;
    struct tool_call *k = add(c, name);
    if (!k) return ERR_MEMORY;
    int rc = 0;
    while (!rc && between(&body, "<arg_key>", "</arg_key>", &key)) {
        if (!between(&body, "<arg_value>", "</arg_value>", &value)) return ERR_MODEL;
        rc = put(k, key, value, wants_string(tools, k, trim(key)));
    }
    return rc ? rc : close_object(k);
}

/* Finds the text of an attribute: name="…". */
static bool attribute(struct span tag, const char *name, struct span *value) { return between(&tag, name, "\"", value); }

/* <invoke name="F"> <parameter name="K">V</parameter> … </invoke>; mark precedes each tag name (DeepSeek's ｜DSML｜). */
static int invocations(struct tool_calls *c, struct span t, const char *mark, const struct json *tools) {
    char open[48], close[48], p_open[48], p_close[48];
    struct span in, tag, name, body, string;
    int rc = ERR_MODEL;
    snprintf(open, sizeof open, "<%sinvoke", mark);
    snprintf(close, sizeof close, "</%sinvoke>", mark);
    snprintf(p_open, sizeof p_open, "<%sparameter", mark);
    snprintf(p_close, sizeof p_close, "</%sparameter>", mark);
    while (between(&t, open, close, &in)) {
        if (!before(&in, ">", &tag) || !attribute(tag, "name=\"", &name)) return ERR_MODEL;
        struct tool_call *k = add(c, name);
        rc = k ? 0 : ERR_MEMORY;
        while (!rc && between(&in, p_open, p_close, &body)) {
            if (!before(&body, ">", &tag) || !attribute(tag, "name=\"", &name)) return ERR_MODEL;
            int typed = attribute(tag, "string=\"", &string) ? starts(string, "true") : wants_string(tools, k, name);
            rc = put(k, name, body, typed);
        }
        if (!rc) rc = close_object(k);
        if (rc) return rc;
    }
    return rc;
}

/* Qwen3-Coder: <function=F> <parameter=K>\nV\n</parameter> … </function> */
static int functions(struct tool_calls *c, struct span t, const struct json *tools) {
    struct span in, name, body;
    int rc = ERR_MODEL;
    while (between(&t, "<function=", "</function>", &in)) {
        if (!before(&in, ">", &name)) return ERR_MODEL;
        struct tool_call *k = add(c, name);
        rc = k ? 0 : ERR_MEMORY;
        while (!rc && between(&in, "<parameter=", "</parameter>", &body)) {
            if (!before(&body, ">", &name)) return ERR_MODEL;
            rc = put(k, name, line_ends_off(body), wants_string(tools, k, trim(name)));
        }
        if (!rc) rc = close_object(k);
        if (rc) return rc;
    }
    return rc;
}

/* --- calls as JSON --------------------------------------------------------------------------------------------------- */

static int object_call(struct tool_calls *c, const struct json *j) {
    const struct json *f = json_get(j, "function");
    const struct json *name = json_get(f && f->type == JSON_OBJECT ? f : j, "name"), *arguments = json_get(f && f->type == JSON_OBJECT ? f : j, "arguments");
    if (!arguments) arguments = json_get(j, "parameters");
    if (!name || name->type != JSON_STRING || !name->n || (arguments && arguments->type != JSON_OBJECT && arguments->type != JSON_STRING)) return ERR_MODEL;
    struct span of_name = {name->string, name->string + name->n};
    if (arguments && arguments->type == JSON_STRING) return add_json(c, of_name, (struct span){arguments->string, arguments->string + arguments->n});
    struct tool_call *k = add(c, of_name);
    if (!k) return ERR_MEMORY;
    return arguments ? json_write(&k->arguments, arguments) : buf_str(&k->arguments, "{}");
}
static int json_calls(struct tool_calls *c, struct span t) {
    struct arena arena = {0};
    struct json j;
    t = trim(t);
    int rc = json_parse(&arena, t.s, (size_t)(t.end - t.s), 0, "calls", &j, NULL) ? ERR_MODEL : 0;
    if (!rc && j.type == JSON_ARRAY && !j.n) rc = ERR_MODEL;
    for (uint32_t i = 0; !rc && j.type == JSON_ARRAY && i < j.n; i++) rc = object_call(c, &j.items[i]);
    if (!rc && j.type != JSON_ARRAY) rc = object_call(c, &j);
    arena_free(&arena);
    return rc;
}

/* Contents of <tool_call> and similar tags: JSON, or one of the forms above. */
static int tagged(struct tool_calls *c, struct span in, const struct json *tools) {
    in = trim(in);
    if (starts(in, "{") || starts(in, "[")) return json_calls(c, in);
    if (starts(in, "<function=")) return functions(c, in, tools);
    if (starts(in, "<invoke")) return invocations(c, in, "", tools);
    return keys_and_values(c, in, tools);
}

/* DeepSeek: function SEP NAME ```json … ```, or NAME SEP {…} */
static int separated(struct tool_calls *c, struct span in) {
    struct span head, fence;
    if (!before(&in, "<｜tool▁sep｜>", &head)) return ERR_MODEL;
    head = trim(head);
    if (!starts(head, "function") || head.end - head.s != 8) return add_json(c, head, in);
    struct span name = in;
    if (!between(&in, "```json", "```", &fence)) return ERR_MODEL;
    name.end = fence.s - strlen("```json");
    return add_json(c, name, fence);
}

/* Kimi: functions.NAME:0 ARGUMENT {…} */
static int numbered(struct tool_calls *c, struct span in) {
    struct span name;
    if (!before(&in, "<|tool_call_argument_begin|>", &name)) return ERR_MODEL;
    name = trim(name);
    for (const char *p = name.end; p > name.s; p--)
        if (p[-1] == ':') {
            name.end = p - 1;
            break;
        }
    return add_json(c, name, in);
}

/* gpt-oss: … to=functions.NAME … <|message|>{…}<|call|> */
static int addressed(struct tool_calls *c, struct span t) {
    struct span name, in;
    int rc = ERR_MODEL;
    while (between(&t, "to=", "<|message|>", &name)) {
        const char *p = name.s;
        while (p < name.end && !strchr(" \t\r\n<", *p)) p++;
        name.end = p;
        if (!between(&t, "", "<|call|>", &in)) return ERR_MODEL;
        if ((rc = add_json(c, name, in))) return rc;
    }
    return rc;
}

/* --- dispatch -------------------------------------------------------------------------------------------------------- */

static int each(struct tool_calls *c, struct span t, const char *open, const char *close, const struct json *tools,
                int (*one)(struct tool_calls *, struct span)) {
    struct span in;
    int rc = ERR_MODEL;
    while (between(&t, open, close, &in))
        if ((rc = one ? one(c, in) : tagged(c, in, tools))) return rc;
    return rc;
}

static int parse(struct span t, const struct json *tools, struct tool_calls *c) {
    struct span in, name;
    if (find(t, "<｜tool▁call▁begin｜>")) return each(c, t, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", tools, separated);
    if (find(t, "<|tool_call_begin|>")) return each(c, t, "<|tool_call_begin|>", "<|tool_call_end|>", tools, numbered);
    if (find(t, "<｜DSML｜invoke")) return invocations(c, t, "｜DSML｜", tools);
    if (find(t, "<minimax:tool_call>")) return invocations(c, t, "", tools);
    if (find(t, "<|message|>")) return addressed(c, t);
    if (find(t, "<tool_call>")) return each(c, t, "<tool_call>", "</tool_call>", tools, NULL);
    if (find(t, "<seed:tool_call>")) return each(c, t, "<seed:tool_call>", "</seed:tool_call>", tools, NULL);
    if (find(t, "<|tool_call|>")) return each(c, t, "<|tool_call|>", "<|/tool_call|>", tools, json_calls);
    if (between(&t, "[TOOL_CALLS]", NULL, &in)) {
        t = in;
        if (!find(in, "[ARGS]")) return json_calls(c, in);
        while (before(&in, "[ARGS]", &name)) {
            const char *next = find(in, "[TOOL_CALLS]");
            int rc = add_json(c, name, (struct span){in.s, next ? next : in.end});
            if (rc || !next) return rc;
            in.s = next + strlen("[TOOL_CALLS]");
        }
        return ERR_MODEL;
    }
    if (between(&t, "<|python_tag|>", NULL, &in)) return json_calls(c, in);
    return ERR_MODEL;
}

int tools_parse(const char *s, size_t n, const struct json *tools, struct tool_calls *out) {
    size_t had = out->n;
    int rc = parse((struct span){s, s + n}, tools, out);
    if (rc) tools_cut(out, had);
    return rc;
}

void tools_cut(struct tool_calls *c, size_t n) {
    while (c->n > n) {
        struct tool_call *k = &c->v[--c->n];
        buf_free(&k->name);
        buf_free(&k->arguments);
    }
}

void tools_free(struct tool_calls *c) {
    tools_cut(c, 0);
    mem_free(c->v);
    *c = (struct tool_calls){0};
}

#include "tokenizer/chat/tool_calls.h"

#include <stdio.h>
#include <string.h>

struct markup_range {
    const char *s, *end;
};

static const char *find_text(struct markup_range t, const char *what) { return memmem(t.s, (size_t)(t.end - t.s), what, strlen(what)); }
static bool starts_with(struct markup_range t, const char *what) { return (size_t)(t.end - t.s) >= strlen(what) && !memcmp(t.s, what, strlen(what)); }
static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
static void skip_blanks(struct markup_range *t) {
    while (t->s < t->end && is_blank(*t->s)) t->s++;
}
static struct markup_range trim_range(struct markup_range t) {
    skip_blanks(&t);
    while (t.end > t.s && is_blank(t.end[-1])) t.end--;
    return t;
}
/* Finds the text between the next `open` and the following `close`, and advances *rest past it. close NULL or missing: to the end. */
static bool take_between(struct markup_range *rest, const char *open, const char *close, struct markup_range *in) {
    const char *opening = find_text(*rest, open), *closing;
    if (!opening) return false;
    in->s = opening + strlen(open);
    in->end = rest->end;
    rest->s = rest->end;
    if (close && (closing = find_text(*in, close))) {
        in->end = closing;
        rest->s = closing + strlen(close);
    }
    return true;
}

/* Returns the end of the JSON object or list at the beginning of t, or its beginning if there is none. */
static const char *skip_json(struct markup_range t) {
    bool in_string = false;
    int depth = 0;
    t = trim_range(t);
    if (!starts_with(t, "{") && !starts_with(t, "[")) return t.s;
    for (const char *p = t.s; p < t.end; p++) {
        if (in_string && *p == '\\') p++;
        else if (*p == '"') in_string = !in_string;
        else if (!in_string) {
            depth += (*p == '{' || *p == '[') - (*p == '}' || *p == ']');
            if (!depth) return p + 1;
        }
    }
    return t.s;
}

/* take_between() of a call whose arguments are JSON, so that a mark in their strings does not end it. The arguments begin with the first brace
 * after `head`, or after `open` if head is NULL or missing. */
static bool take_call(struct markup_range *rest, const char *open, const char *head, const char *close, struct markup_range *in) {
    const char *opening = find_text(*rest, open), *arguments = NULL;
    if (!opening) return false;
    struct markup_range tail = {opening + strlen(open), rest->end};
    in->s = tail.s;
    if (head && (arguments = find_text(tail, head)) && (arguments = memchr(arguments, '{', (size_t)(tail.end - arguments)))) tail.s = arguments;
    tail.s = skip_json(tail);
    const char *closing = find_text(tail, close);
    in->end = closing ? closing : rest->end;
    rest->s = closing ? closing + strlen(close) : rest->end;
    return true;
}

/* Finds the text before a mark, and advances *rest past the mark. */
static bool take_before(struct markup_range *rest, const char *mark, struct markup_range *head) {
    const char *at = find_text(*rest, mark);
    if (!at) return false;
    *head = (struct markup_range){rest->s, at};
    rest->s = at + strlen(mark);
    return true;
}

static struct tool_call *add_call(struct tool_calls *c, struct markup_range name) {
    name = trim_range(name);
    if (starts_with(name, "functions.")) name.s += 10;
    if (mem_grow(&c->v, &c->cap, c->n + 1, sizeof *c->v)) return NULL;
    struct tool_call *k = &c->v[c->n++];
    *k = (struct tool_call){0};
    return buf_add(&k->name, name.s, (size_t)(name.end - name.s)) ? NULL : k;
}

/* ERR_MODEL: not a JSON object. */
static int check_json_object(struct markup_range t) {
    struct arena arena = {0};
    struct json j;
    int rc = json_parse(&arena, t.s, (size_t)(t.end - t.s), 0, "arguments", &j, NULL);
    if (!rc && j.type != JSON_OBJECT) rc = ERR_MODEL;
    arena_free(&arena);
    return rc;
}

/* Adds a call whose arguments are JSON. */
static int add_json_call(struct tool_calls *c, struct markup_range name, struct markup_range arguments) {
    arguments = trim_range(arguments);
    name = trim_range(name);
    if (name.s == name.end) return ERR_MODEL;
    if (arguments.s != arguments.end) TRY(check_json_object(arguments));
    struct tool_call *k = add_call(c, name);
    if (!k) return ERR_MEMORY;
    return arguments.s == arguments.end ? buf_str(&k->arguments, "{}") : buf_add(&k->arguments, arguments.s, (size_t)(arguments.end - arguments.s));
}

/* --- typed parameters ------------------------------------------------------------------------------------------------ */

static bool json_equals(const struct json *j, const struct buf *text) {
    return j && j->type == JSON_STRING && j->n == text->len && !memcmp(j->string, text->data, j->n);
}

/* Returns 1 if the tool's schema declares the parameter a string, 0 if another type, -1 if it declares no type. */
static int param_is_string(const struct json *tools, const struct tool_call *k, struct markup_range key) {
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

/* Adds an argument. is_string as from param_is_string(): an untyped value is JSON if it parses, else a string. */
static int add_argument(struct tool_call *k, struct markup_range key, struct markup_range value, int is_string) {
    struct arena arena = {0};
    struct json j;
    struct markup_range v = trim_range(value);
    const int rc = is_string > 0 ? 0 : json_parse(&arena, v.s, (size_t)(v.end - v.s), 0, "value", &j, NULL);
    arena_free(&arena);
    if (rc == ERR_MEMORY) return rc;
    if (rc) is_string = 1;
    else if (is_string < 0) is_string = 0;
    key = trim_range(key);
    buf_str(&k->arguments, k->arguments.len ? ", " : "{");
    json_quote(&k->arguments, key.s, (size_t)(key.end - key.s));
    buf_str(&k->arguments, ": ");
    if (is_string) json_quote(&k->arguments, value.s, (size_t)(value.end - value.s));
    else buf_add(&k->arguments, v.s, (size_t)(v.end - v.s));
    return k->arguments.failed ? ERR_MEMORY : 0;
}
static int close_object(struct tool_call *k) { return buf_str(&k->arguments, k->arguments.len ? "}" : "{}"); }

static struct markup_range strip_line_ends(struct markup_range t) {
    if (t.s < t.end && *t.s == '\n') t.s++;
    if (t.end > t.s && t.end[-1] == '\n') t.end--;
    return t;
}

/* GLM: NAME, then <arg_key>K</arg_key> <arg_value>V</arg_value> …; LongCat's tags begin with `prefix`, Hunyuan's have a mark after NAME and may end with
 * `suffix`. */
static int parse_keys(struct tool_calls *c, struct markup_range body, const struct json *tools, const char *prefix, const char *suffix) {
    char key_open[48], key_close[48], value_open[48], value_close[48], separator[48];
    snprintf(key_open, sizeof key_open, "<%sarg_key%s>", prefix, suffix);
    snprintf(key_close, sizeof key_close, "</%sarg_key%s>", prefix, suffix);
    snprintf(value_open, sizeof value_open, "<%sarg_value%s>", prefix, suffix);
    snprintf(value_close, sizeof value_close, "</%sarg_value%s>", prefix, suffix);
    snprintf(separator, sizeof separator, "<tool_sep%s>", suffix);
    const char *first = find_text(body, separator);
    if (!first) first = find_text(body, key_open);
    struct markup_range name = {body.s, first ? first : body.end}, key, value;
    if (trim_range(name).s == trim_range(name).end || find_text(name, "<") || find_text(name, "{")) return ERR_MODEL;
    struct tool_call *k = add_call(c, name);
    if (!k) return ERR_MEMORY;
    int rc = 0;
    while (!rc && take_between(&body, key_open, key_close, &key)) {
        if (!take_between(&body, value_open, value_close, &value)) return ERR_MODEL;
        rc = add_argument(k, key, value, param_is_string(tools, k, trim_range(key)));
    }
    return rc ? rc : close_object(k);
}
static int parse_glm(struct tool_calls *c, struct markup_range body, const struct json *tools) { return parse_keys(c, body, tools, "", ""); }

/* Finds the text of an attribute: name="…". */
static bool find_attribute(struct markup_range tag, const char *name, struct markup_range *value) { return take_between(&tag, name, "\"", value); }

/* <invoke name="F"> <parameter name="K">V</parameter> … </invoke>; mark precedes each tag name (DeepSeek's ｜DSML｜, GigaChat's ｜GCML｜, Step's steptml:). */
static int parse_invokes(struct tool_calls *c, struct markup_range t, const char *mark, const struct json *tools) {
    char open[48], close[48], p_open[48], p_close[48];
    struct markup_range in, tag, name, body, string;
    int rc = ERR_MODEL;
    snprintf(open, sizeof open, "<%sinvoke", mark);
    snprintf(close, sizeof close, "</%sinvoke>", mark);
    snprintf(p_open, sizeof p_open, "<%sparameter", mark);
    snprintf(p_close, sizeof p_close, "</%sparameter>", mark);
    while (take_between(&t, open, close, &in)) {
        if (!take_before(&in, ">", &tag) || !find_attribute(tag, "name=\"", &name)) return ERR_MODEL;
        struct tool_call *k = add_call(c, name);
        rc = k ? 0 : ERR_MEMORY;
        while (!rc && take_between(&in, p_open, p_close, &body)) {
            if (!take_before(&body, ">", &tag) || !find_attribute(tag, "name=\"", &name)) return ERR_MODEL;
            int typed = find_attribute(tag, "string=\"", &string) ? starts_with(string, "true") : param_is_string(tools, k, name);
            rc = add_argument(k, name, body, typed);
        }
        if (!rc) rc = close_object(k);
        if (rc) return rc;
    }
    return rc;
}

/* Qwen3-Coder: <function=F> <parameter=K>\nV\n</parameter> … </function>; Seed-OSS has no line ends around V. */
static int parse_functions(struct tool_calls *c, struct markup_range t, const struct json *tools, bool has_line_ends) {
    struct markup_range in, name, body;
    int rc = ERR_MODEL;
    while (take_between(&t, "<function=", "</function>", &in)) {
        if (!take_before(&in, ">", &name)) return ERR_MODEL;
        struct tool_call *k = add_call(c, name);
        rc = k ? 0 : ERR_MEMORY;
        while (!rc && take_between(&in, "<parameter=", "</parameter>", &body)) {
            if (!take_before(&body, ">", &name)) return ERR_MODEL;
            rc = add_argument(k, name, has_line_ends ? strip_line_ends(body) : body, param_is_string(tools, k, trim_range(name)));
        }
        if (!rc) rc = close_object(k);
        if (rc) return rc;
    }
    return rc;
}

/* --- calls as JSON --------------------------------------------------------------------------------------------------- */

static int add_object_call(struct tool_calls *c, const struct json *j) {
    const struct json *f = json_get(j, "function");
    const struct json *name = json_get(f && f->type == JSON_OBJECT ? f : j, "name"), *arguments = json_get(f && f->type == JSON_OBJECT ? f : j, "arguments");
    if (!name) name = json_get(j, "tool_name"); /* Cohere */
    if (!arguments) arguments = json_get(j, "parameters");
    if (!arguments) arguments = json_get(j, "args"); /* Inkling */
    if (!name || name->type != JSON_STRING || !name->n || (arguments && arguments->type != JSON_OBJECT && arguments->type != JSON_STRING)) return ERR_MODEL;
    struct markup_range of_name = {name->string, name->string + name->n};
    if (arguments && arguments->type == JSON_STRING)
        return add_json_call(c, of_name, (struct markup_range){arguments->string, arguments->string + arguments->n});
    struct tool_call *k = add_call(c, of_name);
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
static int parse_json_calls(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    t = trim_range(t);
    while (starts_with(t, "{")) {
        const struct markup_range more = trim_range((struct markup_range){skip_json(t), t.end});
        if (more.s <= t.s || !starts_with(more, "{")) break;
        TRY(add_json_value(c, trim_range((struct markup_range){t.s, more.s})));
        t = more;
    }
    return add_json_value(c, t);
}

/* One call a line: a server's calls (remote_request.c). */
static int parse_json_lines(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    struct markup_range line;
    int rc = ERR_MODEL;
    while (take_before(&t, "\n", &line))
        if ((rc = parse_json_calls(c, line, tools))) return rc;
    return rc;
}

/* Contents of <tool_call> and similar tags: JSON, or one of the forms above. */
static int parse_tagged(struct tool_calls *c, struct markup_range in, const struct json *tools) {
    in = trim_range(in);
    if (starts_with(in, "{") || starts_with(in, "[")) return parse_json_calls(c, in, tools);
    if (starts_with(in, "<function=")) return parse_functions(c, in, tools, true);
    if (starts_with(in, "<invoke")) return parse_invokes(c, in, "", tools);
    if (find_text(in, "<longcat_arg_key>")) return parse_keys(c, in, tools, "longcat_", "");
    return parse_glm(c, in, tools);
}

/* Hunyuan: a list in JSON, or <tool_call>NAME<tool_sep> and GLM's pairs, in tags that may all end with the same suffix. */
static int parse_hunyuan_calls(struct tool_calls *c, struct markup_range t, const struct json *tools, const char *suffix) {
    char open[48], close[48];
    struct markup_range in;
    int rc = ERR_MODEL;
    t = trim_range(t);
    if (starts_with(t, "{") || starts_with(t, "[")) return parse_json_calls(c, t, tools);
    snprintf(open, sizeof open, "<tool_call%s>", suffix);
    snprintf(close, sizeof close, "</tool_call%s>", suffix);
    while (take_between(&t, open, close, &in))
        if ((rc = parse_keys(c, in, tools, "", suffix))) return rc;
    return rc;
}
static int parse_hunyuan(struct tool_calls *c, struct markup_range t, const struct json *tools) { return parse_hunyuan_calls(c, t, tools, ""); }
static int parse_hunyuan_open(struct tool_calls *c, struct markup_range t, const struct json *tools) { return parse_hunyuan_calls(c, t, tools, ":opensource"); }

/* DeepSeek: function SEP NAME ```json … ```, or NAME SEP {…} */
static int parse_deepseek(struct tool_calls *c, struct markup_range in, const struct json *tools) {
    struct markup_range head, fence;
    if (!take_before(&in, "<｜tool▁sep｜>", &head)) return ERR_MODEL;
    head = trim_range(head);
    if (!starts_with(head, "function") || head.end - head.s != 8) return add_json_call(c, head, in);
    struct markup_range name = in;
    if (!take_call(&in, "```json", NULL, "```", &fence)) return ERR_MODEL;
    name.end = fence.s - strlen("```json");
    return add_json_call(c, name, fence);
}

/* Kimi: functions.NAME:0 ARGUMENT {…} */
static int parse_kimi(struct tool_calls *c, struct markup_range in, const struct json *tools) {
    struct markup_range name;
    if (!take_before(&in, "<|tool_call_argument_begin|>", &name)) return ERR_MODEL;
    name = trim_range(name);
    const struct markup_range id = name;
    for (const char *p = name.end; p > name.s; p--)
        if (p[-1] == ':') {
            name.end = p - 1;
            break;
        }
    int rc = add_json_call(c, name, in);
    return rc ? rc : buf_add(&c->v[c->n - 1].id, id.s, (size_t)(id.end - id.s));
}

/* Appends an attribute without its escapes. */
static int add_unescaped(struct buf *out, struct markup_range v) {
    static const struct { const char *escape, *text; } rows[] = {{"&quot;", "\""}, {"&amp;", "&"}};
    while (v.s < v.end) {
        size_t n = 1;
        const char *text = v.s;
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            if (starts_with(v, rows[i].escape)) text = rows[i].text, n = strlen(rows[i].escape);
        buf_add(out, text, 1);
        v.s += n;
    }
    return out->failed ? ERR_MEMORY : 0;
}
/* One call of Kimi K3: argument key="K" type="T" SEP V …, or json SEP {…} */
static int parse_xtml_call(struct tool_calls *c, struct markup_range name, struct markup_range in) {
    struct markup_range tag, key, type, value;
    struct buf text = {0};
    int rc = add_unescaped(&text, name);
    name = (struct markup_range){text.data, text.data + text.len};
    if (!rc && starts_with(in, "<|open|>json") && take_before(&in, "<|sep|>", &tag)) {
        const char *end = skip_json(in);
        rc = add_json_call(c, name, (struct markup_range){in.s, end > in.s ? end : in.end});
    } else if (!rc) {
        struct tool_call *k = text.len ? add_call(c, name) : NULL;
        rc = k ? 0 : text.len ? ERR_MEMORY : ERR_MODEL;
        while (!rc && take_between(&in, "<|open|>argument", "<|close|>argument<|sep|>", &value)) {
            if (!take_before(&value, "<|sep|>", &tag) || !find_attribute(tag, "key=\"", &key)) rc = ERR_MODEL;
            text.len = 0;
            if (!rc) rc = add_unescaped(&text, key);
            key = (struct markup_range){text.data, text.data + text.len};
            if (!rc) rc = add_argument(k, key, value, !find_attribute(tag, "type=\"", &type) || (type.end - type.s == 6 && starts_with(type, "string")));
        }
        if (!rc) rc = close_object(k);
    }
    buf_free(&text);
    return rc;
}
/* Kimi K3: call tool="NAME" index="1" SEP … */
static int parse_xtml(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    struct markup_range in, tag, name;
    int rc = ERR_MODEL;
    while (take_between(&t, "<|open|>call ", "<|close|>call<|sep|>", &in)) {
        if (!take_before(&in, "<|sep|>", &tag) || !find_attribute(tag, "tool=\"", &name)) return ERR_MODEL;
        if ((rc = parse_xtml_call(c, name, in))) return rc;
    }
    return rc;
}

/* gpt-oss: … to=functions.NAME … <|message|>{…}<|call|> */
static int parse_gpt_oss(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    struct markup_range name, in;
    int rc = ERR_MODEL;
    while (take_between(&t, "to=", "<|message|>", &name)) {
        const char *p = name.s;
        while (p < name.end && !strchr(" \t\r\n<", *p)) p++;
        name.end = p;
        if (!take_call(&t, "", NULL, "<|call|>", &in)) return ERR_MODEL;
        if ((rc = add_json_call(c, name, in))) return rc;
    }
    return rc;
}

/* --- calls in other notations, which are rewritten as JSON -------------------------------------------------------------- */

/* Copies a string in single or double quotes, whose escapes are Python's. */
static int put_quoted(struct buf *out, struct markup_range *t) {
    static const char plain[] = "n\nt\tr\r0\0";
    const char quote = *t->s++;
    struct buf text = {0};
    for (; t->s < t->end && *t->s != quote; t->s++) {
        char c = *t->s;
        if (c == '\\' && t->s + 1 < t->end) {
            c = *++t->s;
            for (size_t i = 0; i + 1 < sizeof plain - 1; i += 2)
                if (c == plain[i]) {
                    c = plain[i + 1];
                    break;
                }
        }
        buf_add(&text, &c, 1);
    }
    const bool is_closed = t->s < t->end;
    if (is_closed) t->s++;
    json_quote(out, text.data ? text.data : "", text.len);
    const int rc = text.failed || out->failed ? ERR_MEMORY : is_closed ? 0 : ERR_MODEL;
    buf_free(&text);
    return rc;
}

/* A word without quotes: a key if a colon follows, a number, Python's or JSON's constant, else a string. */
static void put_word(struct buf *out, struct markup_range word, bool is_key) {
    static const char *const constants[][2] = {{"true", "true"}, {"True", "true"}, {"false", "false"}, {"False", "false"}, {"null", "null"}, {"None", "null"}};
    struct arena arena = {0};
    struct json j;
    const size_t n = (size_t)(word.end - word.s);
    for (size_t i = 0; !is_key && i < sizeof constants / sizeof *constants; i++)
        if (n == strlen(constants[i][0]) && !memcmp(word.s, constants[i][0], n)) {
            buf_str(out, constants[i][1]);
            return;
        }
    const bool is_number = !is_key && !json_parse(&arena, word.s, n, 0, "value", &j, NULL) && (j.type == JSON_INT || j.type == JSON_FLOAT);
    if (is_number) buf_add(out, word.s, n);
    else json_quote(out, word.s, n);
    arena_free(&arena);
}

/* Copies a value up to a comma or a bracket that closes none of its own. mark: what surrounds strings (Gemma); NULL: quotes. */
static int put_value(struct buf *out, struct markup_range *t, const char *mark) {
    int depth = 0, rc = 0;
    const size_t n_mark = mark ? strlen(mark) : 0;
    while (!rc && t->s < t->end) {
        const char c = *t->s;
        struct markup_range text;
        if (!depth && strchr(",)]}", c)) return 0;
        if (mark && starts_with(*t, mark)) {
            t->s += n_mark;
            const char *end = find_text(*t, mark);
            if (!end) return ERR_MODEL;
            text = (struct markup_range){t->s, end};
            json_quote(out, text.s, (size_t)(text.end - text.s));
            t->s = end + n_mark;
        } else if (c == '"' || c == '\'') rc = put_quoted(out, t);
        else if (strchr("{[(}]),:", c) || is_blank(c)) {
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            buf_add(out, &c, 1);
            t->s++;
        } else {
            text = *t;
            while (t->s < t->end && !strchr("{}[](),:\"'", *t->s) && !(mark && starts_with(*t, mark))) t->s++;
            text.end = t->s;
            skip_blanks(t);
            put_word(out, trim_range(text), t->s < t->end && *t->s == ':');
        }
        if (out->failed) rc = ERR_MEMORY;
    }
    return rc ? rc : depth ? ERR_MODEL : 0;
}

/* Gemma 4: call:NAME{key:<|"|>text<|"|>,other:3} */
static int parse_gemma(struct tool_calls *c, struct markup_range in, const struct json *tools) {
    struct markup_range name;
    struct buf json = {0};
    in = trim_range(in);
    if (!starts_with(in, "call:")) return ERR_MODEL;
    in.s += strlen("call:");
    name = in;
    const char *open = memchr(in.s, '{', (size_t)(in.end - in.s));
    if (!open) return ERR_MODEL;
    name.end = in.s = open;
    int rc = put_value(&json, &in, "<|\"|>");
    if (!rc && in.s < in.end) rc = ERR_MODEL;
    if (!rc) rc = add_json_call(c, name, (struct markup_range){json.data, json.data + json.len});
    buf_free(&json);
    return rc;
}

/* LFM2, Llama 4: [name(key="text", other=3), …] */
static int parse_python(struct tool_calls *c, struct markup_range in, const struct json *tools) {
    int rc = ERR_MODEL;
    in = trim_range(in);
    if (starts_with(in, "[") && in.s + 1 < in.end) {
        struct markup_range first = trim_range((struct markup_range){in.s + 1, in.end});
        if (starts_with(first, "{")) return parse_json_calls(c, in, tools);
        in.s++, in.end -= in.end[-1] == ']';
    } else if (starts_with(in, "{")) return parse_json_calls(c, in, tools);
    while (skip_blanks(&in), in.s < in.end) {
        struct markup_range name, key;
        struct buf json = {0};
        if (!take_before(&in, "(", &name)) return ERR_MODEL;
        buf_str(&json, "{");
        for (rc = 0; skip_blanks(&in), !rc && in.s < in.end && *in.s != ')';) {
            if (!take_before(&in, "=", &key)) rc = ERR_MODEL;
            key = trim_range(key);
            if (!rc && json.len > 1) buf_str(&json, ", ");
            if (!rc) json_quote(&json, key.s, (size_t)(key.end - key.s)), buf_str(&json, ": ");
            skip_blanks(&in);
            if (!rc) rc = put_value(&json, &in, NULL);
            skip_blanks(&in);
            if (in.s < in.end && *in.s == ',') in.s++;
        }
        if (!rc && (in.s == in.end || buf_str(&json, "}"))) rc = in.s == in.end ? ERR_MODEL : ERR_MEMORY;
        if (!rc) rc = add_json_call(c, name, (struct markup_range){json.data, json.data + json.len});
        buf_free(&json);
        if (rc) return rc;
        in.s++;
        skip_blanks(&in);
        if (in.s < in.end && *in.s == ',') in.s++;
    }
    return rc;
}

/* MiniMax-M3: each tag begins with a mark, a parameter's tag is its name, and a value may have tags inside; those of lists are <item>. */
#define M3 "]<]minimax[>["
enum { M3_DEPTH = 16 };
static int put_minimax_value(struct buf *out, struct markup_range in, int is_string, int depth);
/* Copies the next parameter, as a member or as an element. */
static int put_minimax_member(struct buf *out, struct markup_range *t, bool is_item, const struct json *tools, const struct tool_call *k, int depth) {
    struct markup_range key, value;
    char close[160];
    if (!take_between(t, M3 "<", ">", &key) || key.end - key.s > 100 || depth > M3_DEPTH) return ERR_MODEL;
    snprintf(close, sizeof close, M3 "</%.*s>", (int)(key.end - key.s), key.s);
    const char *end = find_text(*t, close);
    if (!end) return ERR_MODEL;
    value = (struct markup_range){t->s, end};
    t->s = end + strlen(close);
    if (!is_item) json_quote(out, key.s, (size_t)(key.end - key.s)), buf_str(out, ": ");
    return put_minimax_value(out, value, k ? param_is_string(tools, k, key) : -1, depth + 1);
}
static int put_minimax_value(struct buf *out, struct markup_range in, int is_string, int depth) {
    struct markup_range trimmed = trim_range(in);
    int rc = 0;
    if (!starts_with(trimmed, M3 "<")) {
        struct arena arena = {0};
        struct json j;
        rc = is_string > 0 ? ERR_MODEL : json_parse(&arena, trimmed.s, (size_t)(trimmed.end - trimmed.s), 0, "value", &j, NULL);
        arena_free(&arena);
        if (rc == ERR_MEMORY) return rc;
        if (rc) json_quote(out, in.s, (size_t)(in.end - in.s));
        else buf_add(out, trimmed.s, (size_t)(trimmed.end - trimmed.s));
        return out->failed ? ERR_MEMORY : 0;
    }
    const bool is_list = starts_with(trimmed, M3 "<item>");
    buf_str(out, is_list ? "[" : "{");
    for (bool first = true; !rc && (skip_blanks(&trimmed), trimmed.s < trimmed.end); first = false) {
        if (!first) buf_str(out, ", ");
        rc = put_minimax_member(out, &trimmed, is_list, NULL, NULL, depth);
    }
    return rc ? rc : buf_str(out, is_list ? "]" : "}") ? ERR_MEMORY : 0;
}
static int parse_minimax_m3(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    struct markup_range in, name;
    int rc = ERR_MODEL;
    while (take_between(&t, M3 "<invoke name=\"", M3 "</invoke>", &in)) {
        if (!take_before(&in, "\">", &name)) return ERR_MODEL;
        struct tool_call *k = add_call(c, name);
        rc = k ? 0 : ERR_MEMORY;
        if (!rc) buf_str(&k->arguments, "{");
        while (!rc && (skip_blanks(&in), in.s < in.end)) {
            if (k->arguments.len > 1) buf_str(&k->arguments, ", ");
            rc = put_minimax_member(&k->arguments, &in, false, tools, k, 0);
        }
        if (!rc && buf_str(&k->arguments, "}")) rc = ERR_MEMORY;
        if (!rc) rc = check_json_object((struct markup_range){k->arguments.data, k->arguments.data + k->arguments.len});
        if (rc) return rc;
    }
    return rc;
}

/* --- dispatch -------------------------------------------------------------------------------------------------------- */

static int parse_seed(struct tool_calls *c, struct markup_range in, const struct json *tools) {
    return starts_with(trim_range(in), "<function=") ? parse_functions(c, in, tools, false) : parse_tagged(c, in, tools);
}
static int parse_plain_invokes(struct tool_calls *c, struct markup_range t, const struct json *tools) { return parse_invokes(c, t, "", tools); }
static int parse_atem_invokes(struct tool_calls *c, struct markup_range t, const struct json *tools) { return parse_invokes(c, t, "atem:", tools); }
static int parse_marked_invokes(struct tool_calls *c, struct markup_range t, const struct json *tools) { return parse_invokes(c, t, "｜DSML｜", tools); }
static int parse_spaced_invokes(struct tool_calls *c, struct markup_range t, const struct json *tools) { return parse_invokes(c, t, "｜DSML｜ ", tools); }
static int parse_gcml_invokes(struct tool_calls *c, struct markup_range t, const struct json *tools) { return parse_invokes(c, t, "｜GCML｜", tools); }
static int parse_step_invokes(struct tool_calls *c, struct markup_range t, const struct json *tools) { return parse_invokes(c, t, "steptml:", tools); }

/* Mistral: a list, or NAME[ARGS]{…} or NAME[CALL_ID]ID[ARGS]{…}, and again the mark */
static int parse_mistral(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    struct markup_range in, name, before_id;
    if (!take_between(&t, "[TOOL_CALLS]", NULL, &in)) return ERR_MODEL;
    if (skip_json(in) != trim_range(in).s) return parse_json_calls(c, in, tools);
    while (take_before(&in, "[ARGS]", &name)) {
        const char *next = find_text((struct markup_range){skip_json(in), in.end}, "[TOOL_CALLS]");
        struct markup_range id = name;
        const bool has_id = take_before(&id, "[CALL_ID]", &before_id);
        int rc = add_json_call(c, has_id ? before_id : name, (struct markup_range){in.s, next ? next : in.end});
        if (!rc && has_id) rc = buf_add(&c->v[c->n - 1].id, id.s, (size_t)(id.end - id.s));
        if (rc || !next) return rc;
        in.s = next + strlen("[TOOL_CALLS]");
    }
    return ERR_MODEL;
}
/* GigaChat: one call to the end of the answer, or to the mark that ends a message. */
static int parse_gigachat(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    struct markup_range in;
    if (!take_before(&t, "<|function_call|>", &in) && !take_before(&t, "<|role_sep|>", &in)) return ERR_MODEL;
    return parse_json_calls(c, (struct markup_range){t.s, skip_json(t)}, tools);
}
/* Solar Open: ID<|tool_call:name|>NAME<|tool_call:args|>{…} */
static int parse_solar(struct tool_calls *c, struct markup_range in, const struct json *tools) {
    struct markup_range id, name;
    if (!take_before(&in, "<|tool_call:name|>", &id) || !take_before(&in, "<|tool_call:args|>", &name)) return ERR_MODEL;
    TRY(add_json_call(c, name, in));
    id = trim_range(id);
    return buf_add(&c->v[c->n - 1].id, id.s, (size_t)(id.end - id.s));
}
static int parse_llama(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    struct markup_range in;
    return take_between(&t, "<|python_tag|>", NULL, &in) ? parse_json_calls(c, in, tools) : ERR_MODEL;
}

/* The form of a markup is that of the mark that comes first in it. */
static const struct form {
    const char *open, *head, *close; /* around each call, and before its arguments; close is NULL: `parse` takes all of the markup */
    int (*parse)(struct tool_calls *, struct markup_range, const struct json *tools);
} forms[] = {
    {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", parse_deepseek},
    {"<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", parse_kimi},
    {"<|open|>call ", NULL, NULL, parse_xtml},
    {"<｜DSML｜invoke", NULL, NULL, parse_marked_invokes},
    {"<｜DSML｜ invoke", NULL, NULL, parse_spaced_invokes},
    {"<｜GCML｜invoke", NULL, NULL, parse_gcml_invokes},
    {"<｜tool_calls_begin｜>", NULL, NULL, parse_step_invokes},
    {"<minimax:tool_call>", NULL, NULL, parse_plain_invokes},
    {"<|message|>", NULL, NULL, parse_gpt_oss},
    {"<tool_call>", NULL, "</tool_call>", parse_tagged},
    {"<seed:tool_call>", NULL, "</seed:tool_call>", parse_seed},
    {"<longcat_tool_call>", NULL, "</longcat_tool_call>", parse_tagged},
    {"<tool_calls>", NULL, "</tool_calls>", parse_hunyuan},
    {"<tool_calls:opensource>", NULL, "</tool_calls:opensource>", parse_hunyuan_open},
    {"<|python_start|>", NULL, "<|python_end|>", parse_python},
    {"<|tool_call_start|>", NULL, "<|tool_call_end|>", parse_python},
    {"<|tool_call>", NULL, "<tool_call|>", parse_gemma},
    {"<|START_ACTION|>", NULL, "<|END_ACTION|>", parse_json_calls},              /* Cohere */
    {"<|content_invoke_tool_json|>", NULL, "<|end_message|>", parse_json_calls}, /* Inkling */
    {M3 "<tool_call>", NULL, NULL, parse_minimax_m3},
    {"<dots_function_call>", NULL, NULL, parse_plain_invokes},
    {"<atem:function_calls>", NULL, NULL, parse_atem_invokes}, /* Muse */
    {"<|tool_call|>", NULL, "<|/tool_call|>", parse_json_calls},
    {"<TOOLCALL>", NULL, "</TOOLCALL>", parse_json_calls}, /* Nemotron Nano 2 */
    {"[unused11]", NULL, "[unused12]", parse_json_calls},  /* openPangu */
    {"[TOOL_CALLS]", NULL, NULL, parse_mistral},
    {"<|tool_call:begin|>", "<|tool_call:args|>", "<|tool_call:end|>", parse_solar},
    {"<|function_call|>", NULL, NULL, parse_gigachat},
    {"function call<|role_sep|>", NULL, NULL, parse_gigachat},
    {"<|python_tag|>", NULL, NULL, parse_llama},
};

static int parse_markup(struct markup_range t, const struct json *tools, struct tool_calls *c) {
    if (starts_with(t, "{")) return parse_json_lines(c, t, tools);
    const struct form *f = NULL;
    const char *first = NULL;
    struct markup_range in;
    int rc = ERR_MODEL;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const char *at = find_text(t, forms[i].open);
        if (at && (!first || at < first)) first = at, f = &forms[i];
    }
    if (!f || !f->close) return f ? f->parse(c, t, tools) : ERR_MODEL;
    while (take_call(&t, f->open, f->head, f->close, &in))
        if ((rc = f->parse(c, in, tools))) return rc;
    return rc;
}

int tool_calls_parse(const char *s, size_t n, const struct json *tools, struct tool_calls *out) {
    size_t n_before = out->n;
    int rc = parse_markup((struct markup_range){s, s + n}, tools, out);
    if (rc) tool_calls_truncate(out, n_before);
    return rc;
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
        if (copy->name.failed || copy->arguments.failed || copy->id.failed) return tool_calls_truncate(to, n_before), ERR_MEMORY;
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

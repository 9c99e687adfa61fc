/* Forms of tool calls whose arguments are in tags of their own. */
#include <stdio.h>
#include <string.h>

#include "tokenizer/chat/tool_calls_internal.h"

static struct markup_range strip_line_ends(struct markup_range t) {
    if (t.s < t.end && *t.s == '\n') t.s++;
    if (t.end > t.s && t.end[-1] == '\n') t.end--;
    return t;
}

/* GLM: NAME, then <arg_key>K</arg_key> <arg_value>V</arg_value> …; LongCat's tags begin with `prefix`, Hunyuan's have a
 * mark after NAME and may end with `suffix`. */
static int parse_keys(struct tool_calls *c, struct markup_range body, const struct json *tools, const char *prefix,
                      const char *suffix) {
    char key_open[48], key_close[48], value_open[48], value_close[48], separator[48];
    snprintf(key_open, sizeof key_open, "<%sarg_key%s>", prefix, suffix);
    snprintf(key_close, sizeof key_close, "</%sarg_key%s>", prefix, suffix);
    snprintf(value_open, sizeof value_open, "<%sarg_value%s>", prefix, suffix);
    snprintf(value_close, sizeof value_close, "</%sarg_value%s>", prefix, suffix);
    snprintf(separator, sizeof separator, "<tool_sep%s>", suffix);
    const char *first = markup_find(body, separator);
    if (!first) first = markup_find(body, key_open);
    struct markup_range name = {body.s, first ? first : body.end}, key, value;
    if (markup_trim(name).s == markup_trim(name).end || markup_find(name, "<") || markup_find(name, "{"))
        return ERR_MODEL;
    struct tool_call *k = tool_call_add(c, name);
    if (!k) return ERR_MEMORY;
    int rc = 0;
    while (!rc && markup_take_between(&body, key_open, key_close, &key)) {
        if (!markup_take_between(&body, value_open, value_close, &value)) return ERR_MODEL;
        rc = tool_call_add_argument(k, key, value, tool_call_param_is_string(tools, k, markup_trim(key)));
    }
    return rc ? rc : tool_call_close_arguments(k);
}

static int parse_glm(struct tool_calls *c, struct markup_range body, const struct json *tools) {
    return parse_keys(c, body, tools, "", "");
}

/* <invoke name="F"> <parameter name="K">V</parameter> … </invoke>; mark precedes each tag name (DeepSeek's ｜DSML｜,
 * GigaChat's ｜GCML｜, Step's steptml:). */
static int parse_invokes(struct tool_calls *c, struct markup_range t, const char *mark, const struct json *tools) {
    char open[48], close[48], p_open[48], p_close[48];
    struct markup_range in, tag, name, body, string;
    int rc = ERR_MODEL;
    snprintf(open, sizeof open, "<%sinvoke", mark);
    snprintf(close, sizeof close, "</%sinvoke>", mark);
    snprintf(p_open, sizeof p_open, "<%sparameter", mark);
    snprintf(p_close, sizeof p_close, "</%sparameter>", mark);
    while (markup_take_between(&t, open, close, &in)) {
        if (!markup_take_before(&in, ">", &tag) || !markup_find_attribute(tag, "name=\"", &name)) return ERR_MODEL;
        struct tool_call *k = tool_call_add(c, name);
        rc = k ? 0 : ERR_MEMORY;
        while (!rc && markup_take_between(&in, p_open, p_close, &body)) {
            if (!markup_take_before(&body, ">", &tag) || !markup_find_attribute(tag, "name=\"", &name))
                return ERR_MODEL;
            int typed = markup_find_attribute(tag, "string=\"", &string) ? markup_starts_with(string, "true")
                                                                         : tool_call_param_is_string(tools, k, name);
            rc = tool_call_add_argument(k, name, body, typed);
        }
        if (!rc) rc = tool_call_close_arguments(k);
        if (rc) return rc;
    }
    return rc;
}

/* Qwen3-Coder: <function=F> <parameter=K>\nV\n</parameter> … </function>; Seed-OSS has no line ends around V. */
static int parse_functions(struct tool_calls *c, struct markup_range t, const struct json *tools, bool has_line_ends) {
    struct markup_range in, name, body;
    int rc = ERR_MODEL;
    while (markup_take_between(&t, "<function=", "</function>", &in)) {
        if (!markup_take_before(&in, ">", &name)) return ERR_MODEL;
        struct tool_call *k = tool_call_add(c, name);
        rc = k ? 0 : ERR_MEMORY;
        while (!rc && markup_take_between(&in, "<parameter=", "</parameter>", &body)) {
            if (!markup_take_before(&body, ">", &name)) return ERR_MODEL;
            rc = tool_call_add_argument(k, name, has_line_ends ? strip_line_ends(body) : body,
                                        tool_call_param_is_string(tools, k, markup_trim(name)));
        }
        if (!rc) rc = tool_call_close_arguments(k);
        if (rc) return rc;
    }
    return rc;
}

/* Contents of <tool_call> and similar tags: JSON, or one of the forms above. */
int tool_calls_parse_tagged(struct tool_calls *c, struct markup_range in, const struct json *tools) {
    in = markup_trim(in);
    if (markup_starts_with(in, "{") || markup_starts_with(in, "[")) return tool_calls_parse_json(c, in, tools);
    if (markup_starts_with(in, "<function=")) return parse_functions(c, in, tools, true);
    if (markup_starts_with(in, "<invoke")) return parse_invokes(c, in, "", tools);
    if (markup_find(in, "<longcat_arg_key>")) return parse_keys(c, in, tools, "longcat_", "");
    return parse_glm(c, in, tools);
}

int tool_calls_parse_seed(struct tool_calls *c, struct markup_range in, const struct json *tools) {
    return markup_starts_with(markup_trim(in), "<function=") ? parse_functions(c, in, tools, false)
                                                             : tool_calls_parse_tagged(c, in, tools);
}

/* Hunyuan: a list in JSON, or <tool_call>NAME<tool_sep> and GLM's pairs, in tags that may all end with the same
 * suffix. */
static int parse_hunyuan_calls(struct tool_calls *c, struct markup_range t, const struct json *tools,
                               const char *suffix) {
    char open[48], close[48];
    struct markup_range in;
    int rc = ERR_MODEL;
    t = markup_trim(t);
    if (markup_starts_with(t, "{") || markup_starts_with(t, "[")) return tool_calls_parse_json(c, t, tools);
    snprintf(open, sizeof open, "<tool_call%s>", suffix);
    snprintf(close, sizeof close, "</tool_call%s>", suffix);
    while (markup_take_between(&t, open, close, &in))
        if ((rc = parse_keys(c, in, tools, "", suffix))) return rc;
    return rc;
}

int tool_calls_parse_hunyuan(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    return parse_hunyuan_calls(c, t, tools, "");
}

int tool_calls_parse_hunyuan_open(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    return parse_hunyuan_calls(c, t, tools, ":opensource");
}

int tool_calls_parse_plain_invokes(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    return parse_invokes(c, t, "", tools);
}

int tool_calls_parse_atem_invokes(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    return parse_invokes(c, t, "atem:", tools);
}

int tool_calls_parse_marked_invokes(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    return parse_invokes(c, t, "｜DSML｜", tools);
}

int tool_calls_parse_spaced_invokes(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    return parse_invokes(c, t, "｜DSML｜ ", tools);
}

int tool_calls_parse_gcml_invokes(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    return parse_invokes(c, t, "｜GCML｜", tools);
}

int tool_calls_parse_step_invokes(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    return parse_invokes(c, t, "steptml:", tools);
}

/* Appends an attribute without its escapes. */
static int add_unescaped(struct buf *out, struct markup_range v) {
    static const struct { const char *escape, *text; } rows[] = {{"&quot;", "\""}, {"&amp;", "&"}};
    while (v.s < v.end) {
        size_t n = 1;
        const char *text = v.s;
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            if (markup_starts_with(v, rows[i].escape)) text = rows[i].text, n = strlen(rows[i].escape);
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
    if (!rc && markup_starts_with(in, "<|open|>json") && markup_take_before(&in, "<|sep|>", &tag)) {
        const char *end = markup_skip_json(in);
        rc = tool_call_add_json(c, name, (struct markup_range){in.s, end > in.s ? end : in.end});
    } else if (!rc) {
        struct tool_call *k = text.len ? tool_call_add(c, name) : NULL;
        rc = k ? 0 : text.len ? ERR_MEMORY : ERR_MODEL;
        while (!rc && markup_take_between(&in, "<|open|>argument", "<|close|>argument<|sep|>", &value)) {
            if (!markup_take_before(&value, "<|sep|>", &tag) || !markup_find_attribute(tag, "key=\"", &key))
                rc = ERR_MODEL;
            text.len = 0;
            if (!rc) rc = add_unescaped(&text, key);
            key = (struct markup_range){text.data, text.data + text.len};
            if (!rc)
                rc = tool_call_add_argument(k, key, value,
                                            !markup_find_attribute(tag, "type=\"", &type) ||
                                                (type.end - type.s == 6 && markup_starts_with(type, "string")));
        }
        if (!rc) rc = tool_call_close_arguments(k);
    }
    buf_free(&text);
    return rc;
}

/* Kimi K3: call tool="NAME" index="1" SEP … */
int tool_calls_parse_xtml(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    struct markup_range in, tag, name;
    int rc = ERR_MODEL;
    while (markup_take_between(&t, "<|open|>call ", "<|close|>call<|sep|>", &in)) {
        if (!markup_take_before(&in, "<|sep|>", &tag) || !markup_find_attribute(tag, "tool=\"", &name))
            return ERR_MODEL;
        if ((rc = parse_xtml_call(c, name, in))) return rc;
    }
    return rc;
}

/* MiniMax-M3: each tag begins with a mark, a parameter's tag is its name, and a value may have tags inside; those of
 * lists are <item>. */
enum { MINIMAX_DEPTH = 16 };

static int put_minimax_value(struct buf *out, struct markup_range in, int is_string, int depth);

/* Copies the next parameter, as a member or as an element. */
static int put_minimax_member(struct buf *out, struct markup_range *t, bool is_item, const struct json *tools,
                              const struct tool_call *k, int depth) {
    struct markup_range key, value;
    char close[160];
    if (!markup_take_between(t, MINIMAX_MARK "<", ">", &key) || key.end - key.s > 100 || depth > MINIMAX_DEPTH)
        return ERR_MODEL;
    snprintf(close, sizeof close, MINIMAX_MARK "</%.*s>", (int)(key.end - key.s), key.s);
    const char *end = markup_find(*t, close);
    if (!end) return ERR_MODEL;
    value = (struct markup_range){t->s, end};
    t->s = end + strlen(close);
    if (!is_item) json_quote(out, key.s, (size_t)(key.end - key.s)), buf_str(out, ": ");
    return put_minimax_value(out, value, k ? tool_call_param_is_string(tools, k, key) : -1, depth + 1);
}

static int put_minimax_value(struct buf *out, struct markup_range in, int is_string, int depth) {
    struct markup_range trimmed = markup_trim(in);
    int rc = 0;
    if (!markup_starts_with(trimmed, MINIMAX_MARK "<")) {
        struct arena arena = {0};
        struct json j;
        rc = is_string > 0 ? ERR_MODEL
                           : json_parse(&arena, trimmed.s, (size_t)(trimmed.end - trimmed.s), 0, "value", &j, NULL);
        arena_free(&arena);
        if (rc == ERR_MEMORY) return rc;
        if (rc) json_quote(out, in.s, (size_t)(in.end - in.s));
        else buf_add(out, trimmed.s, (size_t)(trimmed.end - trimmed.s));
        return out->failed ? ERR_MEMORY : 0;
    }
    const bool is_list = markup_starts_with(trimmed, MINIMAX_MARK "<item>");
    buf_str(out, is_list ? "[" : "{");
    for (bool first = true; !rc && (markup_skip_blanks(&trimmed), trimmed.s < trimmed.end); first = false) {
        if (!first) buf_str(out, ", ");
        rc = put_minimax_member(out, &trimmed, is_list, NULL, NULL, depth);
    }
    return rc ? rc : buf_str(out, is_list ? "]" : "}") ? ERR_MEMORY : 0;
}

int tool_calls_parse_minimax_m3(struct tool_calls *c, struct markup_range t, const struct json *tools) {
    struct markup_range in, name;
    int rc = ERR_MODEL;
    while (markup_take_between(&t, MINIMAX_MARK "<invoke name=\"", MINIMAX_MARK "</invoke>", &in)) {
        if (!markup_take_before(&in, "\">", &name)) return ERR_MODEL;
        struct tool_call *k = tool_call_add(c, name);
        rc = k ? 0 : ERR_MEMORY;
        if (!rc) buf_str(&k->arguments, "{");
        while (!rc && (markup_skip_blanks(&in), in.s < in.end)) {
            if (k->arguments.len > 1) buf_str(&k->arguments, ", ");
            rc = put_minimax_member(&k->arguments, &in, false, tools, k, 0);
        }
        if (!rc && buf_str(&k->arguments, "}")) rc = ERR_MEMORY;
        if (!rc)
            rc = tool_call_check_object((struct markup_range){k->arguments.data, k->arguments.data + k->arguments.len});
        if (rc) return rc;
    }
    return rc;
}

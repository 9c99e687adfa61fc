/* Forms of tool calls in other notations, which are rewritten as JSON. */
#include <string.h>

#include "tokenizer/chat/tool_calls_internal.h"

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
    static const char *const constants[][2] = {{"true", "true"},   {"True", "true"}, {"false", "false"},
                                               {"False", "false"}, {"null", "null"}, {"None", "null"}};
    struct arena arena = {0};
    struct json j;
    const size_t n = (size_t)(word.end - word.s);
    for (size_t i = 0; !is_key && i < sizeof constants / sizeof *constants; i++)
        if (n == strlen(constants[i][0]) && !memcmp(word.s, constants[i][0], n)) {
            buf_str(out, constants[i][1]);
            return;
        }
    const bool is_number =
        !is_key && !json_parse(&arena, word.s, n, 0, "value", &j, NULL) && (j.type == JSON_INT || j.type == JSON_FLOAT);
    if (is_number) buf_add(out, word.s, n);
    else json_quote(out, word.s, n);
    arena_free(&arena);
}

/* Copies a value up to a comma or a bracket that closes none of its own. mark: what surrounds strings (Gemma); NULL:
 * quotes. */
static int put_value(struct buf *out, struct markup_range *t, const char *mark) {
    int depth = 0, rc = 0;
    const size_t n_mark = mark ? strlen(mark) : 0;
    while (!rc && t->s < t->end) {
        const char c = *t->s;
        struct markup_range text;
        if (!depth && strchr(",)]}", c)) return 0;
        if (mark && markup_starts_with(*t, mark)) {
            t->s += n_mark;
            const char *end = markup_find(*t, mark);
            if (!end) return ERR_MODEL;
            text = (struct markup_range){t->s, end};
            json_quote(out, text.s, (size_t)(text.end - text.s));
            t->s = end + n_mark;
        } else if (c == '"' || c == '\'') rc = put_quoted(out, t);
        else if (strchr("{[(}]),:", c) || markup_is_blank(c)) {
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            buf_add(out, &c, 1);
            t->s++;
        } else {
            text = *t;
            while (t->s < t->end && !strchr("{}[](),:\"'", *t->s) && !(mark && markup_starts_with(*t, mark))) t->s++;
            text.end = t->s;
            markup_skip_blanks(t);
            put_word(out, markup_trim(text), t->s < t->end && *t->s == ':');
        }
        if (out->failed) rc = ERR_MEMORY;
    }
    return rc ? rc : depth ? ERR_MODEL : 0;
}

int tool_calls_put_python(struct buf *out, struct markup_range value) {
    if (!markup_starts_with(value, "[") && !markup_starts_with(value, "{")) return ERR_MODEL;
    const int rc = put_value(out, &value, NULL);
    return rc || value.s == value.end ? rc : ERR_MODEL;
}

/* Gemma 4: call:NAME{key:<|"|>text<|"|>,other:3} */
int tool_calls_parse_gemma(const struct call_parser *p, struct markup_range in) {
    struct markup_range name;
    struct buf json = {0};
    in = markup_trim(in);
    if (!markup_starts_with(in, "call:")) return ERR_MODEL;
    in.s += strlen("call:");
    name = in;
    const char *open = memchr(in.s, '{', (size_t)(in.end - in.s));
    if (!open) return ERR_MODEL;
    name.end = in.s = open;
    int rc = put_value(&json, &in, "<|\"|>");
    if (!rc && in.s < in.end) rc = ERR_MODEL;
    if (!rc) rc = tool_call_add_json(p->calls, name, (struct markup_range){json.data, json.data + json.len});
    buf_free(&json);
    return rc;
}

/* LFM2, Llama 4: [name(key="text", other=3), …] */
int tool_calls_parse_python(const struct call_parser *p, struct markup_range in) {
    int rc = ERR_MODEL;
    in = markup_trim(in);
    if (markup_starts_with(in, "[") && in.s + 1 < in.end) {
        struct markup_range first = markup_trim((struct markup_range){in.s + 1, in.end});
        if (markup_starts_with(first, "{")) return tool_calls_parse_json(p, in);
        in.s++, in.end -= in.end[-1] == ']';
    } else if (markup_starts_with(in, "{")) return tool_calls_parse_json(p, in);
    while (markup_skip_blanks(&in), in.s < in.end) {
        struct markup_range name, key;
        struct buf json = {0};
        if (!markup_take_before(&in, "(", &name)) return ERR_MODEL;
        buf_str(&json, "{");
        for (rc = 0; markup_skip_blanks(&in), !rc && in.s < in.end && *in.s != ')';) {
            if (!markup_take_before(&in, "=", &key)) {
                rc = ERR_MODEL;
                break;
            }
            key = markup_trim(key);
            if (json.len > 1) buf_str(&json, ", ");
            json_quote(&json, key.s, (size_t)(key.end - key.s));
            buf_str(&json, ": ");
            markup_skip_blanks(&in);
            rc = put_value(&json, &in, NULL);
            markup_skip_blanks(&in);
            if (in.s < in.end && *in.s == ',') in.s++;
        }
        if (!rc && (in.s == in.end || buf_str(&json, "}"))) rc = in.s == in.end ? ERR_MODEL : ERR_MEMORY;
        if (!rc) rc = tool_call_add_json(p->calls, name, (struct markup_range){json.data, json.data + json.len});
        buf_free(&json);
        if (rc) return rc;
        in.s++;
        markup_skip_blanks(&in);
        if (in.s < in.end && *in.s == ',') in.s++;
    }
    return rc;
}

/* Forms of tool calls whose arguments are in tags of their own. */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "tokenizer/chat/tool_calls_internal.h"

static struct markup_range strip_line_ends(struct markup_range t) {
    if (t.s < t.end && *t.s == '\n') t.s++;
    if (t.end > t.s && t.end[-1] == '\n') t.end--;
    return t;
}

struct tags {
    char open[48], close[48];
};
/* Returns the tags of a name between a prefix and a suffix, which may be NULL. end: of the opening tag's text. */
static struct tags tags_of(const char *prefix, const char *name, const char *suffix, const char *end) {
    struct tags t;
    prefix = prefix ? prefix : "";
    suffix = suffix ? suffix : "";
    snprintf(t.open, sizeof t.open, "<%s%s%s%s", prefix, name, suffix, end);
    snprintf(t.close, sizeof t.close, "</%s%s%s>", prefix, name, suffix);
    return t;
}

/* Kinds of a value whose tag says whether it is a string. */
static unsigned kinds_if(bool is_string) { return is_string ? KIND_PLAIN : KIND_ALL & ~(unsigned)KIND_STRING; }

/* Finds the text between the next `open` and the `close` that ends it: a value may have that tag in it, as when a model
 * writes about its own calls. So what follows must begin another element (next), or be the end or `close` again. If no
 * `close` is followed so, the first one counts, or if the markup goes on, none. */
static bool take_element(const struct call_parser *p, struct markup_range *rest, const char *open, const char *close,
                         const char *next, struct markup_range *in) {
    if (!markup_take_between(rest, open, close, in)) return false;
    const char *first = in->end;
    if (p->goes_on) in->end = rest->s = rest->end;
    for (const char *at = first; at && at < rest->end;
         at = markup_find((struct markup_range){at + 1, rest->end}, close)) {
        struct markup_range then = {at + strlen(close), rest->end};
        markup_skip_blanks(&then);
        if (then.s < then.end && !markup_starts_with(then, next) && !markup_starts_with(then, close)) continue;
        in->end = at, rest->s = at + strlen(close);
        break;
    }
    return true;
}

/* GLM: NAME, then <arg_key>K</arg_key> <arg_value>V</arg_value> …; LongCat's tags begin with a prefix, Hunyuan's have a
 * mark after NAME and may end with a suffix. */
static int parse_pairs(const struct call_parser *p, struct markup_range body, const char *prefix, const char *suffix) {
    const struct tags of_key = tags_of(prefix, "arg_key", suffix, ">"),
                      of_value = tags_of(prefix, "arg_value", suffix, ">"),
                      separator = tags_of(NULL, "tool_sep", suffix, ">");
    const char *first = markup_find(body, separator.open);
    if (!first) first = markup_find(body, of_key.open);
    struct markup_range name = {body.s, first ? first : body.end}, key, value;
    if (markup_trim(name).s == markup_trim(name).end || markup_find(name, "<") || markup_find(name, "{"))
        return ERR_MODEL;
    struct tool_call *k = tool_call_add(p->calls, name);
    if (!k) return ERR_MEMORY;
    int rc = 0;
    while (!rc && markup_take_between(&body, of_key.open, of_key.close, &key)) {
        if (!take_element(p, &body, of_value.open, of_value.close, of_key.open, &value)) return ERR_MODEL;
        rc = tool_call_add_argument(k, key, value, tool_call_param_kinds(p->tools, k, markup_trim(key)));
    }
    return rc ? rc : tool_call_close_arguments(k);
}

/* Takes an opening tag, which ends with its element's name or has the name as an attribute. */
static bool take_name(struct markup_range *in, bool is_attribute, struct markup_range *tag, struct markup_range *name) {
    if (!markup_take_before(in, ">", tag)) return false;
    *name = *tag;
    return !is_attribute || markup_find_attribute(*tag, "name=\"", name);
}

/* Names of the elements of calls and of their arguments. */
struct elements {
    const char *call, *argument;
    bool are_attributes; /* names are attributes of the tags; otherwise they follow '=' */
    bool keeps_line_ends, have_cdata;
};
#define CDATA     "<![CDATA["
#define CDATA_END "]]>"

/* Finds the text of a value in CDATA, up to the tag that closes the argument; any tag may stand in the text. A text
 * that contains CDATA_END is written as two sections in a row, which are joined in `joined`. */
static bool take_cdata(struct markup_range *rest, const char *close, struct buf *joined, struct markup_range *value) {
    struct markup_range at = *rest, part, between;
    joined->len = 0;
    for (int n = 0; markup_starts_with(at, CDATA); n++) {
        at.s += strlen(CDATA);
        if (!markup_take_before(&at, CDATA_END, &part)) return false;
        *value = part;
        if (!n && !markup_starts_with(at, CDATA)) break;
        buf_add(joined, part.s, (size_t)(part.end - part.s));
        *value = (struct markup_range){joined->data, joined->data + joined->len};
    }
    if (!markup_take_before(&at, close, &between)) return false;
    *rest = at;
    return true;
}

/* Finds the next argument. 1: found; 0: there is none, or its end is missing; -1: it has no name. */
static int take_argument(const struct call_parser *p, struct markup_range *rest, const struct tags *of,
                         const struct elements *e, struct buf *joined, struct markup_range *tag,
                         struct markup_range *name, struct markup_range *value) {
    struct markup_range after = *rest, before;
    if (e->have_cdata && markup_take_before(&after, of->open, &before) &&
        take_name(&after, e->are_attributes, tag, name)) {
        markup_skip_blanks(&after);
        if (markup_starts_with(after, CDATA))
            return take_cdata(&after, of->close, joined, value) ? *rest = after, 1 : 0;
    }
    if (!take_element(p, rest, of->open, of->close, of->open, value)) return 0;
    if (!take_name(value, e->are_attributes, tag, name)) return -1;
    if (!e->keeps_line_ends) *value = strip_line_ends(*value);
    return 1;
}

/* <invoke name="F"> <parameter name="K">V</parameter> … </invoke>, and prefixes precede the tags' names (DeepSeek's
 * ｜DSML｜, Step's steptml:); Qwen3-Coder: <function=F> <parameter=K>\nV\n</parameter> … </function>; MiniCPM5:
 * <function name="F"><param name="K">V</param> … </function>. */
static int parse_elements(const struct call_parser *p, struct markup_range t, const char *prefix,
                          const struct elements *e) {
    const char *end = e->are_attributes ? "" : "=";
    const struct tags of_call = tags_of(prefix, e->call, NULL, end), of_value = tags_of(prefix, e->argument, NULL, end);
    struct markup_range in, tag, name, body, string;
    struct buf joined = {0};
    int rc = ERR_MODEL, found;
    while (take_element(p, &t, of_call.open, of_call.close, of_call.open, &in)) {
        struct tool_call *k = NULL;
        rc = !take_name(&in, e->are_attributes, &tag, &name) ? ERR_MODEL
             : !(k = tool_call_add(p->calls, name))          ? ERR_MEMORY
                                                             : 0;
        while (!rc && (found = take_argument(p, &in, &of_value, e, &joined, &tag, &name, &body)) != 0) {
            if (found < 0 || joined.failed) {
                rc = found < 0 ? ERR_MODEL : ERR_MEMORY;
                break;
            }
            const bool is_typed = e->are_attributes && markup_find_attribute(tag, "string=\"", &string);
            rc = tool_call_add_argument(
                k, name, body,
                is_typed ? kinds_if(markup_starts_with(string, "true"))
                         : tool_call_param_kinds(p->tools, k, e->are_attributes ? name : markup_trim(name)));
        }
        if (!rc) rc = tool_call_close_arguments(k);
        if (rc) break;
    }
    buf_free(&joined);
    return rc;
}

static const struct elements invokes = {"invoke", "parameter", true, true, false};

int tool_calls_parse_invokes(const struct call_parser *p, struct markup_range in) {
    return parse_elements(p, in, p->dialect->prefix, &invokes);
}

int tool_calls_parse_functions(const struct call_parser *p, struct markup_range in) {
    static const struct elements functions = {"function", "param", true, true, true};
    return p->goes_on || markup_find(in, "</function>") ? parse_elements(p, in, NULL, &functions) : ERR_MODEL;
}

/* Contents of <tool_call> and similar tags: JSON, or one of the forms above. */
int tool_calls_parse_tagged(const struct call_parser *p, struct markup_range in) {
    const struct markup_range t = markup_trim(in);
    const bool keeps_line_ends = p->dialect->keeps_line_ends;
    if (markup_starts_with(t, "{") || markup_starts_with(t, "[")) return tool_calls_parse_json(p, t);
    const struct elements functions = {"function", "parameter", false, keeps_line_ends, false};
    if (markup_starts_with(t, "<function=")) return parse_elements(p, keeps_line_ends ? in : t, NULL, &functions);
    if (markup_starts_with(t, "<invoke")) return parse_elements(p, t, NULL, &invokes);
    return parse_pairs(p, t, markup_find(t, "<" LONGCAT "arg_key>") ? LONGCAT : NULL, NULL);
}

/* Hunyuan: a list in JSON, or <tool_call>NAME<tool_sep> and GLM's pairs, in tags that may all end with the same
 * suffix. */
int tool_calls_parse_hunyuan(const struct call_parser *p, struct markup_range t) {
    const struct tags of_call = tags_of(NULL, "tool_call", p->dialect->suffix, ">");
    struct markup_range in;
    int rc = ERR_MODEL;
    t = markup_trim(t);
    if (markup_starts_with(t, "{") || markup_starts_with(t, "[")) return tool_calls_parse_json(p, t);
    while (markup_take_between(&t, of_call.open, of_call.close, &in))
        if ((rc = parse_pairs(p, in, NULL, p->dialect->suffix))) return rc;
    return rc;
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
static int parse_xtml_call(const struct call_parser *p, struct markup_range name, struct markup_range in) {
    struct markup_range tag, key, type, value;
    struct buf text = {0};
    int rc = buf_str(&text, "") ? ERR_MEMORY : add_unescaped(&text, name); /* text.data is not NULL */
    name = (struct markup_range){text.data, text.data + text.len};
    if (!rc && markup_starts_with(in, "<|open|>json") && markup_take_before(&in, "<|sep|>", &tag)) {
        const char *end = markup_skip_json(in);
        rc = tool_call_add_json(p->calls, name, (struct markup_range){in.s, end > in.s ? end : in.end});
    } else if (!rc) {
        struct tool_call *k = text.len ? tool_call_add(p->calls, name) : NULL;
        rc = k ? 0 : text.len ? ERR_MEMORY : ERR_MODEL;
        while (!rc && markup_take_between(&in, "<|open|>argument", "<|close|>argument<|sep|>", &value)) {
            if (!markup_take_before(&value, "<|sep|>", &tag) || !markup_find_attribute(tag, "key=\"", &key))
                rc = ERR_MODEL;
            text.len = 0;
            if (!rc) rc = add_unescaped(&text, key);
            key = (struct markup_range){text.data, text.data + text.len};
            if (!rc)
                rc = tool_call_add_argument(k, key, value,
                                            kinds_if(!markup_find_attribute(tag, "type=\"", &type) ||
                                                     (type.end - type.s == 6 && markup_starts_with(type, "string"))));
        }
        if (!rc) rc = tool_call_close_arguments(k);
    }
    buf_free(&text);
    return rc;
}

/* Kimi K3: call tool="NAME" index="1" SEP … */
int tool_calls_parse_xtml(const struct call_parser *p, struct markup_range t) {
    struct markup_range in, tag, name;
    int rc = ERR_MODEL;
    while (markup_take_between(&t, p->dialect->call.open, "<|close|>call<|sep|>", &in)) {
        if (!markup_take_before(&in, "<|sep|>", &tag) || !markup_find_attribute(tag, "tool=\"", &name))
            return ERR_MODEL;
        if ((rc = parse_xtml_call(p, name, in))) return rc;
    }
    return rc;
}

/* MiniMax-M3: each tag begins with a mark, a parameter's tag is its name, and a value may have tags inside; those of
 * lists are <item>. */
enum { MINIMAX_DEPTH = 16 };

static int put_minimax_value(struct buf *out, struct markup_range in, unsigned kinds, int depth);

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
    return put_minimax_value(out, value, k ? tool_call_param_kinds(tools, k, key) : 0, depth + 1);
}

static int put_minimax_value(struct buf *out, struct markup_range in, unsigned kinds, int depth) {
    struct markup_range trimmed = markup_trim(in);
    int rc = 0;
    if (!markup_starts_with(trimmed, MINIMAX_MARK "<")) return tool_call_put_value(out, in, kinds);
    const bool is_list = markup_starts_with(trimmed, MINIMAX_MARK "<item>");
    buf_str(out, is_list ? "[" : "{");
    for (bool first = true; !rc && (markup_skip_blanks(&trimmed), trimmed.s < trimmed.end); first = false) {
        if (!first) buf_str(out, ", ");
        rc = put_minimax_member(out, &trimmed, is_list, NULL, NULL, depth);
    }
    return rc ? rc : buf_str(out, is_list ? "]" : "}") ? ERR_MEMORY : 0;
}

int tool_calls_parse_minimax_m3(const struct call_parser *p, struct markup_range t) {
    struct markup_range in, name;
    int rc = ERR_MODEL;
    while (markup_take_between(&t, MINIMAX_MARK "<invoke name=\"", MINIMAX_MARK "</invoke>", &in)) {
        if (!markup_take_before(&in, "\">", &name)) return ERR_MODEL;
        struct tool_call *k = tool_call_add(p->calls, name);
        rc = k ? 0 : ERR_MEMORY;
        if (!rc) buf_str(&k->arguments, "{");
        while (!rc && (markup_skip_blanks(&in), in.s < in.end)) {
            if (k->arguments.len > 1) buf_str(&k->arguments, ", ");
            rc = put_minimax_member(&k->arguments, &in, false, p->tools, k, 0);
        }
        if (!rc && buf_str(&k->arguments, "}")) rc = ERR_MEMORY;
        if (!rc)
            rc = tool_call_check_object((struct markup_range){k->arguments.data, k->arguments.data + k->arguments.len});
        if (rc) return rc;
    }
    return rc;
}

/* Values of arguments in tags: a text of the model, which the tool's schema says how to read. */
#include <stdio.h>
#include <string.h>

#include "tokenizer/chat/tool_calls_internal.h"

enum { SCHEMA_DEPTH = 16, SCHEMA_PARTS = 1000 /* looked at; schemas may refer to themselves many times */ };

static unsigned kind_of_name(const struct json *name) {
    static const struct {
        const char *name;
        unsigned kind;
    } names[] = {{"string", KIND_STRING}, {"integer", KIND_NUMBER}, {"number", KIND_NUMBER}, {"boolean", KIND_BOOL},
                 {"null", KIND_NULL},     {"array", KIND_ARRAY},    {"object", KIND_OBJECT}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (json_is(name, names[i].name)) return names[i].kind;
    return KIND_ALL;
}
static unsigned kind_of_value(const struct json *v) {
    static const unsigned kinds[] = {
        [JSON_NULL] = KIND_NULL,     [JSON_BOOL] = KIND_BOOL,   [JSON_INT] = KIND_NUMBER,   [JSON_FLOAT] = KIND_NUMBER,
        [JSON_STRING] = KIND_STRING, [JSON_ARRAY] = KIND_ARRAY, [JSON_OBJECT] = KIND_OBJECT};
    return kinds[v->type];
}

/* Finds what a "$ref" within the tool's schema names. */
static const struct json *find_reference(const struct json *root, const struct json *reference) {
    char path[256];
    const char *from = reference->string;
    size_t n = 0;
    if (reference->type != JSON_STRING || reference->n < 2 || memcmp(from, "#/", 2) != 0) return NULL;
    for (uint32_t i = 2; i < reference->n && n + 1 < sizeof path; i++) path[n++] = (char)(from[i] == '/' ? 0 : from[i]);
    path[n] = 0;
    for (const char *at = path; root && at <= path + n; at += strlen(at) + 1) root = json_get(root, at);
    return root;
}

static unsigned kinds_of(const struct json *root, const struct json *schema, int depth, int *parts);

/* The kinds that some, or all, of a list of schemas allow. */
static unsigned kinds_of_list(const struct json *root, const struct json *list, bool all, int depth, int *parts) {
    unsigned kinds = all ? KIND_ALL : 0;
    if (!list || list->type != JSON_ARRAY) return KIND_ALL;
    for (uint32_t i = 0; i < list->n; i++) {
        const unsigned one = kinds_of(root, &list->items[i], depth + 1, parts);
        kinds = all ? kinds & one : kinds | one;
    }
    return kinds;
}

static unsigned kinds_of(const struct json *root, const struct json *schema, int depth, int *parts) {
    const struct json *type = json_get(schema, "type"), *values = json_get(schema, "enum"),
                      *value = json_get(schema, "const"), *reference = json_get(schema, "$ref");
    unsigned kinds = KIND_ALL, some = 0;
    if (!schema || schema->type != JSON_OBJECT || depth > SCHEMA_DEPTH || ++*parts > SCHEMA_PARTS) return KIND_ALL;
    if (type && type->type == JSON_STRING) kinds = kind_of_name(type);
    for (uint32_t i = 0; type && type->type == JSON_ARRAY && i < type->n; i++) some |= kind_of_name(&type->items[i]);
    if (some) kinds = some;
    some = 0;
    for (uint32_t i = 0; values && values->type == JSON_ARRAY && i < values->n; i++)
        some |= kind_of_value(&values->items[i]);
    if (some) kinds &= some;
    if (value) kinds &= kind_of_value(value);
    if (reference) kinds &= kinds_of(root, find_reference(root, reference), depth + 1, parts);
    kinds &= kinds_of_list(root, json_get(schema, "anyOf"), false, depth, parts);
    kinds &= kinds_of_list(root, json_get(schema, "oneOf"), false, depth, parts);
    kinds &= kinds_of_list(root, json_get(schema, "allOf"), true, depth, parts);
    return json_bool(json_get(schema, "nullable"), false) ? kinds | KIND_NULL : kinds;
}

unsigned tool_call_param_kinds(const struct json *tools, const struct tool_call *k, struct markup_range key) {
    char name[128];
    const size_t n = (size_t)(key.end - key.s);
    if (n >= sizeof name) return 0;
    memcpy(name, key.s, n);
    name[n] = 0;
    for (uint32_t i = 0; tools && tools->type == JSON_ARRAY && i < tools->n; i++) {
        const struct json *f = json_get(&tools->items[i], "function"), *of, *parameters;
        if (!f) f = &tools->items[i];
        of = json_get(f, "name"), parameters = json_get(f, "parameters");
        if (!of || of->type != JSON_STRING || of->n != k->name.len || memcmp(of->string, k->name.data, of->n)) continue;
        const struct json *schema = json_get(json_get(parameters, "properties"), name);
        int parts = 0;
        const unsigned kinds = kinds_of(parameters, schema, 0, &parts);
        return json_is(json_get(schema, "type"), "string") ? KIND_PLAIN : kinds == KIND_ALL ? 0 : kinds;
    }
    return 0;
}

/* Python's constants, as models and templates write them. */
static const char *constant_of(struct markup_range v, unsigned kinds) {
    static const struct {
        const char *python, *json;
        unsigned kind;
    } rows[] = {{"True", "true", KIND_BOOL}, {"False", "false", KIND_BOOL}, {"None", "null", KIND_NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (kinds & rows[i].kind && (size_t)(v.end - v.s) == strlen(rows[i].python) &&
            markup_starts_with(v, rows[i].python))
            return rows[i].json;
    return NULL;
}

/* Whether text is JSON; *kind: of the value. */
static int read_json(struct markup_range t, unsigned *kind) {
    struct arena arena = {0};
    struct json j;
    const int rc = json_parse(&arena, t.s, (size_t)(t.end - t.s), 0, "value", &j, NULL);
    *kind = rc ? 0 : kind_of_value(&j);
    arena_free(&arena);
    return rc == ERR_MEMORY ? rc : 0;
}

/* A list or an object in Python's notation. *put: it was one. */
static int put_python(struct buf *out, struct markup_range v, unsigned kinds, bool *put) {
    struct buf json = {0};
    unsigned kind = 0;
    int rc = tool_calls_put_python(&json, v);
    if (!rc) rc = read_json((struct markup_range){json.data, json.data + json.len}, &kind);
    *put = kind & kinds & (KIND_ARRAY | KIND_OBJECT);
    if (!rc && *put) buf_add(out, json.data, json.len);
    buf_free(&json);
    return rc == ERR_MEMORY ? rc : 0;
}

int tool_call_put_value(struct buf *out, struct markup_range value, unsigned kinds) {
    const struct markup_range v = markup_trim(value);
    unsigned kind = 0;
    bool put = false;
    if (kinds != KIND_PLAIN) TRY(read_json(v, &kind));
    /* where a string would do, a value is something else only if that would do, too */
    if (kind && (!kinds || kind & kinds || !(kinds & KIND_STRING)))
        buf_add(out, v.s, (size_t)(v.end - v.s)), put = true;
    if (!put && kinds && !(kinds & (KIND_STRING | KIND_PLAIN))) {
        const char *constant = constant_of(v, kinds);
        if (constant) buf_str(out, constant), put = true;
        else TRY(put_python(out, v, kinds, &put));
    }
    if (!put) json_quote(out, value.s, (size_t)(value.end - value.s));
    return out->failed ? ERR_MEMORY : 0;
}

int tool_call_add_argument(struct tool_call *k, struct markup_range key, struct markup_range value, unsigned kinds) {
    key = markup_trim(key);
    buf_str(&k->arguments, k->arguments.len ? ", " : "{");
    json_quote(&k->arguments, key.s, (size_t)(key.end - key.s));
    buf_str(&k->arguments, ": ");
    return tool_call_put_value(&k->arguments, value, kinds);
}

int tool_call_close_arguments(struct tool_call *k) { return buf_str(&k->arguments, k->arguments.len ? "}" : "{}"); }

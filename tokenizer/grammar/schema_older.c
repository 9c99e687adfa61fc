/* Schemas of older drafts and of OpenAPI, written in the words of JSON Schema 2020-12:
 *   items [a, b], additionalItems c                -> prefixItems [a, b], items c
 *   minimum 1, exclusiveMinimum true (and maximum) -> exclusiveMinimum 1
 *   nullable true, beside other keywords           -> anyOf [those, {type null}]
 *   format password, byte, binary                  -> none: any string
 *   format enum                                    -> none: enum stands beside it
 *   properties {a: {required true}}                -> required [a]
 *   null for a keyword that it cannot stand for    -> none
 */
#include <string.h>

#include "tokenizer/grammar/schema_internal.h"

static struct json text(const char *s) {
    return (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(s), .string = s};
}
static bool is_true(const struct json *j) { return j && j->type == JSON_BOOL && j->boolean; }

/* An object under construction. */
struct object {
    struct json *v;
    uint32_t n;
};
static void add(struct object *m, struct json key, struct json value) {
    m->v[2 * m->n] = key, m->v[2 * m->n++ + 1] = value;
}

static int translate(struct arena *a, const struct json *in, bool is_root, struct json *out);

static int translate_list(struct arena *a, const struct json *in, struct json *out) {
    struct json *v = arena_alloc(a, (size_t)in->n * sizeof *v + 1);
    if (!v) return ERR_MEMORY;
    for (uint32_t i = 0; i < in->n; i++) TRY(translate(a, &in->items[i], false, &v[i]));
    *out = (struct json){.type = JSON_ARRAY, .n = in->n, .items = v};
    return 0;
}
static int translate_map(struct arena *a, const struct json *in, struct json *out) {
    struct object m = {arena_alloc(a, 2 * (size_t)in->n * sizeof *m.v + 1), 0};
    if (!m.v) return ERR_MEMORY;
    for (uint32_t i = 0; i < in->n; i++) {
        struct json value;
        TRY(translate(a, &in->items[2 * i + 1], false, &value));
        add(&m, in->items[2 * i], value);
    }
    *out = (struct json){.type = JSON_OBJECT, .n = m.n, .items = m.v};
    return 0;
}

/* Adds a member of a schema in today's words. */
static int add_member(struct arena *a, const struct json *schema, const struct json *key, struct object *m) {
    static const char *const formats[] = {"password", "byte", "binary", "enum", "path", "file-path", "directory-path"},
                             *const bounds[][2] = {{"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}};
    const struct json *value = key + 1, *rest = json_get(schema, "additionalItems");
    struct json new = *value;
    if (schema_is_unset(key)) return 0;
    if (json_is(key, "required") && value->type == JSON_BOOL) return 0; /* the schema around this one lists it */
    if (json_is(key, "nullable") && value->type == JSON_BOOL) return 0;
    if (json_is(key, "additionalItems")) return 0; /* with a list of items, below; else it says nothing */
    for (size_t i = 0; json_is(key, "format") && i < sizeof formats / sizeof *formats; i++)
        if (json_is(value, formats[i])) return 0;
    for (int i = 0; i < 2; i++) {
        if (json_is(key, bounds[i][1]) && value->type == JSON_BOOL) return 0;
        if (json_is(key, bounds[i][0]) && is_true(json_get(schema, bounds[i][1])))
            return add(m, text(bounds[i][1]), *value), 0;
    }
    if (json_is(key, "items") && value->type == JSON_ARRAY) {
        TRY(translate_list(a, value, &new));
        if (new.n) add(m, text("prefixItems"), new);
        if (rest && rest->type == JSON_NULL) rest = NULL;
        if (rest) TRY(translate(a, rest, false, &new));
        if (rest) add(m, text("items"), new);
        return 0;
    }
    const enum schema_holding holds = schema_holding_of(key);
    if (holds == HOLDS_SCHEMA) TRY(translate(a, value, false, &new));
    if (holds == HOLDS_LIST && value->type == JSON_ARRAY) TRY(translate_list(a, value, &new));
    if (holds == HOLDS_MAP && value->type == JSON_OBJECT) TRY(translate_map(a, value, &new));
    return add(m, *key, new), 0;
}

static bool lists(const struct json *names, const struct json *name) {
    bool found = false;
    for (uint32_t i = 0; names && names->type == JSON_ARRAY && i < names->n; i++)
        found |= json_equal(&names->items[i], name);
    return found;
}
/* Adds the properties whose schemas have `required: true` to the required ones. */
static int add_required(struct arena *a, const struct json *schema, struct object *m) {
    const struct json *properties = json_get(schema, "properties"), *listed = json_get(schema, "required");
    const uint32_t n = properties && properties->type == JSON_OBJECT ? properties->n : 0,
                   had = listed && listed->type == JSON_ARRAY ? listed->n : 0;
    struct json *names = NULL;
    uint32_t count = had, at = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct json *name = &properties->items[2 * i];
        if (!is_true(json_get(name + 1, "required")) || lists(listed, name)) continue;
        if (!names && !(names = arena_alloc(a, ((size_t)had + n) * sizeof *names))) return ERR_MEMORY;
        names[count++] = *name;
    }
    if (!names) return 0;
    if (had) memcpy(names, listed->items, had * sizeof *names);
    while (at < m->n && !json_is(&m->v[2 * at], "required")) at++;
    if (at == m->n) m->n++;
    m->v[2 * at] = text("required");
    m->v[2 * at + 1] = (struct json){.type = JSON_ARRAY, .n = count, .items = names};
    return 0;
}

/* Of the root, whose $defs must stay where they are, nullable is not obeyed: an answer is not null, then. */
static int translate(struct arena *a, const struct json *in, bool is_root, struct json *out) {
    *out = *in;
    if (in->type != JSON_OBJECT) return 0;
    struct object m = {arena_alloc(a, 2 * ((size_t)in->n + 1) * sizeof *m.v), 0}, either, null;
    if (!m.v) return ERR_MEMORY;
    for (uint32_t i = 0; i < in->n; i++) TRY(add_member(a, in, &in->items[2 * i], &m));
    TRY(add_required(a, in, &m));
    *out = (struct json){.type = JSON_OBJECT, .n = m.n, .items = m.v};
    if (is_root || !is_true(json_get(in, "nullable"))) return 0;
    either = (struct object){arena_alloc(a, 4 * sizeof *either.v), 0};
    null = (struct object){arena_alloc(a, 4 * sizeof *null.v), 0};
    if (!either.v || !null.v) return ERR_MEMORY;
    add(&null, text("type"), text("null"));
    either.v[0] = *out;
    either.v[1] = (struct json){.type = JSON_OBJECT, .n = null.n, .items = null.v};
    add(&null, text("anyOf"), (struct json){.type = JSON_ARRAY, .n = 2, .items = either.v});
    *out = (struct json){.type = JSON_OBJECT, .n = 1, .items = null.v + 2};
    return 0;
}

const struct json *schema_older(struct arena *a, const struct json *root) {
    struct json *out = arena_alloc(a, sizeof *out);
    return out && !translate(a, root, true, out) ? out : NULL;
}

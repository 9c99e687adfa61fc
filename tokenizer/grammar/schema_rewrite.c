#include <stdio.h>
#include <string.h>

#include "tokenizer/grammar/schema_internal.h"

/* Keywords that say the same as others: dependentRequired, dependentSchemas, dependencies, if, then, else, and `not` of
 * what has an opposite. Each schema that has them gets a list of further schemas that a value must satisfy as well. */

struct schema_rewritten {
    struct schema_rewritten *next;
    const struct json *from, *list;
};
struct rewriter {
    struct schema *s;
    const char *at, *keyword; /* the schema and the keyword that is rewritten */
    int rc;                   /* the first error */
};

/* --- nodes ------------------------------------------------------------------------------------ */

static struct json text(const char *s) {
    return (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(s), .string = s};
}
static struct json boolean(bool b) { return (struct json){.type = JSON_BOOL, .boolean = b}; }

/* Copies n items of an array, or 2n keys and values of an object, to the arena. */
static struct json node(struct rewriter *r, enum json_type type, uint32_t n, const struct json *v) {
    const size_t size = (type == JSON_OBJECT ? 2u * n : n) * sizeof *v;
    struct json *items = arena_alloc(r->s->arena, size + 1);
    if (!items) return r->rc = error_set(r->s->e, ERR_MEMORY, "no memory for the schema"), boolean(false);
    if (size) memcpy(items, v, size);
    return (struct json){.type = type, .n = n, .items = items};
}
static struct json member(struct rewriter *r, struct json key, struct json value) {
    return node(r, JSON_OBJECT, 1, (struct json[]){key, value});
}
static struct json list_of(struct rewriter *r, const char *keyword, struct json a, struct json b) {
    return member(r, text(keyword), node(r, JSON_ARRAY, 2, (struct json[]){a, b}));
}
/* A value of this type that satisfies one more keyword. */
static struct json typed(struct rewriter *r, const char *type, const char *keyword, struct json value) {
    return node(r, JSON_OBJECT, 2, (struct json[]){text("type"), text(type), text(keyword), value});
}

struct json *schema_node(struct schema *s, const char *key, const struct json *value) {
    struct rewriter r = {.s = s};
    struct json *out = arena_alloc(s->arena, sizeof *out);
    if (out) *out = member(&r, text(key), *value);
    return r.rc ? NULL : out;
}

/* --- opposites -------------------------------------------------------------------------------- */

static struct json opposite(struct rewriter *r, const struct json *schema);

static struct json refuse(struct rewriter *r, const char *why) {
    if (!r->rc) r->rc = schema_fail(r->s, r->at, r->keyword, "%s", why);
    return boolean(false);
}

static struct json opposite_type(struct rewriter *r, const struct json *value) {
    static const struct {
        const char *name;
        unsigned bits;
    } names[] = {{"null", TYPE_NULL},     {"boolean", TYPE_BOOLEAN}, {"number", TYPE_NUMBER},
                 {"string", TYPE_STRING}, {"array", TYPE_ARRAY},     {"object", TYPE_OBJECT}};
    const unsigned bits = schema_type_bits(value);
    struct json out[6];
    uint32_t n = 0;
    if (bits & TYPE_INTEGER && !(bits & TYPE_FRACTION))
        return refuse(r, "is not supported with the type integer in it");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(bits & names[i].bits)) out[n++] = text(names[i].name);
    return n ? member(r, text("type"), node(r, JSON_ARRAY, n, out)) : boolean(false);
}
static struct json opposite_values(struct rewriter *r, const struct json *value) {
    return member(r, text("not"), member(r, text("enum"), *value));
}
static struct json opposite_value(struct rewriter *r, const struct json *value) {
    return member(r, text("not"), member(r, text("const"), *value));
}

static struct json opposite_required(struct rewriter *r, const struct json *names) {
    struct json out = boolean(false);
    for (uint32_t i = 0; i < names->n; i++)
        out = list_of(r, "anyOf", typed(r, "object", "properties", member(r, names->items[i], boolean(false))), out);
    return out;
}
static struct json opposite_properties(struct rewriter *r, const struct json *map) {
    struct json out = boolean(false);
    for (uint32_t i = 0; i < map->n; i++) {
        const struct json *name = &map->items[2 * i], other = member(r, *name, opposite(r, name + 1));
        const struct json has = member(r, text("required"), node(r, JSON_ARRAY, 1, name));
        out = list_of(r, "anyOf", list_of(r, "allOf", has, typed(r, "object", "properties", other)), out);
    }
    return out;
}
static struct json opposite_not(struct rewriter *r, const struct json *schema) { return *schema; }
static struct json opposite_list(struct rewriter *r, const char *keyword, const struct json *list) {
    struct json out = boolean(!strcmp(keyword, "allOf"));
    for (uint32_t i = 0; i < list->n; i++) out = list_of(r, keyword, opposite(r, &list->items[i]), out);
    return out;
}
static struct json opposite_any(struct rewriter *r, const struct json *list) { return opposite_list(r, "allOf", list); }
static struct json opposite_all(struct rewriter *r, const struct json *list) { return opposite_list(r, "anyOf", list); }

static const struct {
    const char *name;
    struct json (*of)(struct rewriter *r, const struct json *value);
    const char *type, *keyword; /* without `of`: a value of this type for which the keyword holds */
    int add;                    /* to a count */
} opposites[] = {
    {"type", opposite_type, NULL, NULL, 0},
    {"enum", opposite_values, NULL, NULL, 0},
    {"const", opposite_value, NULL, NULL, 0},
    {"required", opposite_required, NULL, NULL, 0},
    {"properties", opposite_properties, NULL, NULL, 0},
    {"not", opposite_not, NULL, NULL, 0},
    {"anyOf", opposite_any, NULL, NULL, 0},
    {"allOf", opposite_all, NULL, NULL, 0},
    {"minimum", NULL, "number", "exclusiveMaximum", 0},
    {"maximum", NULL, "number", "exclusiveMinimum", 0},
    {"exclusiveMinimum", NULL, "number", "maximum", 0},
    {"exclusiveMaximum", NULL, "number", "minimum", 0},
    {"minLength", NULL, "string", "maxLength", -1},
    {"maxLength", NULL, "string", "minLength", 1},
    {"minItems", NULL, "array", "maxItems", -1},
    {"maxItems", NULL, "array", "minItems", 1},
    {"minProperties", NULL, "object", "maxProperties", -1},
    {"maxProperties", NULL, "object", "minProperties", 1},
};
enum { N_OPPOSITES = sizeof opposites / sizeof *opposites };

static struct json opposite_keyword(struct rewriter *r, const struct json *key, const struct json *value) {
    for (int i = 0; i < N_OPPOSITES; i++) {
        if (!json_is(key, opposites[i].name)) continue;
        if (opposites[i].of) return opposites[i].of(r, value);
        if (!opposites[i].add) return typed(r, opposites[i].type, opposites[i].keyword, *value);
        const int64_t n = json_int(value, 0) + opposites[i].add;
        return n < 0 ? boolean(false)
                     : typed(r, opposites[i].type, opposites[i].keyword, (struct json){.type = JSON_INT, .integer = n});
    }
    char why[120];
    snprintf(why, sizeof why, "is not supported with %.*s in it", (int)(key->n < 40 ? key->n : 40), key->string);
    return refuse(r, why);
}

/* The schema of the values that are not valid by the schema. */
static struct json opposite(struct rewriter *r, const struct json *schema) {
    struct json out = boolean(false);
    if (schema->type == JSON_BOOL) return boolean(!schema->boolean);
    if (!r->rc) r->rc = schema_check_keywords(r->s, schema, r->at);
    for (uint32_t i = 0; i < schema->n && !r->rc; i++) {
        const struct json *key = &schema->items[2 * i];
        if (!schema_says_nothing(key)) out = list_of(r, "anyOf", opposite_keyword(r, key, key + 1), out);
    }
    return out;
}

const struct json *schema_excluded(const struct json *schema, uint32_t *n) {
    const struct json *not = json_get(schema, "not"), *list = json_get(not, "enum"), *one = json_get(not, "const");
    if (!not || not ->type != JSON_OBJECT) return NULL;
    for (uint32_t i = 0; i < not ->n; i++) /* other keywords: the schema has been rewritten */
        if (!json_is(&not ->items[2 * i], list ? "enum" : "const") && !schema_says_nothing(&not ->items[2 * i]))
            return NULL;
    *n = list ? list->n : 1;
    return list ? list->items : one;
}

/* --- keywords --------------------------------------------------------------------------------- */

static struct json rewrite_not(struct rewriter *r, const struct json *schema) {
    uint32_t n;
    return schema_excluded(schema, &n) ? boolean(true) : opposite(r, json_get(schema, "not"));
}

static struct json rewrite_if(struct rewriter *r, const struct json *schema) {
    const struct json *condition = json_get(schema, "if"), *yes = json_get(schema, "then"),
                      *no = json_get(schema, "else");
    if (!yes && !no) return boolean(true);
    const struct json first = list_of(r, "allOf", *condition, yes ? *yes : boolean(true));
    return list_of(r, "anyOf", first, list_of(r, "allOf", opposite(r, condition), no ? *no : boolean(true)));
}

/* Each member says what an object with that property must satisfy. */
static struct json rewrite_dependencies(struct rewriter *r, const struct json *schema) {
    const struct json *map = json_get(schema, r->keyword);
    struct json out = boolean(true);
    for (uint32_t i = 0; i < map->n; i++) {
        const struct json *name = &map->items[2 * i], *then = name + 1;
        const struct json has = member(r, text("required"), node(r, JSON_ARRAY, 1, name)),
                          has_not = member(r, text("properties"), member(r, *name, boolean(false)));
        const struct json must = then->type == JSON_ARRAY ? member(r, text("required"), *then) : *then;
        out = list_of(r, "allOf", list_of(r, "anyOf", has_not, list_of(r, "allOf", has, must)), out);
    }
    return out;
}

static const struct {
    const char *keyword;
    struct json (*rewrite)(struct rewriter *r, const struct json *schema);
} rewrites[] = {{"not", rewrite_not},
                {"if", rewrite_if},
                {"dependentRequired", rewrite_dependencies},
                {"dependentSchemas", rewrite_dependencies},
                {"dependencies", rewrite_dependencies}};
enum { N_REWRITES = sizeof rewrites / sizeof *rewrites };

const struct json *schema_rewritten(const struct schema *s, const struct json *schema) {
    for (const struct schema_rewritten *x = s->rewritten; x; x = x->next)
        if (x->from == schema) return x->list;
    return NULL;
}

int schema_rewrite(struct schema *s, const struct json *schema, const char *at, const struct json **out) {
    struct json v[N_REWRITES];
    uint32_t n = 0;
    *out = schema_rewritten(s, schema);
    if (*out) return 0;
    struct rewriter r = {.s = s, .at = at};
    for (int i = 0; i < N_REWRITES && !r.rc; i++) {
        r.keyword = rewrites[i].keyword;
        if (json_get(schema, r.keyword)) v[n++] = rewrites[i].rewrite(&r, schema);
    }
    if (!n || r.rc) return r.rc;
    struct json *list = arena_alloc(s->arena, sizeof *list);
    struct schema_rewritten *x = arena_alloc(s->arena, sizeof *x);
    if (!list || !x) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
    *list = node(&r, JSON_ARRAY, n, v);
    *x = (struct schema_rewritten){s->rewritten, schema, list};
    s->rewritten = x;
    *out = list;
    return r.rc;
}

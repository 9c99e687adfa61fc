#include <string.h>

#include "tokenizer/grammar/schema_internal.h"

/* Whether generated values of one schema are never valid by another, for oneOf. Conservative: "not certain" counts as
 * no. */

/* Whether a schema lists values; *list: its enum, or NULL and *one: its const. */
static bool values_of(const struct conj *c, const struct json **list, const struct json **one) {
    int i = 0;
    *list = *one = NULL;
    if (schema_keyword(c, &i, "const", one)) return true;
    i = 0;
    *one = NULL;
    return schema_keyword(c, &i, "enum", list);
}

static bool values_differ(const struct conj *x, const struct conj *y) {
    const struct json *a, *b, *a_one, *b_one;
    if (!values_of(x, &a, &a_one) || !values_of(y, &b, &b_one)) return false;
    for (uint32_t i = 0; i < (a ? a->n : 1); i++)
        for (uint32_t k = 0; k < (b ? b->n : 1); k++)
            if (json_equal(a ? &a->items[i] : a_one, b ? &b->items[k] : b_one)) return false;
    return true;
}

static unsigned value_types(const struct conj *c) {
    const struct json *list, *one;
    unsigned bits = 0;
    static const unsigned of[] = {
        [JSON_NULL] = TYPE_NULL,     [JSON_BOOL] = TYPE_BOOLEAN, [JSON_INT] = TYPE_INTEGER,  [JSON_FLOAT] = TYPE_NUMBER,
        [JSON_STRING] = TYPE_STRING, [JSON_ARRAY] = TYPE_ARRAY,  [JSON_OBJECT] = TYPE_OBJECT};
    if (!values_of(c, &list, &one)) return TYPE_ALL;
    for (uint32_t i = 0; i < (list ? list->n : 1); i++) bits |= of[(list ? &list->items[i] : one)->type];
    return bits;
}

static bool forbids(const struct conj *c, const char *name, size_t n) {
    const struct json *more;
    for (int i = 0; schema_keyword(c, &i, "additionalProperties", &more); i++) {
        const struct json *map = json_get(c->v[i].schema, "properties");
        bool known = json_get(c->v[i].schema, "patternProperties") != NULL;
        for (uint32_t k = 0; map && k < map->n && !known; k++)
            known = map->items[2 * k].n == n && !memcmp(map->items[2 * k].string, name, n);
        if (!known && more->type == JSON_BOOL && !more->boolean) return true;
    }
    return false;
}

/* Whether alternatives may add types and members to those of the schemas themselves. */
static bool has_branches(const struct conj *c) {
    for (int i = 0; i < c->n; i++)
        if ((json_get(c->v[i].schema, "anyOf") && !(c->v[i].skip & PART_NO_ANY_OF)) ||
            (json_get(c->v[i].schema, "oneOf") && !(c->v[i].skip & PART_NO_ONE_OF)))
            return true;
    return false;
}

static int objects_exclude(struct schema *s, const struct conj *x, const struct conj *y, bool *out) {
    struct members a, b;
    struct conj *x_value = arena_alloc(s->arena, sizeof *x_value), *y_value = arena_alloc(s->arena, sizeof *y_value);
    if (!x_value || !y_value) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
    TRY(schema_members(s, x, &a));
    a.extras |= has_branches(x);
    TRY(schema_members(s, y, &b));
    for (size_t i = 0; i < b.n && !*out && !a.extras; i++) { /* y requires a name that x never has */
        bool has = !b.v[i].required;
        for (size_t k = 0; k < a.n && !has; k++)
            has = a.v[k].n == b.v[i].n && !memcmp(a.v[k].name, b.v[i].name, a.v[k].n);
        *out = !has;
    }
    for (size_t i = 0; i < a.n && !*out; i++) { /* a member that x always has is not valid by y */
        if (!a.v[i].required) continue;
        *out = forbids(y, a.v[i].name, a.v[i].n);
        bool y_names_it = schema_is_required(y, a.v[i].name, a.v[i].n);
        for (size_t k = 0; k < b.n; k++)
            y_names_it |= a.v[i].n == b.v[k].n && !memcmp(a.v[i].name, b.v[k].name, a.v[i].n);
        if (*out || !y_names_it) continue;
        TRY(schema_member_conj(s, x, a.v[i].name, a.v[i].n, x_value));
        TRY(schema_member_conj(s, y, a.v[i].name, a.v[i].n, y_value));
        if (y_value->never) *out = true;
        else if (x_value->n && y_value->n) TRY(schema_excludes(s, x_value, y_value, out));
    }
    return 0;
}

int schema_excludes(struct schema *s, const struct conj *x, const struct conj *y, bool *out) {
    enum { MAX_LEVELS = 8 };
    *out = y->never || x->never || values_differ(x, y);
    if (*out) return 0;
    const unsigned common =
        schema_types(x, !has_branches(x)) & value_types(x) & schema_types(y, false) & value_types(y);
    if (!common) return *out = true, 0;
    if (!(common & ~(unsigned)TYPE_NUMBER)) {
        const struct number_range a = schema_range(x), b = schema_range(y);
        *out = a.hi < b.lo || b.hi < a.lo || (a.hi == b.lo && (a.below || b.above)) ||
               (b.hi == a.lo && (b.below || a.above));
        return 0;
    }
    if (common != TYPE_OBJECT || s->depth > MAX_LEVELS * 16) return 0;
    return objects_exclude(s, x, y, out);
}

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

static bool values_differ(struct schema *s, const struct conj *x, const struct conj *y) {
    const struct json *a, *b, *a_one, *b_one;
    if (!values_of(x, &a, &a_one) || !values_of(y, &b, &b_one)) return false;
    if (!a && !b) return !json_equal(a_one, b_one);
    if (!a) return !schema_find(s, b, a_one);
    if (!b) return !schema_find(s, a, b_one);
    for (uint32_t i = 0; i < a->n; i++)
        if (schema_find(s, b, &a->items[i])) return false;
    return !s->effort->failed;
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

static bool forbids(struct schema *s, const struct conj *c, const char *name, size_t n) {
    const struct json *more;
    for (int i = 0; schema_keyword(c, &i, "additionalProperties", &more); i++) {
        const struct json *map = json_get(c->v[i].schema, "properties");
        const bool known = json_get(c->v[i].schema, "patternProperties") || (map && schema_find_name(s, map, name, n));
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
    struct conj *x_value = schema_conj_borrow(s), *y_value = schema_conj_borrow(s);
    if (!x_value || !y_value) return ERR_MEMORY;
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
        *out = forbids(s, y, a.v[i].name, a.v[i].n);
        bool y_names_it = schema_is_required(s, y, a.v[i].name, a.v[i].n);
        for (size_t k = 0; k < b.n; k++)
            y_names_it |= a.v[i].n == b.v[k].n && !memcmp(a.v[i].name, b.v[k].name, a.v[i].n);
        if (*out || !y_names_it) continue;
        TRY(schema_member_conj(s, x, a.v[i].name, a.v[i].n, x_value));
        TRY(schema_member_conj(s, y, a.v[i].name, a.v[i].n, y_value));
        if (y_value->never) *out = true;
        else if (x_value->n && y_value->n) TRY(schema_excludes(s, x_value, y_value, out));
    }
    schema_conj_return(s, y_value);
    schema_conj_return(s, x_value);
    return 0;
}

int schema_excludes(struct schema *s, const struct conj *x, const struct conj *y, bool *out) {
    enum { MAX_LEVELS = 8 };
    TRY(effort_spend(s->effort, 500));
    *out = y->never || x->never || values_differ(s, x, y);
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

/* --- oneOf ------------------------------------------------------------------------------------ */

/* The branches of a oneOf that list values for a property, or for themselves, by these values. Branches whose values
 * differ exclude each other, which spares a comparison of each branch with each other one. */
struct listing {
    struct list_entry {
        struct list_entry *next;
        const struct json *value;
        uint32_t branch;
    } * *chains;
    size_t n_chains;
    uint32_t *unlisted, n_unlisted; /* branches without such a list */
};

/* The values that c lists for the property; NULL: none. name: NULL for the value itself. */
static int listed_values(struct schema *s, const struct conj *c, const struct member *name, const struct json **v,
                         uint32_t *n) {
    const struct json *list = NULL, *one = NULL;
    struct conj *value = name ? schema_conj_borrow(s) : NULL;
    *v = NULL;
    if (name && !value) return ERR_MEMORY;
    if (name) TRY(schema_member_conj(s, c, name->name, name->n, value));
    const struct conj *of = name ? value : c;
    if (!of->never && values_of(of, &list, &one)) *v = list ? list->items : one, *n = list ? list->n : 1;
    if (name) schema_conj_return(s, value);
    return 0;
}

/* Lists the values of the branches' own schemas: what another branch's value must not be. */
static int make_listing(struct schema *s, struct conj *const *own, uint32_t n_own, const struct member *name,
                        struct listing *out) {
    out->unlisted = arena_alloc(s->arena, n_own * sizeof *out->unlisted);
    for (out->n_chains = 64; out->n_chains < n_own;) out->n_chains *= 2;
    out->chains = arena_calloc(s->arena, out->n_chains, sizeof *out->chains);
    if (!out->unlisted || !out->chains) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
    out->n_unlisted = 0;
    for (uint32_t b = 0; b < n_own; b++) {
        const struct json *v;
        uint32_t n;
        TRY(listed_values(s, own[b], name, &v, &n));
        if (!v) out->unlisted[out->n_unlisted++] = b;
        for (uint32_t i = 0; v && i < n; i++) {
            struct list_entry **chain = &out->chains[schema_hash_value(&v[i]) & (out->n_chains - 1)],
                              *x = arena_alloc(s->arena, sizeof *x);
            if (!x) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
            *x = (struct list_entry){*chain, &v[i], b};
            *chain = x;
            TRY(effort_spend(s->effort, 20));
        }
    }
    return 0;
}

/* Returns a property for which branch `first`, with members m, lists values, and which most branches require; NULL:
 * none. */
static const struct member *find_discriminator(struct schema *s, struct conj *const *branch, uint32_t n, uint32_t first,
                                               const struct members *m) {
    const struct member *best = NULL;
    uint32_t most = 0;
    for (size_t i = 0; i < m->n && !s->effort->failed; i++) {
        uint32_t count = 0;
        const struct json *v;
        uint32_t n_values;
        if (!m->v[i].required || listed_values(s, branch[first], &m->v[i], &v, &n_values) || !v) continue;
        for (uint32_t b = 0; b < n; b++) count += schema_is_required(s, branch[b], m->v[i].name, m->v[i].n);
        if (count > most) most = count, best = &m->v[i];
    }
    return best;
}

struct one_of {
    struct schema *s;
    const char *at;
    struct conj *const *branch; /* with the schemas around oneOf */
    struct conj **own;          /* the items of oneOf alone */
};

/* Whether every value of c is an object with that property. */
static bool always_has(struct schema *s, const struct conj *c, const struct member *name) {
    return schema_is_required(s, c, name->name, name->n) &&
           !(schema_types(c, !has_branches(c)) & value_types(c) & ~(unsigned)TYPE_OBJECT);
}

static int check_pair(const struct one_of *x, uint32_t b, uint32_t other) {
    bool excluded = x->branch[b]->never;
    if (b == other || excluded) return 0;
    TRY(schema_excludes(x->s, x->branch[b], x->own[other], &excluded));
    if (excluded) return 0;
    return schema_fail(x->s, x->at, "oneOf",
                       "a value may be valid by both of the branches %u and %u; use anyOf, or give each branch a "
                       "required property with its own const",
                       b, other);
}

int schema_check_one_of(struct schema *s, const struct json *list, const char *at, struct conj *const *branch) {
    struct one_of x = {s, at, branch, arena_calloc(s->arena, list->n, sizeof *x.own)};
    struct conj *one = schema_conj_borrow(s);
    struct members m;
    struct listing values = {0};
    enum { MAX_FIRST = 8 }; /* branches in which a property is looked for */
    if (!x.own || !one) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
    for (uint32_t b = 0; b < list->n; b++) {
        one->n = 0, one->never = false;
        TRY(schema_add_part(s, one, &list->items[b], schema_at_item(s, at, "oneOf", b)));
        if (!(x.own[b] = schema_conj_keep(s, one))) return ERR_MEMORY;
    }
    schema_conj_return(s, one);
    const struct member *name = NULL;
    for (uint32_t b = 0; b < list->n && b < MAX_FIRST && !name; b++) {
        TRY(schema_members(s, branch[b], &m));
        name = find_discriminator(s, branch, list->n, b, &m);
    }
    TRY(make_listing(s, x.own, list->n, name, &values));
    for (uint32_t b = 0; b < list->n; b++) {
        const struct json *v;
        uint32_t n = 0;
        TRY(listed_values(s, branch[b], name, &v, &n));
        const bool listed = v && (!name || always_has(s, branch[b], name));
        for (uint32_t i = 0; listed && i < n; i++) /* others that have one of its values */
            for (const struct list_entry *k = values.chains[schema_hash_value(&v[i]) & (values.n_chains - 1)]; k;
                 k = k->next) {
                TRY(effort_spend(s->effort, 20));
                if (json_equal(k->value, &v[i])) TRY(check_pair(&x, b, k->branch));
            }
        for (uint32_t i = 0; listed && i < values.n_unlisted; i++) TRY(check_pair(&x, b, values.unlisted[i]));
        for (uint32_t o = 0; !listed && o < list->n; o++) TRY(check_pair(&x, b, o));
    }
    return 0;
}

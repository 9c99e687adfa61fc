#include <math.h>

#include "tokenizer/grammar/schema_internal.h"

/* Arrays whose items depend on each other: `contains` with a least number, and `uniqueItems` of listed values. */

enum { MAX_COUNTED = 64, MAX_UNIQUE = 10 };

static expr_id with_comma(struct schema *s, bool after, expr_id x) {
    return after ? grammar_seq(s->g, json_comma(s), x) : x;
}

/* --- contains --------------------------------------------------------------------------------- */

/* Compiles the rest of an array for each number of items so far, up to `cap` for all larger numbers, and each number of
 * contained items that are still required. An item that is contained may be read as either kind, so no array is
 * lost. */
static int compile_contains(struct schema *s, expr_id item, expr_id contained, uint32_t wanted,
                            const struct item_counts *n, expr_id *out) {
    const uint32_t cap = n->most != GRAMMAR_UNBOUNDED ? n->most : n->least ? n->least : 1, width = wanted + 1;
    expr_id *rest = arena_alloc(s->arena, (cap + 1) * width * sizeof *rest);
    if (!rest) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
    for (uint32_t i = 0; i < (cap + 1) * width; i++) rest[i] = grammar_rule(s->g);
    for (uint32_t i = 0; i <= cap; i++)
        for (uint32_t k = 0; k <= wanted; k++) {
            const uint32_t to = i < cap ? i + 1 : i;
            expr_id next = EXPR_NEVER;
            if (i < n->most) {
                next = grammar_seq(s->g, item, rest[to * width + k]);
                if (k) next = grammar_alt(s->g, next, grammar_seq(s->g, contained, rest[to * width + k - 1]));
                next = with_comma(s, i > 0, next);
            }
            if (!k && i >= n->least) next = grammar_alt(s->g, EXPR_EMPTY, next);
            grammar_define(s->g, rest[i * width + k], next);
        }
    *out = rest[wanted];
    return 0;
}

static int array_contains(struct schema *s, const struct conj *c, const struct conj *item, const struct item_counts *n,
                          int at, expr_id *out) {
    const struct json *schema = json_get(c->v[at].schema, "contains"),
                      *least = json_get(c->v[at].schema, "minContains");
    const int64_t wanted = json_int(least, 1);
    struct conj *both = arena_alloc(s->arena, sizeof *both);
    expr_id x, y;
    if (!both) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
    *both = *item;
    TRY(schema_add_part(s, both, schema, schema_at(s, c->v[at].at, "contains", 8)));
    TRY(schema_compile(s, item, &x));
    TRY(schema_compile(s, both, &y));
    if (wanted > MAX_COUNTED || n->least > MAX_COUNTED || (n->most != GRAMMAR_UNBOUNDED && n->most > MAX_COUNTED))
        return schema_fail(s, c->v[at].at, "contains", "is not supported beside counts of more than %d items",
                           MAX_COUNTED);
    return compile_contains(s, x, y, (uint32_t)wanted, n, out);
}

/* --- uniqueItems ------------------------------------------------------------------------------ */

/* Lists the values that an item may have; returns their number, or -1 if they are not listed, or too many. */
static int listed_values(const struct conj *item, const struct json *out[static MAX_UNIQUE]) {
    static const struct json words[] = {{.type = JSON_BOOL, .boolean = true}, {.type = JSON_BOOL}, {.type = JSON_NULL}};
    const struct json *list = NULL, *one = NULL;
    int at = 0, n = 0;
    if (schema_keyword(item, &at, "const", &one)) return out[0] = one, 1;
    at = 0;
    const bool is_list = schema_keyword(item, &at, "enum", &list);
    const unsigned types = schema_types(item, true);
    if (!is_list && types & ~(unsigned)(TYPE_BOOLEAN | TYPE_NULL)) return -1;
    for (uint32_t i = 0; i < (is_list ? list->n : 3); i++) {
        const struct json *v = is_list ? &list->items[i] : &words[i];
        bool known = false;
        for (int k = 0; k < n && !known; k++) known = json_equal(out[k], v);
        if (known) continue;
        if (n == MAX_UNIQUE) return -1;
        out[n++] = v;
    }
    return n;
}

/* Compiles one value of an item, or EXPR_NEVER if the item's other keywords do not allow it. */
static int compile_value(struct schema *s, const struct conj *item, const struct json *value, expr_id *out) {
    struct conj *one = arena_alloc(s->arena, sizeof *one);
    struct json *constant = schema_node(s, "const", value);
    if (!one || !constant) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
    *one = *item;
    TRY(schema_add_part(s, one, constant, item->n ? item->v[0].at : "#"));
    return schema_compile(s, one, out);
}

/* Arrays of different values: the rest of an array by the set of values that it has. */
static int array_unique(struct schema *s, const struct conj *c, const struct conj *item, const struct item_counts *n,
                        int at, expr_id *out) {
    const struct json *values[MAX_UNIQUE];
    expr_id x[MAX_UNIQUE];
    const int count = listed_values(item, values);
    if (count < 0)
        return schema_fail(
            s, c->v[at].at, "uniqueItems",
            "true is supported only for items with an enum of at most %d values, as a grammar cannot compare items",
            MAX_UNIQUE);
    for (int i = 0; i < count; i++) TRY(compile_value(s, item, values[i], &x[i]));
    const uint32_t sets = 1u << count;
    expr_id *rest = arena_alloc(s->arena, sets * sizeof *rest);
    if (!rest) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
    for (uint32_t set = sets; set-- > 0;) {
        const uint32_t have = (uint32_t)__builtin_popcount(set);
        expr_id next = have >= n->least ? EXPR_EMPTY : EXPR_NEVER;
        for (int i = 0; i < count && have < n->most; i++)
            if (!(set >> i & 1))
                next = grammar_alt(s->g, next, grammar_seq(s->g, with_comma(s, set != 0, x[i]), rest[set | 1u << i]));
        rest[set] = next;
        if (next == EXPR_NEVER || next == EXPR_EMPTY) continue;
        grammar_define(s->g, rest[set] = grammar_rule(s->g), next);
    }
    *out = rest[0];
    return 0;
}

int schema_items(struct schema *s, const struct conj *c, const struct conj *item, const struct item_counts *n,
                 bool has_prefix, bool *done, expr_id *out) {
    const struct json *value;
    int contains = -1, unique = -1;
    *done = false;
    for (int i = 0; schema_keyword(c, &i, "contains", &value); i++) {
        if (!json_int(json_get(c->v[i].schema, "minContains"), 1)) continue;
        if (contains >= 0) return schema_fail(s, c->v[i].at, "contains", "two of them apply to one array");
        contains = i;
    }
    for (int i = 0; schema_keyword(c, &i, "uniqueItems", &value) && unique < 0; i++)
        if (value->boolean && n->most > 1) unique = i;
    if (contains < 0 && unique < 0) return 0;
    if (contains >= 0 && unique >= 0)
        return schema_fail(s, c->v[contains].at, "contains", "is not supported beside uniqueItems");
    if (has_prefix)
        return schema_fail(s, c->v[contains >= 0 ? contains : unique].at, contains >= 0 ? "contains" : "uniqueItems",
                           "is not supported beside prefixItems");
    *done = true;
    return contains >= 0 ? array_contains(s, c, item, n, contains, out) : array_unique(s, c, item, n, unique, out);
}

#include <math.h>

#include "tokenizer/grammar/schema_internal.h"

/* Arrays: prefixItems, then items, with a least and a greatest number of them. */

/* The schemas of item i; past the last prefix for i >= n_prefix. */
static int item_conj(struct schema *s, const struct conj *c, uint32_t i, struct conj *out) {
    *out = (struct conj){0};
    for (int k = 0; k < c->n; k++) {
        const struct part *p = &c->v[k];
        const struct json *prefix = json_get(p->schema, "prefixItems"), *items = json_get(p->schema, "items");
        if (prefix && i < prefix->n)
            TRY(schema_add_part(s, out, &prefix->items[i], schema_at_item(s, p->at, "prefixItems", i)));
        else if (items) TRY(schema_add_part(s, out, items, schema_at(s, p->at, "items", 5)));
    }
    return 0;
}

static expr_id in_brackets(struct grammar *g, expr_id items) {
    return grammar_nest(g,
                        grammar_seq(g, grammar_literal(g, "[", 1), grammar_seq(g, items, grammar_literal(g, "]", 1))));
}

int schema_array(struct schema *s, const struct conj *c, expr_id *out) {
    struct grammar *g = s->g;
    const struct json *list;
    struct conj *item = schema_conj_borrow(s);
    const double lo = schema_greatest(c, "minItems", 0), hi = schema_least(c, "maxItems", INFINITY);
    const uint32_t least = lo > SCHEMA_MAX_COUNT ? SCHEMA_MAX_COUNT : (uint32_t)lo,
                   most = hi > SCHEMA_MAX_COUNT ? GRAMMAR_UNBOUNDED : (uint32_t)hi;
    uint32_t n = 0;
    expr_id x, tail;
    if (!item) return ERR_MEMORY;
    for (int i = 0; schema_keyword(c, &i, "prefixItems", &list); i++)
        if (list->n > n) n = list->n;
    TRY(item_conj(s, c, n, item));
    bool done;
    TRY(schema_items(s, c, item, &(struct item_counts){least, most}, n > 0, &done, &tail));
    if (done) return schema_conj_return(s, item), *out = in_brackets(g, tail), 0;
    TRY(schema_compile(s, item, &x));
    const expr_id next = grammar_seq(g, json_comma(s), x);
    /* items after the prefix */
    const uint32_t past = least > n ? least - n : 0, room = most == GRAMMAR_UNBOUNDED ? most : most > n ? most - n : 0;
    if (least > most) tail = EXPR_NEVER;
    else if (n || !room) tail = grammar_repeat(g, next, past, room);
    else {
        tail = grammar_seq(g, x,
                           grammar_repeat(g, next, past ? past - 1 : 0, room == GRAMMAR_UNBOUNDED ? room : room - 1));
        if (!least) tail = grammar_alt(g, EXPR_EMPTY, tail);
    }
    for (uint32_t i = n; i-- > 0;) {
        TRY(item_conj(s, c, i, item));
        TRY(schema_compile(s, item, &x));
        expr_id with = i < most ? grammar_seq(g, x, tail) : EXPR_NEVER;
        if (i) with = grammar_seq(g, json_comma(s), with);
        tail = i >= least ? grammar_alt(g, with, EXPR_EMPTY) : with;
    }
    schema_conj_return(s, item);
    *out = in_brackets(g, tail);
    return 0;
}

#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"
#include "tokenizer/grammar/schema_internal.h"

/* Objects: members in the order of `properties`, then members with other names. */

enum { MAX_PATTERNS = 4, MAX_NAMES_BESIDE = 2000 };

static bool same_name(const struct member *m, const char *name, size_t n) {
    return m->n == n && !memcmp(m->name, name, n);
}

static size_t name_hash(const char *name, size_t n) { return (size_t)hash64(name, n, 0); }

static int grow_names(struct schema *s, struct members *m) {
    if (2 * m->n < m->size) return 0;
    const size_t size = m->size ? 2 * m->size : 32;
    uint32_t *table = arena_calloc(s->arena, size, sizeof *table);
    if (!table) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
    for (uint32_t i = 0; i < m->n; i++) {
        size_t at = name_hash(m->v[i].name, m->v[i].n) & (size - 1);
        while (table[at]) at = (at + 1) & (size - 1);
        table[at] = i + 1;
    }
    m->table = table, m->size = size;
    return 0;
}

static int add_member(struct schema *s, struct members *m, const struct json *name) {
    TRY(effort_spend(s->effort, 20));
    TRY(grow_names(s, m));
    size_t at = name_hash(name->string, name->n) & (m->size - 1);
    for (; m->table[at]; at = (at + 1) & (m->size - 1))
        if (same_name(&m->v[m->table[at] - 1], name->string, name->n)) return 0;
    if (m->n == m->cap) {
        const size_t cap = m->cap ? 2 * m->cap : 16;
        struct member *v = arena_alloc(s->arena, cap * sizeof *v);
        if (!v) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
        if (m->n) memcpy(v, m->v, m->n * sizeof *v);
        m->v = v, m->cap = cap;
    }
    m->v[m->n++] = (struct member){.name = name->string, .n = name->n};
    m->table[at] = (uint32_t)m->n;
    return 0;
}

bool schema_is_required(struct schema *s, const struct conj *c, const char *name, size_t n) {
    const struct json *list;
    for (int i = 0; schema_keyword(c, &i, "required", &list); i++)
        if (schema_find_name(s, list, name, n)) return true;
    return false;
}

int schema_members(struct schema *s, const struct conj *c, struct members *out) {
    const struct json *map, *more;
    bool extras_have_schema = false, extras_refused = false;
    uint32_t n_listed = 0;
    *out = (struct members){0};
    for (int i = 0; schema_keyword(c, &i, "properties", &map); i++)
        for (uint32_t k = 0; k < map->n; k++) TRY(add_member(s, out, &map->items[2 * k]));
    for (int i = 0; schema_keyword(c, &i, "required", &map); i++)
        for (uint32_t k = 0; k < map->n; k++) TRY(add_member(s, out, &map->items[k]));
    const bool has_no_names = !out->n;
    TRY(schema_listed_names(s, c, &map, &n_listed));
    for (uint32_t k = 0; map && k < n_listed; k++)
        if (map[k].type == JSON_STRING) TRY(add_member(s, out, &map[k]));
    const bool names_listed = map != NULL;
    for (size_t k = 0; k < out->n; k++) out->v[k].required = schema_is_required(s, c, out->v[k].name, out->v[k].n);
    for (int i = 0; schema_keyword(c, &i, "additionalProperties", &more); i++) {
        if (more->type == JSON_BOOL && !more->boolean) extras_refused = true;
        else extras_have_schema = true;
    }
    int i = 0;
    const bool has_patterns = schema_keyword(c, &i, "patternProperties", &map);
    out->extras = !names_listed && (has_patterns || (!extras_refused && (extras_have_schema || has_no_names)));
    return 0;
}

/* Whether a name contains a match of the pattern. */
static int matches(struct schema *s, const struct part *p, const struct json *pattern, const char *name, size_t n,
                   bool *out) {
    struct lang l;
    struct error e = {0};
    int rc = look_ahead_search(s->effort, s->arena, pattern->string, pattern->n, &l, &e);
    if (rc) return schema_fail_text(s, p->at, "patternProperties", rc, "", &e);
    *out = lang_has(&l, name, n);
    return 0;
}

int schema_member_conj(struct schema *s, const struct conj *c, const char *name, size_t n, struct conj *out) {
    bool allowed;
    out->n = 0, out->never = false;
    TRY(schema_allows_name(s, c, name, n, &allowed));
    out->never = !allowed;
    for (int i = 0; i < c->n; i++) {
        const struct part *p = &c->v[i];
        const struct json *map = json_get(p->schema, "properties"),
                          *patterns = json_get(p->schema, "patternProperties");
        const struct json *more = json_get(p->schema, "additionalProperties");
        const struct json *key = map ? schema_find_name(s, map, name, n) : NULL;
        bool known = key != NULL, hit;
        if (key) {
            const char *at = schema_at(s, p->at, "properties", 10);
            TRY(schema_add_part(s, out, key + 1, at ? schema_at(s, at, name, n) : NULL));
        }
        for (uint32_t k = 0; patterns && k < patterns->n; k++) {
            TRY(matches(s, p, &patterns->items[2 * k], name, n, &hit));
            if (!hit) continue;
            known = true;
            TRY(schema_add_part(s, out, &patterns->items[2 * k + 1], schema_at(s, p->at, "patternProperties", 17)));
        }
        if (!known && more) TRY(schema_add_part(s, out, more, schema_at(s, p->at, "additionalProperties", 20)));
    }
    return 0;
}

/* --- other names ------------------------------------------------------------------------------ */

struct patterns { /* patternProperties of all parts */
    struct {
        struct lang lang;
        const struct json *schema;
        int part;
    } v[MAX_PATTERNS];
    int n;
};

static int collect_patterns(struct schema *s, const struct conj *c, struct patterns *out) {
    const struct json *map;
    out->n = 0;
    for (int i = 0; schema_keyword(c, &i, "patternProperties", &map); i++)
        for (uint32_t k = 0; k < map->n; k++) {
            struct error e = {0};
            const struct json *pattern = &map->items[2 * k];
            if (out->n == MAX_PATTERNS)
                return schema_fail(s, c->v[i].at, "patternProperties", "more than %d patterns apply to one object",
                                   MAX_PATTERNS);
            int rc = look_ahead_search(s->effort, s->arena, pattern->string, pattern->n, &out->v[out->n].lang, &e);
            if (rc) return schema_fail_text(s, c->v[i].at, "patternProperties", rc, "", &e);
            out->v[out->n].schema = pattern + 1;
            out->v[out->n++].part = i;
        }
    return 0;
}

/* The schemas of a member whose name matches exactly the patterns in `mask`. *allowed: false if such names are not
 * generated. */
static int extra_conj(struct schema *s, const struct conj *c, const struct patterns *p, unsigned mask, struct conj *out,
                      bool *allowed) {
    *out = (struct conj){0};
    bool given = false, has_patterns = p->n > 0;
    for (int i = 0; i < c->n; i++) {
        const struct json *more = json_get(c->v[i].schema, "additionalProperties");
        bool hit = false;
        for (int k = 0; k < p->n; k++) {
            if (!(mask >> k & 1) || p->v[k].part != i) continue;
            hit = true;
            TRY(schema_add_part(s, out, p->v[k].schema, schema_at(s, c->v[i].at, "patternProperties", 17)));
        }
        if (hit || !more) continue;
        given |= more->type != JSON_BOOL || more->boolean;
        TRY(schema_add_part(s, out, more, schema_at(s, c->v[i].at, "additionalProperties", 20)));
    }
    *allowed = !out->never && (mask || given || !has_patterns);
    return 0;
}

/* The names that match exactly these patterns and none of the members. Names are printable, and ASCII where a pattern
 * must not match, since dialects differ about other characters. */
static int extra_names(struct schema *s, const struct conj *c, const struct patterns *p, unsigned mask,
                       const struct members *m, struct lang *out) {
    struct lang l, listed;
    struct error e = {0};
    int rc = lang_printable(s->effort, p->n > 0, &l, &e);
    for (int k = 0; k < p->n && !rc; k++) {
        rc = lang_product(s->effort, &l, &p->v[k].lang, !(mask >> k & 1), out, &e);
        l = *out;
    }
    struct grammar_text *names = m->n && !rc ? arena_alloc(s->arena, m->n * sizeof *names) : NULL;
    if (m->n && !rc && !names) rc = error_set(&e, ERR_MEMORY, "no memory for the schema");
    for (size_t i = 0; i < m->n && !rc; i++) names[i] = (struct grammar_text){m->v[i].name, m->v[i].n};
    if (m->n && !rc) rc = lang_strings(s->effort, names, m->n, &listed, &e);
    if (m->n && !rc) {
        rc = lang_product(s->effort, &l, &listed, true, out, &e);
        l = *out;
    }
    *out = l;
    return rc ? schema_fail_text(s, c->v[0].at, NULL, rc, "names of further properties", &e)
              : schema_restrict_names(s, c, out);
}

/* Sets *out to a member with another name, or to EXPR_NEVER if the schemas allow only the listed names. */
static int extra_member(struct schema *s, const struct conj *c, const struct members *m, expr_id *out) {
    struct patterns *p = arena_calloc(s->arena, 1, sizeof *p);
    struct conj *value = schema_conj_borrow(s);
    *out = EXPR_NEVER;
    if (!p || !value) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
    if (!m->extras || m->n > MAX_NAMES_BESIDE) return schema_conj_return(s, value), 0;
    TRY(collect_patterns(s, c, p));
    for (unsigned mask = 0; mask < 1u << p->n; mask++) {
        struct lang names;
        bool allowed;
        expr_id x, name;
        TRY(extra_conj(s, c, p, mask, value, &allowed));
        if (!allowed) continue;
        TRY(extra_names(s, c, p, mask, m, &names));
        if (lang_is_empty(&names, s->effort)) continue;
        if (s->form == FORM_TAGGED) {
            TRY(schema_tagged_extra(s, value, &names, c->v[0].at, &x));
            *out = grammar_alt(s->g, *out, x);
            continue;
        }
        TRY(schema_compile(s, value, &x));
        name = json_in_quotes(s->g, json_lang(s, &names));
        *out = grammar_alt(s->g, *out, grammar_seq(s->g, name, grammar_seq(s->g, json_colon(s), x)));
    }
    schema_conj_return(s, value);
    return 0;
}

/* --- members ---------------------------------------------------------------------------------- */

static expr_id comma(struct schema *s) { return s->form == FORM_TAGGED ? EXPR_EMPTY : json_comma(s); }

/* extra{lo, hi} with commas; a comma goes before the first if `after`. */
static expr_id extras(struct schema *s, expr_id extra, uint32_t lo, uint32_t hi, bool after) {
    struct grammar *g = s->g;
    const expr_id next = grammar_seq(g, comma(s), extra);
    if (after) return grammar_repeat(g, next, lo, hi);
    if (!hi) return lo ? EXPR_NEVER : EXPR_EMPTY;
    const expr_id all =
        grammar_seq(g, extra, grammar_repeat(g, next, lo ? lo - 1 : 0, hi == GRAMMAR_UNBOUNDED ? hi : hi - 1));
    return lo ? all : grammar_alt(g, EXPR_EMPTY, all);
}

/* How many members an object may have. */
struct counts {
    uint32_t least, most; /* most: GRAMMAR_UNBOUNDED */
    uint32_t cap;         /* larger counts are treated as this one */
};

/* Members with other names may repeat a name, so that only the first of them counts towards the minimum. */
static int member_counts(struct schema *s, const struct conj *c, const struct members *m, bool any_extra,
                         struct counts *out) {
    const double least = schema_greatest(c, "minProperties", 0), most = schema_least(c, "maxProperties", INFINITY);
    if (least > (double)(m->n + any_extra))
        return schema_fail(s, c->v[0].at, "minProperties",
                           "%.0f is not supported: %zu properties are named, and further ones may have equal names",
                           least, m->n);
    out->least = (uint32_t)least;
    out->most = most > SCHEMA_MAX_COUNT ? GRAMMAR_UNBOUNDED : (uint32_t)most;
    out->cap = most <= SCHEMA_MAX_COUNT || least > (double)m->n ? (uint32_t)m->n : out->least;
    if (!out->cap) out->cap = 1; /* the first member has no comma before it */
    return 0;
}

/* The rest of an object that has n members, after those that have names. */
static expr_id last_members(struct schema *s, const struct counts *c, expr_id extra, uint32_t n) {
    const uint32_t lo = c->least > n ? c->least - n : 0, hi = c->most == GRAMMAR_UNBOUNDED ? c->most : c->most - n;
    if (lo > 1 || (lo && extra == EXPR_NEVER) || (c->most != GRAMMAR_UNBOUNDED && n > c->most)) return EXPR_NEVER;
    return extra == EXPR_NEVER ? EXPR_EMPTY : extras(s, extra, lo, hi, n > 0);
}

static int member_entry(struct schema *s, const struct conj *c, const struct member *m, expr_id *out) {
    struct conj *value = schema_conj_borrow(s);
    struct buf name = {0};
    expr_id x;
    if (!value) return ERR_MEMORY;
    TRY(schema_member_conj(s, c, m->name, m->n, value));
    if (s->form == FORM_TAGGED) {
        int rc = schema_tagged_member(s, value, m->name, m->n, c->v[0].at, out);
        schema_conj_return(s, value);
        return rc;
    }
    TRY(schema_compile(s, value, &x));
    schema_conj_return(s, value);
    if (json_quote(&name, m->name, m->n))
        return buf_free(&name), error_set(s->e, ERR_MEMORY, "no memory for the schema");
    *out = grammar_seq(s->g, schema_json_literal(s, name.data, name.len), grammar_seq(s->g, json_colon(s), x));
    buf_free(&name);
    return 0;
}

/* Puts a member before the tails, which are the rests of objects by their number of members. */
static int put_member(struct schema *s, const struct conj *c, const struct member *m, size_t n_before,
                      const struct counts *n, expr_id *tail) {
    struct grammar *g = s->g;
    expr_id entry;
    TRY(member_entry(s, c, m, &entry));
    for (uint32_t k = 0; k <= n_before && k <= n->cap; k++) {
        const expr_id from_member = grammar_seq(g, entry, tail[k < n->cap ? k + 1 : k]);
        const expr_id with_member = k ? grammar_seq(g, comma(s), from_member) : from_member,
                      either = m->required ? with_member : grammar_alt(g, with_member, tail[k]);
        if (either == EXPR_NEVER) {
            tail[k] = either;
            continue;
        }
        const expr_id rule = grammar_rule(g);
        grammar_define(g, rule, either);
        tail[k] = rule;
    }
    return 0;
}

int schema_object(struct schema *s, const struct conj *c, expr_id *out) {
    struct grammar *g = s->g;
    struct members m;
    struct counts n = {0};
    expr_id extra;
    TRY(schema_members(s, c, &m));
    TRY(extra_member(s, c, &m, &extra));
    TRY(member_counts(s, c, &m, extra != EXPR_NEVER, &n));
    expr_id *tail = arena_alloc(s->arena, (n.cap + 1) * sizeof *tail);
    if (!tail) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
    for (uint32_t k = 0; k <= n.cap; k++) tail[k] = last_members(s, &n, extra, k);
    for (size_t i = m.n; i-- > 0;) TRY(put_member(s, c, &m.v[i], i, &n, tail));
    if (s->form == FORM_TAGGED) return *out = tail[0], 0;
    *out = grammar_nest(
        g, grammar_seq(g, grammar_literal(g, "{", 1), grammar_seq(g, tail[0], grammar_literal(g, "}", 1))));
    return 0;
}

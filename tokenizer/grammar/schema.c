#include "tokenizer/grammar/schema_internal.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"
#include "tokenizer/grammar/automaton.h"

/* Compiles conjunctions of schemas: references, applicators, enumerations and types. */

enum { MAX_COMPILED = 100000, MAX_SCHEMA_DEPTH = 200 };

struct schema_memos { /* conjunctions that have rules, by their hashes */
    struct schema_memo {
        struct schema_memo *next;
        struct part *parts;
        int n;
        uint8_t form;
        expr_id rule;
    } * chains[1 << 14];
};

int schema_fail(struct schema *s, const char *at, const char *keyword, const char *fmt, ...) {
    char why[300];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    return error_set(s->e, ERR_USAGE, "%s%s%s: %s", at, keyword ? "/" : "", keyword ? keyword : "", why);
}

int schema_fail_text(struct schema *s, const char *at, const char *keyword, int rc, const char *what,
                     const struct error *why) {
    if (rc == ERR_MEMORY) return error_set(s->e, rc, "%s", why->text);
    return schema_fail(s, at, keyword, "%s%s%s", what, *what ? ": " : "", why->text);
}

const char *schema_at(struct schema *s, const char *at, const char *key, size_t n) {
    struct buf b = {0};
    buf_fmt(&b, "%s/", at);
    for (size_t i = 0; i < n; i++) {
        if (key[i] == '~') buf_str(&b, "~0");
        else if (key[i] == '/') buf_str(&b, "~1");
        else buf_char(&b, key[i]);
    }
    const char *out = b.failed ? NULL : arena_strndup(s->arena, b.data, b.len);
    buf_free(&b);
    if (!out) error_set(s->e, ERR_MEMORY, "no memory for the schema");
    return out;
}
const char *schema_at_item(struct schema *s, const char *at, const char *key, uint32_t i) {
    char name[64];
    snprintf(name, sizeof name, "%u", i);
    const char *list = schema_at(s, at, key, strlen(key));
    return list ? schema_at(s, list, name, strlen(name)) : NULL;
}

/* --- conjunctions ----------------------------------------------------------------------------- */

/* A branch of alternatives names a schema that c already has: makes the alternatives of that part, and of the parts
 * that it refers to, count again. */
static void restore_alternatives(struct schema *s, struct conj *c, const struct json *j, bool *seen) {
    int i = 0;
    while (i < c->n && c->v[i].schema != j) i++;
    if (i == c->n || seen[i]) return;
    seen[i] = true;
    c->v[i].skip &= PART_NO_VALUES;
    const struct json *ref = json_get(j, "$ref"), *all = json_get(j, "allOf"), *more = schema_rewritten(s, j);
    if (ref) restore_alternatives(s, c, schema_reference(s, ref), seen);
    for (uint32_t k = 0; more && k < more->n; k++) restore_alternatives(s, c, &more->items[k], seen);
    for (uint32_t k = 0; all && k < all->n; k++) restore_alternatives(s, c, &all->items[k], seen);
}

int schema_add_part(struct schema *s, struct conj *c, const struct json *j, const char *at) {
    if (!at) return ERR_MEMORY;
    if (j->type == JSON_BOOL) return c->never |= !j->boolean, 0;
    for (int i = 0; i < c->n; i++)
        if (c->v[i].schema == j) return restore_alternatives(s, c, j, (bool[MAX_PARTS]){0}), 0;
    TRY(effort_spend(s->effort, 50 + 200ull * j->n));
    TRY(schema_check_keywords(s, j, at));
    if (c->n == MAX_PARTS) return schema_fail(s, at, NULL, "more than %d schemas apply to one value", MAX_PARTS);
    c->v[c->n++] = (struct part){j, at, 0};
    const struct json *ref = json_get(j, "$ref"), *all = json_get(j, "allOf"), *more;
    if (ref) {
        const struct json *target = schema_reference(s, ref);
        const char *name = arena_strndup(s->arena, ref->string, ref->n);
        TRY(effort_spend(s->effort, 0));
        if (!target)
            return schema_fail(s, at, "$ref", "no schema at %.*s; only references within the document are supported",
                               (int)(ref->n < 80 ? ref->n : 80), ref->string);
        TRY(schema_add_part(s, c, target, name));
    }
    for (uint32_t i = 0; all && i < all->n; i++)
        TRY(schema_add_part(s, c, &all->items[i], schema_at_item(s, at, "allOf", i)));
    TRY(schema_rewrite(s, j, at, &more));
    for (uint32_t i = 0; more && i < more->n; i++) TRY(schema_add_part(s, c, &more->items[i], at));
    return 0;
}

struct conj_pool { /* conjunctions that nobody uses */
    struct conj c;
    struct conj_pool *next;
};
struct conj *schema_conj_borrow(struct schema *s) {
    struct conj_pool *p = s->pool ? s->pool : arena_alloc(s->arena, sizeof *p);
    if (!p) return error_set(s->e, ERR_MEMORY, "no memory for the schema"), NULL;
    s->pool = p == s->pool ? p->next : s->pool;
    p->c.n = 0;
    p->c.never = false;
    return &p->c;
}
void schema_conj_return(struct schema *s, struct conj *c) {
    struct conj_pool *p = (struct conj_pool *)c;
    p->next = s->pool;
    s->pool = p;
}
static void copy_conj(struct conj *to, const struct conj *c) {
    to->n = c->n;
    to->never = c->never;
    memcpy(to->v, c->v, (size_t)c->n * sizeof *c->v);
}
struct conj *schema_conj_keep(struct schema *s, const struct conj *c) {
    struct conj *out = arena_alloc(s->arena, offsetof(struct conj, v) + (size_t)c->n * sizeof *c->v);
    if (out) copy_conj(out, c);
    else error_set(s->e, ERR_MEMORY, "no memory for the schema");
    return out;
}

/* --- anyOf, oneOf ----------------------------------------------------------------------------- */

/* A value of oneOf must not be valid by two branches, so null is not generated if several of them allow it. */
static int forbid_null(struct schema *s, const struct json *list, const char *at, struct conj *c) {
    static const char text[] = "{\"type\": [\"boolean\", \"number\", \"string\", \"array\", \"object\"]}";
    struct json *others = arena_calloc(s->arena, 1, sizeof *others);
    struct conj *one = schema_conj_borrow(s);
    int n = 0;
    if (!one || !others) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
    for (uint32_t b = 0; b < list->n && n < 2; b++) {
        one->n = 0, one->never = false;
        TRY(schema_add_part(s, one, &list->items[b], schema_at_item(s, at, "oneOf", b)));
        n += !one->never && schema_types(one, true) & TYPE_NULL;
    }
    schema_conj_return(s, one);
    if (n < 2) return 0;
    TRY(json_parse(s->arena, text, sizeof text - 1, 0, "types", others, s->e));
    return schema_add_part(s, c, others, at);
}

/* Returns what the branches list if each is an enum or const and nothing else: one enum instead of many branches.
 * NULL: they are not, or lack memory, or with is_one a value is in two of them. */
static struct json *joined_values(struct schema *s, const struct json *list, bool is_one) {
    uint32_t n = 0;
    for (uint32_t b = 0; b < list->n; b++) {
        const struct json *branch = &list->items[b], *values = json_get(branch, "enum"),
                          *one = json_get(branch, "const");
        if (!values == !one || (values && (values->type != JSON_ARRAY || !values->n))) return NULL;
        for (uint32_t i = 0; i < branch->n; i++)
            if (&branch->items[2 * i + 1] != (values ? values : one) && !schema_says_nothing(&branch->items[2 * i]))
                return NULL;
        n += values ? values->n : 1;
    }
    struct json *all = n ? arena_alloc(s->arena, n * sizeof *all) : NULL, *out = NULL;
    uint32_t at = 0;
    for (uint32_t b = 0; all && b < list->n; b++) {
        const struct json *values = json_get(&list->items[b], "enum");
        if (values) memcpy(all + at, values->items, values->n * sizeof *all);
        else all[at] = *json_get(&list->items[b], "const");
        at += values ? values->n : 1;
    }
    if (all) out = schema_node(s, "enum", &(struct json){.type = JSON_ARRAY, .n = n, .items = all});
    for (uint32_t i = 0; is_one && out && i < n; i++) /* the last of equal values is found */
        if (schema_find(s, json_get(out, "enum"), &all[i]) != &json_get(out, "enum")->items[i]) return NULL;
    return out;
}

static int compile_branches(struct schema *s, const struct conj *c, int i, const char *keyword, uint8_t skip,
                            expr_id *out) {
    const struct json *list = json_get(c->v[i].schema, keyword);
    const bool is_one = skip == PART_NO_ONE_OF;
    struct json *values = list->n > 1 ? joined_values(s, list, is_one) : NULL;
    struct conj **branch = is_one ? arena_calloc(s->arena, list->n, sizeof *branch) : NULL;
    struct conj *common = schema_conj_borrow(s), *one = schema_conj_borrow(s);
    if ((is_one && !branch) || !common || !one) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
    copy_conj(common, c);
    *out = EXPR_NEVER;
    if (values) {
        common->v[i].skip |= skip;
        TRY(schema_add_part(s, common, values, c->v[i].at));
        TRY(schema_compile(s, common, out));
    } else if (is_one) TRY(forbid_null(s, list, c->v[i].at, common));
    for (uint32_t b = 0; !values && b < list->n; b++) {
        expr_id x;
        copy_conj(one, common);
        one->v[i].skip |= skip;
        TRY(schema_add_part(s, one, &list->items[b], schema_at_item(s, c->v[i].at, keyword, b)));
        TRY(schema_compile(s, one, &x));
        *out = grammar_alt(s->g, *out, x);
        if (is_one && !(branch[b] = schema_conj_keep(s, one))) return ERR_MEMORY;
    }
    if (is_one && !values) TRY(schema_check_one_of(s, list, c->v[i].at, branch));
    schema_conj_return(s, one);
    schema_conj_return(s, common);
    return 0;
}

/* --- enumerations ----------------------------------------------------------------------------- */

static bool only_values(const struct conj *c) {
    static const char *const other[] = {"type",
                                        "properties",
                                        "required",
                                        "additionalProperties",
                                        "patternProperties",
                                        "propertyNames",
                                        "minProperties",
                                        "maxProperties",
                                        "items",
                                        "prefixItems",
                                        "minItems",
                                        "maxItems",
                                        "contains",
                                        "uniqueItems",
                                        "minLength",
                                        "maxLength",
                                        "pattern",
                                        "format",
                                        "minimum",
                                        "maximum",
                                        "exclusiveMinimum",
                                        "exclusiveMaximum",
                                        "multipleOf",
                                        "anyOf",
                                        "oneOf"};
    for (int i = 0; i < c->n; i++)
        for (size_t k = 0; k < sizeof other / sizeof *other; k++)
            if (json_get(c->v[i].schema, other[k])) return false;
    return true;
}

bool schema_excludes_value(struct schema *s, const struct conj *c, const struct json *value) {
    for (int i = 0; i < c->n; i++) {
        uint32_t n;
        const struct json *v = schema_excluded(c->v[i].schema, &n),
                          *list = json_get(json_get(c->v[i].schema, "not"), "enum");
        if (v && (list ? schema_find(s, list, value) != NULL : json_equal(v, value))) return true;
    }
    return false;
}

bool schema_enumerates(struct schema *s, const struct conj *c, const struct json *value) {
    const struct json *list;
    if (schema_excludes_value(s, c, value)) return false;
    for (int i = 0; schema_keyword(c, &i, "const", &list); i++)
        if (!json_equal(list, value)) return false;
    for (int i = 0; schema_keyword(c, &i, "enum", &list); i++)
        if (!schema_find(s, list, value)) return false;
    return true;
}

/* Opens an automaton of the other keywords of c, in a grammar of its own; NULL if no value satisfies them. */
static int open_rest(struct schema *s, const struct conj *c, struct grammar **g, struct automaton **a) {
    struct conj *rest = schema_conj_borrow(s);
    struct schema sub;
    expr_id x = EXPR_NEVER;
    if (!rest) return ERR_MEMORY;
    copy_conj(rest, c);
    for (int i = 0; i < rest->n; i++) rest->v[i].skip |= PART_NO_VALUES;
    int rc = grammar_new(g, s->effort, s->e);
    if (!rc) rc = schema_open(&sub, *g, s->effort, s->root, s->e);
    if (rc) return rc;
    sub.depth = s->depth;
    sub.n_compiled = s->n_compiled;
    sub.rewritten = s->rewritten;
    sub.tables = s->tables;
    rc = schema_compile(&sub, rest, &x);
    s->n_compiled = sub.n_compiled;
    s->rewritten = sub.rewritten;
    schema_conj_return(s, rest);
    struct error never = {0};
    if (!rc && (rc = grammar_finish(*g, x, &never)) == ERR_USAGE && !s->effort->failed) return 0;
    return rc ? rc : automaton_open(a, *g, s->e);
}

struct value_list { /* what enum or const lists, as the texts of a grammar */
    struct grammar_text *v;
    size_t n;
    bool has_empty;
};

/* Adds the text of a value; json: it as JSON. */
static int add_value(struct schema *s, const struct json *value, const struct buf *json, struct value_list *out) {
    const bool is_text = s->form == FORM_TEXT;
    struct buf escaped = {0};
    if (is_text && (value->type != JSON_STRING || schema_tagged_has_end(s, value->string, value->n))) return 0;
    if (is_text) buf_add(&escaped, value->string, value->n);
    else schema_put_json(s, json->data, json->len, &escaped);
    const char *copy = escaped.failed ? NULL : arena_strndup(s->arena, escaped.data ? escaped.data : "", escaped.len);
    if (copy && escaped.len) out->v[out->n++] = (struct grammar_text){copy, escaped.len};
    out->has_empty |= !escaped.len;
    buf_free(&escaped);
    return copy ? 0 : error_set(s->e, ERR_MEMORY, "no memory for the schema");
}

static int compile_values(struct schema *s, const struct conj *c, expr_id *out) {
    const struct json *list = NULL, *one;
    struct grammar *g = NULL;
    struct automaton *a = NULL;
    const bool all = only_values(c);
    int at = 0;
    const bool constant = schema_keyword(c, &at, "const", &one);
    if (!constant) at = 0, schema_keyword(c, &at, "enum", &list);
    const uint32_t n = constant ? 1 : list->n;
    struct value_list texts = {.v = arena_alloc(s->arena, n * sizeof *texts.v)};
    if (!texts.v) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
    int rc = all ? 0 : open_rest(s, c, &g, &a);
    for (uint32_t i = 0; i < n && !rc; i++) {
        const struct json *value = constant ? one : &list->items[i];
        struct buf b = {0};
        if (!schema_enumerates(s, c, value)) continue;
        rc = json_compact(&b, value);
        if (rc == ERR_USAGE)
            rc = schema_fail(s, c->v[at].at, constant ? "const" : "enum",
                             "a number beyond the range of 64-bit integers and doubles");
        else if (rc) rc = error_set(s->e, ERR_MEMORY, "no memory for the schema");
        else if ((rc = effort_spend(s->effort, 16 + (all ? b.len : 64 * b.len)))) /* reported by the effort */
            ;
        else if (all || (a && automaton_is_complete(a, automaton_run(a, automaton_start(a), b.data, b.len))))
            rc = add_value(s, value, &b, &texts);
        buf_free(&b);
    }
    automaton_close(&a);
    grammar_free(&g);
    *out = grammar_literals(s->g, texts.v, texts.n);
    if (texts.has_empty) *out = grammar_alt(s->g, EXPR_EMPTY, *out);
    return rc;
}

/* --- types ------------------------------------------------------------------------------------ */

static unsigned type_of_excluded(const struct json *v) {
    switch (v->type) {
    case JSON_INT:
    case JSON_FLOAT: return TYPE_NUMBER;
    case JSON_ARRAY: return TYPE_ARRAY;
    case JSON_OBJECT: return TYPE_OBJECT;
    default: return 0;
    }
}
/* Fails if `not` excludes a number, an object or an array that could be generated; texts of strings and literals are
 * compared. */
static int check_excluded(struct schema *s, const struct conj *c, unsigned types) {
    for (int i = 0; i < c->n; i++) {
        uint32_t n;
        const struct json *v = schema_excluded(c->v[i].schema, &n);
        for (uint32_t k = 0; v && k < n; k++) {
            if (types & type_of_excluded(&v[k]))
                return schema_fail(s, c->v[i].at, "not",
                                   "is not supported with a number, a list or an object, except beside enum");
        }
    }
    return 0;
}

static int compile_types(struct schema *s, const struct conj *c, expr_id *out) {
    const unsigned types = schema_types(c, true) & (s->form == FORM_TAGGED ? TYPE_OBJECT
                                                    : s->form == FORM_TEXT ? TYPE_STRING
                                                                           : TYPE_ALL);
    expr_id x;
    TRY(check_excluded(s, c, types));
    *out = EXPR_NEVER;
    if (types & TYPE_OBJECT) {
        TRY(schema_object(s, c, &x));
        *out = grammar_alt(s->g, *out, x);
    }
    if (types & TYPE_ARRAY) {
        TRY(schema_array(s, c, &x));
        *out = grammar_alt(s->g, *out, x);
    }
    if (types & TYPE_STRING) {
        TRY(schema_string(s, c, &x));
        *out = grammar_alt(s->g, *out, x);
    }
    if (types & TYPE_NUMBER) {
        TRY(schema_number(s, c, !(types & TYPE_FRACTION), &x));
        *out = grammar_alt(s->g, *out, x);
    }
    static const struct {
        unsigned type;
        struct json value;
        const char *text;
    } words[] = {{TYPE_BOOLEAN, {.type = JSON_BOOL, .boolean = true}, "true"},
                 {TYPE_BOOLEAN, {.type = JSON_BOOL}, "false"},
                 {TYPE_NULL, {.type = JSON_NULL}, "null"}};
    for (int i = 0; i < 3; i++)
        if (types & words[i].type && !schema_excludes_value(s, c, &words[i].value))
            *out = grammar_alt(s->g, *out, grammar_literal(s->g, words[i].text, strlen(words[i].text)));
    return 0;
}

static int compile_body(struct schema *s, const struct conj *c, expr_id *out) {
    bool values = false;
    for (int i = 0; i < c->n; i++) {
        const struct part *p = &c->v[i];
        const char *const listed = json_get(p->schema, "const") ? "const" : json_get(p->schema, "enum") ? "enum" : NULL;
        if (listed && s->form == FORM_TAGGED)
            return schema_fail(s, p->at, listed, "this model's calls cannot have listed objects as arguments");
        if (json_get(p->schema, "anyOf") && !(p->skip & PART_NO_ANY_OF))
            return compile_branches(s, c, i, "anyOf", PART_NO_ANY_OF, out);
        if (json_get(p->schema, "oneOf") && !(p->skip & PART_NO_ONE_OF))
            return compile_branches(s, c, i, "oneOf", PART_NO_ONE_OF, out);
        values |= !(p->skip & PART_NO_VALUES) && listed;
    }
    return values ? compile_values(s, c, out) : compile_types(s, c, out);
}

static struct schema_memo **memo_chain(struct schema *s, const struct conj *c) {
    uint64_t h = s->form;
    for (int i = 0; i < c->n; i++) {
        const uint64_t key[] = {(uintptr_t)c->v[i].schema, c->v[i].skip};
        h = hash64(key, sizeof key, h);
    }
    return &s->memos->chains[h % (sizeof s->memos->chains / sizeof *s->memos->chains)];
}
static bool is_memo(const struct schema_memo *m, const struct conj *c, uint8_t form) {
    if (m->n != c->n || m->form != form) return false;
    for (int i = 0; i < c->n; i++)
        if (m->parts[i].schema != c->v[i].schema || m->parts[i].skip != c->v[i].skip) return false;
    return true;
}

int schema_compile(struct schema *s, const struct conj *c, expr_id *out) {
    if (c->never) return *out = EXPR_NEVER, 0;
    if (!c->n) return *out = json_value(s), 0;
    TRY(effort_spend(s->effort, 100ull * (unsigned)c->n));
    struct schema_memo **chain = memo_chain(s, c);
    for (const struct schema_memo *m = *chain; m; m = m->next)
        if (is_memo(m, c, s->form)) return *out = m->rule, 0;
    struct schema_memo *m = arena_alloc(s->arena, sizeof *m);
    struct part *parts = arena_alloc(s->arena, (size_t)c->n * sizeof *parts);
    if (!m || !parts) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
    if (++s->n_compiled > MAX_COMPILED)
        return schema_fail(s, c->v[0].at, NULL, "too complex: more than %d combinations of schemas", MAX_COMPILED);
    if (++s->depth > MAX_SCHEMA_DEPTH) return schema_fail(s, c->v[0].at, NULL, "nested too deeply");
    memcpy(parts, c->v, (size_t)c->n * sizeof *parts);
    *m = (struct schema_memo){.next = *chain, .parts = parts, .n = c->n, .form = s->form, .rule = grammar_rule(s->g)};
    *chain = m;
    expr_id body = EXPR_NEVER;
    int rc = compile_body(s, c, &body);
    s->depth--;
    grammar_define(s->g, m->rule, body);
    *out = body == EXPR_NEVER ? EXPR_NEVER : m->rule;
    return rc;
}

int schema_open(struct schema *s, struct grammar *g, struct effort *effort, const struct json *root, struct error *e) {
    *s = (struct schema){.g = g, .effort = effort, .arena = &effort->arena, .e = e};
    s->root = schema_older(s->arena, root);
    s->memos = arena_calloc(s->arena, 1, sizeof *s->memos);
    s->tables = schema_tables_new(s->arena);
    return s->memos && s->tables && s->root ? 0 : error_set(e, ERR_MEMORY, "no memory for the schema");
}

int schema_expr(struct grammar *g, struct effort *effort, const struct json *root, expr_id *out, struct error *e) {
    struct schema s;
    struct conj c = {0};
    if (root->type != JSON_OBJECT && root->type != JSON_BOOL)
        return error_set(e, ERR_USAGE, "#: a schema is an object, true or false");
    int rc = schema_open(&s, g, effort, root, e);
    if (!rc) rc = schema_add_part(&s, &c, s.root, "#");
    if (!rc) rc = schema_compile(&s, &c, out);
    if (!rc && *out == EXPR_NEVER) rc = error_set(e, ERR_USAGE, "#: no value is valid by this schema");
    return rc;
}

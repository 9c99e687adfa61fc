#include "tokenizer/jinja_parse.h"

#include <string.h>

/* Expressions. One function for each level of precedence, in the order of jinja2/parser.py: ternary, or, and, not,
 * comparison, + -, ~, * / // %, **, sign, postfix, filters and tests. */

struct jnode *jparse_new(struct jparser *p, uint8_t kind, uint32_t pos) {
    struct jnode *n = jalloc(p->r, sizeof *n);
    *n = (struct jnode){.kind = kind, .pos = pos};
    return n;
}
bool jparse_is(const struct jparser *p, const char *name) { return p->t->type == T_NAME && jstr_is(p->t->v.s, name); }
bool jparse_skip(struct jparser *p, const char *name) {
    bool is = jparse_is(p, name);
    if (is) p->t++;
    return is;
}
bool jparse_skip_type(struct jparser *p, uint8_t type) {
    bool is = p->t->type == type;
    if (is) p->t++;
    return is;
}
_Noreturn void jparse_fail(struct jparser *p, const char *why) {
    p->r->pos = p->t->pos;
    jfail(p->r, "%s", why);
}
struct jtoken *jparse_expect(struct jparser *p, uint8_t type, const char *what) {
    if (p->t->type != type) {
        p->r->pos = p->t->pos;
        if (p->t->type == T_EOF) jfail(p->r, "unexpected end of template, expected %s", what);
        jfail(p->r, "expected %s", what);
    }
    return p->t++;
}
static void down(struct jparser *p) {
    if (++p->r->depth > JINJA_NEST * 4) jparse_fail(p, "nested too deeply");
}

static bool tuple_end(const struct jparser *p, const char *stop) {
    uint8_t t = p->t->type;
    return t == T_VAR_END || t == T_BLOCK_END || t == T_RPAREN || (stop && jparse_is(p, stop));
}

static struct jnode *primary(struct jparser *p, bool spaces);
/* N_TUPLE: list. kind 0: expressions, 1: without ternary, 2: primaries, 3: primaries and ns.name */
static struct jnode *tuple(struct jparser *p, int kind, const char *stop, bool parens) {
    struct jnode *items = NULL, **end = &items;
    uint32_t pos = p->t->pos;
    bool is_tuple = false;
    for (;;) {
        if (items) jparse_expect(p, T_COMMA, "','");
        if (tuple_end(p, stop)) break;
        *end = kind == 0 ? jparse_expr(p) : kind == 1 ? jparse_or(p) : primary(p, kind == 3);
        end = &(*end)->next;
        if (p->t->type != T_COMMA) break;
        is_tuple = true;
    }
    if (!is_tuple) {
        if (items) return items;
        if (!parens) jparse_fail(p, "expected an expression");
    }
    struct jnode *n = jparse_new(p, N_TUPLE, pos);
    n->list = items;
    return n;
}
struct jnode *jparse_tuple(struct jparser *p, bool with, const char *stop) {
    return tuple(p, with ? 0 : 1, stop, false);
}

static struct jnode *list(struct jparser *p) {
    struct jnode *n = jparse_new(p, N_LIST, p->t++->pos), **end = &n->list;
    while (p->t->type != T_RBRACKET) {
        if (n->list) jparse_expect(p, T_COMMA, "','");
        if (p->t->type == T_RBRACKET) break;
        *end = jparse_expr(p);
        end = &(*end)->next;
    }
    p->t++;
    return n;
}
static struct jnode *dict(struct jparser *p) { /* list of N_PAIR: a key, b value */
    struct jnode *n = jparse_new(p, N_DICT, p->t++->pos), **end = &n->list;
    while (p->t->type != T_RBRACE) {
        if (n->list) jparse_expect(p, T_COMMA, "','");
        if (p->t->type == T_RBRACE) break;
        struct jnode *pair = jparse_new(p, N_PAIR, p->t->pos);
        pair->a = jparse_expr(p);
        jparse_expect(p, T_COLON, "':'");
        pair->b = jparse_expr(p);
        *end = pair;
        end = &pair->next;
    }
    p->t++;
    return n;
}

static struct jnode *constant(struct jparser *p, struct jval v, uint32_t pos) {
    struct jnode *n = jparse_new(p, N_CONST, pos);
    n->v = v;
    return n;
}
static struct jnode *primary(struct jparser *p, bool spaces) {
    struct jtoken *t = p->t;
    down(p);
    struct jnode *n;
    switch (t->type) {
    case T_NAME:
        p->t++;
        if (jstr_is(t->v.s, "true") || jstr_is(t->v.s, "True")) n = constant(p, jval_bool(true), t->pos);
        else if (jstr_is(t->v.s, "false") || jstr_is(t->v.s, "False")) n = constant(p, jval_bool(false), t->pos);
        else if (jstr_is(t->v.s, "none") || jstr_is(t->v.s, "None")) n = constant(p, jval_none(), t->pos);
        else if (spaces && p->t->type == T_DOT) { /* N_NSREF: v namespace name, a attribute as a constant */ n = jparse_new(p, N_NSREF, t->pos);
            n->v = t->v;
            p->t++;
            struct jtoken *attr = jparse_expect(p, T_NAME, "a name");
            n->a = constant(p, attr->v, attr->pos);
        } else {
            n = jparse_new(p, N_NAME, t->pos);
            n->v = t->v;
        }
        break;
    case T_STRING: { /* adjacent strings are one string */
        struct jval v = t->v;
        for (p->t++; p->t->type == T_STRING; p->t++) {
            v = jstr_concat(p->r, v.s, p->t->v.s);
            v.s->room = NULL;
        }
        n = constant(p, v, t->pos);
        break;
    }
    case T_INT:
    case T_FLOAT:
        p->t++;
        n = constant(p, t->v, t->pos);
        break;
    case T_LPAREN:
        p->t++;
        n = tuple(p, 0, NULL, true);
        jparse_expect(p, T_RPAREN, "')'");
        break;
    case T_LBRACKET: n = list(p); break;
    case T_LBRACE: n = dict(p); break;
    case T_EOF: jparse_fail(p, "unexpected end of template");
    default: jparse_fail(p, "unexpected token");
    }
    p->r->depth--;
    return n;
}

/* Parses the name of a filter or test, which may contain dots. */
static struct jval dotted(struct jparser *p, const char *what) {
    struct jval v = jparse_expect(p, T_NAME, what)->v;
    while (jparse_skip_type(p, T_DOT)) {
        v = jstr_concat(p->r, v.s, jstr_text(p->r, ".").s);
        v = jstr_concat(p->r, v.s, jparse_expect(p, T_NAME, "a name")->v.s);
    }
    return v;
}

/* f(a, b, *c, d=e, **g): list, keywords (v name, a value), star, starstar */
static void call_args(struct jparser *p, struct jnode *n) {
    struct jnode **end = &n->list, **kend = &n->keywords;
    jparse_expect(p, T_LPAREN, "'('");
    for (bool comma = false; p->t->type != T_RPAREN; comma = true) {
        if (comma) {
            jparse_expect(p, T_COMMA, "','");
            if (p->t->type == T_RPAREN) break;
        }
        static const char bad[] = "invalid syntax for function call expression";
        if (p->t->type == T_MUL) {
            if (n->star || n->starstar) jparse_fail(p, bad);
            p->t++;
            n->star = jparse_expr(p);
        } else if (p->t->type == T_POW) {
            if (n->starstar) jparse_fail(p, bad);
            p->t++;
            n->starstar = jparse_expr(p);
        } else if (p->t->type == T_NAME && p->t[1].type == T_ASSIGN) {
            if (n->starstar) jparse_fail(p, bad);
            struct jnode *k = jparse_new(p, N_PAIR, p->t->pos);
            k->v = p->t->v;
            for (struct jnode *o = n->keywords; o; o = o->next)
                if (!jstr_cmp(o->v.s, k->v.s)) jparse_fail(p, "keyword argument repeated");
            p->t += 2;
            k->a = jparse_expr(p);
            *kend = k;
            kend = &k->next;
        } else {
            if (n->star || n->starstar || n->keywords) jparse_fail(p, bad);
            *end = jparse_expr(p);
            end = &(*end)->next;
        }
    }
    p->t++;
}

static struct jnode *subscript_part(struct jparser *p) { /* N_SLICE: b, c, d, each may be NULL */
    struct jnode *n = p->t->type == T_COLON ? NULL : jparse_expr(p), *s;
    if (p->t->type != T_COLON) return n;
    s = jparse_new(p, N_SLICE, p->t++->pos);
    s->b = n;
    if (p->t->type != T_COLON && p->t->type != T_RBRACKET && p->t->type != T_COMMA) s->c = jparse_expr(p);
    if (jparse_skip_type(p, T_COLON) && p->t->type != T_RBRACKET && p->t->type != T_COMMA) s->d = jparse_expr(p);
    return s;
}
static struct jnode *postfix(struct jparser *p, struct jnode *of, bool filters) {
    for (;;) {
        struct jtoken *t = p->t;
        struct jnode *n;
        if (t->type == T_DOT && !filters) { /* N_ATTR: a object, v name; a number is an item */
            p->t++;
            if (p->t->type != T_NAME && p->t->type != T_INT) jparse_fail(p, "expected name or number");
            n = jparse_new(p, p->t->type == T_NAME ? N_ATTR : N_ITEM, t->pos);
            n->a = of;
            if (n->kind == N_ATTR) n->v = p->t->v;
            else n->b = constant(p, p->t->v, p->t->pos);
            p->t++;
        } else if (t->type == T_LBRACKET && !filters) { /* N_ITEM: a object, b key; N_SLICE: a object */
            p->t++;
            struct jnode *parts = NULL, **end = &parts;
            while (p->t->type != T_RBRACKET) {
                if (parts) jparse_expect(p, T_COMMA, "','");
                *end = subscript_part(p);
                if ((*end)->kind == N_SLICE && !(*end)->a && (p->t->type != T_RBRACKET || parts != *end)) jparse_fail(p, "a slice cannot be combined with other keys");
                end = &(*end)->next;
            }
            p->t++;
            if (!parts) jparse_fail(p, "expected a subscript");
            if (parts->kind == N_SLICE && !parts->a) {
                n = parts;
                n->a = of;
                n->pos = t->pos;
            } else {
                n = jparse_new(p, N_ITEM, t->pos);
                n->a = of;
                n->b = parts;
                if (parts->next) {
                    n->b = jparse_new(p, N_TUPLE, t->pos);
                    n->b->list = parts;
                }
            }
        } else if (t->type == T_LPAREN) { /* N_CALL: a callee */
            n = jparse_new(p, N_CALL, t->pos);
            n->a = of;
            call_args(p, n);
        } else if (filters && t->type == T_PIPE) n = jparse_filters(p, of, false);
        else if (filters && jparse_is(p, "is")) { /* N_TEST: a operand, v name */ p->t++;
            bool negate = jparse_skip(p, "not");
            uint32_t pos = p->t->pos;
            n = jparse_new(p, N_TEST, pos);
            n->a = of;
            n->v = dotted(p, "a test's name");
            if (p->t->type == T_LPAREN) call_args(p, n);
            else if ((p->t->type == T_NAME && !jparse_is(p, "else") && !jparse_is(p, "or") && !jparse_is(p, "and")) || p->t->type == T_STRING ||
                     p->t->type == T_INT || p->t->type == T_FLOAT || p->t->type == T_LBRACKET || p->t->type == T_LBRACE) {
                if (jparse_is(p, "is")) jparse_fail(p, "you cannot chain multiple tests with is");
                n->list = postfix(p, primary(p, false), false);
            }
            if (negate) {
                struct jnode *not = jparse_new(p, N_NOT, pos);
                not ->a = n;
                n = not ;
            }
        } else return of;
        of = n;
    }
}
struct jnode *jparse_filters(struct jparser *p, struct jnode *of, bool first) { /* N_FILTER: a operand, v name */
    while (first || p->t->type == T_PIPE) {
        if (!first) p->t++;
        first = false;
        struct jnode *n = jparse_new(p, N_FILTER, p->t->pos);
        n->a = of;
        n->v = dotted(p, "a filter's name");
        if (p->t->type == T_LPAREN) call_args(p, n);
        of = n;
    }
    return of;
}

static struct jnode *unary(struct jparser *p, bool filters) {
    struct jnode *n;
    down(p);
    if (p->t->type == T_SUB || p->t->type == T_ADD) {
        n = jparse_new(p, p->t->type == T_SUB ? N_NEG : N_POS, p->t->pos);
        p->t++;
        n->a = unary(p, false);
    } else n = primary(p, false);
    n = postfix(p, n, false);
    if (filters) n = postfix(p, n, true);
    p->r->depth--;
    return n;
}
static struct jnode *power(struct jparser *p) { return unary(p, true); }

/* Operators of one level: N_MATH or N_COMPARE with the first operand in a and the others, with op set, in list. A list instead of a tree, so that a sum of a
 * thousand terms is not a thousand levels deep. */
static struct jnode *operand(struct jnode *n, uint8_t op, struct jparser *p, uint32_t pos) {
    struct jnode *o = jparse_new(p, N_PAIR, pos);
    o->op = op;
    o->a = n;
    return o;
}
static struct jnode *row(struct jparser *p, uint8_t kind, struct jnode *(*next)(struct jparser *), uint8_t (*op)(struct jparser *)) {
    struct jnode *first = next(p), *n = NULL, **end = NULL;
    for (;;) {
        uint32_t pos = p->t->pos;
        uint8_t o = op(p);
        if (!o) return n ? n : first;
        if (!n) {
            n = jparse_new(p, kind, pos);
            n->a = first;
            end = &n->list;
        }
        *end = operand(next(p), o, p, pos);
        end = &(*end)->next;
    }
}
static uint8_t take(struct jparser *p, uint8_t lo, uint8_t hi) { return p->t->type >= lo && p->t->type <= hi ? p->t++->type : 0; }
static uint8_t op_pow(struct jparser *p) { return take(p, T_POW, T_POW); }
static uint8_t op_mul(struct jparser *p) { return take(p, T_MUL, T_MOD); }
static uint8_t op_tilde(struct jparser *p) { return take(p, T_TILDE, T_TILDE); }
static uint8_t op_add(struct jparser *p) { return take(p, T_ADD, T_SUB); }
static uint8_t op_compare(struct jparser *p) {
    if (p->t->type >= T_EQ && p->t->type <= T_GE) return p->t++->type;
    if (jparse_skip(p, "in")) return T_IN;
    if (jparse_is(p, "not") && p->t[1].type == T_NAME && jstr_is(p->t[1].v.s, "in")) return p->t += 2, T_NOTIN;
    return 0;
}
static uint8_t op_and(struct jparser *p) { return jparse_skip(p, "and"); }
static uint8_t op_or(struct jparser *p) { return jparse_skip(p, "or"); }

static struct jnode *powers(struct jparser *p) { return row(p, N_MATH, power, op_pow); }
static struct jnode *product(struct jparser *p) { return row(p, N_MATH, powers, op_mul); }
static struct jnode *concat(struct jparser *p) { return row(p, N_CONCAT, product, op_tilde); }
static struct jnode *sum(struct jparser *p) { return row(p, N_MATH, concat, op_add); }
static struct jnode *compare(struct jparser *p) { return row(p, N_COMPARE, sum, op_compare); }
static struct jnode * not(struct jparser * p) {
    uint32_t pos = p->t->pos;
    if (!jparse_skip(p, "not")) return compare(p);
    down(p);
    struct jnode *n = jparse_new(p, N_NOT, pos);
    n->a = not(p);
    p->r->depth--;
    return n;
}
static struct jnode * and (struct jparser * p) { return row(p, N_AND, not, op_and); }
struct jnode *jparse_or(struct jparser *p) {
    return row(p, N_OR, and, op_or);
}

struct jnode *jparse_expr(struct jparser *p) { /* N_COND: a test, b then, c else or NULL */
    down(p);
    uint32_t pos = p->t->pos;
    struct jnode *n = jparse_or(p);
    while (jparse_skip(p, "if")) {
        struct jnode *c = jparse_new(p, N_COND, pos);
        c->b = n;
        c->a = jparse_or(p);
        if (jparse_skip(p, "else")) c->c = jparse_expr(p);
        n = c;
        pos = p->t->pos;
    }
    p->r->depth--;
    return n;
}

/* ---- assignment targets */
static void mark_stored(struct jparser *p, struct jnode *n) {
    if (n->kind == N_NAME) n->store = true;
    else if (n->kind == N_TUPLE)
        for (struct jnode *i = n->list; i; i = i->next) mark_stored(p, i);
    else if (n->kind != N_NSREF) {
        p->r->pos = n->pos;
        jfail(p->r, "can't assign to that");
    }
}
struct jnode *jparse_target(struct jparser *p, bool spaces, const char *stop) {
    struct jnode *n = tuple(p, spaces ? 3 : 2, stop, false);
    mark_stored(p, n);
    return n;
}
struct jnode *jparse_name(struct jparser *p) {
    struct jtoken *t = jparse_expect(p, T_NAME, "a name");
    static const char *const fixed[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < 6; i++)
        if (jstr_is(t->v.s, fixed[i])) jparse_fail(p, "can't assign to a constant");
    struct jnode *n = jparse_new(p, N_NAME, t->pos);
    n->v = t->v;
    n->store = true;
    return n;
}

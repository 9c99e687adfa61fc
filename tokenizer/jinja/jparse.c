#include "tokenizer/jinja/jparse.h"

#include <string.h>

/* Expressions. One function for each level of precedence, in the order of jinja2/parser.py: ternary, or, and, not,
 * comparison, + -, ~, * / // %, **, sign, postfix, filters and tests. */

struct jnode *jparse_new(struct jparser *p, uint8_t kind, uint32_t pos) {
    struct jnode *n = jalloc(p->r, sizeof *n);
    *n = (struct jnode){.kind = kind, .pos = pos};
    return n;
}
bool jparse_at_name(const struct jparser *p, const char *name) {
    return p->token->type == T_NAME && jstr_equals(p->token->value.s, name);
}
bool jparse_accept_name(struct jparser *p, const char *name) {
    bool is = jparse_at_name(p, name);
    if (is) p->token++;
    return is;
}
bool jparse_accept(struct jparser *p, uint8_t type) {
    bool is = p->token->type == type;
    if (is) p->token++;
    return is;
}
_Noreturn void jparse_fail(struct jparser *p, const char *why) {
    p->r->pos = p->token->pos;
    jfail(p->r, "%s", why);
}
struct jtoken *jparse_expect(struct jparser *p, uint8_t type, const char *what) {
    if (p->token->type != type) {
        p->r->pos = p->token->pos;
        if (p->token->type == T_EOF) jfail(p->r, "unexpected end of template, expected %s", what);
        jfail(p->r, "expected %s", what);
    }
    return p->token++;
}
void jparse_enter(struct jparser *p) {
    enum { MAX_NESTING = 4 * JINJA_MAX_CALLS };
    if (++p->r->depth > MAX_NESTING) jparse_fail(p, "nested too deeply");
}

static bool at_tuple_end(const struct jparser *p, const char *stop) {
    uint8_t t = p->token->type;
    return t == T_VAR_END || t == T_BLOCK_END || t == T_RPAREN || (stop && jparse_at_name(p, stop));
}

static struct jnode *parse_primary(struct jparser *p, bool spaces);
/* N_TUPLE: list. kind 0: expressions, 1: without ternary, 2: primaries, 3: primaries and ns.name */
static struct jnode *parse_tuple(struct jparser *p, int kind, const char *stop, bool parens) {
    struct jnode *items = NULL, **end = &items;
    uint32_t pos = p->token->pos;
    bool is_tuple = false;
    for (;;) {
        if (items) jparse_expect(p, T_COMMA, "','");
        if (at_tuple_end(p, stop)) break;
        *end = kind == 0 ? jparse_expr(p) : kind == 1 ? jparse_no_ternary(p) : parse_primary(p, kind == 3);
        end = &(*end)->next;
        if (p->token->type != T_COMMA) break;
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
struct jnode *jparse_tuple(struct jparser *p, bool ternary, const char *stop) {
    return parse_tuple(p, ternary ? 0 : 1, stop, false);
}

static struct jnode *parse_list(struct jparser *p) {
    struct jnode *n = jparse_new(p, N_LIST, p->token++->pos), **end = &n->list;
    while (p->token->type != T_RBRACKET) {
        if (n->list) jparse_expect(p, T_COMMA, "','");
        if (p->token->type == T_RBRACKET) break;
        *end = jparse_expr(p);
        end = &(*end)->next;
    }
    p->token++;
    return n;
}
static struct jnode *parse_dict(struct jparser *p) { /* list of N_PAIR: a key, b value */
    struct jnode *n = jparse_new(p, N_DICT, p->token++->pos), **end = &n->list;
    while (p->token->type != T_RBRACE) {
        if (n->list) jparse_expect(p, T_COMMA, "','");
        if (p->token->type == T_RBRACE) break;
        struct jnode *pair = jparse_new(p, N_PAIR, p->token->pos);
        pair->a = jparse_expr(p);
        jparse_expect(p, T_COLON, "':'");
        pair->b = jparse_expr(p);
        *end = pair;
        end = &pair->next;
    }
    p->token++;
    return n;
}

static struct jnode *new_constant(struct jparser *p, struct jval v, uint32_t pos) {
    struct jnode *n = jparse_new(p, N_CONST, pos);
    n->value = v;
    return n;
}
static struct jnode *parse_primary(struct jparser *p, bool spaces) {
    struct jtoken *t = p->token;
    jparse_enter(p);
    struct jnode *n;
    switch (t->type) {
    case T_NAME:
        p->token++;
        if (jstr_equals(t->value.s, "true") || jstr_equals(t->value.s, "True"))
            n = new_constant(p, jval_bool(true), t->pos);
        else if (jstr_equals(t->value.s, "false") || jstr_equals(t->value.s, "False"))
            n = new_constant(p, jval_bool(false), t->pos);
        else if (jstr_equals(t->value.s, "none") || jstr_equals(t->value.s, "None"))
            n = new_constant(p, jval_none(), t->pos);
        else if (spaces && p->token->type == T_DOT) { /* N_NSREF: v namespace name, a attribute as a constant */
            n = jparse_new(p, N_NSREF, t->pos);
            n->value = t->value;
            p->token++;
            struct jtoken *attr = jparse_expect(p, T_NAME, "a name");
            n->a = new_constant(p, attr->value, attr->pos);
        } else {
            n = jparse_new(p, N_NAME, t->pos);
            n->value = t->value;
        }
        break;
    case T_STRING: { /* adjacent strings are one string */
        struct jval v = t->value;
        for (p->token++; p->token->type == T_STRING; p->token++) {
            v = jstr_concat(p->r, v.s, p->token->value.s);
            v.s->append_buf = NULL;
        }
        n = new_constant(p, v, t->pos);
        break;
    }
    case T_INT:
    case T_FLOAT:
        p->token++;
        n = new_constant(p, t->value, t->pos);
        break;
    case T_LPAREN:
        p->token++;
        n = parse_tuple(p, 0, NULL, true);
        jparse_expect(p, T_RPAREN, "')'");
        break;
    case T_LBRACKET: n = parse_list(p); break;
    case T_LBRACE: n = parse_dict(p); break;
    case T_EOF: jparse_fail(p, "unexpected end of template");
    default: jparse_fail(p, "unexpected token");
    }
    p->r->depth--;
    return n;
}

/* Parses the name of a filter or test, which may contain dots. */
static struct jval parse_dotted_name(struct jparser *p, const char *what) {
    struct jval v = jparse_expect(p, T_NAME, what)->value;
    while (jparse_accept(p, T_DOT)) {
        v = jstr_concat(p->r, v.s, jstr_literal(p->r, ".").s);
        v = jstr_concat(p->r, v.s, jparse_expect(p, T_NAME, "a name")->value.s);
    }
    return v;
}

/* f(a, b, *c, d=e, **g): list, keywords (v name, a value), star, starstar */
static void parse_call_args(struct jparser *p, struct jnode *n) {
    struct jnode **end = &n->list, **kend = &n->keywords;
    int n_keywords = 0;
    jparse_expect(p, T_LPAREN, "'('");
    for (bool comma = false; p->token->type != T_RPAREN; comma = true) {
        if (comma) {
            jparse_expect(p, T_COMMA, "','");
            if (p->token->type == T_RPAREN) break;
        }
        static const char bad[] = "invalid syntax for function call expression";
        if (p->token->type == T_MUL) {
            if (n->star || n->starstar) jparse_fail(p, bad);
            p->token++;
            n->star = jparse_expr(p);
        } else if (p->token->type == T_POW) {
            if (n->starstar) jparse_fail(p, bad);
            p->token++;
            n->starstar = jparse_expr(p);
        } else if (p->token->type == T_NAME && p->token[1].type == T_ASSIGN) {
            if (n->starstar) jparse_fail(p, bad);
            struct jnode *k = jparse_new(p, N_PAIR, p->token->pos);
            k->value = p->token->value;
            if (++n_keywords > JINJA_MAX_KEYWORDS) jparse_fail(p, "too many keyword arguments in a call");
            for (struct jnode *o = n->keywords; o; o = o->next)
                if (!jstr_cmp(o->value.s, k->value.s)) jparse_fail(p, "keyword argument repeated");
            p->token += 2;
            k->a = jparse_expr(p);
            *kend = k;
            kend = &k->next;
        } else {
            if (n->star || n->starstar || n->keywords) jparse_fail(p, bad);
            *end = jparse_expr(p);
            end = &(*end)->next;
        }
    }
    p->token++;
}

static struct jnode *parse_subscript_item(struct jparser *p) { /* N_SLICE: b, c, d, each may be NULL */
    struct jnode *n = p->token->type == T_COLON ? NULL : jparse_expr(p), *s;
    if (p->token->type != T_COLON) return n;
    s = jparse_new(p, N_SLICE, p->token++->pos);
    s->b = n;
    if (p->token->type != T_COLON && p->token->type != T_RBRACKET && p->token->type != T_COMMA) s->c = jparse_expr(p);
    if (jparse_accept(p, T_COLON) && p->token->type != T_RBRACKET && p->token->type != T_COMMA) s->d = jparse_expr(p);
    return s;
}
/* Parses of[...]; the current token is the bracket. N_ITEM: a object, b key; N_SLICE: a object. */
static struct jnode *parse_subscript(struct jparser *p, struct jnode *of) {
    const uint32_t pos = p->token++->pos;
    struct jnode *n, *parts = NULL, **end = &parts;
    while (p->token->type != T_RBRACKET) {
        if (parts) jparse_expect(p, T_COMMA, "','");
        *end = parse_subscript_item(p);
        if ((*end)->kind == N_SLICE && !(*end)->a && (p->token->type != T_RBRACKET || parts != *end))
            jparse_fail(p, "a slice cannot be combined with other keys");
        end = &(*end)->next;
    }
    p->token++;
    if (!parts) jparse_fail(p, "expected a subscript");
    if (parts->kind == N_SLICE && !parts->a) {
        n = parts;
        n->a = of;
        n->pos = pos;
        return n;
    }
    n = jparse_new(p, N_ITEM, pos);
    n->a = of;
    n->b = parts;
    if (parts->next) {
        n->b = jparse_new(p, N_TUPLE, pos);
        n->b->list = parts;
    }
    return n;
}

static struct jnode *parse_postfix(struct jparser *p, struct jnode *of, bool filters);
/* Whether a value begins here that is the argument of a test without parentheses. */
static bool at_test_argument(const struct jparser *p) {
    const uint8_t type = p->token->type;
    if (type == T_NAME) return !jparse_at_name(p, "else") && !jparse_at_name(p, "or") && !jparse_at_name(p, "and");
    return type == T_STRING || type == T_INT || type == T_FLOAT || type == T_LBRACKET || type == T_LBRACE;
}
/* Parses what follows `is`. N_TEST: a operand, v name; with `not` inside N_NOT. */
static struct jnode *parse_test(struct jparser *p, struct jnode *of) {
    const bool negate = jparse_accept_name(p, "not");
    const uint32_t pos = p->token->pos;
    struct jnode *n = jparse_new(p, N_TEST, pos);
    n->a = of;
    n->value = parse_dotted_name(p, "a test's name");
    if (p->token->type == T_LPAREN) parse_call_args(p, n);
    else if (at_test_argument(p)) {
        if (jparse_at_name(p, "is")) jparse_fail(p, "you cannot chain multiple tests with is");
        n->list = parse_postfix(p, parse_primary(p, false), false);
    }
    if (!negate) return n;
    struct jnode *outer = jparse_new(p, N_NOT, pos);
    outer->a = n;
    return outer;
}

/* Parses what follows a value: attributes, items and calls; or with filters: filters, tests and calls of their
 * results. */
static struct jnode *parse_postfix(struct jparser *p, struct jnode *of, bool filters) {
    for (;;) {
        struct jtoken *t = p->token;
        struct jnode *n;
        if (t->type == T_DOT && !filters) { /* N_ATTR: a object, v name; a number is an item */
            p->token++;
            if (p->token->type != T_NAME && p->token->type != T_INT) jparse_fail(p, "expected name or number");
            n = jparse_new(p, p->token->type == T_NAME ? N_ATTR : N_ITEM, t->pos);
            n->a = of;
            if (n->kind == N_ATTR) n->value = p->token->value;
            else n->b = new_constant(p, p->token->value, p->token->pos);
            p->token++;
        } else if (t->type == T_LBRACKET && !filters) n = parse_subscript(p, of);
        else if (t->type == T_LPAREN) {
            n = jparse_new(p, N_CALL, t->pos);
            n->a = of; /* a callee */
            parse_call_args(p, n);
        } else if (filters && t->type == T_PIPE) n = jparse_filters(p, of, false);
        else if (filters && jparse_accept_name(p, "is")) n = parse_test(p, of);
        else return of;
        of = n;
    }
}
struct jnode *jparse_filters(struct jparser *p, struct jnode *of, bool first) { /* N_FILTER: a operand, v name */
    while (first || p->token->type == T_PIPE) {
        if (!first) p->token++;
        first = false;
        struct jnode *n = jparse_new(p, N_FILTER, p->token->pos);
        n->a = of;
        n->value = parse_dotted_name(p, "a filter's name");
        if (p->token->type == T_LPAREN) parse_call_args(p, n);
        of = n;
    }
    return of;
}

static struct jnode *parse_unary(struct jparser *p, bool filters) {
    struct jnode *n;
    jparse_enter(p);
    if (p->token->type == T_SUB || p->token->type == T_ADD) {
        n = jparse_new(p, p->token->type == T_SUB ? N_NEG : N_POS, p->token->pos);
        p->token++;
        n->a = parse_unary(p, false);
    } else n = parse_primary(p, false);
    n = parse_postfix(p, n, false);
    if (filters) n = parse_postfix(p, n, true);
    p->r->depth--;
    return n;
}
static struct jnode *parse_power(struct jparser *p) { return parse_unary(p, true); }

/* Operators of one level: N_MATH or N_COMPARE with the first operand in a and the others, with op set, in list. A list
 * instead of a tree, so that a sum of a thousand terms is not a thousand levels deep. */
static struct jnode *append_operand(struct jnode *n, uint8_t op, struct jparser *p, uint32_t pos) {
    struct jnode *o = jparse_new(p, N_PAIR, pos);
    o->op = op;
    o->a = n;
    return o;
}
static struct jnode *parse_operators(struct jparser *p, uint8_t kind, struct jnode *(*next)(struct jparser *),
                                     uint8_t (*op)(struct jparser *)) {
    struct jnode *first = next(p), *n = NULL, **end = NULL;
    for (;;) {
        uint32_t pos = p->token->pos;
        uint8_t o = op(p);
        if (!o) return n ? n : first;
        if (!n) {
            n = jparse_new(p, kind, pos);
            n->a = first;
            end = &n->list;
        }
        *end = append_operand(next(p), o, p, pos);
        end = &(*end)->next;
    }
}
static uint8_t take_operator(struct jparser *p, uint8_t lo, uint8_t hi) {
    return p->token->type >= lo && p->token->type <= hi ? p->token++->type : 0;
}
static uint8_t op_pow(struct jparser *p) { return take_operator(p, T_POW, T_POW); }
static uint8_t op_mul(struct jparser *p) { return take_operator(p, T_MUL, T_MOD); }
static uint8_t op_tilde(struct jparser *p) { return take_operator(p, T_TILDE, T_TILDE); }
static uint8_t op_add(struct jparser *p) { return take_operator(p, T_ADD, T_SUB); }
static uint8_t op_compare(struct jparser *p) {
    if (p->token->type >= T_EQ && p->token->type <= T_GE) return p->token++->type;
    if (jparse_accept_name(p, "in")) return T_IN;
    if (jparse_at_name(p, "not") && p->token[1].type == T_NAME && jstr_equals(p->token[1].value.s, "in"))
        return p->token += 2, T_NOTIN;
    return 0;
}
static uint8_t op_and(struct jparser *p) { return jparse_accept_name(p, "and"); }
static uint8_t op_or(struct jparser *p) { return jparse_accept_name(p, "or"); }

static struct jnode *parse_powers(struct jparser *p) { return parse_operators(p, N_MATH, parse_power, op_pow); }
static struct jnode *parse_product(struct jparser *p) { return parse_operators(p, N_MATH, parse_powers, op_mul); }
static struct jnode *parse_concat(struct jparser *p) { return parse_operators(p, N_CONCAT, parse_product, op_tilde); }
static struct jnode *parse_sum(struct jparser *p) { return parse_operators(p, N_MATH, parse_concat, op_add); }
static struct jnode *parse_compare(struct jparser *p) { return parse_operators(p, N_COMPARE, parse_sum, op_compare); }
static struct jnode *parse_not(struct jparser *p) {
    uint32_t pos = p->token->pos;
    if (!jparse_accept_name(p, "not")) return parse_compare(p);
    jparse_enter(p);
    struct jnode *n = jparse_new(p, N_NOT, pos);
    n->a = parse_not(p);
    p->r->depth--;
    return n;
}
static struct jnode *parse_and(struct jparser *p) { return parse_operators(p, N_AND, parse_not, op_and); }
struct jnode *jparse_no_ternary(struct jparser *p) {
    return parse_operators(p, N_OR, parse_and, op_or);
}

struct jnode *jparse_expr(struct jparser *p) { /* N_COND: a test, b then, c else or NULL */
    jparse_enter(p);
    uint32_t pos = p->token->pos;
    struct jnode *n = jparse_no_ternary(p);
    while (jparse_accept_name(p, "if")) {
        struct jnode *c = jparse_new(p, N_COND, pos);
        c->b = n;
        c->a = jparse_no_ternary(p);
        if (jparse_accept_name(p, "else")) c->c = jparse_expr(p);
        n = c;
        pos = p->token->pos;
    }
    p->r->depth--;
    return n;
}

/* ---- assignment targets */
static void mark_stored(struct jparser *p, struct jnode *n) {
    if (n->kind == N_NAME) n->is_stored = true;
    else if (n->kind == N_TUPLE)
        for (struct jnode *i = n->list; i; i = i->next) mark_stored(p, i);
    else if (n->kind != N_NSREF) {
        p->r->pos = n->pos;
        jfail(p->r, "can't assign to that");
    }
}
struct jnode *jparse_target(struct jparser *p, bool namespaces, const char *stop) {
    struct jnode *n = parse_tuple(p, namespaces ? 3 : 2, stop, false);
    mark_stored(p, n);
    return n;
}
struct jnode *jparse_name(struct jparser *p) {
    struct jtoken *t = jparse_expect(p, T_NAME, "a name");
    static const char *const fixed[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < 6; i++)
        if (jstr_equals(t->value.s, fixed[i])) jparse_fail(p, "can't assign to a constant");
    struct jnode *n = jparse_new(p, N_NAME, t->pos);
    n->value = t->value;
    n->is_stored = true;
    return n;
}

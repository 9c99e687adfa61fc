#include <string.h>

#include "base/hash.h"
#include "tokenizer/jinja/jeval.h"

/* Resolves names to slots. Jinja2 turns names into Python variables per frame at compile time, with visible effects: a
 * name that is set in a frame never reads the context first, unless it is read before or set in a branch. This file
 * reproduces jinja2/idtracking.py. */

enum { FEW_VARS = 16 }; /* scopes of more have an index */

static uint32_t hash_bucket(const struct jscope *s, const struct jval *name) {
    return (uint32_t)hash64(name->s->s, name->s->n, 1) & (s->n_index - 1);
}
static void add_to_index(struct jscope *s, int var) {
    uint32_t i = hash_bucket(s, &s->vars[var].name);
    while (s->index[i]) i = (i + 1) & (s->n_index - 1);
    s->index[i] = (uint16_t)(var + 1);
}
static void rebuild_index(struct jrun *r, struct jscope *s) { /* sized for s->cap */
    s->index = NULL;
    if (s->cap <= FEW_VARS) return;
    for (s->n_index = 4 * FEW_VARS; s->n_index < 2u * s->cap;) s->n_index *= 2;
    s->index = jalloc(r, s->n_index * sizeof *s->index);
    memset(s->index, 0, s->n_index * sizeof *s->index);
    for (int i = 0; i < s->n; i++) add_to_index(s, i);
}

static int find_in_scope(const struct jscope *s, const struct jval *name) {
    if (s->index) {
        for (uint32_t i = hash_bucket(s, name); s->index[i]; i = (i + 1) & (s->n_index - 1))
            if (!jstr_cmp(s->vars[s->index[i] - 1].name.s, name->s)) return s->index[i] - 1;
        return -1;
    }
    for (int i = 0; i < s->n; i++)
        if (!jstr_cmp(s->vars[i].name.s, name->s)) return i;
    return -1;
}
static bool find_in_parents(const struct jscope *s, const struct jval *name, uint16_t *hops, uint16_t *slot) {
    for (int h = 0; s; s = s->parent, h++) {
        int i = find_in_scope(s, name);
        if (i < 0) continue;
        *hops = (uint16_t)h;
        *slot = (uint16_t)i;
        return true;
    }
    return false;
}
static struct jvar *add_var(struct jrun *r, struct jscope *s, struct jval name, uint8_t load) {
    int i = find_in_scope(s, &name);
    if (i < 0) {
        if (s->n == s->cap) {
            if (s->cap > 20000) jfail(r, "too many variables");
            uint16_t cap = (uint16_t)(s->cap ? s->cap * 2 : 8);
            struct jvar *v = jalloc(r, cap * sizeof *v);
            if (s->n) memcpy(v, s->vars, s->n * sizeof *v);
            s->vars = v;
            s->cap = cap;
            rebuild_index(r, s);
        }
        i = s->n++;
        s->vars[i] = (struct jvar){.name = name};
        if (s->index) add_to_index(s, i);
    }
    s->vars[i].load = load;
    return &s->vars[i];
}
static void declare_name(struct jrun *r, struct jscope *s, struct jval name) {
    add_var(r, s, name, LOAD_PARAMETER)->is_stored = true;
}
static void record_load(struct jrun *r, struct jscope *s, struct jval name) {
    uint16_t h, i;
    if (find_in_parents(s, &name, &h, &i)) return;
    struct jread *read = jalloc(r, sizeof *read);
    *read = (struct jread){.next = r->reads, .name = name.s};
    r->reads = read;
    add_var(r, s, name, LOAD_RESOLVE);
}
static void record_store(struct jrun *r, struct jscope *s, struct jval name) {
    int i = find_in_scope(s, &name);
    if (i >= 0) {
        s->vars[i].is_stored = true;
        return;
    }
    uint16_t hops, slot;
    bool outer = find_in_parents(s->parent, &name, &hops, &slot);
    struct jvar *v = add_var(r, s, name, outer ? LOAD_ALIAS : LOAD_UNDEFINED);
    v->is_stored = true;
    if (outer) v->hops = hops + 1, v->slot = slot;
}

/* ---- first pass over one frame: records reads and writes in the order of Jinja2 */

static void scan_expr(struct jrun *r, struct jscope *s, const struct jnode *n) {
    for (; n; n = n->next) {
        jenter_depth(r);
        if (n->kind == N_NAME || n->kind == N_NSREF) {
            if (n->is_stored) record_store(r, s, n->value);
            else record_load(r, s, n->value);
        }
        scan_expr(r, s, n->a);
        scan_expr(r, s, n->b);
        scan_expr(r, s, n->c);
        scan_expr(r, s, n->d);
        scan_expr(r, s, n->list);
        scan_expr(r, s, n->keywords);
        scan_expr(r, s, n->star);
        scan_expr(r, s, n->starstar);
        r->depth--;
    }
}
/* an expression without its next siblings */
static void scan_one(struct jrun *r, struct jscope *s, const struct jnode *n) {
    if (!n) return;
    struct jnode alone = *n;
    alone.next = NULL;
    scan_expr(r, s, &alone);
}
static void scan_body(struct jrun *r, struct jscope *s, const struct jnode *n);

/* if: each branch starts from the state before it. A name set in only one branch starts with the outer value. */
static void merge_branch(struct jrun *r, struct jscope *s, const struct jscope *branch) {
    for (int i = 0; i < branch->n; i++) {
        const struct jvar *from = &branch->vars[i];
        bool stored = from->is_stored;
        int here = find_in_scope(s, &from->name);
        if (here >= 0) stored |= s->vars[here].is_stored;
        struct jvar *v = add_var(r, s, from->name, from->load);
        v->hops = from->hops;
        v->slot = from->slot;
        v->is_stored = stored;
    }
}
static struct jscope copy_scope(struct jrun *r, const struct jscope *s) {
    struct jscope c = *s;
    c.cap = (uint16_t)(s->n + 8);
    c.vars = jalloc(r, c.cap * sizeof *c.vars);
    if (s->n) memcpy(c.vars, s->vars, s->n * sizeof *c.vars);
    rebuild_index(r, &c);
    return c;
}
static void scan_if(struct jrun *r, struct jscope *s, const struct jnode *branches);
static void scan_branches(struct jrun *r, struct jscope *s, const struct jnode *body, const struct jnode *rest) {
    struct jscope before = copy_scope(r, s), then = copy_scope(r, s), elifs = copy_scope(r, s),
                  otherwise = copy_scope(r, s);
    scan_body(r, &then, body);
    const struct jnode *b = rest;
    for (; b && b->a; b = b->next) { /* each elif is an if of its own without an else */
        scan_one(r, &elifs, b->a);
        scan_branches(r, &elifs, b->body, NULL);
    }
    if (b) scan_body(r, &otherwise, b->body);
    merge_branch(r, s, &then);
    merge_branch(r, s, &elifs);
    merge_branch(r, s, &otherwise);
    for (int i = 0; i < s->n; i++) {
        struct jvar *v = &s->vars[i];
        int old = find_in_scope(&before, &v->name);
        if (!v->is_stored || (old >= 0 && before.vars[old].is_stored)) continue;
        uint16_t hops, slot;
        if (s->parent && find_in_parents(s->parent, &v->name, &hops, &slot))
            v->load = LOAD_ALIAS, v->hops = hops + 1, v->slot = slot;
        else v->load = LOAD_RESOLVE;
    }
}
static void scan_if(struct jrun *r, struct jscope *s, const struct jnode *branches) {
    scan_one(r, s, branches->a);
    scan_branches(r, s, branches->body, branches->next);
}

static void scan_body(struct jrun *r, struct jscope *s, const struct jnode *n) {
    jenter_depth(r);
    for (; n; n = n->next) switch (n->kind) {
        case N_PRINT: scan_one(r, s, n->a); break;
        case N_IF: scan_if(r, s, n->list); break;
        case N_FOR:
        case N_CALLBLOCK:
        case N_FILTERBLOCK: scan_one(r, s, n->b); break;
        case N_SET:
            scan_one(r, s, n->b);
            scan_one(r, s, n->a);
            break;
        case N_SETBLOCK: scan_one(r, s, n->a); break;
        case N_MACRO: record_store(r, s, n->a->value); break;
        case N_WITH:
            for (const struct jnode *p = n->list; p; p = p->next) scan_one(r, s, p->b);
            break;
        default: break;
        }
    r->depth--;
}

/* ---- second pass: assigns slots, opens inner frames, rejects unknown filters and tests */

static struct jscope *open_scope(struct jrun *r, struct jscope *up) {
    struct jscope *s = jalloc(r, sizeof *s);
    *s = (struct jscope){.parent = up, .loop_slot = -1, .caller_slot = -1, .varargs_slot = -1, .kwargs_slot = -1};
    return s;
}
static void declare_targets(struct jrun *r, struct jscope *s, const struct jnode *n) {
    if (n->kind == N_NAME) declare_name(r, s, n->value);
    for (const struct jnode *i = n->list; i; i = i->next) declare_targets(r, s, i);
}
static int find_slot(struct jrun *r, struct jscope *s, const char *name) {
    struct jval v = jstr_literal(r, name);
    return find_in_scope(s, &v);
}

/* Jinja2 folds "x" or y into "x" and never checks y. */
static bool is_folded(struct jrun *r, const struct jnode *n) {
    return (n->kind == N_OR || n->kind == N_AND) && n->a->kind == N_CONST &&
           jval_is_true(r, n->a->value) == (n->kind == N_OR);
}
/* soft: inside an if or a ternary, where an unknown filter is an error only if executed. */
static void resolve_expr(struct jrun *r, struct jscope *s, struct jnode *n, bool soft) {
    for (; n; n = n->next) {
        jenter_depth(r);
        r->pos = n->pos;
        bool inner = soft || n->kind == N_COND;
        if (n->kind == N_NAME || n->kind == N_NSREF) {
            if (!find_in_parents(s, &n->value, &n->hops, &n->slot))
                jfail(r, "unknown name '%s'", jstr_for_error(r, n->value.s));
        } else if (n->kind == N_FILTER) {
            n->fn = jfilter_find(n->value.s);
            if (!n->fn && !soft) jfail(r, "no filter named '%s'", jstr_for_error(r, n->value.s));
        } else if (n->kind == N_TEST) {
            n->fn = jtest_find(n->value.s);
            if (!n->fn && !soft) jfail(r, "no test named '%s'", jstr_for_error(r, n->value.s));
        }
        resolve_expr(r, s, n->a, inner);
        resolve_expr(r, s, n->b, inner);
        resolve_expr(r, s, n->c, inner);
        resolve_expr(r, s, n->d, inner);
        resolve_expr(r, s, n->list, inner || is_folded(r, n));
        resolve_expr(r, s, n->keywords, inner);
        resolve_expr(r, s, n->star, inner);
        resolve_expr(r, s, n->starstar, inner);
        r->depth--;
    }
}
static void resolve_body(struct jrun *r, struct jscope *s, struct jnode *n, bool soft);

static void resolve_for(struct jrun *r, struct jscope *s, struct jnode *n, bool soft) {
    struct jscope *in = n->scope = open_scope(r, s);
    declare_name(r, in, jstr_literal(r, "loop"));
    declare_targets(r, in, n->a);
    scan_body(r, in, n->body);
    in->loop_slot = find_slot(r, in, "loop");
    resolve_expr(r, s, n->b, soft);
    resolve_expr(r, in, n->a, false);
    resolve_body(r, in, n->body, false);
    if (n->c) {
        struct jscope *test = n->filter_scope = open_scope(r, s);
        declare_name(r, test, jstr_literal(r, "")); /* the body has `loop` in this slot: the targets get equal slots */
        declare_targets(r, test, n->a);
        scan_one(r, test, n->c);
        resolve_expr(r, test, n->c, false);
    }
    if (n->orelse) {
        n->else_scope = open_scope(r, s);
        scan_body(r, n->else_scope, n->orelse);
        resolve_body(r, n->else_scope, n->orelse, false);
    }
}
static void resolve_macro(struct jrun *r, struct jscope *s, struct jnode *n) {
    struct jscope *in = n->scope = open_scope(r, s);
    for (struct jnode *a = n->list; a; a = a->next) declare_name(r, in, a->a->value);
    if (n->uses_caller) declare_name(r, in, jstr_literal(r, "caller"));
    if (n->uses_kwargs) declare_name(r, in, jstr_literal(r, "kwargs"));
    if (n->uses_varargs) declare_name(r, in, jstr_literal(r, "varargs"));
    for (struct jnode *a = n->list; a; a = a->next) scan_one(r, in, a->b);
    scan_body(r, in, n->body);
    if (n->uses_caller) in->caller_slot = find_slot(r, in, "caller");
    if (n->uses_kwargs) in->kwargs_slot = find_slot(r, in, "kwargs");
    if (n->uses_varargs) in->varargs_slot = find_slot(r, in, "varargs");
    for (struct jnode *a = n->list; a; a = a->next) {
        resolve_expr(r, in, a->a, false);
        resolve_expr(r, in, a->b, false);
    }
    resolve_body(r, in, n->body, false);
}
static void resolve_one(struct jrun *r, struct jscope *s, struct jnode *n, bool soft) {
    struct jnode *next;
    if (!n) return;
    next = n->next;
    n->next = NULL;
    resolve_expr(r, s, n, soft);
    n->next = next;
}
static void resolve_body(struct jrun *r, struct jscope *s, struct jnode *n, bool soft) {
    jenter_depth(r);
    for (; n; n = n->next) switch (n->kind) {
        case N_PRINT: resolve_one(r, s, n->a, soft); break;
        case N_IF:
            for (struct jnode *b = n->list; b; b = b->next) {
                resolve_one(r, s, b->a, true);
                resolve_body(r, s, b->body, true);
            }
            break;
        case N_FOR: resolve_for(r, s, n, soft); break;
        case N_SET:
            resolve_one(r, s, n->a, soft);
            resolve_one(r, s, n->b, soft);
            break;
        case N_SETBLOCK:
        case N_FILTERBLOCK: {
            struct jscope *in = n->scope = open_scope(r, s);
            /* Jinja2 does not scan the filters of a set block here either */
            if (n->kind == N_FILTERBLOCK) scan_one(r, in, n->b);
            scan_body(r, in, n->body);
            resolve_one(r, in, n->b, false);
            resolve_body(r, in, n->body, false);
            resolve_one(r, s, n->a, soft);
            break;
        }
        case N_CALLBLOCK:
            resolve_one(r, s, n->b, soft);
            resolve_macro(r, s, n);
            break;
        case N_MACRO:
            find_in_parents(s, &n->a->value, &n->hops, &n->slot);
            resolve_macro(r, s, n);
            break;
        case N_WITH: {
            struct jscope *in = n->scope = open_scope(r, s);
            for (struct jnode *p = n->list; p; p = p->next) declare_targets(r, in, p->a);
            scan_body(r, in, n->body);
            for (struct jnode *p = n->list; p; p = p->next) {
                resolve_one(r, s, p->b, soft);
                resolve_one(r, in, p->a, false);
            }
            resolve_body(r, in, n->body, false);
            break;
        }
        default: break;
        }
    r->depth--;
}

struct jscope *jscope_resolve(struct jrun *r, struct jnode *body) {
    struct jscope *root = open_scope(r, NULL);
    scan_body(r, root, body);
    resolve_body(r, root, body, false);
    return root;
}

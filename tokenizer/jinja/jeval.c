#include "tokenizer/jinja/jeval.h"

#include <string.h>

/* Evaluates expressions. Errors leave through jfail with the position of the innermost node. */

static struct jval eval_name(struct jrun *r, const struct jnode *n, struct jframe *f) {
    for (int h = n->hops; h; h--) f = f->parent;
    struct jval v = f->v[n->slot];
    return v.type == J_MISSING ? jval_undef_name(r, n->value, NULL) : v;
}

static struct jval eval_sequence(struct jrun *r, const struct jnode *n, struct jframe *f) {
    size_t count = 0;
    for (const struct jnode *i = n->list; i; i = i->next) count++;
    struct jval v = jval_list(r, n->kind == N_TUPLE ? J_TUPLE : J_LIST, count);
    size_t k = 0;
    for (const struct jnode *i = n->list; i; i = i->next) v.l->v[k++] = jeval(r, i, f);
    return v;
}
static struct jval eval_dict(struct jrun *r, const struct jnode *n, struct jframe *f) {
    struct jval v = jdict_new(r);
    for (const struct jnode *i = n->list; i; i = i->next) {
        struct jval key = jeval(r, i->a, f);
        jdict_set(r, v.d, key, jeval(r, i->b, f));
    }
    return v;
}

/* Whether an ordering operator holds for operands that compare as c: negative, 0 or positive. */
static bool order_holds(uint8_t op, int c) {
    switch (op) {
    case T_LT: return c < 0;
    case T_LE: return c <= 0;
    case T_GT: return c > 0;
    default: return c >= 0;
    }
}
static bool compare_pair(struct jrun *r, uint8_t op, struct jval a, struct jval b) {
    static const char *const sign[] = {"==", "!=", "<", "<=", ">", ">="};
    int c;
    switch (op) {
    case T_EQ: return jval_eq(r, a, b);
    case T_NE: return !jval_eq(r, a, b);
    case T_IN: return jval_contains(r, a, b);
    case T_NOTIN: return !jval_contains(r, a, b);
    default: c = jval_cmp(r, a, b, sign[op - T_EQ]); return c != 2 && order_holds(op, c);
    }
}
static struct jval eval_compare(struct jrun *r, const struct jnode *n, struct jframe *f) {
    struct jval a = jeval(r, n->a, f);
    for (const struct jnode *o = n->list; o; o = o->next) {
        struct jval b = jeval(r, o->a, f);
        r->pos = o->pos;
        if (!compare_pair(r, o->op, a, b)) return jval_bool(false);
        a = b;
    }
    return jval_bool(true);
}
static struct jval eval_math(struct jrun *r, const struct jnode *n, struct jframe *f) {
    struct jval a = jeval(r, n->a, f);
    for (const struct jnode *o = n->list; o; o = o->next) {
        struct jval b = jeval(r, o->a, f);
        r->pos = o->pos;
        a = jop_math(r, o->op, a, b);
    }
    return a;
}
static struct jval eval_logic(struct jrun *r, const struct jnode *n, struct jframe *f, bool stop_at) {
    struct jval v = jeval(r, n->a, f);
    for (const struct jnode *o = n->list; o && jval_is_true(r, v) != stop_at; o = o->next) v = jeval(r, o->a, f);
    return v;
}
static struct jval eval_concat(struct jrun *r, const struct jnode *n, struct jframe *f) {
    struct jbuf b = {0};
    struct jval v = jeval(r, n->a, f);
    const struct jnode *o = n->list;
    size_t count = 1;
    for (const struct jnode *i = o; i; i = i->next) count++;
    struct jval *all = jalloc(r, count * sizeof *all);
    all[0] = v;
    for (size_t i = 1; o; o = o->next) all[i++] = jeval(r, o->a, f);
    for (size_t i = 0; i < count; i++) jrepr_str(r, &b, all[i]);
    return jbuf_finish(r, &b);
}

/* ---- calls */

static void add_arg(struct jrun *r, struct jargs *a, size_t *cap, struct jval v) {
    if (a->n == *cap) {
        struct jval *more = jalloc(r, 2 * *cap * sizeof v);
        memcpy(more, a->v, a->n * sizeof v);
        a->v = more;
        *cap *= 2;
    }
    a->v[a->n++] = v;
}
static struct jargs eval_arguments(struct jrun *r, const struct jnode *n, struct jframe *f, size_t spare) {
    struct jargs a = {0};
    size_t cap = 4, kcap = spare;
    a.v = jalloc(r, cap * sizeof *a.v);
    for (const struct jnode *i = n->list; i; i = i->next) add_arg(r, &a, &cap, jeval(r, i, f));
    for (const struct jnode *i = n->keywords; i; i = i->next) kcap++;
    struct jval star = n->star ? jeval(r, n->star, f) : jval_missing(), named = jval_missing();
    if (n->star) {
        struct jlist *l = jiter_to_list(r, star);
        for (size_t i = 0; i < l->n; i++) add_arg(r, &a, &cap, l->v[i]);
    }
    struct jval *k = a.keywords = jalloc(r, 2 * kcap * sizeof *a.keywords);
    for (const struct jnode *i = n->keywords; i; i = i->next) {
        *k++ = i->value;
        *k++ = jeval(r, i->a, f);
        a.n_keywords++;
    }
    if (n->starstar) {
        named = jeval(r, n->starstar, f);
        if (named.type != J_DICT) jfail(r, "argument after ** must be a mapping, not %s", jval_type(named));
        a.keywords = jalloc(r, 2 * (kcap + named.d->n) * sizeof *a.keywords);
        memcpy(a.keywords, k - 2 * a.n_keywords, 2 * a.n_keywords * sizeof *a.keywords);
        const size_t n_written = a.n_keywords; /* the keys of the mapping are unique */
        jcount_steps(r, named.d->n * (1 + n_written));
        for (size_t i = 0; i < named.d->n; i++) {
            struct jval key = named.d->kv[2 * i];
            if (key.type != J_STR) jfail(r, "keywords must be strings");
            for (size_t j = 0; j < n_written; j++)
                if (!jstr_cmp(a.keywords[2 * j].s, key.s))
                    jfail(r, "got multiple values for keyword argument '%s'", jstr_for_error(r, key.s));
            a.keywords[2 * a.n_keywords] = key;
            a.keywords[2 * a.n_keywords + 1] = named.d->kv[2 * i + 1];
            a.n_keywords++;
        }
    }
    return a;
}
struct jval jeval_call(struct jrun *r, const struct jnode *n, struct jframe *f, struct jval caller) {
    struct jval fn = jeval(r, n->a, f);
    struct jargs args = eval_arguments(r, n, f, 1);
    if (caller.type != J_MISSING) {
        args.keywords[2 * args.n_keywords] = jstr_literal(r, "caller");
        args.keywords[2 * args.n_keywords + 1] = caller;
        args.n_keywords++;
    }
    r->pos = n->pos;
    return jcall(r, fn, &args);
}
struct jval jeval_filter(struct jrun *r, const struct jnode *n, struct jframe *f, struct jval input) {
    struct jval v = !n->a ? input : n->a->kind == N_FILTER ? jeval_filter(r, n->a, f, input) : jeval(r, n->a, f);
    struct jargs args = eval_arguments(r, n, f, 0);
    r->pos = n->pos;
    if (!n->fn) jfail(r, "no filter named '%s'", jstr_for_error(r, n->value.s));
    return jcall_filter(r, n->fn, v, &args);
}
static struct jval eval_test(struct jrun *r, const struct jnode *n, struct jframe *f) {
    struct jval v = jeval(r, n->a, f);
    struct jargs args = eval_arguments(r, n, f, 0);
    r->pos = n->pos;
    if (!n->fn) jfail(r, "no test named '%s'", jstr_for_error(r, n->value.s));
    return jval_bool(jcall_test(r, n->fn, v, &args));
}

static struct jval missing_else(struct jrun *r, const struct jnode *n) {
    size_t line = 1;
    for (size_t i = 0; i < n->pos; i++) line += r->source[i] == '\n';
    struct jbuf b = {0};
    jbuf_cstr(r, &b, "the inline if-expression on line ", TEXT_TEMPLATE);
    jrepr_add(r, &b, jval_int((int64_t)line));
    jbuf_cstr(r, &b, " evaluated to false and no else section was defined.", TEXT_TEMPLATE);
    jbuf_add(r, &b, "", 1, TEXT_TEMPLATE);
    return jval_undef(r, b.data);
}

static struct jval eval_node(struct jrun *r, const struct jnode *n, struct jframe *f) {
    struct jval a, b, c, d;
    switch (n->kind) {
    case N_CONST: return n->value;
    case N_NAME: return eval_name(r, n, f);
    case N_TUPLE:
    case N_LIST: return eval_sequence(r, n, f);
    case N_DICT: return eval_dict(r, n, f);
    case N_COND:
        if (jval_is_true(r, jeval(r, n->a, f))) return jeval(r, n->b, f);
        return n->c ? jeval(r, n->c, f) : missing_else(r, n);
    case N_OR: return eval_logic(r, n, f, true);
    case N_AND: return eval_logic(r, n, f, false);
    case N_NOT: return jval_bool(!jval_is_true(r, jeval(r, n->a, f)));
    case N_COMPARE: return eval_compare(r, n, f);
    case N_MATH: return eval_math(r, n, f);
    case N_NEG:
    case N_POS:
        a = jeval(r, n->a, f);
        r->pos = n->pos;
        return jop_neg(r, a, n->kind == N_NEG);
    case N_CONCAT: return eval_concat(r, n, f);
    case N_ATTR:
        a = jeval(r, n->a, f);
        r->pos = n->pos;
        return jattr_get(r, a, n->value);
    case N_ITEM:
        a = jeval(r, n->a, f);
        b = jeval(r, n->b, f);
        r->pos = n->pos;
        return jattr_item(r, a, b);
    case N_SLICE:
        a = jeval(r, n->a, f);
        b = n->b ? jeval(r, n->b, f) : jval_none();
        c = n->c ? jeval(r, n->c, f) : jval_none();
        d = n->d ? jeval(r, n->d, f) : jval_none();
        r->pos = n->pos;
        return jattr_slice(r, a, b, c, d);
    case N_CALL: return jeval_call(r, n, f, jval_missing());
    case N_FILTER: return jeval_filter(r, n, f, jval_missing());
    default: return eval_test(r, n, f);
    }
}
struct jval jeval(struct jrun *r, const struct jnode *n, struct jframe *f) {
    jcount_steps(r, 1);
    jenter_depth(r);
    r->pos = n->pos;
    struct jval v = eval_node(r, n, f);
    r->depth--;
    return v;
}

/* ---- stable merge sort by keys; qsort is not stable and jfail must not leave it */
static void merge_sort(struct jrun *r, struct jval *item, struct jval *key, struct jval *tmp, size_t n, bool reverse) {
    if (n < 2) return;
    size_t half = n / 2, i = 0, j = half, k = 0;
    merge_sort(r, item, key, tmp, half, reverse);
    merge_sort(r, item + half, key + half, tmp, n - half, reverse);
    while (i < half || j < n) {
        bool right;
        if (i == half) right = true;
        else if (j == n) right = false;
        else right = reverse ? jval_less(r, key[i], key[j]) : jval_less(r, key[j], key[i]);
        size_t from = right ? j++ : i++;
        tmp[2 * k] = item[from];
        tmp[2 * k + 1] = key[from];
        k++;
    }
    for (k = 0; k < n; k++) item[k] = tmp[2 * k], key[k] = tmp[2 * k + 1];
    jcount_steps(r, n);
}
void jeval_sort(struct jrun *r, struct jlist *items, struct jlist *keys, bool reverse) {
    struct jval *tmp = jalloc(r, 2 * (items->n + 1) * sizeof *tmp);
    merge_sort(r, items->v, keys->v, tmp, items->n, reverse);
}

#include <string.h>

#include "tokenizer/jinja/jeval.h"

/* Executes statements, frames, loops and macros. A new frame is initialized by the scopes of jscope.c. */

enum exec_flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };
static enum exec_flow exec_body(struct jrun *r, const struct jnode *n, struct jframe *f, struct jbuf *out);

static void init_frame(struct jrun *r, struct jframe *f) {
    for (int i = 0; i < f->scope->n; i++) {
        const struct jvar *v = &f->scope->vars[i];
        if (v->load == LOAD_PARAMETER) continue;
        f->v[i] = jval_missing();
        if (v->load == LOAD_RESOLVE) {
            struct jval *known = jdict_find(r, r->vars, v->name);
            if (known) f->v[i] = *known;
            else jcall_global(v->name.s, &f->v[i]);
        } else if (v->load == LOAD_ALIAS) {
            struct jframe *from = f;
            for (int h = v->hops; h; h--) from = from->parent;
            f->v[i] = from->v[v->slot];
        }
    }
    jcount_steps(r, f->scope->n);
}
struct jframe *jexec_frame(struct jrun *r, struct jscope *s, struct jframe *up) {
    struct jframe *f = jalloc(r, sizeof *f + s->n * sizeof *f->v);
    f->parent = up;
    f->scope = s;
    memset(f->v, 0, s->n * sizeof *f->v); /* all J_MISSING */
    init_frame(r, f);
    return f;
}

void jexec_assign(struct jrun *r, const struct jnode *t, struct jframe *f, struct jval v) {
    if (t->kind == N_NAME) {
        f->v[t->slot] = v;
        return;
    }
    if (t->kind == N_NSREF) {
        struct jframe *at = f;
        for (int h = t->hops; h; h--) at = at->parent;
        r->pos = t->pos;
        if (at->v[t->slot].type != J_NAMESPACE) jfail(r, "cannot assign attribute on non-namespace object");
        jdict_set(r, at->v[t->slot].d, t->a->value, v);
        return;
    }
    size_t n_targets = 0, i = 0;
    for (const struct jnode *n = t->list; n; n = n->next) n_targets++;
    r->pos = t->pos;
    if (!jiter_is_iterable(v) || v.type == J_LOOP) jfail(r, "cannot unpack non-iterable %s object", jval_type(v));
    struct jlist *l = jiter_to_list(r, v);
    if (l->n < n_targets) jfail(r, "not enough values to unpack (expected %zu, got %zu)", n_targets, l->n);
    if (l->n > n_targets) jfail(r, "too many values to unpack (expected %zu)", n_targets);
    for (const struct jnode *n = t->list; n; n = n->next) jexec_assign(r, n, f, l->v[i++]);
}

/* ---- for */

struct loop_filter {
    const struct jnode *node;
    struct jframe *frame;
};
bool jexec_loop_filter(struct jrun *r, struct jiter *it, struct jval *out) {
    struct loop_filter *w = it->loop_filter;
    while (jiter_next(r, it->source, out)) {
        jexec_assign(r, w->node->a, w->frame, *out);
        if (jval_is_true(r, jeval(r, w->node->c, w->frame))) return true;
    }
    return false;
}

size_t jloop_index(const struct jloop *l) { return l->started ? l->index0 + 1 : 0; }
static bool fetch_next(struct jrun *r, struct jloop *l) {
    if (!l->has_next) {
        if (!jiter_next(r, l->it, &l->after)) return false;
        l->has_next = true;
    }
    return true;
}
size_t jloop_length(struct jrun *r, struct jloop *l) {
    if (l->length != SIZE_MAX) return l->length;
    if (jval_has_len(l->source)) return l->length = jval_len(r, l->source);
    struct jlist *rest = jiter_to_list(r, (struct jval){.type = J_ITER, .it = l->it});
    l->it = jiter_new(r, (struct jval){.type = J_LIST, .l = rest});
    return l->length = rest->n + jloop_index(l) + l->has_next;
}
struct jval jloop_attr(struct jrun *r, struct jloop *l, const struct jstr *name) {
    if (jstr_equals(name, "index")) return jval_int((int64_t)jloop_index(l));
    if (jstr_equals(name, "index0")) return jval_int((int64_t)jloop_index(l) - 1);
    if (jstr_equals(name, "first")) return jval_bool(l->index0 == 0);
    if (jstr_equals(name, "last")) return jval_bool(!fetch_next(r, l));
    if (jstr_equals(name, "length")) return jval_int((int64_t)jloop_length(r, l));
    if (jstr_equals(name, "revindex")) return jval_int((int64_t)jloop_length(r, l) - (int64_t)jloop_index(l) + 1);
    if (jstr_equals(name, "revindex0")) return jval_int((int64_t)jloop_length(r, l) - (int64_t)jloop_index(l));
    if (jstr_equals(name, "previtem")) return l->index0 ? l->before : jval_undef(r, "there is no previous item");
    if (jstr_equals(name, "nextitem")) return fetch_next(r, l) ? l->after : jval_undef(r, "there is no next item");
    if (jstr_equals(name, "depth")) return jval_int(l->depth0 + 1);
    if (jstr_equals(name, "depth0")) return jval_int(l->depth0);
    return jval_missing();
}
static bool advance_loop(struct jrun *r, struct jloop *l) {
    struct jval v;
    if (l->has_next) v = l->after, l->has_next = false;
    else if (!jiter_next(r, l->it, &v)) return false;
    l->before = l->current;
    l->current = v;
    if (l->started) l->index0++;
    l->started = true;
    return true;
}

static void run_loop(struct jrun *r, const struct jnode *n, struct jframe *up, struct jval over, int64_t depth0,
                     struct jbuf *out) {
    struct jloop *l = jalloc(r, sizeof *l);
    *l = (struct jloop){.source = over,
                        .length = SIZE_MAX,
                        .depth0 = depth0,
                        .node = n->is_recursive ? n : NULL,
                        .parent = up,
                        .last_changed = jval_missing()};
    l->it = jiter_new(r, over);
    if (n->c) { /* the condition is evaluated when the next item is fetched, not before the loop */
        struct loop_filter *w = jalloc(r, sizeof *w);
        *w = (struct loop_filter){.node = n, .frame = jexec_frame(r, n->filter_scope, up)};
        struct jiter *it = jalloc(r, sizeof *it);
        *it = (struct jiter){.kind = ITER_LOOP_FILTER, .source = l->it, .loop_filter = w};
        l->it = it;
        l->source = (struct jval){.type = J_ITER, .it = it};
    }
    struct jframe *f = jexec_frame(r, n->scope, up);
    bool completed = false; /* Jinja2 records an iteration at the end of the body, so break and continue do not count */
    while (advance_loop(r, l)) {
        if (n->scope->loop_slot >= 0) f->v[n->scope->loop_slot] = (struct jval){.type = J_LOOP, .loop = l};
        jexec_assign(r, n->a, f, l->current);
        init_frame(r, f);
        enum exec_flow flow = exec_body(r, n->body, f, out);
        if (flow == FLOW_BREAK) break;
        if (flow == FLOW_NEXT) completed = true;
    }
    if (n->orelse && !completed) exec_body(r, n->orelse, jexec_frame(r, n->else_scope, up), out);
}
static void enter_call(struct jrun *r) {
    if (++r->calls > JINJA_MAX_CALLS) jfail(r, "calls nested deeper than %d", JINJA_MAX_CALLS);
}
struct jval jexec_loop(struct jrun *r, struct jloop *loop, struct jval over) {
    if (!loop->node) jfail(r, "the loop must have the 'recursive' marker to be called recursively");
    struct jbuf b = {0};
    enter_call(r);
    run_loop(r, loop->node, loop->parent, over, loop->depth0 + 1, &b);
    r->calls--;
    return jbuf_finish(r, &b);
}

/* ---- macros */

struct jstr *jmacro_name(struct jrun *r, const struct jmacro *m) {
    return m->node->kind == N_MACRO ? m->node->a->value.s : jstr_literal(r, "caller").s;
}
static struct jval take_keyword(struct jrun *r, struct jargs *k, const struct jstr *name) {
    jcount_steps(r, k->n_keywords);
    for (size_t i = 0; i < k->n_keywords; i++) {
        if (jstr_cmp(k->keywords[2 * i].s, name)) continue;
        struct jval v = k->keywords[2 * i + 1];
        memmove(k->keywords + 2 * i, k->keywords + 2 * i + 2, 2 * (k->n_keywords - i - 1) * sizeof *k->keywords);
        k->n_keywords--;
        return v;
    }
    return jval_missing();
}
static struct jval missing_argument(struct jrun *r, const struct jstr *name) {
    struct jbuf b = {0};
    jbuf_cstr(r, &b, "parameter '", TEXT_TEMPLATE);
    jbuf_str(r, &b, name);
    jbuf_add(r, &b, "' was not provided", 19, TEXT_TEMPLATE); /* 19: includes the NUL */
    return jval_undef(r, b.data);
}
struct jval jexec_macro(struct jrun *r, struct jmacro *m, const struct jargs *given) {
    const struct jnode *n = m->node;
    struct jargs a = *given;
    size_t used = 0, n_params = 0;
    bool found_caller = false;
    const char *name = jstr_for_error(r, jmacro_name(r, m));
    enter_call(r);
    jenter_depth(r);
    if (a.n_keywords) {
        a.keywords = jalloc(r, 2 * a.n_keywords * sizeof *a.keywords);
        memcpy(a.keywords, given->keywords, 2 * a.n_keywords * sizeof *a.keywords);
    }
    for (const struct jnode *p = n->list; p; p = p->next) n_params++;
    bool all_by_position = a.n >= n_params;
    struct jframe *f = jexec_frame(r, n->scope, m->parent);
    for (const struct jnode *p = n->list; p; p = p->next) {
        bool is_caller = jstr_equals(p->a->value.s, "caller");
        if (used < a.n) f->v[p->a->slot] = a.v[used++];
        else {
            f->v[p->a->slot] = take_keyword(r, &a, p->a->value.s);
            if (is_caller) found_caller = true;
        }
        if (all_by_position && is_caller) found_caller = true;
    }
    if (n->uses_caller && !found_caller) {
        struct jval c = take_keyword(r, &a, jstr_literal(r, "caller").s);
        f->v[n->scope->caller_slot] = c.type == J_MISSING || c.type == J_NONE ? jval_undef(r, "No caller defined") : c;
    }
    if (n->uses_kwargs) {
        struct jval d = jdict_new(r);
        for (size_t i = 0; i < a.n_keywords; i++) jdict_set(r, d.d, a.keywords[2 * i], a.keywords[2 * i + 1]);
        f->v[n->scope->kwargs_slot] = d;
    } else if (a.n_keywords) {
        for (size_t i = 0; i < a.n_keywords; i++)
            if (jstr_equals(a.keywords[2 * i].s, "caller"))
                jfail(r,
                      "macro '%s' was invoked with two values for the special caller argument. This is most likely a "
                      "bug.",
                      name);
        jfail(r, "macro '%s' takes no keyword argument '%s'", name, jstr_for_error(r, a.keywords[0].s));
    }
    if (n->uses_varargs) {
        struct jval t = jval_list(r, J_TUPLE, a.n - used);
        if (a.n > used) memcpy(t.l->v, a.v + used, (a.n - used) * sizeof *a.v);
        f->v[n->scope->varargs_slot] = t;
    } else if (a.n > n_params) jfail(r, "macro '%s' takes not more than %zu argument(s)", name, n_params);
    for (const struct jnode *p = n->list; p; p = p->next)
        if (f->v[p->a->slot].type == J_MISSING)
            f->v[p->a->slot] = p->b ? jeval(r, p->b, f) : missing_argument(r, p->a->value.s);
    struct jbuf b = {0};
    exec_body(r, n->body, f, &b);
    r->depth--;
    r->calls--;
    return jbuf_finish(r, &b);
}

/* ---- other statements */

static struct jval new_macro(struct jrun *r, const struct jnode *n, struct jframe *f) {
    struct jmacro *m = jalloc(r, sizeof *m);
    *m = (struct jmacro){.node = n, .parent = f};
    return (struct jval){.type = J_MACRO, .m = m};
}
static enum exec_flow exec_captured(struct jrun *r, const struct jnode *n, struct jframe *f, struct jbuf *out) {
    struct jbuf b = {0};
    struct jframe *in = jexec_frame(r, n->scope, f);
    enum exec_flow flow = exec_body(r, n->body, in, &b);
    if (flow != FLOW_NEXT) return flow;
    struct jval v = jbuf_finish(r, &b);
    if (n->b) v = jeval_filter(r, n->b, in, v);
    if (n->kind == N_SETBLOCK) jexec_assign(r, n->a, f, v);
    else jrepr_str(r, out, v);
    return FLOW_NEXT;
}
static void exec_with(struct jrun *r, const struct jnode *n, struct jframe *f) {
    struct jframe *in = f;
    for (const struct jnode *p = n->list; p; p = p->next) jexec_assign(r, p->a, in, jeval(r, p->b, in->parent));
}
static enum exec_flow exec_statement(struct jrun *r, const struct jnode *n, struct jframe *f, struct jbuf *out) {
    switch (n->kind) {
    case N_DATA: jbuf_str(r, out, n->value.s); return FLOW_NEXT;
    case N_PRINT: jrepr_str(r, out, jeval(r, n->a, f)); return FLOW_NEXT;
    case N_IF:
        for (const struct jnode *b = n->list; b; b = b->next)
            if (!b->a || jval_is_true(r, jeval(r, b->a, f))) return exec_body(r, b->body, f, out);
        return FLOW_NEXT;
    case N_FOR: {
        struct jval over = jeval(r, n->b, f);
        r->pos = n->pos;
        run_loop(r, n, f, over, 0, out);
        return FLOW_NEXT;
    }
    case N_SET: jexec_assign(r, n->a, f, jeval(r, n->b, f)); return FLOW_NEXT;
    case N_SETBLOCK:
    case N_FILTERBLOCK: return exec_captured(r, n, f, out);
    case N_MACRO: f->v[n->slot] = new_macro(r, n, f); return FLOW_NEXT;
    case N_CALLBLOCK: {
        struct jval caller = new_macro(r, n, f);
        struct jargs none = {0};
        jrepr_str(r, out, n->b ? jeval_call(r, n->b, f, caller) : jexec_macro(r, caller.m, &none));
        return FLOW_NEXT;
    }
    case N_WITH: {
        struct jframe *in = jexec_frame(r, n->scope, f);
        exec_with(r, n, in);
        return exec_body(r, n->body, in, out);
    }
    case N_BREAK: return FLOW_BREAK;
    default: return FLOW_CONTINUE;
    }
}
static enum exec_flow exec_body(struct jrun *r, const struct jnode *n, struct jframe *f, struct jbuf *out) {
    enum exec_flow flow = FLOW_NEXT;
    jenter_depth(r);
    for (; n && flow == FLOW_NEXT; n = n->next) {
        jcount_steps(r, 1);
        r->pos = n->pos;
        flow = exec_statement(r, n, f, out);
    }
    r->depth--;
    return flow;
}
void jexec_body(struct jrun *r, const struct jnode *body, struct jframe *f, struct jbuf *out) {
    exec_body(r, body, f, out);
}

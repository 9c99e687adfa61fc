#include <string.h>

#include "tokenizer/jinja_eval.h"

/* Executes statements, frames, loops and macros. A new frame is initialized by the scopes of jinja_scope.c. */

enum flow { GO, BREAK, CONTINUE };
static enum flow exec_body(struct jrun *r, const struct jnode *n, struct jframe *f, struct jbuf *out);

static void enter(struct jrun *r, struct jframe *f) {
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
            for (int h = v->hops; h; h--) from = from->up;
            f->v[i] = from->v[v->slot];
        }
    }
    jstep(r, f->scope->n);
}
struct jframe *jexec_frame(struct jrun *r, struct jscope *s, struct jframe *up) {
    struct jframe *f = jalloc(r, sizeof *f + s->n * sizeof *f->v);
    f->up = up;
    f->scope = s;
    memset(f->v, 0, s->n * sizeof *f->v); /* all J_MISSING */
    enter(r, f);
    return f;
}

void jexec_assign(struct jrun *r, const struct jnode *t, struct jframe *f, struct jval v) {
    if (t->kind == N_NAME) {
        f->v[t->slot] = v;
        return;
    }
    if (t->kind == N_NSREF) {
        struct jframe *at = f;
        for (int h = t->hops; h; h--) at = at->up;
        r->pos = t->pos;
        if (at->v[t->slot].type != J_SPACE) jfail(r, "cannot assign attribute on non-namespace object");
        jdict_set(r, at->v[t->slot].d, t->a->v, v);
        return;
    }
    size_t want = 0, i = 0;
    for (const struct jnode *n = t->list; n; n = n->next) want++;
    r->pos = t->pos;
    if (!jiter_can(v) || v.type == J_LOOP) jfail(r, "cannot unpack non-iterable %s object", jval_type(v));
    struct jlist *l = jiter_list(r, v);
    if (l->n < want) jfail(r, "not enough values to unpack (expected %zu, got %zu)", want, l->n);
    if (l->n > want) jfail(r, "too many values to unpack (expected %zu)", want);
    for (const struct jnode *n = t->list; n; n = n->next) jexec_assign(r, n, f, l->v[i++]);
}

/* ---- for */

struct where {
    const struct jnode *node;
    struct jframe *frame;
};
bool jeval_where(struct jrun *r, struct jiter *it, struct jval *out) {
    struct where *w = it->where;
    while (jiter_next(r, it->src, out)) {
        jexec_assign(r, w->node->a, w->frame, *out);
        if (jval_true(r, jeval(r, w->node->c, w->frame))) return true;
    }
    return false;
}

size_t jloop_index(const struct jloop *l) { return l->started ? l->index0 + 1 : 0; }
static bool peek(struct jrun *r, struct jloop *l) {
    if (!l->has_after) {
        if (!jiter_next(r, l->it, &l->after)) return false;
        l->has_after = true;
    }
    return true;
}
size_t jloop_length(struct jrun *r, struct jloop *l) {
    if (l->length != SIZE_MAX) return l->length;
    if (jval_has_len(l->src)) return l->length = jval_len(r, l->src);
    struct jlist *rest = jiter_list(r, (struct jval){.type = J_ITER, .it = l->it});
    l->it = jiter_of(r, (struct jval){.type = J_LIST, .l = rest});
    return l->length = rest->n + jloop_index(l) + l->has_after;
}
struct jval jloop_attr(struct jrun *r, struct jloop *l, const struct jstr *name) {
    if (jstr_is(name, "index")) return jval_int((int64_t)jloop_index(l));
    if (jstr_is(name, "index0")) return jval_int((int64_t)jloop_index(l) - 1);
    if (jstr_is(name, "first")) return jval_bool(l->index0 == 0);
    if (jstr_is(name, "last")) return jval_bool(!peek(r, l));
    if (jstr_is(name, "length")) return jval_int((int64_t)jloop_length(r, l));
    if (jstr_is(name, "revindex")) return jval_int((int64_t)jloop_length(r, l) - (int64_t)jloop_index(l) + 1);
    if (jstr_is(name, "revindex0")) return jval_int((int64_t)jloop_length(r, l) - (int64_t)jloop_index(l));
    if (jstr_is(name, "previtem")) return l->index0 ? l->before : jval_undef(r, "there is no previous item");
    if (jstr_is(name, "nextitem")) return peek(r, l) ? l->after : jval_undef(r, "there is no next item");
    if (jstr_is(name, "depth")) return jval_int(l->depth0 + 1);
    if (jstr_is(name, "depth0")) return jval_int(l->depth0);
    return jval_missing();
}
static bool loop_next(struct jrun *r, struct jloop *l) {
    struct jval v;
    if (l->has_after) v = l->after, l->has_after = false;
    else if (!jiter_next(r, l->it, &v)) return false;
    l->before = l->current;
    l->current = v;
    if (l->started) l->index0++;
    l->started = true;
    return true;
}

static void run_loop(struct jrun *r, const struct jnode *n, struct jframe *up, struct jval over, int64_t depth0, struct jbuf *out) {
    struct jloop *l = jalloc(r, sizeof *l);
    *l = (struct jloop){.src = over, .length = SIZE_MAX, .depth0 = depth0, .node = n->flag ? n : NULL, .up = up, .changed = jval_missing()};
    l->it = jiter_of(r, over);
    if (n->c) { /* the condition is evaluated when the next item is fetched, not before the loop */
        struct where *w = jalloc(r, sizeof *w);
        *w = (struct where){.node = n, .frame = jexec_frame(r, n->scope2, up)};
        struct jiter *it = jalloc(r, sizeof *it);
        *it = (struct jiter){.kind = ITER_WHERE, .src = l->it, .where = w};
        l->it = it;
        l->src = (struct jval){.type = J_ITER, .it = it};
    }
    struct jframe *f = jexec_frame(r, n->scope, up);
    bool completed = false; /* Jinja2 records an iteration at the end of the body, so break and continue do not count */
    while (loop_next(r, l)) {
        if (n->scope->loop >= 0) f->v[n->scope->loop] = (struct jval){.type = J_LOOP, .loop = l};
        jexec_assign(r, n->a, f, l->current);
        enter(r, f);
        enum flow flow = exec_body(r, n->body, f, out);
        if (flow == BREAK) break;
        if (flow == GO) completed = true;
    }
    if (n->orelse && !completed) exec_body(r, n->orelse, jexec_frame(r, n->scope3, up), out);
}
static void call_in(struct jrun *r) {
    if (++r->calls > JINJA_NEST) jfail(r, "calls nested deeper than %d", JINJA_NEST);
}
struct jval jexec_loop(struct jrun *r, struct jloop *loop, struct jval over) {
    if (!loop->node) jfail(r, "the loop must have the 'recursive' marker to be called recursively");
    struct jbuf b = {0};
    call_in(r);
    run_loop(r, loop->node, loop->up, over, loop->depth0 + 1, &b);
    r->calls--;
    return jbuf_done(r, &b);
}

/* ---- macros */

struct jstr *jmacro_name(struct jrun *r, const struct jmacro *m) {
    return m->node->kind == N_MACRO ? m->node->a->v.s : jstr_text(r, "caller").s;
}
static struct jval take_keyword(struct jargs *k, const struct jstr *name) {
    for (size_t i = 0; i < k->nk; i++) {
        if (jstr_cmp(k->k[2 * i].s, name)) continue;
        struct jval v = k->k[2 * i + 1];
        memmove(k->k + 2 * i, k->k + 2 * i + 2, 2 * (k->nk - i - 1) * sizeof *k->k);
        k->nk--;
        return v;
    }
    return jval_missing();
}
static struct jval no_argument(struct jrun *r, const struct jstr *name) {
    struct jbuf b = {0};
    jbuf_text(r, &b, "parameter '", TEXT_TEMPLATE);
    jbuf_str(r, &b, name);
    jbuf_add(r, &b, "' was not provided", 19, TEXT_TEMPLATE); /* 19: includes the NUL */
    return jval_undef(r, b.data);
}
struct jval jexec_macro(struct jrun *r, struct jmacro *m, const struct jargs *given) {
    const struct jnode *n = m->node;
    struct jargs a = *given;
    size_t used = 0, want = 0;
    bool found_caller = false;
    const char *name = jstr_show(r, jmacro_name(r, m));
    call_in(r);
    jdown(r);
    if (a.nk) {
        a.k = jalloc(r, 2 * a.nk * sizeof *a.k);
        memcpy(a.k, given->k, 2 * a.nk * sizeof *a.k);
    }
    for (const struct jnode *p = n->list; p; p = p->next) want++;
    bool all_by_position = a.n >= want;
    struct jframe *f = jexec_frame(r, n->scope, m->up);
    for (const struct jnode *p = n->list; p; p = p->next) {
        bool is_caller = jstr_is(p->a->v.s, "caller");
        if (used < a.n) f->v[p->a->slot] = a.v[used++];
        else {
            f->v[p->a->slot] = take_keyword(&a, p->a->v.s);
            if (is_caller) found_caller = true;
        }
        if (all_by_position && is_caller) found_caller = true;
    }
    if (n->caller && !found_caller) {
        struct jval c = take_keyword(&a, jstr_text(r, "caller").s);
        f->v[n->scope->caller] = c.type == J_MISSING || c.type == J_NONE ? jval_undef(r, "No caller defined") : c;
    }
    if (n->kwargs) {
        struct jval d = jdict_new(r);
        for (size_t i = 0; i < a.nk; i++) jdict_set(r, d.d, a.k[2 * i], a.k[2 * i + 1]);
        f->v[n->scope->kwargs] = d;
    } else if (a.nk) {
        for (size_t i = 0; i < a.nk; i++)
            if (jstr_is(a.k[2 * i].s, "caller"))
                jfail(r, "macro '%s' was invoked with two values for the special caller argument. This is most likely a bug.", name);
        jfail(r, "macro '%s' takes no keyword argument '%s'", name, jstr_show(r, a.k[0].s));
    }
    if (n->varargs) {
        struct jval t = jval_list(r, J_TUPLE, a.n - used);
        if (a.n > used) memcpy(t.l->v, a.v + used, (a.n - used) * sizeof *a.v);
        f->v[n->scope->varargs] = t;
    } else if (a.n > want) jfail(r, "macro '%s' takes not more than %zu argument(s)", name, want);
    for (const struct jnode *p = n->list; p; p = p->next)
        if (f->v[p->a->slot].type == J_MISSING) f->v[p->a->slot] = p->b ? jeval(r, p->b, f) : no_argument(r, p->a->v.s);
    struct jbuf b = {0};
    exec_body(r, n->body, f, &b);
    r->depth--;
    r->calls--;
    return jbuf_done(r, &b);
}

/* ---- other statements */

struct jval jeval_call(struct jrun *r, const struct jnode *n, struct jframe *f, struct jval caller);
struct jval jeval_filter(struct jrun *r, const struct jnode *n, struct jframe *f, struct jval input);

static struct jval new_macro(struct jrun *r, const struct jnode *n, struct jframe *f) {
    struct jmacro *m = jalloc(r, sizeof *m);
    *m = (struct jmacro){.node = n, .up = f};
    return (struct jval){.type = J_MACRO, .m = m};
}
static enum flow exec_captured(struct jrun *r, const struct jnode *n, struct jframe *f, struct jbuf *out) {
    struct jbuf b = {0};
    struct jframe *in = jexec_frame(r, n->scope, f);
    enum flow flow = exec_body(r, n->body, in, &b);
    if (flow != GO) return flow;
    struct jval v = jbuf_done(r, &b);
    if (n->b) v = jeval_filter(r, n->b, in, v);
    if (n->kind == N_SETBLOCK) jexec_assign(r, n->a, f, v);
    else jrepr_str(r, out, v);
    return GO;
}
static void exec_with(struct jrun *r, const struct jnode *n, struct jframe *f) {
    struct jframe *in = f;
    for (const struct jnode *p = n->list; p; p = p->next) jexec_assign(r, p->a, in, jeval(r, p->b, in->up));
}
static enum flow exec_one(struct jrun *r, const struct jnode *n, struct jframe *f, struct jbuf *out) {
    switch (n->kind) {
    case N_DATA: jbuf_str(r, out, n->v.s); return GO;
    case N_PRINT: jrepr_str(r, out, jeval(r, n->a, f)); return GO;
    case N_IF:
        for (const struct jnode *b = n->list; b; b = b->next)
            if (!b->a || jval_true(r, jeval(r, b->a, f))) return exec_body(r, b->body, f, out);
        return GO;
    case N_FOR: {
        struct jval over = jeval(r, n->b, f);
        r->pos = n->pos;
        run_loop(r, n, f, over, 0, out);
        return GO;
    }
    case N_SET: jexec_assign(r, n->a, f, jeval(r, n->b, f)); return GO;
    case N_SETBLOCK:
    case N_FILTERBLOCK: return exec_captured(r, n, f, out);
    case N_MACRO: f->v[n->slot] = new_macro(r, n, f); return GO;
    case N_CALLBLOCK: {
        struct jval caller = new_macro(r, n, f);
        struct jargs none = {0};
        jrepr_str(r, out, n->b ? jeval_call(r, n->b, f, caller) : jexec_macro(r, caller.m, &none));
        return GO;
    }
    case N_WITH: {
        struct jframe *in = jexec_frame(r, n->scope, f);
        exec_with(r, n, in);
        return exec_body(r, n->body, in, out);
    }
    case N_BREAK: return BREAK;
    default: return CONTINUE;
    }
}
static enum flow exec_body(struct jrun *r, const struct jnode *n, struct jframe *f, struct jbuf *out) {
    enum flow flow = GO;
    jdown(r);
    for (; n && flow == GO; n = n->next) {
        jstep(r, 1);
        r->pos = n->pos;
        flow = exec_one(r, n, f, out);
    }
    r->depth--;
    return flow;
}
void jexec_body(struct jrun *r, const struct jnode *body, struct jframe *f, struct jbuf *out) { exec_body(r, body, f, out); }

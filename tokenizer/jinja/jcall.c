#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tokenizer/jinja/jeval.h"

/* Calls: binds arguments to parameters. Also the global functions. */

static size_t param_length(const char *s) { return strcspn(s, ","); }
static int param_index(const char *params, const struct jstr *name) {
    int i = 0;
    for (const char *p = params; *p; i++) {
        size_t n = param_length(p);
        if (n == name->n && !memcmp(p, name->s, n)) return i;
        p += n + (p[n] == ',');
    }
    return -1;
}
void jcall_bind(struct jrun *r, const char *what, const char *params, int n_required, const struct jargs *args,
                struct jval *out) {
    int count = *params ? 1 : 0;
    for (const char *p = params; *p; p++) count += *p == ',';
    if (args->n > (size_t)count) jfail(r, "%s takes at most %d argument(s) (%zu given)", what, count, args->n);
    for (int i = 0; i < JCALL_MAX; i++) out[i] = (size_t)i < args->n ? args->v[i] : jval_missing();
    for (size_t k = 0; k < args->n_keywords; k++) {
        int i = param_index(params, args->keywords[2 * k].s);
        if (i < 0)
            jfail(r, "%s got an unexpected keyword argument '%s'", what, jstr_for_error(r, args->keywords[2 * k].s));
        if (out[i].type != J_MISSING)
            jfail(r, "%s got multiple values for argument '%s'", what, jstr_for_error(r, args->keywords[2 * k].s));
        out[i] = args->keywords[2 * k + 1];
    }
    const char *p = params;
    for (int i = 0; i < n_required; i++) {
        if (out[i].type == J_MISSING) jfail(r, "%s: the argument '%.*s' is missing", what, (int)param_length(p), p);
        p += param_length(p);
        p += *p == ',';
    }
}

struct jval jcall_filter(struct jrun *r, const void *fn, struct jval v, const struct jargs *args) {
    const struct jfilter *f = fn;
    struct jval a[JCALL_MAX];
    jenter_depth(r);
    if (f->fn_args) v = f->fn_args(r, v, args);
    else {
        jcall_bind(r, f->name, f->params, f->n_required, args, a);
        v = f->fn(r, v, a);
    }
    r->depth--;
    return v;
}
bool jcall_test(struct jrun *r, const void *fn, struct jval v, const struct jargs *args) {
    const struct jtest *t = fn;
    struct jval a[JCALL_MAX];
    jcall_bind(r, t->name, t->params, t->n_required, args, a);
    return t->fn(r, v, a);
}

/* ---- globals */

static struct jval g_range(struct jrun *r, const struct jargs *args) {
    struct jrange *g = jalloc(r, sizeof *g);
    *g = (struct jrange){.step = 1};
    if (args->n_keywords) jfail(r, "range() takes no keyword arguments");
    if (args->n < 1 || args->n > 3) jfail(r, "range expected 1 to 3 arguments, got %zu", args->n);
    g->stop = jval_index(r, args->v[args->n > 1], "range's argument");
    if (args->n > 1) g->start = jval_index(r, args->v[0], "range's argument");
    if (args->n > 2) g->step = jval_index(r, args->v[2], "range's argument");
    if (!g->step) jfail(r, "range() arg 3 must not be zero");
    if (jrange_len(g) > JINJA_MAX_RANGE) jfail(r, "range too big; the sandbox allows %d items", JINJA_MAX_RANGE);
    return (struct jval){.type = J_RANGE, .origin = TEXT_TEMPLATE, .r = g};
}
/* dict(mapping or pairs, **keywords) */
static struct jval g_dict(struct jrun *r, const struct jargs *args) {
    struct jval d = jdict_new(r);
    if (args->n > 1) jfail(r, "dict expected at most 1 argument, got %zu", args->n);
    if (args->n) {
        struct jval from = args->v[0];
        if (from.type == J_DICT) {
            for (size_t i = 0; i < from.d->n; i++) jdict_set(r, d.d, from.d->kv[2 * i], from.d->kv[2 * i + 1]);
        } else {
            struct jlist *l = jiter_to_list(r, from);
            for (size_t i = 0; i < l->n; i++) {
                struct jlist *pair = jiter_to_list(r, l->v[i]);
                if (pair->n != 2)
                    jfail(r, "dictionary update sequence element #%zu has length %zu; 2 is required", i, pair->n);
                jdict_set(r, d.d, pair->v[0], pair->v[1]);
            }
        }
    }
    for (size_t i = 0; i < args->n_keywords; i++) jdict_set(r, d.d, args->keywords[2 * i], args->keywords[2 * i + 1]);
    return d;
}
static struct jval g_namespace(struct jrun *r, const struct jargs *args) {
    struct jval v = g_dict(r, args);
    v.type = J_NAMESPACE;
    return v;
}
static struct jval g_joiner(struct jrun *r, const struct jargs *args) {
    struct jval a[JCALL_MAX];
    jcall_bind(r, "joiner", "sep", 0, args, a);
    struct jjoiner *c = jalloc(r, sizeof *c);
    *c = (struct jjoiner){.sep = a[0].type == J_MISSING ? jstr_literal(r, ", ") : a[0]};
    return (struct jval){.type = J_JOINER, .c = c};
}
static struct jval g_raise(struct jrun *r, const struct jargs *args) {
    struct jval a[JCALL_MAX];
    jcall_bind(r, "raise_exception", "message", 1, args, a);
    struct jstr *s = jrepr_to_str(r, a[0]);
    const int n = s->n ? (int)strnlen(s->s, s->n < 500 ? s->n : 500) : 0; /* the text may contain NUL */
    int blank = 0;
    while (blank < n && strchr(" \t\r\n", s->s[blank])) blank++;
    if (blank == n) error_set(r->e, r->code, "the chat template raised an exception without a message");
    else error_set(r->e, r->code, "%.*s", n, s->s);
    longjmp(r->on_error, 1);
}
/* Formats the current date, or SOURCE_DATE_EPOCH if set, so that prompts are reproducible. Like a naive datetime: %z
 * and %Z are empty, %f is microseconds. */
static struct jval g_strftime(struct jrun *r, const struct jargs *args) {
    struct jval a[JCALL_MAX];
    jcall_bind(r, "strftime_now", "format", 1, args, a);
    if (a[0].type != J_STR) jfail(r, "strftime() argument must be str, not %s", jval_type(a[0]));
    struct jstr *s = a[0].s;
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (epoch && *epoch) {
        char *end;
        now.tv_sec = (time_t)strtoll(epoch, &end, 10);
        now.tv_nsec = 0;
        if (*end) jfail(r, "SOURCE_DATE_EPOCH is not a number of seconds");
    }
    struct tm tm;
    tzset();
    if (!localtime_r(&now.tv_sec, &tm)) jfail(r, "SOURCE_DATE_EPOCH is not a valid date");
    struct jbuf b = {0};
    for (size_t i = 0; i < s->n; i++) {
        char fmt[8] = "%", out[256];
        if (s->s[i] != '%' || i + 1 >= s->n) {
            jbuf_add(r, &b, s->s + i, 1, jstr_origin_at(s, i));
            continue;
        }
        size_t n = 1;
        while (i + 1 < s->n && n < 3 && strchr("-_0^#EO", s->s[i + 1]) && s->s[i + 1]) fmt[n++] = s->s[++i];
        char c = i + 1 < s->n ? s->s[++i] : '%';
        fmt[n] = c;
        if (c == 'z' || c == 'Z') continue;
        if (c == 'f') snprintf(out, sizeof out, "%06ld", now.tv_nsec / 1000);
        else if (!strftime(out, sizeof out, fmt, &tm)) *out = 0;
        jbuf_cstr(r, &b, out, TEXT_TEMPLATE);
    }
    struct jval v = jbuf_finish(r, &b);
    if (!v.s->n) v.s->origin = TEXT_TEMPLATE;
    return v;
}

static const struct {
    const char *name;
    struct jval (*fn)(struct jrun *r, const struct jargs *args);
} globals[] = {
    {"range", g_range},           {"dict", g_dict},
    {"namespace", g_namespace},   {"joiner", g_joiner},
    {"raise_exception", g_raise}, {"strftime_now", g_strftime},
};
bool jcall_global(const struct jstr *name, struct jval *out) {
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++)
        if (jstr_equals(name, globals[i].name)) {
            *out = (struct jval){.type = J_GLOBAL, .sub = (uint8_t)i};
            return true;
        }
    return false;
}

struct jval jcall(struct jrun *r, struct jval fn, const struct jargs *args) {
    switch (fn.type) {
    case J_GLOBAL: return globals[fn.sub].fn(r, args);
    case J_METHOD: return jmethod_call(r, fn.me, fn.sub, args);
    case J_MACRO: return jexec_macro(r, fn.m, args);
    case J_LOOP:
        if (args->n != 1 || args->n_keywords) jfail(r, "loop() takes one argument");
        return jexec_loop(r, fn.loop, args->v[0]);
    case J_JOINER:
        if (fn.c->used) return fn.c->sep;
        fn.c->used = true;
        return jstr_literal(r, "");
    case J_UNDEF: jfail_undef(r, fn.u);
    default: jfail(r, "'%s' object is not callable", jval_type(fn));
    }
}

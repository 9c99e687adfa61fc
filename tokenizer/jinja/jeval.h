#pragma once
/* Executes a template: frames, calls, and the tables of filters, tests and methods. */
#include "tokenizer/jinja/jast.h"
#include "tokenizer/jinja/jstr.h"

struct jframe { /* one activation of a scope */
    struct jframe *parent;
    struct jscope *scope;
    struct jval v[];
};
struct jmacro {
    const struct jnode *node; /* N_MACRO or N_CALLBLOCK */
    struct jframe *parent;
};
struct jloop {
    struct jiter *it;
    struct jval source, current, before, after;
    bool has_next, started;
    size_t index0, length; /* length SIZE_MAX: not computed yet */
    int64_t depth0;
    const struct jnode *node; /* recursive loops: the node to call again; otherwise NULL */
    struct jframe *parent;
    struct jval last_changed;
};

/* -- jeval.c */
struct jval jeval(struct jrun *r, const struct jnode *n, struct jframe *f); /* the value of an expression */
/* N_CALL. caller: the block of a {% call %}, passed as the keyword "caller"; otherwise J_MISSING. */
struct jval jeval_call(struct jrun *r, const struct jnode *n, struct jframe *f, struct jval caller);
/* N_FILTER. input: the captured text of a filter block or set block, passed to the first filter of the chain; otherwise
 * J_MISSING. */
struct jval jeval_filter(struct jrun *r, const struct jnode *n, struct jframe *f, struct jval input);
/* -- jexec.c */
/* the next item that meets the condition of a loop; false: none */
bool jexec_loop_filter(struct jrun *r, struct jiter *it, struct jval *out);
/* calls a macro; returns its text */
struct jval jexec_macro(struct jrun *r, struct jmacro *m, const struct jargs *args);
/* calls a recursive loop for other items; returns its text */
struct jval jexec_loop(struct jrun *r, struct jloop *loop, struct jval over);
/* a new frame inside up, with its initial values */
struct jframe *jexec_frame(struct jrun *r, struct jscope *s, struct jframe *up);
void jexec_assign(struct jrun *r, const struct jnode *target, struct jframe *f, struct jval v);
/* executes statements, appending to out */
void jexec_body(struct jrun *r, const struct jnode *body, struct jframe *f, struct jbuf *out);
/* from 1; 0 before the first item */
size_t jloop_index(const struct jloop *loop);
/* loop.name; J_MISSING: it has no such attribute */
struct jval jloop_attr(struct jrun *r, struct jloop *loop, const struct jstr *name);
struct jstr *jmacro_name(struct jrun *r, const struct jmacro *m);

/* -- jattr.c: attributes and items as the sandbox exposes them */
struct jval jattr_get(struct jrun *r, struct jval obj, struct jval name); /* obj.name */
struct jval jattr_item(struct jrun *r, struct jval obj, struct jval key); /* obj[key] */
struct jval jattr_slice(struct jrun *r, struct jval obj, struct jval start, struct jval stop, struct jval step);
/* getattr only, without item access */
bool jattr_find(struct jrun *r, struct jval obj, const struct jstr *name, struct jval *out);
/* Follows a path "a.b.0", as filters accept it. fallback: instead of an undefined value; none: keep it. */
struct jval jattr_path(struct jrun *r, struct jval obj, struct jval path, struct jval fallback);
struct json;
/* jinja.c: converts JSON to a value; its strings are TEXT_VALUE */
struct jval jval_from_json(struct jrun *r, const struct json *j);
/* -- jop.c */
struct jval jop_math(struct jrun *r, uint8_t op, struct jval a, struct jval b);
struct jval jop_neg(struct jrun *r, struct jval a, bool minus);
/* -- jformat.c */
struct jval jformat_percent(struct jrun *r, struct jstr *fmt, struct jval args);
struct jval jformat_braces(struct jrun *r, struct jstr *fmt, const struct jargs *args);
struct jval jformat_spec(struct jrun *r, struct jval v, struct jstr *spec);
/* -- jcall.c */
struct jval jcall(struct jrun *r, struct jval fn, const struct jargs *args);
struct jval jcall_filter(struct jrun *r, const void *fn, struct jval v, const struct jargs *args);
bool jcall_test(struct jrun *r, const void *fn, struct jval v, const struct jargs *args);
/* Binds args to the parameters "a,b,c". Missing ones become J_MISSING; the first n_required must be given. what: the
 * function's name in errors. */
void jcall_bind(struct jrun *r, const char *what, const char *params, int n_required, const struct jargs *args,
                struct jval *out);
bool jcall_global(const struct jstr *name, struct jval *out);
enum { JCALL_MAX = 8 };

struct jfilter {
    const char *name;
    struct jval (*fn)(struct jrun *r, struct jval v, struct jval *a);
    struct jval (*fn_args)(struct jrun *r, struct jval v, const struct jargs *args); /* takes unbound arguments */
    const char *params;
    int n_required;
};
struct jtest {
    const char *name;
    bool (*fn)(struct jrun *r, struct jval v, struct jval *a);
    const char *params;
    int n_required;
};
const struct jfilter *jfilter_find(const struct jstr *name); /* searches jfilter.c and jseq.c */
const struct jtest *jtest_find(const struct jstr *name);
extern const struct jfilter jfilter_text[], jfilter_seq[]; /* end with a NULL name */
/* -- jmethod.c: methods of str, list, tuple and dict. Returns false if there is no such method. */
bool jmethod_find(struct jval self, const struct jstr *name, struct jval *out);
struct jval jmethod_call(struct jrun *r, const struct jmethod *m, int sub, const struct jargs *args);
/* -- shared by filters and methods */
void jeval_sort(struct jrun *r, struct jlist *items, struct jlist *keys, bool reverse); /* stable, in place, by keys */
struct jval jtext_strip(struct jrun *r, struct jstr *s, struct jval chars, bool left, bool right);
/* count < 0: all */
struct jval jtext_replace(struct jrun *r, struct jstr *s, struct jstr *old, struct jstr *replacement, int64_t count);
struct jval jtext_join(struct jrun *r, struct jstr *sep, struct jval items, bool any);
struct jlist *jtext_splitlines(struct jrun *r, struct jstr *s, bool keep);
/* padding: -1 left, 1 right */
struct jval jtext_pad(struct jrun *r, struct jstr *s, int64_t width, struct jstr *fill, int where);
/* an optional integer */
int64_t jtext_int(struct jrun *r, struct jval v, int64_t default_value);

#include "tokenizer/jinja/jvalue.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "tokenizer/jinja/jstr.h"

/* ---- errors: unwind to jinja.c, which frees the arena. Rendering holds no other resources. */

_Noreturn void jfail(struct jrun *r, const char *fmt, ...) {
    char text[420];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t line = 1, col = 1;
    for (size_t i = 0; i < r->pos && i < r->n_source; i++) {
        unsigned char c = (unsigned char)r->source[i];
        if (c == '\n') line++, col = 1;
        else if ((c & 0xC0) != 0x80) col++;
    }
    error_set(r->e, r->code, "%s: line %zu, column %zu: %s", r->source_name, line, col, text);
    longjmp(r->on_error, 1);
}
_Noreturn void jfail_memory(struct jrun *r) {
    r->code = ERR_MEMORY;
    error_set(r->e, ERR_MEMORY, "%s: out of memory", r->source_name);
    longjmp(r->on_error, 1);
}
_Noreturn void jfail_undef(struct jrun *r, const struct jundef *u) {
    if (u->hint) jfail(r, "%s", u->hint);
    if (!u->object) jfail(r, "'%s' is undefined", jstr_for_error(r, u->name.s));
    if (u->name.type == J_STR) jfail(r, "'%s' has no attribute '%s'", u->object, jstr_for_error(r, u->name.s));
    struct jbuf b = {0};
    jrepr_add(r, &b, u->name);
    jfail(r, "%s has no element %.*s", u->object, (int)(b.n > 100 ? 100 : b.n), b.data);
}

void *jalloc(struct jrun *r, size_t size) {
    void *p = arena_alloc(r->arena, size);
    if (!p) {
        if (r->arena->limit && r->arena->total + size > r->arena->limit)
            jfail(r, "the template needs more than %zu MB", r->arena->limit >> 20);
        jfail_memory(r);
    }
    return p;
}
void jcount_steps(struct jrun *r, size_t n) {
    if (r->steps_left < n) jfail(r, "the template exceeds %d steps", JINJA_MAX_STEPS);
    r->steps_left -= n;
}
void jenter_depth(struct jrun *r) {
    if (++r->depth > JINJA_MAX_DEPTH) jfail(r, "nested too deeply");
}

/* ---- types */

static const char *object_type_name(struct jrun *r, struct jval v) {
    if (v.type == J_NONE) return "None";
    const char *t = v.type == J_NAMESPACE ? "jinja2.utils.Namespace" : jval_type(v);
    size_t n = strlen(t);
    char *s = jalloc(r, n + 8);
    memcpy(s, t, n);
    memcpy(s + n, " object", 8);
    return s;
}
struct jval jval_undef(struct jrun *r, const char *hint) {
    struct jundef *u = jalloc(r, sizeof *u);
    *u = (struct jundef){.hint = hint};
    return (struct jval){.type = J_UNDEF, .u = u};
}
struct jval jval_undef_name(struct jrun *r, struct jval name, const struct jval *object) {
    struct jundef *u = jalloc(r, sizeof *u);
    *u = (struct jundef){.name = name, .object = object ? object_type_name(r, *object) : NULL};
    return (struct jval){.type = J_UNDEF, .u = u};
}
struct jval jval_list(struct jrun *r, uint8_t type, size_t n) {
    jcount_steps(r, n);
    struct jlist *l = jalloc(r, sizeof *l);
    *l = (struct jlist){.n = n, .v = jalloc(r, n * sizeof *l->v)};
    return (struct jval){.type = type, .origin = TEXT_TEMPLATE, .l = l};
}

const char *jval_type(struct jval v) {
    static const char *const view[] = {"dict_keys", "dict_values", "dict_items"};
    switch (v.type) {
    case J_UNDEF: return "Undefined";
    case J_NONE: return "NoneType";
    case J_BOOL: return "bool";
    case J_INT: return "int";
    case J_FLOAT: return v.big ? "int" : "float";
    case J_STR: return v.s->markup ? "Markup" : "str";
    case J_LIST: return "list";
    case J_TUPLE: return "tuple";
    case J_DICT: return "dict";
    case J_VIEW: return view[v.sub];
    case J_RANGE: return "range";
    case J_ITER: return "generator";
    case J_NAMESPACE: return "Namespace";
    case J_MACRO: return "Macro";
    case J_LOOP: return "LoopContext";
    case J_JOINER: return "Joiner";
    case J_METHOD: return "builtin_function_or_method";
    default: return "function";
    }
}

bool jval_has_len(struct jval v) {
    switch (v.type) {
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_VIEW:
    case J_RANGE:
    case J_UNDEF:
    case J_LOOP: return true;
    default: return false;
    }
}
bool jval_is_true(struct jrun *r, struct jval v) {
    switch (v.type) {
    case J_MISSING:
    case J_UNDEF:
    case J_NONE: return false;
    case J_BOOL: return v.b;
    case J_INT: return v.i != 0;
    case J_FLOAT: return v.f != 0;
    case J_LOOP: return true; /* Python would ask for its length; a running loop is never empty */
    default: return jval_has_len(v) ? jval_len(r, v) > 0 : true;
    }
}
size_t jrange_len(const struct jrange *g) {
    if (g->step > 0)
        return g->stop > g->start ? ((uint64_t)g->stop - (uint64_t)g->start - 1) / (uint64_t)g->step + 1 : 0;
    return g->start > g->stop ? ((uint64_t)g->start - (uint64_t)g->stop - 1) / (0 - (uint64_t)g->step) + 1 : 0;
}
struct jval jrange_item(struct jval range, size_t i) {
    struct jval v = jval_int((int64_t)((uint64_t)range.r->start + (uint64_t)i * (uint64_t)range.r->step));
    v.origin = range.origin;
    return v;
}
size_t jval_len(struct jrun *r, struct jval v) {
    switch (v.type) {
    case J_STR: return jstr_chars(v.s);
    case J_LIST:
    case J_TUPLE: return v.l->n;
    case J_DICT:
    case J_VIEW: return v.d->n;
    case J_RANGE: return jrange_len(v.r);
    case J_UNDEF: return 0;
    case J_LOOP: return jloop_length(r, v.loop);
    default: jfail(r, "object of type '%s' has no len()", jval_type(v));
    }
}
int64_t jval_index(struct jrun *r, struct jval v, const char *what) {
    if (v.type == J_UNDEF) jfail_undef(r, v.u);
    if (!jval_is_int(v)) jfail(r, "%s must be an integer, not '%s'", what, jval_type(v));
    return jval_as_int(v);
}

/* ---- comparison as in Python: numbers by value regardless of type, others only with their own type */

static bool eq_lists(struct jrun *r, const struct jlist *a, const struct jlist *b) {
    if (a->n != b->n) return false;
    jcount_steps(r, a->n);
    for (size_t i = 0; i < a->n; i++)
        if (!jval_eq(r, a->v[i], b->v[i])) return false;
    return true;
}
static bool eq_dicts(struct jrun *r, struct jdict *a, struct jdict *b) {
    if (a->n != b->n) return false;
    jcount_steps(r, a->n);
    for (size_t i = 0; i < a->n; i++) {
        struct jval *v = jdict_find(r, b, a->kv[2 * i]);
        if (!v || !jval_eq(r, a->kv[2 * i + 1], *v)) return false;
    }
    return true;
}
static bool eq_int_float(int64_t i, double f) { return f >= -0x1p63 && f < 0x1p63 && f == floor(f) && (int64_t)f == i; }
static bool same_digits(const struct json *a, const struct json *b) {
    return a->n == b->n && !memcmp(a->string, b->string, a->n);
}
static bool eq_deep(struct jrun *r, struct jval a, struct jval b) {
    if (jval_is_number(a) && jval_is_number(b)) {
        if (a.big && b.big) return same_digits(r->big[a.big - 1], r->big[b.big - 1]);
        if (a.type == J_FLOAT) return b.type == J_FLOAT ? a.f == b.f : eq_int_float(jval_as_int(b), a.f);
        return b.type == J_FLOAT ? eq_int_float(jval_as_int(a), b.f) : jval_as_int(a) == jval_as_int(b);
    }
    if (a.type != b.type) return false;
    switch (a.type) {
    case J_UNDEF:
    case J_NONE:
    case J_MISSING: return true;
    case J_STR:
        if (a.s->n != b.s->n) return false;
        jcount_steps(r, a.s->n >> 6);
        return !memcmp(a.s->s, b.s->s, a.s->n);
    case J_LIST:
    case J_TUPLE: return eq_lists(r, a.l, b.l);
    case J_DICT: return eq_dicts(r, a.d, b.d);
    case J_VIEW: return a.sub == b.sub && (a.sub == VIEW_VALUES ? a.d == b.d : eq_dicts(r, a.d, b.d));
    case J_RANGE: {
        size_t n = jrange_len(a.r);
        return n == jrange_len(b.r) && (!n || (a.r->start == b.r->start && (n == 1 || a.r->step == b.r->step)));
    }
    case J_GLOBAL: return a.sub == b.sub;
    case J_METHOD: return a.sub == b.sub && jval_eq(r, a.me->self, b.me->self);
    default: return a.l == b.l; /* identity */
    }
}
bool jval_eq(struct jrun *r, struct jval a, struct jval b) {
    jenter_depth(r);
    bool same = eq_deep(r, a, b);
    r->depth--;
    return same;
}

int jval_cmp(struct jrun *r, struct jval a, struct jval b, const char *op) {
    if (a.type == J_UNDEF) jfail_undef(r, a.u);
    if (b.type == J_UNDEF) jfail_undef(r, b.u);
    if (jval_is_number(a) && jval_is_number(b)) {
        if (a.type != J_FLOAT && b.type != J_FLOAT) {
            int64_t x = jval_as_int(a), y = jval_as_int(b);
            return (x > y) - (x < y);
        }
        long double x = a.type == J_FLOAT ? (long double)a.f : (long double)jval_as_int(a);
        long double y = b.type == J_FLOAT ? (long double)b.f : (long double)jval_as_int(b);
        return x != x || y != y ? 2 : (x > y) - (x < y);
    }
    if (a.type == J_STR && b.type == J_STR) {
        jcount_steps(r, (a.s->n < b.s->n ? a.s->n : b.s->n) >> 6);
        return jstr_cmp(a.s, b.s);
    }
    if (a.type == b.type && (a.type == J_LIST || a.type == J_TUPLE)) {
        size_t n = a.l->n < b.l->n ? a.l->n : b.l->n;
        jcount_steps(r, n);
        for (size_t i = 0; i < n; i++)
            if (!jval_eq(r, a.l->v[i], b.l->v[i])) {
                jenter_depth(r);
                int c = jval_cmp(r, a.l->v[i], b.l->v[i], op);
                r->depth--;
                return c;
            }
        return (a.l->n > b.l->n) - (a.l->n < b.l->n);
    }
    jfail(r, "'%s' not supported between instances of '%s' and '%s'", op, jval_type(a), jval_type(b));
}
bool jval_less(struct jrun *r, struct jval a, struct jval b) { return jval_cmp(r, a, b, "<") == -1; }

bool jval_contains(struct jrun *r, struct jval item, struct jval container) {
    switch (container.type) {
    case J_STR:
        if (item.type == J_UNDEF || item.type != J_STR)
            jfail(r, "'in <string>' requires string as left operand, not %s", jval_type(item));
        jcount_steps(r, container.s->n >> 6);
        return jstr_find(container.s, 0, item.s) != NULL;
    case J_DICT: return jdict_find(r, container.d, item) != NULL;
    case J_VIEW:
        if (container.sub == VIEW_KEYS) return jdict_find(r, container.d, item) != NULL;
        break;
    case J_RANGE:
        if (jval_is_number(item)) {
            if (item.type == J_FLOAT && !(item.f == floor(item.f) && fabs(item.f) < 0x1p62)) return false;
            int64_t i = item.type == J_FLOAT ? (int64_t)item.f : jval_as_int(item);
            struct jrange *g = container.r;
            return (g->step > 0 ? i >= g->start && i < g->stop : i <= g->start && i > g->stop) &&
                   ((__int128)i - g->start) % g->step == 0;
        }
        break;
    default: break;
    }
    if (!jiter_is_iterable(container)) jfail(r, "argument of type '%s' is not iterable", jval_type(container));
    struct jiter *it = jiter_new(r, container);
    struct jval v;
    while (jiter_next(r, it, &v))
        if (jval_eq(r, item, v)) return true;
    return false;
}

/* ---- dict: an array in insertion order, with a hash index once it is large */

uint64_t jval_hash(struct jrun *r, struct jval v) {
    switch (v.type) {
    case J_STR: jcount_steps(r, v.s->n >> 6); return hash64(v.s->s, v.s->n, 1);
    case J_FLOAT:
        if (!eq_int_float((int64_t)(fabs(v.f) < 0x1p62 ? v.f : 0), v.f)) return hash64(&v.f, sizeof v.f, 2);
        v = jval_int((int64_t)v.f); /* fall through: 1.0 and 1 are the same key */
        return hash64(&v.i, sizeof v.i, 3);
    case J_BOOL:
    case J_INT: {
        int64_t i = jval_as_int(v);
        return hash64(&i, sizeof i, 3);
    }
    case J_TUPLE: {
        uint64_t h = 5;
        jenter_depth(r);
        jcount_steps(r, v.l->n);
        for (size_t i = 0; i < v.l->n; i++) h = h * 0x9E3779B97F4A7C15u + jval_hash(r, v.l->v[i]);
        r->depth--;
        return h;
    }
    case J_LIST:
    case J_DICT: jfail(r, "unhashable type: '%s'", jval_type(v));
    case J_VIEW:
        if (v.sub != VIEW_VALUES) jfail(r, "unhashable type: '%s'", jval_type(v));
        return (uintptr_t)v.d;
    case J_UNDEF:
    case J_NONE:
    case J_GLOBAL:
    case J_RANGE:
    case J_METHOD: return v.type;
    default: return (uintptr_t)v.l;
    }
}
struct jval jdict_new(struct jrun *r) {
    struct jdict *d = jalloc(r, sizeof *d);
    *d = (struct jdict){0};
    return (struct jval){.type = J_DICT, .origin = TEXT_TEMPLATE, .d = d};
}
enum { SMALL_DICT = 12 }; /* larger ones have an index */
static struct jval *find_dict_slot(struct jrun *r, struct jdict *d, struct jval key, uint64_t h) {
    for (size_t i = h & (d->n_index - 1); d->index[i]; i = (i + 1) & (d->n_index - 1)) {
        struct jval *kv = &d->kv[2 * (size_t)(d->index[i] - 1)];
        if (jval_eq(r, kv[0], key)) return kv + 1;
    }
    return NULL;
}
struct jval *jdict_find(struct jrun *r, struct jdict *d, struct jval key) {
    uint64_t h = jval_hash(r, key);
    if (d->index) return find_dict_slot(r, d, key, h);
    for (size_t i = 0; i < d->n; i++)
        if (jval_eq(r, d->kv[2 * i], key)) return &d->kv[2 * i + 1];
    return NULL;
}
struct jval *jdict_find_n(struct jrun *r, struct jdict *d, const char *key, size_t n) {
    struct jstr s = {.s = key, .n = n, .n_chars = SIZE_MAX};
    return jdict_find(r, d, (struct jval){.type = J_STR, .s = &s});
}
static void add_dict_index(struct jrun *r, struct jdict *d, size_t entry) {
    size_t i = jval_hash(r, d->kv[2 * entry]) & (d->n_index - 1);
    while (d->index[i]) i = (i + 1) & (d->n_index - 1);
    d->index[i] = (uint32_t)entry + 1;
}
void jdict_set(struct jrun *r, struct jdict *d, struct jval key, struct jval v) {
    struct jval *old = jdict_find(r, d, key);
    if (old) {
        *old = v;
        return;
    }
    if (d->n == d->cap) {
        if (d->n >= JINJA_MAX_ITEMS) jfail(r, "the dict exceeds %d items", JINJA_MAX_ITEMS);
        size_t cap = d->cap ? d->cap * 2 : 4;
        struct jval *kv = jalloc(r, 2 * cap * sizeof *kv);
        if (d->n) memcpy(kv, d->kv, 2 * d->n * sizeof *kv);
        d->kv = kv;
        d->cap = cap;
    }
    d->kv[2 * d->n] = key;
    d->kv[2 * d->n + 1] = v;
    d->n++;
    if (d->n <= SMALL_DICT) return;
    if (d->n * 2 > d->n_index) {
        d->n_index = d->n_index ? d->n_index * 2 : 64;
        d->index = jalloc(r, d->n_index * sizeof *d->index);
        memset(d->index, 0, d->n_index * sizeof *d->index);
        for (size_t i = 0; i < d->n; i++) add_dict_index(r, d, i);
    } else add_dict_index(r, d, d->n - 1);
}

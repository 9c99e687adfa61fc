#include <stdio.h>
#include <string.h>

#include "tokenizer/jinja/jeval.h"

/* obj.name and obj[key] with Python's attribute rules: methods of a dict hide equal keys after a dot. Methods that
 * would modify a list or dict are undefined values that fail when used (sandbox). */

static bool is_one_of(const struct jstr *name, const char *const *names) {
    for (; *names; names++)
        if (jstr_equals(name, *names)) return true;
    return false;
}
static bool is_unsafe_attribute(struct jval obj, const struct jstr *name) {
    static const char *const list[] = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort", NULL};
    static const char *const dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    return obj.type == J_LIST ? is_one_of(name, list) : obj.type == J_DICT && is_one_of(name, dict);
}
/* Returns an undefined value that fails with this message when it is used. */
static struct jval forbidden_attribute(struct jrun *r, struct jval obj, const struct jstr *name) {
    const char *type = jval_type(obj);
    size_t n = name->n + strlen(type) + 64;
    char *hint = jalloc(r, n);
    snprintf(hint, n, "access to attribute '%.*s' of '%s' object is unsafe.", (int)name->n, name->s, type);
    return jval_undef(r, hint);
}

static struct jval macro_attr(struct jrun *r, struct jmacro *m, const struct jstr *name) {
    const struct jnode *n = m->node;
    if (jstr_equals(name, "name")) return n->kind == N_MACRO ? n->a->value : jval_none();
    if (jstr_equals(name, "catch_kwargs")) return jval_bool(n->uses_kwargs);
    if (jstr_equals(name, "catch_varargs")) return jval_bool(n->uses_varargs);
    if (jstr_equals(name, "caller")) return jval_bool(n->uses_caller);
    if (!jstr_equals(name, "arguments")) return jval_missing();
    size_t count = 0;
    for (const struct jnode *a = n->list; a; a = a->next) count++;
    struct jval v = jval_list(r, J_TUPLE, count);
    count = 0;
    for (const struct jnode *a = n->list; a; a = a->next) v.l->v[count++] = a->a->value;
    return v;
}

bool jattr_find(struct jrun *r, struct jval obj, const struct jstr *name, struct jval *out) {
    *out = jval_missing();
    if (is_unsafe_attribute(obj, name)) {
        *out = forbidden_attribute(r, obj, name);
        return true;
    }
    switch (obj.type) {
    case J_NAMESPACE: {
        struct jval *v = jdict_find_n(r, obj.d, name->s, name->n);
        if (v) *out = *v;
        return v != NULL;
    }
    case J_LOOP: *out = jloop_attr(r, obj.loop, name); break;
    case J_MACRO: *out = macro_attr(r, obj.m, name); break;
    case J_RANGE:
        if (jstr_equals(name, "start")) *out = jval_int(obj.r->start);
        else if (jstr_equals(name, "stop")) *out = jval_int(obj.r->stop);
        else if (jstr_equals(name, "step")) *out = jval_int(obj.r->step);
        break;
    case J_TUPLE:
        if (obj.l->is_group && jstr_equals(name, "grouper")) *out = obj.l->v[0];
        else if (obj.l->is_group && jstr_equals(name, "list")) *out = obj.l->v[1];
        break;
    case J_BOOL:
    case J_INT:
        if (jstr_equals(name, "real") || jstr_equals(name, "numerator")) *out = jval_int(jval_as_int(obj));
        else if (jstr_equals(name, "imag")) *out = jval_int(0);
        else if (jstr_equals(name, "denominator")) *out = jval_int(1);
        break;
    case J_FLOAT:
        if (jstr_equals(name, "real")) *out = obj;
        else if (jstr_equals(name, "imag")) *out = jval_float(0);
        break;
    default: break;
    }
    if (out->type != J_MISSING) return true;
    if (!jmethod_find(obj, name, out)) return false;
    uint8_t sub = out->sub;
    struct jmethod *m = jalloc(r, sizeof *m);
    *m = (struct jmethod){.self = obj};
    *out = (struct jval){.type = J_METHOD, .sub = sub, .me = m};
    return true;
}

static bool is_hashable(struct jrun *r, struct jval v) {
    if (v.type == J_TUPLE) {
        jcount_steps(r, v.l->n); /* tuples within may be the same one many times */
        for (size_t i = 0; i < v.l->n; i++)
            if (!is_hashable(r, v.l->v[i])) return false;
        return true;
    }
    return v.type != J_LIST && v.type != J_DICT && !(v.type == J_VIEW && v.sub != VIEW_VALUES);
}
/* obj[key] in Python. Returns false for the errors that mean "no such item". */
static bool get_item(struct jrun *r, struct jval obj, struct jval key, struct jval *out) {
    if (obj.type == J_UNDEF) jfail_undef(r, obj.u);
    if (obj.type == J_DICT) {
        struct jval *v = is_hashable(r, key) ? jdict_find(r, obj.d, key) : NULL;
        if (v) *out = *v;
        return v != NULL;
    }
    if (!jval_is_int(key) || (obj.type != J_STR && obj.type != J_LIST && obj.type != J_TUPLE && obj.type != J_RANGE))
        return false;
    int64_t i = jval_as_int(key), n = (int64_t)jval_len(r, obj);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return false;
    *out = obj.type == J_STR     ? jstr_char(r, obj.s, (size_t)i)
           : obj.type == J_RANGE ? jrange_item(obj, (size_t)i)
                                 : obj.l->v[i];
    return true;
}
struct jval jattr_item(struct jrun *r, struct jval obj, struct jval key) {
    struct jval v;
    if (get_item(r, obj, key, &v)) return v;
    if (key.type == J_STR && jattr_find(r, obj, key.s, &v)) return v;
    return jval_undef_name(r, key, &obj);
}
struct jval jattr_get(struct jrun *r, struct jval obj, struct jval name) {
    struct jval v;
    if (obj.type == J_UNDEF) jfail_undef(r, obj.u);
    if (jattr_find(r, obj, name.s, &v) || get_item(r, obj, name, &v)) return v;
    return jval_undef_name(r, name, &obj);
}

struct jval jattr_path(struct jrun *r, struct jval obj, struct jval path, struct jval fallback) {
    if (path.type == J_NONE || path.type == J_MISSING) return obj;
    if (path.type != J_STR) {
        obj = jattr_item(r, obj, path);
        return obj.type == J_UNDEF && fallback.type != J_NONE ? fallback : obj;
    }
    struct jstr *s = path.s;
    for (size_t at = 0; at <= s->n;) {
        const char *dot = memchr(s->s + at, '.', s->n - at);
        size_t end = dot ? (size_t)(dot - s->s) : s->n, i = at;
        int64_t number = 0;
        while (i < end && s->s[i] >= '0' && s->s[i] <= '9' && number < INT64_MAX / 10 - 1)
            number = number * 10 + (s->s[i++] - '0');
        bool is_number = i == end && end > at;
        obj = jattr_item(r, obj, is_number ? jval_int(number) : jstr_sub(r, s, at, end - at));
        if (obj.type == J_UNDEF && fallback.type != J_NONE) obj = fallback;
        at = end + 1;
    }
    return obj;
}

/* ---- obj[start:stop:step] */

static int64_t slice_bound(struct jrun *r, struct jval v, int64_t default_bound, int64_t n, bool backwards) {
    if (v.type == J_NONE) return default_bound;
    int64_t i = jval_index(r, v, "slice indices");
    if (i < 0) i = i < -n ? -1 : i + n; /* -1: before the first */
    if (i < 0) return backwards ? -1 : 0;
    return i >= n ? (backwards ? n - 1 : n) : i;
}
/* Python has integers of any size; here a bound or a step that needs more than 64 bits is an error. A step never wraps:
 * 0 would divide by zero, and another number would name items that the range does not have. */
static struct jrange *slice_range(struct jrun *r, const struct jrange *g, int64_t i, int64_t end, int64_t by) {
    struct jrange *out = jalloc(r, sizeof *out);
    if (__builtin_mul_overflow(g->step, by, &out->step) || __builtin_mul_overflow(i, g->step, &out->start) ||
        __builtin_add_overflow(out->start, g->start, &out->start) || __builtin_mul_overflow(end, g->step, &out->stop) ||
        __builtin_add_overflow(out->stop, g->start, &out->stop))
        jfail(r, "a slice of this range needs integers of more than 64 bits");
    return out;
}
struct jval jattr_slice(struct jrun *r, struct jval obj, struct jval start, struct jval stop, struct jval step) {
    if (obj.type == J_UNDEF) jfail_undef(r, obj.u);
    if (obj.type == J_DICT) jfail(r, "unhashable type: 'slice'");
    if (obj.type != J_STR && obj.type != J_LIST && obj.type != J_TUPLE && obj.type != J_RANGE)
        jfail(r, "'%s' object is not subscriptable", jval_type(obj));
    int64_t by = step.type == J_NONE ? 1 : jval_index(r, step, "slice indices"), n = (int64_t)jval_len(r, obj);
    if (!by) jfail(r, "slice step cannot be zero");
    bool backwards = by < 0;
    int64_t i = slice_bound(r, start, backwards ? n - 1 : 0, n, backwards),
            end = slice_bound(r, stop, backwards ? -1 : n, n, backwards);
    struct jrange g = {.start = i, .stop = end, .step = by};
    size_t count = jrange_len(&g);
    if (obj.type == J_RANGE) {
        obj.r = slice_range(r, obj.r, i, end, by);
        return obj;
    }
    jcount_steps(r, count);
    if (obj.type != J_STR) {
        struct jval v = jval_list(r, obj.type, count);
        v.origin = obj.origin;
        for (size_t k = 0; k < count; k++) v.l->v[k] = obj.l->v[i + (int64_t)k * by];
        return v;
    }
    struct jstr *s = obj.s;
    if (by == 1) {
        if (!count) return jstr_sub(r, s, 0, 0);
        size_t from = jstr_offset(s, (size_t)i), to = from;
        if (s->n_chars == s->n) to = from + count;
        else
            for (size_t k = 0; k < count; k++) {
                to++;
                while (to < s->n && ((unsigned char)s->s[to] & 0xC0) == 0x80) to++;
            }
        return jstr_sub(r, s, from, to - from);
    }
    struct jbuf b = {0};
    uint32_t *at = NULL; /* byte offsets of the characters, unless all are one byte */
    if (jstr_chars(s) != s->n) {
        size_t k = 0;
        at = jalloc(r, (s->n_chars + 1) * sizeof *at);
        for (size_t o = 0; o < s->n; o++)
            if (((unsigned char)s->s[o] & 0xC0) != 0x80) at[k++] = (uint32_t)o;
        at[k] = (uint32_t)s->n;
    }
    for (size_t k = 0; k < count; k++) {
        size_t c = (size_t)(i + (int64_t)k * by), from = at ? at[c] : c, to = at ? at[c + 1] : c + 1;
        jbuf_add(r, &b, s->s + from, to - from, jstr_origin_at(s, from));
    }
    struct jval v = jbuf_finish(r, &b);
    v.s->markup = s->markup;
    return v;
}

#include <string.h>

#include "tokenizer/jinja/jeval.h"
#include "tokenizer/jinja/jstr.h"

/* Iteration. Generators are as lazy as Python's: an item is computed when requested, so side effects occur in the same
 * order and a second loop finds the generator exhausted. */

bool jiter_is_iterable(struct jval v) {
    switch (v.type) {
    case J_UNDEF:
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_VIEW:
    case J_RANGE:
    case J_ITER:
    case J_LOOP: return true;
    default: return false;
    }
}

struct jiter *jiter_new(struct jrun *r, struct jval v) {
    if (v.type == J_ITER) return v.it;
    if (!jiter_is_iterable(v) || v.type == J_LOOP) jfail(r, "'%s' object is not iterable", jval_type(v));
    struct jiter *it = jalloc(r, sizeof *it);
    *it = (struct jiter){.kind = ITER_VALUE, .obj = v};
    return it;
}

static struct jval new_pair(struct jrun *r, struct jval a, struct jval b) {
    struct jval t = jval_list(r, J_TUPLE, 2);
    t.origin = a.type == J_STR ? a.s->origin : a.origin;
    t.l->v[0] = a;
    t.l->v[1] = b;
    return t;
}

static bool next_value(struct jrun *r, struct jiter *it, struct jval *out) {
    size_t i = it->i;
    switch (it->obj.type) {
    case J_STR: { /* i counts bytes */
        struct jstr *s = it->obj.s;
        if (i >= s->n) return false;
        size_t end = i + 1;
        while (end < s->n && ((unsigned char)s->s[end] & 0xC0) == 0x80) end++;
        *out = jstr_sub(r, s, i, end - i);
        out->s->markup = false; /* the characters of a Markup are plain */
        it->i = end;
        return true;
    }
    case J_LIST:
    case J_TUPLE:
        if (i >= it->obj.l->n) return false;
        *out = it->obj.l->v[it->i++];
        return true;
    case J_DICT:
    case J_VIEW: {
        struct jdict *d = it->obj.d;
        if (i >= d->n) return false;
        it->i++;
        uint8_t what = it->obj.type == J_DICT ? VIEW_KEYS : it->obj.sub;
        *out = what == VIEW_KEYS     ? d->kv[2 * i]
               : what == VIEW_VALUES ? d->kv[2 * i + 1]
                                     : new_pair(r, d->kv[2 * i], d->kv[2 * i + 1]);
        return true;
    }
    case J_RANGE:
        if (i >= jrange_len(it->obj.r)) return false;
        *out = jrange_item(it->obj, it->i++);
        return true;
    default: return false; /* undefined or none: empty */
    }
}

static bool next_reverse(struct jrun *r, struct jiter *it, struct jval *out) {
    struct jval v = it->obj;
    size_t n = v.type == J_STR ? 0 : jval_len(r, v);
    if (it->i >= n) return false;
    size_t i = n - 1 - it->i++;
    switch (v.type) {
    case J_LIST:
    case J_TUPLE: *out = v.l->v[i]; return true;
    case J_RANGE: *out = jrange_item(v, i); return true;
    default: {
        uint8_t what = v.type == J_DICT ? VIEW_KEYS : v.sub;
        struct jval *kv = &v.d->kv[2 * i];
        *out = what == VIEW_KEYS ? kv[0] : what == VIEW_VALUES ? kv[1] : new_pair(r, kv[0], kv[1]);
        return true;
    }
    }
}

static bool next_batch(struct jrun *r, struct jiter *it, struct jval *out) {
    if (it->exhausted) return false;
    struct jval v, *items = jalloc(r, 16 * sizeof v);
    size_t n = 0, cap = 16;
    while (n < it->n && jiter_next(r, it->source, &v)) {
        if (n == cap) {
            struct jval *more = jalloc(r, 2 * cap * sizeof v);
            memcpy(more, items, n * sizeof v);
            items = more;
            cap *= 2;
        }
        items[n++] = v;
    }
    if (!n) return it->exhausted = true, false;
    bool fill = n < it->n && it->fill.type != J_NONE;
    *out = jval_list(r, J_LIST, fill ? it->n : n);
    memcpy(out->l->v, items, n * sizeof v);
    while (fill && n < it->n) out->l->v[n++] = it->fill;
    return true;
}

static bool next_select(struct jrun *r, struct jiter *it, struct jval *out) {
    while (jiter_next(r, it->source, out)) {
        struct jval v = it->by_attr ? jattr_path(r, *out, it->attr, jval_none()) : *out;
        bool yes = it->by_test ? jcall_test(r, it->fn, v, &it->args) : jval_is_true(r, v);
        if (yes != it->negate) return true;
    }
    return false;
}
static bool next_unique(struct jrun *r, struct jiter *it, struct jval *out) {
    while (jiter_next(r, it->source, out)) {
        struct jval key = jattr_path(r, *out, it->attr, jval_none());
        if (it->fold_case && key.type == J_STR) key = junicode_map(r, key.s, CASE_LOWER);
        if (jdict_find(r, it->seen, key)) continue;
        jdict_set(r, it->seen, key, jval_none());
        return true;
    }
    return false;
}

bool jiter_next(struct jrun *r, struct jiter *it, struct jval *out) {
    jcount_steps(r, 1);
    if (it->exhausted) return false;
    bool more;
    jenter_depth(r);
    if (it->start) {
        void (*start)(struct jrun *, struct jiter *) = it->start;
        it->start = NULL;
        start(r, it);
    }
    switch (it->exhausted ? ITER_VALUE : it->kind) {
    case ITER_VALUE: more = next_value(r, it, out); break;
    case ITER_REVERSE: more = next_reverse(r, it, out); break;
    case ITER_MAP_ATTR:
        more = jiter_next(r, it->source, out);
        if (more) *out = jattr_path(r, *out, it->attr, it->fill);
        break;
    case ITER_MAP:
        more = jiter_next(r, it->source, out);
        if (more) *out = jcall_filter(r, it->fn, *out, &it->args);
        break;
    case ITER_SELECT: more = next_select(r, it, out); break;
    case ITER_UNIQUE: more = next_unique(r, it, out); break;
    case ITER_BATCH: more = next_batch(r, it, out); break;
    default: more = jexec_loop_filter(r, it, out);
    }
    r->depth--;
    if (!more) it->exhausted = true;
    return more;
}

struct jlist *jiter_to_list(struct jrun *r, struct jval v) {
    if (v.type == J_LIST || v.type == J_TUPLE) return v.l;
    struct jiter *it = jiter_new(r, v);
    size_t n = 0, cap = 8;
    struct jlist *l = jalloc(r, sizeof *l);
    struct jval item, *items = jalloc(r, cap * sizeof *items);
    while (jiter_next(r, it, &item)) {
        if (n == cap) {
            struct jval *more = jalloc(r, 2 * cap * sizeof *more);
            memcpy(more, items, n * sizeof *more);
            items = more;
            cap *= 2;
        }
        items[n++] = item;
    }
    *l = (struct jlist){.n = n, .v = items};
    return l;
}

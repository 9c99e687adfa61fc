#include <string.h>

#include "tokenizer/jinja/jeval.h"

/* Filters on sequences. Those that are generators in Jinja2 are generators here, too. */

static struct jval none_if_missing(struct jval v) { return v.type == J_MISSING ? jval_none() : v; }
static void start_plain(struct jrun *r, struct jiter *it) { it->source = jiter_new(r, it->obj); }
static struct jiter *new_generator(struct jrun *r, uint8_t kind, struct jval over) {
    struct jiter *it = jalloc(r, sizeof *it);
    *it = (struct jiter){.kind = kind, .obj = over, .attr = jval_none(), .fill = jval_none(), .start = start_plain};
    return it;
}
static struct jval generator_value(struct jiter *it) { return (struct jval){.type = J_ITER, .it = it}; }
static struct jval fold_case(struct jrun *r, struct jval v) {
    return v.type == J_STR ? junicode_map(r, v.s, CASE_LOWER) : v;
}

static struct jval f_list(struct jrun *r, struct jval v, struct jval *a) {
    uint8_t from = v.type == J_STR ? v.s->origin : v.type == J_ITER ? TEXT_TEMPLATE : v.origin;
    return (struct jval){.type = J_LIST, .origin = from, .l = jiter_to_list(r, v)};
}
static struct jval f_first(struct jrun *r, struct jval v, struct jval *a) {
    struct jval out;
    return jiter_next(r, jiter_new(r, v), &out) ? out : jval_undef(r, "No first item, sequence was empty.");
}
static bool is_reversible(struct jval v) {
    return v.type == J_STR || v.type == J_LIST || v.type == J_TUPLE || v.type == J_RANGE || v.type == J_DICT ||
           v.type == J_VIEW || v.type == J_UNDEF;
}
static struct jval f_last(struct jrun *r, struct jval v, struct jval *a) {
    if (!is_reversible(v)) jfail(r, "'%s' object is not reversible", jval_type(v));
    size_t n = jval_len(r, v);
    if (!n) return jval_undef(r, "No last item, sequence was empty.");
    if (v.type == J_STR) return jstr_char(r, v.s, n - 1);
    struct jiter *it = new_generator(r, ITER_REVERSE, v);
    struct jval out = jval_none();
    it->start = NULL;
    jiter_next(r, it, &out);
    return out;
}
static struct jval f_reverse(struct jrun *r, struct jval v, struct jval *a) {
    if (v.type == J_STR) return jattr_slice(r, v, jval_none(), jval_none(), jval_int(-1));
    if (is_reversible(v)) {
        struct jiter *it = new_generator(r, ITER_REVERSE, v);
        it->start = NULL;
        return generator_value(it);
    }
    if (!jiter_is_iterable(v)) jfail(r, "argument must be iterable");
    struct jlist *l = jiter_to_list(r, v);
    struct jval out = jval_list(r, J_LIST, l->n);
    for (size_t i = 0; i < l->n; i++) out.l->v[i] = l->v[l->n - 1 - i];
    return out;
}
static struct jval f_join(struct jrun *r, struct jval v, struct jval *a) {
    struct jstr *sep = a[0].type == J_MISSING ? jstr_literal(r, "").s : jrepr_to_str(r, a[0]);
    if (a[1].type != J_MISSING && a[1].type != J_NONE) {
        if (!jiter_is_iterable(v)) jfail(r, "'%s' object is not iterable", jval_type(v));
        struct jiter *it = new_generator(r, ITER_MAP_ATTR, v);
        it->attr = a[1];
        v = generator_value(it);
    }
    return jtext_join(r, sep, v, true);
}
static void start_items(struct jrun *r, struct jiter *it) {
    if (it->obj.type != J_DICT && it->obj.type != J_UNDEF) jfail(r, "Can only get item pairs from a mapping.");
    if (it->obj.type == J_DICT) it->obj.type = J_VIEW, it->obj.sub = VIEW_ITEMS;
}
static struct jval f_items(struct jrun *r, struct jval v, struct jval *a) {
    struct jiter *it = new_generator(r, ITER_VALUE, v);
    it->start = start_items;
    return generator_value(it);
}

/* ---- order */

/* Sort keys: the item, or its attributes "a,b". Strings are lowered unless case_sensitive. */
static struct jval sort_key(struct jrun *r, struct jval item, struct jval attr, bool case_sensitive) {
    size_t n = 1, at = 0;
    for (size_t i = 0; attr.type == J_STR && i < attr.s->n; i++) n += attr.s->s[i] == ',';
    /* compared as lists: equal items first, so that undefined ones may meet */
    struct jval list = jval_list(r, J_LIST, n);
    for (size_t i = 0; i < n; i++) {
        struct jval part = attr;
        if (n > 1) {
            const char *comma = memchr(attr.s->s + at, ',', attr.s->n - at);
            size_t end = comma ? (size_t)(comma - attr.s->s) : attr.s->n;
            part = jstr_sub(r, attr.s, at, end - at);
            at = end + 1;
        }
        struct jval k = jattr_path(r, item, part, jval_none());
        list.l->v[i] = case_sensitive ? k : fold_case(r, k);
    }
    return list;
}
static struct jval f_sort(struct jrun *r, struct jval v, struct jval *a) {
    struct jlist *l = jiter_to_list(r, v);
    struct jval out = jval_list(r, J_LIST, l->n), keys = jval_list(r, J_LIST, l->n);
    for (size_t i = 0; i < l->n; i++) {
        out.l->v[i] = l->v[i];
        keys.l->v[i] = sort_key(r, l->v[i], none_if_missing(a[2]), jval_is_true(r, a[1]));
    }
    jeval_sort(r, out.l, keys.l, jval_is_true(r, a[0]));
    return out;
}
static struct jval f_dictsort(struct jrun *r, struct jval v, struct jval *a) {
    size_t by = 0;
    if (a[1].type != J_MISSING) {
        if (a[1].type == J_STR && jstr_equals(a[1].s, "value")) by = 1;
        else if (a[1].type != J_STR || !jstr_equals(a[1].s, "key"))
            jfail(r, "You can only sort by either \"key\" or \"value\"");
    }
    if (v.type == J_UNDEF) jfail_undef(r, v.u);
    if (v.type != J_DICT) jfail(r, "'%s' object has no attribute 'items'", jval_type(v));
    v.type = J_VIEW;
    v.sub = VIEW_ITEMS;
    struct jlist *l = jiter_to_list(r, v);
    struct jval out = jval_list(r, J_LIST, l->n), keys = jval_list(r, J_LIST, l->n);
    for (size_t i = 0; i < l->n; i++) {
        out.l->v[i] = l->v[i];
        keys.l->v[i] = jval_is_true(r, a[0]) ? l->v[i].l->v[by] : fold_case(r, l->v[i].l->v[by]);
    }
    jeval_sort(r, out.l, keys.l, jval_is_true(r, a[2]));
    return out;
}
static struct jval find_extreme(struct jrun *r, struct jval v, struct jval *a, bool max) {
    struct jiter *it = jiter_new(r, v);
    struct jval best, item, attr = none_if_missing(a[1]);
    bool case_sensitive = jval_is_true(r, a[0]);
    if (!jiter_next(r, it, &best)) return jval_undef(r, "No aggregated item, sequence was empty.");
    struct jval best_key = jattr_path(r, best, attr, jval_none());
    if (!case_sensitive) best_key = fold_case(r, best_key);
    while (jiter_next(r, it, &item)) {
        struct jval key = jattr_path(r, item, attr, jval_none());
        if (!case_sensitive) key = fold_case(r, key);
        int c = jval_cmp(r, key, best_key, max ? ">" : "<");
        if (c == (max ? 1 : -1)) best = item, best_key = key;
    }
    return best;
}
static struct jval f_min(struct jrun *r, struct jval v, struct jval *a) { return find_extreme(r, v, a, false); }
static struct jval f_max(struct jrun *r, struct jval v, struct jval *a) { return find_extreme(r, v, a, true); }
static struct jval f_unique(struct jrun *r, struct jval v, struct jval *a) {
    struct jiter *it = new_generator(r, ITER_UNIQUE, v);
    it->fold_case = !jval_is_true(r, a[0]);
    it->attr = none_if_missing(a[1]);
    it->seen = jdict_new(r).d;
    return generator_value(it);
}
static struct jval f_groupby(struct jrun *r, struct jval v, struct jval *a) { /* attribute, default, case_sensitive */
    bool case_sensitive = jval_is_true(r, a[2]);
    struct jval default_value = none_if_missing(a[1]);
    struct jlist *l = jiter_to_list(r, v);
    struct jval items = jval_list(r, J_LIST, l->n), keys = jval_list(r, J_LIST, l->n), out = jval_list(r, J_LIST, l->n);
    for (size_t i = 0; i < l->n; i++) {
        struct jval k = jattr_path(r, l->v[i], a[0], default_value);
        items.l->v[i] = l->v[i];
        keys.l->v[i] = case_sensitive ? k : fold_case(r, k);
    }
    jeval_sort(r, items.l, keys.l, false);
    size_t n = 0;
    for (size_t i = 0, j; i < l->n; i = j) {
        for (j = i + 1; j < l->n && jval_eq(r, keys.l->v[i], keys.l->v[j]); j++) {
        }
        struct jval pair = jval_list(r, J_TUPLE, 2), group = jval_list(r, J_LIST, j - i);
        memcpy(group.l->v, items.l->v + i, (j - i) * sizeof *group.l->v);
        pair.l->is_group = true;
        pair.l->v[0] = case_sensitive ? keys.l->v[i] : jattr_path(r, items.l->v[i], a[0], default_value);
        pair.l->v[1] = group;
        out.l->v[n++] = pair;
    }
    out.l->n = n;
    return out;
}

/* ---- batches and sums */

static struct jval f_batch(struct jrun *r, struct jval v, struct jval *a) {
    int64_t n = jval_index(r, a[0], "linecount");
    if (n < 1) jfail(r, "a batch of %lld items is not possible", (long long)n);
    if (n > JINJA_MAX_ITEMS && a[1].type != J_MISSING) jfail(r, "a batch of %lld items is not possible", (long long)n);
    struct jiter *it = new_generator(r, ITER_BATCH, v);
    it->n = (size_t)n;
    it->fill = none_if_missing(a[1]);
    return generator_value(it);
}
static struct jval f_sum(struct jrun *r, struct jval v, struct jval *a) {
    struct jval total = a[1].type == J_MISSING ? jval_int(0) : a[1], item;
    struct jiter *it = jiter_new(r, v);
    if (total.type == J_STR) jfail(r, "sum() can't sum strings [use ''.join(seq) instead]");
    while (jiter_next(r, it, &item))
        total = jop_math(r, T_ADD, total, jattr_path(r, item, none_if_missing(a[0]), jval_none()));
    return total;
}

/* ---- map, select */

static struct jargs without_first(const struct jargs *args, size_t n) {
    struct jargs a = *args;
    a.v += n;
    a.n -= n;
    return a;
}
/* falsy values are not iterated; returns whether it is one */
static bool exhaust_if_falsy(struct jrun *r, struct jiter *it) {
    if (jval_is_true(r, it->obj)) return false;
    it->exhausted = true;
    it->obj = jval_none();
    return true;
}
static void start_map(struct jrun *r, struct jiter *it) {
    const struct jargs args = it->args;
    if (exhaust_if_falsy(r, it)) return;
    if (!args.n && args.n_keywords) {
        bool any = false;
        it->kind = ITER_MAP_ATTR;
        for (size_t i = 0; i < args.n_keywords; i++) {
            if (jstr_equals(args.keywords[2 * i].s, "attribute")) it->attr = args.keywords[2 * i + 1], any = true;
            else if (jstr_equals(args.keywords[2 * i].s, "default")) it->fill = args.keywords[2 * i + 1];
            else jfail(r, "Unexpected keyword argument '%s'", jstr_for_error(r, args.keywords[2 * i].s));
        }
        if (!any) jfail(r, "map requires a filter argument");
    } else {
        if (!args.n) jfail(r, "map requires a filter argument");
        it->fn = args.v[0].type == J_STR ? jfilter_find(args.v[0].s) : NULL;
        if (!it->fn) jfail(r, "no filter named '%s'", jstr_for_error(r, jrepr_to_str(r, args.v[0])));
        it->args = without_first(&args, 1);
    }
    start_plain(r, it);
}
static struct jval f_map(struct jrun *r, struct jval v, const struct jargs *args) {
    struct jiter *it = new_generator(r, ITER_MAP, v);
    it->args = *args;
    it->start = start_map;
    return generator_value(it);
}
static void start_select(struct jrun *r, struct jiter *it) {
    const struct jargs args = it->args;
    size_t used = it->by_attr;
    if (exhaust_if_falsy(r, it)) return;
    if (used && !args.n) jfail(r, "Missing parameter for attribute name");
    if (used) it->attr = args.v[0];
    if (args.n > used) {
        struct jval name = args.v[used];
        it->fn = name.type == J_STR ? jtest_find(name.s) : NULL;
        if (!it->fn) jfail(r, "no test named '%s'", jstr_for_error(r, jrepr_to_str(r, name)));
        it->by_test = true;
        it->args = without_first(&args, used + 1);
    }
    start_plain(r, it);
}
static struct jval new_select(struct jrun *r, struct jval v, const struct jargs *args, bool by_attr, bool negate) {
    struct jiter *it = new_generator(r, ITER_SELECT, v);
    it->args = *args;
    it->by_attr = by_attr;
    it->negate = negate;
    it->start = start_select;
    return generator_value(it);
}
static struct jval f_select(struct jrun *r, struct jval v, const struct jargs *args) {
    return new_select(r, v, args, false, false);
}
static struct jval f_reject(struct jrun *r, struct jval v, const struct jargs *args) {
    return new_select(r, v, args, false, true);
}
static struct jval f_selectattr(struct jrun *r, struct jval v, const struct jargs *args) {
    return new_select(r, v, args, true, false);
}
static struct jval f_rejectattr(struct jrun *r, struct jval v, const struct jargs *args) {
    return new_select(r, v, args, true, true);
}

const struct jfilter jfilter_seq[] = {
    {"batch", f_batch, NULL, "linecount,fill_with", 1},
    {"dictsort", f_dictsort, NULL, "case_sensitive,by,reverse", 0},
    {"first", f_first, NULL, "", 0},
    {"groupby", f_groupby, NULL, "attribute,default,case_sensitive", 1},
    {"items", f_items, NULL, "", 0},
    {"join", f_join, NULL, "d,attribute", 0},
    {"last", f_last, NULL, "", 0},
    {"list", f_list, NULL, "", 0},
    {"map", NULL, f_map, NULL, 0},
    {"max", f_max, NULL, "case_sensitive,attribute", 0},
    {"min", f_min, NULL, "case_sensitive,attribute", 0},
    {"reject", NULL, f_reject, NULL, 0},
    {"rejectattr", NULL, f_rejectattr, NULL, 0},
    {"reverse", f_reverse, NULL, "", 0},
    {"select", NULL, f_select, NULL, 0},
    {"selectattr", NULL, f_selectattr, NULL, 0},
    {"sort", f_sort, NULL, "reverse,case_sensitive,attribute", 0},
    {"sum", f_sum, NULL, "attribute,start", 0},
    {"unique", f_unique, NULL, "case_sensitive,attribute", 0},
    {0},
};

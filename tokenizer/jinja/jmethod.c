#include <string.h>

#include "tokenizer/jinja/jeval.h"

/* Methods of str, list, tuple, dict and the loop variable that modify nothing. */

struct value_method {
    uint8_t type; /* of self */
    const char *name, *params;
    int n_required;
    struct jval (*fn)(struct jrun *r, struct jval self, struct jval *a);
    struct jval (*fn_args)(struct jrun *r, struct jval self, const struct jargs *args); /* takes unbound arguments */
};

static struct jstr *str_arg(struct jrun *r, struct jval v) {
    if (v.type != J_STR) jfail(r, "the argument must be str, not %s", jval_type(v));
    return v.s;
}

/* ---- str: searching. start and stop count characters, as in a slice. */
static void char_window(struct jrun *r, struct jstr *s, struct jval start, struct jval stop, size_t *from, size_t *to,
                        int64_t *first) {
    int64_t n = (int64_t)jstr_chars(s), i = jtext_int(r, start, 0), j = jtext_int(r, stop, n);
    if (i < 0) i = i + n < 0 ? 0 : i + n;
    if (j < 0) j = j + n < 0 ? 0 : j + n;
    if (j > n) j = n;
    *first = i;
    *from = jstr_offset(s, (size_t)(i > n ? n : i));
    *to = jstr_offset(s, (size_t)j);
    jcount_steps(r, s->n >> 6);
}
static int64_t find_in_window(struct jrun *r, struct jval self, struct jval *a, bool last) {
    struct jstr *s = self.s, *what = str_arg(r, a[0]);
    size_t from, to;
    int64_t first, n = (int64_t)jstr_chars(s);
    char_window(r, s, a[1], a[2], &from, &to, &first);
    if (first > n || from > to || what->n > to - from) return -1;
    const char *hit = NULL;
    if (!last) {
        struct jstr part = {.s = s->s, .n = to};
        hit = jstr_find(&part, from, what);
    } else
        for (size_t i = to - what->n + 1; i-- > from && !hit;)
            if (((unsigned char)(i < s->n ? s->s[i] : 0) & 0xC0) != 0x80 && !memcmp(s->s + i, what->s, what->n))
                hit = s->s + i;
    if (!hit) return -1;
    struct jstr before = {.s = s->s, .n = (size_t)(hit - s->s), .n_chars = SIZE_MAX};
    return (int64_t)jstr_chars(&before);
}
static struct jval s_find(struct jrun *r, struct jval self, struct jval *a) {
    return jval_int(find_in_window(r, self, a, false));
}
static struct jval s_rfind(struct jrun *r, struct jval self, struct jval *a) {
    return jval_int(find_in_window(r, self, a, true));
}
static struct jval require_found(struct jrun *r, int64_t i) {
    if (i < 0) jfail(r, "substring not found");
    return jval_int(i);
}
static struct jval s_index(struct jrun *r, struct jval self, struct jval *a) {
    return require_found(r, find_in_window(r, self, a, false));
}
static struct jval s_count(struct jrun *r, struct jval self, struct jval *a) {
    struct jstr *s = self.s, *what = str_arg(r, a[0]);
    size_t from, to;
    int64_t first, n = 0;
    char_window(r, s, a[1], a[2], &from, &to, &first);
    if (first > (int64_t)jstr_chars(s) || from > to) return jval_int(0);
    struct jstr part = {.s = s->s + from, .n = to - from, .n_chars = SIZE_MAX};
    if (!what->n) return jval_int((int64_t)jstr_chars(&part) + 1);
    for (size_t at = 0; at <= part.n;) {
        const char *hit = jstr_find(&part, at, what);
        if (!hit) break;
        n++;
        at = (size_t)(hit - part.s) + what->n;
    }
    jcount_steps(r, (size_t)n);
    return jval_int(n);
}
static struct jval has_affix(struct jrun *r, struct jval self, struct jval *a, bool at_end) {
    size_t from, to;
    int64_t first;
    struct jstr *s = self.s;
    struct jlist one = {.n = 1, .v = &a[0]}, *affixes = a[0].type == J_TUPLE ? a[0].l : &one;
    char_window(r, s, a[1], a[2], &from, &to, &first);
    for (size_t i = 0; i < affixes->n; i++) {
        if (affixes->v[i].type != J_STR)
            jfail(r, "%s first arg must be str or a tuple of str, not %s", at_end ? "endswith" : "startswith",
                  jval_type(affixes->v[i]));
        struct jstr *w = affixes->v[i].s;
        if (first > (int64_t)jstr_chars(s) || from > to || w->n > to - from) continue;
        if (!w->n || !memcmp(at_end ? s->s + to - w->n : s->s + from, w->s, w->n)) return jval_bool(true);
    }
    return jval_bool(false);
}
static struct jval s_startswith(struct jrun *r, struct jval self, struct jval *a) {
    return has_affix(r, self, a, false);
}
static struct jval s_endswith(struct jrun *r, struct jval self, struct jval *a) { return has_affix(r, self, a, true); }

/* ---- str: splitting */
static struct jval s_strip(struct jrun *r, struct jval self, struct jval *a) {
    return jtext_strip(r, self.s, a[0], true, true);
}
static struct jval s_lstrip(struct jrun *r, struct jval self, struct jval *a) {
    return jtext_strip(r, self.s, a[0], true, false);
}
static struct jval s_rstrip(struct jrun *r, struct jval self, struct jval *a) {
    return jtext_strip(r, self.s, a[0], false, true);
}

struct pieces {
    struct jval *v;
    size_t n, cap;
};
static void add_item(struct jrun *r, struct pieces *p, struct jval v) {
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 8;
        struct jval *more = jalloc(r, cap * sizeof v);
        if (p->n) memcpy(more, p->v, p->n * sizeof v);
        p->v = more;
        p->cap = cap;
    }
    p->v[p->n++] = v;
    jcount_steps(r, 1);
}
static struct jval list_of(struct jrun *r, struct pieces *p, bool reversed) {
    struct jval v = jval_list(r, J_LIST, p->n);
    for (size_t i = 0; i < p->n; i++) v.l->v[i] = p->v[reversed ? p->n - 1 - i : i];
    return v;
}
static size_t char_before(const struct jstr *s, size_t i) {
    do i--;
    while (i > 0 && ((unsigned char)s->s[i] & 0xC0) == 0x80);
    return i;
}
static struct jval split_space(struct jrun *r, struct jstr *s, int64_t max) {
    struct pieces p = {0};
    size_t i = 0, k;
    for (;;) {
        while (i < s->n && unicode_is_python_space(junicode_decode(s->s + i, s->n - i, &k))) i += k;
        if (i >= s->n) break;
        if (max-- == 0) {
            add_item(r, &p, jstr_sub(r, s, i, s->n - i)); /* Python keeps the white space at the other end */
            break;
        }
        size_t from = i;
        while (i < s->n && !unicode_is_python_space(junicode_decode(s->s + i, s->n - i, &k))) i += k;
        add_item(r, &p, jstr_sub(r, s, from, i - from));
    }
    return list_of(r, &p, false);
}
static struct jval rsplit_space(struct jrun *r, struct jstr *s, int64_t max) {
    struct pieces p = {0};
    size_t i = s->n, k;
    for (;;) {
        while (i > 0 && unicode_is_python_space(junicode_decode(s->s + char_before(s, i), i - char_before(s, i), &k)))
            i = char_before(s, i);
        if (!i) break;
        if (max-- == 0) {
            add_item(r, &p, jstr_sub(r, s, 0, i));
            break;
        }
        size_t to = i;
        while (i > 0 && !unicode_is_python_space(junicode_decode(s->s + char_before(s, i), i - char_before(s, i), &k)))
            i = char_before(s, i);
        add_item(r, &p, jstr_sub(r, s, i, to - i));
    }
    return list_of(r, &p, true);
}
static int64_t max_splits(struct jrun *r, struct jval v) { /* negative: any number */
    int64_t max = jtext_int(r, v, -1);
    return max < 0 ? INT64_MAX : max;
}
static struct jval s_split(struct jrun *r, struct jval self, struct jval *a) {
    struct jstr *s = self.s;
    int64_t max = max_splits(r, a[1]);
    struct pieces p = {0};
    size_t at = 0;
    jcount_steps(r, s->n >> 4);
    if (a[0].type == J_MISSING || a[0].type == J_NONE) return split_space(r, s, max);
    struct jstr *sep = str_arg(r, a[0]);
    if (!sep->n) jfail(r, "empty separator");
    for (const char *hit; max-- != 0 && (hit = jstr_find(s, at, sep)); at = (size_t)(hit - s->s) + sep->n)
        add_item(r, &p, jstr_sub(r, s, at, (size_t)(hit - s->s) - at));
    add_item(r, &p, jstr_sub(r, s, at, s->n - at));
    return list_of(r, &p, false);
}
static const char *find_last(const struct jstr *s, size_t end, const struct jstr *what) {
    if (what->n > end) return NULL;
    for (size_t i = end - what->n + 1; i-- > 0;)
        if (!memcmp(s->s + i, what->s, what->n)) return s->s + i;
    return NULL;
}
static struct jval s_rsplit(struct jrun *r, struct jval self, struct jval *a) {
    struct jstr *s = self.s;
    int64_t max = max_splits(r, a[1]);
    struct pieces p = {0};
    size_t end = s->n;
    jcount_steps(r, s->n >> 4);
    if (a[0].type == J_MISSING || a[0].type == J_NONE) return rsplit_space(r, s, max);
    struct jstr *sep = str_arg(r, a[0]);
    if (!sep->n) jfail(r, "empty separator");
    for (const char *hit; max-- != 0 && (hit = find_last(s, end, sep)); end = (size_t)(hit - s->s)) {
        size_t from = (size_t)(hit - s->s) + sep->n;
        add_item(r, &p, jstr_sub(r, s, from, end - from));
    }
    add_item(r, &p, jstr_sub(r, s, 0, end));
    return list_of(r, &p, true);
}
static struct jval partition_result(struct jrun *r, struct jstr *s, size_t at, size_t n) {
    struct jval t = jval_list(r, J_TUPLE, 3);
    t.l->v[0] = jstr_sub(r, s, 0, at);
    t.l->v[1] = jstr_sub(r, s, at, n);
    t.l->v[2] = jstr_sub(r, s, at + n, s->n - at - n);
    return t;
}
static struct jval s_partition(struct jrun *r, struct jval self, struct jval *a) {
    struct jstr *sep = str_arg(r, a[0]);
    if (!sep->n) jfail(r, "empty separator");
    const char *hit = jstr_find(self.s, 0, sep);
    return partition_result(r, self.s, hit ? (size_t)(hit - self.s->s) : self.s->n, hit ? sep->n : 0);
}
static struct jval s_rpartition(struct jrun *r, struct jval self, struct jval *a) {
    struct jstr *sep = str_arg(r, a[0]);
    if (!sep->n) jfail(r, "empty separator");
    const char *hit = find_last(self.s, self.s->n, sep);
    return partition_result(r, self.s, hit ? (size_t)(hit - self.s->s) : 0, hit ? sep->n : 0);
}
static struct jval s_splitlines(struct jrun *r, struct jval self, struct jval *a) {
    return (struct jval){
        .type = J_LIST, .origin = TEXT_TEMPLATE, .l = jtext_splitlines(r, self.s, jval_is_true(r, a[0]))};
}
static struct jval s_removeprefix(struct jrun *r, struct jval self, struct jval *a) {
    struct jstr *s = self.s, *w = str_arg(r, a[0]);
    bool has_prefix = w->n <= s->n && !memcmp(s->s, w->s, w->n);
    return has_prefix ? jstr_sub(r, s, w->n, s->n - w->n) : self;
}
static struct jval s_removesuffix(struct jrun *r, struct jval self, struct jval *a) {
    struct jstr *s = self.s, *w = str_arg(r, a[0]);
    bool has_suffix = w->n <= s->n && !memcmp(s->s + s->n - w->n, w->s, w->n);
    return has_suffix ? jstr_sub(r, s, 0, s->n - w->n) : self;
}

/* ---- str: transforming */
static struct jval s_upper(struct jrun *r, struct jval self, struct jval *a) {
    return junicode_map(r, self.s, CASE_UPPER);
}
static struct jval s_lower(struct jrun *r, struct jval self, struct jval *a) {
    return junicode_map(r, self.s, CASE_LOWER);
}
static struct jval s_capitalize(struct jrun *r, struct jval self, struct jval *a) {
    return junicode_capitalize(r, self.s);
}
static struct jval s_title(struct jrun *r, struct jval self, struct jval *a) {
    struct jstr *s = self.s;
    struct jbuf b = {0};
    bool inside = false;
    for (size_t i = 0, k; i < s->n; i += k) {
        uint32_t c = junicode_decode(s->s + i, s->n - i, &k);
        bool up = junicode_is_upper(c), low = junicode_is_lower(c);
        enum jcase to = inside ? CASE_LOWER : CASE_TITLE;
        inside = up || low || junicode_is_title(c);
        junicode_add_cased(r, &b, s, i, c, k, to);
    }
    struct jval v = jbuf_finish(r, &b);
    v.s->markup = s->markup;
    return v;
}
static struct jval s_replace(struct jrun *r, struct jval self, struct jval *a) {
    struct jstr *old = str_arg(r, a[0]), *replacement = str_arg(r, a[1]);
    if (self.s->markup && !replacement->markup) replacement = jrepr_escape(r, replacement).s;
    if (self.s->markup && !old->markup) old = jrepr_escape(r, old).s;
    return jtext_replace(r, self.s, old, replacement, a[2].type == J_MISSING ? -1 : jval_index(r, a[2], "count"));
}
static struct jval s_join(struct jrun *r, struct jval self, struct jval *a) {
    return jtext_join(r, self.s, a[0], false);
}
static struct jstr *fill_arg(struct jrun *r, struct jval v) { return v.type == J_MISSING ? NULL : str_arg(r, v); }
static struct jval s_ljust(struct jrun *r, struct jval self, struct jval *a) {
    return jtext_pad(r, self.s, jval_index(r, a[0], "width"), fill_arg(r, a[1]), 1);
}
static struct jval s_rjust(struct jrun *r, struct jval self, struct jval *a) {
    return jtext_pad(r, self.s, jval_index(r, a[0], "width"), fill_arg(r, a[1]), -1);
}
static struct jval s_format(struct jrun *r, struct jval self, const struct jargs *args) {
    return jformat_braces(r, self.s, args);
}

/* ---- str: predicates */
static bool is_ascii(uint32_t c) { return c < 0x80; }
static bool is_alnum(uint32_t c) { return junicode_is_word(c) && c != '_'; }
static bool is_digit(uint32_t c) {
    return junicode_is_digit(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
           (c >= 0x2080 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468);
}
static struct jval all_chars(struct jval self, bool (*is)(uint32_t), bool empty) {
    struct jstr *s = self.s;
    for (size_t i = 0, k; i < s->n; i += k)
        if (!is(junicode_decode(s->s + i, s->n - i, &k))) return jval_bool(false);
    return jval_bool(s->n || empty);
}
static struct jval s_isalpha(struct jrun *r, struct jval self, struct jval *a) {
    return all_chars(self, junicode_is_alpha, false);
}
static struct jval s_isalnum(struct jrun *r, struct jval self, struct jval *a) {
    return all_chars(self, is_alnum, false);
}
static struct jval s_isascii(struct jrun *r, struct jval self, struct jval *a) {
    return all_chars(self, is_ascii, true);
}
static struct jval s_isdigit(struct jrun *r, struct jval self, struct jval *a) {
    return all_chars(self, is_digit, false);
}
static struct jval s_isspace(struct jrun *r, struct jval self, struct jval *a) {
    return all_chars(self, unicode_is_python_space, false);
}
static struct jval s_isupper(struct jrun *r, struct jval self, struct jval *a) {
    return jval_bool(junicode_is_cased(self.s, true));
}
static struct jval s_islower(struct jrun *r, struct jval self, struct jval *a) {
    return jval_bool(junicode_is_cased(self.s, false));
}

/* ---- list, tuple, range */
static struct jval l_count(struct jrun *r, struct jval self, struct jval *a) {
    int64_t n = 0;
    struct jval v;
    struct jiter *it = jiter_new(r, self);
    while (jiter_next(r, it, &v)) n += jval_eq(r, v, a[0]);
    return jval_int(n);
}
static struct jval l_index(struct jrun *r, struct jval self, struct jval *a) {
    int64_t n = (int64_t)jval_len(r, self), i = jtext_int(r, a[1], 0), end = jtext_int(r, a[2], n);
    if (i < 0) i = i + n < 0 ? 0 : i + n;
    if (end < 0) end += n;
    for (; i < n && i < end; i++) {
        jcount_steps(r, 1);
        if (jval_eq(r, self.type == J_RANGE ? jrange_item(self, (size_t)i) : self.l->v[i], a[0])) return jval_int(i);
    }
    jfail(r, "the value is not in the %s", jval_type(self));
}
static struct jval l_copy(struct jrun *r, struct jval self, struct jval *a) { return self; }

/* ---- dict */
static struct jval dict_view(struct jval self, uint8_t what) {
    self.type = J_VIEW;
    self.sub = what;
    return self;
}
static struct jval d_keys(struct jrun *r, struct jval self, struct jval *a) { return dict_view(self, VIEW_KEYS); }
static struct jval d_values(struct jrun *r, struct jval self, struct jval *a) { return dict_view(self, VIEW_VALUES); }
static struct jval d_items(struct jrun *r, struct jval self, struct jval *a) { return dict_view(self, VIEW_ITEMS); }
static struct jval d_get(struct jrun *r, struct jval self, const struct jargs *args) {
    if (args->n_keywords) jfail(r, "dict.get() takes no keyword arguments");
    if (args->n < 1 || args->n > 2) jfail(r, "get expected 1 or 2 arguments, got %zu", args->n);
    struct jval *v = jdict_find(r, self.d, args->v[0]);
    return v ? *v : args->n > 1 ? args->v[1] : jval_none();
}

/* ---- loop */
static struct jval loop_cycle(struct jrun *r, struct jval self, const struct jargs *args) {
    if (!args->n || args->n_keywords) jfail(r, "no items for cycling given");
    return args->v[self.loop->index0 % args->n];
}
static struct jval loop_changed(struct jrun *r, struct jval self, const struct jargs *args) {
    struct jval now = jval_list(r, J_TUPLE, args->n);
    if (args->n) memcpy(now.l->v, args->v, args->n * sizeof *args->v);
    bool same = self.loop->last_changed.type == J_TUPLE && jval_eq(r, now, self.loop->last_changed);
    if (!same) self.loop->last_changed = now;
    return jval_bool(!same);
}

static const struct value_method methods[] = {
    {J_STR, "capitalize", "", 0, s_capitalize},
    {J_STR, "count", "sub,start,end", 1, s_count},
    {J_STR, "endswith", "suffix,start,end", 1, s_endswith},
    {J_STR, "find", "sub,start,end", 1, s_find},
    {J_STR, "format", NULL, 0, NULL, s_format},
    {J_STR, "index", "sub,start,end", 1, s_index},
    {J_STR, "isalnum", "", 0, s_isalnum},
    {J_STR, "isalpha", "", 0, s_isalpha},
    {J_STR, "isascii", "", 0, s_isascii},
    {J_STR, "isdigit", "", 0, s_isdigit},
    {J_STR, "islower", "", 0, s_islower},
    {J_STR, "isspace", "", 0, s_isspace},
    {J_STR, "isupper", "", 0, s_isupper},
    {J_STR, "join", "iterable", 1, s_join},
    {J_STR, "ljust", "width,fillchar", 1, s_ljust},
    {J_STR, "lower", "", 0, s_lower},
    {J_STR, "lstrip", "chars", 0, s_lstrip},
    {J_STR, "partition", "sep", 1, s_partition},
    {J_STR, "removeprefix", "prefix", 1, s_removeprefix},
    {J_STR, "removesuffix", "suffix", 1, s_removesuffix},
    {J_STR, "replace", "old,new,count", 2, s_replace},
    {J_STR, "rfind", "sub,start,end", 1, s_rfind},
    {J_STR, "rjust", "width,fillchar", 1, s_rjust},
    {J_STR, "rpartition", "sep", 1, s_rpartition},
    {J_STR, "rsplit", "sep,maxsplit", 0, s_rsplit},
    {J_STR, "rstrip", "chars", 0, s_rstrip},
    {J_STR, "split", "sep,maxsplit", 0, s_split},
    {J_STR, "splitlines", "keepends", 0, s_splitlines},
    {J_STR, "startswith", "prefix,start,end", 1, s_startswith},
    {J_STR, "strip", "chars", 0, s_strip},
    {J_STR, "title", "", 0, s_title},
    {J_STR, "upper", "", 0, s_upper},
    {J_LIST, "count", "value", 1, l_count},
    {J_LIST, "index", "value,start,stop", 1, l_index},
    {J_LIST, "copy", "", 0, l_copy},
    {J_TUPLE, "count", "value", 1, l_count},
    {J_TUPLE, "index", "value,start,stop", 1, l_index},
    {J_RANGE, "count", "value", 1, l_count},
    {J_RANGE, "index", "value", 1, l_index},
    {J_DICT, "copy", "", 0, l_copy},
    {J_DICT, "get", NULL, 0, NULL, d_get},
    {J_DICT, "items", "", 0, d_items},
    {J_DICT, "keys", "", 0, d_keys},
    {J_DICT, "values", "", 0, d_values},
    {J_LOOP, "cycle", NULL, 0, NULL, loop_cycle},
    {J_LOOP, "changed", NULL, 0, NULL, loop_changed},
};

bool jmethod_find(struct jval self, const struct jstr *name, struct jval *out) {
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (methods[i].type == self.type && jstr_equals(name, methods[i].name)) {
            *out = (struct jval){.type = J_METHOD, .sub = (uint8_t)i};
            return true;
        }
    return false;
}
/* C methods of str take most arguments by position only. These accept keywords. */
static bool accepts_keywords(const struct value_method *m) {
    return m->type != J_STR || !strcmp(m->name, "split") || !strcmp(m->name, "rsplit") ||
           !strcmp(m->name, "splitlines");
}
struct jval jmethod_call(struct jrun *r, const struct jmethod *me, int sub, const struct jargs *args) {
    const struct value_method *m = &methods[sub];
    struct jval a[JCALL_MAX], v;
    jenter_depth(r);
    if (m->fn_args) v = m->fn_args(r, me->self, args);
    else {
        if (args->n_keywords && !accepts_keywords(m))
            jfail(r, "%s.%s() takes no keyword arguments", jval_type(me->self), m->name);
        jcall_bind(r, m->name, m->params, m->n_required, args, a);
        v = m->fn(r, me->self, a);
    }
    r->depth--;
    return v;
}

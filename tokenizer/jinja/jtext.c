#include <string.h>

#include "tokenizer/jinja/jeval.h"

/* Shared by string filters and methods. Every result byte keeps the origin of its source byte. */

int64_t jtext_int(struct jrun *r, struct jval v, int64_t default_value) {
    return v.type == J_MISSING || v.type == J_NONE ? default_value : jval_index(r, v, "the argument");
}

static bool in_set(const struct jstr *set, uint32_t c) { /* set NULL: white space */
    if (!set) return unicode_is_python_space(c);
    for (size_t i = 0, k; i < set->n; i += k)
        if (junicode_decode(set->s + i, set->n - i, &k) == c) return true;
    return false;
}
struct jval jtext_strip(struct jrun *r, struct jstr *s, struct jval chars, bool left, bool right) {
    const struct jstr *set = NULL;
    size_t from = 0, to = s->n, k;
    if (chars.type == J_STR) set = chars.s;
    else if (chars.type != J_MISSING && chars.type != J_NONE) jfail(r, "strip arg must be None or str");
    while (left && from < to && in_set(set, junicode_decode(s->s + from, to - from, &k))) from += k;
    while (right && to > from) {
        size_t i = to - 1;
        while (i > from && ((unsigned char)s->s[i] & 0xC0) == 0x80) i--;
        if (!in_set(set, junicode_decode(s->s + i, to - i, &k))) break;
        to = i;
    }
    jcount_steps(r, (from + s->n - to) >> 4);
    return jstr_sub(r, s, from, to - from);
}

static void append_slice(struct jrun *r, struct jbuf *b, const struct jstr *s, size_t from, size_t to) {
    struct jstr part = {
        .s = s->s + from, .n = to - from, .origin = s->origin, .origins = s->origins ? s->origins + from : NULL};
    jbuf_str(r, b, &part);
}
static struct jval finish_like(struct jrun *r, struct jbuf *b, const struct jstr *s) {
    struct jval v = jbuf_finish(r, b);
    if (!v.s->n) v.s->origin = s->origin;
    v.s->markup = s->markup;
    return v;
}
struct jval jtext_replace(struct jrun *r, struct jstr *s, struct jstr *old, struct jstr *replacement, int64_t count) {
    struct jbuf b = {0};
    size_t at = 0;
    if (count < 0) count = INT64_MAX;
    if (!old->n) { /* insert between all characters and at both ends */
        for (; count > 0; count--) {
            jbuf_str(r, &b, replacement);
            jcount_steps(r, 1);
            if (at >= s->n) break;
            size_t end = at + 1;
            while (end < s->n && ((unsigned char)s->s[end] & 0xC0) == 0x80) end++;
            append_slice(r, &b, s, at, end);
            at = end;
        }
    } else
        for (const char *hit; count > 0 && (hit = jstr_find(s, at, old)); count--) {
            size_t pos = (size_t)(hit - s->s);
            jcount_steps(r, 1);
            append_slice(r, &b, s, at, pos);
            jbuf_str(r, &b, replacement);
            at = pos + old->n;
        }
    append_slice(r, &b, s, at, s->n);
    jcount_steps(r, s->n >> 6);
    return finish_like(r, &b, s);
}

/* any: converts items to text; otherwise they must be strings. */
struct jval jtext_join(struct jrun *r, struct jstr *sep, struct jval items, bool any) {
    struct jbuf b = {0};
    struct jiter *it = jiter_new(r, items);
    struct jval v;
    for (size_t i = 0; jiter_next(r, it, &v); i++) {
        if (!any && v.type != J_STR) jfail(r, "sequence item %zu: expected str instance, %s found", i, jval_type(v));
        if (i) jbuf_str(r, &b, sep);
        if (sep->markup && !any && !v.s->markup) v = jrepr_escape(r, v.s);
        jrepr_str(r, &b, v);
    }
    struct jval out = finish_like(r, &b, sep);
    if (any) out.s->markup = false;
    return out;
}

static size_t line_break_length(const struct jstr *s, size_t i, size_t *len) { /* length of the line break at i, or 0 */
    uint32_t c = junicode_decode(s->s + i, s->n - i, len);
    if (c == '\r' && i + 1 < s->n && s->s[i + 1] == '\n') return *len = 2;
    return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029 ? *len : 0;
}
struct jlist *jtext_splitlines(struct jrun *r, struct jstr *s, bool keep) {
    struct jlist *l = jalloc(r, sizeof *l);
    size_t count = 0, from = 0, k;
    for (size_t i = 0; i < s->n; i += k) count += line_break_length(s, i, &k) != 0;
    *l = (struct jlist){.v = jalloc(r, (count + 1) * sizeof *l->v)};
    for (size_t i = 0; i < s->n; i += k) {
        size_t brk = line_break_length(s, i, &k);
        if (!brk) continue;
        l->v[l->n++] = jstr_sub(r, s, from, i + (keep ? brk : 0) - from);
        from = i + brk;
    }
    if (from < s->n) l->v[l->n++] = jstr_sub(r, s, from, s->n - from);
    jcount_steps(r, l->n + (s->n >> 6));
    return l;
}

struct jval jtext_pad(struct jrun *r, struct jstr *s, int64_t width, struct jstr *fill, int where) {
    int64_t n = (int64_t)jstr_chars(s), pad = width > n ? width - n : 0;
    int64_t left = where < 0 ? pad : 0;
    struct jbuf b = {0};
    if (fill && jstr_chars(fill) != 1) jfail(r, "The fill character must be exactly one character long");
    if (pad > JINJA_MAX_OUTPUT) jfail(r, "the text exceeds %d MB", JINJA_MAX_OUTPUT >> 20);
    for (int64_t i = 0; i < pad; i++) {
        if (i == left) jbuf_str(r, &b, s);
        if (fill) jbuf_str(r, &b, fill);
        else jbuf_add(r, &b, " ", 1, TEXT_TEMPLATE);
    }
    if (left == pad) jbuf_str(r, &b, s);
    jcount_steps(r, (size_t)pad);
    return finish_like(r, &b, s);
}

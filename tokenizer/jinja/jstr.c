#include "tokenizer/jinja/jstr.h"

#include <string.h>

/* ---- writing: bytes with the origin of each */

static void reserve_buf(struct jrun *r, struct jbuf *b, size_t n) {
    if (n > JINJA_MAX_OUTPUT || b->n + n > JINJA_MAX_OUTPUT) jfail(r, "the text exceeds %d MB", JINJA_MAX_OUTPUT >> 20);
    jcount_steps(r, n >> 6);
    if (b->cap - b->n >= n) return;
    size_t cap = b->cap ? b->cap * 2 : 64;
    while (cap < b->n + n) cap *= 2;
    char *data = jalloc(r, cap);
    uint8_t *from = jalloc(r, cap);
    if (b->n) {
        memcpy(data, b->data, b->n);
        memcpy(from, b->origins, b->n);
    }
    b->data = data;
    b->origins = from;
    b->cap = cap;
}
void jbuf_add(struct jrun *r, struct jbuf *b, const char *s, size_t n, uint8_t origin) {
    if (!n) return;
    reserve_buf(r, b, n);
    memcpy(b->data + b->n, s, n);
    memset(b->origins + b->n, origin, n);
    b->n += n;
    if (origin == TEXT_TEMPLATE) b->n_template += n;
}
void jbuf_str(struct jrun *r, struct jbuf *b, const struct jstr *s) {
    size_t at = b->n;
    jbuf_add(r, b, s->s, s->n, s->origin);
    if (!s->origins || !s->n) return;
    memcpy(b->origins + at, s->origins, s->n);
    if (s->origin == TEXT_TEMPLATE) b->n_template -= s->n;
    for (size_t i = 0; i < s->n; i++) b->n_template += s->origins[i] == TEXT_TEMPLATE;
}
void jbuf_cstr(struct jrun *r, struct jbuf *b, const char *s, uint8_t origin) { jbuf_add(r, b, s, strlen(s), origin); }
void jbuf_char(struct jrun *r, struct jbuf *b, uint32_t c, uint8_t origin) {
    char o[4];
    jbuf_add(r, b, o, utf8_put(c, o), origin);
}
struct jval jbuf_finish(struct jrun *r, struct jbuf *b) {
    struct jstr *s = jalloc(r, sizeof *s);
    bool pure = b->n_template == 0 || b->n_template == b->n;
    *s = (struct jstr){.s = b->n ? b->data : "",
                       .n = b->n,
                       .n_chars = SIZE_MAX,
                       .origins = pure ? NULL : b->origins,
                       .origin = b->n_template == b->n ? TEXT_TEMPLATE : TEXT_VALUE};
    return (struct jval){.type = J_STR, .s = s};
}

/* ---- construction */

struct jval jstr_new(struct jrun *r, const char *p, size_t n, uint8_t origin) {
    struct jstr *s = jalloc(r, sizeof *s);
    *s = (struct jstr){.s = p, .n = n, .n_chars = SIZE_MAX, .origin = origin};
    return (struct jval){.type = J_STR, .s = s};
}
struct jval jstr_literal(struct jrun *r, const char *text) {
    return jstr_new(r, text, strlen(text), TEXT_TEMPLATE);
}
struct jval jstr_sub(struct jrun *r, const struct jstr *s, size_t at, size_t n) {
    at = at < s->n ? at : s->n;
    n = n < s->n - at ? n : s->n - at;
    struct jval v = jstr_new(r, s->s + at, n, s->origin);
    if (s->origins) v.s->origins = s->origins + at;
    v.s->markup = s->markup;
    return v;
}
/* Templates build text by appending. A sum's buffer has spare room: if the left side ends at the end of its buffer, the
 * right side is appended in place, so n additions cost n, not n squared. */
struct jval jstr_concat(struct jrun *r, const struct jstr *a, const struct jstr *b) {
    struct jbuf *room = a->append_buf;
    if (!room || a->s + a->n != room->data + room->n) {
        room = jalloc(r, sizeof *room);
        *room = (struct jbuf){0};
        reserve_buf(r, room, a->n + b->n);
        jbuf_str(r, room, a);
    }
    jbuf_str(r, room, b);
    struct jval v = jstr_new(r, room->data, a->n + b->n, a->n ? a->origin : b->origin);
    if (a->origins || b->origins || (a->n && b->n && a->origin != b->origin)) v.s->origins = room->origins;
    v.s->append_buf = room;
    return v;
}

/* ---- reading */

uint8_t jstr_origin_at(const struct jstr *s, size_t i) { return s->origins && i < s->n ? s->origins[i] : s->origin; }
size_t jstr_chars(struct jstr *s) {
    if (s->n_chars == SIZE_MAX) {
        size_t n = 0;
        for (size_t i = 0; i < s->n; i++) n += ((unsigned char)s->s[i] & 0xC0) != 0x80;
        s->n_chars = n;
    }
    return s->n_chars;
}
size_t jstr_offset(struct jstr *s, size_t i) {
    if (jstr_chars(s) == s->n) return i < s->n ? i : s->n;
    size_t at = 0;
    while (at < s->n) {
        if (((unsigned char)s->s[at] & 0xC0) != 0x80 && i-- == 0) break;
        at++;
    }
    return at;
}
struct jval jstr_char(struct jrun *r, struct jstr *s, size_t i) {
    size_t at = jstr_offset(s, i), end = at + 1;
    while (end < s->n && ((unsigned char)s->s[end] & 0xC0) == 0x80) end++;
    return jstr_sub(r, s, at, end - at);
}
bool jstr_equals(const struct jstr *s, const char *text) { return s->n == strlen(text) && !memcmp(s->s, text, s->n); }
int jstr_cmp(const struct jstr *a, const struct jstr *b) { /* UTF-8 order is code point order */
    size_t n = a->n < b->n ? a->n : b->n;
    int c = n ? memcmp(a->s, b->s, n) : 0;
    return c ? (c > 0) - (c < 0) : (a->n > b->n) - (a->n < b->n);
}
const char *jstr_find(const struct jstr *s, size_t from, const struct jstr *what) {
    return what->n ? memmem(s->s + from, s->n - from, what->s, what->n) : s->s + from;
}
const char *jstr_for_error(struct jrun *r, const struct jstr *s) {
    size_t n = s->n < 200 ? s->n : 200;
    char *p = jalloc(r, n + 1);
    memcpy(p, s->s, n);
    p[n] = 0;
    return p;
}

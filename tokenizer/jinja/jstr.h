#pragma once
/* Strings of a running template: bytes with their origin, with the semantics of Python's str (by code point). */
#include "tokenizer/jinja/jvalue.h"
#include "tokenizer/unicode.h"

static inline bool jascii_is_digit(char c) { return c >= '0' && c <= '9'; }
static inline bool jascii_is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static inline int jascii_hex_value(char c) { /* value, or 99 */
    if (jascii_is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : 99;
}
/* The base of a number that begins with '0' and this letter, or 0. */
static inline int jascii_base(char letter) {
    switch (letter | 32) {
    case 'x': return 16;
    case 'o': return 8;
    case 'b': return 2;
    default: return 0;
    }
}

struct jbuf { /* string builder; grows in the arena */
    char *data;
    uint8_t *origins;
    size_t n, cap, n_template;
};
void jbuf_add(struct jrun *r, struct jbuf *b, const char *s, size_t n, uint8_t origin);
void jbuf_str(struct jrun *r, struct jbuf *b, const struct jstr *s);
void jbuf_cstr(struct jrun *r, struct jbuf *b, const char *s, uint8_t origin); /* NUL-terminated */
void jbuf_char(struct jrun *r, struct jbuf *b, uint32_t c, uint8_t origin);
struct jval jbuf_finish(struct jrun *r, struct jbuf *b);

struct jval jstr_new(struct jrun *r, const char *s, size_t n, uint8_t origin);   /* does not copy */
struct jval jstr_literal(struct jrun *r, const char *s);                         /* a C literal */
struct jval jstr_sub(struct jrun *r, const struct jstr *s, size_t at, size_t n); /* at, n in bytes; what is beyond s is
                                                                                    left out */
struct jval jstr_concat(struct jrun *r, const struct jstr *a, const struct jstr *b);
uint8_t jstr_origin_at(const struct jstr *s, size_t i);
size_t jstr_chars(struct jstr *s);
size_t jstr_offset(struct jstr *s, size_t i); /* byte offset of code point i; the end of s beyond its last */
bool jstr_equals(const struct jstr *s, const char *text);
int jstr_cmp(const struct jstr *a, const struct jstr *b);
const char *jstr_find(const struct jstr *s, size_t from, const struct jstr *what); /* NULL if absent */
struct jval jstr_char(struct jrun *r, struct jstr *s, size_t i);                   /* one code point */
const char *jstr_for_error(struct jrun *r, const struct jstr *s);                  /* for error messages */

/* -- code points (junicode.c) */
uint32_t junicode_decode(const char *s, size_t n, size_t *len);
bool junicode_is_printable(uint32_t c); /* str.isprintable of one character */
bool junicode_is_word(uint32_t c);      /* \w */
bool junicode_is_alpha(uint32_t c);
bool junicode_is_digit(uint32_t c);
bool junicode_is_upper(uint32_t c);
bool junicode_is_lower(uint32_t c);
bool junicode_is_title(uint32_t c);
bool junicode_is_cased(const struct jstr *s, bool upper); /* str.isupper, str.islower */
enum jcase { CASE_UPPER, CASE_LOWER, CASE_TITLE };
/* Stores the case mapping of c in out[3]; returns the number of code points. */
int junicode_case(uint32_t c, enum jcase to, uint32_t out[3]);
/* Appends c (k bytes at s->s[i]) in that case. A sigma depends on its neighbours in s. */
void junicode_add_cased(struct jrun *r, struct jbuf *b, const struct jstr *s, size_t i, uint32_t c, size_t k,
                        enum jcase to);
struct jval junicode_map(struct jrun *r, const struct jstr *s, enum jcase to);
struct jval junicode_capitalize(struct jrun *r, const struct jstr *s);

/* -- conversion to text (jrepr.c) */
int jrepr_float(double f, char out[40]);
void jrepr_add(struct jrun *r, struct jbuf *b, struct jval v); /* repr(v) */
void jrepr_str(struct jrun *r, struct jbuf *b, struct jval v); /* str(v) */
struct jstr *jrepr_to_str(struct jrun *r, struct jval v);      /* str(v); returns a string unchanged */
struct jtojson {
    bool ascii, sort_keys, indented;
    const char *indent;
    struct jstr *item_sep, *key_sep; /* NULL: the defaults */
};
struct jval jrepr_json(struct jrun *r, struct jval v, const struct jtojson *opt);
struct jval jrepr_escape(struct jrun *r, const struct jstr *s); /* HTML; the result is markup */

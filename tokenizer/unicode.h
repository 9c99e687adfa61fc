#pragma once
/* Characters: UTF-8, general categories and sets of code points. The tables are those of the reference tokenizers
 * (unicode_data.c says which), so that no library's Unicode version can change a token. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UNICODE_END = 0x110000 };
struct range { /* both ends belong to it */
    uint32_t lo, hi;
};
/* A set of code points: sorted ranges that neither touch nor overlap. Zero-initialised is empty. */
struct charset {
    struct range *r;
    size_t n, cap;
};
int charset_add(struct charset *s, uint32_t lo, uint32_t hi); /* 0 or ERR_MEMORY; in any order, then charset_tidy */
int charset_union(struct charset *s, const struct range *r, size_t n);
void charset_tidy(struct charset *s); /* sorts and joins; the others below want tidy sets */
int charset_invert(struct charset *s);
int charset_intersect(struct charset *s, const struct charset *other);
bool charset_has(const struct charset *s, uint32_t c);
bool charset_equal(const struct charset *a, const struct charset *b);
void charset_free(struct charset *s);

/* Adds what a property name means: a general category ("L", "Lu", ..., "LC") or a script ("Han"); case, '_', ' ' and '-'
 * do not matter. ERR_USAGE on a name it does not know. */
int charset_property(struct charset *s, const char *name, size_t n);
/* \w of Rust, and of Oniguruma, which takes superscript digits and fractions of Latin-1 for it, but not inside brackets. */
enum word_kind { WORD_RUST, WORD_ALONE, WORD_IN_CLASS };
int charset_word(struct charset *s, enum word_kind kind);
bool unicode_is_word(uint32_t c);  /* Rust's \w */
bool unicode_is_space(uint32_t c); /* White_Space */
extern const struct range unicode_space[];
extern const size_t unicode_space_n;

/* Decodes the character at s (valid UTF-8) and steps over it. */
static inline uint32_t utf8_next(const char **s) {
    const unsigned char *p = (const unsigned char *)*s;
    if (p[0] < 0x80) return *s += 1, p[0];
    if (p[0] < 0xE0) return *s += 2, (p[0] & 31u) << 6 | (p[1] & 63u);
    if (p[0] < 0xF0) return *s += 3, (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
    return *s += 4, (p[0] & 7u) << 18 | (p[1] & 63u) << 12 | (p[2] & 63u) << 6 | (p[3] & 63u);
}
static inline size_t utf8_size(unsigned char lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }
/* Start of the character before s, s beyond the text's begin. */
static inline const char *utf8_back(const char *s) {
    do s--;
    while (((unsigned char)*s & 0xC0) == 0x80);
    return s;
}
size_t utf8_put(uint32_t c, char out[4]);
size_t utf8_ascii(const char *s, size_t n); /* how many bytes from s on are ASCII */
/* How many bytes from s on are valid. */
size_t utf8_valid(const char *s, size_t n);
/* Length of the broken sequence at s that one U+FFFD stands for (the longest start of a character). */
size_t utf8_broken(const char *s, size_t n);

/* Tables of unicode_data.c. */
struct unicode_case {
    uint32_t first, last, distance;
};
extern const uint32_t unicode_runs[];
extern const struct range unicode_han[], unicode_hiragana[], unicode_katakana[], unicode_hangul[], unicode_word_onig[], unicode_word_rust[],
    unicode_digits_more[], unicode_punctuation[], unicode_opaque[];
extern const struct unicode_case unicode_lower[];
extern const size_t unicode_runs_n, unicode_han_n, unicode_hiragana_n, unicode_katakana_n, unicode_hangul_n, unicode_word_onig_n, unicode_word_rust_n,
    unicode_digits_more_n, unicode_punctuation_n, unicode_opaque_n, unicode_lower_n;
bool unicode_in(const struct range *r, size_t n, uint32_t c);

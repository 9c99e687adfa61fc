#pragma once
/* UTF-8, general categories and sets of code points. The tables are those of the reference tokenizers (see unicode_data.c), so the Unicode version of a library
 * cannot change tokens. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UNICODE_END = 0x110000 };
struct unicode_range { /* inclusive */
    uint32_t lo, hi;
};
/* A set of code points: sorted, disjoint, non-adjacent ranges. Zero-initialized is empty. */
struct charset {
    struct unicode_range *r;
    size_t n, cap;
};
int charset_add(struct charset *s, uint32_t lo, uint32_t hi); /* 0 or ERR_MEMORY. In any order; call charset_tidy afterwards. */
int charset_union(struct charset *s, const struct unicode_range *r, size_t n);
void charset_tidy(struct charset *s); /* Sorts and joins ranges. The functions below need tidy sets. */
int charset_invert(struct charset *s);
int charset_intersect(struct charset *s, const struct charset *other);
bool charset_has(const struct charset *s, uint32_t c);
bool charset_equal(const struct charset *a, const struct charset *b);
void charset_free(struct charset *s);

/* Adds the characters of a property: a general category ("L", "Lu", ..., "LC") or a script ("Han"). Ignores case, '_', ' ' and '-'. ERR_USAGE if the name is
 * unknown. */
int charset_property(struct charset *s, const char *name, size_t n);
/* \w of Rust, and of Oniguruma, which includes superscript digits and fractions of Latin-1, but not inside brackets. */
enum word_kind { WORD_RUST, WORD_ONIG, WORD_ONIG_CLASS };
int charset_word(struct charset *s, enum word_kind kind);
bool unicode_is_word(uint32_t c);  /* Rust's \w */
bool unicode_is_space(uint32_t c); /* White_Space */
extern const struct unicode_range unicode_space[];
extern const size_t unicode_space_n;

/* Decodes the character at s (valid UTF-8) and advances s. */
static inline uint32_t utf8_next(const char **s) {
    const unsigned char *p = (const unsigned char *)*s;
    if (p[0] < 0x80) return *s += 1, p[0];
    if (p[0] < 0xE0) return *s += 2, (p[0] & 31u) << 6 | (p[1] & 63u);
    if (p[0] < 0xF0) return *s += 3, (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
    return *s += 4, (p[0] & 7u) << 18 | (p[1] & 63u) << 12 | (p[2] & 63u) << 6 | (p[3] & 63u);
}
static inline size_t utf8_size(unsigned char lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }
/* Returns the start of the character before s. s must not be the beginning of the text. */
static inline const char *utf8_back(const char *s) {
    do s--;
    while (((unsigned char)*s & 0xC0) == 0x80);
    return s;
}
size_t utf8_put(uint32_t c, char out[4]);
size_t utf8_ascii(const char *s, size_t n); /* number of leading ASCII bytes */
/* Returns the number of leading bytes that are valid. */
size_t utf8_valid(const char *s, size_t n);
/* Returns the length of the invalid sequence at s that one U+FFFD replaces (the longest prefix of a character). */
size_t utf8_broken(const char *s, size_t n);

/* Tables in unicode_data.c. */
struct unicode_case {
    uint32_t first, last, offset;
};
extern const uint32_t unicode_runs[];
extern const struct unicode_range unicode_han[], unicode_hiragana[], unicode_katakana[], unicode_hangul[], unicode_word_onig[], unicode_word_rust[],
    unicode_digits_more[], unicode_punctuation[], unicode_opaque[];
extern const struct unicode_case unicode_lower[];
extern const size_t unicode_runs_n, unicode_han_n, unicode_hiragana_n, unicode_katakana_n, unicode_hangul_n, unicode_word_onig_n, unicode_word_rust_n,
    unicode_digits_more_n, unicode_punctuation_n, unicode_opaque_n, unicode_lower_n;
bool unicode_in_ranges(const struct unicode_range *r, size_t n, uint32_t c);

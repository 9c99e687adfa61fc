#pragma once
/* General categories and sets of code points. The tables are those of the reference tokenizers (see unicode_data.c), so
 * the Unicode version of a library cannot change tokens. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/utf8.h"

enum { UNICODE_END = 0x110000 };
struct unicode_range { /* inclusive */
    uint32_t lo, hi;
};
/* A set of code points: sorted, disjoint, non-adjacent ranges. Zero-initialized is empty. */
struct charset {
    struct unicode_range *r;
    size_t n, cap;
};
/* 0 or ERR_MEMORY. In any order; call charset_tidy afterwards. */
int charset_add(struct charset *s, uint32_t lo, uint32_t hi);
int charset_union(struct charset *s, const struct unicode_range *r, size_t n);
void charset_tidy(struct charset *s); /* Sorts and joins ranges. The functions below need tidy sets. */
int charset_invert(struct charset *s);
int charset_intersect(struct charset *s, const struct charset *other);
bool charset_has(const struct charset *s, uint32_t c);
bool charset_equal(const struct charset *a, const struct charset *b);
void charset_free(struct charset *s);

/* Adds the characters of a property: a general category ("L", "Lu", ..., "LC") or a script ("Han"). Ignores case, '_',
 * ' ' and '-'. ERR_USAGE if the name is unknown. */
int charset_property(struct charset *s, const char *name, size_t n);
/* \w of Rust, and of Oniguruma, which includes superscript digits and fractions of Latin-1, but not inside brackets. */
enum word_kind { WORD_RUST, WORD_ONIG, WORD_ONIG_CLASS };
int charset_word(struct charset *s, enum word_kind kind);
bool unicode_is_word(uint32_t c);         /* Rust's \w */
bool unicode_is_space(uint32_t c);        /* White_Space */
bool unicode_is_python_space(uint32_t c); /* str.isspace of one character */
extern const struct unicode_range unicode_space[];
extern const size_t unicode_space_n;

/* Tables in unicode_data.c. */
struct unicode_case {
    uint32_t first, last, offset;
};
/* first code point << 8 | index of the general category (categories in unicode.c) */
extern const uint32_t unicode_runs[];
extern const struct unicode_range unicode_han[], unicode_hiragana[], unicode_katakana[], unicode_hangul[],
    unicode_word_onig[], unicode_word_rust[], unicode_digits_more[], unicode_punctuation[], unicode_opaque[];
extern const struct unicode_case unicode_lower[];
extern const size_t unicode_runs_n, unicode_han_n, unicode_hiragana_n, unicode_katakana_n, unicode_hangul_n,
    unicode_word_onig_n, unicode_word_rust_n, unicode_digits_more_n, unicode_punctuation_n, unicode_opaque_n,
    unicode_lower_n;
bool unicode_in_ranges(const struct unicode_range *r, size_t n, uint32_t c);

#pragma once
/* Translates Oniguruma (Ruby) and tiktoken patterns to PCRE2 and runs them.
 *
 * All patterns of a pre-tokenizer share an alphabet that maps each character to one byte: ASCII to itself, the others
 * to the number of their class (which sets contain them). PCRE2 then works on bytes with plain bitmaps: fast, and \p{L}
 * means what our own tables say. Matches are measured in characters. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "tokenizer/unicode.h"

struct alphabet {
    struct charset *sets;
    size_t n_sets, cap_sets;
    uint8_t *byte_of;    /* [UNICODE_END] after alphabet_build */
    uint32_t first[128]; /* one character of each non-ASCII class */
    int n_classes;
};
struct pattern {
    struct buf source; /* PCRE2 pattern with references to sets */
    void *code;        /* pcre2_code_8 once compiled */
    bool has_jit;
};
/* Parses pattern and adds its sets to the alphabet. ERR_MODEL names unsupported syntax. */
int pattern_parse(struct pattern *re, struct alphabet *a, const char *pattern, size_t n, struct error *e);
/* Appends a set and a quantifier ("" or "+") to the pattern. Takes ownership of the set, also on failure. */
int pattern_add_set(struct pattern *re, struct alphabet *a, struct charset *s, const char *quantifier, struct error *e);
/* appends PCRE2 syntax, such as "|" between sets */
int pattern_add_text(struct pattern *re, const char *pcre, struct error *e);
/* Call after all patterns were parsed and before any is compiled. */
int alphabet_build(struct alphabet *a, struct error *e);
void alphabet_free(struct alphabet *a);
int pattern_compile(struct pattern *re, const struct alphabet *a, struct error *e);
void pattern_free(struct pattern *re);

/* Writes one byte per character of s (valid UTF-8). out has room for n. Returns the number of characters. */
size_t alphabet_map(const struct alphabet *a, const char *s, size_t n, uint8_t *out);

struct pattern_matcher { /* match state of one thread */
    void *data, *context, *stack;
};
int pattern_matcher_open(struct pattern_matcher *run, struct error *e);
void pattern_matcher_close(struct pattern_matcher *run);
/* Finds the first match in s[0..n) at or after from: 1 and its range, 0 if none, ERR_RUNTIME on a limit. */
int pattern_match(const struct pattern *re, struct pattern_matcher *run, const uint8_t *s, size_t n, size_t from,
                  size_t *begin, size_t *end, struct error *e);

/* Iterates over all matches as the reference does: an empty match directly after a match is skipped. */
struct pattern_iter {
    size_t from, last;
    bool has_match;
};
int pattern_next(const struct pattern *re, struct pattern_matcher *run, const uint8_t *s, size_t n,
                 struct pattern_iter *w, size_t *begin, size_t *end, struct error *e);

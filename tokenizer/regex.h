#pragma once
/* Regular expressions as Oniguruma (Ruby syntax) and tiktoken read them, run by PCRE2.
 *
 * A pattern tells characters apart only by the sets it names. So all patterns of one pre-tokenizer share an alphabet: every
 * character becomes one byte, ASCII itself, the others a number for "in these sets and not in those". PCRE2 then works on
 * bytes with plain bitmaps: fast, and \p{L} means what our own tables say. A match is measured in characters. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/error.h"
#include "tokenizer/unicode.h"

struct alphabet {
    struct charset *sets;
    size_t n_sets, cap_sets;
    uint8_t *byte_of;    /* [UNICODE_END] once built */
    uint32_t first[128]; /* of each class beyond ASCII: one of its characters */
    int n_classes;
};
struct regex {
    struct buf source; /* PCRE2 pattern with references to sets */
    void *code;        /* pcre2_code_8 once compiled */
    bool jit;
};
/* Parses pattern, adding its sets to the alphabet. ERR_MODEL names what it does not know. */
int regex_parse(struct regex *re, struct alphabet *a, const char *pattern, size_t n, struct error *e);
/* The same for a set followed by a quantifier ("" or "+"), appended to what is there; takes the set over, also on failure. */
int regex_set(struct regex *re, struct alphabet *a, struct charset *s, const char *quantifier, struct error *e);
int regex_text(struct regex *re, const char *pcre, struct error *e); /* "|" between sets */
/* After all patterns were parsed; then each regex is compiled. */
int alphabet_build(struct alphabet *a, struct error *e);
void alphabet_free(struct alphabet *a);
int regex_compile(struct regex *re, const struct alphabet *a, struct error *e);
void regex_free(struct regex *re);

/* Writes one byte for each character of s (valid UTF-8); out has room for n. Returns how many. */
size_t alphabet_map(const struct alphabet *a, const char *s, size_t n, uint8_t *out);

struct regex_run { /* what one thread needs to match */
    void *data, *context, *stack;
};
int regex_run_open(struct regex_run *run, struct error *e);
void regex_run_close(struct regex_run *run);
/* First match in s[0..n) at or after from: 1 and its place, 0 none, ERR_RUNTIME on a limit. */
int regex_match(const struct regex *re, struct regex_run *run, const uint8_t *s, size_t n, size_t from, size_t *begin, size_t *end, struct error *e);

/* All matches one after the other, as the reference counts them: an empty one right after a match does not count. */
struct regex_walk {
    size_t from, last;
    bool any;
};
int regex_next(const struct regex *re, struct regex_run *run, const uint8_t *s, size_t n, struct regex_walk *w, size_t *begin, size_t *end, struct error *e);

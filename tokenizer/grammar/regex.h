#pragma once
/* Regular expressions as Python's re and ECMA-262 both read them: the part on which they agree. Without look-around,
 * back references and word boundaries. \d, \w and \s match ASCII only; \S, and negated sets, leave out what either
 * dialect counts as a digit, word character or space. */
#include "base/mem.h"
#include "tokenizer/grammar/grammar.h"

struct code_range {
    uint32_t from, to;
};
enum regex_kind { REGEX_EMPTY, REGEX_SET, REGEX_CAT, REGEX_ALT, REGEX_REPEAT, REGEX_START, REGEX_END };
struct regex {
    uint8_t kind;
    const struct regex *a, *b;
    uint32_t lo, hi;           /* REPEAT; hi: GRAMMAR_UNBOUNDED */
    struct code_range *ranges; /* SET: sorted, not touching */
    size_t n_ranges;
};
/* Parses a pattern into the arena. ERR_USAGE names the construct and its position. */
int regex_parse(struct arena *a, const char *s, size_t n, const struct regex **out, struct error *e);
/* The texts that match as a whole, as UTF-8. ERR_USAGE: an anchor within the expression. */
int regex_expr(struct grammar *g, const struct regex *r, expr_id *out, struct error *e);

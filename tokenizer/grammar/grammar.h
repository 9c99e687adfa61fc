#pragma once
/* Grammars over bytes: expressions that a front end builds (regex.h, gbnf.h, schema.h), compiled to rules for the
 * automaton (automaton.h). Untrusted input: every size is bounded. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "tokenizer/grammar/effort.h"

struct grammar;

struct byte_set {
    uint64_t bits[4];
};
static inline bool byte_set_has(const struct byte_set *s, uint8_t b) { return s->bits[b >> 6] >> (b & 63) & 1; }
static inline void byte_set_add(struct byte_set *s, int from, int to) {
    for (int b = from; b <= to; b++) s->bits[b >> 6] |= 1ull << (b & 63);
}

/* An expression by its number. EMPTY matches the empty text, NEVER matches nothing. FAILED: a limit was exceeded or
 * memory ran out; every expression made of a failed one fails, and grammar_finish() reports the cause. */
typedef uint32_t expr_id;
enum { EXPR_FAILED, EXPR_EMPTY, EXPR_NEVER };
enum { GRAMMAR_UNBOUNDED = UINT32_MAX >> 1, GRAMMAR_MAX_NEST = 64 /* levels of objects and arrays in a document */ };

/* effort: spent while the grammar is built and finished. */
int grammar_new(struct grammar **g, struct effort *effort, struct error *e);
void grammar_free(struct grammar **g);

expr_id grammar_literal(struct grammar *g, const void *s, size_t n);
/* Any of n texts, which are not empty; sorts them. Texts share their beginnings, so that many of them cost few stacks.
 */
struct grammar_text {
    const char *s;
    size_t n;
};
void grammar_sort_texts(struct grammar_text *v, size_t n); /* by their bytes */
expr_id grammar_literals(struct grammar *g, struct grammar_text *v, size_t n);
expr_id grammar_class(struct grammar *g, const struct byte_set *s);
expr_id grammar_seq(struct grammar *g, expr_id a, expr_id b);
expr_id grammar_alt(struct grammar *g, expr_id a, expr_id b);
expr_id grammar_repeat(struct grammar *g, expr_id a, uint32_t lo, uint32_t hi); /* hi: GRAMMAR_UNBOUNDED or a count */
/* A repeat of one character that may be any printable one: all from U+0020 on except '"', '\\' and U+007F to U+009F.
 * Plain tokens need no walk then. */
expr_id grammar_text(struct grammar *g, expr_id a, uint32_t lo, uint32_t hi);
/* Any number of one character that may be any of these except '<', which may begin a tag. */
expr_id grammar_tagged_text(struct grammar *g, expr_id a);
/* One token of the vocabulary by its id, such as a control token, instead of the characters of its text. The automaton
 * reads it as bytes that no text has. */
expr_id grammar_token(struct grammar *g, int32_t id);
enum { GRAMMAR_TOKEN_BYTES = 4, GRAMMAR_TOKEN_MARK = 0xFF /* the first of them */ };
void grammar_token_bytes(int32_t id, uint8_t out[static GRAMMAR_TOKEN_BYTES]);
/* Reserves a rule for recursion; grammar_define() gives its body once. */
expr_id grammar_rule(struct grammar *g);
void grammar_define(struct grammar *g, expr_id rule, expr_id body);
/* Marks an expression as a token of the language, such as a string or a number: token masks are shared between its
 * occurrences. */
expr_id grammar_lexeme(struct grammar *g, expr_id a);
/* Marks an expression as one level of nesting; at most GRAMMAR_MAX_NEST levels are generated. */
expr_id grammar_nest(struct grammar *g, expr_id a);
/* Appends the UTF-8 encodings of the code points from..to as an alternative to a. Surrogates are left out. */
expr_id grammar_alt_range(struct grammar *g, expr_id a, uint32_t from, uint32_t to);

/* Compiles the grammar. ERR_USAGE: too large, left-recursive, or no text matches it. No expression may be added
 * afterwards. */
int grammar_finish(struct grammar *g, expr_id root, struct error *e);

/* --- compiled form, read by the automaton ----------------------------------------------------- */

enum text_kind { TEXT_NONE, TEXT_ANY /* grammar_text() */, TEXT_TAGGED /* grammar_tagged_text() */ };
enum elem_kind { ELEM_END, ELEM_CLASS, ELEM_RULE, ELEM_REPEAT };
struct elem {           /* one symbol of an alternative; ELEM_END ends it */
    uint8_t kind, nest; /* nest: levels that the rest of the alternative needs at least */
    uint8_t text;       /* REPEAT: enum text_kind */
    uint32_t arg;       /* CLASS: set; RULE and REPEAT: rule */
    uint32_t lo, hi;    /* REPEAT */
    uint32_t rest;      /* bytes that the alternative needs at least from this symbol to its end */
};
struct rule {
    uint32_t first_alt, n_alts; /* in alts */
    uint32_t min;               /* bytes of the shortest text; UINT32_MAX: none */
    uint8_t min_nest;           /* levels that some text needs */
    bool is_lexeme, nests, can_nest, nullable;
};
struct grammar_rules {
    const struct elem *elems;
    const struct byte_set *sets;
    const struct rule *rules;
    const uint32_t *alts; /* first symbols of alternatives, in elems */
    uint32_t root;        /* rule */
    size_t n_elems;
    uint8_t byte_class[256]; /* bytes of one class are in the same sets */
    int n_classes;
};
const struct grammar_rules *grammar_rules(const struct grammar *g);

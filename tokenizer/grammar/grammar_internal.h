#pragma once
/* Expressions of a grammar while it is built; grammar.c and compile.c. */
#include "tokenizer/grammar/grammar.h"

enum {
    GRAMMAR_MAX_EXPRS = 1 << 20,
    GRAMMAR_MAX_BYTES = 4 << 20,
    GRAMMAR_MAX_ELEMS = 2 << 20,
    GRAMMAR_MAX_EMPTY_REPEAT = 64
};

enum expr_kind { EXPR_CONSTANT, EXPR_LITERAL, EXPR_CLASS, EXPR_SEQ, EXPR_ALT, EXPR_REPEAT, EXPR_RULE };
struct expr {
    uint8_t kind;
    bool is_lexeme, nests; /* RULE */
    uint8_t text;          /* REPEAT: enum text_kind */
    uint32_t a, b;         /* LITERAL: offset and size; CLASS: set; SEQ, ALT: parts; REPEAT, RULE: body */
    uint32_t lo, hi;       /* REPEAT */
    uint32_t rule;         /* rule that was compiled from this expression, plus 1; 0: none */
};
struct grammar {
    struct expr *exprs;
    size_t n_exprs, cap_exprs;
    unsigned char *bytes; /* of literals */
    size_t n_bytes, cap_bytes;
    struct byte_set *sets;
    size_t n_sets, cap_sets;
    struct effort *effort; /* NULL once the grammar is finished */
    int failed;            /* the first error code */
    struct elem *elems;
    struct rule *rules;
    uint32_t *alts;
    size_t n_elems, cap_elems, n_rules, cap_rules, n_alts, cap_alts;
    struct grammar_rules compiled;
};
uint32_t grammar_add_set(struct grammar *g, const struct byte_set *s);

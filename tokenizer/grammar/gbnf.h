#pragma once
/* Grammars in GBNF, as llama.cpp reads them: rules `name ::= ...` with literals, sets, groups, alternatives and
 * repeats. The first rule is `root`. */
#include "tokenizer/grammar/grammar.h"

/* Adds the rules of the text to g and returns the expression of `root`. ERR_USAGE names line and cause; ERR_MEMORY. */
int gbnf_expr(struct grammar *g, const char *s, size_t n, expr_id *out, struct error *e);

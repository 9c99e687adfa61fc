#pragma once
/* Shared by jinja_parse.c (expressions) and jinja_stmt.c (statements). */
#include "tokenizer/jinja_ast.h"
#include "tokenizer/jinja_str.h"

struct jparser {
    struct jrun *r;
    struct jtoken *t; /* current token */
    int loops;        /* enclosing loops, for break and continue */
};
struct jnode *jparse_new(struct jparser *p, uint8_t kind, uint32_t pos);
bool jparse_is(const struct jparser *p, const char *name); /* the current token is this name */
bool jparse_skip(struct jparser *p, const char *name);     /* the same, and advances past it */
bool jparse_skip_type(struct jparser *p, uint8_t type);
struct jtoken *jparse_expect(struct jparser *p, uint8_t type, const char *what);
_Noreturn void jparse_fail(struct jparser *p, const char *why);
struct jnode *jparse_expr(struct jparser *p);
struct jnode *jparse_or(struct jparser *p); /* without the ternary */
/* Parses a, b or (a, b). with = false excludes the ternary. stop: a word that ends the tuple, or NULL. */
struct jnode *jparse_tuple(struct jparser *p, bool with, const char *stop);
struct jnode *jparse_filters(struct jparser *p, struct jnode *of, bool first); /* |a|b; first: without the leading bar */
struct jnode *jparse_target(struct jparser *p, bool spaces, const char *stop);
struct jnode *jparse_name(struct jparser *p); /* a name to assign to */

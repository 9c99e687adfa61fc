#pragma once
/* Shared by jparse.c (expressions) and jstmt.c (statements). */
#include "tokenizer/jinja/jast.h"
#include "tokenizer/jinja/jstr.h"

struct jparser {
    struct jrun *r;
    struct jtoken *token; /* current token */
    int n_loops;          /* enclosing loops, for break and continue */
};
struct jnode *jparse_new(struct jparser *p, uint8_t kind, uint32_t pos);
bool jparse_at_name(const struct jparser *p, const char *name); /* the current token is this name */
bool jparse_accept_name(struct jparser *p, const char *name);   /* jparse_at_name(), and advances past it */
bool jparse_accept(struct jparser *p, uint8_t type);
struct jtoken *jparse_expect(struct jparser *p, uint8_t type, const char *what);
/* at the current token; jfail() is for an earlier one, after r->pos is set */
_Noreturn void jparse_fail(struct jparser *p, const char *why);
/* counts a level of nesting, for the caller to take back: r->depth */
void jparse_enter(struct jparser *p);
struct jnode *jparse_expr(struct jparser *p);
struct jnode *jparse_no_ternary(struct jparser *p); /* an expression that ends before `if` */
/* Parses a, b or (a, b). ternary: with `x if y else z`. stop: a word that ends the tuple, or NULL. */
struct jnode *jparse_tuple(struct jparser *p, bool ternary, const char *stop);
/* |a|b; first: without the leading bar */
struct jnode *jparse_filters(struct jparser *p, struct jnode *of, bool first);
struct jnode *jparse_target(struct jparser *p, bool namespaces, const char *stop);
struct jnode *jparse_name(struct jparser *p); /* a name to assign to */

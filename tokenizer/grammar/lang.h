#pragma once
/* Sets of strings as deterministic automata over code points: patterns, lists of strings, their intersections and
 * differences. Exact, bounded in states, and spending effort. */
#include "tokenizer/grammar/regex.h"

struct lang_edge {
    uint32_t from, to; /* code points */
    uint32_t target;
};
struct lang_state {
    uint32_t first, n; /* edges, sorted and disjoint */
    bool accepts;
};
struct lang { /* state 0 is the start; in the effort's arena */
    struct lang_state *states;
    struct lang_edge *edges;
    uint32_t n_states, n_edges;
};

/* The strings that contain a match of r, as re.search() finds it. ERR_USAGE: too many states; ERR_MEMORY. */
int lang_search(struct effort *effort, const struct regex *r, struct lang *out, struct error *e);
/* One string; n strings, which it sorts; lo to hi code points; and the strings without control characters and, with
 * ascii, without others than ASCII. */
int lang_string(struct effort *effort, const char *s, size_t n, struct lang *out, struct error *e);
int lang_strings(struct effort *effort, struct grammar_text *v, size_t n, struct lang *out, struct error *e);
int lang_length(struct effort *effort, uint32_t lo, uint32_t hi, struct lang *out, struct error *e);
int lang_printable(struct effort *effort, bool ascii, struct lang *out, struct error *e);
extern const struct lang lang_less; /* all strings; one state is entered by '<' only, and by each '<' */
/* Strings of x that are (minus: are not) in y. */
int lang_product(struct effort *effort, const struct lang *x, const struct lang *y, bool minus, struct lang *out,
                 struct error *e);
bool lang_is_empty(const struct lang *l, struct effort *effort);
bool lang_has(const struct lang *l, const char *s, size_t n);

/* As a grammar. chars(): the expression of one character in a range; after_less: each of the texts before it ends with
 * '<'. */
typedef expr_id (*lang_chars)(struct grammar *g, uint32_t from, uint32_t to, bool after_less);
expr_id lang_expr(struct grammar *g, struct effort *effort, const struct lang *l, lang_chars chars);

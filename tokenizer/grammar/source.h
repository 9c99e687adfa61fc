#pragma once
/* The description of valid answers as users give it: a schema, a pattern, a grammar or a list. */
#include "tokenizer/grammar/grammar.h"

enum source_kind {
    SOURCE_SCHEMA,      /* text: JSON of a schema */
    SOURCE_JSON_OBJECT, /* empty */
    SOURCE_REGEX,       /* a pattern */
    SOURCE_GBNF,        /* a grammar */
    SOURCE_CHOICES,     /* JSON array of strings */
    SOURCE_TOOL_CALLS,  /* JSON of tool_source.h */
    /* JSON of tool_source.h with the members kind and text of another source: an answer is calls or matches that one */
    SOURCE_TEXT_OR_CALLS
};
/* The compiled form of a source. Read-only, so that any number of answers share it, on any thread. */
struct source_grammars {
    struct grammar *whole;
    struct grammar *calls; /* with SOURCE_TEXT_OR_CALLS: the calls alone; else NULL */
};
struct grammar_source {
    enum source_kind kind;
    const char *text;
    size_t n;
    const char *name;                       /* what the user calls it, for errors; NULL: nothing */
    const struct source_grammars *compiled; /* NULL: not yet. Owned by whoever has compiled it */
};
/* Compiles it. ERR_USAGE says what is wrong, with the place: a JSON pointer, a character, a line. ERR_MEMORY. */
int source_compile(const struct grammar_source *s, struct grammar **g, struct error *e);
/* Compiles all grammars of a source. guard: its owner may stop the thread that compiles, ERR_CANCELLED; NULL: none. */
int source_compile_all(const struct grammar_source *s, const struct effort_guard *guard, struct source_grammars *out,
                       struct error *e);
void source_free(struct source_grammars *g);

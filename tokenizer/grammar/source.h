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
struct grammar_source {
    enum source_kind kind;
    const char *text;
    size_t n;
};
/* Compiles it. ERR_USAGE says what is wrong, with the place: a JSON pointer, a character, a line. ERR_MEMORY. */
int source_compile(const struct grammar_source *s, struct grammar **g, struct error *e);

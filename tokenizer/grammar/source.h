#pragma once
/* The description of valid answers as users give it: a schema, a pattern, a grammar or a list. */
#include "tokenizer/grammar/grammar.h"

enum source_kind { SOURCE_SCHEMA, SOURCE_JSON_OBJECT, SOURCE_REGEX, SOURCE_GBNF, SOURCE_CHOICES, SOURCE_TOOL_CALLS };
struct grammar_source {
    enum source_kind kind;
    const char *text; /* JSON of a schema; empty; pattern; grammar; JSON array of strings; JSON of tool_source.h */
    size_t n;
};
/* Compiles it. ERR_USAGE says what is wrong, with the place: a JSON pointer, a character, a line. ERR_MEMORY. */
int source_compile(const struct grammar_source *s, struct grammar **g, struct error *e);

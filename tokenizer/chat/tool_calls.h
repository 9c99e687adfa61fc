#pragma once
/* Parses tool calls from what a model writes; each family has its own markup. Pure. */
#include "base/buf.h"
#include "base/json.h"

struct tool_call {
    struct buf name, arguments; /* arguments: a JSON object as text */
    struct buf id;              /* as the model writes it; empty where its markup has none */
};
struct tool_calls { /* empty when zero-initialised */
    struct tool_call *v;
    size_t n, cap;
};
/* Appends the calls of a markup (OUTPUT_TOOL_CALL of an answer). tools: the request's tools, for the types of untyped
 * arguments; may be NULL. ERR_MODEL if any of it is not a call (nothing is appended then), ERR_MEMORY. */
int tool_calls_parse(const char *s, size_t n, const struct json *tools, struct tool_calls *out);
/* The same for the beginning of a markup, which ends with an argument. */
int tool_calls_parse_begun(const char *s, size_t n, const struct json *tools, struct tool_calls *out);
/* Appends the calls of an answer that is nothing but calls in JSON, bare, in a fenced block or between <tools> tags,
 * each of one of the request's tools: models write them so that know another markup than their template's, as
 * Qwen2.5-Coder does. ERR_MODEL: it is something else, e.g. an example; ERR_MEMORY. */
int tool_calls_parse_text(const char *s, size_t n, const struct json *tools, struct tool_calls *out);
/* Whether such an answer may begin with this text. */
bool tool_calls_may_be_text(const char *s, size_t n, const struct json *tools);
/* Appends a call as a line of JSON, a form that tool_calls_parse() reads whatever the template's is. */
int tool_calls_put_line(struct buf *b, const struct buf *name, const struct buf *arguments);
int tool_calls_copy(const struct tool_calls *from, struct tool_calls *to); /* appends; ERR_MEMORY: to is unchanged */
void tool_calls_truncate(struct tool_calls *c, size_t n);                  /* keeps the first n */
void tool_calls_free(struct tool_calls *c);

#pragma once
/* Calls while a model writes them: their names as soon as the arguments begin, and of the arguments what is certain.
 * Pure. */
#include "tokenizer/chat/tool_calls.h"

struct tool_stream;
/* tools: as for tool_calls_parse(); must outlive the stream. NULL: no memory. */
struct tool_stream *tool_stream_open(const struct json *tools);
void tool_stream_close(struct tool_stream **t);
/* Appends a piece of the markup, in whole characters. ERR_MEMORY. */
int tool_stream_add(struct tool_stream *t, const char *s, size_t n);
/* The calls so far; arguments only grow. *n_complete: how many of them are complete; the others are at most one. They
 * are the first calls of tool_calls_parse() for the whole markup, if that is calls; arguments in JSON grow with each
 * piece, others by a whole argument, and calls of other forms appear when they are complete, or not at all. */
const struct tool_calls *tool_stream_calls(const struct tool_stream *t, size_t *n_complete);
/* Whether the calls of a whole markup begin as those of the stream. */
bool tool_stream_agrees(const struct tool_stream *t, const struct tool_calls *whole);

#pragma once
/* Calls of tools in what a model writes: each family has markup of its own. Pure. */
#include "engine/base/buf.h"
#include "engine/base/json.h"

struct tool_call {
    struct buf name, arguments; /* arguments: a JSON object as text */
};
struct tool_calls { /* zero-initialised: none */
    struct tool_call *v;
    size_t n, cap;
};
/* Appends the calls of a markup (PART_TOOL of an answer). tools: what the model was offered, for the types of arguments
 * that are written without any; may be NULL. ERR_MODEL when some of it is no call (nothing is appended then), ERR_MEMORY. */
int tools_parse(const char *s, size_t n, const struct json *tools, struct tool_calls *out);
void tools_cut(struct tool_calls *c, size_t n); /* the first n stay */
void tools_free(struct tool_calls *c);

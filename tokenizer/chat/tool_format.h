#pragma once
/* How a model writes tool calls whose arguments are JSON, as literal text around names and arguments; for grammars of forced calls. */
#include "tokenizer/chat/chat_template.h"

struct tool_format {
    const char *open, *close; /* around all calls */
    const char *before_name, *after_name, *after_arguments;
    const char *between; /* calls */
    bool is_single;      /* a second call would be written in another way */
};
/* Finds the format of the model's template. NULL: calls of another form, or none. */
const struct tool_format *tool_format_find(const struct chat_template *c);

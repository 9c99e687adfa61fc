#pragma once
/* How a model writes tool calls, as literal text around names and arguments; for grammars of forced calls. */
#include "tokenizer/chat/chat_template.h"

struct tool_format {
    const char *open, *close; /* around all calls */
    const char *before_name, *after_name, *after_arguments;
    const char *between; /* calls */
    bool is_single;      /* a second call would be written in another way */
    /* Arguments between tags, one after the other; before_key is NULL: they are JSON. before_json: instead of
     * before_text before a value that is JSON; NULL: the same, and the type in the tool's schema tells plain text from
     * JSON. */
    const char *before_key, *before_text, *before_json, *after_value;
    const char *ends[3]; /* texts that end a value; no value contains one */
};
/* Finds the format of the model's template. NULL: calls of an unknown form, or none. */
const struct tool_format *tool_format_find(const struct chat_template *c);

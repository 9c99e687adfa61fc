#pragma once
/* Declarations shared by the parsers of tool calls, tool_calls_*.c. */
#include "tokenizer/chat/dialects.h"
#include "tokenizer/chat/tool_calls.h"

/* tool_calls_add.c */
/* NULL: no memory. The prefix "functions." of a name is dropped */
struct tool_call *tool_call_add(struct tool_calls *c, struct markup_range name);
/* ERR_MODEL: not a JSON object. */
int tool_call_check_object(struct markup_range t);
/* Adds a call whose arguments are JSON. */
int tool_call_add_json(struct tool_calls *c, struct markup_range name, struct markup_range arguments);

/* tool_calls_values.c */
enum tool_value_kind { /* bits */
                       KIND_STRING = 1,
                       KIND_NUMBER = 2,
                       KIND_BOOL = 4,
                       KIND_NULL = 8,
                       KIND_ARRAY = 16,
                       KIND_OBJECT = 32,
                       KIND_ALL = 63,
                       /* a string, and declared as nothing else: written without quotes. Others may have them, as
                        * the grammars of required calls write them (schema_tagged.c) */
                       KIND_PLAIN = 64
};
/* Returns the kinds of values that the tool's schema allows a parameter; 0: it does not say. */
unsigned tool_call_param_kinds(const struct json *tools, const struct tool_call *k, struct markup_range key);
/* Appends a value of a tag, which has no quotes, as JSON of one of the kinds; 0: as JSON if it is, else as a string. */
int tool_call_put_value(struct buf *out, struct markup_range value, unsigned kinds);
int tool_call_add_argument(struct tool_call *k, struct markup_range key, struct markup_range value, unsigned kinds);
int tool_call_close_arguments(struct tool_call *k); /* after the last argument */

/* tool_calls_notation.c: rewrites Python's notation of a value as JSON. ERR_MODEL: it is none. */
int tool_calls_put_python(struct buf *out, struct markup_range value);

/* tool_calls_json.c: one call a line, as of a server (remote_request.c) */
dialect_parser tool_calls_parse_lines;

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
/* Returns 1 if the tool's schema declares the parameter a string, 0 if another type, -1 if it declares no type. */
int tool_call_param_is_string(const struct json *tools, const struct tool_call *k, struct markup_range key);
/* Appends a value. is_string as from tool_call_param_is_string(): an untyped value is JSON if it parses, else a
 * string. */
int tool_call_put_value(struct buf *out, struct markup_range value, int is_string);
int tool_call_add_argument(struct tool_call *k, struct markup_range key, struct markup_range value, int is_string);
int tool_call_close_arguments(struct tool_call *k); /* after the last argument */

/* tool_calls_json.c: one call a line, as of a server (remote_request.c) */
dialect_parser tool_calls_parse_lines;

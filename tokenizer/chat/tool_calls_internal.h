#pragma once
/* Declarations shared by the parsers of tool calls, tool_calls_*.c. */
#include "tokenizer/chat/markup.h"
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
/* Adds an argument. is_string as from tool_call_param_is_string(): an untyped value is JSON if it parses, else a
 * string. */
int tool_call_add_argument(struct tool_call *k, struct markup_range key, struct markup_range value, int is_string);
int tool_call_close_arguments(struct tool_call *k); /* after the last argument */

/* Appends the calls in a markup, or in what its marks enclose. tools: the request's tools, or NULL. ERR_MODEL,
 * ERR_MEMORY. */
typedef int tool_calls_parser(struct tool_calls *c, struct markup_range in, const struct json *tools);
/* tool_calls_json.c: arguments in JSON */
tool_calls_parser tool_calls_parse_json, tool_calls_parse_lines, tool_calls_parse_deepseek, tool_calls_parse_kimi,
    tool_calls_parse_gpt_oss, tool_calls_parse_mistral, tool_calls_parse_gigachat, tool_calls_parse_solar,
    tool_calls_parse_llama;
/* tool_calls_tags.c: arguments in tags */
tool_calls_parser tool_calls_parse_tagged, tool_calls_parse_seed, tool_calls_parse_hunyuan,
    tool_calls_parse_hunyuan_open, tool_calls_parse_plain_invokes, tool_calls_parse_atem_invokes,
    tool_calls_parse_marked_invokes, tool_calls_parse_spaced_invokes, tool_calls_parse_gcml_invokes,
    tool_calls_parse_step_invokes, tool_calls_parse_xtml, tool_calls_parse_minimax_m3;
/* tool_calls_notation.c: Python and Gemma's notation */
tool_calls_parser tool_calls_parse_python, tool_calls_parse_gemma;

#define MINIMAX_MARK "]<]minimax[>[" /* precedes each tag of MiniMax-M3 */

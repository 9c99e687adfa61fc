#pragma once
/* Chat templates: render a conversation to prompt text with the origin of every byte, and split model output into text,
 * thinking and tool calls. */
#include "base/json.h"
#include "tokenizer/chat/dialects.h"
#include "tokenizer/tokenizer.h"

struct chat_template; /* A parsed template and its special tokens. Read-only after opening. */

/* Finds chat_template.jinja, chat_template.json or chat_template in tokenizer_config.json (a string or a list of named
 * templates) in dir, or tokenizer.chat_template of a GGUF file. Reads template_file instead if it is not NULL (dir may
 * then be NULL, or provides bos/eos). Formats published without Jinja (DeepSeek-V3.2, V4, Kimi K3) are selected by the
 * checkpoint's model_type and are built in. Parses at once: a broken template is an ERR_MODEL with line and column. No
 * template: *c = NULL and ERR_MODEL. */
int chat_template_open(struct chat_template **c, const char *dir, const char *template_file, struct error *e);
void chat_template_close(struct chat_template **c);
/* Hash of the template text, stored in saved sessions to detect a changed template. */
uint64_t chat_template_hash(const struct chat_template *c);
/* True if the template has a version for tool use, or reads the variable `tools`. */
bool chat_template_takes_tools(const struct chat_template *c);
/* Whether the template, or its version for tools, reads this variable. */
bool chat_template_reads(const struct chat_template *c, const char *variable);
/* Returns whether the template text contains this word in quotes, as it does for the roles that it handles
 * separately. */
bool chat_template_mentions(const struct chat_template *c, const char *word, size_t n);
/* vars: an object with "messages" and optionally tools, add_generation_prompt and any other template variable.
 * bos_token and eos_token come from the checkpoint if vars has none. String values are TEXT_VALUE, template text is
 * TEXT_TEMPLATE. ERR_RUNTIME with the template's own message (raise_exception), or the error with line and column. */
int chat_template_render(const struct chat_template *c, const struct json *vars, struct text *out, struct error *e);

/* Renders a prompt, as chat_template_render() does, but puts the messages into the forms that the template takes first
 * (chat_forms.h), and writes the calls of earlier answers also where the template leaves them out (LFM2, Granite 3). */
int chat_template_render_prompt(const struct chat_template *c, const struct json *vars, struct text *out,
                                struct error *e);

/* Returns the dialects of a template: of the default one, if there are several. */
const struct dialect_set *chat_template_dialects(const struct chat_template *c);

/* Finds the control token that the template writes behind an answer, such as <|im_end|>: the model ends its answers
 * with it. *id = -1: there is none, or a turn has several messages, each with an end. ERR_MEMORY. */
int chat_template_end(const struct chat_template *c, const struct tokenizer *t, int32_t *id, struct error *e);

/* Splits model output into text, thinking and tool calls by the markers of the model family. */
struct output_parser;
/* prompt_tail: end of the rendered prompt, which may already have opened a thinking block. Markers are chosen by the
 * template text (think tags, gpt-oss channels, Kimi). NULL on ERR_MEMORY. */
struct output_parser *output_parser_open(const struct chat_template *c, const char *prompt_tail, size_t n);
void output_parser_close(struct output_parser **p);
/* Feeds decoded bytes (control tokens as text with is_special set). Calls fn for each stretch whose kind is certain. A
 * marker that is split over calls is held back until it is complete. */
typedef int (*output_parser_fn)(void *ctx, enum output_kind part, const char *data, size_t n);
int output_parser_feed(struct output_parser *p, const char *data, size_t n, bool is_special, output_parser_fn fn,
                       void *ctx);
/* Whether the next text belongs to the answer, neither to thinking nor to a tool call. */
bool output_parser_in_answer(const struct output_parser *p);
/* Whether the header of a message comes next, as after the prompts of gpt-oss. */
bool output_parser_in_header(const struct output_parser *p);
int output_parser_flush(struct output_parser *p, output_parser_fn fn, void *ctx);
/* Whether it holds nothing back that output_parser_flush() would pass on. */
bool output_parser_is_empty(const struct output_parser *p);

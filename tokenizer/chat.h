#pragma once
/* The chat template of a checkpoint: a conversation to prompt text, with the origin of every byte. */
#include "engine/base/json.h"
#include "tokenizer/tokenizer.h"

struct chat; /* a parsed template and the variables that come with it; read-only after opening */

/* Finds chat_template.jinja, chat_template.json or chat_template in tokenizer_config.json (a string or a list of named
 * ones) in dir, or tokenizer.chat_template of a GGUF file, or reads template_file when that is not NULL (dir may then be NULL, or give bos/eos). A known prompt
 * format without Jinja (DeepSeek-V3.2, V4) is recognised by the checkpoint's model_type and comes from tokenizer/.
 * Parsed at once: a broken template is an ERR_MODEL with line and column now. No template: *c = NULL and ERR_MODEL. */
int chat_open(struct chat **c, const char *dir, const char *template_file, struct error *e);
void chat_close(struct chat **c);
uint64_t chat_hash(const struct chat *c); /* of the template's text: a saved session knows when it changed */
/* Whether the template's text has this word in quotes, as it has the roles that it treats apart. */
bool chat_names(const struct chat *c, const char *word, size_t n);

/* conv: an object with "messages" and optionally tools, add_generation_prompt and any other template variable; bos_token
 * and eos_token come from the checkpoint when conv has none. `values` strings are TEXT_VALUE, template text TEXT_TEMPLATE.
 * ERR_RUNTIME with the template's own message (raise_exception) or what went wrong with line and column. */
int chat_render(const struct chat *c, const struct json *conv, struct text *out, struct error *e);

/* Splits model output into what is thought, what is said and what calls a tool, by the family's own markers. */
enum part { PART_TEXT, PART_THINKING, PART_TOOL };
struct parts;
/* prompt_tail: the end of the rendered prompt, which may already have opened a thinking block. thinking markers are taken
 * from the template and the vocabulary (think tags, gpt-oss channels, Kimi). NULL on ERR_MEMORY. */
struct parts *parts_open(const struct chat *c, const char *prompt_tail, size_t n);
void parts_close(struct parts **p);
/* Feeds decoded bytes (control tokens included as text, special set when the bytes are one); calls fn for each stretch
 * whose part is certain. A marker split over calls is held back. */
typedef int (*parts_fn)(void *ctx, enum part part, const char *data, size_t n);
int parts_add(struct parts *p, const char *data, size_t n, bool special, parts_fn fn, void *ctx);
int parts_flush(struct parts *p, parts_fn fn, void *ctx);

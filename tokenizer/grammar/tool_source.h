#pragma once
/* Tool calls as a grammar: literal text around the names of tools and arguments that are valid by their schemas. */
#include "base/json.h"
#include "tokenizer/grammar/grammar.h"

/* Whether a tool can have this name: letters, digits, '_', '-' and '.', at least one. */
bool tool_source_is_name(const struct json *name);
/* Compiles {"format": FORMAT, "most": calls, "tools": [{"name", "parameters"}]}. FORMAT has "open", "close",
 * "before_name", "after_name", "after_arguments" and "between": each is a text, or a list of texts and token ids.
 * Arguments are written as JSON, unless FORMAT has "before_key", "before_text", "after_value" and "ends": then they are
 * members between tags (struct schema_tags; "before_json" is optional). A tool without parameters takes an empty
 * object. ERR_USAGE names the tool and the place in its schema. */
int tool_source_expr(struct grammar *g, struct effort *effort, const struct json *source, expr_id *out,
                     struct error *e);

#pragma once
/* The members of a request that say what its answer must match. */
#include "base/json.h"
#include "tokenizer/grammar/source.h"

/* Reads response_format, guided_json, guided_regex, guided_grammar, guided_choice or structured_outputs, of which a
 * request may have one, and checks it. *found: whether there is one. The text of *out is in the arena or the request.
 * ERR_USAGE names the member. */
int api_format_read(struct arena *a, const struct json *root, struct grammar_source *out, bool *found, struct error *e);
/* Reads a format with a type: text, json_object with or without a schema, or json_schema, whose schema is a member of
 * its own or of json_schema. name: of the member, for messages. */
int api_format_read_typed(struct arena *a, const char *name, const struct json *format, struct grammar_source *out,
                          bool *found, struct error *e);
/* Makes a source of a member's value: of a string as it is, of other values as JSON text. ERR_USAGE names the member
 * and the place in its value. */
int api_format_take(struct arena *a, const char *name, const struct json *value, enum source_kind kind,
                    struct grammar_source *out, struct error *e);

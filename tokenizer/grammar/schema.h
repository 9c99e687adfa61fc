#pragma once
/* JSON Schema 2020-12 as a grammar of compact JSON. Every text of the grammar is valid by the schema; not every valid
 * document is a text: members keep the order of `properties`, one space may follow a comma or colon, and `properties`
 * without additionalProperties allows no others. Keywords that the grammar cannot enforce are refused. */
#include "base/json.h"
#include "tokenizer/grammar/grammar.h"

/* schema: an object, true or false. The effort's arena must outlive the call only. ERR_USAGE:
 * "#/POINTER/OF/keyword: cause". ERR_MEMORY. */
int schema_expr(struct grammar *g, struct effort *effort, const struct json *schema, expr_id *out, struct error *e);
/* An object as members between tags instead of JSON: before_key NAME before_text or before_json VALUE after_value. A
 * value whose schema is of type string is plain text; other values are JSON. */
struct schema_tags {
    expr_id before_key, before_text, before_json, after_value;
    /* before_text and before_json differ; else only the type that a property states itself makes its value plain text
     */
    bool is_marked;
    /* list of texts that end a value; each begins with "</" and has no special characters of patterns */
    const struct json *ends;
};
int schema_tagged_expr(struct grammar *g, struct effort *effort, const struct json *schema,
                       const struct schema_tags *tags, expr_id *out, struct error *e);
/* Any JSON object. */
expr_id schema_any_object(struct grammar *g);

#pragma once
/* JSON Schema 2020-12 as a grammar of compact JSON. Every text of the grammar is valid by the schema; not every valid document is a text: members keep the
 * order of `properties`, one space may follow a comma or colon, and `properties` without additionalProperties allows no others. Keywords that the grammar
 * cannot enforce are refused. */
#include "engine/base/json.h"
#include "tokenizer/grammar/grammar.h"

/* schema: an object, true or false. The arena holds working memory, and must outlive the call only. ERR_USAGE: "#/POINTER/OF/keyword: cause". ERR_MEMORY. */
int schema_expr(struct grammar *g, struct arena *a, const struct json *schema, expr_id *out, struct error *e);
/* Any JSON object. */
expr_id schema_any_object(struct grammar *g);

#pragma once
/* What the built-in model is not asked. It knows only hearth, and answers anything else with something on hearth or with nonsense: so the
 * program looks at each question first, and what is not about hearth it answers by itself. How it tells them apart is learnt from the text
 * that the model is trained on, by engine/ember/scope.py, and lies beside the weights. */
#include "engine/base/error.h"
#include "engine/base/json.h"

struct scope;
/* The caller closes it. NULL: the model that this binary holds answers everything. ERR_MODEL: the file beside the weights is damaged; ERR_MEMORY. */
int scope_open(struct scope **out, struct error *e);
void scope_close(struct scope **s);
/* What the program answers to a conversation {"messages": [...]} in the model's place, as long as s is open. NULL: the model is to answer. */
const struct json *scope_answer(const struct scope *s, const struct json *conv);
/* The conversation as the model is to see it: without documents, of which it can make nothing, and without what the program has answered. Lies in
 * the arena, and points into conv. NULL: no memory. */
const struct json *scope_asked(const struct scope *s, const struct json *conv, struct arena *a);

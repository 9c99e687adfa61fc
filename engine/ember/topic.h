#pragma once
/* Topic classifier of the built-in model. The model knows only hearth, so the program classifies each question first
 * and answers off-topic questions itself. The weights are trained by training/ember/scope.py on the model's corpus and
 * stored next to the model. */
#include "base/error.h"
#include "base/json.h"

struct topic;
/* Opens the classifier; the caller closes it. *out is NULL if the built-in model has none: then the model answers
 * everything. ERR_MODEL: its file is damaged; ERR_MEMORY. */
int topic_open(struct topic **out, struct error *e);
void topic_close(struct topic **s);
/* Returns the program's own answer to a conversation {"messages": [...]}, valid while s is open. NULL: run the
 * model. */
const struct json *topic_fixed_answer(const struct topic *s, const struct json *conv);
/* Returns the conversation for the model: without documents, which it cannot use, and without turns that the program
 * answered. Allocated in the arena; points into conv. NULL: no memory. */
const struct json *topic_model_input(const struct topic *s, const struct json *conv, struct arena *a);

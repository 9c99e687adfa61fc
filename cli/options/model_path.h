#pragma once
/* Finds models: in the directories of the model path, in the Hugging Face cache (hub_cache.h), and where other programs
 * keep theirs (model_stores.h). */
#include "cli/options/model_list.h"
#include "cli/options/opt.h"

bool model_path_is_url(const char *model); /* true for http://… and https://… */
/* Resolves -m to a directory, a GGUF file or "ember:". ERR_MODEL without a match. */
int model_path_find(const struct opts *o, char *out, size_t cap, struct error *e);
/* Lists all models, the built-in one first; free with model_list_free. */
int model_path_list(const struct opts *o, struct model_list *l, struct error *e);
/* Writes what people call the model at a path to which model_path_find resolved: ORG/NAME[:QUANT] in a Hugging Face
 * cache, otherwise the last component; "ember". */
void model_path_name(const char *path, char *out, size_t cap);

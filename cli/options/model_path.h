#pragma once
/* Finds models: in the directories of the model path, and in the Hugging Face cache
 * (HUB/models--ORG--NAME/snapshots/REVISION). */
#include "cli/options/opt.h"
#include "cli/options/paths.h"

struct model {
    char name[200]; /* as -m accepts it: "Qwen3-30B-A3B-FP8", "Qwen/Qwen3-30B-A3B-FP8" */
    char dir[PATHS_MAX];
};
bool model_path_is_url(const char *model); /* true for http://… and https://… */
/* Resolves -m to a directory, a GGUF file or "ember:". ERR_MODEL without a match. */
int model_path_find(const struct opts *o, char *out, size_t cap, struct error *e);
/* Lists all models, the built-in one first; free with mem_free. */
int model_path_list(const struct opts *o, struct model **out, size_t *n, struct error *e);

#pragma once
/* Finds models: in the directories of the model path, and in the Hugging Face cache (HUB/models--ORG--NAME/snapshots/REVISION). */
#include "cli/app.h"

struct model {
    char name[200]; /* as -m accepts it: "Qwen3-30B-A3B-FP8", "Qwen/Qwen3-30B-A3B-FP8" */
    char dir[PATHS_MAX];
};
/* Lists all models, the built-in one first; free with mem_free. */
int models_list(const struct opts *o, struct model **out, size_t *n, struct error *e);
int models_print(struct app *a, struct error *e);                 /* --models */
int models_text(struct app *a, struct buf *out, struct error *e); /* one row each: family, size, memory, speed */

/* Resolves ORG/NAME to its snapshot in the cache. ERR_CANCELLED: not such a name, or not cached; ERR_MODEL: several snapshots. */
int models_resolve_snapshot(const char *name, char *dir, size_t cap, struct error *e);
/* Resolves a directory to the model in it: a model folder of the cache, the cache itself, or a directory of models. A directory
 * that is a model or has a tokenizer is left as is. ERR_MODEL: no model, or several, which are named. */
int models_resolve_dir(const char *given, char *dir, size_t cap, struct error *e);

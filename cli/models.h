#pragma once
/* The models that are at hand: in the directories of the model path, and in the cache where Hugging Face's tools keep what
 * they fetch (HUB/models--ORG--NAME/snapshots/REVISION). */
#include "cli/app.h"

struct model {
    char name[200]; /* as -m takes it: "Qwen3-30B-A3B-FP8", "Qwen/Qwen3-30B-A3B-FP8" */
    char dir[PATHS_MAX];
};
/* All, the built-in one first; freed with mem_free. */
int models_find(const struct opts *o, struct model **out, size_t *n, struct error *e);
int models_print(struct app *a, struct error *e);                 /* --models */
int models_text(struct app *a, struct buf *out, struct error *e); /* a row each: family, size, memory, speed */

/* ORG/NAME to its snapshot in the cache. ERR_CANCELLED: it is no such name, or not there; ERR_MODEL: there are several. */
int models_snapshot(const char *name, char *dir, size_t cap, struct error *e);
/* A directory that -m names: a model's folder of the cache, the cache itself, or a directory of models, to the one model
 * in it; one that is a model, or has a tokenizer, stays. ERR_MODEL: it is none, or could be one of those that are named. */
int models_within(const char *given, char *dir, size_t cap, struct error *e);

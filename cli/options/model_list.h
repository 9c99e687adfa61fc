#pragma once
/* A list of models on this machine. */
#include <stdbool.h>

#include "base/error.h"
#include "cli/options/paths.h"

struct model {
    char name[304];      /* as -m accepts it: "Qwen3-30B-A3B-FP8", "Qwen/Qwen3-30B-A3B-FP8", "org/NAME-GGUF:Q4_K_M" */
    char dir[PATHS_MAX]; /* a directory, a GGUF file, or "ember:" */
    const char *source;  /* "model path", "Hugging Face cache", "LM Studio" */
};
struct model_list { /* zero: empty */
    struct model *v;
    size_t n, cap;
};
/* ERR_MEMORY: the list is unchanged. */
int model_list_add(struct model_list *l, const char *name, const char *dir, const char *source);
void model_list_sort(struct model_list *l, size_t from); /* by name, from an index on */
void model_list_free(struct model_list *l);

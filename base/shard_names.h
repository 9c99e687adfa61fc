#pragma once
/* Names of a checkpoint's files of weights: those that a list of them (model.safetensors.index.json) names or should
 * have named. Some published lists are those of another version of the model, none of whose files are there. Pure. */
#include <stdbool.h>
#include <stddef.h>

enum { SHARD_NAME_SIZE = 48, SHARD_NAMES_MOST = 4096 };
typedef bool shard_names_has(const void *ctx, const char *name); /* whether there is such a file */

/* Returns the number of files by whose names alone a checkpoint is complete: model-00001-of-0000N.safetensors to the
 * Nth; 0: there are none, or several such sets. The only file model.safetensors counts as one. */
int shard_names_find(shard_names_has *has, const void *ctx);
/* Writes the name of the ith file of n, from 1. */
void shard_names_put(shard_names_has *has, const void *ctx, int i, int n, char out[SHARD_NAME_SIZE]);
/* Whether a file of this name, in a directory without a list, holds weights of the model: safetensors, no adapter. */
bool shard_names_is_weights(const char *name);
/* The path that a list of files names, of n bytes: without leading ./ and relative to the list. NULL: it leads out of
 * the directory, or into a hidden file or folder. */
const char *shard_names_path(const char *name, size_t n, size_t *path_bytes);

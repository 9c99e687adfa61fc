#pragma once
/* Parses safetensors files and their index. Checks all names, shapes and offsets; the data is not read. */
#include "base/error.h"
#include "engine/weights/tensor.h"

/* Parses the header of a file of `size` bytes, for checkpoint_open and the fuzz target, and calls fn for each tensor.
 * `data` may be shorter than the file if it holds the whole header. */
/* t is valid during the call; a non-zero return stops the parsing and becomes its result */
typedef int (*safetensors_fn)(void *ctx, const struct tensor *t);
/* *is_mlx, which may be NULL, becomes true if the file's metadata name MLX as its writer. */
int safetensors_parse(const uint8_t *data, size_t size, const char *what, safetensors_fn fn, void *ctx, bool *is_mlx,
                      struct error *e);

/* Parses model.safetensors.index.json and calls fn for each (tensor, file) pair after checking the file name. */
typedef int (*index_fn)(void *ctx, const char *tensor, size_t n_tensor, const char *file, size_t n_file);
int safetensors_index(const char *text, size_t n, const char *what, index_fn fn, void *ctx, struct error *e);

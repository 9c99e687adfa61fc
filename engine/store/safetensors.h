#pragma once
/* The tensors of a checkpoint: one safetensors file of a directory, or an index and its shards, or a GGUF file and those it
 * was split into, mapped read-only. Strict: whatever a file promises is checked against its size before a byte of it is used. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mat.h"
#include "engine/base/mem.h"

struct tensor {
    const char *name; /* NUL-terminated */
    const uint8_t *data;
    size_t size; /* bytes */
    int64_t shape[6];
    uint8_t dtype, ndim;
    bool used; /* claimed by the model */
    int shard;
};

struct shard {
    char *name; /* file name inside the directory */
    struct file_map map;
};

struct checkpoint {
    char *dir; /* files lie in it */
    bool gguf;
    struct json meta; /* GGUF: the metadata of the first file, until checkpoint_forget */
    struct arena meta_arena;
    struct shard *shards;
    int n_shards;
    struct tensor *tensors;
    size_t n_tensors, cap_tensors;
    uint32_t *table; /* hash table of tensor index + 1 */
    size_t table_size;
    struct arena arena;   /* names */
    uint64_t fingerprint; /* of all names, types, shapes and places */
    size_t bytes;         /* of all tensors */
};

/* Opens the weights of a directory, or of a GGUF file. ERR_MODEL names file, tensor and numbers. Nothing is left behind on error. */
int checkpoint_open(struct checkpoint *c, const char *dir, struct error *e);
void checkpoint_close(struct checkpoint *c);
void checkpoint_forget(struct checkpoint *c);                                 /* the metadata, which takes megabytes and is read once */
struct tensor *checkpoint_find(const struct checkpoint *c, const char *name); /* NULL: not there */

/* The header of one file of `size` bytes, for checkpoint_open and the fuzz target: calls fn for each tensor. `data` may be
 * shorter than the whole file only when it holds all of the header. */
typedef int (*safetensors_fn)(void *ctx, const struct tensor *t);
int safetensors_parse(const uint8_t *data, size_t size, const char *what, safetensors_fn fn, void *ctx, struct error *e);

/* model.safetensors.index.json: fn for each (tensor, file) pair after the file name was checked. */
typedef int (*index_fn)(void *ctx, const char *tensor, size_t n_tensor, const char *file, size_t n_file);
int safetensors_index(const char *text, size_t n, const char *what, index_fn fn, void *ctx, struct error *e);

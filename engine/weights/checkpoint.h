#pragma once
/* The tensors of a checkpoint, mapped read-only: one safetensors file, an index and its shards, or a GGUF file and the
 * files it was split into. Every offset and size in a file is checked against the file's size before any data is used.
 * Read-only after opening, any thread. */
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mat.h"
#include "base/mem.h"
#include "engine/weights/tensor.h"

struct shard {
    char *name; /* file name inside the directory */
    struct file_map map;
};

struct checkpoint {
    char *dir; /* directory of the files */
    bool gguf;
    bool mlx;         /* MLX wrote the files: other names, and shapes of convolutions */
    struct json meta; /* GGUF: metadata of the first file, until checkpoint_free_metadata */
    struct arena meta_arena;
    struct shard *shards;
    int n_shards;
    struct tensor *tensors;
    size_t n_tensors, cap_tensors;
    bool is_indexed;      /* while opening: an index lists the files */
    struct tensor *again; /* while opening: those whose names other files have, too */
    size_t n_again, cap_again;
    uint32_t *table; /* hash table of tensor index + 1 */
    size_t table_size;
    struct arena arena;   /* names */
    uint64_t fingerprint; /* hash of all names, dtypes, shapes and positions */
    size_t bytes;         /* all tensors */
};

/* Opens the weights of a directory or a GGUF file. ERR_MODEL names file, tensor and numbers. Releases everything on
 * error. */
int checkpoint_open(struct checkpoint *c, const char *dir, struct error *e);
void checkpoint_close(struct checkpoint *c);
void checkpoint_free_metadata(struct checkpoint *c); /* frees the metadata (megabytes, read once) */
/* Fills the table anew, after names have changed (checkpoint_names.h). ERR_MODEL: two tensors have one name. */
int checkpoint_index(struct checkpoint *c, struct error *e);
struct tensor *checkpoint_find(const struct checkpoint *c, const char *name); /* NULL: not found */

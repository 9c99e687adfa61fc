#pragma once
/* Bounded reader of GGUF files (version 3, little-endian) that nobody vouches for: the metadata as a JSON object, and where
 * each tensor lies. Source: ggml's docs/gguf.md. Arrays become JSON arrays, numbers JSON numbers. Strings point into the
 * file, which must outlive what was read; the rest lives in the caller's arena. */
#include "engine/base/json.h"
#include "engine/base/mat.h"

struct gguf_tensor {
    const char *name;
    uint64_t offset, size; /* of its bytes, in the file */
    int64_t shape[4];      /* rows before columns, the reverse of how the file has it */
    uint8_t ndim, dtype;
};
struct gguf {
    struct json meta;            /* an object, no key twice */
    struct gguf_tensor *tensors; /* [n_tensors], in the order of the file; names may repeat */
    size_t n_tensors;
};
/* Reads the head of a file of `size` bytes. ERR_MODEL names file, key or tensor, and numbers; a tensor in a format that hearth
 * does not compute with is refused by name. */
int gguf_parse(struct gguf *g, struct arena *a, const uint8_t *data, size_t size, const char *what, struct error *e);

/* The file of a model path into file: the path itself when its name ends in .gguf, or the only model (the first of its split
 * files) in a directory that has no config.json. Returns 1; 0 when the path is nothing of GGUF; ERR_USAGE for two models. */
int gguf_find(const char *path, char *file, size_t cap, struct error *e);
/* What a name of split files ("...-00001-of-00003.gguf") says; false: the file stands alone. stem: bytes before the numbers. */
bool gguf_split(const char *name, int *number, int *count, size_t *stem);

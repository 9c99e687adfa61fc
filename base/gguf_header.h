#pragma once
/* What the header of a GGUF file says. */
#include "base/json.h"

struct gguf_tensor {
    const char *name;
    uint64_t offset, size; /* position and size in the file, bytes */
    int64_t shape[4];      /* rows before columns, the reverse of the file's order */
    uint8_t ndim, dtype;
};
struct gguf {
    struct json meta;            /* an object without repeated keys */
    struct gguf_tensor *tensors; /* [n_tensors], in file order; names may repeat */
    size_t n_tensors;
};

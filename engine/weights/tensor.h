#pragma once
/* A tensor of a checkpoint, in its mapped file. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mat.h"

struct tensor {
    const char *name;    /* NUL-terminated */
    const uint8_t *data; /* in the mapped file, unaligned */
    size_t size;         /* bytes */
    int64_t shape[6];    /* [ndim], outermost first */
    uint8_t dtype, ndim; /* enum dtype */
    bool is_claimed;     /* a parameter of the model has been loaded from it */
    bool is_listed;      /* the index of the files says that this one has it */
    int shard;           /* index of its file */
};

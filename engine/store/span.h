#pragma once
/* Maps byte ranges of a checkpoint to NUMA nodes where the checkpoint is copied in file order rather than per matrix (numa_copy.h) because a GPU reads whole
 * experts: rows of every matrix belong to the node whose threads compute them. Pure except for its list. */
#include "cpu/numa.h"
#include "engine/store/weights.h"

struct span {
    const uint8_t *at;
    size_t bytes;
    int node;
};
struct spans {
    struct span *span; /* [n] by address; ranges overlap where matrices are interleaved in one tensor */
    int n;
    size_t largest;
};
/* Lists the layers' matrices, split as numa_copy.c splits them. Transposed experts have no rows to assign and are left out. ERR_MEMORY. */
int spans_open(struct spans *s, const struct weights *w, const struct numa *nodes, struct error *e);
void spans_close(struct spans *s);
/* Returns the number of bytes from p, of `left`, that belong to one node. Pages of `page` bytes, counted from address `to`, are assigned to the node that owns
 * most of them; at most `most` bytes are returned. *node -1: no owner, interleave. */
size_t spans_stretch(const struct spans *s, const uint8_t *p, size_t left, uintptr_t to, size_t page, size_t most, int *node);

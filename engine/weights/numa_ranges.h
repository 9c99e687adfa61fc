#pragma once
/* Maps byte ranges of a checkpoint to NUMA nodes where the checkpoint is copied in file order rather than per matrix
 * (numa_copy.h) because a GPU reads whole experts: rows of every matrix belong to the node whose threads compute them.
 * Pure except for its list. */
#include "cpu/numa.h"
#include "engine/weights/weights.h"

struct numa_range {
    const uint8_t *at;
    size_t bytes;
    const uint8_t *end; /* largest end of this range and those before */
    int node;
};
struct numa_ranges {
    struct numa_range *range; /* [n] by address; ranges overlap where matrices are interleaved in one tensor */
    int n;
};
/* Lists the layers' matrices, split as numa_copy.c splits them. Transposed matrices have no rows to assign and are left
 * out. ERR_MEMORY. */
int numa_ranges_open(struct numa_ranges *s, const struct weights *w, const struct numa *nodes, struct error *e);
void numa_ranges_close(struct numa_ranges *s);
/* Returns the number of bytes from p, of `left`, that belong to one node. Pages of `page` bytes, counted from address
 * `to`, are assigned to the node that owns most of them; at most `most` bytes are returned. *node -1: no owner,
 * interleave. */
size_t numa_ranges_run(const struct numa_ranges *s, const uint8_t *p, size_t left, uintptr_t to, size_t page,
                       size_t most, int *node);
/* Returns how many bytes of [p, p + bytes), laid out from the beginning of a page, would be in pages of another
 * node. */
size_t numa_ranges_misplaced(const struct numa_ranges *s, const uint8_t *p, size_t bytes, size_t page);

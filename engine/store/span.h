#pragma once
/* Which memory node the bytes of a checkpoint should lie on where it is not copied matrix by matrix (place.h) but in the files' order, because a device
 * reads whole experts there: rows of every matrix to the node whose threads compute them. Pure but for its list. */
#include "cpu/numa.h"
#include "engine/store/weights.h"

struct span {
    const uint8_t *at;
    size_t bytes;
    int node;
};
struct spans {
    struct span *span; /* [n] by address; may lie over each other where matrices are woven into one tensor */
    int n;
    size_t largest;
};
/* Layers' matrices, cut as place.c cuts them. Experts that are stored turned have no rows to give away: they are left out. ERR_MEMORY. */
int spans_open(struct spans *s, const struct weights *w, const struct numa *nodes, struct error *e);
void spans_close(struct spans *s);
/* Bytes from p on, of the `left` that there are, that are to come from one node: pages of `page` bytes as they will lie from address `to` on, each
 * where most of it belongs, `most` at once. *node -1: nobody's, by turns. */
size_t spans_stretch(const struct spans *s, const uint8_t *p, size_t left, uintptr_t to, size_t page, size_t most, int *node);

#pragma once
/* Opens workspaces: the sizes of their buffers follow from the config and the number of rows. */
#include "engine/layer/work.h"

/* Allocates through alloc/release (host memory: NULL, NULL, NULL). c must outlive w. ERR_MEMORY: nothing stays
 * allocated. */
int work_open(struct work *w, const struct config *c, int rows, void *(*alloc)(void *, size_t),
              void (*release)(void *, void *), void *ctx, struct error *e);
void work_close(struct work *w); /* safe on a zeroed one */
/* Returns a view of w that begins at row `row`. Buffers that outlive a block advance; scratch (q, kv, att, ...) is
 * shared. Not to be closed. */
struct work work_slice(const struct config *c, const struct work *w, int row);
/* Hands buffers that grew in a slice back to w; call after each use of a slice that attends. */
void work_keep_grown(struct work *w, const struct work *slice);
size_t work_bytes(const struct config *c, int rows); /* bytes that work_open allocates */

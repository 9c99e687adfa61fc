#pragma once
/* Opens workspaces: the sizes of their buffers follow from the config and the number of rows. */
#include "engine/layer/work.h"

/* How long the numbers of a token must last. */
enum work_life {
    WORK_SCRATCH, /* within a call of this folder; also tables for all tokens */
    WORK_QUERIES, /* from the call that makes queries to that which attends: scratch, unless these are separate passes
                   */
    WORK_ROUTED,  /* scratch of the routed experts */
    WORK_CALLS,   /* until the next rows go through the same call: read by the caller, or by a call for the same rows */
    WORK_INPUT,   /* as long as the batch; filled by the caller */
    WORK_LAYER,   /* until the layer ends, while other rows go through the same calls */
    WORK_EXPERTS  /* likewise; read by routed experts, also of tokens whose attention other executors compute */
};
/* A buffer of a workspace: a row of work_rows.h. */
struct work_row {
    size_t at;      /* of its field in struct work */
    size_t element; /* bytes of a number */
    enum work_life life;
    size_t (*width)(const struct config *c);          /* numbers per token; 0: the model lacks the buffer */
    int (*room)(const struct config *c);              /* allocated instead of width, for larger scratch; NULL: width */
    size_t (*rows)(const struct config *c, size_t n); /* tokens with room, for a batch of n; NULL: n */
    /* Whether `layer` (n_layers: the head) reads what the layers before it left, or passes it on. NULL: no layer does.
     */
    bool (*reads)(const struct config *c, int layer);
};
extern const struct work_row work_rows[]; /* ends with width NULL */
static inline void **work_field(const struct work *w, const struct work_row *k) { return (void **)((char *)w + k->at); }
static inline size_t work_row_bytes(const struct work_row *k, const struct config *c) { /* of a token */
    return k->width(c) * k->element;
}
/* Whether the buffer has rows that some layer reads of an earlier one. */
bool work_is_passed_on(const struct work_row *k, const struct config *c);
size_t work_row_room(const struct work_row *k, const struct config *c, int n); /* bytes that n tokens are given */
/* Points the field of `to` to token number `row` of that of `from`, if `from` has the buffer. */
void work_point(const struct work_row *k, const struct config *c, struct work *to, const struct work *from, size_t row);

/* Allocates through alloc/release (host memory: NULL, NULL, NULL). c must outlive w. ERR_MEMORY: nothing stays
 * allocated. */
int work_open(struct work *w, const struct config *c, int rows, void *(*alloc)(void *, size_t),
              void (*release)(void *, void *), void *ctx, struct error *e);
/* The same in a device's memory. Before buffers are freed *stream is drained; stream NULL: nothing uses them then. */
int work_open_device(struct work *w, const struct config *c, int rows, struct gpu *g, struct gpu_stream *const *stream,
                     struct error *e);
void work_close(struct work *w); /* safe on a zeroed one */
/* Returns a view of w that begins at row `row`. Buffers that outlive a block advance; scratch (q, kv, att, ...) is
 * shared. Not to be closed. */
struct work work_slice(const struct config *c, const struct work *w, int row);
/* Hands buffers that grew in a slice back to w; call after each use of a slice that attends. */
void work_keep_grown(struct work *w, const struct work *slice);
size_t work_bytes(const struct config *c, int rows); /* bytes that work_open allocates */
/* Between two layers of a batch of n tokens other batches may use a host workspace: work_save copies what the next
 * layers read to `to`, of work_saved_bytes, and work_restore copies it back. */
size_t work_saved_bytes(const struct config *c, int n);
void work_save(const struct work *w, int n, void *to);
void work_restore(struct work *w, int n, const void *from);

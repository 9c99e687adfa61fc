#pragma once
/* The workspace of a transformer block: all memory of a batch besides weights and KV cache. Owns its buffers, except
 * those marked. One user at a time. */
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/model/config.h"

struct gpu;
struct gpu_stream;
enum { FOPE_ROWS = 32 }; /* rows whose cos and sin are computed at a time */
/* Workspace for up to `rows` tokens. All pointers are in the executor's memory. */
struct work {
    const struct config *config;
    int rows;
    /* Its memory: a device's, which is freed when *stream, if any, is idle; or of these functions. alloc: NULL without
     * memory */
    struct gpu *g;
    struct gpu_stream *const *stream;
    void *(*alloc)(void *ctx, size_t size);
    void (*release)(void *ctx, void *p);
    void *ctx;
    /* its buffers, [rows, numbers] each; NULL: the model has none */
#define ROW(type, field, ...) type *field;
#include "engine/layer/work_rows.h"
#undef ROW
    int absorb_rows;                       /* most rows that absorbed MLA processes at once */
    int rel_rows;                          /* rows of rel_bias */
    size_t latent_floats, expanded_floats; /* sizes of latent and expanded_kv */
    /* Attention in pieces, owned by the caller, may be NULL: [rows, n_heads]; one piece's result, piece_floats; its lse
     * [rows, n_heads] */
    float *lse, *piece_out, *piece_lse;
    size_t piece_floats;
    bool has_places;             /* rows are rotated by `place` instead of pos */
    bool sees_ahead;             /* in layers with a window rows see keys until last_seen; CPU only */
    const uint8_t *late_experts; /* [n_experts] or NULL: as is_loading in op_experts; not owned */
    float computed_fraction;     /* as in op_experts */
};
void *work_alloc(const struct work *w, size_t size); /* memory for a buffer of it; NULL: there is none */
void work_release(const struct work *w, void *p);

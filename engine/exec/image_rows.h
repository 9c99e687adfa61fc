#pragma once
/* The images of a prompt in a prefill: rows of the vision tower in place of embeddings, rows that are added after the
 * first layers, and the turns of all rows. Every mode calls this; when the tower runs: session/image_queue.h. */
#include "base/ops.h"
#include "engine/model/config.h"
#include "engine/vision/image.h"
#include "gpu/gpu.h"

/* Zeros: a prompt without images. */
struct image_rows {
    const struct image_span *spans; /* [n] of the whole prompt, in order; their tokens are below 0 */
    int n;
    /* NULL, or [n]: rows [tokens, floats] of the images among the prefill's tokens. The first `hidden` numbers of a
     * row are its embedding; the others are added to the stream, `hidden` after each of the first layers. */
    const float *const *features;
    int floats;
    int32_t token; /* stands for ids below 0 in tables, as in struct text_rows */
    /* without features: added to positions where rows are rotated */
    int turn_shift;
};

/* Copies n ids; those below 0 become r->token. */
void image_rows_ids(const struct image_rows *r, const int32_t *ids, int n, int32_t *out);
/* Whether rows turn by time, row and column (M-RoPE) instead of one position. */
bool image_rows_have_places(const struct image_rows *r, const struct config *c);
/* Writes by what the n tokens from pos on turn: `turns` [n], and `place` [n, 3] if they have places. */
void image_rows_turn(const struct image_rows *r, const struct config *c, int pos, int n, int32_t *turns,
                     int32_t *place);
/* Puts the images' rows among the n tokens from pos on into x [n, hidden], host memory: their embeddings (which 0), or
 * adds what is added after layer which - 1. */
void image_rows_put(const struct image_rows *r, int hidden, int pos, int n, int which, float *x);
/* Writes the last position that each of the n tokens from pos on sees, if tokens of an image see all of it. */
void image_rows_seen(const struct image_rows *r, int pos, int n, int32_t *last);
/* Returns how many of the first layers are followed by rows that are added. */
int image_rows_deep(const struct image_rows *r, int hidden);
/* Likewise on a device: enqueues the addition of what is added after `layer` to x [n, hidden]. scratch: device memory,
 * and pinned: host memory, [n, hidden] each. pinned is read until the stream is idle. */
int image_rows_add(const struct image_rows *r, int hidden, int pos, int n, int layer, struct gpu_stream *stream,
                   float *x, float *scratch, float *pinned);

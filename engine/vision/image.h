#pragma once
/* An image as prompts and sessions have it: its pixels in the size that the tower reads, and a token id below 0 for
 * each token. The ids are made of a hash of the pixels, so that whatever compares tokens tells images apart: the prefix
 * cache, the KV disk cache, a session's earlier turns. */
#include <stdatomic.h>

#include "engine/vision/tower.h"

struct engine_image { /* reference-counted; read-only */
    _Atomic int n_refs;
    int width, height;  /* of the file, upright */
    int grid_h, grid_w; /* patches */
    int rows, cols;     /* tokens */
    int advance;        /* positions that they take where text is rotated: with M-RoPE the longer side, else all */
    uint64_t hash;      /* of the resized pixels and their size */
    uint8_t *rgb;       /* [grid_h * patch, grid_w * patch, 3] */
};
/* Decodes and resizes a file for a tower. what names it in errors. ERR_RUNTIME, ERR_USAGE, ERR_MEMORY. */
int image_open(struct engine_image **out, const struct tower *t, const void *data, size_t n, const char *what,
               struct error *e);
struct engine_image *image_ref(struct engine_image *i);
void image_unref(struct engine_image **i);
/* The id of token number `at`: below -1. */
int32_t image_id(const struct engine_image *i, int at);

/* An image at tokens [at, at + rows * cols) of a prompt. */
struct image_span {
    struct engine_image *image;
    int at;
};
static inline int image_tokens(const struct engine_image *i) { return i->rows * i->cols; }
/* Where a batch that begins at pos and would end at `end` ends, so that it splits no image: at the first token of one,
 * or after the last, if the batch begins in it. */
int image_batch_end(const struct image_span *s, int n, int pos, int end);
/* M-RoPE. Text after an image turns by its position plus a constant, because all tokens of an image advance the
 * rotation by its longer side only. image_shift: the constant for text at position pos; image_place: time, row and
 * column at pos. Source: transformers, models/qwen3_vl, get_rope_index(). Pure. */
int image_shift(const struct image_span *s, int n, int pos);
void image_place(const struct image_span *s, int n, int pos, int32_t out[3]);

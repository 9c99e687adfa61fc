#pragma once
/* Scales of a struct mat: the index of a row's first scale, and a scale as float32. */
#include <stdbool.h>

#include "base/mat.h"
#include "base/minifloat.h"

/* Index of the first scale of row r; the scale of column c is c / block_cols further. */
static inline size_t scale_row(const struct mat *m, int32_t r) {
    return m->scale ? (size_t)((m->row0 + r * m->row_step) / m->block_rows) * (size_t)m->scale_stride : 0;
}
static inline float scale_load(const struct mat *m, size_t i) {
    const uint8_t *scale = (const uint8_t *)m->scale;
    uint16_t h;
    float f;
    if (!scale) return 1;
    switch (m->scale_dtype) {
    case DT_BF16: memcpy(&h, scale + 2 * i, 2); return bf16_to_f32(h);
    case DT_F16: memcpy(&h, scale + 2 * i, 2); return f16_to_f32(h);
    case DT_E8M0: return e8m0_to_f32(scale[i]);
    case DT_E4M3: return e4m3_to_f32(scale[i]) * m->scale_gain;
    default: memcpy(&f, scale + 4 * i, 4); return m->scale_dtype == DT_F32Z ? f32_of_bits(f32_bits(f) & ~255u) : f;
    }
}

/* Zero point of the codes of DT_I4 and DT_I8 (biased by 128) where the scale has none. */
static inline int zero_default(uint8_t dtype) { return dtype == DT_I4 ? 8 : 128; }
/* Zero point that belongs to scale i. */
static inline int zero_load(const struct mat *m, size_t i) {
    return m->scale_dtype == DT_F32Z ? ((const uint8_t *)m->scale)[4 * i] : zero_default(m->dtype);
}
/* Packs a scale and a zero point of 0 to 255 as DT_F32Z. Exact for scales that were F16 or BF16; returns false if bits
 * of the scale are lost. */
static inline bool scale_with_zero(float scale, int zero, uint32_t *out) {
    *out = (f32_bits(scale) & ~255u) | (uint32_t)zero;
    return !(f32_bits(scale) & 255);
}

/* The scale and zero point of a row's columns, 32 at a time; block_cols is a multiple of 32, or the row has one block.
 */
struct scale_walk {
    const struct mat *m;
    size_t at; /* index of the scale */
    int left;  /* columns of its block */
    float scale;
    int zero;
};
static inline void scale_walk_load(struct scale_walk *k) {
    k->scale = scale_load(k->m, k->at), k->zero = zero_load(k->m, k->at);
}
static inline struct scale_walk scale_walk_begin(const struct mat *m, int32_t r, int c) {
    struct scale_walk k = {.m = m, .at = scale_row(m, r) + (size_t)(c / m->block_cols)};
    k.left = m->block_cols - c % m->block_cols;
    scale_walk_load(&k);
    return k;
}
/* Goes on by 32 columns; there must be some. */
static inline void scale_walk_next(struct scale_walk *k) {
    if ((k->left -= 32)) return;
    k->at++, k->left = k->m->block_cols;
    scale_walk_load(k);
}

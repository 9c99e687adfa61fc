#pragma once
/* Scales of a struct mat: the index of a row's first scale, and a scale as float32. */
#include "engine/base/mat.h"
#include "engine/base/minifloat.h"

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
    default: memcpy(&f, scale + 4 * i, 4); return f;
    }
}

#include "base/mat_at.h"

#include "base/blocks.h"
#include "base/scale.h"

static int zero_at(const struct mat *m, int32_t r, int32_t c) {
    return m->scale ? zero_load(m, scale_row(m, r) + (size_t)(c / m->block_cols)) : zero_default(m->dtype);
}

float mat_at(const struct mat *m, int32_t r, int32_t c) {
    const uint8_t *p = (const uint8_t *)m->data + (size_t)r * m->stride;
    float v = 0;
    uint16_t h;
    const int block = (int)dtype_block(m->dtype);
    switch (m->dtype) {
    case DT_F32: memcpy(&v, p + 4 * (size_t)c, 4); break;
    case DT_BF16:
        memcpy(&h, p + 2 * (size_t)c, 2);
        v = bf16_to_f32(h);
        break;
    case DT_F16:
        memcpy(&h, p + 2 * (size_t)c, 2);
        v = f16_to_f32(h);
        break;
    case DT_E4M3: v = e4m3_to_f32(p[c]); break;
    case DT_E2M1: v = e2m1_to_f32((uint8_t)(p[c / 2] >> (c % 2 * 4))); break;
    case DT_NF4: v = mat_nf4[p[c / 2] >> (c % 2 ? 0 : 4) & 15]; break;
    case DT_I8: v = (float)((int8_t)p[c] + 128 - zero_at(m, r, c)); break;
    case DT_I4: v = (float)((p[c / 2] >> (c % 2 * 4) & 15) - zero_at(m, r, c)); break;
    case DT_INT4: v = (float)((p[c / 128 * 64 + c % 64] >> (c % 128 / 64 * 4) & 15) - 8); break;
    default: v = blocks_at(m->dtype, p + dtype_bytes(m->dtype, (size_t)(c / block * block)), c % block);
    }
    return m->scale ? v * mat_scale_at(m, r, c) : v;
}

void mat_row(const struct mat *m, int32_t r, float *out) {
    for (int32_t c = 0; c < m->cols; c++) out[c] = mat_at(m, r, c);
}

float mat_scale_at(const struct mat *m, int32_t r, int32_t c) {
    return m->scale ? scale_load(m, scale_row(m, r) + (size_t)(c / m->block_cols)) : 1;
}

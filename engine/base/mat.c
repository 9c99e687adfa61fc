#include "engine/base/mat.h"

#include "engine/base/half.h"

static const struct {
    const char *name;
    uint16_t block, bytes; /* elements and bytes of the smallest unit */
} types[DT_COUNT] = {
    [DT_NONE] = {"none", 1, 0},       [DT_F32] = {"F32", 1, 4},      [DT_BF16] = {"BF16", 1, 2},     [DT_F16] = {"F16", 1, 2},
    [DT_E4M3] = {"F8_E4M3", 1, 1},    [DT_E8M0] = {"F8_E8M0", 1, 1}, [DT_E2M1] = {"F4_E2M1", 2, 1},  [DT_I8] = {"I8", 1, 1},
    [DT_U8] = {"U8", 1, 1},           [DT_I16] = {"I16", 1, 2},      [DT_I32] = {"I32", 1, 4},       [DT_I64] = {"I64", 1, 8},
    [DT_BOOL] = {"BOOL", 1, 1},       [DT_F64] = {"F64", 1, 8},      [DT_E5M2] = {"F8_E5M2", 1, 1},  [DT_Q8_G128] = {"Q8_G128", 1, 1},
    [DT_Q4_G128] = {"Q4_G128", 2, 1}, [DT_Q8_0] = {"Q8_0", 32, 34},  [DT_Q4_K] = {"Q4_K", 256, 144}, [DT_Q6_K] = {"Q6_K", 256, 210},
};

size_t dtype_bytes(enum dtype t, size_t n) { return (n + types[t].block - 1) / types[t].block * types[t].bytes; }
const char *dtype_name(enum dtype t) { return t < DT_COUNT ? types[t].name : "?"; }

struct mat mat_rows(struct mat m, int32_t begin, int32_t end) {
    m.data = (const uint8_t *)m.data + (size_t)begin * m.stride;
    m.row0 += begin * m.row_step;
    m.rows = end - begin;
    return m;
}

struct mat mat_cols(struct mat m, int32_t begin, int32_t end) {
    m.data = (const uint8_t *)m.data + dtype_bytes(m.dtype, (size_t)begin);
    if (m.scale) m.scale = (const uint8_t *)m.scale + (size_t)(begin / m.block_cols) * dtype_bytes(m.scale_dtype, 1);
    m.cols = end - begin;
    return m;
}

float scale_at(const struct mat *m, int32_t r, int32_t c) {
    if (!m->scale) return 1;
    size_t i = (size_t)((m->row0 + r * m->row_step) / m->block_rows) * (size_t)m->scale_stride + (size_t)(c / m->block_cols);
    switch (m->scale_dtype) {
    case DT_BF16: {
        uint16_t h;
        memcpy(&h, (const uint8_t *)m->scale + 2 * i, 2);
        return bf16_to_f32(h);
    }
    case DT_F16: {
        uint16_t h;
        memcpy(&h, (const uint8_t *)m->scale + 2 * i, 2);
        return f16_to_f32(h);
    }
    case DT_E8M0: return e8m0_to_f32(((const uint8_t *)m->scale)[i]);
    default: {
        float f;
        memcpy(&f, (const uint8_t *)m->scale + 4 * i, 4);
        return f;
    }
    }
}

static float q4_k_at(const uint8_t *b, int i) {
    float d = f16_to_f32((uint16_t)(b[0] | b[1] << 8)), dmin = f16_to_f32((uint16_t)(b[2] | b[3] << 8));
    const uint8_t *s = b + 4, *q = b + 16;
    int j = i / 32, sc, mn;
    if (j < 4) sc = s[j] & 63, mn = s[j + 4] & 63;
    else sc = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4, mn = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
    uint8_t byte = q[i / 64 * 32 + i % 32];
    return d * (float)sc * (float)(i / 32 % 2 ? byte >> 4 : byte & 15) - dmin * (float)mn;
}
static float q6_k_at(const uint8_t *b, int i) {
    const uint8_t *ql = b, *qh = b + 128;
    const int8_t *sc = (const int8_t *)b + 192;
    float d = f16_to_f32((uint16_t)(b[208] | b[209] << 8));
    int half = i / 128, k = i % 128, l = k % 32, part = k / 32;
    int low = ql[half * 64 + l + (part & 1) * 32];
    low = part < 2 ? low & 15 : low >> 4;
    int q = (low | (qh[half * 32 + l] >> (2 * part) & 3) << 4) - 32;
    return d * (float)sc[half * 8 + l / 16 + 2 * part] * (float)q;
}

float mat_at(const struct mat *m, int32_t r, int32_t c) {
    const uint8_t *p = (const uint8_t *)m->data + (size_t)r * m->stride;
    float v = 0;
    uint16_t h;
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
    case DT_I8:
    case DT_Q8_G128: v = (float)(int8_t)p[c]; break;
    case DT_Q4_G128: v = (float)((p[c / 2] >> (c % 2 * 4) & 15) - 8); break;
    case DT_Q8_0:
        memcpy(&h, p + c / 32 * 34, 2);
        v = f16_to_f32(h) * (float)(int8_t)p[c / 32 * 34 + 2 + c % 32];
        break;
    case DT_Q4_K: v = q4_k_at(p + c / 256 * 144, c % 256); break;
    case DT_Q6_K: v = q6_k_at(p + c / 256 * 210, c % 256); break;
    }
    return m->scale ? v * scale_at(m, r, c) : v;
}

void mat_row(const struct mat *m, int32_t r, float *out) {
    for (int32_t c = 0; c < m->cols; c++) out[c] = mat_at(m, r, c);
}

size_t mat_bytes(const struct mat *m) {
    size_t n = (size_t)m->rows * dtype_bytes(m->dtype, (size_t)m->cols);
    if (m->scale) {
        size_t first = (size_t)m->row0 / (size_t)m->block_rows;
        size_t last = ((size_t)m->row0 + (size_t)(m->rows - 1) * (size_t)m->row_step) / (size_t)m->block_rows;
        n += (last - first + 1) * (size_t)m->scale_stride * dtype_bytes(m->scale_dtype, 1);
    }
    return n;
}

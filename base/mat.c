#include "base/mat.h"

#include "base/iq_values.h"

static const struct {
    const char *name;
    uint16_t block, bytes; /* elements and bytes per block */
} types[DT_COUNT] = {
#define X(name, file, block, bytes, ...) [DT_##name] = {file, block, bytes},
    DTYPES(X)
#undef X
};

size_t dtype_bytes(enum dtype t, size_t n) {
    return types[t].block == 1 ? n * types[t].bytes : (n + types[t].block - 1) / types[t].block * types[t].bytes;
}
size_t dtype_block(enum dtype t) { return types[t].block; }
const char *dtype_name(enum dtype t) { return t < DT_COUNT ? types[t].name : "?"; }

struct mat mat_rows(struct mat m, int32_t begin, int32_t end) {
    m.data = (const uint8_t *)m.data + (size_t)begin * m.stride;
    m.row0 += begin * m.row_step;
    m.rows = end - begin;
    return m;
}

struct mat mat_cols(struct mat m, int32_t begin, int32_t end) {
    if (m.order) {
        m.x0 += begin, m.x_cols = end - begin;
        return m;
    }
    m.data = (const uint8_t *)m.data + dtype_bytes(m.dtype, (size_t)begin);
    if (m.scale) m.scale = (const uint8_t *)m.scale + (size_t)(begin / m.block_cols) * dtype_bytes(m.scale_dtype, 1);
    m.cols = end - begin;
    return m;
}

void mat_order_x(const struct mat *m, float *out, const float *x) {
    for (int32_t c = 0; c < m->cols; c++) {
        const uint32_t at = (uint32_t)(m->order[c] - m->x0);
        out[c] = at < (uint32_t)m->x_cols ? x[at] : 0;
    }
}

size_t dtype_row_head(enum dtype t) { return t == DT_IQ4_KS || t == DT_IQ5_KS ? 4 : t == DT_IQ2_KL ? 2 : 0; }

const int8_t mat_q4_0[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
#define V(value)              value,
#define ABOVE_4(value)        (value) + 4,
#define ABOVE_2(value)        (value) + 2,
#define FIRST(first, second)  first,
#define SECOND(first, second) second,
const int8_t mat_iq4[16] = {VALUES_IQ4(V)};
const int8_t mat_iq4_ks[2][16] = {{VALUES_IQ4(V)}, {VALUES_IQ4(ABOVE_4)}};
const int8_t mat_iq5_ks[2][32] = {{VALUES_IQ5(V)}, {VALUES_IQ5(ABOVE_2)}};
const int8_t mat_iq2_kl[2][32] = {{VALUES_IQ2_KL(FIRST)}, {VALUES_IQ2_KL(SECOND)}};
/* twice E2M1, without its negative zero */
const int8_t mat_mxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
/* quantiles of a normal distribution: Dettmers et al., QLoRA, appendix E */
const float mat_nf4[16] = {-1.0f,
                           -0.6961928009986877f,
                           -0.5250730514526367f,
                           -0.39491748809814453f,
                           -0.28444138169288635f,
                           -0.18477343022823334f,
                           -0.09105003625154495f,
                           0.0f,
                           0.07958029955625534f,
                           0.16093020141124725f,
                           0.24611230194568634f,
                           0.33791524171829224f,
                           0.44070982933044434f,
                           0.5626170039176941f,
                           0.7229568362236023f,
                           1.0f};

static size_t last_block(const struct mat *m) {
    return ((size_t)m->row0 + (size_t)(m->rows - 1) * (size_t)m->row_step) / (size_t)m->block_rows;
}

size_t mat_bytes(const struct mat *m) {
    size_t n =
        (size_t)m->rows * dtype_bytes(m->dtype, (size_t)m->cols) + (m->order ? (size_t)m->cols * sizeof *m->order : 0);
    if (m->scale) {
        size_t blocks = last_block(m) - (size_t)m->row0 / (size_t)m->block_rows + 1;
        if (blocks > (size_t)m->rows) blocks = (size_t)m->rows; /* every other row belongs to another view */
        n += blocks * (size_t)m->scale_stride * dtype_bytes(m->scale_dtype, 1);
    }
    return n;
}

size_t mat_span(const struct mat *m) {
    return m->rows > 0 ? (size_t)(m->rows - 1) * m->stride + dtype_bytes(m->dtype, (size_t)m->cols) : 0;
}
size_t mat_scale_span(const struct mat *m) {
    if (!m->scale || m->rows < 1) return 0;
    size_t across = ((size_t)m->cols + (size_t)m->block_cols - 1) / (size_t)m->block_cols;
    return (last_block(m) * (size_t)m->scale_stride + across) * dtype_bytes(m->scale_dtype, 1);
}

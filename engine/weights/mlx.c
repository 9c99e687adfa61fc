/* Reference: MLX's quantize and dequantize in its modes affine, mxfp4, nvfp4 and mxfp8. */
#include "engine/weights/mlx.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/minifloat.h"

enum { BLOCK = 32 }; /* columns of a block, which no group divides */

/* Where a matrix is in a tensor of words. */
struct packed {
    const uint8_t *words;
    size_t row; /* bytes */
    int bits, group;
};

static float number_at(const struct tensor *t, size_t i) {
    uint16_t half;
    float f;
    if (t->dtype == DT_F32) return memcpy(&f, t->data + 4 * i, 4), f;
    memcpy(&half, t->data + 2 * i, 2);
    return t->dtype == DT_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

/* Writes 32 codes of four bits in Q4_1's order, from the order of neighbouring columns. */
static void put_fours(uint8_t *out, const uint8_t *in) {
    for (int i = 0; i < 8; i++) {
        out[2 * i] = (uint8_t)((in[i] & 15) | in[8 + i] << 4);
        out[2 * i + 1] = (uint8_t)(in[i] >> 4 | (in[8 + i] & 0xf0));
    }
}
/* Unpacks 32 codes of any width. */
static void take_codes(uint8_t code[BLOCK], const uint8_t *in, int bits) {
    uint32_t left = 0;
    for (int i = 0, have = 0; i < BLOCK; i++) {
        for (; have < bits; have += 8) left |= (uint32_t)*in++ << have;
        code[i] = (uint8_t)(left & ((1u << bits) - 1));
        left >>= bits, have -= bits;
    }
}
/* Writes the codes of a block behind its scale and addend: Q4_1, Q5_1 or Q8_A. */
static void put_codes(uint8_t *out, enum dtype t, const uint8_t *in, int bits) {
    uint8_t code[BLOCK];
    uint32_t fifth = 0;
    if (bits == 4 || bits == 8) {
        if (bits == 4) put_fours(out, in);
        else memcpy(out, in, BLOCK);
        return;
    }
    take_codes(code, in, bits);
    if (t == DT_Q8_A) {
        memcpy(out, code, BLOCK);
        return;
    }
    for (int i = 0; i < BLOCK; i++) fifth |= (uint32_t)(code[i] >> 4) << i;
    if (t == DT_Q5_1) memcpy(out, &fifth, 4), out += 4;
    for (int i = 0; i < 16; i++) out[i] = (uint8_t)((code[i] & 15) | (code[16 + i] & 15) << 4);
}

/* Repacks the parameter's rows with scales and addends inside blocks, as float16. */
static void repack_affine(const struct matrix_source *s, const struct packed *p, const struct tensor *scales,
                          const struct tensor *biases, struct mat *m) {
    struct loader *l = s->l;
    const int cols = m->cols, groups = cols / p->group, first = s->p->slice.first,
              step = s->p->slice.total_rows ? s->p->slice.step : 1;
    const size_t size = dtype_bytes((enum dtype)m->dtype, BLOCK),
                 above = s->p->slice.stacked ? (size_t)s->expert * (size_t)s->rows : 0;
    m->stride = dtype_bytes((enum dtype)m->dtype, (size_t)cols);
    uint8_t *own = loader_alloc_repacked(l, (size_t)m->rows * m->stride);
    for (int r = 0; own && r < m->rows; r++) {
        const size_t from = (size_t)(first + r * step);
        const uint8_t *in = p->words + from * p->row;
        uint8_t *out = own + (size_t)r * m->stride;
        for (int c = 0; c < cols; c += BLOCK, out += size, in += BLOCK / 8 * p->bits) {
            const size_t at = (above + from) * (size_t)groups + (size_t)(c / p->group);
            const uint16_t head[2] = {f32_to_f16(number_at(scales, at)), f32_to_f16(number_at(biases, at))};
            if ((head[0] & 0x7c00) == 0x7c00 || (head[1] & 0x7c00) == 0x7c00) {
                char text[112];
                snprintf(text, sizeof text, "row %zu, group %d: its scale or bias is not a number of float16", from,
                         c / p->group);
                loader_fail(l, scales, text);
                return;
            }
            memcpy(out, head, sizeof head);
            put_codes(out + sizeof head, (enum dtype)m->dtype, in, p->bits);
        }
    }
    m->data = own;
    l->w->bytes_replaced += (size_t)m->rows * (p->row + 2 * (size_t)groups * dtype_bytes(scales->dtype, 1));
}

/* Views codes with scales of one byte. Returns false if MLX has no such mode. */
static bool view_float(const struct matrix_source *s, const struct packed *p, struct tensor *scales, struct mat *m) {
    const size_t above = s->p->slice.stacked ? (size_t)s->expert * (size_t)s->rows : 0,
                 groups = (size_t)(m->cols / p->group);
    const bool is_nvfp4 = p->bits == 4 && p->group == 16;
    const enum dtype kind = is_nvfp4 ? DT_E4M3 : DT_E8M0;
    if (scales->dtype != DT_U8 && scales->dtype != kind) return false;
    if (!is_nvfp4 && (p->group != 32 || (p->bits != 4 && p->bits != 8))) return false;
    scales->dtype = kind; /* the real dtype, for verification */
    m->dtype = p->bits == 8 ? DT_E4M3 : DT_E2M1, m->scale_dtype = scales->dtype, m->scale_gain = 1;
    m->stride = p->row, m->block_rows = 1, m->block_cols = p->group, m->scale_stride = (int32_t)groups;
    m->scale = scales->data + above * groups, m->row_step = 1;
    m->row0 = s->p->slice.first;
    m->data = p->words + (size_t)s->p->slice.first * p->row;
    if (s->p->slice.total_rows) m->row_step = s->p->slice.step, m->stride *= (size_t)s->p->slice.step;
    return true;
}

/* Rows of t without the last dimension, 0 if they are not the parameter's: [experts, rows, n], [rows, n], or a part of
 * the rows for each head. */
static bool has_rows(const struct matrix_source *s, const struct tensor *t) {
    int64_t rows = 1;
    for (int i = 0; i + 1 < t->ndim; i++) rows *= t->shape[i];
    return t->ndim >= 2 && t->ndim <= 3 && rows == (int64_t)s->rows * (s->p->slice.stacked ? loader_stacked(s->l) : 1);
}

struct mat mlx_load(const struct matrix_source *s, const struct tensor *t, struct tensor *scales) {
    struct loader *l = s->l;
    const struct param *p = s->p;
    struct tensor *biases = matrix_find(s, ".biases");
    const int cols = p->slice.total_cols ? p->slice.total_cols : p->cols;
    const int64_t words = t->ndim ? t->shape[t->ndim - 1] : 0,
                  groups = scales->ndim ? scales->shape[scales->ndim - 1] : 0;
    struct mat m = {.rows = p->rows, .cols = cols, .row_step = 1};
    struct packed in = {.row = 4 * (size_t)words, .words = t->data};
    char text[160];
    if (!has_rows(s, t) || words < 1 || words > cols || words * 32 % cols) {
        snprintf(text, sizeof text, "config.json asks for words of [%d, %d * bits / 32]", s->rows, cols);
        loader_fail(l, t, text);
        return m;
    }
    in.bits = (int)(words * 32 / cols);
    if (p->slice.stacked) in.words += (size_t)s->expert * (size_t)s->rows * in.row;
    if (!has_rows(s, scales) || groups < 1 || cols % groups) {
        snprintf(text, sizeof text, "the scales of [%d, %d] must be [%d, groups]", s->rows, cols, s->rows);
        loader_fail(l, scales, text);
        return m;
    }
    in.group = (int)(cols / groups);
    const bool is_affine =
        biases && (in.bits <= 6 || in.bits == 8) && in.bits >= 2 && in.bits != 7 && in.group % BLOCK == 0;
    if (biases && (biases->size != scales->size || biases->dtype != scales->dtype ||
                   (scales->dtype != DT_F32 && scales->dtype != DT_BF16 && scales->dtype != DT_F16)))
        loader_fail(l, biases, "scales and biases must be F32, BF16 or F16 of the same shape");
    else if (is_affine) {
        m.dtype = in.bits <= 4 ? DT_Q4_1 : in.bits == 5 ? DT_Q5_1 : DT_Q8_A;
        repack_affine(s, &in, scales, biases, &m);
    } else if (biases || !view_float(s, &in, scales, &m)) {
        snprintf(text, sizeof text, "%d bits in groups of %d columns%s: MLX has no such mode that hearth computes with",
                 in.bits, in.group, biases ? "" : ", without biases");
        loader_fail(l, t, text);
    }
    if (!l->rc && p->slice.total_cols) return mat_cols(m, p->slice.first_col, p->slice.first_col + p->cols);
    return m;
}

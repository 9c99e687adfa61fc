/* Reference: MLX's quantize and dequantize in its modes affine, mxfp4, nvfp4 and mxfp8. */
#include "engine/weights/mlx.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/minifloat.h"
#include "base/scale.h"
#include "engine/weights/repack.h"

enum { BLOCK = 32 }; /* columns of a block, which no group divides */

/* Where a matrix is in a tensor of words. */
struct packed {
    const uint8_t *words;
    size_t row; /* bytes */
    int bits, group;
};

/* Writes 32 codes of four bits in Q4_1's order, from the order of neighbouring columns. */
static void put_fours(uint8_t *out, const uint8_t *in) {
    for (int i = 0; i < 8; i++) {
        out[2 * i] = (uint8_t)((in[i] & 15) | in[8 + i] << 4);
        out[2 * i + 1] = (uint8_t)(in[i] >> 4 | (in[8 + i] & 0xf0));
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
    for (int i = 0; i < BLOCK; i++) code[i] = (uint8_t)repack_code(in, 1, bits, (size_t)i);
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
    const struct mat scale = {.scale = scales->data, .scale_dtype = scales->dtype},
                     bias = {.scale = biases->data, .scale_dtype = biases->dtype};
    m->rows = s->p->rows;
    m->stride = dtype_bytes((enum dtype)m->dtype, (size_t)cols);
    uint8_t *own = loader_alloc_repacked(l, (size_t)m->rows * m->stride);
    for (int r = 0; own && r < m->rows; r++) {
        const size_t from = (size_t)(first + r * step);
        const uint8_t *in = p->words + from * p->row;
        uint8_t *out = own + (size_t)r * m->stride;
        for (int c = 0; c < cols; c += BLOCK, out += size, in += BLOCK / 8 * p->bits) {
            const size_t at = (above + from) * (size_t)groups + (size_t)(c / p->group);
            const uint16_t head[2] = {f32_to_f16(scale_load(&scale, at)), f32_to_f16(scale_load(&bias, at))};
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
    l->w->bytes_replaced += (size_t)m->rows * (p->row + 2 * (size_t)groups * dtype_bytes(scales->dtype, 1));
    m->data = own;
    if (own && s->p->slice.total_cols) *m = mat_cols(*m, s->p->slice.first_col, s->p->slice.first_col + s->p->cols);
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
    m->scale = scales->data + above * groups, m->data = p->words;
    *m = matrix_part(s->p, *m);
    return true;
}

struct mat mlx_load(const struct matrix_source *s, const struct tensor *t, struct tensor *scales) {
    struct loader *l = s->l;
    const struct param *p = s->p;
    struct tensor *biases = matrix_find(s, ".biases");
    const int cols = p->slice.total_cols ? p->slice.total_cols : p->cols;
    const int64_t words = t->ndim ? t->shape[t->ndim - 1] : 0,
                  groups = scales->ndim ? scales->shape[scales->ndim - 1] : 0;
    struct mat m = {.rows = s->rows, .cols = cols, .row_step = 1};
    struct packed in = {.row = 4 * (size_t)words, .words = t->data};
    char text[160];
    if (words < 1 || words > cols || words * 32 % cols || !loader_shape_fits(l, t, p, s->rows, (int)words, 0)) {
        snprintf(text, sizeof text, "config.json asks for words of [%d, %d * bits / 32]", s->rows, cols);
        loader_fail(l, t, text);
        return m;
    }
    in.bits = (int)(words * 32 / cols);
    if (p->slice.stacked) in.words += (size_t)s->expert * (size_t)s->rows * in.row;
    if (groups < 1 || groups > cols || cols % groups || !loader_shape_fits(l, scales, p, s->rows, (int)groups, 0)) {
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
    return m;
}

#include "engine/weights/packed.h"

#include <stdio.h>
#include <string.h>

#include "base/scale.h"
#include "engine/weights/column_order.h"
#include "engine/weights/repack.h"

static bool is_shape(const struct tensor *t, enum dtype dtype, int64_t rows, int64_t cols) {
    return t->dtype == dtype && t->ndim == 2 && t->shape[0] == rows && t->shape[1] == cols;
}
static void fail_shape(struct loader *l, const struct tensor *t, enum dtype dtype, int64_t rows, int64_t cols) {
    char text[96];
    snprintf(text, sizeof text, "it must be %s [%lld, %lld]", dtype_name(dtype), (long long)rows, (long long)cols);
    loader_fail(l, t, text);
}
static struct tensor *find_needed(const struct matrix_source *s, const char *ending) {
    struct tensor *t = matrix_find(s, ending);
    if (!t) loader_missing(s->l, s->pattern, s->layer, s->expert, ending);
    return t;
}

/* --- Zero points ------------------------------------------------------------------------------ */

/* Replaces m's scales by DT_F32Z with the zero points that zero(ctx, i) gives for scale i. */
static void fold_zeros(struct loader *l, struct mat *m, const struct tensor *scale,
                       int (*zero)(const void *ctx, size_t i), const void *ctx) {
    const size_t n = (size_t)((m->rows + m->block_rows - 1) / m->block_rows) * (size_t)m->scale_stride;
    bool trivial = true;
    for (size_t i = 0; i < n && trivial; i++) trivial = zero(ctx, i) == zero_default(m->dtype);
    uint32_t *out = trivial ? NULL : loader_alloc_repacked(l, n * sizeof *out);
    if (!out) return;
    l->w->bytes_replaced += n * dtype_bytes(m->scale_dtype, 1);
    for (size_t i = 0; i < n; i++)
        if (!scale_with_zero(scale_load(m, i), zero(ctx, i), &out[i])) {
            loader_fail(l, scale, "codes with zero points must have scales of 16 bits");
            return;
        }
    m->scale = out, m->scale_dtype = DT_F32Z;
}

static int zero_i8(const void *ctx, size_t i) { return ((const int8_t *)ctx)[i] + 128; }
void packed_add_zeros(const struct matrix_source *s, struct mat *m) {
    struct tensor *t = matrix_find(s, ".weight_zero_point");
    if (!t) t = matrix_find(s, "._weight_zero_point");
    const size_t n = (size_t)((m->rows + m->block_rows - 1) / m->block_rows) * (size_t)m->scale_stride;
    if (!t) return;
    if (t->dtype != DT_I8 || t->size != n || s->p->slice.stacked)
        loader_fail(s->l, t, "the zero points must be I8, as many as scales");
    else fold_zeros(s->l, m, t, zero_i8, t->data);
    s->l->w->bytes_replaced += t->size;
}

/* --- pack-quantized --------------------------------------------------------------------------- */

static void check_stated_shape(const struct matrix_source *s) {
    struct tensor *t = matrix_find(s, ".weight_shape");
    int64_t stated[2] = {0};
    if (!t) return;
    for (int i = 0; i < 2 && (t->dtype == DT_I32 || t->dtype == DT_I64) && t->size == 2 * dtype_bytes(t->dtype, 1);
         i++) {
        int32_t narrow;
        memcpy(&narrow, t->data + 4 * i, 4);
        stated[i] = narrow;
        if (t->dtype == DT_I64) memcpy(&stated[i], t->data + 8 * i, 8);
    }
    if (stated[0] == s->rows && stated[1] == s->p->cols) return;
    char text[128];
    snprintf(text, sizeof text, "it gives [%lld, %lld], config.json asks for [%d, %d]", (long long)stated[0],
             (long long)stated[1], s->rows, s->p->cols);
    loader_fail(s->l, t, text);
}

/* What is added to codes and zero points, so that half of their range is that of four bits or of eight. */
static int width_shift(int bits) { return bits <= 4 ? 8 - (1 << (bits - 1)) : 128 - (1 << (bits - 1)); }

struct packed_zeros {
    const uint8_t *words;
    int groups, bits;
};
/* Zero points are packed along the rows. */
static int zero_packed(const void *ctx, size_t i) {
    const struct packed_zeros *z = ctx;
    const size_t row = i / (size_t)z->groups, group = i % (size_t)z->groups, each = 32 / (size_t)z->bits;
    uint32_t w;
    memcpy(&w, z->words + 4 * (row / each * (size_t)z->groups + group), 4);
    return (int)(w >> row % each * (size_t)z->bits & ((1u << z->bits) - 1)) + width_shift(z->bits);
}

/* The width of codes whose rows take the words of t: config.json's if they fit, else 4 or 8; 0: none. */
static int packed_width(const struct loader *l, const struct tensor *t, int rows, int cols) {
    const int widths[] = {l->w->config.quant.bits, 4, 8};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (widths[i] >= 2 && widths[i] <= 8 &&
            is_shape(t, DT_I32, rows, (cols + 32 / widths[i] - 1) / (32 / widths[i])))
            return widths[i];
    return 0;
}
/* Copies rows of codes of any width as DT_I4 or DT_I8: width_shift() added, those of eight bits minus 128. */
static void unpack_codes(struct loader *l, struct mat *m, const struct tensor *t, int bits) {
    const size_t row = dtype_bytes(m->dtype, (size_t)m->cols), words = (size_t)t->shape[1], each = 32 / (size_t)bits;
    uint8_t *own = loader_alloc_repacked(l, (size_t)m->rows * row);
    for (int r = 0; own && r < m->rows; r++)
        for (int c = 0; c < m->cols; c++) {
            uint8_t *to = own + (size_t)r * row;
            uint32_t w;
            memcpy(&w, t->data + 4 * ((size_t)r * words + (size_t)c / each), 4);
            const int code = (int)(w >> (size_t)c % each * (size_t)bits & ((1u << bits) - 1)) + width_shift(bits);
            if (m->dtype == DT_I8) to[c] = (uint8_t)(code - 128);
            else if (c % 2) to[c / 2] |= (uint8_t)(code << 4);
            else to[c / 2] = (uint8_t)code;
        }
    m->data = own, m->stride = row;
    l->w->bytes_replaced += t->size;
}

struct mat packed_load(const struct matrix_source *s, struct tensor *t) {
    struct loader *l = s->l;
    const int rows = s->rows, cols = s->p->cols;
    struct tensor *scale = find_needed(s, ".weight_scale"), *zeros = matrix_find(s, ".weight_zero_point"),
                  *order = matrix_find(s, ".weight_g_idx");
    const int bits = packed_width(l, t, rows, cols);
    struct mat m = {.data = t->data, .rows = rows, .cols = cols, .row_step = 1, .dtype = bits <= 4 ? DT_I4 : DT_I8};
    check_stated_shape(s);
    if (!scale || l->rc) return m;
    if (t->dtype == DT_U8) return matrix_view_fp4(s, t, scale);
    if (!bits) {
        fail_shape(l, t, DT_I32, rows, (cols + 7) / 8);
        return m;
    }
    matrix_attach_scale(s, &m, scale);
    if (l->rc) return m;
    if (bits == 4) m.stride = 4 * (size_t)((cols + 7) / 8);
    else unpack_codes(l, &m, t, bits);
    if (zeros) {
        const int64_t lines = (rows + 32 / bits - 1) / (32 / bits);
        const struct packed_zeros z = {zeros->data, m.scale_stride, bits};
        if (m.block_rows != 1 || !is_shape(zeros, DT_I32, lines, m.scale_stride))
            fail_shape(l, zeros, DT_I32, lines, m.scale_stride);
        else fold_zeros(l, &m, zeros, zero_packed, &z);
        l->w->bytes_replaced += zeros->size;
    }
    column_order_load(l, &m, order);
    return m;
}

struct mat packed_load_signed(const struct matrix_source *s, struct tensor *t, struct tensor *scale) {
    struct loader *l = s->l;
    const size_t row = dtype_bytes(DT_I4, (size_t)s->p->cols), size = (size_t)s->rows * row,
                 first = s->p->slice.stacked ? (size_t)s->expert * size : 0;
    struct mat m = {.stride = row, .rows = s->rows, .cols = s->p->cols, .row_step = 1, .dtype = DT_I4};
    struct param half = *s->p;
    half.cols = s->p->cols / 2;
    if (!loader_has_shape(l, t, &half, s->rows, half.cols, 0)) return m;
    matrix_attach_scale(s, &m, scale);
    uint8_t *own = l->rc ? NULL : loader_alloc_repacked(l, size);
    for (size_t i = 0; own && i < size; i++) own[i] = t->data[first + i] ^ 0x88;
    m.data = own;
    l->w->bytes_replaced += size;
    return m;
}

/* --- GPTQ and AWQ ----------------------------------------------------------------------------- */

struct transposed_zeros {
    const struct repack *r;
    const uint8_t *words;
    int groups, first, step, add;
};
static int zero_transposed(const void *ctx, size_t i) {
    const struct transposed_zeros *z = ctx;
    const int row = z->first + (int)(i / (size_t)z->groups) * z->step, mask = (1 << z->r->bits) - 1;
    return ((repack_zero(z->r, z->words, (int)(i % (size_t)z->groups), row) + z->add) & mask) +
           repack_shift(z->r->bits);
}

/* Copies the scales of the parameter's rows, stored as [groups, rows], in the order of rows. */
static void transpose_scales(struct loader *l, struct mat *m, const struct tensor *scale, int first, int step) {
    const size_t size = dtype_bytes(scale->dtype, 1), groups = (size_t)m->scale_stride, all = (size_t)scale->shape[1];
    uint8_t *out = loader_alloc_repacked(l, (size_t)m->rows * groups * size);
    for (int r = 0; out && r < m->rows; r++)
        for (size_t g = 0; g < groups; g++)
            memcpy(out + ((size_t)r * groups + g) * size, scale->data + (g * all + (size_t)(first + r * step)) * size,
                   size);
    m->scale = out, m->scale_dtype = scale->dtype;
}

/* Fills the layout and the bits per code from config.json's method and the tensor's shape. Fails if they disagree. */
static bool find_layout(struct loader *l, const struct tensor *t, struct repack *r) {
    const struct quant_config *q = &l->w->config.quant;
    r->awq = q->method == QUANT_AWQ;
    r->bits = 4;
    static const int widths[] = {2, 3, 8}; /* GPTQModel allows several in one model */
    for (size_t i = 0; i < sizeof widths / sizeof *widths && !r->awq && t->ndim == 2; i++)
        if (t->shape[0] == (int64_t)r->cols * widths[i] / 32) r->bits = widths[i];
    const int64_t lines = r->awq ? r->cols : (int64_t)r->cols * r->bits / 32, words = r->awq ? r->rows / 8 : r->rows;
    if (q->method != QUANT_AWQ && q->method != QUANT_GPTQ)
        loader_fail(l, t, "config.json names neither GPTQ nor AWQ as its 'quant_method'");
    else if (!repack_fits(r)) loader_fail(l, t, "rows and columns must be multiples of 8 codes");
    else if (!is_shape(t, DT_I32, lines, words)) fail_shape(l, t, DT_I32, lines, words);
    return !l->rc;
}

struct mat packed_load_transposed(const struct matrix_source *s, struct tensor *t) {
    struct loader *l = s->l;
    const struct quant_config *q = &l->w->config.quant;
    const struct param *p = s->p;
    const int first = p->slice.first, step = p->slice.total_rows ? p->slice.step : 1,
              wanted = q->group > 0 ? q->group : p->cols;
    const int groups = (p->cols + wanted - 1) / wanted;
    struct repack r = {.words = t->data, .rows = s->rows, .cols = p->cols};
    struct tensor *scale = find_needed(s, ".scales"), *zeros = find_needed(s, ".qzeros"),
                  *order = matrix_find(s, ".g_idx");
    struct mat m = {
        .rows = p->rows, .cols = p->cols, .block_rows = 1, .block_cols = wanted, .scale_stride = groups, .row_step = 1};
    if (l->rc || !find_layout(l, t, &r)) return m;
    m.dtype = r.bits == 8 ? DT_I8 : DT_I4, m.stride = dtype_bytes(m.dtype, (size_t)p->cols);
    if (!is_shape(zeros, DT_I32, groups, (int64_t)r.rows * r.bits / 32))
        fail_shape(l, zeros, DT_I32, groups, (int64_t)r.rows * r.bits / 32);
    if (!is_shape(scale, scale->dtype, groups, r.rows)) fail_shape(l, scale, DT_F16, groups, r.rows);
    if (scale->dtype != DT_F16 && scale->dtype != DT_BF16 && scale->dtype != DT_F32)
        loader_fail(l, scale, "a scale must be F16, BF16 or F32");
    uint8_t *codes = loader_alloc_repacked(l, m.stride * (size_t)m.rows);
    for (int i = 0; codes && i < m.rows; i++) repack_row(&r, first + i * step, codes + (size_t)i * m.stride);
    m.data = codes;
    if (codes) transpose_scales(l, &m, scale, first, step);
    if (l->rc) return m;
    if (!q->zeros_are_half)
        fold_zeros(l, &m, scale, zero_transposed,
                   &(struct transposed_zeros){&r, zeros->data, groups, first, step,
                                              q->method == QUANT_GPTQ && q->zeros_minus_one});
    column_order_load(l, &m, order);
    if (!first) l->w->bytes_replaced += t->size + scale->size + zeros->size + (order ? order->size : 0);
    return m;
}

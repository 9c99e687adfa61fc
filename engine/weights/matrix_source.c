#include "engine/weights/matrix_source.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/scale.h"
#include "engine/model/arch.h"

struct tensor *matrix_find(const struct matrix_source *s, const char *ending) {
    return loader_find(s->l, s->pattern, s->layer, s->expert, ending);
}

struct mat matrix_part(const struct param *p, struct mat m) {
    const struct tensor_slice *s = &p->slice;
    if (!m.data || !s->total_rows) return m;
    m.data = (const uint8_t *)m.data + (size_t)s->first * m.stride;
    m.row0 = s->first, m.row_step = s->step, m.rows = p->rows;
    m.stride *= (size_t)s->step;
    return s->total_cols ? mat_cols(m, s->first_col, s->first_col + p->cols) : m;
}

/* Kernels read scales as aligned numbers. A header of odd length leaves the data unaligned; then the few scales are
 * copied. */
static const void *aligned_scale(struct loader *l, const struct tensor *s, const uint8_t *data, size_t size) {
    if ((uintptr_t)data % dtype_bytes(s->dtype, 1) == 0) return data;
    void *copy = arena_alloc(&l->w->arena, size);
    if (copy) return memcpy(copy, data, size);
    if (!l->rc) l->rc = error_set(l->e, ERR_MEMORY, "%s: no memory for its scales", l->w->files.dir);
    return data;
}

/* --- Scales ----------------------------------------------------------------------------------- */

/* Columns per group of a row with n scales; 0: not a whole number of groups. */
static int group_columns(const struct config *c, int cols, int64_t n) {
    const int wanted = c->quant.group;
    if (wanted > 0) return (cols + wanted - 1) / wanted == n ? wanted : 0;
    return n > 0 && cols % n == 0 ? (int)(cols / n) : 0;
}

void matrix_attach_scale(const struct matrix_source *src, struct mat *m, struct tensor *s) {
    struct loader *l = src->l;
    const struct config *c = &l->w->config;
    if (s->dtype == DT_U8) s->dtype = DT_E8M0; /* MXFP8: the real dtype, for verification */
    if (s->dtype != DT_F32 && s->dtype != DT_BF16 && s->dtype != DT_F16 && s->dtype != DT_E8M0) {
        loader_fail(l, s, "a scale must be F32, BF16, F16 or F8_E8M0");
        return;
    }
    const int lead = src->p->slice.stacked;
    int64_t rows = s->ndim > lead ? s->shape[lead] : 1, cols = s->ndim > lead + 1 ? s->shape[lead + 1] : 1;
    int64_t br = (m->rows + c->block_rows - 1) / c->block_rows, bc = (m->cols + c->block_cols - 1) / c->block_cols;
    bool flat = s->ndim <= lead + 2 && (!lead || (s->ndim && s->shape[0] == loader_stacked(l)));
    /* as config.json says */
    const bool by_group = (m->dtype == DT_I4 || m->dtype == DT_I8) && c->quant.group > 0 && c->quant.group < m->cols;
    const int group = flat && rows == m->rows && cols > 1 ? group_columns(c, m->cols, cols) : 0;
    m->scale_dtype = s->dtype;
    if (flat && rows == br && cols == bc && m->dtype == DT_E4M3)
        m->block_rows = c->block_rows, m->block_cols = c->block_cols;
    else if (flat && rows == m->rows && cols == 1 && !by_group) m->block_rows = 1, m->block_cols = m->cols;
    else if (rows == 1 && cols == 1 && s->size && (!lead || flat) && !by_group)
        m->block_rows = m->rows, m->block_cols = m->cols;
    else if (group && group % (int)dtype_block(m->dtype) == 0) m->block_rows = 1, m->block_cols = group;
    else {
        char text[240];
        snprintf(text, sizeof text,
                 "as the scale of [%d, %d] it must be [%lld, %lld] (blocks of %d x %d), [%d, 1] (one a row), [%d, "
                 "groups] or one number",
                 m->rows, m->cols, (long long)br, (long long)bc, c->block_rows, c->block_cols, m->rows, m->rows);
        loader_fail(l, s, text);
        return;
    }
    m->scale_stride = (int32_t)(m->block_cols >= m->cols ? 1 : cols);
    size_t size = dtype_bytes(s->dtype, (size_t)(rows * cols));
    m->scale = aligned_scale(l, s, s->data + (lead ? (size_t)src->expert * size : 0), size);
}

/* A positive number of a matrix: t has one F32, or one for each expert. */
static float number_of(const struct matrix_source *src, const struct tensor *t) {
    const size_t count = src->p->slice.stacked ? (size_t)loader_stacked(src->l) : 1,
                 at = t->size == 4 * count ? (size_t)src->expert % count : 0;
    float f = 0;
    if (t->dtype != DT_F32 || (t->size != 4 && t->size != 4 * count)) {
        loader_fail(src->l, t, "the factor of NVFP4's scales must be one F32");
        return 0;
    }
    memcpy(&f, t->data + 4 * at, 4);
    if (!(f > 0) || !isfinite(f)) loader_fail(src->l, t, "the factor of NVFP4's scales must be a positive number");
    return f;
}
/* NVFP4's factor of a matrix's scales: modelopt multiplies by one tensor, llm-compressor divides by another, Inkling 2
 * does both. */
static float scale_gain(const struct matrix_source *src, const struct tensor *weight) {
    static const char *const times[] = {".weight_scale_2", "_amax"}, *const over[] = {".weight_global_scale",
                                                                                      "_outer_scale_denominator"};
    const struct tensor *up = NULL, *down = NULL;
    for (size_t i = 0; i < sizeof times / sizeof *times && !up && !down; i++) {
        up = matrix_find(src, times[i]);
        if (!up || i) down = matrix_find(src, over[i]);
    }
    if (!up && !down) {
        loader_fail(src->l, weight, "no factor of its scales (.weight_scale_2 or .weight_global_scale)");
        return 0;
    }
    return (up ? number_of(src, up) : 1) / (down ? number_of(src, down) : 1);
}

/* --- FP4 -------------------------------------------------------------------------------------- */

/* Checks the scales and views the codes, whose shape has been checked. */
struct mat matrix_view_codes(const struct matrix_source *src, const struct tensor *t, struct tensor *s) {
    struct loader *l = src->l;
    const struct param *p = src->p;
    const bool nvfp4 = s->dtype == DT_E4M3;
    const int block = nvfp4 ? 16 : 32, rows = src->rows;
    struct mat m = {.data = t->data,
                    .scale = s->data,
                    .rows = rows,
                    .cols = p->cols,
                    .block_rows = 1,
                    .block_cols = block,
                    .row_step = 1,
                    .dtype = DT_E2M1};
    if (p->cols % block) {
        loader_fail(l, t, nvfp4 ? "NVFP4 has blocks of 16 columns" : "FP4 has blocks of 32 columns");
        return m;
    }
    if (!loader_has_shape(l, s, p, rows, p->cols / block, 0)) return m;
    if (!nvfp4 && s->dtype != DT_E8M0 && s->dtype != DT_U8) {
        loader_fail(l, s, "the scales of FP4 must be F8_E8M0, or F8_E4M3 with a factor");
        return m;
    }
    if (nvfp4) m.scale_gain = scale_gain(src, t);
    else s->dtype = DT_E8M0; /* the real dtype, for verification */
    m.stride = dtype_bytes(DT_E2M1, (size_t)p->cols), m.scale_dtype = s->dtype, m.scale_stride = p->cols / block;
    if (!p->slice.stacked) return m;
    m.data = t->data + (size_t)src->expert * (size_t)rows * m.stride;
    m.scale = s->data + (size_t)src->expert * (size_t)rows * (size_t)m.scale_stride;
    return m;
}

struct mat matrix_view_fp4(const struct matrix_source *src, const struct tensor *t, struct tensor *s) {
    struct param half = *src->p;
    half.cols = src->p->cols / 2;
    if (!loader_has_shape(src->l, t, &half, src->rows, half.cols, 0)) return (struct mat){0};
    return matrix_view_codes(src, t, s);
}

/* Reference: QuantState of bitsandbytes, functional.py, and how that dequantizes in blocks. */
#include "engine/weights/bitsandbytes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

/* The scales of a matrix as they are stored. */
struct stored_scales {
    const struct tensor *absmax;        /* F32, or U8 if they are nested */
    const struct tensor *outer, *codes; /* F32: of each nested block of scales; what the 256 codes stand for */
    int64_t block, nested_block;        /* codes per scale; scales per outer scale */
    float offset;                       /* added to each nested scale */
};

static const struct tensor *find_needed(const struct matrix_source *s, const char *ending) {
    const struct tensor *t = matrix_find(s, ending);
    if (!t) loader_missing(s->l, s->pattern, s->layer, s->expert, ending);
    return t;
}
static void check_floats(struct loader *l, const struct tensor *t, int64_t n) {
    char text[80];
    if (l->rc || (t->dtype == DT_F32 && (int64_t)t->size == 4 * n)) return;
    snprintf(text, sizeof text, "bitsandbytes stores F32 [%lld] there", (long long)n);
    loader_fail(l, t, text);
}
static float float_at(const struct tensor *t, size_t i) {
    float f;
    memcpy(&f, t->data + 4 * i, sizeof f);
    return f;
}

/* The levels of FP4; times 12 they are numbers of E4M3. */
static const float fp4[16] = {0,     0.0625f / 12,  8 / 12.0f,  1,  4 / 12.0f,  0.5f,  2 / 12.0f,  0.25f,
                              -0.0f, -0.0625f / 12, -8 / 12.0f, -1, -4 / 12.0f, -0.5f, -2 / 12.0f, -0.25f};
static const uint8_t fp4_in_e4m3[8] = {0x00, 0x18, 0x50, 0x54, 0x48, 0x4c, 0x40, 0x44}; /* of the positive ones */

static void check_levels(const struct matrix_source *s, const float *levels) {
    const struct tensor *t = find_needed(s, ".weight.quant_map");
    if (!s->l->rc) check_floats(s->l, t, 16);
    for (size_t i = 0; i < 16 && !s->l->rc; i++)
        if (!(fabsf(float_at(t, i) - levels[i]) < 1e-6f))
            loader_fail(s->l, t, levels == fp4 ? "not the sixteen levels of FP4" : "not the sixteen levels of NF4");
}

/* Reads the sizes of blocks, and whether the state describes this matrix. */
static void read_state(const struct matrix_source *s, const struct tensor *t, struct stored_scales *out) {
    struct loader *l = s->l;
    struct arena arena = {0};
    struct json j;
    if (json_parse(&arena, (const char *)t->data, t->size, 0, t->name, &j, l->e)) {
        l->rc = l->e->code = ERR_MODEL;
        goto out;
    }
    const struct json *shape = json_get(&j, "shape");
    out->block = json_int(json_get(&j, "blocksize"), 0);
    out->nested_block = json_int(json_get(&j, "nested_blocksize"), 0);
    out->offset = (float)json_num(json_get(&j, "nested_offset"), 0);
    if (out->block < 2 || out->block > 65536 || out->nested_block < 0 || !isfinite(out->offset))
        loader_fail(l, t, "its 'blocksize' must be a number of 2 to 65536");
    else if (!shape || shape->type != JSON_ARRAY || shape->n != 2 || json_int(json_at(shape, 0), 0) != s->rows ||
             json_int(json_at(shape, 1), 0) != s->p->cols) {
        char text[80];
        snprintf(text, sizeof text, "its 'shape' is not [%d, %d], for which config.json asks", s->rows, s->p->cols);
        loader_fail(l, t, text);
    }
out:
    arena_free(&arena);
}

static void find_scales(const struct matrix_source *s, int64_t n, struct stored_scales *out) {
    struct loader *l = s->l;
    const struct tensor *a = out->absmax;
    if (a->dtype != DT_U8) {
        check_floats(l, a, n);
        return;
    }
    out->outer = find_needed(s, ".weight.nested_absmax"), out->codes = find_needed(s, ".weight.nested_quant_map");
    if (l->rc) return;
    if ((int64_t)a->size != n) loader_fail(l, a, "the number of scales does not fit that of the weights");
    else if (!out->nested_block) loader_fail(l, a, "its quant_state lacks 'nested_blocksize'");
    if (l->rc) return;
    check_floats(l, out->outer, (n + out->nested_block - 1) / out->nested_block);
    check_floats(l, out->codes, 256);
}

static float scale_of(const struct stored_scales *s, size_t i) {
    if (!s->outer) return float_at(s->absmax, i);
    return float_at(s->codes, s->absmax->data[i]) * float_at(s->outer, i / (size_t)s->nested_block) + s->offset;
}

static int common_divisor(int a, int b) { return b ? common_divisor(b, a % b) : a; }

/* Reads what both kinds of codes have in common. Returns the columns of a scale: blocks run on from row to row, so they
 * are a part of a block. */
static int read_scales(const struct matrix_source *s, const struct tensor *t, const struct tensor *state,
                       const float *levels, struct stored_scales *in) {
    struct loader *l = s->l;
    const int64_t n = (int64_t)s->rows * s->p->cols;
    if (!l->rc && (s->p->slice.stacked || s->p->cols % 2 || (int64_t)t->size != n / 2))
        loader_fail(l, t, "not two codes per byte of a matrix with an even number of columns");
    if (!l->rc) read_state(s, state, in);
    if (!l->rc) check_levels(s, levels);
    if (!l->rc) find_scales(s, (n + in->block - 1) / in->block, in);
    const int columns = l->rc ? 2 : common_divisor((int)in->block, s->p->cols);
    if (columns % 2) loader_fail(l, t, "its blocks of scales have an odd number of columns");
    if (!l->rc && !s->p->slice.first)
        l->w->bytes_replaced += in->absmax->size + (in->outer ? in->outer->size + in->codes->size : 0) + state->size;
    return columns;
}

struct mat bitsandbytes_load_fp4(const struct matrix_source *s, const struct tensor *t, const struct tensor *absmax,
                                 const struct tensor *state) {
    const struct tensor_slice *slice = &s->p->slice;
    const int cols = s->p->cols, first = slice->first, step = slice->total_rows ? slice->step : 1;
    struct stored_scales in = {.absmax = absmax};
    struct mat m = {.stride = (size_t)cols,
                    .rows = s->p->rows,
                    .cols = cols,
                    .block_rows = 1,
                    .block_cols = read_scales(s, t, state, fp4, &in),
                    .row_step = 1,
                    .dtype = DT_E4M3,
                    .scale_dtype = DT_F32};
    if (slice->total_cols) loader_fail(s->l, t, "hearth repacks whole rows of FP4");
    if (s->l->rc) return m;
    m.scale_stride = cols / m.block_cols;
    uint8_t *codes = loader_alloc_repacked(s->l, (size_t)m.rows * (size_t)cols);
    float *scales = loader_alloc_repacked(s->l, (size_t)m.rows * (size_t)m.scale_stride * sizeof *scales);
    for (int r = 0; r < m.rows && codes && scales; r++) {
        const size_t from = (size_t)(first + r * step) * (size_t)cols, to = (size_t)r * (size_t)cols;
        for (size_t c = 0; c < (size_t)cols; c++) {
            const uint8_t code = t->data[(from + c) / 2] >> (c % 2 ? 0 : 4) & 15;
            codes[to + c] = (uint8_t)(fp4_in_e4m3[code & 7] | (code & 8) << 4);
        }
        for (size_t i = 0; i < (size_t)m.scale_stride; i++)
            scales[(size_t)r * (size_t)m.scale_stride + i] =
                scale_of(&in, (from + i * (size_t)m.block_cols) / (size_t)in.block) / 12;
    }
    s->l->w->bytes_replaced += (size_t)m.rows * (size_t)cols / 2;
    m.data = codes, m.scale = scales;
    return m;
}

struct mat bitsandbytes_load(const struct matrix_source *s, const struct tensor *t, const struct tensor *absmax) {
    struct loader *l = s->l;
    const int64_t cols = s->p->cols;
    struct stored_scales in = {.absmax = absmax};
    struct mat m = {.data = t->data,
                    .stride = dtype_bytes(DT_NF4, (size_t)cols),
                    .rows = s->rows,
                    .cols = s->p->cols,
                    .block_rows = 1,
                    .row_step = 1,
                    .dtype = DT_NF4,
                    .scale_dtype = DT_F32};
    const struct tensor *state = matrix_find(s, ".weight.quant_state.bitsandbytes__nf4");
    if (!state) loader_missing(l, s->pattern, s->layer, s->expert, ".weight.quant_state.bitsandbytes__nf4");
    m.block_cols = read_scales(s, t, state, mat_nf4, &in), m.scale_stride = s->p->cols / m.block_cols;
    if (l->rc) return m;
    const size_t count = (size_t)m.rows * (size_t)m.scale_stride;
    float *scales = loader_alloc_repacked(l, count * sizeof *scales);
    for (size_t i = 0; scales && i < count; i++) scales[i] = scale_of(&in, i * (size_t)m.block_cols / (size_t)in.block);
    m.scale = scales;
    return m;
}

struct mat bitsandbytes_load_bytes(const struct matrix_source *s, const struct tensor *t,
                                   const struct tensor *largest) {
    struct loader *l = s->l;
    const size_t rows = (size_t)s->rows;
    const struct tensor *order = matrix_find(s, ".weight_format");
    struct mat m = {.data = t->data,
                    .stride = (size_t)s->p->cols,
                    .rows = s->rows,
                    .cols = s->p->cols,
                    .block_rows = 1,
                    .block_cols = s->p->cols,
                    .scale_stride = 1,
                    .row_step = 1,
                    .dtype = DT_I8,
                    .scale_dtype = DT_F32};
    if (s->p->slice.stacked || t->dtype != DT_I8) loader_fail(l, t, "bitsandbytes stores I8 [rows, columns] there");
    else if (order && (order->size != 1 || order->data[0]))
        loader_fail(l, order, "hearth reads rows in order, number 0");
    if (l->rc || !loader_has_shape(l, t, s->p, s->rows, s->p->cols, 0)) return m;
    check_floats(l, largest, s->rows);
    float *scales = l->rc ? NULL : loader_alloc_repacked(l, rows * sizeof *scales);
    for (size_t i = 0; scales && i < rows; i++) scales[i] = float_at(largest, i) / 127;
    m.scale = scales;
    if (!s->p->slice.first) l->w->bytes_replaced += largest->size;
    return m;
}

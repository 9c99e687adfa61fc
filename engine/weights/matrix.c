#include "engine/weights/matrix.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/minifloat.h"
#include "base/scale.h"
#include "engine/model/arch.h"
#include "engine/weights/bitsandbytes.h"
#include "engine/weights/matrix_source.h"
#include "engine/weights/mlx.h"
#include "engine/weights/packed.h"

/* --- MXFP4 ------------------------------------------------------------------------------------ */

/* gpt-oss's MXFP4 layout: NAME_blocks [.., rows, cols / 32, 16] with two codes per byte, NAME_scales [.., rows, cols /
 * 32] of exponents. */
static struct mat load_mxfp4(const struct matrix_source *src, struct tensor *t) {
    enum { BLOCK = 32 };
    struct loader *l = src->l;
    const int cols = src->p->cols, blocks = cols / BLOCK;
    struct tensor *s = matrix_find(src, "_scales");
    if (!s) {
        loader_missing(l, src->pattern, src->layer, src->expert, "_scales");
        return (struct mat){0};
    }
    if (!loader_has_shape(l, t, src->p, src->rows, cols, 1)) return (struct mat){0};
    if (t->dtype != DT_U8 || cols % BLOCK || t->shape[t->ndim - 1] != BLOCK / 2 || t->shape[t->ndim - 2] != blocks) {
        loader_fail(l, t, "not MXFP4: U8 [.., columns / 32, 16]");
        return (struct mat){0};
    }
    if (s->dtype != DT_U8 && s->dtype != DT_E8M0) {
        loader_fail(l, s, "the scales of MXFP4 must be U8");
        return (struct mat){0};
    }
    return matrix_view_codes(src, t, s);
}

/* --- Any matrix ------------------------------------------------------------------------------- */

static bool is_transposed_expert(const struct loader *l, const struct param *p) {
    const struct layout *y = l->w->config.layout;
    return p->module == MODULE_EXPERT && p->cols &&
           (p->offset == offsetof(struct expert, down) ? y->transposed_down : y->transposed_gate_up);
}

/* The factor of an NVFP4 matrix, one number or one for each expert; NULL: none. Other tensors of such names in GGUF
 * files are vectors, Gemma 4's factors of its experts among them. */
static struct tensor *find_gguf_scale(const struct matrix_source *src, const struct tensor *t) {
    const char *vector = src->l->w->config.names->expert_scale, *own = src->pattern;
    const size_t n = strlen(own);
    const bool is_vector = vector && !strncmp(vector, own, n) && !strcmp(vector + n, ".scale");
    return t->dtype == DT_NVFP4 && !is_vector ? matrix_find(src, ".scale") : NULL;
}

/* Copies the scales before m's rows, of `head` bytes, and moves m's data behind the first. */
static void take_row_scales(struct loader *l, struct mat *m, size_t head) {
    float *scale = arena_alloc(&l->w->arena, (size_t)m->rows * sizeof *scale);
    if (!scale) {
        if (!l->rc) l->rc = error_set(l->e, ERR_MEMORY, "%s: no memory for its scales", l->w->files.dir);
        return;
    }
    for (int r = 0; r < m->rows; r++) {
        const uint8_t *row = (const uint8_t *)m->data + (size_t)r * m->stride;
        uint16_t half;
        if (head == sizeof *scale) memcpy(&scale[r], row, sizeof *scale);
        else memcpy(&half, row, sizeof half), scale[r] = f16_to_f32(half);
    }
    m->data = (const uint8_t *)m->data + head;
    m->scale = scale, m->scale_dtype = DT_F32, m->block_rows = 1, m->block_cols = m->cols, m->scale_stride = 1;
}

/* Whether I8 bytes of two codes with scale s are those of w4afp8, whose files may name it as modelopt's MIXED_PRECISION
 * or not at all: FP4 has scales of eight bits. */
static bool is_w4afp8(const struct config *c, const struct tensor *s) {
    const bool is_open = c->quant.method == QUANT_NONE || c->quant.method == QUANT_MODELOPT;
    return c->quant.method == QUANT_W4AFP8 || (is_open && dtype_bytes(s->dtype, 1) > 1);
}

static struct mat load_plain(const struct matrix_source *src, struct tensor *t) {
    struct loader *l = src->l;
    const struct param *p = src->p;
    const int cols = p->slice.total_cols ? p->slice.total_cols : p->cols; /* columns of the stored tensor */
    struct mat m = {.rows = src->rows, .cols = cols, .row_step = 1, .dtype = t->dtype};
    static const char *const endings[] = {
        ".weight_scale_inv", ".weight_scale",  ".scale",     ".weight_quantizer.scale",
        ".qscale_weight",    "._weight_scale", "_scale_inv", "_scale"};
    struct tensor *s = NULL;
    if (l->w->files.gguf) s = find_gguf_scale(src, t);
    for (size_t i = 0; i < sizeof endings / sizeof *endings && !s && !l->w->files.gguf; i++)
        s = matrix_find(src, endings[i]);
    const bool halved = t->ndim && t->shape[t->ndim - 1] != cols; /* DeepSeek-V4 stores FP4 as I8, modelopt as U8 */
    if (s && halved && t->dtype == DT_I8 && is_w4afp8(&l->w->config, s)) return packed_load_signed(src, t, s);
    if (s && halved && (t->dtype == DT_I8 || t->dtype == DT_U8)) return matrix_view_fp4(src, t, s);
    if (!loader_has_shape(l, t, p, src->rows, cols, 0)) return m;
    m.stride = dtype_row_head(t->dtype) + dtype_bytes(t->dtype, (size_t)cols);
    m.data = t->data + (p->slice.stacked ? (size_t)src->expert * (size_t)src->rows * m.stride : 0);
    if (dtype_row_head(t->dtype)) take_row_scales(l, &m, dtype_row_head(t->dtype));
    switch (t->dtype) {
    case DT_F32:
    case DT_BF16:
    case DT_F16:
        if (s) loader_fail(l, s, "unexpected scale: the weight needs none or carries its own");
        break;
    case DT_E4M3:
        if (!s) loader_fail(l, t, "no scale tensor (.weight_scale_inv or .weight_scale)");
        else matrix_attach_scale(src, &m, s);
        break;
    case DT_I8:
        if (!s) loader_fail(l, t, "no scale tensor (.weight_scale)");
        else matrix_attach_scale(src, &m, s);
        if (!l->rc) packed_add_zeros(src, &m);
        break;
    default:
        if (t->dtype == DT_NVFP4 && s) matrix_attach_scale(src, &m, s);
        else if (dtype_block(t->dtype) >= 32) { /* GGUF's */
            if (s) loader_fail(l, s, "unexpected scale: the weight needs none or carries its own");
        } else
            loader_fail(l, t,
                        "hearth supports F32, BF16 and F16 weights, F8_E4M3 and I8 with scales, and FP4 with a scale "
                        "per 16 or 32 columns");
    }
    return m;
}

/* torchao's tensors of one element per code, as it writes them into safetensors: NAME._weight_qdata and
 * NAME._weight_scale, one number, one a row, or one for each group of a row's columns. */
static struct mat load_torchao(const struct matrix_source *src, struct tensor *t) {
    const struct param *p = src->p;
    const int cols = p->slice.total_cols ? p->slice.total_cols : p->cols;
    if (matrix_find(src, "._weight_act_pre_scale"))
        loader_fail(src->l, t,
                    "torchao multiplies its input by factors (act_pre_scale), which hearth does not compute");
    else if ((t->dtype != DT_E4M3 && t->dtype != DT_I8) || !t->ndim || t->shape[t->ndim - 1] != cols)
        loader_fail(src->l, t,
                    "of torchao's kinds hearth reads Float8Tensor, Int8Tensor and IntxUnpackedToInt8Tensor: F8_E4M3 or "
                    "I8 [rows, columns]");
    return src->l->rc ? (struct mat){0} : load_plain(src, t);
}

/* Whether the next part of a matrix can follow those before: the same format, and whole blocks of scales. */
static bool is_joinable(const struct mat *part, const struct mat *first) {
    if (part->dtype != first->dtype || part->stride != first->stride || part->order || part->row_step != 1)
        return false;
    if (!part->scale || !first->scale) return !part->scale && !first->scale;
    return part->scale_dtype == first->scale_dtype && part->block_rows == first->block_rows &&
           part->block_cols == first->block_cols && part->scale_gain == first->scale_gain && part->row0 == 0 &&
           (part->rows % part->block_rows == 0 || part->block_rows > part->rows);
}
/* Joins the tensors of a matrix that is published in parts, in memory of its own. */
static struct mat load_parts(struct loader *l, const struct param *p, const char *pattern, int layer) {
    struct param part = *p;
    struct mat all = {0};
    size_t size = 0, scales = 0; /* bytes of a part */
    uint8_t *to = NULL;
    part.parts = 0, part.rows /= p->parts;
    for (int i = 0; i < p->parts && !l->rc; i++) {
        const struct mat m = matrix_load(l, &part, pattern, layer, i);
        if (l->rc) break;
        if (!i) {
            all = m;
            all.rows = p->rows;
            if (m.block_rows > m.rows) all.block_rows = m.rows; /* each part has scales of its own */
            size = (size_t)m.rows * m.stride;
            scales = m.scale ? mat_bytes(&m) - (size_t)m.rows * dtype_bytes((enum dtype)m.dtype, (size_t)m.cols) : 0;
            to = loader_alloc_repacked(l, (size + scales) * (size_t)p->parts);
            l->w->bytes_replaced += to ? (size + scales) * (size_t)p->parts : 0;
            all.data = to, all.scale = scales && to ? to + size * (size_t)p->parts : NULL;
        }
        struct mat first = all;
        first.block_rows = all.block_rows == m.rows && m.block_rows > m.rows ? m.block_rows : all.block_rows;
        if (!l->rc && !is_joinable(&m, &first))
            loader_fail(l, loader_find(l, pattern, layer, i, p->suffix),
                        "it belongs to a matrix in parts, which must have one format, and scales of whole parts");
        if (l->rc) break;
        memcpy(to + (size_t)i * size, m.data, size);
        if (scales) memcpy(to + size * (size_t)p->parts + (size_t)i * scales, m.scale, scales);
    }
    return all;
}

/* Writes the columns first, first + step, ... of `from` as rows of `to`, [rows, from->rows]. size: bytes of an element.
 * In blocks that fit the L1 cache. */
static inline void turn(uint8_t *to, const struct mat *from, int rows, int first, int step, size_t size) {
    enum { BLOCK = 64 };
    const size_t cols = (size_t)from->rows;
    for (size_t j0 = 0; j0 < cols; j0 += BLOCK)
        for (int i = 0; i < rows; i++) {
            const uint8_t *column = (const uint8_t *)from->data + (size_t)(first + i * step) * size;
            for (size_t j = j0; j < cols && j < j0 + BLOCK; j++)
                memcpy(to + ((size_t)i * cols + j) * size, column + j * from->stride, size);
        }
}

/* Transposes a matrix that is stored as [cols, rows], in memory of its own. */
static struct mat load_transposed(struct loader *l, const struct param *p, const char *pattern, int layer, int expert) {
    struct param stored = *p;
    const bool stacked = p->slice.stacked;
    stored.is_transposed = false, stored.rows = p->cols,
    stored.cols = p->slice.total_rows ? p->slice.total_rows : p->rows;
    stored.slice = (struct tensor_slice){.total_rows = stacked ? p->cols : 0, .step = stacked, .stacked = stacked};
    const struct mat from = matrix_load(l, &stored, pattern, layer, expert);
    if (!l->rc && (from.scale || dtype_block((enum dtype)from.dtype) > 1))
        loader_fail(l, loader_find(l, pattern, layer, expert, p->suffix),
                    "a transposed matrix must be F32, BF16 or F16, without scales");
    if (l->rc) return (struct mat){0};
    const size_t size = dtype_bytes((enum dtype)from.dtype, 1), row_bytes = (size_t)p->cols * size;
    uint8_t *to = loader_alloc_repacked(l, (size_t)p->rows * row_bytes);
    if (!to) return (struct mat){0};
    l->w->bytes_replaced += (size_t)p->rows * row_bytes;
    const int first = p->slice.first, step = p->slice.total_rows ? p->slice.step : 1;
    if (size == 2) turn(to, &from, p->rows, first, step, 2);
    else turn(to, &from, p->rows, first, step, 4);
    return (struct mat){
        .data = to, .stride = row_bytes, .rows = p->rows, .cols = p->cols, .row_step = 1, .dtype = from.dtype};
}

static int common_divisor(int a, int b) {
    while (b) {
        const int rest = a % b;
        a = b, b = rest;
    }
    return a;
}
/* Gathers the scales of a matrix in pieces. Blocks of rows begin anew in each piece, or continue those of the piece
 * before if config.json's blocks do not cross its end. A matrix that begins or ends within a block has blocks of fewer
 * rows. */
static void gather_scales(const struct matrix_source *src, struct mat *m) {
    struct loader *l = src->l;
    const struct config *c = &l->w->config;
    const struct tensor_slice *slice = &src->p->slice;
    struct tensor *s = matrix_find(src, ".weight_scale_inv");
    if (!s) {
        loader_missing(l, src->pattern, src->layer, 0, ".weight_scale_inv");
        return;
    }
    const int piece = slice->total_rows / slice->pieces, each = m->rows / slice->pieces,
              per = (piece + c->block_rows - 1) / c->block_rows;
    const int across = (m->cols + c->block_cols - 1) / c->block_cols,
              block = common_divisor(common_divisor(c->block_rows, slice->first), each);
    if ((s->dtype != DT_F32 && s->dtype != DT_BF16 && s->dtype != DT_F16) || s->ndim != 2 ||
        s->shape[0] != per * slice->pieces || s->shape[1] != across) {
        char text[160];
        snprintf(text, sizeof text, "the scales of %d pieces of %d rows must be F32, BF16 or F16 [%d, %d]",
                 slice->pieces, piece, per * slice->pieces, across);
        loader_fail(l, s, text);
        return;
    }
    const size_t line = dtype_bytes(s->dtype, (size_t)across);
    uint8_t *to = arena_alloc(&l->w->arena, (size_t)(m->rows / block) * line);
    if (!to && !l->rc) l->rc = error_set(l->e, ERR_MEMORY, "%s: no memory for its scales", l->w->files.dir);
    for (int i = 0; i < m->rows / block && to; i++) {
        const int row = i * block, at = row / each * per + (slice->first + row % each) / c->block_rows;
        memcpy(to + (size_t)i * line, s->data + (size_t)at * line, line);
    }
    m->scale = to, m->scale_dtype = s->dtype, m->block_rows = block, m->block_cols = c->block_cols;
    m->scale_stride = (int32_t)(m->block_cols >= m->cols ? 1 : across);
}

/* Gathers the rows of a matrix from all pieces of a tensor, in memory of its own. */
static struct mat load_pieces(struct loader *l, const struct param *p, const char *pattern, int layer) {
    const struct matrix_source src = {l, p, pattern, layer, 0, p->slice.total_rows};
    struct tensor *t = matrix_find(&src, p->suffix);
    struct mat m = {.rows = p->rows, .cols = p->cols, .row_step = 1};
    if (!t) loader_missing(l, pattern, layer, 0, p->suffix);
    if (!t || !loader_has_shape(l, t, p, src.rows, p->cols, 0)) return m;
    m.dtype = t->dtype;
    if (t->dtype != DT_F32 && t->dtype != DT_BF16 && t->dtype != DT_F16 && t->dtype != DT_E4M3) {
        loader_fail(l, t, "a matrix of which several pieces have rows must be F32, BF16, F16 or F8_E4M3");
        return m;
    }
    m.stride = dtype_bytes(t->dtype, (size_t)p->cols);
    const size_t each = (size_t)(p->rows / p->slice.pieces) * m.stride,
                 piece = (size_t)(src.rows / p->slice.pieces) * m.stride;
    uint8_t *to = loader_alloc_repacked(l, (size_t)p->rows * m.stride);
    if (!to) return m;
    l->w->bytes_replaced += (size_t)p->rows * m.stride;
    for (int i = 0; i < p->slice.pieces; i++)
        memcpy(to + (size_t)i * each, t->data + (size_t)i * piece + (size_t)p->slice.first * m.stride, each);
    m.data = to;
    if (t->dtype == DT_E4M3) gather_scales(&src, &m);
    return m;
}

struct mat matrix_load(struct loader *l, const struct param *p, const char *pattern, int layer, int expert) {
    struct mat m = {0};
    const struct matrix_source src = {l,     p,      pattern,
                                      layer, expert, p->slice.total_rows ? p->slice.total_rows : p->rows};
    /* static activation scales, used by other engines only */
    static const char *const unused[] = {".input_scale", ".input_global_scale", "._weight_act_quant_scale",
                                         "._weight_act_quant_zero_point"};
    struct tensor *t;
    if (l->rc) return m;
    if (p->parts) return load_parts(l, p, pattern, layer);
    if (p->slice.pieces > 1) return load_pieces(l, p, pattern, layer);
    if (p->is_transposed) return load_transposed(l, p, pattern, layer, expert);
    struct tensor *scales;
    if ((t = matrix_find(&src, p->suffix)) && t->dtype == DT_I32 && (scales = matrix_find(&src, ".scales")))
        return mlx_load(&src, t, scales); /* only the rows of this parameter */
    const struct tensor *state = t ? matrix_find(&src, ".weight.quant_state.bitsandbytes__fp4") : NULL;
    if (state && (scales = matrix_find(&src, ".weight.absmax")))
        return bitsandbytes_load_fp4(&src, t, scales, state); /* only the rows of this parameter */
    if (t && (scales = matrix_find(&src, ".weight.absmax"))) m = bitsandbytes_load(&src, t, scales);
    else if (t && (scales = matrix_find(&src, ".SCB"))) m = bitsandbytes_load_bytes(&src, t, scales);
    else if (t) m = load_plain(&src, t);
    else if ((t = matrix_find(&src, "_blocks"))) m = load_mxfp4(&src, t);
    else if ((t = matrix_find(&src, "._weight_qdata"))) m = load_torchao(&src, t);
    else if ((t = matrix_find(&src, ".weight_packed"))) m = packed_load(&src, t);
    /* only the rows of this parameter */
    else if ((t = matrix_find(&src, ".qweight"))) return packed_load_transposed(&src, t);
    else if (!p->optional) loader_missing(l, pattern, layer, expert, p->suffix);
    for (size_t i = 0; t && i < sizeof unused / sizeof *unused; i++) matrix_find(&src, unused[i]);
    if (t && is_transposed_expert(l, p) && (m.scale || dtype_block(m.dtype) > 1))
        loader_fail(l, t, "a transposed matrix must be F32, BF16 or F16, without scales");
    return matrix_part(p, m);
}

#include "engine/weights/vector.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mat_at.h"

static float convert_number(float v, const struct param *p) {
    const float gate = 1 / (1 + expf(-v)), stream = (1 + gate) / (1 + expf(v));
    switch (p->conversion) {
    case CONVERT_MINUS: return -v;
    case CONVERT_MINUS_EXP:
    case CONVERT_RATES: return -expf(v);
    case CONVERT_ADD_ONE: return 1 + v;
    case CONVERT_ADD_FACTOR: return v + p->factor;
    case CONVERT_OUTPUT_GATE: return gate;
    case CONVERT_STREAM_GATE: return sqrtf(stream > 1e-3f ? stream : 1e-3f);
    default: return v;
    }
}
/* Converts a vector for the kernels. Returns where the result is: in v, or in `transposed`, which is v for conversions
 * that change no order. */
static float *convert_vector(float *v, const struct param *p, float *transposed) {
    for (int i = 0; i < p->rows; i++) v[i] = convert_number(v[i], p);
    if (transposed == v) return v;
    if (p->conversion == CONVERT_RATES || p->conversion == CONVERT_TRANSPOSE_TABLE) {
        for (int i = 0; i < p->rows; i++)
            transposed[i % p->table_cols * (p->rows / p->table_cols) + i / p->table_cols] = v[i];
        return transposed;
    }
    const int taps = params_taps(p), channels = p->rows / taps, apart = p->dilation ? p->dilation : 1;
    const bool turns = p->conversion == CONVERT_TURN_TAPS;
    memset(transposed, 0, (size_t)p->rows * sizeof *transposed);
    for (int i = 0; i < channels * p->taps && !turns; i++)
        transposed[i % p->taps * apart * channels + i / p->taps] = v[i];
    for (int i = 0; i < channels * p->taps && turns; i++)
        transposed[(p->taps - 1 - i / channels) * channels + i % channels] = v[i];
    for (int i = 0; i < channels && (turns || p->conversion == CONVERT_ADD_INPUT); i++)
        transposed[(taps - 1) * channels + i] += p->factor > 0 ? p->factor : 1;
    return transposed;
}
/* Whether a tensor is [rows, cols] apart from dimensions of size one. */
static bool is_matrix_of(const struct tensor *t, int rows, int cols) {
    int64_t kept[2] = {1, 1};
    int n = 0;
    for (int d = 0; d < t->ndim; d++)
        if (t->shape[d] != 1 && n++ < 2) kept[n - 1] = t->shape[d];
    return n <= 2 && kept[0] == rows && kept[1] == cols;
}
static bool is_taps(struct loader *l, const struct tensor *t, const struct param *p) {
    const int channels = p->rows / params_taps(p);
    char text[64];
    const int in = p->taps_in ? p->taps_in : 1;
    if (p->conversion == CONVERT_TURN_TAPS) {
        if (t->ndim == 2 && t->shape[0] == p->taps && t->shape[1] == channels) return true;
        snprintf(text, sizeof text, "config.json asks for [%d, %d]", p->taps, channels);
        loader_fail(l, t, text);
        return false;
    }
    if (t->ndim == 3 && t->shape[0] == channels / in && t->shape[1] == in && t->shape[2] == p->taps) return true;
    if ((l->w->files.gguf || l->w->files.mlx) && in == 1 && is_matrix_of(t, channels, p->taps)) return true;
    snprintf(text, sizeof text, "config.json asks for [%d, %d, %d]", channels / in, in, p->taps);
    loader_fail(l, t, text);
    return false;
}

static bool is_table(struct loader *l, const struct tensor *t, const struct param *p) {
    char text[64];
    const int rows = (p->slice.total_rows ? p->slice.total_rows : p->rows) / p->table_cols;
    const int deep = p->table_rows ? rows / p->table_rows : 0;
    if (!deep && t->ndim == 2 && t->shape[0] == rows && t->shape[1] == p->table_cols) return true;
    if (!deep && t->ndim == 3 && t->shape[0] == 1 && t->shape[1] == rows && t->shape[2] == p->table_cols) return true;
    if (!deep && rows == 1 && t->ndim == 1 && t->shape[0] == p->table_cols) return true; /* GGUF has vectors */
    if (deep && t->ndim == 3 && t->shape[0] == deep && t->shape[1] == p->table_rows && t->shape[2] == p->table_cols)
        return true;
    if (deep) snprintf(text, sizeof text, "config.json asks for [%d, %d, %d]", deep, p->table_rows, p->table_cols);
    else snprintf(text, sizeof text, "config.json asks for [%d, %d]", rows, p->table_cols);
    loader_fail(l, t, text);
    return false;
}

/* Loads the table of experts by token as int32_t; every entry must be a valid expert. */
static float *load_expert_ids(struct loader *l, const struct param *p, const struct tensor *t) {
    const size_t size = dtype_bytes(t->dtype, 1);
    int32_t *out = NULL;
    if (t->dtype != DT_I64 && t->dtype != DT_I32) {
        loader_fail(l, t, "a table of experts must be I64 or I32");
        return NULL;
    }
    if (!(out = arena_alloc(&l->w->arena, (size_t)p->rows * sizeof *out))) {
        l->rc = error_set(l->e, ERR_MEMORY, "%s: no memory for its table of experts", l->w->files.dir);
        return NULL;
    }
    for (int i = 0; i < p->rows; i++) {
        int64_t id = 0;
        int32_t narrow;
        memcpy(&narrow, t->data + (size_t)i * size, sizeof narrow);
        if (t->dtype == DT_I64) memcpy(&id, t->data + (size_t)i * size, sizeof id);
        else id = narrow;
        if (id < 0 || id >= l->w->config.n_experts) {
            char text[96];
            snprintf(text, sizeof text, "it gives token %d expert %lld of %d", i / p->table_cols, (long long)id,
                     l->w->config.n_experts);
            loader_fail(l, t, text);
            return NULL;
        }
        out[i] = (int32_t)id;
    }
    return (float *)out;
}

static bool has_floats(struct loader *l, const struct tensor *t) {
    if (t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16) return true;
    loader_fail(l, t, "a vector must be F32, BF16 or F16");
    return false;
}
/* Multiplies out by the parameter's second tensor; without a name for it, the first one is the product already. Returns
 * whether that was possible. */
static bool multiply(struct loader *l, const struct param *p, int layer, int expert, float *out) {
    const struct param factors = {.suffix = ".weight", .rows = p->rows};
    const char *pattern = *(const char *const *)((const char *)l->w->config.names + p->times_offset);
    if (!pattern) return true;
    struct tensor *t = loader_find(l, pattern, layer, expert, factors.suffix);
    if (!t) loader_missing(l, pattern, layer, expert, factors.suffix);
    if (!t || !loader_has_shape(l, t, &factors, p->rows, 0, 0) || !has_floats(l, t)) return false;
    struct mat m = {.rows = 1, .cols = 1, .dtype = t->dtype};
    for (int i = 0; i < p->rows; i++) {
        float f;
        m.data = t->data + dtype_bytes(t->dtype, (size_t)i);
        mat_row(&m, 0, &f);
        out[i] *= f;
    }
    return true;
}

float *vector_load(struct loader *l, const struct param *p, const char *pattern, int layer, int expert) {
    if (l->rc) return NULL;
    if (p->conversion == CONVERT_TOKEN_NUMBERS) return (float *)l->w->ngram_ids;
    struct tensor *t = loader_find(l, pattern, layer, expert, p->suffix);
    if (!t) {
        if (!p->optional) loader_missing(l, pattern, layer, expert, p->suffix);
        return NULL;
    }
    const int of = p->slice.total_rows ? p->slice.total_rows : p->rows, step = p->slice.total_rows ? p->slice.step : 1;
    const bool is_longer = p->is_padded && t->ndim == 1 && t->shape[0] > p->rows;
    if (p->taps         ? !is_taps(l, t, p)
        : p->table_cols ? !is_table(l, t, p)
                        : !is_longer && !loader_has_shape(l, t, p, of, 0, 0))
        return NULL;
    if (p->conversion == CONVERT_EXPERT_IDS) return load_expert_ids(l, p, t);
    if (!has_floats(l, t)) return NULL;
    float *out = arena_alloc(&l->w->arena, (size_t)p->rows * sizeof *out);
    float *transposed = p->taps || p->conversion == CONVERT_RATES || p->conversion == CONVERT_TRANSPOSE_TABLE
                            ? arena_alloc(&l->w->arena, (size_t)p->rows * sizeof *out)
                            : out;
    if (!out || !transposed) {
        l->rc = error_set(l->e, ERR_MEMORY, "%s: no memory for its small tensors", l->w->files.dir);
        return NULL;
    }
    struct mat m = {.data = t->data, .rows = 1, .cols = 1, .dtype = t->dtype};
    size_t first = (size_t)p->slice.first + (p->slice.stacked ? (size_t)expert * (size_t)of : 0);
    const int pieces = p->slice.pieces > 1 ? p->slice.pieces : 1, each = p->rows / pieces, piece = of / pieces;
    const int stored = p->taps ? p->rows / params_taps(p) * p->taps : p->rows;
    for (int i = 0; i < stored; i++) {
        const int of_row = p->slice.repeats ? i / p->slice.repeats : i,
                  at = of_row % each * step + of_row / each * piece;
        m.data = t->data + dtype_bytes(t->dtype, first + (size_t)at);
        if (p->slice.first + at < of) mat_row(&m, 0, &out[i]);
        else out[i] = 0;
        if (p->factor > 0) out[i] *= p->factor;
    }
    if (p->times_offset && !multiply(l, p, layer, expert, out)) return NULL;
    return convert_vector(out, p, transposed);
}

#pragma once
/* Embeddings, norms, matrix products and rotary positions. */
#include "base/op_common.h"

/* out[i] = scale * row ids[i] of table, float32 [n, cols] */
struct op_embed {
    float *out;
    const int32_t *ids;
    struct mat table;
    int n;
    float scale; /* 0: 1 */
};

/* out = x / sqrt(mean(x^2) + eps) * (w + add), for `rows` rows of `dim` (e.g. n tokens or n * heads). w NULL: all 1.
 * layer_norm: (x - mean) / sqrt(var + eps) * (w + add) + bias. l2_limit > 0 (RMS only): rows are only shortened to that
 * length, out = x * min(1, l2_limit / (sqrt(sum x^2) + 1e-6)) * (w + add). x and out may be the same. With w_rows row i
 * takes row i % w_rows of w and bias. bad: NULL, or an int, initially -1, that receives tag if an input is not finite.
 */
struct op_norm {
    float *out;
    const float *x;
    const void *w, *bias; /* [dim], or [w_rows, dim], of w_dtype: F32, BF16 or F16; bias may be NULL */
    int rows, dim, ldx, ldo, w_rows;
    float eps, add, l2_limit;
    uint8_t w_dtype, layer_norm;
    int tag;
    op_flag *bad;
};

/* y[i] = W x[i] (+ bias) (+ y[i] if accumulate). W [rows, cols], x [n, cols], y [n, rows]. transposed: y = W^T x, x [n,
 * rows], y [n, cols]. bias float32. `batch` > 1 repeats this per head: W advances by batch_rows rows, x by batch_x and
 * y by batch_y floats. */
struct op_linear {
    float *y;
    const float *x;
    const float *bias;
    struct mat w;
    int n, ldx, ldy;
    bool accumulate, transposed;
    bool exact; /* computes in float32 as for few tokens, whatever n (routers: rounding must not change a selection) */
    bool wide;  /* the CPU keeps at least 16 bits of an activation whatever n; BF16 would keep 8 */
    int batch, batch_rows, batch_x, batch_y;
    /* NULL, or [n]: receives the row of W with a token's largest y, the first on ties; -1: a y was NaN. CPU only,
     * without transposed and batch: a greedy LM head. */
    int32_t *top;
    /* NULL, or [n], with accumulate: a row's product is multiplied by its number before it is added. Within CUDA only,
     * for at most BATCH_INVARIANT_ROWS rows */
    const float *row_weight;
};

/* cos[i][j], sin[i][j] = mscale * cos/sin(pos[i] * inv_freq[j]), j < half; pos NULL: i * step + pos0. longest > 0
 * (LongRoPE): rows of longer sequences use the second row of inv_freq, and long_mscale. place: a row has a time, a row
 * and a column of an image instead of pos; op_rope_part() says which of them turns frequency j (M-RoPE). */
struct op_rope_table {
    float *cos, *sin; /* [n, half] */
    const int32_t *pos;
    const int32_t *place;   /* [n, 3], or NULL */
    int section[2];         /* with place: frequencies of rows, and of columns */
    bool sections_in_order; /* times first, then rows, then columns (GLM-4.5V); else interleaved (Qwen3-VL) */
    const float *inv_freq;  /* [half], or [2, half] */
    const int32_t *length;  /* [n]: sequence length of each row; NULL: `total` for all */
    int n, half, longest, total, pos0, step;
    float mscale, long_mscale;
    const struct op_address *at; /* NULL, or supplies pos0: its position rounded down to a multiple of step */
};
OP_INLINE int op_rope_part(const struct op_rope_table *o, int j) {
    if (o->sections_in_order)
        return j < o->half - o->section[0] - o->section[1] ? 0 : j < o->half - o->section[1] ? 1 : 2;
    const int part = j % 3;
    return part && j / 3 < o->section[part - 1] ? part : 0;
}
/* Rotates in place the 2*half numbers at x + i * ld + h * head_ld, for each token i and head h. interleaved: pairs (2j,
 * 2j+1), keeping the layout; else pairs (j, j + half). inverse rotates by -angle. */
struct op_rope {
    float *x;
    const float *cos, *sin; /* [n, half] */
    int n, heads, ld, head_ld, half;
    bool interleaved, inverse;
};

#define OPS_LINEAR(X) \
    X(embed, EMBED, KERNEL, ELEM, 8, o->n, o->table.cols, 1) \
    X(norm, NORM, SMALL, ELEM, 8, o->rows, o->dim, 1) \
    X(linear, LINEAR, HOST, LINEAR, 0, o->n, o->w.rows, 1) \
    X(rope_table, ROPE_TABLE, KERNEL, ELEM, 8, o->n, o->half, 1) \
    X(rope, ROPE, SMALL, ELEM, 8, o->n, o->heads, 2 * o->half)

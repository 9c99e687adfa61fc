/* GEMV for one or few tokens of INT4 weights with a scale per 128 columns: the experts of a draft. Memory-bound by
 * design.
 *
 * Products are exact integer products. Per 128 columns, x becomes the sum of two 8-bit planes times a scale: 16 bits of
 * the largest element. Codes are biased by 8, and 8 * x is subtracted in integers, lane by lane, so a group's sum is
 * exact. It is converted to float once, times both scales. The order of a row's sum is fixed: groups in order, lanes at
 * the end; independent of the other rows and tokens.
 *
 * The including file defines: V, LANES and the SIMD wrappers of simd_<isa>.h; struct group, group_put, group_end,
 * group_load and group_dot. */
#include <string.h>

#include "base/scale.h"

enum {
    GROUP = 128,
    BYTES = GROUP / 2,
    AHEAD = 2560,
    ROWS = 4,
    STREAM = 256,
    COLUMNS = 32768 /* total over all tokens processed together */,
    PART = 16
};

/* scale[i] = s[i] * x[i] of the `n` <= PART groups starting at g, s the scales of row r. */
INLINE void group_scales(float *out, const struct mat *w, int r, int g, const float *x, int n) {
    const size_t at = scale_row(w, r) + (size_t)g;
    if (w->scale_dtype == DT_BF16) {
        const uint8_t *p = (const uint8_t *)w->scale + 2 * at;
        for (int i = 0; i < n; i += LANES) {
            const int left = n - i;
            if (left >= LANES) vstore(out + i, vmul(load_bf16(p + 2 * i), vload(x + i)));
            else vstorem(out + i, vmul(load_bf16m(p + 2 * i, left), vloadm(x + i, left)), left);
        }
    } else
        for (int i = 0; i < n; i++) out[i] = scale_load(w, at + (size_t)i) * x[i];
}

/* R rows, r0 and each `gap` further: y[row] = product with x. */
INLINE void group_rows(float *y, const struct mat *w, const struct group *x, const float *scale, int r0, int gap,
                       int groups, const int R) {
    const uint8_t *row[ROWS];
    V sum[ROWS];
    EACH (int i = 0; i < R; i++)
        row[i] = (const uint8_t *)w->data + (size_t)(r0 + i * gap) * w->stride, sum[i] = vzero();
    for (int g = 0; g < groups; g += PART) {
        const int n = groups - g < PART ? groups - g : PART;
        float s[ROWS][PART] __attribute__((aligned(64)));
        EACH (int i = 0; i < R; i++) group_scales(s[i], w, r0 + i * gap, g, scale + g, n);
        for (int k = 0; k < n; k++, x++) {
            const struct group_x v = group_load(x);
            EACH (int i = 0; i < R; i++) {
                _mm_prefetch((const char *)row[i] + AHEAD, _MM_HINT_T0);
                sum[i] = vfma(group_dot(&v, row[i]), vset1(s[i][k]), sum[i]);
                row[i] += BYTES;
            }
        }
    }
    EACH (int i = 0; i < R; i++) y[r0 + i * gap] = vsum(sum[i]);
}

/* The largest magnitude of n <= GROUP numbers; 0 if it is so small that its inverse overflows. */
enum { WHOLE = 32512 }; /* 127 * 256: both planes fit eight bits */
INLINE float group_most(const float *x, int n) {
    V most = vzero();
    const V minus = vset1(-1);
    for (int c = 0; c < n; c += LANES) {
        const V v = n - c < LANES ? vloadm(x + c, n - c) : vload(x + c);
        most = vmax(most, vmax(v, vmul(v, minus)));
    }
    const float m = vtop(most);
    return m > 1e-30f ? m : 0;
}
INLINE void group_make(struct group *g, float *scale, const float *x, int n) {
    const float most = group_most(x, n);
    const V f = vset1(most > 0 ? WHOLE / most : 0);
    *scale = most / WHOLE;
    for (int c = 0; c < GROUP; c += LANES) {
        const V v = c + LANES <= n ? vload(x + c) : c < n ? vloadm(x + c, n - c) : vzero();
        group_put(g, c, vmul(v, f));
    }
    group_end(g);
}

/* As many tokens as fit. Few streams, far apart, each sequential, which memory serves best (gemv_inner.h); further
 * tokens find the rows in a cache. */
INLINE void some_tokens(float *const *y, const float *const *x, int n, const struct mat *w, int groups) {
    struct group packed[COLUMNS / GROUP];
    float scale[COLUMNS / GROUP];
    const int chunk = n > 1 ? 32 : STREAM;
    for (int t = 0; t < n; t++)
        for (int g = 0; g < groups; g++) {
            const int left = w->cols - g * GROUP;
            group_make(&packed[t * groups + g], &scale[t * groups + g], x[t] + g * GROUP, left < GROUP ? left : GROUP);
        }
    for (int base = 0; base < w->rows; base += chunk) {
        const int rows = w->rows - base < chunk ? w->rows - base : chunk, gap = rows / ROWS;
        for (int t = 0; t < n; t++) {
            for (int i = 0; i < gap; i++)
                group_rows(y[t], w, packed + t * groups, scale + t * groups, base + i, gap, groups, ROWS);
            for (int i = gap * ROWS; i < rows; i++)
                group_rows(y[t], w, packed + t * groups, scale + t * groups, base + i, 1, groups, 1);
        }
    }
}
INLINE void int4_gemv(float *const *y, const float *const *x, int n, const struct mat *w) {
    const int groups = (w->cols + GROUP - 1) / GROUP, most = COLUMNS / GROUP / groups;
    for (int t = 0; t < n; t += most) some_tokens(y + t, x + t, n - t < most ? n - t : most, w, groups);
}
/* True if the weights have these groups. */
static bool int4_takes(const struct mat *w) { return w->scale && w->block_cols == GROUP && w->cols <= COLUMNS; }

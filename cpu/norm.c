/* Norms of rows: RMSNorm and LayerNorm. */
#include <math.h>

#include "cpu/row_job.h"

enum { SPAN = 512 };

/* Elements of w and bias before those of row i. */
static size_t first_weight(const struct op_norm *o, int i) {
    return o->w_rows ? (size_t)(i % o->w_rows) * (size_t)o->dim : 0;
}
static void layer_norm_row(const struct row_job *j, const struct op_norm *o, int row, float *out, const float *x) {
    double sum = 0, sq = 0;
    for (int i = 0; i < o->dim; i++) sum += x[i];
    double mean = sum / o->dim;
    for (int i = 0; i < o->dim; i++) sq += (x[i] - mean) * (x[i] - mean);
    float inv = (float)(1 / sqrt(sq / o->dim + (double)o->eps));
    const size_t size = dtype_bytes(o->w_dtype, 1), first = first_weight(o, row);
    for (int i = 0; i < o->dim; i += SPAN) {
        float w[SPAN], b[SPAN] = {0};
        int m = o->dim - i < SPAN ? o->dim - i : SPAN;
        if (o->w) j->x->k.widen[o->w_dtype](w, (const uint8_t *)o->w + size * (first + (size_t)i), m);
        if (o->bias) j->x->k.widen[o->w_dtype](b, (const uint8_t *)o->bias + size * (first + (size_t)i), m);
        for (int c = 0; c < m && !o->w; c++) w[c] = 1;
        for (int c = 0; c < m; c++) out[i + c] = (float)(x[i + c] - mean) * inv * (w[c] + o->add) + b[c];
    }
}
static void rms_norm_row(const struct row_job *j, const struct op_norm *o, int row, float *out, const float *x) {
    const float sum = j->x->k.sumsq(x, o->dim), over = o->l2_limit / (sqrtf(sum) + 1e-6f); /* NaN is not clipped */
    const float inv = o->l2_limit > 0 ? (over > 1 ? 1 : over) : 1 / sqrtf(sum / (float)o->dim + o->eps);
    const size_t size = dtype_bytes(o->w_dtype, 1), first = first_weight(o, row);
    for (int i = 0; i < o->dim; i += SPAN) {
        float w[SPAN];
        int m = o->dim - i < SPAN ? o->dim - i : SPAN;
        if (o->w) j->x->k.widen[o->w_dtype](w, (const uint8_t *)o->w + size * (first + (size_t)i), m);
        for (int c = 0; c < m && !o->w; c++) w[c] = 1;
        j->x->k.scale(out + i, x + i, inv, w, o->add, m);
    }
}
/* The sum of squares overflows long before an activation does, so an infinite sum only triggers an exact check. */
static bool finite_row(const struct row_job *j, const float *x, int n) {
    if (isfinite(j->x->k.sumsq(x, n))) return true;
    for (int i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}
static void norm_task(void *arg, int task, int thread) {
    const struct row_job *j = arg;
    const struct op_norm *o = j->op;
    for (int i = task * j->per, end = row_job_end(task, j->per, j->rows); i < end; i++) {
        const float *x = o->x + (size_t)i * (size_t)o->ldx;
        int none = -1;
        if (o->bad && !finite_row(j, x, o->dim)) atomic_compare_exchange_strong(o->bad, &none, o->tag);
        (o->layer_norm ? layer_norm_row : rms_norm_row)(j, o, i, o->out + (size_t)i * (size_t)o->ldo, x);
    }
}
int cpu_norm(struct exec *base, const struct op_norm *o) { return row_job_run(base, o, o->rows, o->dim, norm_task); }

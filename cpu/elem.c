/* Operations that touch each activation once. Small ones run on the calling thread, because waking the pool costs more. The
 * number of rows per task depends on the shape only. */
#include <math.h>
#include <string.h>

#include "base/minifloat.h"
#include "cpu/cpu_exec.h"

enum { GRAIN = 16384 }; /* elements that make a task worth a thread */

static int rows_per_task(int cols) { return cols >= GRAIN ? 1 : GRAIN / (cols > 0 ? cols : 1); }
static int tasks_for(int rows, int per) { return rows <= 0 ? 0 : (rows + per - 1) / per; }
static int task_end(int task, int per, int rows) { return rows - task * per < per ? rows : (task + 1) * per; }

struct job {
    struct cpu_exec *x;
    const void *op;
    int per, rows;
};
static int run_rows(struct exec *base, const void *op, int rows, int cols, exec_fn fn) {
    struct job j = {(struct cpu_exec *)base, op, rows_per_task(cols), rows};
    return exec_for_each(j.x, tasks_for(rows, j.per), fn, &j);
}

static void embed_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_embed *o = j->op;
    for (int i = task * j->per, end = task_end(task, j->per, j->rows); i < end; i++) {
        float *out = o->out + (size_t)i * (size_t)o->table.cols;
        j->x->k.decode[o->table.dtype](out, &o->table, o->ids[i], 0, o->table.cols);
        for (int c = 0; c < o->table.cols && o->scale != 0 && o->scale != 1; c++) out[c] *= o->scale;
    }
}
int elem_embed(struct exec *base, const struct op_embed *o) { return run_rows(base, o, o->n, o->table.cols, embed_task); }

/* --- Norm --- */

enum { SPAN = 512 };

static void layer_norm_row(const struct job *j, const struct op_norm *o, float *out, const float *x) {
    double sum = 0, sq = 0;
    for (int i = 0; i < o->dim; i++) sum += x[i];
    double mean = sum / o->dim;
    for (int i = 0; i < o->dim; i++) sq += (x[i] - mean) * (x[i] - mean);
    float inv = (float)(1 / sqrt(sq / o->dim + (double)o->eps));
    size_t size = dtype_bytes(o->w_dtype, 1);
    for (int i = 0; i < o->dim; i += SPAN) {
        float w[SPAN], b[SPAN] = {0};
        int m = o->dim - i < SPAN ? o->dim - i : SPAN;
        j->x->k.widen[o->w_dtype](w, (const uint8_t *)o->w + size * (size_t)i, m);
        if (o->bias) j->x->k.widen[o->w_dtype](b, (const uint8_t *)o->bias + size * (size_t)i, m);
        for (int c = 0; c < m; c++) out[i + c] = (float)(x[i + c] - mean) * inv * (w[c] + o->add) + b[c];
    }
}
static void rms_norm_row(const struct job *j, const struct op_norm *o, float *out, const float *x) {
    const float sum = j->x->k.sumsq(x, o->dim), over = o->l2_limit / (sqrtf(sum) + 1e-6f); /* NaN is not clipped */
    const float inv = o->l2_limit > 0 ? (over > 1 ? 1 : over) : 1 / sqrtf(sum / (float)o->dim + o->eps);
    size_t size = dtype_bytes(o->w_dtype, 1);
    for (int i = 0; i < o->dim; i += SPAN) {
        float w[SPAN];
        int m = o->dim - i < SPAN ? o->dim - i : SPAN;
        if (o->w) j->x->k.widen[o->w_dtype](w, (const uint8_t *)o->w + size * (size_t)i, m);
        for (int c = 0; c < m && !o->w; c++) w[c] = 1;
        j->x->k.scale(out + i, x + i, inv, w, o->add, m);
    }
}
/* The sum of squares overflows long before an activation does, so an infinite sum only triggers an exact check. */
static bool finite_row(const struct job *j, const float *x, int n) {
    if (isfinite(j->x->k.sumsq(x, n))) return true;
    for (int i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}
static void norm_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_norm *o = j->op;
    for (int i = task * j->per, end = task_end(task, j->per, j->rows); i < end; i++) {
        const float *x = o->x + (size_t)i * (size_t)o->ldx;
        int none = -1;
        if (o->bad && !finite_row(j, x, o->dim)) atomic_compare_exchange_strong(o->bad, &none, o->tag);
        (o->layer_norm ? layer_norm_row : rms_norm_row)(j, o, o->out + (size_t)i * (size_t)o->ldo, x);
    }
}
int elem_norm(struct exec *base, const struct op_norm *o) { return run_rows(base, o, o->rows, o->dim, norm_task); }

/* --- Rope --- */

static void rope_table_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_rope_table *o = j->op;
    for (int i = task * j->per, end = task_end(task, j->per, j->rows); i < end; i++) {
        const bool far = o->longest && (o->length ? o->length[i] : o->total) > o->longest;
        const float *inv_freq = o->inv_freq + (far ? o->half : 0), mscale = far ? o->long_mscale : o->mscale;
        for (int c = 0; c < o->half; c++) {
            /* The angle is rounded to float32, as in the models' own code; its cosine is exact. */
            double angle = (double)((float)(o->pos ? o->pos[i] : o->pos0 + i * o->step) * inv_freq[c]);
            o->cos[(size_t)i * (size_t)o->half + (size_t)c] = (float)cos(angle) * mscale;
            o->sin[(size_t)i * (size_t)o->half + (size_t)c] = (float)sin(angle) * mscale;
        }
    }
}
int elem_rope_table(struct exec *base, const struct op_rope_table *o) { return run_rows(base, o, o->n, o->half * 16, rope_table_task); }

static void rope_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_rope *o = j->op;
    for (int i = task * j->per, end = task_end(task, j->per, j->rows); i < end; i++) {
        size_t t = (size_t)i * (size_t)o->half;
        for (int h = 0; h < o->heads; h++)
            j->x->k.rope(o->x + (size_t)i * (size_t)o->ld + (size_t)h * (size_t)o->head_ld, o->cos + t, o->sin + t, o->half, o->interleaved,
                         o->inverse ? -1.0f : 1.0f);
    }
}
int elem_rope(struct exec *base, const struct op_rope *o) { return run_rows(base, o, o->n, o->heads * o->half * 2, rope_task); }

/* --- y += x, sigmoid, clip, fill, softcap, copy --- */

static void add_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_add *o = j->op;
    const int end = task_end(task, j->per, j->rows);
    for (int i = task * j->per; i < end && o->ldx; i++) j->x->k.axpy(o->y + (size_t)i * (size_t)o->m, 1, o->x + (size_t)i * (size_t)o->ldx, o->m);
    if (o->ldx) return;
    size_t from = (size_t)(task * j->per) * (size_t)o->m;
    j->x->k.axpy(o->y + from, 1, o->x + from, (end - task * j->per) * o->m);
}
int elem_add(struct exec *base, const struct op_add *o) { return run_rows(base, o, o->n, o->m, add_task); }

static void sigmoid_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_sigmoid *o = j->op;
    float *x = o->x + (size_t)(task * j->per) * (size_t)o->m;
    for (int i = 0, m = (task_end(task, j->per, j->rows) - task * j->per) * o->m; i < m; i++) x[i] = 1 / (1 + expf(-x[i]));
}
int elem_sigmoid(struct exec *base, const struct op_sigmoid *o) { return run_rows(base, o, o->n, o->m, sigmoid_task); }

static void clip_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_clip *o = j->op;
    float *x = o->x + (size_t)(task * j->per) * (size_t)o->m;
    for (int i = 0, m = (task_end(task, j->per, j->rows) - task * j->per) * o->m; i < m; i++)
        x[i] = x[i] > o->limit ? o->limit : x[i] < -o->limit ? -o->limit : x[i];
}
int elem_clip(struct exec *base, const struct op_clip *o) { return run_rows(base, o, o->n, o->m, clip_task); }

static void fill_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_fill *o = j->op;
    float *x = o->x + (size_t)(task * j->per) * (size_t)o->m;
    for (int i = 0, m = (task_end(task, j->per, j->rows) - task * j->per) * o->m; i < m; i++) x[i] = o->value;
}
int elem_fill(struct exec *base, const struct op_fill *o) { return run_rows(base, o, o->n, o->m, fill_task); }

static void softcap_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_softcap *o = j->op;
    float *x = o->x + (size_t)(task * j->per) * (size_t)o->m;
    for (int i = 0, m = (task_end(task, j->per, j->rows) - task * j->per) * o->m; i < m; i++) x[i] = o->cap * tanhf(x[i] / o->cap);
}
int elem_softcap(struct exec *base, const struct op_softcap *o) { return run_rows(base, o, o->n, o->m, softcap_task); }

static void copy_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_copy *o = j->op;
    for (int i = task * j->per, end = task_end(task, j->per, j->rows); i < end; i++)
        for (int h = 0; h < o->heads; h++)
            memcpy(o->y + (ptrdiff_t)i * o->ldy + (ptrdiff_t)h * o->head_ldy, o->x + (ptrdiff_t)i * o->ldx + (ptrdiff_t)h * o->head_ldx,
                   (size_t)o->dim * sizeof(float));
}
int elem_copy(struct exec *base, const struct op_copy *o) { return run_rows(base, o, o->n, o->heads * o->dim, copy_task); }

static void merge_row(const struct op_merge *a, int i, int h) {
    float *l = &a->lse[(size_t)i * (size_t)a->heads + (size_t)h], l2 = a->lse2[(size_t)i * (size_t)a->heads + (size_t)h];
    float *o = a->out + (size_t)i * (size_t)a->ldo + (size_t)h * (size_t)a->dim;
    const float *o2 = a->out2 + (size_t)i * (size_t)a->ldo2 + (size_t)h * (size_t)a->dim;
    float top = *l > l2 ? *l : l2;
    if (l2 == -INFINITY) return; /* saw no key */
    float w = expf(*l - top), w2 = expf(l2 - top), sum = w + w2;
    for (int d = 0; d < a->dim; d++) o[d] = (w * o[d] + w2 * o2[d]) / sum;
    *l = top + logf(sum);
}
static void merge_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_merge *o = j->op;
    for (int i = task * j->per, end = task_end(task, j->per, j->rows); i < end; i++)
        for (int h = 0; h < o->heads; h++) merge_row(o, i, h);
}
int elem_merge(struct exec *base, const struct op_merge *o) { return run_rows(base, o, o->n, o->heads * o->dim, merge_task); }

static float gate_of(enum gate_kind kind, float g) {
    if (kind == GATE_NORMAL) return 0.5f * (1 + erff(g * 0.70710678f));
    const float s = 1 / (1 + expf(-g));
    return kind == GATE_SIGMOID ? s : kind == GATE_SILU ? g * s : kind == GATE_LINEAR ? g : g > 20 ? g : log1pf(expf(g));
}
static void gate_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_gate *o = j->op;
    for (int i = task * j->per, end = task_end(task, j->per, j->rows); i < end; i++)
        for (int h = 0; h < o->heads; h++) {
            float *y = o->y + (ptrdiff_t)i * o->ldy + (ptrdiff_t)h * o->head_ldy;
            const float *g = o->g + (ptrdiff_t)i * o->ldg + (ptrdiff_t)h * o->head_ldg;
            if (o->per_head || o->kind >= GATE_SOFTPLUS)
                for (int d = 0; d < o->dim; d++) y[d] *= gate_of((enum gate_kind)o->kind, g[o->per_head ? 0 : d]);
            else if (o->kind == GATE_SILU) j->x->k.glu(y, g, y, o->dim, &(struct glu){0});
            else j->x->k.gate(y, g, o->dim);
        }
}
int elem_gate(struct exec *base, const struct op_gate *o) { return run_rows(base, o, o->n, o->heads * o->dim, gate_task); }

/* The factor of a row at a position; see struct op_scale. */
static float position_scale(const struct op_scale *o, int at) {
    const float t = (float)at / (float)o->every;
    switch (o->kind) {
    case SCALE_SMOOTH: return 1 + o->slope * logf(t > 1 ? t : 1);
    case SCALE_POWER: return expf(o->slope * log1pf(t));
    default: return 1 + o->slope * logf((float)(1 + at / o->every));
    }
}
static void scale_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_scale *o = j->op;
    for (int i = task * j->per, end = task_end(task, j->per, j->rows); i < end; i++) {
        float *x = o->x + (size_t)i * (size_t)o->ld, by = o->by;
        if (o->slopes) {
            const float logarithm = logf((float)(1 + o->pos[i] + o->shift));
            for (int c = 0; c < o->m; c++) x[c] *= by * (o->slopes[c / o->dim] * logarithm + o->bases[c / o->dim]);
            continue;
        }
        if (o->slope != 0) by *= position_scale(o, o->pos[i] + o->shift);
        for (int c = 0; c < o->m; c++) x[c] *= by;
    }
}
int elem_scale(struct exec *base, const struct op_scale *o) { return run_rows(base, o, o->n, o->m, scale_task); }

/* --- KV cache --- */

static void store_row(const struct kv_plane *p, const float *x, size_t row) {
    size_t width = (size_t)p->heads * (size_t)p->dim, at = row * width;
    if (p->dtype == DT_F32) memcpy((float *)p->data + at, x, width * 4);
    else if (p->dtype == DT_BF16)
        for (size_t i = 0; i < width; i++) ((uint16_t *)p->data)[at + i] = f32_to_bf16(x[i]);
    else
        for (int h = 0; h < p->heads; h++, x += p->dim, at += (size_t)p->dim) {
            float amax = 0;
            for (int i = 0; i < p->dim; i++) amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
            float s = amax > 0 ? amax / 448 : 1;
            if (s == 0) s = 0x1p-149f; /* amax is so small that the division underflowed to 0 */
            p->scale[row * (size_t)p->heads + (size_t)h] = s;
            for (int i = 0; i < p->dim; i++) ((uint8_t *)p->data)[at + (size_t)i] = f32_to_e4m3(x[i] / s);
        }
}
static void store_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_kv_store *o = j->op;
    for (int i = task * j->per, end = task_end(task, j->per, j->rows); i < end; i++)
        store_row(&o->plane, o->x + (size_t)i * (size_t)o->ldx, (size_t)o->row0 + (size_t)i);
}
int kv_store(struct exec *base, const struct op_kv_store *o) { return run_rows(base, o, o->n, o->plane.heads * o->plane.dim, store_task); }

static void load_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_kv_load *o = j->op;
    const struct kv_plane *p = &o->plane;
    size_t size = dtype_bytes(p->dtype, 1), width = (size_t)p->heads * (size_t)p->dim;
    for (int i = task * j->per, end = task_end(task, j->per, j->rows); i < end; i++) {
        size_t row = (size_t)o->row0 + (size_t)i;
        float *out = o->out + (size_t)i * (size_t)o->ldo;
        j->x->k.widen[p->dtype](out, (const uint8_t *)p->data + row * width * size, (int)width);
        if (p->dtype == DT_E4M3)
            for (int h = 0; h < p->heads; h++)
                for (int c = 0; c < p->dim; c++) out[h * p->dim + c] *= p->scale[row * (size_t)p->heads + (size_t)h];
    }
}
int kv_load(struct exec *base, const struct op_kv_load *o) { return run_rows(base, o, o->n, o->plane.heads * o->plane.dim, load_task); }

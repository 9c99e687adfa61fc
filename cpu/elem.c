/* Operations on single numbers: embedding, sums, gates, copies, scales. */
#include <math.h>
#include <string.h>

#include "base/minifloat.h"
#include "cpu/row_job.h"

static void embed_task(void *arg, int task, int thread) {
    const struct row_job *j = arg;
    const struct op_embed *o = j->op;
    for (int i = task * j->per, end = row_job_end(task, j->per, j->rows); i < end; i++) {
        float *out = o->out + (size_t)i * (size_t)o->table.cols;
        j->x->k.decode[o->table.dtype](out, &o->table, o->ids[i], 0, o->table.cols);
        for (int c = 0; c < o->table.cols && o->scale != 0 && o->scale != 1; c++) out[c] *= o->scale;
    }
}
int cpu_embed(struct exec *base, const struct op_embed *o) {
    return row_job_run(base, o, o->n, o->table.cols, embed_task);
}

/* --- y += x, sigmoid, clip, fill, softcap, copy ----------------------------------------------- */

static void add_task(void *arg, int task, int thread) {
    const struct row_job *j = arg;
    const struct op_add *o = j->op;
    const int end = row_job_end(task, j->per, j->rows);
    for (int i = task * j->per; i < end && o->ldx; i++)
        j->x->k.axpy(o->y + (size_t)i * (size_t)o->m, 1, o->x + (size_t)i * (size_t)o->ldx, o->m);
    if (o->ldx) return;
    size_t from = (size_t)(task * j->per) * (size_t)o->m;
    j->x->k.axpy(o->y + from, 1, o->x + from, (end - task * j->per) * o->m);
}
int cpu_add(struct exec *base, const struct op_add *o) { return row_job_run(base, o, o->n, o->m, add_task); }

static void sigmoid_task(void *arg, int task, int thread) {
    const struct row_job *j = arg;
    const struct op_sigmoid *o = j->op;
    float *x = o->x + (size_t)(task * j->per) * (size_t)o->m;
    for (int i = 0, m = (row_job_end(task, j->per, j->rows) - task * j->per) * o->m; i < m; i++)
        x[i] = 1 / (1 + expf(-x[i]));
}
int cpu_sigmoid(struct exec *base, const struct op_sigmoid *o) {
    return row_job_run(base, o, o->n, o->m, sigmoid_task);
}

static void clip_task(void *arg, int task, int thread) {
    const struct row_job *j = arg;
    const struct op_clip *o = j->op;
    float *x = o->x + (size_t)(task * j->per) * (size_t)o->m;
    for (int i = 0, m = (row_job_end(task, j->per, j->rows) - task * j->per) * o->m; i < m; i++)
        x[i] = x[i] > o->limit ? o->limit : x[i] < -o->limit ? -o->limit : x[i];
}
int cpu_clip(struct exec *base, const struct op_clip *o) { return row_job_run(base, o, o->n, o->m, clip_task); }

static void fill_task(void *arg, int task, int thread) {
    const struct row_job *j = arg;
    const struct op_fill *o = j->op;
    float *x = o->x + (size_t)(task * j->per) * (size_t)o->m;
    for (int i = 0, m = (row_job_end(task, j->per, j->rows) - task * j->per) * o->m; i < m; i++) x[i] = o->value;
}
int cpu_fill(struct exec *base, const struct op_fill *o) { return row_job_run(base, o, o->n, o->m, fill_task); }

static void softcap_task(void *arg, int task, int thread) {
    const struct row_job *j = arg;
    const struct op_softcap *o = j->op;
    float *x = o->x + (size_t)(task * j->per) * (size_t)o->m;
    for (int i = 0, m = (row_job_end(task, j->per, j->rows) - task * j->per) * o->m; i < m; i++)
        x[i] = o->cap * tanhf(x[i] / o->cap);
}
int cpu_softcap(struct exec *base, const struct op_softcap *o) {
    return row_job_run(base, o, o->n, o->m, softcap_task);
}

static void copy_task(void *arg, int task, int thread) {
    const struct row_job *j = arg;
    const struct op_copy *o = j->op;
    for (int i = task * j->per, end = row_job_end(task, j->per, j->rows); i < end; i++)
        for (int h = 0; h < o->heads; h++)
            memcpy(o->y + (ptrdiff_t)i * o->ldy + (ptrdiff_t)h * o->head_ldy,
                   o->x + (ptrdiff_t)i * o->ldx + (ptrdiff_t)h * o->head_ldx, (size_t)o->dim * sizeof(float));
}
int cpu_copy(struct exec *base, const struct op_copy *o) {
    return row_job_run(base, o, o->n, o->heads * o->dim, copy_task);
}

static void merge_row(const struct op_merge *a, int i, int h) {
    float *l = &a->lse[(size_t)i * (size_t)a->heads + (size_t)h],
          l2 = a->lse2[(size_t)i * (size_t)a->heads + (size_t)h];
    float *o = a->out + (size_t)i * (size_t)a->ldo + (size_t)h * (size_t)a->dim;
    const float *o2 = a->out2 + (size_t)i * (size_t)a->ldo2 + (size_t)h * (size_t)a->dim;
    float top = *l > l2 ? *l : l2;
    if (l2 == -INFINITY) return; /* saw no key */
    float w = expf(*l - top), w2 = expf(l2 - top), sum = w + w2;
    for (int d = 0; d < a->dim; d++) o[d] = (w * o[d] + w2 * o2[d]) / sum;
    *l = top + logf(sum);
}
static void merge_task(void *arg, int task, int thread) {
    const struct row_job *j = arg;
    const struct op_merge *o = j->op;
    for (int i = task * j->per, end = row_job_end(task, j->per, j->rows); i < end; i++)
        for (int h = 0; h < o->heads; h++) merge_row(o, i, h);
}
int cpu_merge(struct exec *base, const struct op_merge *o) {
    return row_job_run(base, o, o->n, o->heads * o->dim, merge_task);
}

static float softplus(float v) { return v > 20 ? v : log1pf(expf(v)); }
/* GELU in its tanh form (struct glu) */
static const struct glu gelu_tanh = {.alpha = 1.59576912f, .cubic = 0.0713548163f};
static float gate_of(enum gate_kind kind, float g) {
    switch (kind) {
    case GATE_GELU_TANH: return g / (1 + expf(-(gelu_tanh.alpha + gelu_tanh.cubic * g * g) * g));
    case GATE_NORMAL: return 0.5f * (1 + erff(g * 0.70710678f));
    case GATE_SIGMOID: return 1 / (1 + expf(-g));
    case GATE_SILU: return g * (1 / (1 + expf(-g)));
    case GATE_LINEAR: return g;
    case GATE_SOFTPLUS2: return softplus(g * (float)M_LN2) * (float)M_LOG2E;
    case GATE_SOFTPLUS: break;
    }
    return softplus(g);
}
static void gate_task(void *arg, int task, int thread) {
    const struct row_job *j = arg;
    const struct op_gate *o = j->op;
    for (int i = task * j->per, end = row_job_end(task, j->per, j->rows); i < end; i++)
        for (int h = 0; h < o->heads; h++) {
            float *y = o->y + (ptrdiff_t)i * o->ldy + (ptrdiff_t)h * o->head_ldy;
            const float *g = o->g + (ptrdiff_t)i * o->ldg + (ptrdiff_t)h * o->head_ldg;
            if (o->kind == GATE_GELU_TANH && !o->per_head) j->x->k.glu(y, g, y, o->dim, &gelu_tanh);
            else if (o->per_head || o->kind >= GATE_SOFTPLUS)
                for (int d = 0; d < o->dim; d++) y[d] *= gate_of((enum gate_kind)o->kind, g[o->per_head ? 0 : d]);
            else if (o->kind == GATE_SILU) j->x->k.glu(y, g, y, o->dim, &(struct glu){0});
            else j->x->k.gate(y, g, o->dim);
        }
}
int cpu_gate(struct exec *base, const struct op_gate *o) {
    return row_job_run(base, o, o->n, o->heads * o->dim, gate_task);
}

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
    const struct row_job *j = arg;
    const struct op_scale *o = j->op;
    for (int i = task * j->per, end = row_job_end(task, j->per, j->rows); i < end; i++) {
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
int cpu_scale(struct exec *base, const struct op_scale *o) { return row_job_run(base, o, o->n, o->m, scale_task); }

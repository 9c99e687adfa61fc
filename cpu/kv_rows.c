/* Rows of keys and values: stored in the format of a cache's plane, and loaded from it. */
#include <math.h>
#include <string.h>

#include "base/minifloat.h"
#include "cpu/row_job.h"

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
    const struct row_job *j = arg;
    const struct op_kv_store *o = j->op;
    for (int i = task * j->per, end = row_job_end(task, j->per, j->rows); i < end; i++)
        store_row(&o->plane, o->x + (size_t)i * (size_t)o->ldx, (size_t)o->row0 + (size_t)i);
}
int cpu_kv_store(struct exec *base, const struct op_kv_store *o) {
    return row_job_run(base, o, o->n, o->plane.heads * o->plane.dim, store_task);
}

static void load_task(void *arg, int task, int thread) {
    const struct row_job *j = arg;
    const struct op_kv_load *o = j->op;
    const struct kv_plane *p = &o->plane;
    size_t size = dtype_bytes(p->dtype, 1), width = (size_t)p->heads * (size_t)p->dim;
    for (int i = task * j->per, end = row_job_end(task, j->per, j->rows); i < end; i++) {
        size_t row = (size_t)o->row0 + (size_t)i;
        float *out = o->out + (size_t)i * (size_t)o->ldo;
        j->x->k.widen[p->dtype](out, (const uint8_t *)p->data + row * width * size, (int)width);
        if (p->dtype == DT_E4M3)
            for (int h = 0; h < p->heads; h++)
                for (int c = 0; c < p->dim; c++) out[h * p->dim + c] *= p->scale[row * (size_t)p->heads + (size_t)h];
    }
}
int cpu_kv_load(struct exec *base, const struct op_kv_load *o) {
    return row_job_run(base, o, o->n, o->plane.heads * o->plane.dim, load_task);
}

/* Compresses each window of tokens into one entry (op_compress). Every element has its own online softmax over the
 * tokens of its windows, so that the state of an open window is three numbers per element. Elements are independent: a
 * task processes some of them for all rows. */
#include <math.h>
#include <string.h>

#include "cpu/cpu_exec.h"

enum { COLUMNS = 64 };

struct job {
    const struct op_compress *o;
    int blocks; /* of columns */
};

/* Adds one token to n elements of an entry. */
static void add_token(float *max, float *sum, float *acc, const float *kv, const float *gate, const float *bias,
                      int n) {
    for (int c = 0; c < n; c++) {
        float g = (gate ? gate[c] : 0) + (bias ? bias[c] : 0), top = g > max[c] ? g : max[c], keep = expf(max[c] - top),
              w = expf(g - top);
        if (g != g) top = keep = w = g; /* NaN must propagate */
        sum[c] = sum[c] * keep + w;
        acc[c] = acc[c] * keep + w * kv[c];
        max[c] = top;
    }
}

static void clear_entry(float *entry, int dim, int n) {
    for (int c = 0; c < n; c++) entry[c] = -INFINITY, entry[dim + c] = entry[2 * dim + c] = 0;
}

static void compress_task(void *arg, int task, int thread) {
    const struct op_compress *o = ((const struct job *)arg)->o;
    const int c = task * COLUMNS, n = o->dim - c < COLUMNS ? o->dim - c : COLUMNS, dim = o->dim,
              series = o->overlap ? 2 : 1;
    float *open = o->after + c, *next = open + 3 * dim, *out = o->out + c; /* next: only with overlap */
    for (int i = 0; i < 3 * series && o->pos0 && o->before != o->after; i++)
        memcpy(open + i * dim, o->before + i * dim + c, (size_t)n * sizeof(float));
    for (int i = 0; i < series && !o->pos0; i++) clear_entry(open + 3 * i * dim, dim, n);
    for (int i = 0; i < o->n; i++) {
        const int place = (o->pos0 + i) % o->ratio, own = o->overlap ? dim : 0;
        const float *kv = o->kv + (size_t)i * (size_t)o->ldx + c,
                    *gate = o->gate ? o->gate + (size_t)i * (size_t)o->ldx + c : NULL;
        const float *bias = o->bias ? o->bias + (size_t)place * (size_t)(series * dim) + c : NULL;
        add_token(open, open + dim, open + 2 * dim, kv + own, gate ? gate + own : NULL, bias ? bias + own : NULL, n);
        if (o->overlap) add_token(next, next + dim, next + 2 * dim, kv, gate, bias, n);
        if (place < o->ratio - 1) continue;
        for (int k = 0; k < n; k++) out[k] = open[2 * dim + k] / open[dim + k];
        out += dim;
        for (int k = 0; k < 3 && o->overlap; k++) memcpy(open + k * dim, next + k * dim, (size_t)n * sizeof(float));
        clear_entry(o->overlap ? next : open, dim, n);
    }
}

int cpu_compress(struct exec *base, const struct op_compress *o) {
    struct job j = {o, (o->dim + COLUMNS - 1) / COLUMNS};
    return o->n < 1 ? 0 : cpu_exec_for_each((struct cpu_exec *)base, j.blocks, compress_task, &j);
}

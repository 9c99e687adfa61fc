/* Mamba's selective scan (op_scan). Rows are sequential, but channels are independent: a task processes some channels
 * for all rows, so that its part of the state stays in L1. The order of sums depends neither on the number of rows in a
 * call nor on the threads. */
#include <math.h>

#include "cpu/cpu_exec.h"

struct scan {
    struct cpu_exec *x;
    const struct op_scan *o;
};

static float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

static void scan_task(void *arg, int task, int thread) {
    const struct scan *j = arg;
    const struct op_scan *o = j->o;
    const int c = task * SCAN_COLUMNS, n = o->channels - c < SCAN_COLUMNS ? o->channels - c : SCAN_COLUMNS;
    const float *from = o->before ? o->before + c : NULL;
    float *to = o->after + c, step[SCAN_COLUMNS];
    for (int i = 0; i < o->n && !cpu_exec_is_cancelled(j->x); i++, from = to) {
        const size_t row = (size_t)i;
        const float *a = o->a + row * (size_t)o->lda + c;
        for (int k = 0; k < n; k++) step[k] = softplus(a[k] + o->dt[c + k]);
        const struct scan_row r = {.x = o->x + row * (size_t)o->ldx + c,
                                   .step = step,
                                   .skip = o->skip + c,
                                   .rate = o->rate + c,
                                   .b = o->b + row * (size_t)o->ldbc,
                                   .c = o->c + row * (size_t)o->ldbc,
                                   .ld = o->channels,
                                   .state = o->state};
        j->x->k.scan(o->out + row * (size_t)o->ldo + c, to, from, &r, n);
    }
}

int cpu_scan(struct exec *base, const struct op_scan *o) {
    struct scan j = {.x = (struct cpu_exec *)base, .o = o};
    return o->n < 1 ? 0 : cpu_exec_for_each(j.x, (o->channels + SCAN_COLUMNS - 1) / SCAN_COLUMNS, scan_task, &j);
}

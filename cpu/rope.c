/* Rotary embeddings: tables of cosines and sines, and the rotation. */
#include <math.h>

#include "cpu/row_job.h"

static void rope_table_task(void *arg, int task, int thread) {
    const struct row_job *j = arg;
    const struct op_rope_table *o = j->op;
    for (int i = task * j->per, end = row_job_end(task, j->per, j->rows); i < end; i++) {
        const bool far = o->longest && (o->length ? o->length[i] : o->total) > o->longest;
        const float *inv_freq = o->inv_freq + (far ? o->half : 0), mscale = far ? o->long_mscale : o->mscale;
        for (int c = 0; c < o->half; c++) {
            /* The angle is rounded to float32, as in the models' own code; its cosine is exact. */
            const int pos = o->place ? o->place[3 * i + op_rope_part(o, c)]
                            : o->pos ? o->pos[i]
                                     : o->pos0 + i * o->step;
            double angle = (double)((float)pos * inv_freq[c]);
            o->cos[(size_t)i * (size_t)o->half + (size_t)c] = (float)cos(angle) * mscale;
            o->sin[(size_t)i * (size_t)o->half + (size_t)c] = (float)sin(angle) * mscale;
        }
    }
}
int cpu_rope_table(struct exec *base, const struct op_rope_table *o) {
    return row_job_run(base, o, o->n, o->half * 16, rope_table_task);
}

static void rope_task(void *arg, int task, int thread) {
    const struct row_job *j = arg;
    const struct op_rope *o = j->op;
    for (int i = task * j->per, end = row_job_end(task, j->per, j->rows); i < end; i++) {
        size_t t = (size_t)i * (size_t)o->half;
        for (int h = 0; h < o->heads; h++)
            j->x->k.rope(o->x + (size_t)i * (size_t)o->ld + (size_t)h * (size_t)o->head_ld, o->cos + t, o->sin + t,
                         o->half, o->interleaved, o->inverse ? -1.0f : 1.0f);
    }
}
int cpu_rope(struct exec *base, const struct op_rope *o) {
    return row_job_run(base, o, o->n, o->heads * o->half * 2, rope_task);
}

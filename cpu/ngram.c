/* Hashed embeddings of n-grams: the table rows of a token and those before it, and the gate between an embedding and a
 * residual stream (op_ngram, op_relate).
 */
#include <math.h>
#include <string.h>

#include "cpu/cpu_exec.h"

/* The token at row i, i < 0: before the first. */
static int32_t token_at(const struct op_ngram *o, int i) {
    if (i >= 0) return o->ids ? o->ids[o->tokens[i]] : o->tokens[i];
    return o->before ? o->before[i + o->size - 1] : o->end;
}

static void hash_row(const struct op_ngram *o, int i) {
    int32_t *rows = o->rows + (size_t)i * (size_t)((o->size - 1) * o->per), token = token_at(o, i);
    uint64_t mixed = (uint64_t)token * o->multiplier[0];
    bool ended = false;
    for (int back = 1; back < o->size; back++) {
        token = token_at(o, i - back);
        ended |= !o->passes_end && token == o->end;
        mixed ^= (uint64_t)(ended ? o->end : token) * o->multiplier[back];
        for (int k = (back - 1) * o->per; k < back * o->per; k++)
            rows[k] = (int32_t)(mixed % o->vocab[k] + o->offset[k]);
    }
}

int cpu_ngram(struct exec *base, const struct op_ngram *o) {
    int32_t kept[NGRAM_MOST];
    if (o->size < 2 || o->size > NGRAM_MOST || (o->size - 1) * o->per > NGRAM_HASHES_MOST) return ERR_RUNTIME;
    for (int i = 0; i < o->n; i++) hash_row(o, i); /* a few multiplications per token: not worth the threads */
    for (int i = 0; i < o->size - 1; i++) kept[i] = token_at(o, o->n - o->size + 1 + i);
    memcpy(o->after, kept, (size_t)(o->size - 1) * sizeof *kept);
    return 0;
}

static void relate_task(void *arg, int i, int thread) {
    const struct op_relate *o = arg;
    for (int h = 0; h < o->heads; h++) {
        const size_t at = (size_t)i * (size_t)o->heads + (size_t)h;
        const float *x = o->x + at * (size_t)o->dim, *y = o->y + at * (size_t)o->dim;
        float sum = 0;
        for (int d = 0; d < o->dim; d++) sum += x[d] * y[d];
        sum *= o->scale;
        const float root = sqrtf(fabsf(sum) < 1e-6f ? 1e-6f : fabsf(sum));
        o->out[at] = 1 / (1 + expf(sum > 0 ? -root : sum < 0 ? root : 0));
    }
}
int cpu_relate(struct exec *base, const struct op_relate *o) {
    return cpu_exec_for_each((struct cpu_exec *)base, o->n, relate_task, (void *)o);
}

/* Residual streams (hyper-connections): adds a block's output to each of them, and mixes the next block's input
 * (op_spread, op_mix). Attention residuals (op_pool). */
#include <math.h>
#include <string.h>

#include "cpu/cpu_exec.h"

enum { SPAN = 256 }; /* elements of each stream at a time, which stay in L1 */

struct job {
    struct cpu_exec *x;
    const void *op;
};

static void spread_task(void *arg, int i, int thread) {
    const struct job *j = arg;
    const struct op_spread *o = j->op;
    const float *x = o->x + (size_t)i * (size_t)o->hidden;
    for (int s = 0; s < o->n_streams; s++) {
        float *to = o->streams + ((size_t)i * (size_t)o->n_streams + (size_t)s) * (size_t)o->hidden;
        if (o->post) j->x->k.axpy(to, o->post[(size_t)i * (size_t)o->n_streams + (size_t)s], x, o->hidden);
        else memcpy(to, x, (size_t)o->hidden * sizeof(float));
    }
}
int cpu_spread(struct exec *base, const struct op_spread *o) {
    return cpu_exec_for_each((struct cpu_exec *)base, o->n, spread_task, &(struct job){(struct cpu_exec *)base, o});
}

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

/* Sinkhorn-Knopp: comb[s][t], rows of n, in place of its logits. */
static void sinkhorn(float *comb, int n, int iters, float eps) {
    for (int s = 0; s < n; s++) {
        float *row = comb + s * n, top = row[0], sum = 0;
        for (int t = 1; t < n; t++) top = row[t] > top ? row[t] : top;
        for (int t = 0; t < n; t++) sum += row[t] = expf(row[t] - top);
        for (int t = 0; t < n; t++) row[t] = row[t] / sum + eps;
    }
    for (int i = 0; i < 2 * iters - 1; i++) { /* columns first, then alternately rows and columns */
        int along = i % 2 ? 1 : n, across = i % 2 ? n : 1;
        for (int a = 0; a < n; a++) {
            float sum = eps;
            for (int b = 0; b < n; b++) sum += comb[a * across + b * along];
            for (int b = 0; b < n; b++) comb[a * across + b * along] /= sum;
        }
    }
}

static void mix_task(void *arg, int i, int thread) {
    const struct job *j = arg;
    const struct op_mix *o = j->op;
    const int n = o->n_streams, all = !o->mix ? 0 : o->post ? op_mix_weights(n, o->iters) : n;
    const size_t hidden = (size_t)o->hidden, row = (size_t)i;
    const bool mixes = o->post && o->iters;
    float *x = o->streams + row * (size_t)n * hidden, w[(2 + STREAMS_MOST) * STREAMS_MOST], old[STREAMS_MOST][SPAN];
    const float *mix = all ? o->mix + row * (size_t)all : NULL;
    const float r = all ? 1 / sqrtf(j->x->k.sumsq(x, n * o->hidden) / (float)(n * o->hidden) + o->norm_eps) : 0;
    for (int k = 0; k < all; k++) w[k] = mix[k] * r * o->scale[k < n ? 0 : k < 2 * n ? 1 : 2] + o->base[k];
    for (int s = 0; s < n && all; s++) w[s] = sigmoid(w[s]) + o->eps;
    for (int s = 0; s < n && o->earlier; s++) { /* in exchange for those of the next block */
        float *earlier = o->earlier + row * (size_t)o->ld_earlier + s;
        const float next = w[s];
        w[s] = *earlier;
        if (all) *earlier = next;
    }
    const float *comb = w + 2 * n;
    const float magnitude = o->magnitude > 0 ? o->magnitude : 2;
    for (int s = 0; s < n && o->post; s++)
        o->post[row * (size_t)n + (size_t)s] = magnitude * sigmoid(w[n + s]) + o->post_eps;
    if (mixes) sinkhorn(w + 2 * n, n, o->iters, o->eps);
    for (int at = 0; at < o->hidden; at += SPAN) {
        const int m = o->hidden - at < SPAN ? o->hidden - at : SPAN;
        float *in = o->in + row * hidden + at;
        for (int s = 0; s < n; s++) memcpy(old[s], x + (size_t)s * hidden + at, (size_t)m * sizeof(float));
        memset(in, 0, (size_t)m * sizeof(float));
        for (int s = 0; s < n; s++) j->x->k.axpy(in, w[s], old[s], m);
        for (int t = 0; t < n && mixes; t++) {
            float *to = x + (size_t)t * hidden + at;
            memset(to, 0, (size_t)m * sizeof(float));
            for (int s = 0; s < n; s++) j->x->k.axpy(to, comb[s * n + t], old[s], m);
        }
    }
    if (o->out) memset(o->out + row * hidden, 0, hidden * sizeof(float));
}
int cpu_mix(struct exec *base, const struct op_mix *o) {
    if (o->n_streams < 1 || o->n_streams > STREAMS_MOST) return ERR_RUNTIME;
    return cpu_exec_for_each((struct cpu_exec *)base, o->n, mix_task, &(struct job){(struct cpu_exec *)base, o});
}

static void pool_task(void *arg, int i, int thread) {
    const struct job *j = arg;
    const struct op_pool *o = j->op;
    const struct kernels *k = &j->x->k;
    const int n = o->n_sources;
    const size_t hidden = (size_t)o->hidden, row = (size_t)i * hidden;
    float *x = o->streams + row * (size_t)o->n_streams, *into = x + (size_t)o->into * hidden,
          *add = o->x ? o->x + row : NULL;
    if (add && o->begins) memcpy(into, add, hidden * sizeof(float));
    else if (add) k->axpy(into, 1, add, o->hidden);
    if (add) memset(add, 0, hidden * sizeof(float));
    if (!o->n_queries) return;
    float norm[POOL_SOURCES_MOST], p[POOL_QUERIES_MOST][POOL_SOURCES_MOST];
    for (int s = 0; s < n; s++) {
        const float *v = x + (size_t)op_pool_stream(o, s) * hidden;
        norm[s] = 1 / sqrtf(k->sumsq(v, o->hidden) / (float)o->hidden + o->eps);
        k->qk(&p[0][s], POOL_SOURCES_MOST, o->query, o->n_queries, v, o->hidden, 1, o->hidden,
              norm[s] / sqrtf((float)o->hidden));
    }
    for (int q = 0; q < o->n_queries; q++) {
        float *out = o->out[q] + row, top = -INFINITY, sum = 0;
        k->soft(p[q], n, &top, &sum);
        memset(out, 0, hidden * sizeof(float));
        for (int s = 0; s < n; s++)
            k->axpy(out, (o->sums_raw ? p[q][s] : p[q][s] * norm[s]) / sum, x + (size_t)op_pool_stream(o, s) * hidden,
                    o->hidden);
    }
}
int cpu_pool(struct exec *base, const struct op_pool *o) {
    if (o->n_sources < 1 || o->n_sources > POOL_SOURCES_MOST || o->n_queries < 0 || o->n_queries > POOL_QUERIES_MOST)
        return ERR_RUNTIME;
    return cpu_exec_for_each((struct cpu_exec *)base, o->n, pool_task, &(struct job){(struct cpu_exec *)base, o});
}

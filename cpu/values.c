/* Values of a mixture (op_values): tokens are grouped by expert, and experts are added in rising order. Consecutive
 * experts of few tokens share one run of the pool, whose tasks are ranges of rows of y; an expert of many tokens is a
 * linear product of their rows. */
#include <string.h>

#include "base/mem.h"
#include "cpu/cpu_exec.h"

enum { TASK_ROWS = 256 /* rows of y in a task, at most: the width of the tile on the stack */ };

struct job {
    struct cpu_exec *x;
    const struct op_values *o;
    const int32_t *begin, *pairs; /* pairs [begin[e], begin[e + 1]) are those of expert e: token * topk + choice */
    int first, end;               /* experts of this run */
    const float *products;        /* [pairs of expert `first`, dim]; NULL: the tasks compute them */
    int per;                      /* rows per task */
};

/* y[0 .. n) += weight * silu(product) */
static void add_weighed(const struct job *j, float *y, const float *product, float weight, int n) {
    float part[TASK_ROWS] = {0};
    for (int i = 0; i < n; i++) part[i] = weight;
    j->x->k.glu(part, product, part, n, &(struct glu){0});
    for (int i = 0; i < n; i++) y[i] += part[i];
}

/* Rows [r0, r1) of the products of pairs [at, at + n) with expert e. */
static void multiply_and_add(const struct job *j, int e, int at, int n, int r0, int r1) {
    const struct op_values *o = j->o;
    const struct mat w = mat_rows(o->w, e * o->dim + r0, e * o->dim + r1);
    float tile[KERNEL_TOKENS][TASK_ROWS];
    const float *xs[KERNEL_TOKENS];
    float *ys[KERNEL_TOKENS];
    for (int i = 0; i < n; i++) {
        xs[i] = o->x + (size_t)(j->pairs[at + i] / o->topk) * (size_t)o->ldx;
        ys[i] = tile[i];
    }
    kernels_gemv(&j->x->k, w.dtype, false)(ys, xs, n, &w);
    for (int i = 0; i < n; i++) {
        const int pair = j->pairs[at + i];
        add_weighed(j, o->y + (size_t)(pair / o->topk) * (size_t)o->ldy + r0, tile[i], o->weights[pair], r1 - r0);
    }
}

static void values_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_values *o = j->o;
    const int r0 = task * j->per, r1 = r0 + j->per < o->dim ? r0 + j->per : o->dim;
    for (int e = j->first; e < j->end; e++)
        for (int at = j->begin[e], n; at < j->begin[e + 1]; at += n) {
            const int left = j->begin[e + 1] - at;
            n = left < KERNEL_TOKENS ? left : KERNEL_TOKENS;
            if (!j->products) multiply_and_add(j, e, at, n, r0, r1);
            for (int i = 0; i < n && j->products; i++) {
                const int pair = j->pairs[at + i];
                add_weighed(j, o->y + (size_t)(pair / o->topk) * (size_t)o->ldy + r0,
                            j->products + (size_t)(at - j->begin[e] + i) * (size_t)o->dim + r0, o->weights[pair],
                            r1 - r0);
            }
        }
}
static int run_tasks(struct job *j) {
    return cpu_exec_for_each(j->x, (j->o->dim + j->per - 1) / j->per, values_task, j);
}

/* An expert of many tokens: copies their rows, multiplies them, and adds the products. */
static int add_many(struct job *j) {
    const struct op_values *o = j->o;
    const int at = j->begin[j->first], n = j->begin[j->first + 1] - at, cols = o->w.cols;
    float *rows = mem_alloc((size_t)n * (size_t)(cols + o->dim) * sizeof *rows),
          *products = rows + (size_t)n * (size_t)cols;
    if (!rows) return ERR_MEMORY;
    for (int i = 0; i < n; i++)
        memcpy(rows + (size_t)i * (size_t)cols, o->x + (size_t)(j->pairs[at + i] / o->topk) * (size_t)o->ldx,
               (size_t)cols * sizeof *rows);
    int rc = cpu_linear(&j->x->base, &(struct op_linear){.y = products,
                                                         .x = rows,
                                                         .w = mat_rows(o->w, j->first * o->dim, j->end * o->dim),
                                                         .n = n,
                                                         .ldx = cols,
                                                         .ldy = o->dim,
                                                         .wide = o->wide});
    j->products = products;
    if (!rc) rc = run_tasks(j);
    j->products = NULL;
    mem_free(rows);
    return rc;
}

/* Sorts the pairs of a token and its choice by expert, then by token. false: an id is no expert. */
static bool group_pairs(const struct op_values *o, int32_t *begin, int32_t *pairs) {
    const int n = o->n * o->topk;
    memset(begin, 0, ((size_t)o->n_experts + 2) * sizeof *begin);
    for (int i = 0; i < n; i++) {
        if (o->ids[i] < 0 || o->ids[i] >= o->n_experts) return false;
        begin[o->ids[i] + 2]++;
    }
    for (int e = 2; e < o->n_experts + 2; e++) begin[e] += begin[e - 1];
    for (int i = 0; i < n; i++) pairs[begin[o->ids[i] + 1]++] = i;
    return true;
}

static int add_values(struct cpu_exec *x, const struct op_values *o) {
    if (o->n < 1) return 0;
    int32_t *begin = mem_alloc(((size_t)o->n_experts + 2 + (size_t)o->n * (size_t)o->topk) * sizeof *begin),
            *pairs = begin + o->n_experts + 2;
    if (!begin) return ERR_MEMORY;
    int rc = group_pairs(o, begin, pairs) ? 0 : ERR_RUNTIME;
    const int share = o->dim / (2 * pool_threads(x->pool));
    struct job j = {.x = x, .o = o, .begin = begin, .pairs = pairs, .per = cpu_exec_task_rows(share, 16, TASK_ROWS)};
    for (int i = 0; i < o->n && !rc; i++) memset(o->y + (size_t)i * (size_t)o->ldy, 0, (size_t)o->dim * sizeof *o->y);
    while (!rc && j.first < o->n_experts) {
        const bool many = begin[j.first + 1] - begin[j.first] > BATCH_INVARIANT_ROWS;
        j.end = j.first + 1;
        while (!many && j.end < o->n_experts && begin[j.end + 1] - begin[j.end] <= BATCH_INVARIANT_ROWS) j.end++;
        rc = many ? add_many(&j) : run_tasks(&j);
        j.first = j.end;
    }
    mem_free(begin);
    return rc;
}

/* Prompts take turns: an expert's kernel depends on the number of a prompt's tokens that choose it. */
int cpu_values(struct exec *base, const struct op_values *o) {
    const struct op_prompts *p = base->prompts;
    struct cpu_exec *x = (struct cpu_exec *)base;
    if (!p || o->n != p->end[p->n - 1]) return add_values(x, o);
    for (int i = 0, at = 0; i < p->n; at = p->end[i++]) {
        const size_t row = (size_t)at;
        struct op_values part = *o;
        part.n = p->end[i] - at;
        part.x += row * (size_t)o->ldx, part.y += row * (size_t)o->ldy;
        part.ids += row * (size_t)o->topk, part.weights += row * (size_t)o->topk;
        TRY(add_values(x, &part));
    }
    return 0;
}

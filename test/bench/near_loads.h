#pragma once
/* Models and generated loads of experts for the simulations of units near memory (near.c) and of NUMA nodes (nodes.c).
 *
 * Loads are generated: by rank the hottest 2% of the experts have 22% of the rows, the next 28% have 70, the others 8
 * (the paper's section 3.1: over 70% process 8%, 20 to 40% up to 70%); the ranks of experts change gradually. Rows draw
 * their k experts without replacement. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/experts/score.h"
#include "engine/model/known.h"
#include "engine/placement/split.h"

enum { MOST = 256, LAYERS = 3 };
static struct cost_machine machine;
static struct split_plan plan;

static void fail(const struct error *e) {
    fprintf(stderr, "%s\n", e->text);
    exit(1);
}
static struct cost_model model_in(const struct known_model *k, enum dtype experts) {
    struct cost_model q;
    struct error e = {0};
    struct config *c = calloc(1, sizeof *c);
    if (!c || known_model_config(k, c, &e)) fail(&e);
    cost_model_of(&q, c, DT_BF16, experts, DT_BF16);
    free(c);
    return q;
}

/* --- Loads ------------------------------------------------------------------------------------ */

static uint64_t seed = 1;
static double uniform(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return ((double)(seed >> 33) + 0.5) / 2147483648.0;
}
static double normal(void) { return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()); }

struct loads {
    int experts, topk;
    /* g: normal; its rank is the expert's; weight: log of a rank's sampling weight */
    double memory, g[LAYERS][MOST], weight[MOST];
};
static const double *ranked;
static int by_rank(const void *a, const void *b) {
    double x = ranked[*(const int *)a], y = ranked[*(const int *)b];
    return x < y ? 1 : x > y ? -1 : 0;
}
static void draw(struct loads *l, int layer, int batch, int32_t *rows) {
    double z[MOST], *g = l->g[layer];
    int order[MOST], rank[MOST];
    for (int e = 0; e < l->experts; e++) order[e] = e;
    ranked = g;
    qsort(order, (size_t)l->experts, sizeof *order, by_rank);
    for (int k = 0; k < l->experts; k++) rank[order[k]] = k;
    memset(rows, 0, (size_t)l->experts * sizeof *rows);
    for (int i = 0; i < batch; i++) {
        for (int e = 0; e < l->experts; e++) z[e] = l->weight[rank[e]] - log(-log(uniform()));
        for (int k = 0; k < l->topk; k++) {
            int best = 0;
            for (int e = 1; e < l->experts; e++)
                if (z[e] > z[best]) best = e;
            rows[best]++, z[best] = -INFINITY;
        }
    }
    for (int e = 0; e < l->experts; e++) g[e] = l->memory * g[e] + sqrt(1 - l->memory * l->memory) * normal();
}
/* Three classes, falling within each: from 1.5 to 0.5 times the class's mean among the warm and the hot, from 3 to 0
 * among the cold. */
/* memory: autocorrelation of an expert's rank between batches. */
static void begin(struct loads *l, const struct cost_model *q, double memory) {
    static const double part[3] = {0.02, 0.28, 0.70}, rows[3] = {0.22, 0.70, 0.08};
    seed = 11;
    *l = (struct loads){.experts = q->n_experts, .topk = q->topk, .memory = memory};
    for (int i = 0; i < LAYERS; i++)
        for (int e = 0; e < l->experts; e++) l->g[i][e] = normal();
    double from = 0;
    for (int c = 0, at = 0; c < 3; c++) {
        from += part[c];
        int end = c == 2 ? l->experts : (int)(from * l->experts + 0.5), n = end - at;
        for (int k = 0; k < n; k++) {
            double x = (k + 0.5) / n, w = c < 2 ? 1.5 - x : 3 * (1 - x) * (1 - x);
            l->weight[at + k] = log(w * rows[c] / n);
        }
        at = end;
    }
}

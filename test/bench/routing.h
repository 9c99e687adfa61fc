#pragma once
/* Routing traces to replay: read from --trace-routing, or generated. A generated one draws, for each token, layer and
 * expert, a router's logit
 *
 *     z = sqrt(skew) * b[layer][expert] + sqrt(reuse) * x + sqrt(1 - skew - reuse) * noise,    x' = memory * x + sqrt(1
 * - memory^2) * new
 *
 * b, x, new and noise standard normal: some experts are popular with all tokens (skew), some recently (reuse, for some
 * 1 / (1 - memory) tokens), the rest is the token's own. The k largest are chosen, and scores are the softmax of sharp
 * * z. replay.c says what is fitted to which printed figure. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/ops.h"
#include "engine/experts/score.h"

struct routing {
    int n, layers, experts, topk; /* tokens */
    int32_t *ids, *near;          /* [n, layers, topk], [n, layers, 2 * topk] */
    float *chance;
    float *logits;     /* [n, layers, experts]; NULL: not kept */
    int32_t *guess[3]; /* [n, layers, topk] predicted 1, 2, 3 layers before; NULL: none */
};
static inline size_t routing_at(const struct routing *r, int token, int layer) {
    return ((size_t)token * (size_t)r->layers + (size_t)layer) * (size_t)r->topk;
}
static inline struct score_rows routing_step(const struct routing *r, int token, int layer) {
    size_t at = routing_at(r, token, layer);
    return (struct score_rows){1, r->ids + at, r->near + 2 * at, r->chance + 2 * at};
}

struct routing_kind {
    double skew, reuse, memory, sharp;
};

static uint64_t routing_seed = 1;
static double routing_uniform(void) {
    routing_seed = routing_seed * 6364136223846793005u + 1442695040888963407u;
    return ((double)(routing_seed >> 33) + 0.5) / 2147483648.0;
}
static double routing_normal(void) {
    return sqrt(-2 * log(routing_uniform())) * cos(6.283185307179586 * routing_uniform());
}

static inline void routing_open(struct routing *r, int n, int layers, int experts, int topk) {
    *r = (struct routing){.n = n, .layers = layers, .experts = experts, .topk = topk};
    size_t all = (size_t)n * (size_t)layers * (size_t)topk;
    r->ids = malloc(all * sizeof *r->ids);
    r->near = malloc(2 * all * sizeof *r->near);
    r->chance = malloc(2 * all * sizeof *r->chance);
    if (!r->ids || !r->near || !r->chance) abort();
}
static inline void routing_close(struct routing *r) {
    free(r->ids), free(r->near), free(r->chance), free(r->logits);
    for (int k = 0; k < 3; k++) free(r->guess[k]);
}

static inline void routing_make(struct routing *r, int n, int layers, int experts, int topk,
                                const struct routing_kind *k, uint64_t seed) {
    routing_open(r, n, layers, experts, topk);
    routing_seed = seed;
    size_t all = (size_t)layers * (size_t)experts;
    double *b = malloc(2 * all * sizeof *b), *x = b + all;
    float *z = malloc((size_t)experts * sizeof *z);
    r->logits = malloc((size_t)n * all * sizeof *r->logits);
    if (!b || !z || !r->logits) abort();
    for (size_t i = 0; i < 2 * all; i++) b[i] = routing_normal();
    for (int t = 0; t < n; t++)
        for (int l = 0; l < layers; l++) {
            size_t at = routing_at(r, t, l), row = (size_t)l * (size_t)experts;
            for (int e = 0; e < experts; e++) {
                x[row + (size_t)e] =
                    k->memory * x[row + (size_t)e] + sqrt(1 - k->memory * k->memory) * routing_normal();
                z[e] = (float)(k->sharp * (sqrt(k->skew) * b[row + (size_t)e] + sqrt(k->reuse) * x[row + (size_t)e] +
                                           sqrt(1 - k->skew - k->reuse) * routing_normal()));
            }
            memcpy(r->logits + (size_t)t * all + row, z, (size_t)experts * sizeof *z);
            score_best(SCORE_SOFTMAX, NULL, z, experts, 2 * topk, r->near + 2 * at, r->chance + 2 * at);
            memcpy(r->ids + at, r->near + 2 * at, (size_t)topk * sizeof *r->ids);
        }
    free(b), free(z);
}

/* Router predictions of a layer made 1, 2 and 3 layers before it: its logits with a given correlation, the rest
 * noise. */
static inline void routing_foresee(struct routing *r, const double *alike) {
    size_t all = (size_t)r->n * (size_t)r->layers;
    float *z = malloc((size_t)r->experts * sizeof *z), *chance = malloc((size_t)r->topk * sizeof *chance);
    if (!z || !chance) abort();
    for (int k = 0; k < 3; k++) {
        if (!(r->guess[k] = malloc(all * (size_t)r->topk * sizeof **r->guess))) abort();
        for (size_t i = 0; i < all; i++) {
            const float *from = r->logits + i * (size_t)r->experts;
            double size = 0;
            for (int e = 0; e < r->experts; e++) size += (double)from[e] * (double)from[e];
            size = sqrt(size / r->experts * (1 - alike[k] * alike[k]));
            for (int e = 0; e < r->experts; e++) z[e] = (float)(alike[k] * (double)from[e] + size * routing_normal());
            score_best(SCORE_SOFTMAX, NULL, z, r->experts, r->topk, r->guess[k] + i * (size_t)r->topk, chance);
        }
    }
    free(z), free(chance);
}

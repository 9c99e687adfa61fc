#pragma once
/* Scores experts for caches: one number per expert and layer; a cache keeps the highest and evicts the lowest. Policies
 * update scores from the routers' selections. Scores compare within a layer only. Pure: no clock, no allocation. One
 * thread. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct score;
struct score_policy {
    const char *name; /* value of --evict */
    const char *help; /* one line of help */
    void (*update)(struct score *s, int layer);
};
extern const struct score_policy score_policies[];       /* ends with a NULL name; the first is the default, "auto" */
const struct score_policy *score_find(const char *name); /* NULL: unknown name */

/* Rows that went through a layer together. */
struct score_rows {
    int n;
    const int32_t *ids;      /* [n, topk] selected; -1: skip */
    const int32_t *best;     /* [n, 2 * topk] best by router score, -1: none, with their scores; NULL: unknown */
    const float *best_score; /* [n, 2 * topk] */
};

struct score {
    const struct score_policy *policy;
    int n_layers, n_experts, topk;
    uint64_t n_layers_seen;    /* layers seen so far */
    double *value;             /* [n_layers, n_experts] >= 0; 0: never seen */
    double *base_value;        /* lookahead policy: the score without announcements */
    uint32_t *announced_token; /* [n_layers, n_experts] announced for this token, counted from 1; 0: not announced */
    uint32_t *n_batches;       /* [n_layers] batches seen by each */
    float *load;               /* [n_experts] scratch: rows that selected each */
    float *mass;               /* [n_experts] scratch: mean router score, over the best 2 * topk of each row */
};
size_t score_bytes(int n_layers, int n_experts);
/* mem: score_bytes, zeroed, aligned for double; in use until the caller is done with s. */
void score_open(struct score *s, const struct score_policy *policy, int n_layers, int n_experts, int topk, void *mem);

/* Updates the scores of a layer after its rows were routed. */
void score_update(struct score *s, int layer, const struct score_rows *rows);
/* Sets the scores of a layer before its first batch, from the experts' shares of earlier selections [n_experts]. */
void score_seed(struct score *s, int layer, const float *share);
/* Announces experts that a layer will need `ahead` tokens from now (1: the next one). Ignored except by the lookahead
 * policy. */
void score_announce(struct score *s, int layer, const int32_t *ids, int n, int ahead);
static inline double score_of(const struct score *s, int layer, int expert) {
    return s->value[(size_t)layer * (size_t)s->n_experts + (size_t)expert];
}

/* Lists the p best experts of a row by the router's selection criterion, in falling order, with normalized scores
 * (op_route). fn: enum score_fn; bias [n_experts] or NULL; logits [n_experts]. Softmax is over these p only. Missing
 * entries are -1 and 0. Pure. */
void score_best(int fn, const float *bias, const float *logits, int n_experts, int p, int32_t *best, float *best_score);

#pragma once
/* What keeping an expert near is worth: a table of scores, one number for each expert of each layer, so that a cache keeps the
 * highest and lets the lowest go. Pure: what a layer's router chose goes in, numbers come out; no clock, no allocation.
 *
 * Scores are compared within a layer. One thread. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct score;
struct score_policy {
    const char *name; /* as --evict */
    const char *what; /* one line */
    void (*seen)(struct score *s, int layer);
};
extern const struct score_policy score_policies[];       /* ends with a NULL name; the first is the default, "auto" */
const struct score_policy *score_find(const char *name); /* NULL: none of that name */

/* Rows that went through a layer together. */
struct score_step {
    int n;
    const int32_t *ids;  /* [n, topk] what was chosen; -1: left out */
    const int32_t *near; /* [n, 2 * topk] the best by the router, -1: none, and their scores; NULL: not known */
    const float *chance; /* [n, 2 * topk] */
};

struct score {
    const struct score_policy *policy;
    int n_layers, n_experts, topk;
    uint64_t clock;   /* layers seen so far */
    double *value;    /* [n_layers, n_experts] >= 0; 0: never seen */
    double *base;     /* lookahead: the same, what stands behind what was announced */
    uint32_t *until;  /* [n_layers, n_experts] announced for this token, counted from 1; 0: not */
    uint32_t *tokens; /* [n_layers] steps of each so far */
    float *load;      /* [n_experts] scratch: rows that chose each */
    float *mass;      /* [n_experts] scratch: mean over rows of the router's scores, of the best 2 * topk of each alone */
};
size_t score_bytes(int n_layers, int n_experts);
/* mem: score_bytes of it, zeroed, aligned for double; the caller's until s is done with. */
void score_open(struct score *s, const struct score_policy *policy, int n_layers, int n_experts, int topk, void *mem);

/* A layer computed these rows. */
void score_seen(struct score *s, int layer, const struct score_step *step);
/* A draft says that `ahead` tokens from now (1: the next one) a layer will choose these. */
void score_announce(struct score *s, int layer, const int32_t *ids, int n, int ahead);
static inline double score_of(const struct score *s, int layer, int expert) { return s->value[(size_t)layer * (size_t)s->n_experts + (size_t)expert]; }

/* The p best of a row by what a router chooses with, in falling order, and their scores (op_route): fn its enum score_fn, bias
 * [n_experts] or NULL, logits [n_experts]. Softmax is over these p alone. Fewer than p experts: the rest -1 and 0. Pure. */
void score_near(int fn, const float *bias, const float *logits, int n_experts, int p, int32_t *near, float *chance);

#pragma once
/* Look-ahead: the experts that a draft's routers selected for drafted tokens, with confidence. Predicts what the verify
 * batch needs (paper E, section 3.3.1). Filled by the drafter layer by layer, read by the caches of experts. Pure; one
 * thread. */
#include <stddef.h>
#include <stdint.h>

enum { LOOKAHEAD_TOKENS = 24 }; /* summed over the sessions of a batch */
struct lookahead {
    int n_layers, topk;
    int n;                          /* tokens recorded */
    int distance[LOOKAHEAD_TOKENS]; /* distance of each token; 0: the next one */
    int32_t *ids;                   /* [LOOKAHEAD_TOKENS, n_layers, topk] -1: unknown */
    float *confidence;              /* [LOOKAHEAD_TOKENS, n_layers, topk] router weights */
};
size_t lookahead_bytes(int n_layers, int topk);
/* mem: lookahead_bytes, aligned for float; in use until the caller is done with a. */
void lookahead_open(struct lookahead *a, int n_layers, int topk, void *mem);
static inline void lookahead_clear(struct lookahead *a) { a->n = 0; }
/* Adds a token; returns its index, -1: full. */
int lookahead_add_token(struct lookahead *a, int ahead);
/* Records a layer's selection for a token: ids, weights [topk]. */
void lookahead_record(struct lookahead *a, int token, int layer, const int32_t *ids, const float *weights);

/* Lists the experts of a layer that tokens need, each once: by distance, then by falling confidence. Returns how many,
 * at most `most`. */
struct lookahead_need {
    int32_t expert;
    int distance;     /* distance of the nearest token that needs it */
    float confidence; /* highest of any token */
};
int lookahead_needs(const struct lookahead *a, int layer, struct lookahead_need *out, int most);

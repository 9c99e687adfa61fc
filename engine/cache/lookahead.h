#pragma once
/* What a draft's routers chose for the tokens that it guesses: which experts the step that looks at these will want, and how surely (paper E,
 * section 3.3.1). Whoever drafts fills it layer by layer, whoever keeps experts near a device reads it. Pure; one thread. */
#include <stddef.h>
#include <stdint.h>

enum { LOOKAHEAD_TOKENS = 24 }; /* of all sessions of a step */
struct lookahead {
    int n_layers, topk;
    int n;                       /* tokens so far */
    int ahead[LOOKAHEAD_TOKENS]; /* of each: how many tokens from now it is, 0: the next one */
    int32_t *ids;                /* [LOOKAHEAD_TOKENS, n_layers, topk] -1: not known */
    float *confidence;           /* the same: the router's weights */
};
size_t lookahead_bytes(int n_layers, int topk);
/* mem: lookahead_bytes of it, aligned for float; the caller's until it is done with. */
void lookahead_open(struct lookahead *a, int n_layers, int topk, void *mem);
static inline void lookahead_clear(struct lookahead *a) { a->n = 0; }
/* One token more; returns its number, -1: there is no room. */
int lookahead_token(struct lookahead *a, int ahead);
/* A layer chose for it: ids, weights [topk]. */
void lookahead_chose(struct lookahead *a, int token, int layer, const int32_t *ids, const float *weights);

/* The experts of a layer that tokens will want, each once: the soonest first, of one token the surest first. Returns how many, at most `most`. */
struct lookahead_want {
    int32_t expert;
    int ahead;        /* of the first token that wants it */
    float confidence; /* the most that one of them gives it */
};
int lookahead_wants(const struct lookahead *a, int layer, struct lookahead_want *out, int most);

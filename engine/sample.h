#pragma once
/* From logits to a token. Pure: the same logits, history and position give the same token on every machine and for any
 * number of threads; the random number of a position depends on the seed and the position alone. */
#include "engine/engine.h"

struct sample_item {
    float logit;
    int32_t id;
};
/* logits [vocab] are changed in place (repeat penalty). seen: tokens so far, for the penalty. scratch [vocab].
 * Order: penalty, temperature, top-k, top-p, min-p (as transformers). Ties go to the lower id. Without numbers among the logits, or
 * where the largest is infinite, it is the largest. Takes some 2 ns a token of the vocabulary. */
int32_t sample_token(float *logits, int vocab, const struct sampling *s, const int32_t *seen, int n_seen, uint64_t position, struct sample_item *scratch);
/* The largest logit is the answer as it stands: nobody needs to go through them again. */
bool sample_is_top(const struct sampling *s);

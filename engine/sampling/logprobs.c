#include "engine/sampling/logprobs.h"

#include <math.h>

/* Logarithm of the sum of exp(logit), relative to the largest logit. NaN logits have no weight. */
static double log_sum(const float *logits, int vocab, float *largest) {
    double sum = 0;
    *largest = -INFINITY;
    for (int i = 0; i < vocab; i++)
        if (logits[i] > *largest) *largest = logits[i];
    for (int i = 0; i < vocab; i++)
        if (logits[i] > -INFINITY) sum += exp((double)logits[i] - (double)*largest);
    return log(sum);
}

void logprobs_compute(const float *logits, int vocab, int32_t id, int n_top, struct token_logprobs *out) {
    float largest, raw[MAX_TOP_LOGPROBS];
    const double sum = log_sum(logits, vocab, &largest);
    int n = 0;
    for (int i = 0; i < vocab && n_top > 0; i++) {
        if (!(logits[i] > -INFINITY) || (n == n_top && logits[i] <= raw[n - 1])) continue;
        int at = n < n_top ? n++ : n - 1;
        for (; at > 0 && raw[at - 1] < logits[i]; at--) raw[at] = raw[at - 1], out->top[at] = out->top[at - 1];
        raw[at] = logits[i];
        out->top[at] = (struct top_logprob){.id = i, .logprob = (float)((double)logits[i] - (double)largest - sum)};
    }
    out->n_top = n;
    out->logprob = logits[id] > -INFINITY ? (float)((double)logits[id] - (double)largest - sum) : -INFINITY;
}

#include "engine/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int32_t best(const float *logits, int vocab) {
    int32_t top = 0;
    for (int i = 1; i < vocab; i++)
        if (logits[i] > logits[top]) top = i;
    return top;
}

/* Divides positive and multiplies negative logits of tokens already there, each once however often it occurs. */
static void penalise(float *logits, int vocab, float penalty, const int32_t *seen, int n, struct sample_item *scratch) {
    uint8_t *done = memset(scratch, 0, (size_t)vocab);
    for (int i = 0; i < n; i++) {
        int32_t id = seen[i];
        if (id < 0 || id >= vocab || done[id]) continue;
        done[id] = 1;
        logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    }
}

static int falling(const void *a, const void *b) {
    const struct sample_item *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* splitmix64 of (seed, position): no state to carry, so a resumed session draws what an unbroken one would. */
static double uniform(uint64_t seed, uint64_t position) {
    uint64_t z = seed * 0x9E3779B97F4A7C15u + position * 0xD1B54A32D192ED03u + 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

static bool penalises(const struct sampling *s) { return s->repeat_penalty > 0 && s->repeat_penalty != 1; }
bool sample_is_top(const struct sampling *s) { return !penalises(s) && (s->temperature <= 0 || s->top_k == 1); }

int32_t sample_token(float *logits, int vocab, const struct sampling *s, const int32_t *seen, int n_seen, uint64_t position, struct sample_item *scratch) {
    if (penalises(s)) penalise(logits, vocab, s->repeat_penalty, seen, n_seen, scratch);
    int32_t top = best(logits, vocab);
    if (s->temperature <= 0 || s->top_k == 1) return top;
    /* Tokens more than 40 nats below the best weigh nothing in double precision sums of this size: leave them out early. */
    double inv = 1.0 / s->temperature;
    int n = 0;
    for (int i = 0; i < vocab; i++)
        if (((double)logits[i] - logits[top]) * inv > -40) scratch[n++] = (struct sample_item){logits[i], i};
    qsort(scratch, (size_t)n, sizeof *scratch, falling);
    if (s->top_k > 0 && n > s->top_k) n = s->top_k;
    double sum = 0, part = 0;
    for (int i = 0; i < n; i++) sum += exp(((double)scratch[i].logit - logits[top]) * inv);
    if (s->top_p > 0 && s->top_p < 1) {
        int keep = 0;
        while (keep < n && part < s->top_p * sum) part += exp(((double)scratch[keep++].logit - logits[top]) * inv);
        n = keep > 0 ? keep : 1;
    }
    if (s->min_p > 0) {
        int keep = 1;
        while (keep < n && exp(((double)scratch[keep].logit - logits[top]) * inv) >= s->min_p) keep++;
        n = keep;
    }
    sum = 0;
    for (int i = 0; i < n; i++) sum += exp(((double)scratch[i].logit - logits[top]) * inv);
    double at = uniform(s->seed, position) * sum;
    for (int i = 0; i < n - 1; i++)
        if ((at -= exp(((double)scratch[i].logit - logits[top]) * inv)) < 0) return scratch[i].id;
    return scratch[n - 1].id;
}

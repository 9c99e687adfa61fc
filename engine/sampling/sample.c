#include "engine/sampling/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/argmax.h"
#include "engine/sampling/dry.h"

enum { SPAN = 16 }; /* logits tested together */

/* Whether a span has a value within the bounds; spans without are skipped. */
static inline bool any_in_range(const float *l, float low, float high) {
    int n = 0;
    for (int k = 0; k < SPAN; k++) n |= (l[k] >= low) & (l[k] <= high);
    return n;
}

/* Divides positive and multiplies negative logits of previous tokens, once per token. */
static void apply_repeat_penalty(float *logits, int vocab, float penalty, const int32_t *seen, int n,
                                 struct sample_item *scratch) {
    uint8_t *done = memset(scratch, 0, (size_t)vocab);
    for (int i = 0; i < n; i++) {
        int32_t id = seen[i];
        if (id < 0 || id >= vocab || done[id]) continue;
        done[id] = 1;
        logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    }
}

/* splitmix64 of (seed, position): stateless, so a resumed session draws the same numbers. */
static double random_at(uint64_t seed, uint64_t position) {
    uint64_t z = seed * 0x9E3779B97F4A7C15u + position * 0xD1B54A32D192ED03u + 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

/* Subtracts the penalties of https://platform.openai.com/docs/api-reference: presence once per token of the answer,
 * frequency per occurrence. */
static void apply_answer_penalties(float *logits, int vocab, const struct sampling *s, const int32_t *answer, int n,
                                   struct sample_item *scratch) {
    uint8_t *done = memset(scratch, 0, (size_t)vocab);
    for (int i = 0; i < n; i++) {
        int32_t id = answer[i];
        if (id < 0 || id >= vocab) continue;
        logits[id] -= s->frequency_penalty + (done[id] ? 0 : s->presence_penalty);
        done[id] = 1;
    }
}

static void apply_bias(float *logits, int vocab, const struct sampling *s) {
    for (int i = 0; i < s->n_bias; i++)
        if (s->bias[i].id >= 0 && s->bias[i].id < vocab) logits[s->bias[i].id] += s->bias[i].bias;
}

static bool has_repeat_penalty(const struct sampling *s) { return s->repeat_penalty > 0 && s->repeat_penalty != 1; }
static bool has_answer_penalty(const struct sampling *s) {
    return s->presence_penalty != 0 || s->frequency_penalty != 0;
}
bool sample_is_argmax(const struct sampling *s) {
    return !has_repeat_penalty(s) && !has_answer_penalty(s) && !dry_is_on(&s->dry) && !s->n_bias &&
           (s->temperature <= 0 || s->top_k == 1);
}
struct sampling sample_unmodified(const struct sampling *s) {
    struct sampling out = *s;
    out.repeat_penalty = 1, out.presence_penalty = out.frequency_penalty = 0, out.n_bias = 0, out.dry.multiplier = 0;
    return out;
}

/* --- Cumulative weights without sorting the vocabulary -------------------------------------------
 *
 * A token's weight is its probability relative to the best token, in integer units of 2^-WEIGHT_BITS, so sums do not
 * depend on the order of addition. The token that reaches a cumulative weight in descending order is found by a
 * histogram of weights over logits, then by a search within one of its columns. */

enum {
    WEIGHT_BITS = 44, /* the best token weighs 2^44; the weights of a vocabulary fit 64 bits */
    STEPS = 256,      /* quantization steps per factor of 2 in probability */
    WIDTH = 8,        /* steps per column */
    COLUMNS = WEIGHT_BITS * STEPS / WIDTH + 1,
    FEW = 16, /* columns of up to FEW tokens are searched by selection sort */
};
#define PER_NAT (STEPS * 1.4426950408889634) /* steps */

struct sampler {
    const float *logits;
    int vocab;
    float top, steps_per_unit; /* the best logit; steps per unit of logit */
    bool is_counting;          /* every token weighs 1 (for top-k) */
    bool has_cutoff;           /* only tokens up to `cutoff` in descending order count */
    struct sample_item cutoff;
    float pow2[STEPS]; /* 2^(WEIGHT_BITS - i / STEPS) */
    uint64_t histogram[COLUMNS];
    struct sample_item *items; /* [n_items] tokens of `column`, which is -1 before the first */
    int column, n_items;
};

static bool ranks_before(struct sample_item a, struct sample_item b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* Quantizes a logit: *n is the nearest whole number of steps below the best, *rest is e^-(remainder). *below is >=
 * WEIGHT_BITS * STEPS for a token without weight and NaN for a NaN logit; the other results are then undefined.
 * Adding 1.5 * 2^23 leaves the integer in the low bits. Single precision for speed, as it runs over the whole
 * vocabulary: a weight is accurate to 2e-6 relative at 2^-WEIGHT_BITS and to 2e-7 at the top. */
static inline void quantize_logit(const struct sampler *p, float logit, float *below, float *rest, uint32_t *n) {
    const float to_integer = 0x1.8p23f;
    float y = (p->top - logit) * p->steps_per_unit, z = y + to_integer, r = (z - to_integer - y) * (float)(1 / PER_NAT);
    *below = y;
    *rest = 1 + r * (1 + r * 0.5f); /* |r| < 0.0014 */
    memcpy(n, &z, sizeof z);
}
static inline uint64_t quantized_weight(const struct sampler *p, bool counting, float rest, uint32_t n) {
    return counting ? 1 : (uint64_t)((int64_t)(p->pow2[n % STEPS] * rest) >> (n & 0xffff) / STEPS);
}
static uint64_t logit_weight(const struct sampler *p, float logit) {
    float below, rest;
    uint32_t n;
    quantize_logit(p, logit, &below, &rest, &n);
    return quantized_weight(p, p->is_counting, rest, n);
}

/* Returns logits [i, i + SPAN). The last span is copied to edge [SPAN] and filled up with -infinity. */
static inline const float *load_span(const struct sampler *p, int i, float *edge) {
    if (p->vocab - i >= SPAN) return p->logits + i;
    for (int k = 0; k < SPAN; k++) edge[k] = k < p->vocab - i ? p->logits[i + k] : -INFINITY;
    return edge;
}
static inline bool is_candidate(const struct sampler *p, bool cut, float below, float logit, int32_t id) {
    return below < WEIGHT_BITS * STEPS && (!cut || !ranks_before(p->cutoff, (struct sample_item){logit, id}));
}

/* A logit just below those of this column and of all better ones; 1e-6 covers rounding. */
static float column_floor(const struct sampler *p, int column) {
    const double down = (column + 1) * WIDTH / (double)p->steps_per_unit;
    return (float)(p->top - down - 1e-6 * (fabs(p->top) + down));
}

/* Fills the histogram and returns its sum. Once the sum is `enough`, may omit tokens worse than those counted. */
static uint64_t fill_histogram(struct sampler *p, uint64_t enough) {
    enum { CHECK_EVERY = 256 * SPAN }; /* logits between two looks whether the rest of the columns can be skipped */
    uint64_t sum = 0;
    float edge[SPAN], low = p->has_cutoff ? p->cutoff.logit : -INFINITY;
    /* in locals: the compiler reloads the fields for every token otherwise */
    const bool cut = p->has_cutoff, counting = p->is_counting;
    memset(p->histogram, 0, sizeof p->histogram);
    p->column = -1;
    for (int i = 0; i < p->vocab; i += SPAN) {
        const float *l = load_span(p, i, edge);
        float below[SPAN], rest[SPAN];
        uint32_t n[SPAN];
        if (i % CHECK_EVERY == 0 && sum >= enough) {
            uint64_t first = 0;
            int column = 0;
            while ((first += p->histogram[column]) < enough) column++;
            low = column_floor(p, column);
        }
        if (low > -INFINITY && !any_in_range(l, low, INFINITY)) continue;
        for (int k = 0; k < SPAN; k++) quantize_logit(p, l[k], &below[k], &rest[k], &n[k]);
        for (int k = 0; k < SPAN; k++) {
            if (!is_candidate(p, cut, below[k], l[k], i + k)) continue;
            uint64_t w = quantized_weight(p, counting, rest[k], n[k]);
            p->histogram[(n[k] & 0xffff) / WIDTH] += w;
            sum += w;
        }
    }
    return sum;
}

/* Collects the tokens of a column. */
static void gather_column(struct sampler *p, int column) {
    const double down = (column - 1) * WIDTH / (double)p->steps_per_unit;
    const float high = (float)(p->top - down + 1e-6 * (fabs(p->top) + fabs(down))), low = column_floor(p, column);
    float edge[SPAN];
    if (p->column == column) return;
    p->column = column, p->n_items = 0;
    for (int i = 0; i < p->vocab; i += SPAN) {
        const float *l = load_span(p, i, edge);
        if (!any_in_range(l, low, high)) continue;
        for (int k = 0; k < SPAN; k++) {
            float below, rest;
            uint32_t n;
            quantize_logit(p, l[k], &below, &rest, &n);
            if (is_candidate(p, p->has_cutoff, below, l[k], i + k) && (n & 0xffff) / WIDTH == (uint32_t)column)
                p->items[p->n_items++] = (struct sample_item){l[k], i + k};
        }
    }
}

/* Returns the first token in descending order at which the cumulative weight reaches target, 0 < target <= total. *sum:
 * that weight. */
static struct sample_item find_cumulative(struct sampler *p, uint64_t target, uint64_t *sum) {
    int column = 0, n;
    for (*sum = 0; *sum + p->histogram[column] < target; column++) *sum += p->histogram[column];
    gather_column(p, column);
    struct sample_item *at = p->items;
    uint32_t seed = 1;
    for (n = p->n_items; n > FEW;) { /* quickselect: partition around a random pivot */
        seed = seed * 1664525 + 1013904223;
        struct sample_item *drawn = at + ((uint64_t)seed * (uint64_t)n >> 32), pivot = *drawn;
        uint64_t w = 0;
        int m = 0;
        *drawn = at[n - 1], at[n - 1] = pivot;
        for (int i = 0; i < n - 1; i++) {
            struct sample_item x = at[i];
            if (!ranks_before(x, pivot)) continue;
            at[i] = at[m], at[m++] = x;
            w += logit_weight(p, x.logit);
        }
        at[n - 1] = at[m], at[m] = pivot;
        if (*sum + w >= target) {
            n = m;
            continue;
        }
        *sum += w + logit_weight(p, pivot.logit);
        if (*sum >= target) return pivot;
        at += m + 1, n -= m + 1;
    }
    for (int i = 0;; i++) {
        int first = i;
        for (int k = i + 1; k < n; k++)
            if (ranks_before(at[k], at[first])) first = k;
        struct sample_item x = at[first];
        at[first] = at[i], at[i] = x;
        *sum += logit_weight(p, x.logit);
        if (*sum >= target) return x;
    }
}

/* Sum of the weights of tokens at least min_p (up to 1) times as probable as the best. */
static uint64_t sum_above_min_p(struct sampler *p, double min_p) {
    uint64_t sum = 0;
    float edge[SPAN];
    const double most = -log(min_p) * PER_NAT; /* steps */
    const float low = column_floor(p, (int)fmin(most / WIDTH, COLUMNS) + 1);
    for (int i = 0; i < p->vocab; i += SPAN) {
        const float *l = load_span(p, i, edge);
        if (!any_in_range(l, low, INFINITY)) continue;
        for (int k = 0; k < SPAN; k++) {
            float below, rest;
            uint32_t n;
            quantize_logit(p, l[k], &below, &rest, &n);
            if (below <= most && is_candidate(p, p->has_cutoff, below, l[k], i + k))
                sum += quantized_weight(p, false, rest, n);
        }
    }
    return sum;
}

/* Returns the largest logit minus n standard deviations of the finite logits. */
static float sigma_floor(const float *logits, int vocab, float top, float n) {
    double sum = 0, squares = 0;
    int count = 0;
    for (int i = 0; i < vocab; i++)
        if (isfinite(logits[i])) sum += (double)logits[i], count++;
    const double mean = count ? sum / count : 0;
    for (int i = 0; i < vocab; i++)
        if (isfinite(logits[i])) squares += ((double)logits[i] - mean) * ((double)logits[i] - mean);
    return (float)((double)top - (double)n * sqrt(count ? squares / count : 0));
}

int32_t sample_token(float *logits, int vocab, const struct sampling *s, const int32_t *seen, int n_seen,
                     uint64_t position, struct sample_item *scratch) {
    apply_bias(logits, vocab, s);
    if (has_repeat_penalty(s)) apply_repeat_penalty(logits, vocab, s->repeat_penalty, seen, n_seen, scratch);
    if (has_answer_penalty(s) && n_seen > s->answer_from)
        apply_answer_penalties(logits, vocab, s, seen + s->answer_from, n_seen - s->answer_from, scratch);
    if (dry_is_on(&s->dry)) dry_apply(logits, vocab, s, seen, n_seen, scratch);
    int32_t top = argmax(logits, vocab, NULL);
    if (s->temperature <= 0 || s->top_k == 1 || s->min_p > 1) return top;
    struct sampler p = {.logits = logits,
                        .vocab = vocab,
                        .top = logits[top],
                        .steps_per_unit = (float)(PER_NAT / s->temperature),
                        .items = scratch};
    uint64_t sum, reached;
    if (s->top_n_sigma > 0 && isfinite(p.top)) {
        p.cutoff = (struct sample_item){sigma_floor(logits, vocab, p.top, s->top_n_sigma), vocab};
        p.has_cutoff = true;
    }
    if (s->top_k > 0 && s->top_k < vocab) {
        p.is_counting = true;
        if (fill_histogram(&p, (uint64_t)s->top_k + 1) > (uint64_t)s->top_k)
            p.cutoff = find_cumulative(&p, (uint64_t)s->top_k, &sum), p.has_cutoff = true;
        p.is_counting = false;
    }
    for (int i = 0; i < STEPS; i++) p.pow2[i] = (float)exp2(WEIGHT_BITS - (double)i / STEPS);
    if (!(sum = fill_histogram(&p, UINT64_MAX))) return top; /* all NaN */
    const uint64_t least = s->min_p > 0 ? sum_above_min_p(&p, s->min_p) : sum;
    if (s->top_p > 0 && s->top_p < 1) {
        double target = ceil(s->top_p * (double)sum);
        find_cumulative(&p, target < 1 ? 1 : target < (double)sum ? (uint64_t)target : sum, &sum);
    }
    if (least < sum) sum = least;
    const uint64_t at = (uint64_t)(random_at(s->seed, position) * (double)sum);
    return find_cumulative(&p, at < sum ? at + 1 : sum, &reached).id;
}

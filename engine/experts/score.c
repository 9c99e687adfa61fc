#include "engine/experts/score.h"

#include <math.h>
#include <string.h>

#include "base/ops.h"

/* LOAD_ALPHA is paper C's; RECENT_ALPHA is ours, paper D gives none. Hit rates: test/bench/NOTES.md. */
static const double LOAD_ALPHA = 0.3, RECENT_ALPHA = 0.07;

static double *layer_row(const struct score *s, double *all, int layer) {
    return all + (size_t)layer * (size_t)s->n_experts;
}

/* --- Policies: load and mass are those of the rows just seen ---------------------------------- */

static void lru(struct score *s, int layer) {
    double *v = layer_row(s, s->value, layer);
    for (int i = 0; i < s->n_experts; i++)
        if (s->load[i] > 0) v[i] = (double)s->n_layers_seen;
}
static void lfu(struct score *s, int layer) {
    double *v = layer_row(s, s->value, layer);
    for (int i = 0; i < s->n_experts; i++) v[i] += s->load[i] > 0;
}
static void update_average(struct score *s, double *v, const float *now, double alpha) {
    for (int i = 0; i < s->n_experts; i++) v[i] = alpha * (double)now[i] + (1 - alpha) * v[i];
}
static void ema(struct score *s, int layer) { update_average(s, layer_row(s, s->value, layer), s->load, LOAD_ALPHA); }
static void mrs(struct score *s, int layer) { update_average(s, layer_row(s, s->value, layer), s->mass, RECENT_ALPHA); }

/* Announced experts first, the nearest highest; the rest by mrs, which stays below 1. */
static void lookahead_policy(struct score *s, int layer) {
    double *v = layer_row(s, s->value, layer), *base = layer_row(s, s->base_value, layer);
    uint32_t *announced = s->announced_token + (size_t)layer * (size_t)s->n_experts, now = s->n_batches[layer];
    update_average(s, base, s->mass, RECENT_ALPHA);
    for (int i = 0; i < s->n_experts; i++) {
        if (announced[i] <= now) announced[i] = 0; /* its token was decoded */
        v[i] = base[i] + (announced[i] ? 1 + 1.0 / (announced[i] - now) : 0);
    }
}

const struct score_policy score_policies[] = {
    {"auto", "mrs; lookahead with an INT4 draft", mrs},
    {"lru", "most recently used", lru},
    {"lfu", "most frequently used", lfu},
    {"mrs", "recent router scores of each token's best 2k experts (paper D)", mrs},
    {"ema", "recent load (paper C)", ema},
    {"lookahead", "experts that a draft announced, then mrs", lookahead_policy},
    {0},
};
const struct score_policy *score_find(const char *name) {
    for (const struct score_policy *p = score_policies; p->name; p++)
        if (!strcmp(p->name, name)) return p;
    return NULL;
}

/* --- Updates ---------------------------------------------------------------------------------- */

size_t score_bytes(int n_layers, int n_experts) {
    size_t all = (size_t)n_layers * (size_t)n_experts;
    return all * (2 * sizeof(double) + sizeof(uint32_t)) + (size_t)n_layers * sizeof(uint32_t) +
           2 * (size_t)n_experts * sizeof(float);
}
void score_open(struct score *s, const struct score_policy *policy, int n_layers, int n_experts, int topk, void *mem) {
    size_t all = (size_t)n_layers * (size_t)n_experts;
    *s = (struct score){.policy = policy, .n_layers = n_layers, .n_experts = n_experts, .topk = topk, .value = mem};
    s->base_value = s->value + all;
    s->announced_token = (uint32_t *)(s->base_value + all);
    s->n_batches = s->announced_token + all;
    s->load = (float *)(s->n_batches + n_layers);
    s->mass = s->load + n_experts;
}

void score_update(struct score *s, int layer, const struct score_rows *rows) {
    int p = 2 * s->topk;
    float part = 1 / (float)(rows->n ? rows->n : 1);
    memset(s->load, 0, 2 * (size_t)s->n_experts * sizeof *s->load);
    for (int i = 0; i < rows->n * s->topk; i++) {
        if (rows->ids[i] < 0) continue;
        s->load[rows->ids[i]]++;
        if (!rows->best) s->mass[rows->ids[i]] += part / (float)s->topk; /* unknown router scores count as equal */
    }
    for (int i = 0; i < rows->n * p && rows->best; i++)
        if (rows->best[i] >= 0) s->mass[rows->best[i]] += part * rows->best_score[i];
    s->n_layers_seen++;
    s->n_batches[layer]++;
    s->policy->update(s, layer);
}

void score_seed(struct score *s, int layer, const float *share) {
    double *v = layer_row(s, s->value, layer), *base = layer_row(s, s->base_value, layer);
    const double scale = s->policy->update == ema ? s->topk : 1; /* the mean of what updates add */
    for (int i = 0; i < s->n_experts; i++) v[i] = base[i] = scale * (double)share[i];
}

void score_announce(struct score *s, int layer, const int32_t *ids, int n, int ahead) {
    uint32_t *announced = s->announced_token + (size_t)layer * (size_t)s->n_experts,
             then = s->n_batches[layer] + (uint32_t)ahead;
    if (s->policy->update != lookahead_policy) return;
    for (int i = 0; i < n; i++) {
        if (ids[i] < 0) continue;
        if (!announced[ids[i]] || announced[ids[i]] > then) announced[ids[i]] = then;
        layer_row(s, s->value, layer)[ids[i]] =
            layer_row(s, s->base_value, layer)[ids[i]] + 1 + 1.0 / (announced[ids[i]] - s->n_batches[layer]);
    }
}

static float sigmoid_of(float x) { return 1 / (1 + expf(-x)); }
static float sqrt_softplus(float x) { return sqrtf(x > 20 ? x : log1pf(expf(x))); }
/* The number by which the router ranks an expert. Without a bias the sigmoid, which keeps the order, is left out. */
static float rank_of(int fn, const float *bias, float logit, int expert) {
    float c = logit;
    if (fn == SCORE_SQRT_SOFTPLUS) c = sqrt_softplus(c);
    else if (fn == SCORE_SIGMOID && bias) c = sigmoid_of(c);
    return bias ? c + bias[expert] : c;
}

void score_best(int fn, const float *bias, const float *logits, int n_experts, int p, int32_t *best,
                float *best_score) {
    int n = 0;
    const bool sigmoid = fn == SCORE_SIGMOID || fn == SCORE_SIGMOID_BY_LOGIT;
    /* insertion into a short sorted list; best_score holds the sort key announced the sum below */
    for (int i = 0; i < n_experts; i++) {
        const float c = rank_of(fn, bias, logits[i], i);
        if (n == p && !(c > best_score[n - 1])) continue;
        int k = n < p ? n++ : n - 1;
        for (; k && c > best_score[k - 1]; k--) best_score[k] = best_score[k - 1], best[k] = best[k - 1];
        best_score[k] = c, best[k] = i;
    }
    bool softmax = fn == SCORE_SOFTMAX || fn == SCORE_MIXER;
    float sum = 0, most = n ? logits[best[0]] : 0;
    for (int k = 0; k < n && softmax; k++) most = logits[best[k]] > most ? logits[best[k]] : most;
    for (int k = 0; k < n; k++) {
        float x = logits[best[k]];
        if (softmax) best_score[k] = expf(x - most);
        else best_score[k] = sigmoid ? sigmoid_of(x) : sqrt_softplus(x);
        sum += best_score[k];
    }
    for (int k = 0; k < n && sum > 0; k++) best_score[k] /= sum;
    for (int k = n; k < p; k++) best[k] = -1, best_score[k] = 0;
}

#include "engine/experts/predict.h"

#include <string.h>

/* Moving averages: skill 1/32 per layer that is judged, rate 1 / PREDICT_RATE_BATCHES per batch. MISS_BATCHES: batches
 * in which an evicted expert with a higher rate is missed before it is uploaded again, measured in test/bench/NOTES.md.
 * After UNUSED_MOST layers in a row whose predictions led to no upload, routers run ahead only every RETRY_BATCHES
 * batches. */
static const float SKILL_ALPHA = 1 / 32.f, RATE_ALPHA = 0.07f;
static const double MISS_BATCHES = 2;
enum { UNUSED_MOST = 64, RETRY_BATCHES = 32 };

size_t predict_bytes(int n_layers, int n_experts) {
    return (size_t)n_layers * (size_t)n_experts * sizeof(float) + (size_t)n_experts;
}
void predict_open(struct predict *p, int n_layers, int n_experts, void *mem) {
    *p = (struct predict){.n_layers = n_layers, .n_experts = n_experts, .rate = mem};
    p->mark = (uint8_t *)(p->rate + (size_t)n_layers * (size_t)n_experts);
}

bool predict_is_due(struct predict *p) { return p->n_batches++ % RETRY_BATCHES == 0 || p->n_unused < UNUSED_MOST; }
void predict_report(struct predict *p, bool led_to_upload) { p->n_unused = led_to_upload ? 0 : p->n_unused + 1; }

struct predict_accuracy predict_judge(struct predict *p, int distance, const int32_t *predicted, const int32_t *chosen,
                                      int n) {
    enum { CHOSEN = 1, PREDICTED = 2 };
    struct predict_accuracy found = {0};
    memset(p->mark, 0, (size_t)p->n_experts);
    for (int i = 0; i < n; i++)
        if (chosen[i] >= 0 && chosen[i] < p->n_experts) p->mark[chosen[i]] |= CHOSEN;
    for (int i = 0; i < n; i++) {
        if (predicted[i] < 0 || predicted[i] >= p->n_experts || p->mark[predicted[i]] & PREDICTED) continue;
        p->mark[predicted[i]] |= PREDICTED;
        found.predicted++, found.selected += p->mark[predicted[i]] & CHOSEN;
    }
    if (!found.predicted) return found;
    float *skill = &p->skill[distance - 1], now = (float)found.selected / (float)found.predicted;
    *skill += (p->has_skill[distance - 1] ? SKILL_ALPHA : 1) * (now - *skill);
    p->has_skill[distance - 1] = true;
    return found;
}

void predict_update_rates(struct predict *p, int layer, const int32_t *rows) {
    float *rate = p->rate + (size_t)layer * (size_t)p->n_experts;
    for (int i = 0; i < p->n_experts; i++) rate[i] += RATE_ALPHA * ((float)(rows[i] > 0) - rate[i]);
}

struct predict_out predict_upload(const struct predict *p, const struct predict_in *a, struct split_plan *plan) {
    struct split_in in = {.domain = a->domain, .expert = a->expert, .n_domains = 2, .n = a->n};
    struct predict_out out = {.expert = -1};
    /* uploads cost the same, so the expert with most rows saves most; ties go to the higher rate */
    for (int i = 0; i < a->n; i++) {
        if (a->expert[i].resident & 2) continue;
        int best = out.expert;
        bool more = best < 0 || a->expert[i].rows > a->expert[best].rows;
        if (more || (a->expert[i].rows == a->expert[best].rows &&
                     predict_rate(p, a->layer, a->id[i]) > predict_rate(p, a->layer, a->id[best])))
            out.expert = i;
    }
    if (out.expert < 0) return out;
    split_run(a->split, &in, plan);
    double without = plan->end_s;
    a->expert[out.expert].resident |= 2;
    split_run(a->split, &in, plan);
    a->expert[out.expert].resident &= ~2u;
    double with = plan->end_s, gain = without - with,
           computed_s = a->arrival_s + cost_table_at(a->domain[1].expert_cost, a->expert[out.expert].rows);
    if (computed_s > with) with = computed_s; /* it arrives late */
    out.saved_s = without > with ? without - with : 0;
    double mine = predict_rate(p, a->layer, a->id[out.expert]),
           others = a->victim < 0 ? 0 : predict_rate(p, a->layer, a->victim);
    double lost = others + (others > mine ? MISS_BATCHES * (others - mine) : 0);
    out.worth_s = (double)p->skill[a->distance - 1] * out.saved_s - lost * (gain > 0 ? gain : 0);
    return out;
}

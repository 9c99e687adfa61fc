/* The router. Its choice must not depend on the CPU level, so there is only this version: a few hundred experts per
 * token take microseconds. */
#include <math.h>
#include <string.h>

#include "cpu/cpu_exec.h"

enum { TOKENS_PER_TASK = 8 };

struct job {
    const struct op_route *o;
    uint8_t *space; /* scratch per task: scores, choices [n_experts], group scores [n_group], marks [max of both] */
    size_t part;
};

/* The best unmarked entry, ties to the lower index; NaN ranks as -inf, so there is always one. */
static int best_of(const float *v, const uint8_t *taken, int n) {
    int best = -1;
    float top = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (taken[i]) continue;
        if (best < 0) best = i;
        if (v[i] > top) top = v[i], best = i;
    }
    return best;
}

static void scores_of(const struct op_route *o, const float *logits, float *score) {
    int n = o->n_experts + o->n_idle;
    if (o->score == SCORE_SIGMOID || o->score == SCORE_SIGMOID_BY_LOGIT) {
        for (int i = 0; i < n; i++) score[i] = 1 / (1 + expf(-logits[i]));
        return;
    }
    if (o->score == SCORE_SQRT_SOFTPLUS) {
        for (int i = 0; i < n; i++) score[i] = sqrtf(logits[i] > 20 ? logits[i] : log1pf(expf(logits[i])));
        return;
    }
    float max = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) max = logits[i] > max ? logits[i] : max;
    for (int i = 0; i < n; i++) sum += score[i] = expf(logits[i] - max);
    for (int i = 0; i < n; i++) score[i] /= sum;
}

/* Keeps only the topk_group best groups: the choices of the others become -inf. */
static void keep_groups(const struct op_route *o, float *choice, float *group, uint8_t *mark) {
    int size = o->n_experts / o->n_group;
    for (int g = 0; g < o->n_group; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (int i = g * size; i < (g + 1) * size; i++) {
            if (choice[i] > first) second = first, first = choice[i];
            else if (choice[i] > second) second = choice[i];
        }
        group[g] = o->group_top2 && size > 1 ? first + second : first;
        mark[g] = 0;
    }
    for (int k = 0; k < o->topk_group && k < o->n_group; k++) mark[best_of(group, mark, o->n_group)] = 1;
    for (int g = 0; g < o->n_group; g++)
        for (int i = g * size; i < (g + 1) * size && !mark[g]; i++) choice[i] = o->group_zero ? 0 : -INFINITY;
}

/* Keeps only the best topk / n_group experts of each group. */
static void keep_best(const struct op_route *o, float *choice, uint8_t *mark) {
    const int size = o->n_experts / o->n_group, each = o->topk / o->n_group;
    memset(mark, 0, (size_t)o->n_experts);
    for (int first = 0; first < o->n_experts; first += size)
        for (int k = 0; k < each; k++) mark[first + best_of(choice + first, mark + first, size)] = 1;
    for (int i = 0; i < o->n_experts; i++)
        if (!mark[i]) choice[i] = -INFINITY;
}

/* Weight of the best unmarked logit: its softmax share among the unmarked logits within the jitter threshold. */
static float mixer_weight(const struct op_route *o, const float *logits, const uint8_t *mark, int best) {
    float top = logits[best], sum = 0;
    for (int i = 0; i < o->n_experts; i++) {
        float size = fabsf(logits[i]) > top ? fabsf(logits[i]) : top;
        if (!mark[i] && !((top - logits[i]) / size > 2 * o->jitter)) sum += expf(logits[i] - top);
    }
    return 1 / sum;
}

/* Sums the weights of a token's idle experts and replaces these by others, with weight 0. */
static void replace_idle(const struct op_route *o, int t, const float *choice, uint8_t *mark) {
    int32_t *ids = o->ids + (size_t)t * (size_t)o->topk;
    float *weights = o->weights + (size_t)t * (size_t)o->topk;
    o->idle[t] = 0;
    for (int k = 0; k < o->topk; k++) {
        if (ids[k] < o->n_experts) continue;
        o->idle[t] += weights[k];
        ids[k] = best_of(choice, mark, o->n_experts), weights[k] = 0;
        mark[ids[k]] = 1;
    }
}

static void route_token(const struct op_route *o, int t, uint8_t *space) {
    int n = o->n_experts + o->n_idle, n_group = o->n_group > 1 ? o->n_group : 0;
    float *score = (float *)space, *choice = score + n, *group = choice + n;
    uint8_t *mark = (uint8_t *)(group + n_group);
    const float *logits = o->logits + (size_t)t * (size_t)n;
    const bool mixer = o->score == SCORE_MIXER, by_logit = mixer || o->score == SCORE_SIGMOID_BY_LOGIT;
    if (!mixer) scores_of(o, logits, score);
    for (int i = 0; i < n; i++) choice[i] = (by_logit ? logits : score)[i] + (o->bias ? o->bias[i] : 0);
    if (n_group && o->group_each) keep_best(o, choice, mark);
    else if (n_group) keep_groups(o, choice, group, mark);
    int32_t *ids = o->ids + (size_t)t * (size_t)o->topk;
    float *weights = o->weights + (size_t)t * (size_t)o->topk, sum = 0;
    memset(mark, 0, (size_t)n);
    const int32_t *table = o->table ? o->table + (size_t)o->tokens[t] * (size_t)o->topk : NULL;
    for (int k = 0; k < o->topk; k++) {
        const int left = o->topk - k; /* the last ones are those that are always chosen */
        int i = table ? table[k] : left <= o->n_always ? n - left : best_of(choice, mark, n - o->n_always);
        sum += weights[k] = mixer ? mixer_weight(o, logits, mark, i) : score[i];
        mark[i] = 1;
        ids[k] = i;
    }
    for (int k = 0; k < o->topk; k++) weights[k] = (o->norm ? weights[k] / (sum + 1e-20f) : weights[k]) * o->scale;
    for (int k = 0; o->expert_scale && k < o->topk; k++) weights[k] *= o->expert_scale[ids[k]];
    if (o->n_idle) replace_idle(o, t, choice, mark);
}

static void route_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    int end = (task + 1) * TOKENS_PER_TASK < j->o->n ? (task + 1) * TOKENS_PER_TASK : j->o->n;
    for (int t = task * TOKENS_PER_TASK; t < end; t++) route_token(j->o, t, j->space + (size_t)thread * j->part);
}

int cpu_route(struct exec *base, const struct op_route *o) {
    struct cpu_exec *x = (struct cpu_exec *)base;
    const int all = o->n_experts + o->n_idle;
    if (o->topk > o->n_experts ||
        (o->n_group > 1 && (o->n_experts % o->n_group || (o->group_each && o->topk % o->n_group))))
        return ERR_RUNTIME;
    struct job j = {.o = o};
    int n_group = o->n_group > 1 ? o->n_group : 0;
    j.part = ((size_t)(2 * all + n_group) * 4 + (size_t)(all + n_group) + 63) / 64 * 64;
    j.space = cpu_exec_workspace(x, j.part * (size_t)pool_threads(x->pool));
    if (!j.space) return ERR_MEMORY;
    return cpu_exec_for_each(x, (o->n + TOKENS_PER_TASK - 1) / TOKENS_PER_TASK, route_task, &j);
}

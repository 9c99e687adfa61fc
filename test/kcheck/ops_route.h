#pragma once
/* Cases of kcheck_ops.c: routers, by sorting in double precision. */
#include "test/kcheck/levels.h"

/* The router as specified by ops.h, by sorting. */
static void check_route(int n, int experts, int topk, int n_group, int topk_group, enum score_fn fn, bool top2,
                        bool norm, bool ties) {
    begin_case("route, %d rows, %d of %d experts, %d of %d groups, score %d%s%s%s", n, topk, experts, topk_group,
               n_group, fn, top2 ? ", two best of a group" : "", norm ? ", normalised" : "", ties ? ", ties" : "");
    const bool sigmoid = fn != SCORE_SOFTMAX;
    float *logits = vec((size_t)(n * experts)), *bias = vec((size_t)experts), *w = vec((size_t)(n * topk)),
          *was = aligned((size_t)(n * topk) * 4);
    for (int i = 0; i < n * experts && ties; i++) logits[i] = (float)(int)(logits[i] * 2);
    const bool zero = n_group > 1 && n % 2 && !ties; /* below 0, so that experts of other groups are chosen too */
    for (int i = 0; i < experts; i++) bias[i] = ties ? 0 : bias[i] * 0.1f - (zero ? 0.7f : 0);
    float *factor = n % 2 ? vec((size_t)experts) : NULL; /* of each expert */
    const int always = n_group <= 1 && n % 2 ? 2 : 0;
    int32_t *ids = guarded((size_t)(n * topk) * 4);
    struct op_route o = {.ids = ids,
                         .weights = w,
                         .logits = logits,
                         .bias = bias,
                         .expert_scale = factor,
                         .n_always = always,
                         .n = n,
                         .n_experts = experts,
                         .topk = topk,
                         .n_group = n_group,
                         .topk_group = topk_group,
                         .score = fn,
                         .group_top2 = top2,
                         .group_zero = zero,
                         .norm = norm,
                         .scale = 2.5f};
    EACH_THREADS("route", w, n * topk, was, on->ops->route(on, &o));
    for (int t = 0; t < n; t++) {
        double score[64], sum = 0, total = 0;
        float choice[64]; /* float32, so that ties are the same ties */
        bool used[64] = {0};
        for (int i = 0; i < experts; i++)
            score[i] = sigmoid ? 1 / (1 + exp(-(double)logits[t * experts + i])) : exp(logits[t * experts + i]),
            sum += score[i];
        for (int i = 0; i < experts; i++)
            score[i] = sigmoid ? score[i] : score[i] / sum,
            choice[i] = (fn == SCORE_SIGMOID_BY_LOGIT ? logits[t * experts + i] : (float)score[i]) + bias[i];
        if (n_group > 1) {
            int size = experts / n_group;
            double best[16];
            bool keep[16] = {0};
            for (int g = 0; g < n_group; g++) {
                double a = -1e30, b = -1e30;
                for (int i = g * size; i < (g + 1) * size; i++) {
                    if (choice[i] > a) b = a, a = choice[i];
                    else if (choice[i] > b) b = choice[i];
                }
                best[g] = top2 ? a + b : a;
            }
            for (int j = 0; j < topk_group; j++) {
                int at = -1;
                for (int g = 0; g < n_group; g++)
                    if (!keep[g] && (at < 0 || best[g] > best[at] + (ties ? 1e-6 : 0))) at = g;
                keep[at] = true;
            }
            for (int i = 0; i < experts; i++)
                if (!keep[i / size]) choice[i] = zero ? 0 : -INFINITY;
        }
        for (int j = 0; j < topk; j++) {
            int at = -1;
            for (int i = 0; i < experts - always; i++)
                if (!used[i] && (at < 0 || choice[i] > choice[at] + (ties ? 1e-6f : 0))) at = i;
            if (topk - j <= always) at = experts - topk + j;
            used[at] = true;
            if (ids[t * topk + j] != at) mismatch("expert", t, j, ids[t * topk + j], at, 0);
            total += score[at];
        }
        for (int j = 0; j < topk; j++) {
            double want =
                score[ids[t * topk + j]] / (norm ? total : 1) * 2.5 * (factor ? factor[ids[t * topk + j]] : 1);
            near("weight", t, j, w[t * topk + j], want, 2e-6 * fabs(want) + 1e-12);
        }
    }
    free(was);
    drop();
}

/* As many experts of each group, in the order of all scores. */
static void check_each_group(int n, int experts, int topk, int groups) {
    begin_case("route, %d rows, %d of %d experts, the best of each of %d groups", n, topk, experts, groups);
    float *logits = vec((size_t)(n * experts)), *w = vec((size_t)(n * topk)), *was = aligned((size_t)(n * topk) * 4);
    int32_t *ids = guarded((size_t)(n * topk) * 4);
    struct op_route o = {.ids = ids,
                         .weights = w,
                         .logits = logits,
                         .n = n,
                         .n_experts = experts,
                         .topk = topk,
                         .n_group = groups,
                         .topk_group = groups,
                         .group_each = true,
                         .norm = true,
                         .scale = 1};
    EACH_THREADS("route of each group", w, n * topk, was, on->ops->route(on, &o));
    const int size = experts / groups;
    for (int t = 0; t < n; t++) {
        const float *x = logits + t * experts;
        bool used[64] = {0};
        double sum = 0;
        for (int k = 0; k < topk; k++) sum += exp(x[ids[t * topk + k]]);
        for (int k = 0; k < topk; k++) {
            const int id = ids[t * topk + k];
            int better = 0;
            for (int i = id / size * size; i < (id / size + 1) * size; i++) better += x[i] > x[id];
            if (better >= topk / groups || used[id])
                wrong("choice %d of row %d, expert %d, comes twice or after %d better ones of its group", k, t, id,
                      better);
            if (k && x[ids[t * topk + k - 1]] < x[id])
                wrong("choice %d of row %d has a larger score than the one before", k, t);
            near("weight of a group's expert", t, k, w[t * topk + k], exp(x[id]) / sum, 2e-6);
            used[id] = true;
        }
    }
    free(was);
    drop();
}

/* Phi-3.5-MoE's mixer as in its reference: thresholds over all logits; the first expert is excluded from the second's
 * softmax. */
static void check_mixer(int n, int experts, float jitter) {
    begin_case("route by mixer, %d rows, %d experts, jitter %g", n, experts, (double)jitter);
    float *logits = vec((size_t)(n * experts)), *w = vec((size_t)n * 2), *was = aligned((size_t)n * 8);
    int32_t *ids = guarded((size_t)n * 8);
    struct op_route o = {.ids = ids,
                         .weights = w,
                         .logits = logits,
                         .n = n,
                         .n_experts = experts,
                         .topk = 2,
                         .n_group = 1,
                         .topk_group = 1,
                         .score = SCORE_MIXER,
                         .scale = 1,
                         .jitter = jitter};
    EACH_THREADS("mixer", w, n * 2, was, on->ops->route(on, &o));
    for (int t = 0; t < n; t++) {
        const float *x = logits + t * experts;
        int first = -1;
        for (int k = 0; k < 2; k++) {
            int best = -1;
            double sum = 0;
            for (int i = 0; i < experts; i++)
                if (i != first && (best < 0 || x[i] > x[best])) best = i;
            for (int i = 0; i < experts; i++) {
                double behind = ((double)x[best] - x[i]) / fmax(fabs(x[i]), x[best]);
                if (i != first && !(behind > 2 * (double)jitter)) sum += exp((double)x[i] - x[best]);
            }
            if (ids[2 * t + k] != best) mismatch("expert", t, k, ids[2 * t + k], best, 0);
            near("weight", t, k, w[2 * t + k], 1 / sum, 1e-5);
            first = best;
        }
    }
    free(was);
    drop();
}

/* Idle experts against a router without them: their weights are summed, and others take their places with weight 0. */
static void check_idle(int n, int experts, int idle, int topk) {
    begin_case("route, %d rows, %d of %d experts and %d idle ones", n, topk, experts, idle);
    const int all = experts + idle;
    float *logits = vec((size_t)(n * all)), *w = vec((size_t)(n * topk)), *plain = vec((size_t)(n * topk)),
          *sum = vec((size_t)n);
    float *was = aligned((size_t)(n * topk) * 4);
    int32_t *ids = guarded((size_t)(n * topk) * 4), *known = guarded((size_t)(n * topk) * 4);
    struct op_route o = {
        .ids = known, .weights = plain, .logits = logits, .n = n, .n_experts = all, .topk = topk, .scale = 6};
    execs[2]->ops->route(execs[2], &o);
    o.ids = ids, o.weights = w, o.n_experts = experts, o.n_idle = idle, o.idle = sum;
    EACH_THREADS("idle experts", w, n * topk, was, on->ops->route(on, &o));
    for (int t = 0; t < n; t++) {
        bool used[64] = {0};
        double want = 0;
        for (int k = 0; k < topk; k++)
            if (known[t * topk + k] < experts) used[known[t * topk + k]] = true;
        for (int k = 0; k < topk; k++) {
            const int id = ids[t * topk + k], was_id = known[t * topk + k];
            if (was_id < experts && (id != was_id || w[t * topk + k] != plain[t * topk + k]))
                wrong("choice %d of row %d is expert %d or has another weight than without idle ones: expert %d", k, t,
                      id, was_id);
            if (was_id < experts) continue;
            want += plain[t * topk + k];
            if (id < 0 || id >= experts || used[id] || w[t * topk + k] != 0)
                wrong("choice %d of row %d, an idle expert's place, has expert %d with weight %.9g", k, t, id,
                      (double)w[t * topk + k]);
            else used[id] = true;
        }
        near("sum of idle weights", t, 0, sum[t], want, 1e-6);
    }
    free(was);
    drop();
}

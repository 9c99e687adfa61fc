#include "engine/experts/lookahead.h"

size_t lookahead_bytes(int n_layers, int topk) {
    return (size_t)LOOKAHEAD_TOKENS * (size_t)n_layers * (size_t)topk * (sizeof(int32_t) + sizeof(float));
}

void lookahead_open(struct lookahead *a, int n_layers, int topk, void *mem) {
    *a = (struct lookahead){.n_layers = n_layers, .topk = topk, .ids = mem};
    a->confidence = (float *)(a->ids + (size_t)LOOKAHEAD_TOKENS * (size_t)n_layers * (size_t)topk);
}

static size_t entry_index(const struct lookahead *a, int token, int layer) {
    return ((size_t)token * (size_t)a->n_layers + (size_t)layer) * (size_t)a->topk;
}

int lookahead_add_token(struct lookahead *a, int ahead) {
    if (a->n == LOOKAHEAD_TOKENS) return -1;
    for (size_t i = entry_index(a, a->n, 0), end = entry_index(a, a->n + 1, 0); i < end; i++) a->ids[i] = -1;
    a->distance[a->n] = ahead;
    return a->n++;
}

void lookahead_record(struct lookahead *a, int token, int layer, const int32_t *ids, const float *weights) {
    const size_t at = entry_index(a, token, layer);
    for (int i = 0; i < a->topk; i++) a->ids[at + (size_t)i] = ids[i], a->confidence[at + (size_t)i] = weights[i];
}

int lookahead_needs(const struct lookahead *a, int layer, struct lookahead_need *out, int most) {
    int n = 0;
    for (int t = 0; t < a->n; t++)
        for (int i = 0; i < a->topk; i++) {
            const size_t at = entry_index(a, t, layer) + (size_t)i;
            struct lookahead_need w = {a->ids[at], a->distance[t], a->confidence[at]};
            int k = 0;
            if (w.expert < 0) continue;
            while (k < n && out[k].expert != w.expert) k++;
            if (k < n) {
                w.distance = out[k].distance < w.distance ? out[k].distance : w.distance;
                w.confidence = out[k].confidence > w.confidence ? out[k].confidence : w.confidence;
            } else if (n == most) continue;
            else n++;
            for (; k && (w.distance < out[k - 1].distance ||
                         (w.distance == out[k - 1].distance && w.confidence > out[k - 1].confidence));
                 k--)
                out[k] = out[k - 1];
            out[k] = w;
        }
    return n;
}

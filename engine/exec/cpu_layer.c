#include "engine/exec/cpu_layer.h"

#include <string.h>

#include "engine/model/rope.h"

/* Counts the weights a batch reads: dense ones once, each selected expert once. */
static void count_read_bytes(struct runtime *m, const struct work *w, int n) {
    const struct config *c = &m->w->config;
    memset(m->expert_touched, 0, (size_t)c->n_experts);
    uint64_t used = 0;
    for (int i = 0; i < n * c->topk; i++) {
        int id = w->ids[i];
        if (id < 0) continue;
        used += !m->expert_touched[id];
        m->expert_touched[id] = 1;
    }
    cpu_count_read(m, used * m->expert_bytes);
}
void cpu_count_read(struct runtime *m, uint64_t bytes) { atomic_fetch_add(&m->bytes_read, bytes); }

void cpu_settle(struct runtime *m, struct gpu_timeline **timelines, int n) {
    for (int i = 0; i < n; i++)
        if (timelines[i]) gpu_timeline_abort(timelines[i]);
    if (m->cpu_queue) gpu_stream_sync(m->cpu_queue);
}

/* Weights that do not fit in memory: requests the selected experts, and, while these compute, the next layer's likely
 * ones. The next router is tried on the current residual stream, which these experts change little. A large batch uses
 * every expert and needs no prediction. */
static void prefetch_experts(struct runtime *m, struct work *w, int layer, int n) {
    const struct config *c = &m->w->config;
    w->late_experts = disk_prefetch_selected(m->disk_prefetch, layer, w->ids, n * c->topk);
    disk_prefetch_score(m->disk_prefetch, layer, w->ids, w->router, n);
    const struct layer *next = layer + 1 < c->n_layers ? &m->w->layers[layer + 1] : NULL;
    if (!next || !next->experts || !disk_prefetch_is_useful(m->disk_prefetch) || !block_predicts_route(c, layer + 1))
        return;
    if (n <= m->lookahead_work->rows) {
        const struct work *predicted = m->lookahead_work;
        *predicted->first_bad = -1;
        if (!block_predict_route(m->cpu, c, next, layer + 1, predicted, w->x, n))
            disk_prefetch_likely(m->disk_prefetch, layer + 1, predicted->ids, n * c->topk);
    } else if (n * c->topk >= 2 * c->n_experts) disk_prefetch_likely(m->disk_prefetch, layer + 1, NULL, c->n_experts);
}

int cpu_begin_batch(struct runtime *m, struct work *w, const struct text_rows *texts, int n_texts, int n, int total,
                    const _Atomic int *cancel, struct error *e) {
    const struct config *c = &m->w->config;
    m->cpu->cancel = cancel;
    *w->first_bad = -1;
    if (!m->cpu_queue) memcpy(w->inv_freq, m->w->inv_freq, (size_t)rope_floats(c) * sizeof(float));
    int rc = block_embed(m->cpu, m->w, w->x, w->tokens, n);
    if (!rc) rc = block_embed_ngrams(m->cpu, m->w, w, w->x, texts, n_texts);
    if (!rc) rc = block_rope(m->cpu, m->w, w, n, total);
    return rc ? exec_op_error(rc, e) : 0;
}

int cpu_attention_block(struct runtime *m, struct work *w, const struct span *spans, int n_spans, int layer, int n,
                        const _Atomic int *cancel, struct error *e) {
    const struct config *c = &m->w->config;
    const struct layer *y = numa_copy_layer(m->numa_copy, m->w, layer);
    int rc = cancel && atomic_load(cancel) ? ERR_CANCELLED : 0;
    m->cpu->cancel = cancel;
    if (!rc && !m->cpu_queue && nan_scan_dense(&m->scan, layer, e)) return e->code;
    if (!rc) rc = block_attention(m->cpu, c, y, layer, w, spans, n_spans, n);
    if (!rc) rc = block_route(m->cpu, c, y, layer, w, n);
    return rc ? exec_op_error(rc, e) : 0;
}

int cpu_prepare_experts(struct runtime *m, struct work *w, int layer, int n, struct error *e) {
    if (m->cpu_queue) return 0;
    if (m->disk_prefetch) prefetch_experts(m, w, layer, n);
    int rc = nan_scan_experts(&m->scan, layer, w->ids, n * m->w->config.topk, e);
    if (!rc) count_read_bytes(m, w, n);
    return rc;
}

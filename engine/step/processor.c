#include "engine/step/processor.h"

#include <string.h>

#include "engine/model/rope.h"

/* Counts the weights a batch reads: dense ones once, each selected expert once. */
static void count_bytes(struct machine *m, const struct work *w, int n) {
    const struct config *c = &m->w->config;
    memset(m->touched, 0, (size_t)c->n_experts);
    uint64_t used = 0;
    for (int i = 0; i < n * c->topk; i++) {
        int id = w->ids[i];
        if (id < 0) continue;
        used += !m->touched[id];
        m->touched[id] = 1;
    }
    processor_read(m, used * m->expert_bytes);
}
void processor_read(struct machine *m, uint64_t bytes) { atomic_fetch_add(&m->bytes_read, bytes); }

void processor_settle(struct machine *m, struct gpu_number **numbers, int n) {
    for (int i = 0; i < n; i++)
        if (numbers[i]) gpu_number_break(numbers[i]);
    if (m->processor) gpu_stream_sync(m->processor);
}

/* Weights that do not fit in memory: requests the selected experts, and, while these compute, the next layer's likely ones. The next
 * router is tried on the current residual stream, which these experts change little. A large batch uses every expert and needs no
 * prediction. */
static void read_ahead(struct machine *m, struct work *w, int i, int n) {
    const struct config *c = &m->w->config;
    w->late = fetch_chosen(m->fetch, i, w->ids, n * c->topk);
    fetch_seen(m->fetch, i, w->ids, w->router, n);
    const struct layer *next = i + 1 < c->n_layers ? &m->w->layers[i + 1] : NULL;
    if (!next || !next->experts || !fetch_wants(m->fetch) || c->streams.n) return; /* several residual streams: the next layer's mix is not known yet */
    if (n <= m->guess->rows) {
        struct work guess = *m->guess;
        guess.x = w->x;
        *guess.bad = -1;
        if (!block_route(m->cpu, c, next, i + 1, &guess, n)) fetch_likely(m->fetch, i + 1, guess.ids, n * c->topk);
    } else if (n * c->topk >= 2 * c->n_experts) fetch_likely(m->fetch, i + 1, NULL, c->n_experts);
}

int processor_begin(struct machine *m, struct work *w, int n, int total, const _Atomic int *cancel, struct error *e) {
    const struct config *c = &m->w->config;
    m->cpu->cancel = cancel;
    *w->bad = -1;
    if (!m->processor) memcpy(w->inv_freq, m->w->inv_freq, (size_t)rope_floats(c) * sizeof(float));
    int rc = block_embed(m->cpu, m->w, w, n);
    if (!rc) rc = block_rope(m->cpu, c, w, m->w->rope_mscale, n, total);
    return rc ? op_error(rc, e) : 0;
}

int processor_half(struct machine *m, struct work *w, const struct span *spans, int n_spans, int layer, int n, const _Atomic int *cancel, struct error *e) {
    const struct config *c = &m->w->config;
    const struct layer *y = place_layer(m->place, m->w, layer);
    int rc = cancel && atomic_load(cancel) ? ERR_CANCELLED : 0;
    m->cpu->cancel = cancel;
    if (!rc && !m->processor && scan_dense(&m->scan, layer, e)) return e->code;
    if (!rc) rc = block_attention(m->cpu, c, y, layer, w, spans, n_spans, n);
    if (!rc) rc = block_route(m->cpu, c, y, layer, w, n);
    return rc ? op_error(rc, e) : 0;
}

int processor_weights(struct machine *m, struct work *w, int layer, int n, struct error *e) {
    if (m->processor) return 0;
    if (m->fetch) read_ahead(m, w, layer, n);
    int rc = scan_experts(&m->scan, layer, w->ids, n * m->w->config.topk, e);
    if (!rc) count_bytes(m, w, n);
    return rc;
}

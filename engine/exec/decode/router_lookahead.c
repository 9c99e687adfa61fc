#include "engine/exec/decode/router_lookahead.h"

#include <string.h>

#include "engine/layer/work_open.h"

static bool is_predicted(const struct router_lookahead *g, int layer) {
    const struct decode *s = g->d->s;
    return layer < g->d->last && block_predicts_route(s->c, layer) && !s->m->w->layers[layer].router_table;
}
static size_t max_pairs(const struct router_lookahead *g) { return (size_t)DECODE_MAX_ROWS * (size_t)g->d->s->c->topk; }
static int32_t *predicted_at(const struct router_lookahead *g, int micro, int layer, int distance) {
    return g->predicted_ids +
           ((size_t)(micro * ROUTER_LOOKAHEAD_LAYERS + layer % ROUTER_LOOKAHEAD_LAYERS) * PREDICT_LAYERS +
            (size_t)(distance - 1)) *
               max_pairs(g);
}
static void drop_predictions(struct router_lookahead *g) {
    memset(g->predictions, 0, sizeof g->predictions);
    memset(g->saved_busy, 0, sizeof g->saved_busy);
    for (int i = 0; i < 2 * DECODE_MICRO_BATCHES; i++) g->saved_layer[i / 2][i % 2] = -1;
    g->n_done = 0;
}

int router_lookahead_open_stream(struct router_lookahead *g, const _Atomic int *stop, struct error *e) {
    if (!g->d) return 0;
    drop_predictions(g);
    int rc = gpu_stream_open(g->d->g, &g->stream, "router look-ahead", false, stop, e);
    return rc ? rc : gpu_timeline_open(g->d->g, &g->done, e);
}
void router_lookahead_abort(struct router_lookahead *g) {
    if (g->done) gpu_timeline_abort(g->done);
}
void router_lookahead_close_stream(struct router_lookahead *g) {
    if (g->stream) gpu_stream_sync(g->stream);
    gpu_stream_close(&g->stream);
    gpu_timeline_close(&g->done);
}

int router_lookahead_open(struct router_lookahead *g, struct decode_device *d, const _Atomic int *stop,
                          struct error *e) {
    const struct config *c = d->s->c;
    const size_t row = DECODE_MAX_ROWS * (size_t)c->hidden * 4, pairs = DECODE_MAX_ROWS * (size_t)c->topk * 4;
    bool any = false;
    *g = (struct router_lookahead){0};
    for (int l = d->first; l < d->last; l++) any |= block_predicts_route(c, l);
    if (!any) return 0;
    g->d = d;
    int rc = work_open_device(&g->work, c, DECODE_MAX_ROWS, d->g, NULL, e);
    for (int i = 0; i < 2 * DECODE_MICRO_BATCHES && !rc; i++)
        rc = gpu_alloc(d->g, (void **)&g->saved[i / 2][i % 2], row, e);
    if (!rc)
        rc = gpu_host_alloc(d->g, (void **)&g->predicted_ids,
                            DECODE_MICRO_BATCHES * ROUTER_LOOKAHEAD_LAYERS * PREDICT_LAYERS * pairs, e);
    if (rc) return rc;
    return router_lookahead_open_stream(g, stop, e);
}
void router_lookahead_close(struct router_lookahead *g) {
    if (!g->d) return;
    router_lookahead_close_stream(g);
    for (int i = 0; i < 2 * DECODE_MICRO_BATCHES; i++) gpu_free(g->d->g, g->saved[i / 2][i % 2]);
    work_close(&g->work);
    gpu_host_free(g->d->g, g->predicted_ids);
    *g = (struct router_lookahead){0};
}

void router_lookahead_begin_batch(struct router_lookahead *g, bool pays) {
    g->is_active = g->d && pays && predict_is_due(&g->d->predict);
}

int router_lookahead_save_rows(struct router_lookahead *g, int micro, int layer, const float *x, int n) {
    int side = layer % 2;
    bool use = false;
    for (int k = 1; k <= PREDICT_LAYERS && g->is_active; k++) use |= is_predicted(g, layer + k);
    if (!use || !gpu_timeline_reached(g->done, g->saved_busy[micro][side])) return 0;
    g->saved_layer[micro][side] = layer;
    return gpu_copy(g->d->main, g->saved[micro][side], x, (size_t)n * (size_t)g->d->s->c->hidden * 4, GPU_D2D);
}

int router_lookahead_run(struct router_lookahead *g, int micro, int layer, struct gpu_event *ready, int n) {
    const struct config *c = g->d ? g->d->s->c : NULL;
    int side = layer % 2;
    if (!g->is_active || layer >= g->d->last || g->saved_layer[micro][side] != layer) return 0;
    g->saved_layer[micro][side] = -1;
    g->saved_busy[micro][side] = ++g->n_done;
    TRY(gpu_event_wait(ready, g->stream));
    for (int k = 1; k <= PREDICT_LAYERS; k++) {
        if (!is_predicted(g, layer + k)) continue;
        TRY(block_predict_route(gpu_stream_exec(g->stream), c, &g->d->layers[layer + k].view, layer + k, &g->work,
                                g->saved[micro][side], n));
        TRY(gpu_copy(g->stream, predicted_at(g, micro, layer + k, k), g->work.ids, (size_t)n * (size_t)c->topk * 4,
                     GPU_D2H));
        g->predictions[micro][(layer + k) % ROUTER_LOOKAHEAD_LAYERS][k - 1] =
            (struct router_prediction){g->n_done, layer + k, n};
    }
    return gpu_timeline_signal(g->done, g->n_done, g->stream);
}

const int32_t *router_lookahead_get(const struct router_lookahead *g, int micro, int layer, int distance, int n) {
    const struct router_prediction *m = &g->predictions[micro][layer % ROUTER_LOOKAHEAD_LAYERS][distance - 1];
    return g->d && m->layer == layer && m->n == n && gpu_timeline_reached(g->done, m->done)
               ? predicted_at(g, micro, layer, distance)
               : NULL;
}

void router_lookahead_judge(struct router_lookahead *g, int micro, int layer, const int32_t *ids, int n) {
    for (int k = 1; k <= PREDICT_LAYERS && g->d; k++) {
        const int32_t *predicted = router_lookahead_get(g, micro, layer, k, n);
        struct predict_accuracy a = predicted ? predict_judge(&g->d->predict, k, predicted, ids, n * g->d->s->c->topk)
                                              : (struct predict_accuracy){0};
        g->d->s->counts.predicted[k - 1] += (uint64_t)a.predicted,
            g->d->s->counts.predicted_right[k - 1] += (uint64_t)a.selected;
        g->predictions[micro][layer % ROUTER_LOOKAHEAD_LAYERS][k - 1].n = 0;
    }
}

#include "engine/exec/decode/decode_weights.h"

#include "engine/exec/cpu_layer.h"
#include "engine/exec/decode/decode_device.h"
#include "engine/exec/decode/decode_experts.h"
#include "engine/exec/decode/decode_graph.h"
#include "engine/exec/decode/draft_experts.h"
#include "engine/exec/decode/expert_pool.h"
#include "engine/exec/decode/pinned_experts.h"
#include "engine/model/rope.h"
#include "engine/transfer/stage.h"

/* Allocates device memory for n ranges, starts their uploads and points the view's fields to it. */
static int load_ranges(struct decode_device *d, struct stage *stage, struct ledger_entry *mem,
                       struct copy_range *ranges, int n, struct error *e) {
    const int rc = ledger_alloc(d->ledger, LEDGER_LAYERS, copy_ranges_bytes(ranges, n), mem, e);
    return rc ? rc : stage_send_ranges(stage, ranges, n, mem->at, (struct stage_unit){0});
}

int decode_weights_layer_ranges(const struct weights *w, const struct config *c, const struct tp_shard *shard,
                                int layer, struct layer *view, struct copy_range *out) {
    if (shard) return tp_shard_ranges(c, shard, w, layer, view, out);
    *view = (struct layer){0};
    return copy_ranges_list(c, layer, MODULE_LAYER, &w->layers[layer], view, out);
}

int decode_weights_end_ranges(const struct weights *w, enum module which, struct weights *view,
                              struct copy_range *out) {
    return copy_ranges_list(&w->config, 0, which, w, view, out);
}

/* Uploads everything assigned to the device. */
static int load_device(struct decode_device *d, struct error *e) {
    const struct weights *w = d->s->m->w;
    const struct gpu_set *set = d->s->m->gpus;
    struct copy_range ranges[COPY_RANGES_MAX];
    struct stage *stage;
    /* gathering column shards needs threads */
    const int threads = d->shard_config && !set->spec.is_virtual ? pin_stage_threads() : stage_idle_threads(set, w);
    int rc = stage_open(
        &stage, &(struct stage_options){.set = set, .g = d->g, .stream = d->main, .stop = &d->stop, .threads = threads},
        e);
    for (int l = d->first; l < d->last && !rc; l++) {
        if (!d->s->cpu_queue && (rc = nan_scan_dense(&d->s->m->scan, l, e))) break;
        rc = load_ranges(
            d, stage, &d->layers[l].mem, ranges,
            decode_weights_layer_ranges(w, d->c, d->shard_config ? &d->shard : NULL, l, &d->layers[l].view, ranges), e);
    }
    int n_merge_ranges =
        d->last == w->config.n_layers ? decode_weights_end_ranges(w, MODULE_STREAM_MERGE, d->head_weights, ranges) : 0;
    if (!rc && n_merge_ranges) rc = load_ranges(d, stage, &d->merge_mem, ranges, n_merge_ranges, e);
    if (!rc && d->has_head)
        rc = load_ranges(d, stage, &d->head_mem, ranges,
                         decode_weights_end_ranges(w, MODULE_HEAD, d->head_weights, ranges), e);
    if (!rc) rc = stage_flush(stage);
    stage_close(&stage);
    for (int i = 0; i < DECODE_MICRO_BATCHES && !rc; i++)
        rc = gpu_copy(d->main, d->work[i].inv_freq, w->inv_freq, (size_t)rope_floats(&w->config) * 4, GPU_H2D);
    return rc ? rc : gpu_stream_sync(d->main);
}

/* The first device speaks for all: a failed load unloads all devices. */
bool decode_weights_loaded(const struct decode *s) {
    return s->n_dev && ledger_bytes(s->dev[0].ledger, LEDGER_WEIGHTS);
}

int decode_weights_load(struct decode *s, struct error *e) {
    int rc = 0;
    if (decode_weights_loaded(s)) return 0;
    /* the devices hold nothing older */
    for (int i = 0; i < s->n_dev && !s->device_kvs; i++) s->dev[i].n_cleared = gpu_n_cleared(s->dev[i].g);
    for (int i = 0; i < s->n_dev && !rc; i++) rc = load_device(&s->dev[i], e);
    if (rc) decode_weights_unload(s);
    return rc;
}

void decode_weights_unload(struct decode *s) {
    for (int i = 0; i < s->n_dev; i++) {
        struct decode_device *d = &s->dev[i];
        if (d->main) gpu_stream_sync(d->main); /* a failed load has copies in flight */
        decode_graph_drop(d);
        pinned_experts_free(d);
        expert_pool_close(d);
        draft_experts_close(d);
        while (decode_experts_evict_layer(d)) {
        }
        for (int l = 0; l < s->c->n_layers && d->layers; l++) ledger_free(d->ledger, &d->layers[l].mem);
        ledger_free(d->ledger, &d->head_mem);
        ledger_free(d->ledger, &d->merge_mem);
    }
}

int decode_load_next(struct decode *s, size_t keep, bool *more, struct error *e) {
    int rc = 0;
    *more = false;
    if (!s->n_dev || s->is_tensor_parallel || s->residency != RESIDENCY_FULL || s->clock < s->retry_clock) return 0;
    if (!decode_weights_loaded(s)) {
        if (!(rc = decode_weights_load(s, e))) *more = true;
    } else {
        rc = decode_experts_load_next(s, keep, more, e);
        for (int i = 0; i < s->n_dev && !rc && !*more; i++) rc = pinned_experts_load_next(&s->dev[i], more, e);
    }
    if (rc == ERR_MEMORY) *e = (struct error){0}, rc = 0; /* the prefill uploads them itself */
    if (rc && !e->code && !decode_device_error(s, e)) exec_op_error(rc, e);
    return rc;
}

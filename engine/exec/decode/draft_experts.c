/* A draft's routed experts on devices: for layers whose attention block is on the device, as far as memory allows, one
 * layer per draft batch so that no batch waits long. The rows of such a layer stay on the device; the CPU only reads
 * the routers' selections. They are the first to be evicted for KV or a prefill, and return only after resident weights
 * are reloaded. */
#include "engine/exec/decode/draft_experts.h"
#include "base/log.h"
#include "engine/exec/decode/decode_device.h"
#include "engine/exec/decode/decode_reserve.h"
#include "engine/transfer/stage.h"

static int load_layer(struct decode_device *d, int layer, struct error *e) {
    const struct decode *s = d->s;
    const struct expert *from = s->draft->experts[layer];
    struct stage *stage = NULL;
    if (gpu_mem_free(d->g) < resident_experts_bytes(s->c, layer, from) + decode_reserve_bytes(s, d->g))
        return error_set(e, ERR_MEMORY, "no room");
    const struct stage_options to = {.set = s->m->gpus,
                                     .g = d->g,
                                     .stream = d->main,
                                     .stop = &d->stop,
                                     .threads = pin_stage_threads(),
                                     .rank = d->rank};
    int rc = stage_open(&stage, &to, e);
    if (!rc)
        rc = resident_experts_load(&d->layers[layer].draft, LEDGER_DRAFT, s->c, layer, from, NULL, 0, d->ledger, stage,
                                   e);
    if (!rc) rc = stage_flush(stage);
    stage_close(&stage);
    const int synced = gpu_stream_sync(d->main);
    return rc ? rc : synced;
}

int draft_experts_load(struct decode_device *d, struct error *e) {
    const struct decode *s = d->s;
    int layer = d->first, n_loaded = 0;
    if (d->draft_full || s->cpu_queue) return 0;
    while (layer < d->last && (!s->c->layer[layer].moe || d->layers[layer].draft.view))
        n_loaded += d->layers[layer++].draft.view != NULL;
    const struct expert *x = layer < d->last ? s->draft->experts[layer] : NULL;
    /* biases belong to the checkpoint and are stored elsewhere */
    d->draft_full = !x || x->gate_bias || x->up_bias || x->down_bias;
    int rc = d->draft_full ? 0 : load_layer(d, layer, e);
    if (rc) resident_experts_free(&d->layers[layer].draft, d->ledger);
    if (rc == ERR_MEMORY) {
        *e = (struct error){0};
        d->draft_full = true, rc = 0;
    }
    if (d->draft_full) log_say(LOG_INFO, "draft experts of %d layers are on device %d", n_loaded, d->rank);
    return rc;
}

bool draft_experts_evict_layer(struct decode_device *d) {
    int layer = d->last - 1;
    while (layer >= d->first && !d->layers[layer].draft.mem.at) layer--;
    d->draft_full = true;
    if (layer < d->first) return false;
    gpu_stream_sync(d->main);
    resident_experts_free(&d->layers[layer].draft, d->ledger);
    return true;
}

void draft_experts_close(struct decode_device *d) {
    while (d->layers && draft_experts_evict_layer(d)) {
    }
    d->draft_full = d->s->is_tensor_parallel;
}

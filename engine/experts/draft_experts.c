/* A draft's routed experts on devices: for layers whose attention block is on the device, as far as memory allows, one layer per
 * draft batch so that no batch waits long. The rows of such a layer stay on the device; the CPU only reads the routers'
 * selections. They are the first to be evicted for KV or a prefill, and return only after resident weights are reloaded. */
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/exec/decode_internal.h"
#include "engine/transfer/stage.h"

static size_t layer_bytes(const struct decode *s, uint64_t expert_bytes) { return (size_t)expert_bytes * (size_t)s->c->n_experts; }

/* Copies the expert views with pointers into mem. */
static struct expert *copy_views(const struct expert *from, int n, const char *mem) {
    const char *base = from[0].gate.data;
    struct expert *to = mem_alloc((size_t)n * sizeof *to);
    for (int i = 0; i < n && to; i++) {
        struct mat *m[3] = {&to[i].gate, &to[i].up, &to[i].down};
        to[i] = from[i];
        for (int k = 0; k < 3; k++) {
            if (!m[k]->data) continue; /* no up */
            m[k]->data = mem + ((const char *)m[k]->data - base);
            m[k]->scale = mem + ((const char *)m[k]->scale - base);
        }
    }
    return to;
}

static int upload_layer(struct decode_device *d, const void *from, char *to, size_t bytes, struct error *e) {
    struct copy_run run = {.host = from, .bytes = bytes};
    struct stage *stage;
    int rc = stage_open(
        &stage, &(struct stage_options){.set = d->s->m->gpus, .g = d->g, .stream = d->main, .stop = &d->stop, .threads = pin_stage_threads(), .rank = d->rank},
        e);
    if (!rc) rc = stage_send(stage, &(struct stage_unit){.runs = &run, .n = 1, .to = to});
    if (!rc) rc = stage_flush(stage);
    stage_close(&stage);
    return rc ? rc : gpu_stream_sync(d->main);
}

static int load_layer(struct decode_device *d, int layer, struct error *e) {
    const struct decode *s = d->s;
    struct resident_experts *x = &d->layers[layer].draft;
    const struct expert *from = s->draft->experts[layer];
    size_t bytes = layer_bytes(s, s->draft->expert_bytes);
    if (gpu_mem_free(d->g) < bytes + decode_reserve_bytes(s, d->g)) return error_set(e, ERR_MEMORY, "no room");
    if (ledger_alloc(d->ledger, LEDGER_DRAFT, bytes, &x->mem, e)) return e->code;
    int rc = upload_layer(d, from[0].gate.data, x->mem.at, bytes, e);
    if (!rc && !(x->view = copy_views(from, s->c->n_experts, x->mem.at))) rc = error_set(e, ERR_MEMORY, "no memory for draft experts on a device");
    return rc;
}

static bool drop_layer(struct decode_device *d, int layer) {
    struct resident_experts *x = &d->layers[layer].draft;
    if (!x->mem.at) return false;
    resident_experts_free(x, d->ledger);
    return true;
}

int draft_experts_load(struct decode_device *d, struct error *e) {
    const struct decode *s = d->s;
    int layer = d->first, there = 0;
    if (d->draft_full || s->cpu_queue) return 0;
    while (layer < d->last && (!s->c->layer[layer].moe || d->layers[layer].draft.view)) there += d->layers[layer++].draft.view != NULL;
    const struct expert *x = layer < d->last ? s->draft->experts[layer] : NULL;
    d->draft_full = !x || x->gate_bias || x->up_bias || x->down_bias; /* biases belong to the checkpoint and are stored elsewhere */
    int rc = d->draft_full ? 0 : load_layer(d, layer, e);
    if (rc == ERR_MEMORY) {
        drop_layer(d, layer);
        *e = (struct error){0};
        d->draft_full = true, rc = 0;
    }
    if (d->draft_full) log_say(LOG_INFO, "draft experts of %d layers are on device %d", there, d->rank);
    return rc;
}

bool draft_experts_evict_layer(struct decode_device *d) {
    int layer = d->last - 1;
    while (layer >= d->first && !d->layers[layer].draft.mem.at) layer--;
    d->draft_full = true;
    if (layer < d->first) return false;
    gpu_stream_sync(d->main);
    return drop_layer(d, layer);
}

void draft_experts_close(struct decode_device *d) {
    while (d->layers && draft_experts_evict_layer(d)) {
    }
    d->draft_full = d->s->is_tensor_parallel;
}

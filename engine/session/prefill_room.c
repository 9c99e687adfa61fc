#include "engine/session/prefill_room.h"

#include "engine/exec/blend/blend_device.h"
#include "engine/exec/decode/decode.h"
#include "engine/exec/stream/slp.h"

/* Returns the bytes that the mode can use well on a device. has_ring: experts of some layers are uploaded. */
static size_t good_bytes(const struct runtime *m, enum exec_mode mode, const struct prefill_job *j, bool has_ring) {
    if (mode == PREFILL_BLEND) return blend_good_bytes(m, j->pos, j->n, has_ring);
    const int ranks = mode == PREFILL_DSLP ? m->gpus->n : 1;
    return slp_good_bytes(
        &(struct slp_job){.w = m->w, .set = m->gpus, .ranks = ranks, .cache = j->kv->layer, .pos = j->pos, .n = j->n},
        has_ring);
}

void prefill_make_room(struct runtime *m, enum exec_mode mode, const struct prefill_job *j) {
    const int device = mode == PREFILL_SLP ? j->device : -1;
    if (mode == PREFILL_CPU) return;
    for (bool evicted = true; evicted;) { /* the first evicted layer makes a ring necessary */
        const bool has_ring = mode == PREFILL_DSLP || !decode_has_all_experts(m->decode, device);
        evicted = decode_evict_experts(m->decode, device, good_bytes(m, mode, j, has_ring));
    }
}

int prefill_load_next(struct runtime *m, enum exec_mode mode, const struct prefill_job *j, bool *more,
                      struct error *e) {
    enum { MIN_BLENDED = 512 }; /* a blended prompt of fewer tokens uploads few of the weights */
    const struct config *c = &m->w->config;
    int layers = 0;
    *more = false;
    if (mode == PREFILL_CPU || (mode == PREFILL_BLEND && j->n < MIN_BLENDED)) return 0;
    for (int l = 0; l < c->n_layers; l++) layers += c->layer[l].moe;
    return decode_load_next(
        m->decode, good_bytes(m, mode, j, mode == PREFILL_DSLP || decode_expert_layers(m->decode) < layers), more, e);
}

#include "engine/exec/decode/decode_device.h"

struct decode_device *decode_device_of(struct decode *s, int layer) {
    for (int i = 0; i < s->n_dev; i++)
        if (layer >= s->dev[i].first && layer < s->dev[i].last) return &s->dev[i];
    return NULL;
}

bool decode_device_error(struct decode *s, struct error *e) {
    for (int i = 0; i < s->n_dev; i++)
        if (gpu_error_since(s->dev[i].g, s->dev[i].n_cleared, e)) return true;
    return false;
}

bool decode_is_locked(const struct decode *s) { return s->m->gpus && s->m->gpus->ledger[0].is_locked; }

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

int decode_device_open_stage(struct decode_device *d, struct stage **stage, struct error *e) {
    const struct runtime *m = d->s->m;
    return stage_open(stage,
                      &(struct stage_options){.set = m->gpus,
                                              .g = d->g,
                                              .stream = d->main,
                                              .stop = &d->stop,
                                              .threads = stage_idle_threads(m->gpus, m->w),
                                              .rank = d->rank},
                      e);
}

/* Locks the weights that devices hold while a prefill on threads of its own reads them. A device that fails during the
 * lock is dropped by decode, but its weights are freed at the unlock only. */
#include "base/log.h"
#include "base/mem.h"
#include "engine/exec/decode/decode_device.h"
#include "engine/exec/decode/decode_experts.h"
#include "engine/exec/decode/decode_run.h"
#include "engine/exec/decode/decode_weights.h"
#include "engine/exec/decode/expert_pool.h"

/* Adds the layers and routed experts that the device holds to the set. */
static void snapshot_device(const struct decode_device *d, struct resident_set *out) {
    for (int l = d->first; l < d->last; l++) {
        const struct expert *all = d->layers[l].experts.view;
        if (d->layers[l].mem.at) resident_set_add_layer(out, l, &d->layers[l].view);
        for (int x = 0; x < d->s->c->n_experts && d->s->c->layer[l].moe; x++) {
            const struct expert *view = all ? &all[x] : decode_device_expert(d, l, x);
            if (view) resident_set_add_expert(out, l, x, view);
        }
    }
}

int decode_lock_weights(struct decode *s, struct resident_set *held, struct error *e) {
    int rc = 0;
    struct error failure = {0};
    if (decode_device_error(s, &failure)) { /* weights may be missing on it */
        log_say(LOG_WARN, "%s; sessions now decode on the CPU", failure.text);
        decode_on_device_lost(s, failure.text);
    }
    for (int i = 0; i < GPU_MAX; i++) held[i] = (struct resident_set){0};
    if (s->is_tensor_parallel || !decode_weights_loaded(s)) return 0; /* a prefill needs whole layers, not shards */
    for (int i = 0; i < s->n_dev && !rc; i++)
        if (!(rc = resident_set_open(&held[s->dev[i].rank], s->c, e)))
            snapshot_device(&s->dev[i], &held[s->dev[i].rank]);
    for (int i = 0; i < GPU_MAX && rc; i++) resident_set_close(&held[i]);
    for (int i = 0; i < s->n_dev && !rc; i++) expert_pool_freeze(&s->dev[i], true);
    for (int i = 0; i < s->m->gpus->n && !rc; i++) ledger_lock(&s->m->gpus->ledger[i]);
    return rc;
}

void decode_unlock_weights(struct decode *s) {
    for (int i = 0; i < s->n_dev; i++) expert_pool_freeze(&s->dev[i], false);
    for (int i = 0; s->m->gpus && i < s->m->gpus->n; i++) ledger_unlock(&s->m->gpus->ledger[i]);
}

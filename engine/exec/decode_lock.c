/* Locks the weights that devices hold while a prefill on threads of its own reads them. A device that fails during the lock is dropped by
 * decode, but its weights are freed at the unlock only. */
#include "engine/base/mem.h"
#include "engine/exec/decode_internal.h"
#include "engine/experts/expert_pool.h"

static void snapshot_device(const struct decode_device *d, struct resident_set *out) {
    for (int l = d->first; l < d->last; l++) {
        const struct expert *all = d->layers[l].experts.view;
        if (d->layers[l].mem) resident_set_add_layer(out, l, &d->layers[l].view);
        for (int x = 0; x < d->s->c->n_experts && d->s->c->layer[l].moe; x++) {
            const struct expert *view = all ? &all[x] : expert_pool_expert(d, l, x);
            if (view) resident_set_add_expert(out, l, x, view);
        }
    }
}

/* Allocates the list of what decode_lock_retire() may have to keep. */
static int reserve_retired(struct decode *s, struct error *e) {
    size_t n = 0;
    for (int i = 0; i < s->n_dev; i++) n += (size_t)s->c->n_layers * (2 + (s->dev[i].pool ? (size_t)s->dev[i].pool->slots_per_layer : 0));
    return mem_grow(&s->retired, &s->cap_retired, n, sizeof *s->retired) ? error_set(e, ERR_MEMORY, "no memory for a list of resident weights") : 0;
}

int decode_lock_weights(struct decode *s, struct resident_set *held, struct error *e) {
    int rc = 0;
    for (int i = 0; i < GPU_MAX; i++) held[i] = (struct resident_set){0};
    if (s->is_tensor_parallel || !decode_weights_loaded(s)) return 0; /* shards are of no use to others */
    for (int i = 0; i < s->n_dev && !rc; i++)
        if (!(rc = resident_set_open(&held[s->dev[i].rank], s->c, e))) snapshot_device(&s->dev[i], &held[s->dev[i].rank]);
    if (!rc) rc = reserve_retired(s, e);
    for (int i = 0; i < GPU_MAX && rc; i++) resident_set_close(&held[i]);
    for (int i = 0; i < s->n_dev && !rc; i++) expert_pool_freeze(&s->dev[i], true);
    s->is_locked = !rc;
    return rc;
}

void decode_unlock_weights(struct decode *s) {
    s->is_locked = false;
    for (int i = 0; i < s->n_dev; i++) expert_pool_freeze(&s->dev[i], false);
    for (size_t i = 0; i < s->n_retired; i++) gpu_free(s->retired[i].g, s->retired[i].mem);
    s->n_retired = 0;
}

static void retire(struct decode *s, struct gpu *g, char **mem) {
    if (!*mem) return;
    s->retired[s->n_retired++] = (struct retired){g, *mem};
    *mem = NULL;
}

void decode_lock_retire(struct decode *s) {
    for (int i = 0; i < s->n_dev && s->is_locked; i++) {
        struct decode_device *d = &s->dev[i];
        for (int l = d->first; l < d->last && d->layers; l++) {
            retire(s, d->g, &d->layers[l].mem);
            retire(s, d->g, &d->layers[l].experts.mem);
            resident_experts_free(&d->layers[l].experts, d->g);
        }
        for (int k = 0; d->pool && k < d->s->c->n_layers * d->pool->slots_per_layer; k++) retire(s, d->g, &d->pool->slots[k].mem);
    }
}

#pragma once
/* Shared by the files of the expert pool: slots and uploads (expert_pool.c), layers (expert_pool_layer.c). */
#include "engine/exec/decode/expert_pool.h"

static inline struct expert_slot *expert_pool_slots(const struct expert_pool *x, int layer) {
    return x->slots + (size_t)layer * (size_t)x->slots_per_layer;
}
static inline int16_t *expert_pool_slot_of(const struct expert_pool *x, int layer, int expert) {
    return &x->slot_of[(size_t)layer * (size_t)x->d->s->c->n_experts + (size_t)expert];
}
static inline struct expert_slot *expert_pool_resident(const struct expert_pool *x, int layer, int expert) {
    int i = *expert_pool_slot_of(x, layer, expert);
    return i < 0 ? NULL : &expert_pool_slots(x, layer)[i];
}
static inline bool expert_pool_has_layer(const struct decode_device *d, int layer) {
    return layer >= d->first && layer < d->last && d->s->c->layer[layer].moe;
}

/* Starts to upload an expert into slot k of its layer, in place of what the slot has. ahead: because of a
 * prediction. */
int expert_pool_upload(struct expert_pool *x, int layer, int k, int expert, bool ahead);
/* Picks the eviction victim: an empty slot, else the lowest score. Skips experts that have rows in needed [n_experts];
 * NULL: none have. -1: no victim. */
int expert_pool_victim(const struct expert_pool *x, int layer, const int32_t *needed);
/* false: the device takes longer for one expert than the CPU for all of a token's */
bool expert_pool_pays(const struct expert_pool *x);
void expert_pool_fill_costs(struct expert_pool *x); /* tabulates the cost model by rows, for use in every layer */

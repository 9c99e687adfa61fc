#pragma once
/* Shared by the files of the expert pool: slots and uploads (expert_pool.c), what the device computes of a layer
 * (expert_pool_part.c), which experts these are (expert_pool_layer.c, expert_pool_sent.c). */
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
/* The same for a transit slot. */
int expert_pool_upload_to(struct expert_pool *x, struct expert_slot *t, int layer, int expert);
/* Picks the eviction victim: an empty slot, else the lowest score. Skips experts that have rows in needed [n_experts];
 * NULL: none have. -1: no victim. */
int expert_pool_victim(const struct expert_pool *x, int layer, const int32_t *needed);
/* false: the device takes longer for one expert than the CPU for all of a token's */
bool expert_pool_pays(const struct expert_pool *x);
void expert_pool_fill_costs(struct expert_pool *x); /* tabulates the cost model by rows, for use in every layer */

/* Parts of a layer's experts (expert_pool_part.c), which the device computes in rising order. */
enum { EXPERT_POOL_USED_MOST = 256 };
struct device_part {
    int n, first_pair, pairs;                        /* experts; (row, choice) pairs before them; and with them */
    struct expert_slot *slot[EXPERT_POOL_USED_MOST]; /* [n] */
    int begin[EXPERT_POOL_USED_MOST];                /* [n] first pair of each, in host_token and host_weight */
};
/* Adds an expert to the part with its pairs, which are no longer left to the CPU (x->cpu_ids). */
void expert_pool_add_to_part(struct expert_pool *x, const struct decode_micro_batch *m, struct device_part *part,
                             struct expert_slot *t, int id);
/* Enqueue the device's part of a layer: begin, then each part, then end. The sum is in x->y[micro] once x->done[micro]
 * has been signalled. */
int expert_pool_begin_parts(struct expert_pool *x, int micro, int layer, int n_rows);
int expert_pool_run_part(struct expert_pool *x, int micro, int layer, const struct device_part *part);
int expert_pool_end_parts(struct expert_pool *x, int micro, int n_rows, bool any);
/* expert_pool_run() of a pool that sends: the device computes all experts that its rows selected. */
int expert_pool_send(struct expert_pool *x, const struct decode_micro_batch *m, int layer, struct error *e);

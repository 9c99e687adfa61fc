#pragma once
/* A snapshot of the weights that a device holds: views with device pointers, copied so that a prefill on threads of its
 * own can read them while the owner's tables change. Owns host memory only; decode_lock_weights() keeps the device
 * memory in place. Any thread may read a snapshot. */
#include "engine/weights/weights.h"

struct resident_set {
    int n_layers, n_experts;
    struct layer *layers;   /* [n_layers] all weights of a layer but routed experts */
    struct expert *experts; /* [n_layers, n_experts] */
    uint8_t *has_layer;     /* [n_layers] */
    uint8_t *has_expert;    /* [n_layers, n_experts] */
};
/* Allocates an empty snapshot; close it in any case. ERR_MEMORY. */
int resident_set_open(struct resident_set *r, const struct config *c, struct error *e);
void resident_set_close(struct resident_set *r); /* safe on a zeroed one */
void resident_set_add_layer(struct resident_set *r, int layer, const struct layer *view);
void resident_set_add_expert(struct resident_set *r, int layer, int expert, const struct expert *view);
/* NULL: not on the device. r NULL: an empty snapshot. */
const struct layer *resident_set_layer(const struct resident_set *r, int layer);
const struct expert *resident_set_expert(const struct resident_set *r, int layer, int expert);
/* Returns whether experts [first, last) of all layers with experts are on the device. */
bool resident_set_has_all(const struct resident_set *r, const struct config *c, int first, int last);

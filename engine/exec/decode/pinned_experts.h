#pragma once
/* Pinned experts: some routed experts of every MoE layer, chosen once and kept on the layer's device for the life of
 * the process. The device computes them whenever they are chosen and the CPU the others, so results depend on neither
 * history nor company. With --expert-cache pinned a usage profile chooses them (usage_profile_pin); with
 * --deterministic alone they are the first of each layer. They give way to a prompt that needs their memory and return
 * after it; to KV caches only layer by layer, and only if nobody asked for them (--expert-cache auto). Experts that
 * move: expert_pool.h; layers with all experts: decode_experts.h.
 *
 * The device finds its part of a row's choices itself: a map from experts to the layer's copies turns their numbers
 * into indices of copies, -1 for the CPU's, without the host. Engine thread only. */
#include "engine/exec/decode/decode_state.h"

struct pinned_experts {
    struct resident_experts *layer;     /* [n_layers] copies, in rising order of experts */
    int32_t *slot;                      /* [n_layers, n_experts] index among them; -1: the CPU computes it */
    int32_t *device_slot;               /* the same on the device */
    int32_t *ids[DECODE_MICRO_BATCHES]; /* device [DECODE_MAX_ROWS, topk] */
    int32_t *cpu_ids;                   /* [DECODE_MAX_ROWS, topk] what is left to the CPU */
    float *share;                       /* [n_layers] expected share of a layer's choices that is pinned */
    int end; /* layers from it on stay without: a KV cache has their memory, or there is not enough */
};

/* Whether experts that fit beside whole layers are pinned instead of moved. */
bool pinned_experts_are_used(const struct runtime *m);
/* The expected share of a layer's choices that fall on the n experts that would be pinned: by the profile, or by the
 * routing that plans assume. */
double pinned_experts_share(const struct runtime *m, int layer, int n);
/* Loads the next layer's, if a profile chooses them by now. *more: it has. The first failed allocation ends the
 * loading, and the CPU computes the rest. Returns the code of a failed device or of a damaged weight; ERR_MEMORY. */
int pinned_experts_load_next(struct decode_device *d, bool *more, struct error *e);
int pinned_experts_load(struct decode_device *d, struct error *e); /* all layers */
/* Frees the copies, after queued work; true: there were some. */
bool pinned_experts_free(struct decode_device *d);

/* Frees the last layer's, after queued work; false: there are none. for_good: they are not loaded again. */
bool pinned_experts_evict_layer(struct decode_device *d, bool for_good);

/* NULL: not pinned on this device, or not loaded */
const struct expert *pinned_experts_view(const struct decode_device *d, int layer, int expert);
int pinned_experts_count(const struct decode_device *d, uint64_t *bytes);
/* Adds the outputs of those that the device rows of a micro-batch chose to the sum of decode_expert_io() (enqueued on
 * d->main). No effect on a layer without. */
int pinned_experts_add(struct decode_device *d, struct decode_micro_batch *m, int layer);
/* Returns the choices [m->n, topk] that are left to the CPU, -1 for the others; *cpu_share: their expected share. */
int32_t *pinned_experts_mask(struct decode_device *d, const struct decode_micro_batch *m, int layer, float *cpu_share);

#pragma once
/* The device side of a blended prefill (prefill_blend.c): a ring of slots for routed experts, fed by the device's own
 * link, and the computation of the device's share of a layer's experts. Devices that hold layers also have a workspace;
 * the others receive normed rows from host memory and return sums to it. Engine thread only. */
#include "engine/exec/decode/decode_state.h"
#include "engine/transfer/upload.h"

enum { BLEND_MIN_ROWS = 64 }; /* smallest batch of a longer prompt */

struct blend_device {
    struct decode *s;
    struct decode_device *d; /* its layers; NULL: none */
    struct gpu *g;
    unsigned n_cleared; /* gpu_n_cleared() when the prefill began */
    struct ledger *ledger;
    int rank;
    struct gpu_stream *own_stream; /* device without layers: its compute stream */
    struct upload_queue uploads;
    _Atomic int own_stop, *stop; /* cancel flag of both streams */
    struct work work;            /* empty if the device has no layers */
    /* device [rows, config_routed_width]: expert input and output sum for a layer of another device */
    float *xn, *y;
    int32_t *token; /* device [rows * topk]: token of each pair, sorted by expert */
    float *weight;
    /* device [n_layers, config_routed_width]: layers' expert_out_norm, for layers of other devices too; NULL: the model
     * has none */
    float *expert_norms;
    struct expert_slot *slots;
    int n_slots, next_slot;
    /* [n_layers, n_experts] the slot that last received the expert, which may have another by now */
    int16_t *slot_of;
    int32_t *pair_token; /* pinned copies of token and weight */
    float *pair_weight, *sum;
    struct gpu_timeline *summed; /* `sum` is in host memory */
    uint32_t n_summed;
    struct cost_table table;
};

/* Returns the bytes that a prompt of n tokens at pos needs at least on the device, beside layer weights; d NULL: it
 * holds no layers. */
size_t blend_device_min_bytes(const struct runtime *m, const struct decode_device *d, int pos, int n);
/* Returns the bytes that the device can use well. has_ring: experts of some layers are uploaded. */
size_t blend_device_good_bytes(const struct runtime *m, const struct decode_device *d, int pos, int n, bool has_ring);
/* Opens streams and timelines; s, d, g and rank are set. */
int blend_device_open(struct blend_device *p, struct error *e);
/* Allocates the workspace for batches of `rows`, of a prompt that ends at position `end`. Returns false if it does not
 * fit beside everything else; then nothing is allocated. Devices without layers have no workspace. */
bool blend_device_try_rows(struct blend_device *p, int rows, int end);
/* Allocates the other buffers, with as many slots as fit; alone: no other device takes part. ERR_MEMORY. */
int blend_device_alloc(struct blend_device *p, int rows, int end, bool alone, struct error *e);
/* waits for enqueued work; safe on partly opened devices */
void blend_device_close(struct blend_device *p);
struct gpu_stream *blend_device_stream(const struct blend_device *p); /* NULL: decode has dropped the device */

/* the slot that has the expert or is receiving it; NULL */
struct expert_slot *blend_device_slot(struct blend_device *p, int layer, int expert);
/* Returns the view of an expert that needs no upload: it has a slot, or decode's pool holds it. NULL: none. */
const struct expert *blend_device_expert(struct blend_device *p, int layer, int expert);
/* Returns a slot that no work enqueued later reads: empty, of another layer, or already used in this one. NULL:
 * none. */
struct expert_slot *blend_device_free_slot(struct blend_device *p, int layer);
/* Enqueues the upload of an expert into the slot. */
int blend_device_upload(struct blend_device *p, struct expert_slot *t, int layer, int expert);
/* Enqueues experts order[0..n) with n_pairs[expert] pairs each: y += their outputs for x. The first n_present need no
 * upload. Pairs are consecutive in pair_token and pair_weight. Small experts are grouped. */
int blend_device_run_experts(struct blend_device *p, int layer, const int16_t *order, int n_present, int n,
                             const int32_t *n_pairs, const float *x, float *y);

/* Bytes that prefill_mode_blend needs at least on a device (by rank), beside layer weights. */
size_t blend_min_bytes(const struct runtime *m, int device, int pos, int n);
/* Most bytes that prefill_mode_blend can use well on one device, beside layer weights; has_ring: experts of some layers
 * are uploaded. */
size_t blend_good_bytes(const struct runtime *m, int pos, int n, bool has_ring);

#pragma once
/* Assigns attention blocks and dense FFNs of layers to devices for decode. Pure.
 * Every byte of them is read once per token, so no layer is worth more than another; what matters is that the residual
 * stream changes device rarely. So layers are assigned in order, to the next device when one is full, and the LM head
 * last. */
#include <stddef.h>

#include "gpu/gpu.h"

struct layer_assign_in {
    int n_layers, n_devices;
    int max_layers;            /* layers per device; 0: as many as fit */
    const size_t *layer_bytes; /* [n_layers] bytes */
    size_t head_bytes;         /* bytes of final norm and LM head */
    /* per device: free bytes; of these to keep for KV caches, workspaces and a prefill's ring */
    size_t free_bytes[GPU_MAX], reserve_bytes[GPU_MAX];
};
struct layer_assign_out {
    int n;                  /* devices that hold layers; the rest serve prefills only */
    int end_layer[GPU_MAX]; /* device i holds layers [end_layer[i - 1] or 0, end_layer[i]) */
    int head_device;        /* the device that has the head; -1: the CPU */
    char why[256];          /* one sentence */
};
/* Tensor parallel: each of n devices holds share[i] bytes of all layers; the head goes to the last device if it fits.
 * False: a shard does not fit. */
bool layer_assign_tensor(const struct layer_assign_in *in, int n, const size_t share[GPU_MAX],
                         struct layer_assign_out *out);
void layer_assign_whole(const struct layer_assign_in *in, struct layer_assign_out *out);
/* Divides the layers so that devices have about the same share of their memory for each of them: then routed experts,
 * which a device holds for its own layers, fill all devices. expert_bytes [n_layers]: all routed experts of a layer;
 * room: free bytes of each device for weights and experts. Uses only the first devices if these hold everything. False:
 * a device's layers do not fit; out is unchanged. */
bool layer_assign_spread(const struct layer_assign_in *in, const size_t *expert_bytes, const size_t room[GPU_MAX],
                         struct layer_assign_out *out);

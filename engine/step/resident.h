#pragma once
/* Assigns attention blocks and dense FFNs of layers to devices for decode. Pure.
 * Every byte of them is read once per token, so no layer is worth more than another; what matters is that the residual stream
 * changes device rarely. So layers are assigned in order, to the next device when one is full, and the LM head last. */
#include <stddef.h>

#include "gpu/gpu.h"

struct resident_in {
    int n_layers, n_devices;
    int most;                               /* layers per device; 0: as many as fit */
    const size_t *layer;                    /* [n_layers] bytes */
    size_t head;                            /* bytes of final norm and LM head */
    size_t free[GPU_MAX], reserve[GPU_MAX]; /* per device: free bytes; of these to keep for KV caches, workspaces and a prefill's ring */
};
struct resident_out {
    int n;              /* devices that hold layers; the rest serve prefills only */
    int until[GPU_MAX]; /* device i holds layers [until[i - 1] or 0, until[i]) */
    int head;           /* the device that has the head; -1: the CPU */
    char why[256];      /* one sentence */
};
/* Tensor parallel: each of n devices holds share[i] bytes of all layers; the head goes to the last device if it fits. False: a
 * shard does not fit. */
bool resident_share(const struct resident_in *in, int n, const size_t share[GPU_MAX], struct resident_out *out);
void resident_choose(const struct resident_in *in, struct resident_out *out);

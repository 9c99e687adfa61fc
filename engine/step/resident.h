#pragma once
/* Which layers' attention halves and dense feed-forwards live on which device while sessions decode. Pure.
 * Each of them is read whole for every token, so a byte of one saves as much as a byte of another; what counts is that the
 * residual stream changes place seldom. So layers go in order, to the next device when one is full, and the head last. */
#include <stddef.h>

#include "gpu/gpu.h"

struct resident_in {
    int n_layers, n_devices;
    int most;                               /* layers of a device; 0: as many as fit */
    const size_t *layer;                    /* [n_layers] bytes */
    size_t head;                            /* final norm and output head */
    size_t free[GPU_MAX], reserve[GPU_MAX]; /* of a device: bytes; of these to be left for caches, workspace, a prefill's ring */
};
struct resident_out {
    int n;              /* devices that hold layers; the rest are left to prefills */
    int until[GPU_MAX]; /* device i holds layers from until[i - 1] (or 0) up to this */
    int head;           /* the device that has the head, -1: the processor */
    char why[256];      /* one sentence */
};
/* The same where each of n devices has a share of every layer: bytes of all shares of a device, the head on the last one that has room for
 * it. False: one cannot hold its share. */
bool resident_share(const struct resident_in *in, int n, const size_t share[GPU_MAX], struct resident_out *out);
void resident_choose(const struct resident_in *in, struct resident_out *out);

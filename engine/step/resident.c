#include "engine/step/resident.h"

#include <stdio.h>

void resident_choose(const struct resident_in *in, struct resident_out *out) {
    *out = (struct resident_out){.head = -1};
    size_t used = 0, need = in->head, have = 0;
    int l = 0;
    for (int i = 0; i < in->n_layers; i++) need += in->layer[i];
    for (int i = 0; i < in->n_devices && l < in->n_layers; i++) {
        size_t room = in->free[i] > in->reserve[i] ? in->free[i] - in->reserve[i] : 0;
        int first = l;
        have += room;
        for (used = 0; l < in->n_layers && (!in->most || l - first < in->most) && used + in->layer[l] <= room;) used += in->layer[l++];
        if (l == first && i + 1 < in->n_devices) { /* nothing fits here; a larger device later may still be used */
            out->until[out->n++] = l;
            continue;
        }
        if (l == first) break;
        out->until[out->n++] = l;
        if (l == in->n_layers && used + in->head <= room) out->head = i;
    }
    if (!l) out->n = 0;
    if (!in->n_devices) snprintf(out->why, sizeof out->why, "nothing (no devices)");
    else if (l == in->n_layers && out->head >= 0)
        snprintf(out->why, sizeof out->why, "attention, dense parts and head of all %d layers on %d of %d devices (%zu MB)", l, out->n, in->n_devices,
                 need >> 20);
    else
        snprintf(out->why, sizeof out->why,
                 "attention and dense parts of %d of %d layers%s on %d of %d devices: all need %zu MB, %zu MB are free beside KV caches and a prefill's ring",
                 l, in->n_layers, out->head >= 0 ? " and the head" : "", out->n, in->n_devices, need >> 20, have >> 20);
}

bool resident_share(const struct resident_in *in, int n, const size_t share[GPU_MAX], struct resident_out *out) {
    *out = (struct resident_out){.n = n, .head = -1};
    for (int i = 0; i < n; i++) {
        size_t room = in->free[i] > in->reserve[i] ? in->free[i] - in->reserve[i] : 0;
        if (share[i] > room) return false;
        out->until[i] = in->n_layers;
        if (i == n - 1 && share[i] + in->head <= room) out->head = i;
    }
    snprintf(out->why, sizeof out->why, "a shard of attention and dense parts of all %d layers on each of %d devices (tensor parallel), the head on %s",
             in->n_layers, n, out->head < 0 ? "the CPU" : "the last");
    return true;
}

#include "engine/placement/layer_assign.h"

#include <stdio.h>

void layer_assign_whole(const struct layer_assign_in *in, struct layer_assign_out *out) {
    *out = (struct layer_assign_out){.head_device = -1};
    size_t used = 0, need = in->head_bytes, have = 0;
    int l = 0;
    for (int i = 0; i < in->n_layers; i++) need += in->layer_bytes[i];
    for (int i = 0; i < in->n_devices && l < in->n_layers; i++) {
        size_t room = in->free_bytes[i] > in->reserve_bytes[i] ? in->free_bytes[i] - in->reserve_bytes[i] : 0;
        int first = l;
        have += room;
        for (used = 0;
             l < in->n_layers && (!in->max_layers || l - first < in->max_layers) && used + in->layer_bytes[l] <= room;)
            used += in->layer_bytes[l++];
        if (l == first && i + 1 < in->n_devices) { /* nothing fits here; a larger device later may still be used */
            out->end_layer[out->n++] = l;
            continue;
        }
        if (l == first) break;
        out->end_layer[out->n++] = l;
        if (l == in->n_layers && used + in->head_bytes <= room) out->head_device = i;
    }
    if (!l) out->n = 0;
    if (!in->n_devices) snprintf(out->why, sizeof out->why, "nothing (no devices)");
    else if (l == in->n_layers && out->head_device >= 0)
        snprintf(out->why, sizeof out->why,
                 "attention, dense parts and head of all %d layers on %d of %d devices (%zu MB)", l, out->n,
                 in->n_devices, need >> 20);
    else
        snprintf(out->why, sizeof out->why,
                 "attention and dense parts of %d of %d layers%s on %d of %d devices: all need %zu MB, %zu MB are free "
                 "beside KV caches and a prefill's ring",
                 l, in->n_layers, out->head_device >= 0 ? " and the head" : "", out->n, in->n_devices, need >> 20,
                 have >> 20);
}

bool layer_assign_tensor(const struct layer_assign_in *in, int n, const size_t share[GPU_MAX],
                         struct layer_assign_out *out) {
    *out = (struct layer_assign_out){.n = n, .head_device = -1};
    for (int i = 0; i < n; i++) {
        size_t room = in->free_bytes[i] > in->reserve_bytes[i] ? in->free_bytes[i] - in->reserve_bytes[i] : 0;
        if (share[i] > room) return false;
        out->end_layer[i] = in->n_layers;
        if (i == n - 1 && share[i] + in->head_bytes <= room) out->head_device = i;
    }
    snprintf(
        out->why, sizeof out->why,
        "a shard of attention and dense parts of all %d layers on each of %d devices (tensor parallel), the head on %s",
        in->n_layers, n, out->head_device < 0 ? "the CPU" : "the last");
    return true;
}

/* Fills devices in order with layers and their experts, the head after the last layer. Returns the number of layers
 * that fit. */
static int fill_whole(const struct layer_assign_in *in, const size_t *expert_bytes, const size_t room[GPU_MAX],
                      struct layer_assign_out *out) {
    int l = 0;
    for (out->n = 0; out->n < in->n_devices && l < in->n_layers; out->n++) {
        size_t used = 0;
        for (; l < in->n_layers; l++) {
            used += in->layer_bytes[l] + expert_bytes[l];
            if (used + (l + 1 == in->n_layers ? in->head_bytes : 0) > room[out->n]) break;
        }
        out->end_layer[out->n] = l;
    }
    return l;
}

/* Divides the layers in proportion to the devices' room. */
static void divide(const struct layer_assign_in *in, const size_t *expert_bytes, const size_t room[GPU_MAX],
                   struct layer_assign_out *out) {
    double all = (double)in->head_bytes, total = 0, share = 0, used = 0;
    int l = 0;
    for (int i = 0; i < in->n_layers; i++) all += (double)(in->layer_bytes[i] + expert_bytes[i]);
    for (int i = 0; i < in->n_devices; i++) total += (double)room[i];
    for (out->n = 0; out->n < in->n_devices; out->n++) {
        share += (double)room[out->n] / total;
        for (; l < in->n_layers && (out->n + 1 == in->n_devices ||
                                    used + (double)(in->layer_bytes[l] + expert_bytes[l]) / 2 <= share * all);
             l++)
            used += (double)(in->layer_bytes[l] + expert_bytes[l]);
        out->end_layer[out->n] = l;
    }
}

bool layer_assign_spread(const struct layer_assign_in *in, const size_t *expert_bytes, const size_t room[GPU_MAX],
                         struct layer_assign_out *out) {
    struct layer_assign_out to = {.head_device = -1};
    if (in->n_devices < 2 || in->max_layers) return false;
    const bool all_fit = fill_whole(in, expert_bytes, room, &to) == in->n_layers;
    if (!all_fit) divide(in, expert_bytes, room, &to);
    for (int i = 0, l = 0; i < to.n; i++) {
        const size_t most = in->free_bytes[i] > in->reserve_bytes[i] ? in->free_bytes[i] - in->reserve_bytes[i] : 0;
        size_t used = 0;
        while (l < to.end_layer[i]) used += in->layer_bytes[l++];
        if (used > most) return false;
        if (i + 1 == to.n && used + in->head_bytes <= most) to.head_device = i;
    }
    snprintf(to.why, sizeof to.why,
             "attention and dense parts of all %d layers%s on %d of %d devices, divided so that %s", in->n_layers,
             to.head_device >= 0 ? " and the head" : "", to.n, in->n_devices,
             all_fit ? "all routed experts fit beside them" : "routed experts fill all devices");
    *out = to;
    return true;
}

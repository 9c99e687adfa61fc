#pragma once
/* Part of engine.h: where the routed experts of an open engine are, and what is known of the best places. */
#include <stdint.h>

#include "base/error.h"

struct engine;
struct engine_params;

enum { ENGINE_MAX_DEVICES = 8 };
/* How often decode batches used each routed expert since opening, and its device. */
struct expert_map {
    int n_layers, n_experts;
    uint32_t *n_used;    /* [n_layers, n_experts] tokens that chose the expert; 0 for layers without experts */
    int8_t *device_rank; /* [n_layers, n_experts] device rank; -1: host memory only */
    char tuned[256];     /* what --tune has measured of them; "": nothing */
    int n_devices;       /* devices that hold layers of the model */
    struct expert_device {
        /* layers with experts; of these with all experts on the device; experts in its pool; pinned */
        int rank, layers, resident_layers, cached, pinned;
        uint64_t resident_bytes, cached_bytes, pinned_bytes;
        uint64_t chosen, hits; /* choices of its rows in these layers; of these computed on the device */
    } device[ENGINE_MAX_DEVICES];
};
/* Waits for the running decode batch. Free the map with engine_expert_map_free(). ERR_MEMORY: nothing to free. */
int engine_expert_map(struct engine *eng, struct expert_map *out, struct error *e);
void engine_expert_map_free(struct expert_map *m);

/* --tune: stores which experts devices keep for a checkpoint where --expert-cache is "auto", and why, a line without
 * its end, in p->tuned_dir for p->machine. ERR_USAGE, ERR_RUNTIME. */
int engine_store_tuned(const struct engine_params *p, uint64_t fingerprint, const char *choice, const char *why,
                       struct error *e);

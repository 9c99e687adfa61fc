#pragma once
/* Per-weight state flags: one table [layer][expert]; entry n_experts of a layer covers its other weights. The mapping
 * is authoritative, and only the kernel knows which pages are in memory (disk_prefetch.c asks each time); this table
 * holds what was learnt or done in addition. Any thread. */
#include <stdatomic.h>

#include "engine/model/config.h"

enum {
    WEIGHT_CHECKED = 1,     /* checked: no damaged code (nan_scan.c, numa_copy.c) */
    WEIGHT_NUMA_COPIED = 2, /* copied to its NUMA nodes (threads of numa_copy.c) */
    WEIGHT_PREFETCHED = 4,  /* prefetched from disk and not used yet (disk_prefetch.c) */
    WEIGHT_SCANNING = 8,    /* part of the scan that runs (nan_scan.c, engine thread) */
};
struct weight_state {
    int n_experts;
    _Atomic uint8_t *flags; /* [n_layers, n_experts + 1] */
};
int weight_state_open(struct weight_state *r, const struct config *c, struct error *e); /* ERR_MEMORY */
void weight_state_close(struct weight_state *r);

static inline _Atomic uint8_t *weight_state_at(const struct weight_state *r, int layer, int expert) {
    return &r->flags[(size_t)layer * ((size_t)r->n_experts + 1) + (size_t)expert];
}
static inline bool weight_state_has(const struct weight_state *r, int layer, int expert, int what) {
    return atomic_load(weight_state_at(r, layer, expert)) & what;
}
static inline void weight_state_set(struct weight_state *r, int layer, int expert, int what) {
    atomic_fetch_or(weight_state_at(r, layer, expert), (uint8_t)what);
}
static inline void weight_state_clear(struct weight_state *r, int layer, int expert, int what) {
    atomic_fetch_and(weight_state_at(r, layer, expert), (uint8_t)~what);
}

#pragma once
/* Per-weight state flags: one table [layer][expert]; entry n_experts of a layer covers its other weights. The mapping is authoritative, and only the kernel
 * knows which pages are in memory (disk_prefetch.c asks each time); this table holds what was learnt or done in addition. Any thread. */
#include <stdatomic.h>

#include "engine/model/config.h"

enum {
    RESIDENCY_GOOD = 1,   /* checked: no damaged code (nan_scan.c, numa_copy.c) */
    RESIDENCY_PLACED = 2, /* copied to its NUMA nodes (threads of numa_copy.c) */
    RESIDENCY_AHEAD = 4,  /* prefetched from disk and not used yet (disk_prefetch.c) */
};
struct residency {
    int n_experts;
    _Atomic uint8_t *known; /* [n_layers, n_experts + 1] */
};
int residency_open(struct residency *r, const struct config *c, struct error *e); /* ERR_MEMORY */
void residency_close(struct residency *r);

static inline _Atomic uint8_t *residency_at(const struct residency *r, int layer, int expert) {
    return &r->known[(size_t)layer * ((size_t)r->n_experts + 1) + (size_t)expert];
}
static inline bool residency_is(const struct residency *r, int layer, int expert, int what) { return atomic_load(residency_at(r, layer, expert)) & what; }
static inline void residency_set(struct residency *r, int layer, int expert, int what) { atomic_fetch_or(residency_at(r, layer, expert), (uint8_t)what); }
static inline void residency_clear(struct residency *r, int layer, int expert, int what) { atomic_fetch_and(residency_at(r, layer, expert), (uint8_t)~what); }

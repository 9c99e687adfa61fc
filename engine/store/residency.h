#pragma once
/* What is known of where each weight is: one table [layer][expert]; the last expert of a layer, number n_experts, stands for all
 * that is no routed expert. The mapping is the authority for ever, and whether its pages are in memory the kernel alone knows
 * (fetch.c asks it each time); here is what was learnt or done beside it. Any thread. */
#include <stdatomic.h>

#include "engine/model/config.h"

enum {
    RESIDENCY_GOOD = 1,   /* looked at, and no code in it is damaged; scan.c, and place.c on the way */
    RESIDENCY_PLACED = 2, /* copied by memory node; place.c's threads */
    RESIDENCY_AHEAD = 4,  /* read ahead of a use that has not come yet; fetch.c */
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

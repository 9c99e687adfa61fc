/* Timeline semaphores between streams and the host: the host side, common to all backends. Stream side: emu_timeline.c
 * and cuda_timeline.c. */
#include <stdatomic.h>

#include "base/spin.h"
#include "gpu/backend.h"

int gpu_timeline_open(struct gpu *g, struct gpu_timeline **n, struct error *e) {
    *n = NULL;
    int r = g->b->timeline_open(g, n, e);
    if (!r) (*n)->g = g;
    return r;
}
void gpu_timeline_close(struct gpu_timeline **n) {
    if (*n) (*n)->g->b->timeline_close(*n);
    *n = NULL;
}

void gpu_timeline_signal_host(struct gpu_timeline *n, uint32_t value) {
    uint32_t now = atomic_load(n->word);
    GPU_TIMELINE_NOTE((const void *)n->word, value, 1);
    while ((int32_t)(value - now) > 0 && !atomic_compare_exchange_weak(n->word, &now, value)) {
    }
    n->g->b->timeline_wake(n);
}
void gpu_timeline_abort(struct gpu_timeline *n) {
    if (!atomic_exchange(&n->word[1], 1)) atomic_fetch_add(n->word, (uint32_t)GPU_TIMELINE_ABORT_STEP);
    n->g->b->timeline_wake(n);
}
bool gpu_timeline_reached(const struct gpu_timeline *n, uint32_t value) {
    const bool reached = gpu_timeline_is_at_least(n, value) || gpu_timeline_is_aborted(n);
    if (reached) GPU_TIMELINE_NOTE((const void *)n->word, value, 0);
    return reached;
}

int gpu_timeline_wait_host(struct gpu_timeline *n, uint32_t value, const _Atomic int *cancel) {
    struct spin spin = {0};
    for (bool spins = true;;) {
        bool reached = gpu_timeline_reached(n, value);
        if (reached && !gpu_timeline_is_aborted(n)) return 0; /* an abort sets its flag before it raises the value */
        if (cancel && atomic_load_explicit(cancel, memory_order_relaxed)) return ERR_CANCELLED;
        if (reached) return ERR_RUNTIME;
        if (spins) spins = spin_again(&spin, SPIN_BATCH_S);
        else n->g->b->timeline_sleep(n, value);
    }
}

/* Timeline semaphores between streams and the host: the host side, common to all backends. Stream side: emu_timeline.c and
 * cuda_timeline.c. */
#include <stdatomic.h>

#include "gpu/backend.h"

enum { SPIN = 2000 }; /* a pause is 10 to 40 ns: tens of microseconds */

int gpu_number_open(struct gpu *g, struct gpu_number **n, struct error *e) {
    *n = NULL;
    int r = g->b->number_open(g, n, e);
    if (!r) (*n)->g = g;
    return r;
}
void gpu_number_close(struct gpu_number **n) {
    if (*n) (*n)->g->b->number_close(*n);
    *n = NULL;
}
int gpu_number_write(struct gpu_number *n, uint32_t value, struct gpu_stream *s) { return n->g->b->number_write(n, value, s); }
int gpu_number_wait(struct gpu_number *n, uint32_t value, struct gpu_stream *s) { return n->g->b->number_wait(n, value, s); }

void gpu_number_set(struct gpu_number *n, uint32_t value) {
    uint32_t now = atomic_load(n->word);
    while ((int32_t)(value - now) > 0 && !atomic_compare_exchange_weak(n->word, &now, value)) {
    }
    n->g->b->number_wake(n);
}
void gpu_number_break(struct gpu_number *n) {
    if (!atomic_exchange(&n->word[1], 1)) atomic_fetch_add(n->word, (uint32_t)GPU_NUMBER_FAR);
    n->g->b->number_wake(n);
}
bool gpu_number_reached(const struct gpu_number *n, uint32_t value) { return gpu_number_is(n, value) || gpu_number_broken(n); }

static void rest(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}
int gpu_number_await(struct gpu_number *n, uint32_t value, const _Atomic int *cancel) {
    for (int i = 0;; i++) {
        bool reached = gpu_number_reached(n, value);
        if (reached && !gpu_number_broken(n)) return 0; /* an abort sets its flag before it raises the value */
        if (cancel && atomic_load_explicit(cancel, memory_order_relaxed)) return ERR_CANCELLED;
        if (reached) return ERR_RUNTIME;
        if (i < SPIN) rest();
        else n->g->b->number_nap(n, value);
    }
}

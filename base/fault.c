#include "base/fault.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic long armed; /* number of kinds that are set: the fast path is this one load */
static struct {
    _Atomic long nth, count;
    bool forever, kill;
} state[FAULT_KINDS];

void fault_set(enum fault_kind kind, long nth, bool forever, bool kill) {
    state[kind].forever = forever;
    state[kind].kill = kill;
    atomic_store(&state[kind].count, 0);
    atomic_store(&state[kind].nth, nth);
    long mask = 0;
    for (int k = 0; k < FAULT_KINDS; k++)
        if (atomic_load(&state[k].nth)) mask |= 1L << k;
    atomic_store(&armed, mask);
}

bool fault_hit(enum fault_kind kind) {
    if (!(atomic_load_explicit(&armed, memory_order_relaxed) >> kind & 1)) return false;
    long n = atomic_fetch_add(&state[kind].count, 1) + 1, nth = atomic_load(&state[kind].nth);
    bool hit = n == nth || (n > nth && state[kind].forever);
    if (hit && state[kind].kill) raise(SIGKILL);
    return hit;
}

long fault_count(enum fault_kind kind) { return atomic_load(&state[kind].count); }

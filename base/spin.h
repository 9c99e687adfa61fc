#pragma once
/* How long a thread polls a word in memory before it sleeps in the kernel. Pure waiting: owns no lock and no word. */
#include <stdbool.h>

/* Longer than a layer of a decode batch takes on a device, so that neither the engine thread nor the pool's workers
 * sleep and wake within a batch: in a futex that costs tens of microseconds a thread and layer. */
#define SPIN_BATCH_S 2e-3

struct spin { /* of one wait; zero at its begin */
    int polls;
    double begin_s, last_s; /* begin and latest step of the timed phase */
};
/* Pauses the CPU for a moment. Returns whether to poll again: always for the first tens of microseconds, then for
 * most_s seconds. A thread that the kernel takes off its CPU in these has too many neighbours: polling delays them, and
 * it is woken faster than it gets the CPU back. So it ends this wait's timed phase and skips those of its next
 * waits. It skips them, too, after a wait in vain: another thread has lost its CPU, and gets this one if it sleeps. */
bool spin_again(struct spin *s, double most_s);

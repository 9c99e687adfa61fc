#include "base/spin.h"

#include <stdint.h>

#include "base/clock.h"
#include "base/test_limits.h"

enum { UNTIMED = 2000, TIMED_STEP = 32, SKIPPED = 500 }; /* polls, of 10 to 40 ns; waits */
static const double LOST_S = 100e-6;                     /* a step takes about a microsecond, an interrupt a few */

static _Thread_local int n_skipped; /* waits whose timed phase the thread still skips */

static void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

bool spin_again(struct spin *s, double most_s) {
    pause_cpu();
    if (++s->polls % TIMED_STEP) return true;
    if ((size_t)s->polls >= test_limits_get(TEST_LIMIT_SPIN_POLLS, SIZE_MAX)) return false;
    if (s->polls < UNTIMED) return true;
    if (most_s <= 0) return false;
    if (n_skipped) {
        n_skipped--;
        return false;
    }
    const double now = clock_now();
    if (!(s->begin_s > 0)) s->begin_s = s->last_s = now;
    const bool lost = now - s->last_s > LOST_S;
    if (lost) n_skipped = SKIPPED;
    s->last_s = now;
    const bool in_vain = now - s->begin_s >= most_s;
    if (in_vain) n_skipped = SKIPPED;
    return !lost && !in_vain;
}

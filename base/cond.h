#pragma once
/* Condition variables whose time-outs follow the monotonic clock: a wall clock that is set back lengthens no wait. */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

static inline void cond_init(pthread_cond_t *c) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(c, &monotonic);
    pthread_condattr_destroy(&monotonic);
}
/* Waits until c is signalled or the monotonic clock shows `until`. Returns false on a time-out. */
static inline bool cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, const struct timespec *until) {
    return pthread_cond_timedwait(c, lock, until) != ETIMEDOUT;
}
/* Returns what the monotonic clock will show in some seconds. */
static inline struct timespec cond_time_in(double seconds) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const long whole = (long)seconds;
    t.tv_sec += whole, t.tv_nsec += (long)((seconds - (double)whole) * 1e9);
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    return t;
}
/* Waits at most that many seconds. Returns false on a time-out. */
static inline bool cond_wait_s(pthread_cond_t *c, pthread_mutex_t *lock, double seconds) {
    const struct timespec until = cond_time_in(seconds);
    return cond_wait_until(c, lock, &until);
}

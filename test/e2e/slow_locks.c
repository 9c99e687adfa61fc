/* For LD_PRELOAD: one in 64 locks of a mutex, and one in 64 unlocks, takes up to 2 ms longer, so that threads meet in
 * orders that are rare otherwise. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

static void delay(void) {
    static _Thread_local uint32_t random;
    if (!random) random = (uint32_t)(uintptr_t)&random ^ (uint32_t)clock() ^ 1;
    random ^= random << 13, random ^= random >> 17, random ^= random << 5;
    if (random % 64 == 0) nanosleep(&(struct timespec){.tv_nsec = random / 64 % 2000000}, NULL);
}

int pthread_mutex_lock(pthread_mutex_t *m) {
    static int (*lock)(pthread_mutex_t *);
    if (!lock) lock = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock");
    delay();
    return lock(m);
}

int pthread_mutex_unlock(pthread_mutex_t *m) {
    static int (*unlock)(pthread_mutex_t *);
    if (!unlock) unlock = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_unlock");
    const int rc = unlock(m);
    delay();
    return rc;
}

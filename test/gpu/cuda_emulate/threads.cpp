/* Order of the host's threads: a mutex, a start and an end of a thread pass on what one thread has waited for. Replaces the C library's
 * functions in programs that contain the emulation. The locks of the emulation and of the CUDA backend pass on nothing (they are compiled
 * with other names): each thread that makes a call takes some, so that all waits would seem to be waits of all threads. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#include <map>

#include "internal.h"

#undef pthread_mutex_lock
#undef pthread_mutex_unlock
#undef pthread_mutex_trylock
extern "C" int pthread_mutex_lock(pthread_mutex_t *m) noexcept;
extern "C" int pthread_mutex_unlock(pthread_mutex_t *m) noexcept;
extern "C" int pthread_mutex_trylock(pthread_mutex_t *m) noexcept;

template <class F> static F real(F, const char *name) { return (F)dlsym(RTLD_NEXT, name); }
#define REAL(name) \
    static const auto original = real(&name, #name); \
    return original

extern "C" int cuda_emulate_quiet_lock(pthread_mutex_t *m) noexcept { REAL(pthread_mutex_lock)(m); }
extern "C" int cuda_emulate_quiet_unlock(pthread_mutex_t *m) noexcept { REAL(pthread_mutex_unlock)(m); }
extern "C" int cuda_emulate_quiet_trylock(pthread_mutex_t *m) noexcept { REAL(pthread_mutex_trylock)(m); }
static int wait(pthread_cond_t *c, pthread_mutex_t *m) { REAL(pthread_cond_wait)(c, m); }
static int wait_until(pthread_cond_t *c, pthread_mutex_t *m, const timespec *t) { REAL(pthread_cond_timedwait)(c, m, t); }
static int create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *arg) { REAL(pthread_create)(t, a, run, arg); }
static int join(pthread_t t, void **result) { REAL(pthread_join)(t, result); }

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
struct guard {
    guard() { cuda_emulate_quiet_lock(&lock); }
    ~guard() { cuda_emulate_quiet_unlock(&lock); }
};
static std::map<const void *, order_clock> &passed_on() { /* by mutexes; used before constructors run */
    static std::map<const void *, order_clock> *all = new std::map<const void *, order_clock>;
    return *all;
}
static std::map<pthread_t, order_clock> &ended() {
    static std::map<pthread_t, order_clock> *all = new std::map<pthread_t, order_clock>;
    return *all;
}
static void release(const void *m) {
    if (order_host().at.empty()) return;
    guard hold;
    order_clock &to = passed_on()[m];
    order_merge(&to, order_host());
}
static void acquire(const void *m) {
    guard hold;
    auto i = passed_on().find(m);
    if (i != passed_on().end()) order_host_pass(i->second);
}

extern "C" int pthread_mutex_lock(pthread_mutex_t *m) noexcept {
    const int r = cuda_emulate_quiet_lock(m);
    acquire(m);
    return r;
}
extern "C" int pthread_mutex_trylock(pthread_mutex_t *m) noexcept {
    const int r = cuda_emulate_quiet_trylock(m);
    if (!r) acquire(m);
    return r;
}
extern "C" int pthread_mutex_unlock(pthread_mutex_t *m) noexcept {
    release(m);
    return cuda_emulate_quiet_unlock(m);
}
extern "C" int pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m) {
    release(m);
    const int r = wait(c, m);
    acquire(m);
    return r;
}
extern "C" int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const timespec *until) {
    release(m);
    const int r = wait_until(c, m, until);
    acquire(m);
    return r;
}

struct start {
    void *(*run)(void *);
    void *arg;
    order_clock from;
};
static void *begin(void *arg) {
    start *s = (start *)arg, own = *s;
    delete s;
    order_host_pass(own.from);
    void *result = own.run(own.arg);
    guard hold;
    ended()[pthread_self()] = order_host();
    return result;
}
extern "C" int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *arg) noexcept {
    start *s = new start{run, arg, order_host()};
    const int r = create(t, a, begin, s);
    if (r) delete s;
    return r;
}
extern "C" int pthread_join(pthread_t t, void **result) {
    const int r = join(t, result);
    guard hold;
    auto i = ended().find(t);
    if (r || i == ended().end()) return r;
    order_host_pass(i->second);
    ended().erase(i);
    return r;
}

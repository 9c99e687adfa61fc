#include "test/world/fibers.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/spin.h"

enum { MAX_FIBERS = 64, STACK_BYTES = 1 << 20, MAX_FD = 1024 };
enum wait { RUNS, ON_MUTEX, ON_COND, ON_FDS, ON_WORD, ON_JOIN, ON_TIME, OVER };
struct fiber {
    ucontext_t context;
    void *stack;
    enum wait wait;
    const void *what;   /* mutex, condition, word or fiber that it waits for */
    uint32_t seen;      /* ON_WORD: the value that must change */
    struct pollfd *fds; /* ON_FDS: [n_fds] */
    nfds_t n_fds;
    int64_t until; /* ends the wait, in ns of monotonic time; -1: nothing does */
    bool is_signalled;
    int group;
    uint64_t stalled_until; /* point */
    void *(*fn)(void *);
    void *arg, *result;
};
/* What the first bytes of a pthread_mutex_t and a pthread_cond_t hold; both are zero after their initializers. */
struct mutex {
    struct fiber *owner;
};
struct cond {
    clockid_t clock;
};

void (*fibers_on_stuck)(void), (*fibers_on_point)(void);
uint64_t fibers_n_points, fibers_n_switches;
static struct fiber *fiber[MAX_FIBERS], *current;
static struct fiber *asker; /* fiber that waits for the group that runs alone */
static int n_fibers, new_group, only_group = -1;
static uint64_t state = 1;
static int64_t now_ns = 1000000000, real_ns = (int64_t)1900000000 * 1000000000;
static struct {
    bool is_used, is_nonblocking;
    uint64_t count;
} event_fds[MAX_FD];

/* --- Choices ---------------------------------------------------------------------------------- */

static uint32_t switch_every = 3;    /* one point in this many lets another fiber run */
uint32_t fibers_random(uint32_t n) { /* xorshift64* */
    if (!state) state = 1;
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return (uint32_t)((state * 2685821657736338717ull) >> 33) % n;
}

void fibers_reseed(uint64_t seed) {
    static const uint32_t every[] = {2, 3, 10, 40};
    state = seed * 0x9E3779B97F4A7C15ull + 88172645463325252ull;
    fibers_random(2);
    switch_every = every[fibers_random(4)];
}

void fibers_only(int group) {
    static int64_t stopped_at, stopped_real;
    static uint64_t stopped_state;
    if (group >= 0) stopped_at = now_ns, stopped_real = real_ns, stopped_state = state;
    else now_ns = stopped_at, real_ns = stopped_real, state = stopped_state;
    only_group = group;
    asker = current;
}
void fibers_set_group(int group) { new_group = group; }

static int ready_fds(struct pollfd *fds, nfds_t n) {
    int ready = 0;
    for (nfds_t i = 0; i < n; i++) {
        fds[i].revents = 0;
        if (fds[i].fd >= 0 && fds[i].fd < MAX_FD && event_fds[fds[i].fd].is_used) {
            if (event_fds[fds[i].fd].count) fds[i].revents = fds[i].events & POLLIN;
            fds[i].revents |= fds[i].events & POLLOUT;
        } else poll(&fds[i], 1, 0);
        ready += fds[i].revents != 0;
    }
    return ready;
}

static bool is_ready(const struct fiber *f) {
    if (f->until >= 0 && now_ns >= f->until) return true;
    switch (f->wait) {
    case RUNS: return true;
    case ON_MUTEX: return !((const struct mutex *)f->what)->owner;
    case ON_COND: return f->is_signalled;
    case ON_FDS: return ready_fds(f->fds, f->n_fds) > 0;
    case ON_WORD: return *(const volatile uint32_t *)f->what != f->seen;
    case ON_JOIN: return ((const struct fiber *)f->what)->wait == OVER;
    default: return false;
    }
}
static bool takes_part(const struct fiber *f) {
    return f->wait != OVER && (only_group < 0 || f == asker || f->group == only_group);
}

static struct fiber *choose(bool with_stalled) {
    struct fiber *ready[MAX_FIBERS];
    uint32_t n = 0;
    for (int i = 0; i < n_fibers; i++)
        if (takes_part(fiber[i]) && (with_stalled || fibers_n_points >= fiber[i]->stalled_until) && is_ready(fiber[i]))
            ready[n++] = fiber[i];
    return n ? ready[fibers_random(n)] : NULL;
}

/* Moves time to the first timeout. */
static bool skip_time(void) {
    int64_t first = -1;
    for (int i = 0; i < n_fibers; i++)
        if (fiber[i]->wait != OVER && (only_group < 0 || fiber[i]->group == only_group) && fiber[i]->until >= 0 &&
            (first < 0 || fiber[i]->until < first))
            first = fiber[i]->until;
    if (first > now_ns) real_ns += first - now_ns, now_ns = first;
    return first >= 0;
}

static void reschedule(void) {
    struct fiber *next, *was = current;
    while (!(next = choose(false)) && !(next = choose(true)))
        if (!skip_time()) {
            fibers_on_stuck();
            abort();
        }
    next->wait = RUNS;
    now_ns += 500, real_ns += 500;
    if (next == was) return;
    fibers_n_switches++;
    current = next;
    const int saved = errno;
    swapcontext(&was->context, &next->context);
    errno = saved;
}

static void wait_for(enum wait wait, const void *what, int64_t until) {
    current->wait = wait, current->what = what, current->until = until, current->is_signalled = false;
    reschedule();
}

void fibers_point(void) {
    enum { SWITCH = 3 };   /* one point in this many */
    static bool is_inside; /* the hook's calls have no points */
    if (is_inside) return;
    if (only_group < 0) fibers_n_points++;
    if (only_group < 0 && fibers_on_point) {
        is_inside = true;
        fibers_on_point();
        is_inside = false;
    }
    if (n_fibers < 2 || fibers_random(switch_every)) return;
    current->until = -1;
    reschedule();
}

bool fibers_sleep_all(void) {
    for (int i = 0; i < n_fibers; i++)
        if (fiber[i] != current && fiber[i]->wait != OVER && is_ready(fiber[i])) return false;
    return true;
}

void fibers_stall(uint32_t which, uint32_t points) {
    struct fiber *f = fiber[which % (uint32_t)n_fibers];
    if (f != current) f->stalled_until = fibers_n_points + points;
}

void fibers_jump(double monotonic_s, double real_s) {
    now_ns += (int64_t)(monotonic_s * 1e9);
    real_ns += (int64_t)(real_s * 1e9);
}

void fibers_describe(void) {
    static const char *const names[] = {"runs", "mutex", "condition", "descriptors", "word", "join", "time", "over"};
    for (int i = 0; i < n_fibers; i++)
        if (fiber[i]->wait != OVER)
            printf("  fiber %d of group %d%s: %s %p\n", i, fiber[i]->group, fiber[i] == current ? ", current" : "",
                   names[fiber[i]->wait], (void *)fiber[i]->what);
}

void *__real_mmap(void *at, size_t n, int may, int flags, int fd, off_t from);

/* --- Threads ---------------------------------------------------------------------------------- */

static struct fiber *add_fiber(void) {
    static struct fiber all[MAX_FIBERS];
    for (int i = 0; i < n_fibers; i++) /* one that was joined */
        if (fiber[i]->wait == OVER && !fiber[i]->fn) return fiber[i];
    if (n_fibers == MAX_FIBERS) abort();
    return fiber[n_fibers] = &all[n_fibers], fiber[n_fibers++];
}
void fibers_begin(void) {
    current = add_fiber();
    current->until = -1;
    current->fn = (void *(*)(void *))abort;
}

static void run_fiber(void) {
    struct fiber *f = current;
    f->result = f->fn(f->arg);
    wait_for(OVER, NULL, -1);
}

int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*fn)(void *), void *arg) {
    struct fiber *f = add_fiber();
    void *stack = f->stack;
    if (!stack)
        stack =
            __real_mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) return EAGAIN;
    *f = (struct fiber){.stack = stack, .until = -1, .group = new_group, .fn = fn, .arg = arg};
    getcontext(&f->context);
    f->context.uc_stack = (stack_t){.ss_sp = stack, .ss_size = STACK_BYTES};
    makecontext(&f->context, run_fiber, 0);
    *t = (pthread_t)f;
    fibers_point();
    return 0;
}
int __wrap_pthread_join(pthread_t t, void **result);
int __wrap_pthread_join(pthread_t t, void **result) {
    struct fiber *f = (struct fiber *)t;
    if (f->wait != OVER) wait_for(ON_JOIN, f, -1);
    if (result) *result = f->result;
    f->fn = NULL;
    return 0;
}
pthread_t __wrap_pthread_self(void);
pthread_t __wrap_pthread_self(void) { return (pthread_t)current; }
int __wrap_pthread_setaffinity_np(pthread_t t, size_t n, const cpu_set_t *set);
int __wrap_pthread_setaffinity_np(pthread_t t, size_t n, const cpu_set_t *set) { return 0; }
int __wrap_setpriority(int which, id_t who, int priority);
int __wrap_setpriority(int which, id_t who, int priority) { return 0; }

/* --- Locks ------------------------------------------------------------------------------------ */

bool fibers_is_locked(const void *mutex) { return ((const struct mutex *)mutex)->owner != NULL; }
int __wrap_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *attr);
int __wrap_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *attr) {
    return memset(m, 0, sizeof *m), 0;
}
int __wrap_pthread_mutex_destroy(pthread_mutex_t *m);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *m) {
    if (fibers_is_locked(m)) abort();
    return 0;
}
static void lock(pthread_mutex_t *m) {
    struct mutex *x = (struct mutex *)m;
    if (x->owner == current) {
        fibers_on_stuck(); /* a second lock by the same thread */
        abort();
    }
    while (x->owner) wait_for(ON_MUTEX, m, -1);
    x->owner = current;
}
static void unlock(pthread_mutex_t *m) {
    struct mutex *x = (struct mutex *)m;
    if (x->owner != current) abort();
    x->owner = NULL;
}
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m) {
    if (!current) return 0; /* constructors of libraries such as CUDA's: there is one thread */
    fibers_point();
    return lock(m), 0;
}
int __wrap_pthread_mutex_trylock(pthread_mutex_t *m);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *m) { return fibers_is_locked(m) ? EBUSY : (lock(m), 0); }
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m) {
    if (!current) return 0;
    unlock(m);
    fibers_point();
    return 0;
}
int __wrap_pthread_condattr_setclock(pthread_condattr_t *a, clockid_t clock);
int __wrap_pthread_condattr_setclock(pthread_condattr_t *a, clockid_t clock) {
    memcpy(a, &clock, sizeof *a < sizeof clock ? sizeof *a : sizeof clock);
    return 0;
}
int __wrap_pthread_condattr_init(pthread_condattr_t *a);
int __wrap_pthread_condattr_init(pthread_condattr_t *a) { return memset(a, 0, sizeof *a), 0; }
int __wrap_pthread_cond_init(pthread_cond_t *c, const pthread_condattr_t *a);
int __wrap_pthread_cond_init(pthread_cond_t *c, const pthread_condattr_t *a) {
    memset(c, 0, sizeof *c);
    if (a) memcpy(&((struct cond *)c)->clock, a, sizeof *a);
    return 0;
}
int __wrap_pthread_cond_destroy(pthread_cond_t *c);
int __wrap_pthread_cond_destroy(pthread_cond_t *c) { return 0; }
static int cond_wait(pthread_cond_t *c, pthread_mutex_t *m, int64_t until) {
    struct fiber *me = current;
    unlock(m);
    wait_for(ON_COND, c, until);
    const bool late = !me->is_signalled;
    lock(m);
    return late ? ETIMEDOUT : 0;
}
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m) { return cond_wait(c, m, -1), 0; }
int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *at);
int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *at) {
    int64_t t = (int64_t)at->tv_sec * 1000000000 + at->tv_nsec;
    t -= ((struct cond *)c)->clock == CLOCK_MONOTONIC ? now_ns : real_ns;
    return cond_wait(c, m, now_ns + (t > 0 ? t : 0));
}
static void wake(const pthread_cond_t *c, bool all) {
    for (int i = 0; i < n_fibers; i++) {
        struct fiber *f = fiber[i];
        if (f->wait != ON_COND || f->what != c || f->is_signalled) continue;
        f->is_signalled = true;
        if (!all) break;
    }
    fibers_point();
}
int __wrap_pthread_cond_signal(pthread_cond_t *c);
int __wrap_pthread_cond_signal(pthread_cond_t *c) { return wake(c, false), 0; }
int __wrap_pthread_cond_broadcast(pthread_cond_t *c);
int __wrap_pthread_cond_broadcast(pthread_cond_t *c) { return wake(c, true), 0; }

bool __wrap_spin_again(struct spin *s, double most_s);
bool __wrap_spin_again(struct spin *s, double most_s) {
    fibers_point();
    return ++s->polls < 3;
}
long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...) { /* hearth's only calls are futexes and a few that no fiber needs */
    va_list args;
    va_start(args, number);
    long a[6];
    for (int i = 0; i < 6; i++) a[i] = va_arg(args, long);
    va_end(args);
    if (number != SYS_futex) return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    const uint32_t *word = (const uint32_t *)a[0];
    if ((a[1] & FUTEX_CMD_MASK) != FUTEX_WAIT) return fibers_point(), 0;
    if (*word == (uint32_t)a[2]) {
        current->seen = (uint32_t)a[2];
        wait_for(ON_WORD, word, -1);
    }
    return 0;
}

/* --- Descriptors ------------------------------------------------------------------------------ */

int __real_eventfd(unsigned count, int flags);
int __wrap_eventfd(unsigned count, int flags);
int __wrap_eventfd(unsigned count, int flags) {
    const int fd = __real_eventfd(0, flags);
    if (fd >= MAX_FD) abort();
    if (fd < 0) return fd;
    event_fds[fd].is_used = true, event_fds[fd].is_nonblocking = flags & O_NONBLOCK, event_fds[fd].count = count;
    return fd;
}
int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd) {
    if (fd >= 0 && fd < MAX_FD) event_fds[fd].is_used = false;
    return __real_close(fd);
}
ssize_t __real_read(int fd, void *to, size_t n);
ssize_t __wrap_read(int fd, void *to, size_t n);
ssize_t __wrap_read(int fd, void *to, size_t n) {
    if (fd < 0 || fd >= MAX_FD || !event_fds[fd].is_used) return __real_read(fd, to, n);
    fibers_point();
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (!event_fds[fd].count && event_fds[fd].is_nonblocking) return errno = EAGAIN, -1;
    while (!event_fds[fd].count) {
        current->fds = &p, current->n_fds = 1;
        wait_for(ON_FDS, NULL, -1);
    }
    memcpy(to, &event_fds[fd].count, sizeof event_fds[fd].count);
    event_fds[fd].count = 0;
    return 8;
}
bool fibers_event_add(int fd, const void *from) {
    uint64_t n;
    if (fd < 0 || fd >= MAX_FD || !event_fds[fd].is_used) return false;
    memcpy(&n, from, sizeof n);
    event_fds[fd].count += n;
    fibers_point();
    return true;
}
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms) {
    fibers_point();
    int ready = ready_fds(fds, n);
    if (ready || !timeout_ms) return ready;
    current->fds = fds, current->n_fds = n;
    wait_for(ON_FDS, NULL, timeout_ms < 0 ? -1 : now_ns + timeout_ms * (int64_t)1000000);
    return ready_fds(fds, n);
}

/* --- Time ------------------------------------------------------------------------------------- */

int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t) {
    const int64_t step = 100 + (int64_t)fibers_random(3000);
    fibers_point();
    now_ns += step, real_ns += step;
    const int64_t ns = clock == CLOCK_REALTIME ? real_ns : now_ns;
    *t = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    return 0;
}
time_t __wrap_time(time_t *out);
time_t __wrap_time(time_t *out) { return real_ns / 1000000000; }
static void sleep_ns(int64_t ns) { wait_for(ON_TIME, NULL, now_ns + ns); }
int __wrap_nanosleep(const struct timespec *t, struct timespec *left);
int __wrap_nanosleep(const struct timespec *t, struct timespec *left) {
    return sleep_ns((int64_t)t->tv_sec * 1000000000 + t->tv_nsec), 0;
}
int __wrap_usleep(useconds_t us);
int __wrap_usleep(useconds_t us) { return sleep_ns((int64_t)us * 1000), 0; }
int __wrap_sched_yield(void);
int __wrap_sched_yield(void) { return fibers_point(), 0; }

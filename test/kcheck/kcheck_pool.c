/* Checks the thread pool: every thread runs once per call, a shared call waits for no thread that has not begun and
 * fetches one that lost its CPU, many pools open and close, more threads than cores work, an idle pool takes no CPU,
 * and a failed allocation leaks nothing. Under TSan (-Dsanitize=thread) it must also be free of races. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/spin.h"
#include "cpu/pool.h"
#include "test/kcheck/case.h"

/* Pretends to have more CPUs than there are: threads keep to themselves where pinning fails. */
static int n_pretended;
int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *mask) {
    memset(mask, 0, size);
    for (int i = 0; i < n_pretended; i++) CPU_SET((size_t)i, mask);
    return n_pretended || syscall(SYS_sched_getaffinity, pid, size, mask) > 0 ? 0 : -1;
}

enum { MAX = 16, TASKS = 40 };
struct job {
    struct pool *pool;
    _Atomic int calls[MAX];
    _Atomic int next; /* task */
    int value[MAX];   /* plain: calls are ordered */
    int done[TASKS];
};

static void count(void *arg, int t, int n) {
    struct job *j = arg;
    atomic_fetch_add(&j->calls[t], 1);
}
static void sum(void *arg, int t, int n) { ((struct job *)arg)->value[t]++; } /* calls are ordered: no atomics needed */

static void take_tasks(void *arg, int t, int n) {
    struct job *j = arg;
    for (int task; (task = atomic_fetch_add(&j->next, 1)) < TASKS;) j->done[task]++;
}
static void shares(struct job *j, int rounds) {
    memset(j->done, 0, sizeof j->done);
    for (int i = 0; i < rounds; i++) {
        if (i == rounds / 2) usleep(5000); /* by then the workers sleep */
        atomic_store(&j->next, 0);
        pool_share(j->pool, take_tasks, j);
        if (i % 7 == 0) pool_run(j->pool, sum, j);
    }
    for (int i = 0; i < TASKS; i++) CHECK(j->done[i] == rounds);
}

static void use(int n, int rounds) {
    struct error e = {0};
    static struct job j;
    begin_case("pool of %d threads, %d calls", n, rounds);
    memset(&j, 0, sizeof j);
    CHECK(!pool_open(&j.pool, n, n % 2, &e));
    CHECK(pool_threads(j.pool) == n);
    for (int i = 0; i < rounds; i++) pool_run(j.pool, count, &j);
    for (int t = 0; t < n; t++) CHECK(j.calls[t] == rounds);
    shares(&j, rounds);
    memset(j.value, 0, sizeof j.value);
    for (int i = 0; i < rounds; i++) {
        if (i == rounds / 2) usleep(5000); /* by then the workers sleep */
        pool_run(j.pool, sum, &j);
    }
    for (int t = 0; t < n; t++) CHECK(j.value[t] == rounds);
    pool_close(&j.pool);
    CHECK(!j.pool);
    pool_close(&j.pool);
}

/* Other programs, played by a signal handler and by tasks that sleep. */
static _Atomic bool is_held, is_released;
static void hold(int signal) {
    atomic_store(&is_held, true);
    for (int i = 0; !atomic_load(&is_released) && i < 30000; i++) usleep(100);
}
struct apart { /* two threads, of which the second has a CPU of its own */
    struct pool *pool;
    pthread_t thread[2];
    int cpu; /* of thread 1 */
    _Atomic bool has_begun, was_moved;
    bool helps;
};
static int cpu_of(pthread_t thread) { /* -1: it may use several */
    cpu_set_t mask;
    if (pthread_getaffinity_np(thread, sizeof mask, &mask) || CPU_COUNT(&mask) != 1) return -1;
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET((size_t)c, &mask)) return c;
    return -1;
}
static void meet(void *arg, int t, int n) { ((struct apart *)arg)->thread[t] = pthread_self(); }
static void begin_task(void *arg, int t, int n) {
    struct apart *a = arg;
    if (t) atomic_store(&a->has_begun, true);
}
/* Thread 1 has no CPU in its task until it is moved to another one. */
static void lose_cpu(void *arg, int t, int n) {
    struct apart *a = arg;
    const double begin = clock_now();
    if (t) {
        atomic_store(&a->has_begun, true);
        while (cpu_of(a->thread[1]) == a->cpu && clock_now() - begin < 5) usleep(1000);
        atomic_store(&a->was_moved, cpu_of(a->thread[1]) != a->cpu);
        return;
    }
    while (!atomic_load(&a->has_begun)) usleep(100);
    for (int i = 0; a->helps && !atomic_load(&a->was_moved) && clock_now() - begin < 10; i++) pool_help(a->pool, t, i);
}
static void wait_for_begin(void *arg, int t, int n) {
    struct apart *a = arg;
    if (t) atomic_store(&a->has_begun, true);
    while (!t && !atomic_load(&a->has_begun)) usleep(100);
}
static void loses_cpus(void) {
    struct error e = {0};
    struct apart a = {0};
    cpu_set_t all, one;
    begin_case("threads that other programs keep from their CPUs");
    if (sched_getaffinity(0, sizeof all, &all) || CPU_COUNT(&all) < 2) {
        printf("SKIPPED: needs two CPUs\n");
        return;
    }
    CHECK(!pool_open(&a.pool, 2, true, &e));
    pool_run(a.pool, meet, &a);
    pool_share(a.pool, begin_task, &a); /* may move the worker off this thread's CPU */
    a.cpu = cpu_of(a.thread[1]);
    CHECK(a.cpu >= 0);
    one = all;
    CPU_CLR((size_t)a.cpu, &one);
    CHECK(!sched_setaffinity(0, sizeof one, &one)); /* and stays off it */
    pool_share(a.pool, begin_task, &a);

    CHECK(signal(SIGUSR1, hold) != SIG_ERR && !pthread_kill(a.thread[1], SIGUSR1));
    while (!atomic_load(&is_held)) usleep(100);
    atomic_store(&a.has_begun, false);
    for (int i = 0; i < 100; i++) pool_share(a.pool, begin_task, &a);
    CHECK(!atomic_load(&a.has_begun));
    atomic_store(&is_released, true);
    usleep(20000); /* it sees that a call began, and that it has ended */
    CHECK(!atomic_load(&a.has_begun));
    pool_share(a.pool, wait_for_begin, &a);
    CHECK(atomic_load(&a.has_begun));

    for (int helps = 0; helps < 2; helps++) {
        begin_case("a thread without its CPU in a task, %s", helps ? "inside the call" : "at its end");
        a.helps = helps;
        atomic_store(&a.has_begun, false);
        atomic_store(&a.was_moved, false);
        pool_share(a.pool, lose_cpu, &a);
        CHECK(atomic_load(&a.was_moved) && cpu_of(a.thread[1]) == a.cpu);
    }

    begin_case("the caller on a worker's CPU");
    CPU_ZERO(&one);
    CPU_SET((size_t)a.cpu, &one);
    CHECK(!sched_setaffinity(0, sizeof one, &one));
    pool_share(a.pool, begin_task, &a);
    CHECK(cpu_of(a.thread[1]) >= 0 && cpu_of(a.thread[1]) != a.cpu);
    CHECK(!sched_setaffinity(0, sizeof all, &all));
    pool_close(&a.pool);
}

/* Two threads wait within a call for the caller. Neither may take the other one, which sleeps at times, for a thread
 * that has lost its CPU, and sleep until that one has finished. */
struct circle {
    struct pool *pool;
    _Atomic bool is_over;
};
static void wait_for_caller(void *arg, int t, int n) {
    struct circle *c = arg;
    if (!t) {
        usleep(20000);
        atomic_store(&c->is_over, true);
    }
    for (int i = 0; !atomic_load(&c->is_over); i++) pool_help(c->pool, t, i);
}
static void helps_in_circles(void) {
    struct error e = {0};
    struct circle c = {0};
    begin_case("threads that wait for the caller");
    n_pretended = 4;
    CHECK(!pool_open(&c.pool, 4, true, &e));
    n_pretended = 0;
    alarm(60);
    for (int i = 0; i < 20; i++) {
        atomic_store(&c.is_over, false);
        pool_share(c.pool, wait_for_caller, &c);
    }
    alarm(0);
    pool_close(&c.pool);
}
/* Workers that are late for a call, also for the last one. */
static void closes_early(void) {
    struct error e = {0};
    begin_case("pools that close while workers are late");
    n_pretended = MAX;
    alarm(60);
    for (int i = 0; i < 300; i++) {
        struct job *j = calloc(1, sizeof *j); /* a call after the last one would use freed memory */
        CHECK(j && !pool_open(&j->pool, MAX, true, &e));
        for (int k = 0; k <= i % 3; k++) {
            atomic_store(&j->next, 0);
            pool_share(j->pool, take_tasks, j);
        }
        struct pool *p = j->pool;
        memset(j, 0xff, sizeof *j);
        free(j);
        pool_close(&p);
    }
    alarm(0);
    n_pretended = 0;
}

/* CPU time of the process does not depend on other load. */
static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static void rests(int n) {
    struct error e = {0};
    static struct job j;
    begin_case("idle pool of %d threads", n);
    CHECK(!pool_open(&j.pool, n, true, &e));
    pool_run(j.pool, count, &j);
    double begin = cpu_s();
    usleep(300000);
    CHECK(cpu_s() - begin < 0.02 * n);
    pool_close(&j.pool);
}

/* A wait without limit ends once the thread has lost its CPU for a while, and so does the next one; one without a timed
 * phase is short. */
static int polls_of(double most_s) {
    struct spin s = {0};
    int polls = 0;
    while (spin_again(&s, most_s) && polls < 100000) polls++;
    return polls;
}
static void spins(void) {
    struct spin s;
    int polls = 0;
    begin_case("wait without limit");
    do /* a busy machine may take the CPU away before the test does */
        for (s = (struct spin){0}; !(s.begin_s > 0) && spin_again(&s, 1e9);) {
        }
    while (!(s.begin_s > 0));
    usleep(1000);
    while (spin_again(&s, 1e9) && polls < 1000) polls++;
    CHECK(polls < 1000);
    polls = polls_of(1e9);
    CHECK(polls > 100 && polls == polls_of(0));
}
/* A wait ends after its time also where no thread loses its CPU. */
static void ends(void) {
    bool polls_on = false;
    begin_case("wait of half a second");
    for (int i = 0; i < 2000; i++) {
        struct spin s = {.polls = 4095, .begin_s = clock_now() - 1, .last_s = clock_now()};
        polls_on |= spin_again(&s, 0.5);
    }
    CHECK(!polls_on);
    begin_case("wait after one in vain");
    struct spin s = {0};
    while (spin_again(&s, 2e-4)) {
    }
    CHECK(polls_of(1e9) == polls_of(0));
}

int main(void) {
    struct error e = {0};
    struct pool *p = NULL;
    for (int n = 1; n <= 7; n++) use(n, 300);
    for (int i = 0; i < 150; i++) use(1 + i % 5, 2);
    rests(2);
    rests(5);
    loses_cpus();
    helps_in_circles();
    closes_early();
    spins();
    ends();
    begin_case("opening a pool");
    CHECK(!pool_open(&p, 0, true, &e) && pool_threads(p) >= 1);
    pool_close(&p);
    CHECK(pool_open(&p, 5000, false, &e) == ERR_USAGE && !p && e.text[0]);
    for (int nth = 1; nth <= 2; nth++) {
        fault_set(FAULT_ALLOC, nth, false, false);
        CHECK(pool_open(&p, 3, false, &e) == ERR_MEMORY && !p);
    }
    fault_set(FAULT_ALLOC, 0, false, false);
    printf("%d failures\n", failures);
    return failures != 0;
}

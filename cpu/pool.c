/* Work is published through one counter, `turn`: even while idle, incremented once per call. Workers spin on it, since
 * within a token the next operation follows in microseconds, or after a device's part of a layer; then they sleep in a
 * futex, so that an idle chat costs nothing. Who waits for a worker uses the same two phases. With more threads than
 * CPUs (tests, a busy machine) the first one is short (spin.h).
 *
 * Another program can preempt a thread for milliseconds, while a call lasts microseconds. A shared call therefore does
 * not wait for a worker that has not started: a worker takes its seat when it starts, and the caller closes the free
 * seats at the end. A worker that is preempted inside a task is moved to the CPU of the thread that waits for it, which
 * is idle anyway. Two threads that wait for each other load one CPU only, so the scheduler may put both on the same
 * one; a worker therefore moves off the caller's CPU. */
#include "cpu/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/spin.h"
#include "cpu/numa.h"

enum { MAX_THREADS = 1024 };

enum { SHARED = 1 };                      /* in a turn: the call is shared; turns are counted in twos */
enum { TAKEN = 1, DONE = 2, CLOSED = 3 }; /* in a seat: the worker is running, has finished, or is too late */
/* A waiting thread checks after this many polls whether a worker is running, by watching its CPU time this long. */
enum { PATIENCE = 4096 };
static const double WATCH_S = 20e-6;
/* pool_help: after this many tries a thread sleeps between polls. */
enum { LONG_WAIT = 16, SLEEP_NS = 50000 };

struct worker {
    struct pool *pool;
    pthread_t thread;
    int id, cpu;                       /* cpu -1: not pinned */
    alignas(64) _Atomic uint32_t seat; /* in the latest shared call that it took part in or missed: seat_of() */
    _Atomic bool is_helping;           /* in pool_help, where it waits for others */
};

struct pool {
    alignas(64) _Atomic uint32_t turn;
    alignas(64) _Atomic uint32_t running; /* workers still inside a call of all */
    alignas(64) _Atomic uint32_t sleepers;
    alignas(64) pool_fn fn; /* published by turn */
    void *arg;
    _Atomic bool quit; /* stored before turn, loaded after it: a worker may be late for the last shared call */
    bool is_saturated;
    int caller_cpu; /* where the latest shared call began */
    double spin_s;  /* seconds */
    int n;
    struct worker *workers; /* [n]; entry 0 is the caller; its cpu is the one that no worker is pinned to */
    cpu_set_t caller_cpus;  /* for the caller: CPUs of the first thread's node without a worker */
    int n_nodes;
    uint8_t node[MAX_THREADS];                         /* of each thread */
    uint8_t nodes_by_distance[NUMA_NODES][NUMA_NODES]; /* pool_nodes_by_distance */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}
static void futex_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, MAX_THREADS, NULL, NULL, 0);
}

/* Returns when *word is no longer `seen`. `sleepers` counts threads that may need a wake-up, so that the writer skips
 * the system call while all threads spin; it is incremented before the kernel compares *word again, so no wake-up is
 * lost. */
static void wait_until_changed(struct pool *p, _Atomic uint32_t *word, uint32_t seen) {
    struct spin spin = {0};
    do
        if (atomic_load_explicit(word, memory_order_acquire) != seen) return;
    while (spin_again(&spin, p->spin_s));
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(word) == seen) futex_wait(word, seen);
    atomic_fetch_sub(&p->sleepers, 1);
}
static void wake_sleepers(struct pool *p, _Atomic uint32_t *word) {
    if (atomic_load(&p->sleepers)) futex_wake(word);
}

static void pin_to(pthread_t thread, int cpu) { /* best effort: a cpuset may have shrunk since it was read */
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    pthread_setaffinity_np(thread, sizeof one, &one);
}

static uint32_t seat_of(uint32_t turn, uint32_t value) { return (turn - SHARED) * 2 + value; }

/* A worker takes part in the shared call `turn`, unless that has ended. */
static void take_part(struct worker *w, uint32_t turn) {
    struct pool *p = w->pool;
    uint32_t seat = atomic_load(&w->seat);
    if ((int32_t)(seat - seat_of(turn, TAKEN)) >= 0) return;
    if (!atomic_compare_exchange_strong(&w->seat, &seat, seat_of(turn, TAKEN))) return;
    p->fn(p->arg, w->id, p->n);
    atomic_store(&w->seat, seat_of(turn, DONE));
    wake_sleepers(p, &w->seat);
}
static void *worker_thread(void *arg) {
    struct worker *w = arg;
    struct pool *p = w->pool;
    for (uint32_t turn = 0;;) {
        wait_until_changed(p, &p->turn, turn);
        turn = atomic_load(&p->turn);
        if (atomic_load(&p->quit)) return NULL;
        if (turn & SHARED) {
            take_part(w, turn);
            continue;
        }
        p->fn(p->arg, w->id, p->n);
        if (atomic_fetch_sub(&p->running, 1) == 1) wake_sleepers(p, &p->running);
    }
}

/* Lists the CPUs that this process may use, one per physical core before any second ones. Returns their number; the
 * first *n_cores are the first of their core. */
static int list_cpus(int *cpu, int max, int *n_cores) {
    cpu_set_t mask;
    int n = 0, turn[CPU_SETSIZE], last = 0;
    *n_cores = 0;
    if (sched_getaffinity(0, sizeof mask, &mask)) return 0;
    for (int c = 0; c < CPU_SETSIZE; c++) {
        if (!CPU_ISSET((size_t)c, &mask)) continue;
        char path[96];
        turn[c] = 0; /* number of usable siblings with a lower index: they come before this CPU */
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", c);
        FILE *f = fopen(path, "re");
        int a, b;
        for (char sep = ','; f && sep == ',' && fscanf(f, "%d", &a) == 1;) { /* "0,64" or "0-1" */
            b = a;
            sep = (char)fgetc(f);
            if (sep == '-') {
                if (fscanf(f, "%d", &b) != 1) break;
                sep = (char)fgetc(f);
            }
            for (; a <= b && a < c && a >= 0; a++) turn[c] += CPU_ISSET((size_t)a, &mask) != 0;
        }
        if (f) fclose(f);
        if (turn[c] > last) last = turn[c];
    }
    for (int t = 0; t <= last; t++)
        for (int c = 0; c < CPU_SETSIZE && n < max; c++) {
            if (!CPU_ISSET((size_t)c, &mask) || turn[c] != t) continue;
            cpu[n++] = c;
            *n_cores += !t;
        }
    return n;
}

/* Assigns each thread a node, and a CPU if pinned. */
static void assign_threads(struct pool *p, int n, bool pin, const struct numa *nodes, const int *cpu, int n_cpus,
                           int n_cores) {
    bool here = !nodes || nodes->kernel_node[0] >= 0; /* this machine's nodes, not those of a text */
    int have[NUMA_NODES] = {0}, usable = n <= n_cores ? n_cores : n_cpus;
    p->n_nodes = nodes ? nodes->n_nodes : 1;
    for (int a = 0; a < p->n_nodes; a++) {
        for (int b = 0; b < p->n_nodes; b++) p->nodes_by_distance[a][b] = (uint8_t)b;
        for (int i = 0; i < p->n_nodes; i++) /* by distance, then number; selection sort: there are few nodes */
            for (int j = i + 1; j < p->n_nodes; j++) {
                uint8_t *x = &p->nodes_by_distance[a][i], *y = &p->nodes_by_distance[a][j], t = *x;
                int dx = *x == a ? 0 : nodes->distance[a][*x], dy = *y == a ? 0 : nodes->distance[a][*y];
                if (dy < dx || (dy == dx && *y < *x)) *x = *y, *y = t;
            }
        if (!here) have[a] = nodes->cpus[a];
    }
    for (int i = 0; i < usable && here; i++) {
        int a = nodes && cpu[i] < NUMA_CPUS ? nodes->node_of[cpu[i]] : 0;
        if (a >= 0) have[a]++;
    }
    numa_threads(have, p->n_nodes, n, p->node);
    for (int t = 0, at = 0; t < n; t++) {
        p->workers[t].cpu = -1;
        if (!pin || !here || n > n_cpus) continue;
        if (t && p->node[t] != p->node[t - 1]) at = 0;
        while (at < n_cpus && nodes && (cpu[at] >= NUMA_CPUS || nodes->node_of[cpu[at]] != p->node[t])) at++;
        if (at < n_cpus) p->workers[t].cpu = cpu[at++];
    }
    for (int i = 0; i < n_cpus && pin && here && nodes; i++) {
        bool taken = cpu[i] >= NUMA_CPUS || nodes->node_of[cpu[i]] != p->node[0];
        for (int t = 1; t < n; t++) taken |= p->workers[t].cpu == cpu[i];
        if (!taken) CPU_SET((size_t)cpu[i], &p->caller_cpus);
    }
}

int pool_open(struct pool **p, int n_threads, bool pin, struct error *e) {
    return pool_open_nodes(p, n_threads, pin, NULL, e);
}

int pool_open_nodes(struct pool **out, int n_threads, bool pin, const struct numa *nodes, struct error *e) {
    *out = NULL;
    int cpu[MAX_THREADS], n_cores, n_cpus = list_cpus(cpu, MAX_THREADS, &n_cores);
    int n = n_threads;
    if (n <= 0) n = n_cores > 2 ? n_cores - 1 : n_cores;
    if (n < 1) n = 1;
    if (n > MAX_THREADS)
        return error_set(e, ERR_USAGE, "%d threads requested, at most %d are supported", n, MAX_THREADS);
    struct pool *p = mem_aligned(64, sizeof *p);
    if (!p) return error_set(e, ERR_MEMORY, "no memory for a pool of %d threads", n);
    memset(p, 0, sizeof *p);
    p->workers = mem_aligned(64, (size_t)n * sizeof *p->workers);
    if (!p->workers) {
        mem_free(p);
        return error_set(e, ERR_MEMORY, "no memory for a pool of %d threads", n);
    }
    memset(p->workers, 0, (size_t)n * sizeof *p->workers);
    p->caller_cpu = -1;
    assign_threads(p, n, pin, nodes, cpu, n_cpus, n_cores);
    p->is_saturated = n >= n_cpus;
    p->spin_s = n <= n_cpus ? SPIN_BATCH_S : 0;
    p->n = 1; /* the number of started threads, for pool_close */
    for (int i = 1; i < n; i++) {
        struct worker *w = &p->workers[i];
        w->pool = p, w->id = i;
        int rc = pthread_create(&w->thread, NULL, worker_thread, w);
        if (rc) {
            pool_close(&p);
            return error_set(e, ERR_RUNTIME, "thread %d of %d could not be started: %s; fewer may start (--threads)", i,
                             n, strerror(rc));
        }
        p->n = i + 1;
        if (w->cpu >= 0) pin_to(w->thread, w->cpu); /* not by itself: it may begin after leave_caller_cpu */
    }
    *out = p;
    return 0;
}

void pool_close(struct pool **pp) {
    struct pool *p = *pp;
    if (!p) return;
    atomic_store(&p->quit, true);
    atomic_fetch_add(&p->turn, 2);
    futex_wake(&p->turn);
    for (int i = 1; i < p->n; i++) pthread_join(p->workers[i].thread, NULL);
    mem_free(p->workers);
    mem_free(p);
    *pp = NULL;
}

int pool_threads(const struct pool *p) { return p->n; }
bool pool_is_saturated(const struct pool *p) { return p->is_saturated; }
int pool_nodes(const struct pool *p) { return p->n_nodes; }
int pool_node(const struct pool *p, int thread) { return p->node[thread]; }
const uint8_t *pool_nodes_by_distance(const struct pool *p, int node) { return p->nodes_by_distance[node]; }

void pool_pin_caller(const struct pool *p) {
    if (p->n_nodes > 1 && CPU_COUNT(&p->caller_cpus))
        pthread_setaffinity_np(pthread_self(), sizeof p->caller_cpus, &p->caller_cpus);
}

static uint32_t publish(struct pool *p, pool_fn fn, void *arg, uint32_t shared) {
    uint32_t turn = ((atomic_load(&p->turn) | SHARED) + 1) | shared;
    p->fn = fn;
    p->arg = arg;
    atomic_store(&p->turn, turn);
    wake_sleepers(p, &p->turn);
    return turn;
}

void pool_run(struct pool *p, pool_fn fn, void *arg) {
    if (p->n > 1) {
        atomic_store(&p->running, (uint32_t)p->n - 1);
        publish(p, fn, arg, 0);
    }
    fn(arg, 0, p->n);
    if (p->n > 1)
        for (uint32_t left; (left = atomic_load_explicit(&p->running, memory_order_acquire));)
            wait_until_changed(p, &p->running, left);
}

/* The caller's CPU is not a worker's: that one gets the CPU that no worker has. */
static void leave_caller_cpu(struct pool *p) {
    const int cpu = sched_getcpu();
    if (cpu == p->caller_cpu || p->workers[0].cpu < 0) return;
    p->caller_cpu = cpu;
    for (int i = 1; i < p->n; i++) {
        struct worker *w = &p->workers[i];
        if (w->cpu != cpu) continue;
        w->cpu = p->workers[0].cpu, p->workers[0].cpu = cpu;
        pin_to(w->thread, w->cpu);
    }
}

static double cpu_time(const struct worker *w) { /* seconds; -1: unknown */
    clockid_t clock;
    struct timespec t;
    if (pthread_getcpuclockid(w->thread, &clock) || clock_gettime(clock, &t)) return -1;
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
/* If the worker has been preempted, lets it finish on this CPU while this thread sleeps. */
static void bring_here(struct pool *p, struct worker *w, uint32_t seat) {
    if (w->cpu < 0) return;
    const double begin = clock_now(), used = cpu_time(w);
    while (clock_now() - begin < WATCH_S)
        if (atomic_load(&w->seat) != seat) return;
    if (used < 0 || cpu_time(w) > used) return;
    pin_to(w->thread, sched_getcpu());
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&w->seat) == seat) futex_wait(&w->seat, seat);
    atomic_fetch_sub(&p->sleepers, 1);
    pin_to(w->thread, w->cpu);
}
static void wait_for_worker(struct pool *p, struct worker *w, uint32_t seat) {
    struct spin spin = {0};
    do {
        if (atomic_load_explicit(&w->seat, memory_order_acquire) != seat) return;
        if (spin.polls % PATIENCE == PATIENCE - 1) bring_here(p, w, seat);
    } while (spin_again(&spin, p->spin_s));
    bring_here(p, w, seat);
    wait_until_changed(p, &w->seat, seat);
}

void pool_share(struct pool *p, pool_fn fn, void *arg) {
    if (p->n == 1) {
        fn(arg, 0, 1);
        return;
    }
    leave_caller_cpu(p);
    const uint32_t turn = publish(p, fn, arg, SHARED);
    fn(arg, 0, p->n);
    for (int i = 1; i < p->n; i++) {
        struct worker *w = &p->workers[i];
        for (uint32_t seat = atomic_load(&w->seat); seat != seat_of(turn, DONE);) {
            if (seat == seat_of(turn, TAKEN)) {
                wait_for_worker(p, w, seat);
                break;
            }
            if (atomic_compare_exchange_strong(&w->seat, &seat, seat_of(turn, CLOSED))) break;
        }
    }
}

/* Checks one other thread. A worker that is in pool_help itself is skipped, because two that wait for each other would
 * sleep forever. Each sets is_helping before it checks the others, so waits cannot form a cycle. */
static void help(struct pool *p, int thread, int tries) {
    struct worker *w = &p->workers[(thread + tries) % p->n]; /* several that wait look at different ones */
    const uint32_t turn = atomic_load(&p->turn), taken = seat_of(turn, TAKEN);
    if (w->id == thread) return;
    if (!w->id || w->cpu < 0) {
        /* a thread that is not pinned may be moved here by the kernel */
        if (tries >= LONG_WAIT) nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    } else if (turn & SHARED && atomic_load(&w->seat) == taken && !atomic_load(&w->is_helping)) bring_here(p, w, taken);
}
void pool_help(struct pool *p, int thread, int tries) {
    atomic_store(&p->workers[thread].is_helping, true);
    help(p, thread, tries);
    atomic_store(&p->workers[thread].is_helping, false);
}

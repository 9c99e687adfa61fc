/* Checks the thread pool: every thread runs once per call, barriers hold, many pools open and close, more threads than
 * cores work, an idle pool takes no CPU, and a failed allocation leaks nothing. Under TSan (-Dsanitize=thread) it must
 * also be free of races. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/spin.h"
#include "cpu/pool.h"
#include "test/kcheck/case.h"

enum { MAX = 16, STEPS = 20 };
struct job {
    struct pool *pool;
    _Atomic int calls[MAX];
    int value[MAX]; /* plain: barriers order the accesses */
    int wrong;
};

static void count(void *arg, int t, int n) {
    struct job *j = arg;
    atomic_fetch_add(&j->calls[t], 1);
}
/* Each thread writes its own number, then after a barrier reads its neighbour's. */
static void meet(void *arg, int t, int n) {
    struct job *j = arg;
    for (int s = 0; s < STEPS; s++) {
        j->value[t] = s * 100 + t;
        pool_barrier(j->pool);
        if (j->value[(t + 1) % n] != s * 100 + (t + 1) % n) j->wrong = 1;
        pool_barrier(j->pool);
    }
}
static void sum(void *arg, int t, int n) { ((struct job *)arg)->value[t]++; } /* calls are ordered: no atomics needed */

static void use(int n, int rounds) {
    struct error e = {0};
    static struct job j;
    begin_case("pool of %d threads, %d calls", n, rounds);
    memset(&j, 0, sizeof j);
    CHECK(!pool_open(&j.pool, n, n % 2, &e));
    CHECK(pool_threads(j.pool) == n);
    for (int i = 0; i < rounds; i++) pool_run(j.pool, count, &j);
    for (int t = 0; t < n; t++) CHECK(j.calls[t] == rounds);
    pool_run(j.pool, meet, &j);
    CHECK(!j.wrong);
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

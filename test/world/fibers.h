#pragma once
/* Threads as fibers of one process, in virtual time. The linker's --wrap gives hearth these functions in place of those
 * of the C library: pthread_*, poll, eventfd and its reads and writes, clocks and sleeps. One fiber runs at a time. At
 * a lock, an unlock, a signal, a wait or a file operation the seed decides which one is next. Virtual time moves a
 * little with each reading, and to the next timeout when all fibers wait. If there is no timeout either, a wait has no
 * signal: fibers_on_stuck is called. */
#include <stdbool.h>
#include <stdint.h>

void fibers_begin(void);            /* the caller becomes the first fiber */
void fibers_reseed(uint64_t seed);  /* of all choices from now on */
uint32_t fibers_random(uint32_t n); /* 0 .. n - 1, from the same seed */
void fibers_point(void);            /* lets another fiber run, perhaps */
/* Only fibers of this group run until the next call, beside the caller; group -1: of all groups. A new fiber has the
 * group that fibers_set_group() set last. Time stands still for the other groups. */
void fibers_only(int group);
void fibers_set_group(int group);
bool fibers_sleep_all(void); /* whether all fibers but the caller wait for something that has not come */
bool fibers_is_locked(const void *mutex);
bool fibers_event_add(int fd, const void *from); /* a write() to fd, if that is an eventfd */

void fibers_jump(double monotonic_s, double real_s); /* moves the clocks: the second one may go back */
void fibers_stall(uint32_t which, uint32_t points);  /* another fiber gets no CPU for that many points */
void fibers_describe(void);                          /* prints what each fiber waits for */

extern void (*fibers_on_stuck)(void); /* does not return */
extern void (*fibers_on_point)(void); /* called at each point of the groups that run freely */
extern uint64_t fibers_n_points, fibers_n_switches;

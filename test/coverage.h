#pragma once
/* Included before each source of test/coverage's build: a process that a signal ends writes its counters first, as
 * exit() does. */
#include <signal.h>
#include <unistd.h>

void __gcov_dump(void);

static inline int coverage_raise(int sig) {
    __gcov_dump();
    return raise(sig);
}
static inline _Noreturn void coverage_exit(int status) {
    __gcov_dump();
    _exit(status);
}
#define raise coverage_raise
#define _exit coverage_exit

#pragma once
/* Includes what cmocka needs, in the required order, and defines how to skip a test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "test/env.h"

/* cmocka counts a skipped test as passed; .ci/run counts these lines. */
#define SKIP(...) (printf("SKIPPED: " __VA_ARGS__), putchar('\n'), skip())

/* Returns the CPU seconds of this thread: unlike the clock, other processes hardly change them. */
static inline double cpu_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

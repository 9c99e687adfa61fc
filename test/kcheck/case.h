#pragma once
/* Prints mismatches with their case in words: "FAIL q4_k gemm, 5 rows, 768 columns, avx512: sum of row 2, element 17
 * is 1.25, should be 1.75 (limit 0.01)". */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { MISMATCHES_MOST = 30 }; /* printed; all are counted */
static int failures;
static const char *level = "any level"; /* the instruction set whose kernels run */
static char case_name[240];             /* format, operation, shape, and what else differs between cases */

static __attribute__((format(printf, 1, 2), unused)) void begin_case(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(case_name, sizeof case_name, format, args);
    va_end(args);
}
/* Reports what is wrong with the case, in words. */
static __attribute__((format(printf, 1, 2), unused)) void wrong(const char *format, ...) {
    va_list args;
    if (failures++ >= MISMATCHES_MOST) return;
    printf("FAIL %s, %s: ", case_name, level);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
}
/* Checks a condition that is no comparison of numbers. */
#define CHECK(x) \
    do { \
        if (!(x)) wrong("%s does not hold (line %d)", #x, __LINE__); \
    } while (0)
/* Reports one number. limit 0: the numbers must be equal. */
static __attribute__((unused)) void mismatch(const char *what, int row, int element, double got, double want,
                                             double limit) {
    if (limit > 0)
        wrong("%s of row %d, element %d is %.9g, should be %.9g (limit %.3g)", what, row, element, got, want, limit);
    else wrong("%s of row %d, element %d is %.9g, should be %.9g", what, row, element, got, want);
}
static __attribute__((unused)) void near(const char *what, int row, int element, double got, double want,
                                         double limit) {
    if (!(fabs(got - want) <= limit)) mismatch(what, row, element, got, want, limit);
}
/* Ends the program after an operation that failed. */
static __attribute__((unused)) void must(int rc) {
    if (rc) wrong("an operation returned %d", rc), exit(1);
}

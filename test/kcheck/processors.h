#pragma once
/* Programs built with PROCESSORS take the name of a processor as their first argument: "avx512", "amd" (AVX-512 with fast
 * BF16), "intel" or "intel-amx". Then cpu_flags() is that processor's, and what this one lacks of AMX runs in C. */
#include <stdbool.h>
#include <stdio.h>

#include "cpu/kernels.h"

enum { SKIPPED = 77 }; /* what meson takes for a test that was left out */

/* Before anything of cpu/ runs. False: there is no such name, or this processor lacks what it takes. */
bool processor_be(const char *name);
enum cpu_level processor_first(void); /* the lowest level that is to be checked */

/* Takes the name from the arguments and says why the test is left out. */
static inline bool processor_chosen(int *argc, char ***argv) {
#ifdef PROCESSORS
    if (*argc < 2) return false;
    const char *name = (++*argv)[0];
    --*argc;
    printf("as a processor of kind %s (speed NOT MEASURED)\n", name);
    if (processor_be(name)) return true;
    printf("SKIPPED: this processor lacks some of it\n");
    return false;
#else
    return true;
#endif
}
static inline int first_level(void) {
#ifdef PROCESSORS
    return processor_first();
#else
    return CPU_SCALAR;
#endif
}

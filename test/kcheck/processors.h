#pragma once
/* Programs built with PROCESSORS take a kind of CPU as their first argument: "avx512", "amd" (AVX-512 with fast BF16),
 * "intel" or "intel-amx". Then cpu_flags() reports that kind, and missing AMX instructions are emulated in C. */
#include <stdbool.h>
#include <stdio.h>

#include "cpu/kernels.h"

enum { SKIPPED = 77 }; /* meson's exit status for a skipped test */

/* Call before anything of cpu/ runs. Returns false if the name is unknown or this CPU lacks the instructions. */
bool processor_be(const char *name);
enum cpu_level processor_first(void); /* the lowest level to check */

/* Takes the name from the arguments; prints why the test is skipped. */
static inline bool processor_chosen(int *argc, char ***argv) {
#ifdef PROCESSORS
    if (*argc < 2) return false;
    const char *name = (++*argv)[0];
    --*argc;
    printf("as a CPU of kind %s (speed NOT MEASURED)\n", name);
    if (processor_be(name)) return true;
    printf("SKIPPED: this CPU lacks some of it\n");
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

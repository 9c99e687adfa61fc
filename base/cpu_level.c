#include "base/cpu_level.h"

#include <string.h>

static const char *const names[CPU_LEVELS] = {
    [CPU_SCALAR] = "scalar", [CPU_AVX2] = "avx2", [CPU_AVX512] = "avx512", [CPU_AMX] = "amx"};

const char *cpu_level_name(enum cpu_level l) { return names[l]; }
enum cpu_level cpu_level_find(const char *name) {
    int i = 0;
    while (i < CPU_LEVELS && strcmp(names[i], name)) i++;
    return (enum cpu_level)i;
}

/* Detects which levels this CPU and its operating system support. */
#include <stdio.h>

#include "cpu/kernels.h"

static const unsigned needed_flags[CPU_LEVELS] = {
    [CPU_AVX2] = CPU_F_AVX2,
    [CPU_AVX512] = CPU_F_AVX512,
    [CPU_AMX] = CPU_F_AVX512 | CPU_F_BF16 | CPU_F_AMX_BF16 | CPU_F_AMX_INT8,
};

bool cpu_level_has(enum cpu_level l) { return (cpu_flags() & needed_flags[l]) == needed_flags[l]; }
enum cpu_level cpu_level_best(void) {
#ifdef HEARTH_RACE_RANGES
    return CPU_SCALAR; /* the kernels that report ranges (race.h) */
#endif
    enum cpu_level l = CPU_LEVELS - 1;
    while (!cpu_level_has(l)) l--;
    return l;
}

const char *cpu_describe(void) {
    static const struct {
        unsigned flag;
        const char *name;
    } names[] = {{CPU_F_AVX2, "avx2 fma f16c"}, {CPU_F_AVXVNNI, "avxvnni"}, {CPU_F_AVX512, "avx512 f bw vl dq"},
                 {CPU_F_VBMI, "vbmi"},          {CPU_F_BF16, "bf16"},       {CPU_F_VNNI, "vnni"},
                 {CPU_F_AMX_BF16, "amx bf16"},  {CPU_F_AMX_INT8, "int8"}};
    static _Thread_local char text[160];
    unsigned f = cpu_flags();
    int n = snprintf(text, sizeof text, "%s (", cpu_level_name(cpu_level_best()));
    const char *sep = "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (f & names[i].flag) n += snprintf(text + n, sizeof text - (size_t)n, "%s%s", sep, names[i].name), sep = ", ";
    snprintf(text + n, sizeof text - (size_t)n, "%s)", *sep ? "" : "baseline x86-64");
    return text;
}

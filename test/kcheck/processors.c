/* Replaces cpu/cpu_flags.c in programs that check what every CPU would choose: this CPU with fewer features, or with
 * AMX, whose instructions such a program emulates in C (amx_emulate.h). */
#include <string.h>

#include "test/kcheck/processors.h"

#define cpu_flags flags_here
#include "cpu/cpu_flags.c"
#undef cpu_flags
unsigned cpu_flags(void);

enum {
    VNNI = CPU_F_AVX2 | CPU_F_AVX512 | CPU_F_VBMI | CPU_F_BF16 | CPU_F_VNNI,
    TILES = CPU_F_AMX_BF16 | CPU_F_AMX_INT8
};
static const struct {
    const char *name;
    unsigned flags;
    enum cpu_level first; /* levels below this are as on any other CPU */
} processors[] = {
    {"avx512", CPU_F_AVX2 | CPU_F_AVX512, CPU_AVX512},
    {"amd", VNNI | CPU_F_SUBNORMAL | CPU_F_BF16_FAST, CPU_AVX2},
    {"intel", VNNI, CPU_AVX512},
    {"intel-amx", VNNI | CPU_F_GFNI | TILES, CPU_AMX},
};
static unsigned flags;
static enum cpu_level first;

unsigned cpu_flags(void) { return flags; }

enum cpu_level processor_first(void) { return first; }
bool processor_be(const char *name) {
    for (size_t i = 0; i < sizeof processors / sizeof *processors; i++)
        if (!strcmp(processors[i].name, name)) {
            flags = processors[i].flags, first = processors[i].first;
            /* the rest affects speed only, or is emulated in C */
            return !(flags & (VNNI | CPU_F_GFNI | CPU_F_AVX2) & ~flags_here());
        }
    return false;
}

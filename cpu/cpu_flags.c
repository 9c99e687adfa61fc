/* CPU features that this process may use. CPUID reports what the CPU supports; XCR0 which registers the kernel saves,
 * without which wide instructions fault. AMX tiles also need a permission that the process requests once. */
#include <cpuid.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu/kernels.h"
#include "cpu/probe.h"

enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

static uint64_t xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static unsigned read_flags(void) {
    unsigned a, b, c, d, f = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    bool osxsave = c >> 27 & 1, avx = c >> 28 & 1, fma = c >> 12 & 1, f16c = c >> 29 & 1;
    if (!osxsave || !avx || !fma || !f16c) return 0;
    uint64_t saved = xcr0();
    if ((saved & 0x6) != 0x6) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    unsigned subleaves = a, b7 = b, c7 = c, d7 = d, a71 = 0; /* leaf 7 */
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) a71 = a;
    if (!(b7 >> 5 & 1)) return 0;
    f |= CPU_F_AVX2;
    if (probe_fast_subnormals()) f |= CPU_F_SUBNORMAL;
    if (a71 >> 4 & 1) f |= CPU_F_AVXVNNI;
    bool wide = (b7 >> 16 & 1) && (b7 >> 17 & 1) && (b7 >> 30 & 1) && (b7 >> 31 & 1); /* F, DQ, BW, VL */
    if (!wide || (saved & 0xe6) != 0xe6) return f;
    f |= CPU_F_AVX512;
    if (c7 >> 1 & 1) f |= CPU_F_VBMI;
    if (c7 >> 8 & 1) f |= CPU_F_GFNI;
    if (c7 >> 11 & 1) f |= CPU_F_VNNI;
    if (a71 >> 5 & 1) f |= probe_fast_bf16() ? CPU_F_BF16 | CPU_F_BF16_FAST : CPU_F_BF16;
    bool tile = d7 >> 24 & 1, tile_bf16 = d7 >> 22 & 1, tile_int8 = d7 >> 25 & 1;
    if (tile && tile_bf16 && tile_int8 && (saved & 0x60000) == 0x60000 && (f & CPU_F_BF16) &&
        !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA))
        f |= CPU_F_AMX_BF16 | CPU_F_AMX_INT8;
    return f;
}

unsigned cpu_flags(void) {
    static _Atomic unsigned cache; /* top bit: initialised */
    unsigned f = atomic_load_explicit(&cache, memory_order_acquire);
    if (!f) atomic_store_explicit(&cache, f = read_flags() | 1u << 31, memory_order_release);
    return f & ~(1u << 31);
}

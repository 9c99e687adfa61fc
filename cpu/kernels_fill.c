/* Chooses the kernels of a level on this CPU. */
#include "cpu/kernels.h"

#include <string.h>

#include "cpu/autotune.h"
#include "cpu/formats.h"

void kernels_fill(struct kernels *k, enum cpu_level level) {
    memset(k, 0, sizeof *k);
    kernels_scalar(k);
    unsigned f = cpu_flags();
    if (level >= CPU_AVX2) {
        kernels_avx2(k), delta_avx2(k);
        if (level == CPU_AVX2) attn_avx2(k);
        if (f & CPU_F_SUBNORMAL) kernels_format(k, &avx2sub_e4m3);
        k->whole[DT_INT4] = int4_gemv_avx2;
#define FILL(name) k->whole[FORMAT_DTYPE(name)] = intdot_avx2_##name;
        FORMATS_INTDOT(FILL)
        FORMATS_INTDOT_16(FILL)
#undef FILL
        if (f & CPU_F_AVXVNNI) {
            k->whole[DT_INT4] = int4_gemv_avxvnni;
#define FILL(name) k->whole[FORMAT_DTYPE(name)] = intdot_avxvnni_##name;
            FORMATS_INTDOT(FILL)
            FORMATS_INTDOT_16(FILL)
#undef FILL
        }
    }
    if (level >= CPU_AVX512) {
        kernels_avx512(k), delta_avx512(k);
        if (f & CPU_F_SUBNORMAL) kernels_format(k, &avx512sub_e4m3);
        else if (f & CPU_F_VBMI) kernels_format(k, autotune_e4m3());
        if (f & CPU_F_BF16_FAST) kernels_avx512bf16(k);
        else if (level >= CPU_AMX && f & CPU_F_AMX_BF16) kernels_amx(k);
        if (f & CPU_F_VNNI && f & CPU_F_VBMI && f & CPU_F_BF16) {
            k->whole[DT_INT4] = int4_gemv_avx512vnni;
#define FILL(name) k->whole[FORMAT_DTYPE(name)] = intdot_avx512vnni_##name;
            FORMATS_INTDOT(FILL)
        }
    }
}

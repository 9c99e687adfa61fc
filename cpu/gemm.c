/* Selects the many-token product of this CPU. */
#include "cpu/gemm.h"

#include "cpu/kernels.h"

bool gemm_has(const struct gemm *g) {
    const unsigned bf16 = CPU_F_AVX512 | CPU_F_VBMI | CPU_F_BF16;
    unsigned need = g == &gemm_avx2 || g == &gemm_int16_avx2                               ? CPU_F_AVX2
                    : g == &gemm_int16_avxvnni                                             ? CPU_F_AVX2 | CPU_F_AVXVNNI
                    : g == &gemm_avx512                                                    ? CPU_F_AVX512
                    : g == &gemm_int8                                                      ? CPU_F_AVX512 | CPU_F_VBMI | CPU_F_VNNI
                    : g == &gemm_avx512bf16 || g == &gemm_skinny || g == &gemm_skinny_bf16 ? bf16
                    : g == &gemm_amx || g == &gemm_amx_skinny_bf16 || g == &gemm_amx_wide  ? bf16 | CPU_F_GFNI | CPU_F_AMX_BF16
                                                                                           : 0;
    return (cpu_flags() & need) == need;
}

const struct gemm *gemm_for(enum cpu_level level, bool wide) {
    if (level >= CPU_AMX && gemm_has(&gemm_amx)) return wide ? &gemm_amx_wide : &gemm_amx;
    if (!wide && level >= CPU_AVX512 && gemm_has(&gemm_avx512bf16) && (cpu_flags() & CPU_F_BF16_FAST)) return &gemm_avx512bf16;
    if (level >= CPU_AVX512) return &gemm_avx512;
    return level >= CPU_AVX2 ? &gemm_avx2 : &gemm_scalar;
}

const struct gemm *gemm_for_weights(enum cpu_level level, int n, int batch, const struct mat *w) {
    if (level >= CPU_AMX && gemm_has(&gemm_amx) && batch > BATCH_INVARIANT_ROWS) return n <= GEMM_SKINNY_MAX ? &gemm_amx_skinny_bf16 : NULL;
    if (level == CPU_AVX2 && batch > BATCH_INVARIANT_ROWS) return gemm_has(&gemm_int16_avxvnni) ? &gemm_int16_avxvnni : &gemm_int16_avx2; /* same bits */
    if (level >= CPU_AVX512 && batch > BATCH_INVARIANT_ROWS && gemm_has(&gemm_int8) && gemm_int8.supports(w, n)) return n > GEMM_INT8_FEW ? &gemm_int8 : NULL;
    if (level < CPU_AVX512 || !gemm_has(&gemm_skinny) || !(cpu_flags() & CPU_F_BF16_FAST)) return NULL;
    return batch <= BATCH_INVARIANT_ROWS ? &gemm_skinny : n <= GEMM_SKINNY_BF16_MAX ? &gemm_skinny_bf16 : NULL;
}

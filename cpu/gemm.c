/* Selects the many-token product of this CPU. */
#include "cpu/gemm.h"

#include "cpu/kernels.h"

static unsigned needed_flags(const struct gemm *g) {
    const unsigned bf16 = CPU_F_AVX512 | CPU_F_VBMI | CPU_F_BF16;
    if (g == &gemm_avx2 || g == &gemm_int8_avx2) return CPU_F_AVX2;
    if (g == &gemm_int8_avxvnni) return CPU_F_AVX2 | CPU_F_AVXVNNI;
    if (g == &gemm_avx512) return CPU_F_AVX512;
    if (g == &gemm_int8 || g == &gemm_int8_few || g == &gemm_int16_few) return CPU_F_AVX512 | CPU_F_VBMI | CPU_F_VNNI;
    if (g == &gemm_avx512bf16 || g == &gemm_skinny || g == &gemm_skinny_bf16) return bf16;
    if (g == &gemm_amx || g == &gemm_amx_skinny_bf16 || g == &gemm_amx_wide) return bf16 | CPU_F_GFNI | CPU_F_AMX_BF16;
    return 0;
}
bool gemm_has(const struct gemm *g) {
    const unsigned need = needed_flags(g);
    return (cpu_flags() & need) == need;
}

const struct gemm *gemm_for(enum cpu_level level, bool wide) {
    if (level >= CPU_AMX && gemm_has(&gemm_amx)) return wide ? &gemm_amx_wide : &gemm_amx;
    if (!wide && level >= CPU_AVX512 && gemm_has(&gemm_avx512bf16) && (cpu_flags() & CPU_F_BF16_FAST))
        return &gemm_avx512bf16;
    if (level >= CPU_AVX512) return &gemm_avx512;
    return level >= CPU_AVX2 ? &gemm_avx2 : &gemm_scalar;
}

const struct gemm *gemm_for_weights(enum cpu_level level, int n, int batch, bool wide, const struct mat *w) {
    if (wide && batch > BATCH_INVARIANT_ROWS) return NULL; /* others round to BF16, or quantise over many columns */
    const int few = batch <= BATCH_INVARIANT_ROWS ? batch : level >= CPU_AMX ? GEMM_INT8_FEW_AMX : GEMM_INT8_FEW;
    if (level >= CPU_AVX512 && !wide && n <= few && gemm_has(&gemm_int8_few) && gemm_int8_few.supports(w, n))
        return &gemm_int8_few;
    if (level >= CPU_AVX512 && !wide && batch <= BATCH_INVARIANT_ROWS && gemm_has(&gemm_int16_few) &&
        gemm_int16_few.supports(w, n))
        return &gemm_int16_few;
    if (level >= CPU_AMX && gemm_has(&gemm_amx) && batch > BATCH_INVARIANT_ROWS)
        return n <= GEMM_SKINNY_MAX ? &gemm_amx_skinny_bf16 : NULL;
    /* With AVX-VNNI the same bits. Formats that it does not have for one token keep 16 bits of an activation in small
     * batches. */
    const int least = batch <= BATCH_INVARIANT_ROWS ? 1 : n;
    if (level == CPU_AVX2 && !wide && gemm_int8_avx2.supports(w, least))
        return gemm_has(&gemm_int8_avxvnni) ? &gemm_int8_avxvnni : &gemm_int8_avx2;
    if (level >= CPU_AVX512 && batch > BATCH_INVARIANT_ROWS && gemm_has(&gemm_int8) && gemm_int8.supports(w, n))
        return n > GEMM_INT8_LEAST ? &gemm_int8 : NULL;
    if (level < CPU_AVX512 || !gemm_has(&gemm_skinny) || !(cpu_flags() & CPU_F_BF16_FAST)) return NULL;
    return batch <= BATCH_INVARIANT_ROWS ? &gemm_skinny : n <= GEMM_SKINNY_BF16_MAX ? &gemm_skinny_bf16 : NULL;
}

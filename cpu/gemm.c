/* Selects the many-token product of this CPU, and holds what the implementations share. */
#include "cpu/gemm.h"

#include <pthread.h>
#include <string.h>

#include "cpu/gemm_inner.h"

/* ---- Choice ---- */

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

/* ---- Shared ---- */

static struct kernels kernel_tables[CPU_LEVELS];
static void fill_tables(void) {
    for (int l = 0; l < CPU_LEVELS; l++)
        if (cpu_level_has((enum cpu_level)l)) kernels_fill(&kernel_tables[l], (enum cpu_level)l);
}
const struct kernels *gemm_kernels(enum cpu_level level) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_tables);
    return &kernel_tables[level];
}

/* A scale's bits as a float32, for the scale types of interest; for others a value that is not a power of two. */
static inline uint32_t scale_bits(const struct mat *w, size_t i) {
    uint32_t word = 3;
    uint16_t half;
    if (w->scale_dtype == DT_F32) memcpy(&word, (const uint8_t *)w->scale + 4 * i, 4);
    else if (w->scale_dtype == DT_BF16) memcpy(&half, (const uint8_t *)w->scale + 2 * i, 2), word = (uint32_t)half << 16;
    else if (w->scale_dtype == DT_E8M0) word = (uint32_t)((const uint8_t *)w->scale)[i] << 23;
    return word;
}
bool gemm_folds_scales(const struct mat *w) {
    enum { LEAST = 127 - 117, MOST = 127 + 119 }; /* E4M3 exponents are -9 to 8 */
    if (w->dtype != DT_E4M3 || !w->scale || (w->block_cols < w->cols && w->block_cols % 64)) return false;
    const size_t row = (size_t)((w->cols + w->block_cols - 1) / w->block_cols), end = scale_row(w, w->rows - 1);
    for (size_t at = scale_row(w, 0);; at += (size_t)w->scale_stride) {
        bool all = true;
        for (size_t i = at; i < at + row; i++) {
            const uint32_t bits = scale_bits(w, i);
            all &= (bits & 0x807fffff) == 0 && bits >= (uint32_t)LEAST << 23 && bits <= (uint32_t)MOST << 23;
        }
        if (!all) return false;
        if (at >= end) return true;
    }
}

size_t gemm_packed_f32(int n, int k) { return (size_t)n * (size_t)gemm_blocks_f32(k) * GEMM_K_F32 * sizeof(float); }

void gemm_pack_f32(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts) {
    int begin = (int)((int64_t)n * part / parts), end = (int)((int64_t)n * (part + 1) / parts);
    for (int i = begin; i < end; i++) {
        const float *row = x + (size_t)(gather ? gather[i] : i) * (size_t)ldx;
        for (int b = 0; b < gemm_blocks_f32(k); b++) {
            float *to = (float *)dst + ((size_t)b * (size_t)n + (size_t)i) * GEMM_K_F32;
            int c = b * GEMM_K_F32, m = k - c < GEMM_K_F32 ? k - c : GEMM_K_F32;
            memcpy(to, row + c, (size_t)m * sizeof(float));
            memset(to + m, 0, (size_t)(GEMM_K_F32 - m) * sizeof(float));
        }
    }
}

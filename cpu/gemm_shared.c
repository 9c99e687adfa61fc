/* Functions and tables that all implementations of cpu/gemm.h use (gemm_inner.h). */
#include <pthread.h>
#include <string.h>

#include "cpu/gemm_inner.h"

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
    else if (w->scale_dtype == DT_BF16)
        memcpy(&half, (const uint8_t *)w->scale + 2 * i, 2), word = (uint32_t)half << 16;
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

#include "cpu/autotune.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/minifloat.h"

enum { ROWS = 32, COLS = 2048, TOKENS = 4, ROUNDS = 7 }; /* 64 KB of weights, which stay in L2 */

extern const struct format_kernels avx512_e4m3;
const struct format_kernels *const autotune_e4m3_candidates[AUTOTUNE_E4M3_CANDIDATES] = {&avx512_e4m3, &avx512vbmi_e4m3,
                                                                                         &avx512gfni_e4m3};
static const char *const names[AUTOTUNE_E4M3_CANDIDATES] = {
    "E4M3 by FP16 conversion (measured)", "E4M3 by table look-ups (measured)", "E4M3 by affine bit maps (measured)"};
int autotune_e4m3_n_candidates(void) {
    return cpu_flags() & CPU_F_GFNI ? AUTOTUNE_E4M3_CANDIDATES : AUTOTUNE_E4M3_CANDIDATES - 1;
}

/* Finite codes; subnormals as rare as in a checkpoint, where one weight in 8,000 is that small relative to its block's
 * largest. */
static uint8_t codes[ROWS * COLS];
static float x[TOKENS * COLS], y[TOKENS * ROWS];
static int best;

/* One token, which decides decode speed, and several; the minimum of interleaved rounds. */
static void measure_candidates(void) {
    const float scale = 1;
    const struct mat w = {.data = codes,
                          .scale = &scale,
                          .stride = COLS,
                          .rows = ROWS,
                          .cols = COLS,
                          .block_rows = ROWS,
                          .block_cols = COLS,
                          .scale_stride = 1,
                          .row_step = 1,
                          .dtype = DT_E4M3,
                          .scale_dtype = DT_F32};
    const float *xs[TOKENS];
    float *ys[TOKENS];
    double least[AUTOTUNE_E4M3_CANDIDATES][2];
    const int count = autotune_e4m3_n_candidates();
    for (int i = 0; i < ROWS * COLS; i++)
        codes[i] = (uint8_t)((i * 37 & 0x7f) == 0x7f || (!(i * 37 & 0x78) && i % 8192) ? 0x38 : i * 37);
    for (int i = 0; i < TOKENS * COLS; i++) x[i] = (float)(i % 17 - 8);
    for (int t = 0; t < TOKENS; t++) xs[t] = x + t * COLS, ys[t] = y + t * ROWS;
    for (int round = 0; round < ROUNDS; round++)
        for (int k = 0; k < count; k++)
            for (int several = 0; several < 2; several++) {
                double begin = clock_now();
                autotune_e4m3_candidates[k]->gemv(ys, xs, several ? TOKENS : 1, &w);
                double took = clock_now() - begin;
                if (!round || took < least[k][several]) least[k][several] = took;
            }
    for (int k = 1; k < count; k++)
        if (least[k][0] + least[k][1] < least[best][0] + least[best][1]) best = k;
}

const struct format_kernels *autotune_e4m3(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, measure_candidates);
    return autotune_e4m3_candidates[best];
}

const char *autotune_describe(void) {
    const unsigned flags = cpu_flags();
    if (!(flags & CPU_F_AVX512) || !(flags & CPU_F_VBMI) || (flags & CPU_F_SUBNORMAL)) return "";
    autotune_e4m3();
    return names[best];
}

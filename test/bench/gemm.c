/* Compares one thread's many-token products and quantised GEMVs with OpenBLAS SGEMM, in CPU time of the thread, so that
 * a busy machine disturbs them less. Each product uses another of several weight matrices, together larger than the
 * caches.
 *
 *     bench_gemm [rounds]
 *     bench_gemm formats [rounds] [avx2|avx512|amx]     each format's products relative to FP8's in the same rounds
 *     bench_gemm words [rounds]                          integer GEMVs with AVX-VNNI against those without
 *     bench_gemm scales [rounds] [avx512|amx]           FP8 with power-of-two scales against others
 *     bench_gemm few [rounds] [avx2|avx512|amx]         4 to 64 tokens of an expert with each kernel, relative to the
 * float32 FMA peak
 *
 * OpenBLAS is loaded at run time (libopenblas.so.0; OPENBLAS_CORETYPE selects its kernels) and may be missing. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cpu/formats.h"
#include "cpu/gemm.h"
#include "cpu/kernel_bench.h"
#include "cpu/kernels.h"

enum { MAX_ROUNDS = 64 };
typedef void (*sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                         const float *b, int ldb, float beta, float *c, int ldc);

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void *memory(size_t size) {
    void *p = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    if (!p) exit(2);
    return p;
}
static uint32_t rnd(void) {
    static uint32_t z = 1;
    return (z = z * 1664525u + 1013904223u) >> 8;
}

struct weights {
    struct mat *m;
    int copies;
    uint8_t *data;
    float *scale;
};
static struct weights weights(uint8_t dtype, int rows, int cols, size_t pool) {
    size_t size = dtype_bytes(dtype, (size_t)cols) * (size_t)rows;
    struct weights w = {.copies = (int)(pool / size) + 1};
    w.data = memory(size * (size_t)w.copies);
    bool scaled = dtype == DT_E4M3;
    int stride = (cols + 127) / 128;
    w.scale = memory(sizeof *w.scale * (size_t)(rows * stride));
    w.m = memory(sizeof *w.m * (size_t)w.copies);
    for (int i = 0; i < rows * stride; i++) w.scale[i] = 0.01f;
    for (size_t i = 0; i < size * (size_t)w.copies; i++) {
        w.data[i] = (uint8_t)rnd();
        if ((w.data[i] & 0x7f) == 0x7f) w.data[i] ^= 1;
    }
    for (int i = 0; i < w.copies; i++)
        w.m[i] = (struct mat){.data = w.data + size * (size_t)i,
                              .scale = scaled ? w.scale : NULL,
                              .stride = size / (size_t)rows,
                              .rows = rows,
                              .cols = cols,
                              .block_rows = dtype == DT_E4M3 ? 128 : 1,
                              .block_cols = 128,
                              .scale_stride = stride,
                              .row_step = 1,
                              .dtype = dtype,
                              .scale_dtype = DT_F32};
    return w;
}
static void weights_free(struct weights *w) { free(w->data), free(w->scale), free(w->m); }

static void products(int n, int k, int rows, int rounds, sgemm_fn sgemm) {
    static const struct gemm *const all[] = {&gemm_avx2, &gemm_avx512, &gemm_avx512bf16, &gemm_amx};
    struct weights w = weights(DT_E4M3, rows, k, 200 << 20);
    int blas_copies = sgemm ? (int)((200L << 20) / ((long)rows * k * 4)) + 1 : 0;
    float *x = memory(sizeof *x * (size_t)n * (size_t)k), *y = memory(sizeof *y * (size_t)n * (size_t)rows);
    float *dense = memory(sizeof *dense * (size_t)rows * (size_t)k * (size_t)(blas_copies + 1));
    for (size_t i = 0; i < (size_t)n * (size_t)k; i++) x[i] = (float)rnd() * 0x1p-24f - 0.5f;
    for (size_t i = 0; i < (size_t)rows * (size_t)k * (size_t)blas_copies; i++)
        dense[i] = (float)rnd() * 0x1p-24f - 0.5f;
    double t[5][MAX_ROUNDS], flop = 2.0 * n * k * rows;
    for (int r = -1; r < rounds; r++) { /* all sides in each round; the first one warms up */
        for (int g = 0; g < 4; g++) {
            if (!gemm_has(all[g])) continue;
            void *packed = memory(all[g]->packed_bytes(n, k)), *scratch = memory(all[g]->scratch_bytes(n, k));
            memset(packed, 0, all[g]->packed_bytes(n, k));
            double a = now();
            all[g]->pack(packed, x, NULL, k, n, k, 0, 1);
            all[g]->rows(&w.m[(r + 1) % w.copies], 0, rows, packed, n, y, rows, false, scratch);
            if (r >= 0) t[g][r] = now() - a;
            free(packed), free(scratch);
        }
        if (!sgemm) continue;
        double a = now();
        sgemm(101, 111, 112, n, rows, k, 1, x, k, dense + (size_t)((r + 1) % blas_copies) * (size_t)rows * (size_t)k, k,
              0, y, rows);
        if (r >= 0) t[4][r] = now() - a;
    }
    double blas = sgemm ? flop / kernel_bench_median(t[4], rounds) / 1e9 : 0;
    printf("[%4d, %5d] x [%5d, %5d]  sgemm %6.1f", n, k, k, rows, blas);
    for (int g = 0; g < 4; g++)
        if (gemm_has(all[g])) {
            double v = flop / kernel_bench_median(t[g], rounds) / 1e9;
            printf("  %s %6.1f (%.2f)", all[g]->name, v, blas > 0 ? v / blas : 0);
        }
    printf("\n");
    fflush(stdout);
    free(x), free(y), free(dense);
    weights_free(&w);
}

/* With few tokens: integer products where there are kernels for them. */
static void gemvs(int rounds) {
    static const uint8_t formats[] = {DT_E4M3, DT_BF16, DT_Q8_0, DT_Q4_K, DT_Q6_K, DT_MXFP4};
    for (int l = CPU_AVX2; l <= CPU_AVX512; l++) {
        if (!cpu_level_has((enum cpu_level)l)) continue;
        struct kernels k;
        kernels_fill(&k, (enum cpu_level)l);
        for (size_t f = 0; f < sizeof formats; f++) {
            struct weights w = weights(formats[f], 2048, 7168, 300 << 20);
            const gemv_fn gemv = kernels_gemv(&k, formats[f], false);
            float *x = memory(sizeof *x * 8 * 7168), *y = memory(sizeof *y * 8 * 2048), *ys[8];
            const float *xs[8];
            for (int i = 0; i < 8 * 7168; i++) x[i] = (float)rnd() * 0x1p-24f - 0.5f;
            for (int i = 0; i < 8; i++) xs[i] = x + 7168 * i, ys[i] = y + 2048 * i;
            printf("gemv %-6s %-8s", cpu_level_name((enum cpu_level)l), dtype_name(formats[f]));
            for (int n = 1; n <= 8; n *= 2) {
                double t[MAX_ROUNDS];
                for (int r = 0; r < rounds; r++) {
                    double a = now();
                    gemv(ys, xs, n, &w.m[r % w.copies]);
                    t[r] = now() - a;
                }
                printf("  %d token%s %5.1f GB/s", n, n > 1 ? "s" : "",
                       (double)mat_bytes(&w.m[0]) / kernel_bench_median(t, rounds) / 1e9);
            }
            printf("\n");
            fflush(stdout);
            free(x), free(y);
            weights_free(&w);
        }
    }
}

/* The integer GEMV with and without AVX-VNNI, alternately; from L2 and from memory. */
static void words(int rounds) {
    static const struct {
        uint8_t dtype;
        gemv_fn with, without;
    } all[] = {
#define ROW(name) {FORMAT_DTYPE(name), intdot_avxvnni_##name, intdot_avx2_##name},
        FORMATS_INTDOT(ROW){DT_INT4, int4_gemv_avxvnni, int4_gemv_avx2}
#undef ROW
    };
    enum { COLS = 2048, POOL = 256 << 20, PIECE = 384 << 10 };
    uint8_t *data = memory(POOL);
    float *scale = memory(POOL / 8), *x = memory(sizeof *x * 4 * COLS), *y = memory(sizeof *y * 4 * 4096), *ys[4];
    const float *xs[4];
    for (size_t i = 0; i < POOL; i++) data[i] = (uint8_t)((rnd() & 0x8f) | 0x30);
    memset(scale, 0x3c, POOL / 8);
    for (int i = 0; i < 4 * COLS; i++) x[i] = (float)rnd() * 0x1p-24f - 0.5f;
    for (int t = 0; t < 4; t++) xs[t] = x + t * COLS, ys[t] = y + t * 4096;
    printf("GB/s with AVX-VNNI / without (ratio), one thread, medians of %d rounds in turn; L2: 1 token, 2, 4; memory: "
           "1\n",
           rounds);
    for (size_t f = 0; f < sizeof all / sizeof *all; f++) {
        const size_t stride = dtype_bytes(all[f].dtype, COLS);
        struct mat w = {.stride = stride,
                        .rows = (int)(PIECE / stride),
                        .cols = COLS,
                        .block_rows = 1,
                        .row_step = 1,
                        .dtype = all[f].dtype};
        if (w.dtype == DT_E2M1) w.scale = scale, w.scale_dtype = DT_E8M0, w.block_cols = 32;
        if (w.dtype == DT_INT4) w.scale = scale, w.scale_dtype = DT_BF16, w.block_cols = 128;
        w.scale_stride = w.block_cols ? COLS / w.block_cols : 0;
        const size_t piece = stride * (size_t)w.rows;
        printf("%-8s", dtype_name(w.dtype));
        for (int c = 0; c < 4; c++) {
            const int n = c < 3 ? 1 << c : 1, pieces = c < 3 ? 64 : (int)(POOL / 2 / piece);
            double t[2][MAX_ROUNDS];
            for (int r = -1; r < rounds; r++)
                for (int v = 0; v < 2; v++) {
                    double a = now();
                    for (int i = 0; i < pieces; i++) {
                        w.data = data + (c < 3 ? 0 : (size_t)(i + (r & 1) * pieces) * piece);
                        (v ? all[f].without : all[f].with)(ys, xs, n, &w);
                    }
                    if (r >= 0) t[v][r] = now() - a;
                }
            const double bytes = (double)piece * pieces / 1e9, with = bytes / kernel_bench_median(t[0], rounds),
                         without = bytes / kernel_bench_median(t[1], rounds);
            printf("   %5.1f / %5.1f (%.2f)", with, without, with / without);
        }
        printf("\n");
    }
    free(data), free(scale), free(x), free(y);
}

/* Every format reads the same bytes, whose exponents are near 1 in all of them. */
static int formats(enum cpu_level level, int rounds) {
    static const struct {
        uint8_t dtype, scale_dtype;
        uint8_t block_rows, block_cols; /* of scales beside the weights; 0: none */
    } all[] = {{DT_E4M3, DT_F32, 128, 128},
               {DT_E2M1, DT_E8M0, 1, 32},
               {DT_E2M1, DT_E4M3, 1, 16},
               {DT_I4, DT_BF16, 1, 32},
               {DT_I4, DT_BF16, 1, 128},
               {DT_I4, DT_F32Z, 1, 128},
               {DT_I8, DT_BF16, 1, 128},
               {DT_BF16},
               {DT_Q8_0},
               {DT_Q4_0},
               {DT_Q4_K},
               {DT_Q5_K},
               {DT_Q6_K},
               {DT_IQ4_NL},
               {DT_IQ4_XS},
               {DT_MXFP4},
               {DT_Q4_1},
               {DT_Q5_0},
               {DT_Q5_1},
               {DT_Q2_K},
               {DT_Q3_K},
               {DT_IQ1_S},
               {DT_IQ1_M},
               {DT_IQ2_XXS},
               {DT_IQ2_XS},
               {DT_IQ2_S},
               {DT_IQ3_XXS},
               {DT_IQ3_S},
               {DT_TQ1_0},
               {DT_TQ2_0},
               {DT_Q1_0},
               {DT_Q2_0}};
    enum { N = sizeof all / sizeof *all, ROWS = 2048, COLS = 2048, POOL = 128 << 20, MOST = 512, SIZES = 5 };
    static const int sizes[SIZES] = {32, 64, 128, 256, 512};
    uint8_t *data = memory(POOL + 4096), *scale = memory(ROWS * COLS / 16 * 4);
    float *x = memory(sizeof *x * MOST * COLS), *y = memory(sizeof *y * MOST * ROWS);
    for (size_t i = 0; i < POOL + 4096; i++) data[i] = (uint8_t)((rnd() & 0x8f) | 0x30);
    memset(scale, 0x3c, ROWS * COLS / 16 * 4);
    for (int i = 0; i < MOST * COLS; i++) x[i] = (float)rnd() * 0x1p-24f - 0.5f;
    printf("%s, %s, [%d, %d], one thread, GFLOP/s (share of FP8's), medians of %d\n%-12s", cpu_describe(),
           cpu_level_name(level), ROWS, COLS, rounds, "tokens");
    for (int s = 0; s < SIZES; s++) printf("%14d", sizes[s]);
    double rate[N][SIZES];
    for (int s = 0; s < SIZES; s++) {
        double t[N][MAX_ROUNDS];
        for (int r = -1; r < rounds; r++)
            for (int f = 0; f < N; f++) {
                const size_t stride = dtype_bytes(all[f].dtype, COLS), size = stride * ROWS;
                const struct mat w = {.data = data + (size_t)(r + 1) % (POOL / size) * size,
                                      .scale = all[f].block_cols ? scale : NULL,
                                      .stride = stride,
                                      .rows = ROWS,
                                      .cols = COLS,
                                      .block_rows = all[f].block_cols ? all[f].block_rows : 1,
                                      .block_cols = all[f].block_cols ? all[f].block_cols : COLS,
                                      .scale_stride = all[f].block_cols ? COLS / all[f].block_cols : 0,
                                      .row_step = 1,
                                      .dtype = all[f].dtype,
                                      .scale_dtype = all[f].scale_dtype,
                                      .scale_gain = 1};
                const struct gemm *special = gemm_for_weights(level, sizes[s], MOST, false, &w),
                                  *g = special && special->supports(&w, sizes[s]) ? special : gemm_for(level, false);
                void *packed = memory(g->packed_bytes(sizes[s], COLS)),
                     *scratch = memory(g->scratch_bytes(sizes[s], COLS));
                memset(packed, 0, g->packed_bytes(sizes[s], COLS));
                double a = now();
                g->pack(packed, x, NULL, COLS, sizes[s], COLS, 0, 1);
                g->rows(&w, 0, ROWS, packed, sizes[s], y, ROWS, false, scratch);
                if (r >= 0) t[f][r] = now() - a;
                free(packed), free(scratch);
            }
        for (int f = 0; f < N; f++) rate[f][s] = 2.0 * sizes[s] * ROWS * COLS / kernel_bench_median(t[f], rounds) / 1e9;
    }
    for (int f = 0; f < N; f++) {
        char name[32];
        snprintf(name, sizeof name, all[f].block_cols ? "%s/%d" : "%s", dtype_name(all[f].dtype), all[f].block_cols);
        printf("\n%-12s", name);
        for (int s = 0; s < SIZES; s++) printf("  %5.0f (%.2f)", rate[f][s], rate[f][s] / rate[0][s]);
    }
    printf("\n");
    free(data), free(scale), free(x), free(y);
    return 0;
}

/* The kernels for a group of a prompt's tokens: GEMV, few tokens, many tokens. */
static int few(enum cpu_level level, int rounds) {
    static const uint8_t all[] = {DT_Q4_K,  DT_Q5_K, DT_Q6_K, DT_IQ4_XS, DT_Q4_0,    DT_Q5_0,
                                  DT_MXFP4, DT_Q8_0, DT_Q3_K, DT_Q2_K,   DT_IQ3_XXS, DT_IQ2_XS,
                                  DT_IQ1_S, DT_E2M1, DT_I4,   DT_E4M3,   DT_BF16};
    enum {
        N = sizeof all,
        ROWS = 768,
        COLS = 2048,
        POOL = 128 << 20,
        MOST = 64,
        SIZES = 10,
        WAYS = 4,
        LOOPS = 1 << 18
    };
    static const int sizes[SIZES] = {1, 2, 3, 4, 6, 8, 12, 16, 32, 64};
    struct kernels k;
    kernels_fill(&k, level);
    uint8_t *data = memory(POOL + 4096);
    float *scale = memory(ROWS * COLS / 32 * 4), *x = memory(sizeof *x * MOST * COLS),
          *y = memory(sizeof *y * MOST * ROWS), sink;
    for (size_t i = 0; i < POOL + 4096; i++) data[i] = (uint8_t)((rnd() & 0x8f) | 0x30);
    memset(scale, 0x3c, ROWS * COLS / 32 * 4);
    for (int i = 0; i < MOST * COLS; i++) x[i] = (float)rnd() * 0x1p-24f - 0.5f;
    printf("%s, level %s, [%d, %d], one thread, share of the FMA peak beside it, best of %d: GEMV / chosen / "
           "%s / many\n%-8s",
           cpu_describe(), cpu_level_name(level), ROWS, COLS, rounds,
           level >= CPU_AVX512 ? "in small batches" : "bytes with AVX2", "tokens");
    for (int s = 0; s < SIZES; s++) printf("%22d", sizes[s]);
    double peak = 0;
    size_t at = 0;
    for (int f = 0; f < N; f++) {
        const size_t stride = dtype_bytes(all[f], COLS), size = stride * ROWS;
        const bool apart = all[f] == DT_E4M3 || all[f] == DT_E2M1 || all[f] == DT_I4;
        const int block = all[f] == DT_E4M3 ? 128 : 32; /* columns of a scale beside the weights */
        printf("\n%-8s", dtype_name(all[f]));
        for (int s = 0; s < SIZES; s++) {
            const int n = sizes[s];
            double best[WAYS] = {0}, top = 0;
            for (int r = -1; r < rounds; r++) {
                struct mat w = {.data = data,
                                .scale = apart ? scale : NULL,
                                .stride = stride,
                                .rows = ROWS,
                                .cols = COLS,
                                .block_rows = all[f] == DT_E4M3 ? 128 : 1,
                                .block_cols = block,
                                .scale_stride = COLS / block,
                                .row_step = 1,
                                .dtype = all[f],
                                .scale_dtype = all[f] == DT_E2M1 ? DT_E8M0
                                               : all[f] == DT_I4 ? DT_BF16
                                                                 : DT_F32};
                const struct gemm *ways[WAYS] = {NULL, gemm_for_weights(level, n, MOST, false, &w),
                                                 level >= CPU_AVX512 ? gemm_for_weights(level, n, n, false, &w)
                                                 : gemm_has(&gemm_int8_avxvnni) ? &gemm_int8_avxvnni
                                                                                : &gemm_int8_avx2,
                                                 gemm_for(level, false)};
                for (int v = 1; v < WAYS; v++)
                    if (ways[v] && (!gemm_has(ways[v]) || (ways[v]->supports && !ways[v]->supports(&w, MOST))))
                        ways[v] = NULL;
                for (int v = 0; v < WAYS; v++) {
                    if (v && !ways[v]) continue;
                    w.data = data + at++ % (POOL / size) * size; /* one that no cache holds */
                    void *packed = v ? memory(ways[v]->packed_bytes(n, COLS)) : NULL,
                         *scratch = v ? memory(ways[v]->scratch_bytes(n, COLS)) : NULL;
                    if (v)
                        memset(packed, 0, ways[v]->packed_bytes(n, COLS)),
                            memset(scratch, 0, ways[v]->scratch_bytes(n, COLS));
                    double a = now();
                    if (v) {
                        ways[v]->pack(packed, x, NULL, COLS, n, COLS, 0, 1);
                        ways[v]->rows(&w, 0, ROWS, packed, n, y, ROWS, false, scratch);
                    } else
                        for (int t = 0; t < n; t += KERNEL_TOKENS) {
                            const float *xs[KERNEL_TOKENS];
                            float *ys[KERNEL_TOKENS];
                            for (int i = 0; i < KERNEL_TOKENS && t + i < n; i++)
                                xs[i] = x + (t + i) * COLS, ys[i] = y + (t + i) * ROWS;
                            kernels_gemv(&k, all[f], false)(ys, xs, n - t < KERNEL_TOKENS ? n - t : KERNEL_TOKENS, &w);
                        }
                    const double rate = 2.0 * n * ROWS * COLS / (now() - a) / 1e9;
                    best[v] = r >= 0 && rate > best[v] ? rate : best[v];
                    free(packed), free(scratch);
                }
                double a = now(), did = k.peak(LOOPS, &sink), rate = did / (now() - a) / 1e9;
                top = rate > top ? rate : top;
            }
            for (int v = 0; v < WAYS; v++) printf(v ? " %4.2f" : "   %4.2f", best[v] / top);
            fflush(stdout);
            peak = top > peak ? top : peak;
        }
    }
    printf("\npeak %.1f GFLOP/s\n", peak);
    free(data), free(scale), free(x), free(y);
    return 0;
}

/* Blocks of 128 by 128 of E4M3 with scales that a product may fold into the weights, and with others. */
static int scales(enum cpu_level level, int rounds) {
    static const int sizes[] = {4, 16, 32, 64, 128, 512};
    enum { SIZES = sizeof sizes / sizeof *sizes, ROWS = 2048, COLS = 7168, MOST = 512 };
    struct weights w = weights(DT_E4M3, ROWS, COLS, 200 << 20);
    float *power = memory(sizeof *power * ROWS * COLS / 128), *x = memory(sizeof *x * MOST * COLS),
          *y = memory(sizeof *y * MOST * ROWS);
    for (int i = 0; i < ROWS * COLS / 128; i++) power[i] = 0x1p-7f;
    for (int i = 0; i < MOST * COLS; i++) x[i] = (float)rnd() * 0x1p-24f - 0.5f;
    for (size_t i = 0; i < (size_t)w.copies * ROWS * COLS; i++) w.data[i] = (uint8_t)((w.data[i] & 0x8f) | 0x30);
    printf("%s, E4M3 [%d, %d], one thread, GFLOP/s, medians of %d\n", cpu_describe(), ROWS, COLS, rounds);
    for (size_t s = 0; s < SIZES; s++) {
        const struct gemm *special = gemm_for_weights(level, sizes[s], MOST, false, w.m),
                          *g = special && (!special->supports || special->supports(w.m, sizes[s]))
                                   ? special
                                   : gemm_for(level, false);
        void *packed = memory(g->packed_bytes(MOST, COLS)), *scratch = memory(g->scratch_bytes(MOST, COLS));
        double t[2][MAX_ROUNDS];
        for (int r = -1; r < rounds; r++)
            for (int f = 0; f < 2; f++) {
                struct mat one = w.m[(2 * r + f + 2) % w.copies];
                if (f) one.scale = power;
                double a = now();
                g->pack(packed, x, NULL, COLS, sizes[s], COLS, 0, 1);
                g->rows(&one, 0, ROWS, packed, sizes[s], y, ROWS, false, scratch);
                if (r >= 0) t[f][r] = now() - a;
            }
        const double flop = 2.0 * sizes[s] * ROWS * COLS / 1e9, plain = flop / kernel_bench_median(t[0], rounds),
                     folded = flop / kernel_bench_median(t[1], rounds);
        printf("%4d tokens, %s: others %6.1f, powers of two %6.1f (%.3f)\n", sizes[s], g->name, plain, folded,
               folded / plain);
        fflush(stdout);
        free(packed), free(scratch);
    }
    free(power), free(x), free(y);
    weights_free(&w);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "words")) {
        const int rounds = argc > 2 ? atoi(argv[2]) : 9;
        if (rounds < 1 || rounds > MAX_ROUNDS || !(cpu_flags() & CPU_F_AVXVNNI)) return 2;
        words(rounds);
        return 0;
    }
    if (argc > 1 && (!strcmp(argv[1], "formats") || !strcmp(argv[1], "few") || !strcmp(argv[1], "scales"))) {
        int rounds = argc > 2 ? atoi(argv[2]) : 9, level = CPU_SCALAR;
        if (rounds < 1 || rounds > MAX_ROUNDS) return 2;
        for (int l = CPU_AVX2; l < CPU_LEVELS; l++)
            if (cpu_level_has((enum cpu_level)l) && (argc < 4 || !strcmp(argv[3], cpu_level_name((enum cpu_level)l))))
                level = l;
        if (level == CPU_SCALAR) return 2;
        return (argv[1][0] == 's' ? scales : argv[1][1] == 'e' ? few : formats)((enum cpu_level)level, rounds);
    }
    static const int shapes[][3] = {{16, 7168, 2048},  {64, 7168, 2048},  {128, 7168, 2048},
                                    {512, 7168, 2048}, {512, 2048, 7168}, {16, 2048, 768},
                                    {64, 2048, 768},   {512, 2048, 768},  {32, 768, 2048}};
    int rounds = argc > 1 ? atoi(argv[1]) : 9;
    if (rounds < 1 || rounds > MAX_ROUNDS) return 2;
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW);
    sgemm_fn sgemm = lib ? (sgemm_fn)dlsym(lib, "cblas_sgemm") : NULL;
    char *(*core)(void) = lib ? (char *(*)(void))dlsym(lib, "openblas_get_corename") : NULL;
    printf("%s; OpenBLAS %s; one thread, GFLOP/s (share of SGEMM), medians of %d\n", cpu_describe(),
           core ? core() : "missing", rounds);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        products(shapes[i][0], shapes[i][1], shapes[i][2], rounds, sgemm);
    gemvs(rounds);
    return 0;
}

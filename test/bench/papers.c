/* Claims of paper A (section 3.4) about the FP8 GEMV that a CPU alone can check, with one thread:
 *
 *     bench_papers [rounds]
 *
 * Error: 95th percentile over the rows of random matrices with scales of 128 x 128, of the difference between two of
 * three results, relative to the rms of the exact ones: ours; a BF16 GEMV, which rounds the scaled weights, the
 * activations and its results to BF16 and sums in float32; and double precision. Latency: CPU time of the thread for
 * our GEMV and OpenBLAS's SGEMV of the same shape, in interleaved rounds, each on another of several matrices that
 * together are larger than the caches. OpenBLAS is loaded at run time (libopenblas.so.0) and may be missing. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mat_at.h"
#include "cpu/formats.h"
#include "cpu/kernel_bench.h"
#include "cpu/kernels.h"

enum { MAX_ROUNDS = 64, POOL = 200 << 20 };
typedef void (*sgemv_fn)(int order, int trans, int m, int n, float alpha, const float *a, int lda, const float *x,
                         int incx, float beta, float *y, int incy);

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
static double uniform(void) { /* in (0, 1) */
    static uint64_t z = 1;
    z = z * 6364136223846793005u + 1442695040888963407u;
    return ((double)(z >> 11) + 0.5) * 0x1p-53;
}
static float normal(void) { return (float)(sqrt(-2 * log(uniform())) * cos(2 * 3.14159265358979 * uniform())); }
static float bf16(float x) { /* nearest, ties to even */
    uint32_t u;
    memcpy(&u, &x, 4);
    u += 0x7fff + (u >> 16 & 1), u &= 0xffff0000u;
    memcpy(&x, &u, 4);
    return x;
}

/* Codes of normal numbers, as a checkpoint's: the nearest of the 256 values. */
static uint8_t code_of(float x, const float *value) {
    int best = 0;
    for (int i = 0; i < 256; i++)
        if ((i & 0x7f) != 0x7f && fabsf(value[i] - x) < fabsf(value[best] - x)) best = i;
    return (uint8_t)best;
}
static struct mat make(int rows, int cols, uint8_t *data, float *scale) {
    return (struct mat){.data = data,
                        .scale = scale,
                        .stride = (size_t)cols,
                        .rows = rows,
                        .cols = cols,
                        .block_rows = 128,
                        .block_cols = 128,
                        .scale_stride = cols / 128,
                        .row_step = 1,
                        .dtype = DT_E4M3,
                        .scale_dtype = DT_F32};
}
static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double percentile(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, ascending);
    return v[n * 95 / 100];
}

static void errors(gemv_fn gemv, int rows, int cols) {
    uint8_t *data = memory((size_t)rows * (size_t)cols), codes[4096];
    float *scale = memory((size_t)(rows / 128) * (size_t)(cols / 128) * 4), *x = memory((size_t)cols * 4),
          *y = memory((size_t)rows * 4), value[256];
    double *apart = memory((size_t)rows * 8), *ours = memory((size_t)rows * 8), *theirs = memory((size_t)rows * 8),
           sum = 0;
    for (int i = 0; i < 256; i++) {
        uint8_t one = (uint8_t)i;
        struct mat m = {.data = &one, .stride = 1, .rows = 1, .cols = 1, .row_step = 1, .dtype = DT_E4M3};
        value[i] = mat_at(&m, 0, 0);
    }
    for (int i = 0; i < 4096; i++) codes[i] = code_of(normal() * 100, value);
    for (int i = 0; i < rows * cols; i++) data[i] = codes[(int)(uniform() * 4096)];
    for (int i = 0; i < rows / 128 * (cols / 128); i++) scale[i] = (float)(1e-4 * (0.5 + uniform()));
    for (int i = 0; i < cols; i++) x[i] = normal();
    const struct mat w = make(rows, cols, data, scale);
    const float *xs[1] = {x};
    float *ys[1] = {y};
    gemv(ys, xs, 1, &w);
    for (int r = 0; r < rows; r++) {
        double exact = 0;
        float rounded = 0;
        for (int c = 0; c < cols; c++) {
            const float v = mat_at(&w, r, c);
            exact += (double)v * (double)x[c], rounded += bf16(v) * bf16(x[c]);
        }
        rounded = bf16(rounded);
        apart[r] = fabs((double)y[r] - (double)rounded), ours[r] = fabs((double)y[r] - exact),
        theirs[r] = fabs((double)rounded - exact), sum += exact * exact;
    }
    const double rms = sqrt(sum / rows);
    printf(
        "[%d, %d] 95th percentile of errors / rms: ours against BF16 %.2e, ours against exact %.2e, BF16 against exact "
        "%.2e\n",
        rows, cols, percentile(apart, rows) / rms, percentile(ours, rows) / rms, percentile(theirs, rows) / rms);
    free(data), free(scale), free(x), free(y), free(apart), free(ours), free(theirs);
}

static void latency(gemv_fn gemv, sgemv_fn sgemv, int rows, int cols, int rounds) {
    const size_t n = (size_t)rows * (size_t)cols, copies = POOL / n + 1, dense_copies = POOL / (4 * n) + 1;
    uint8_t *data = memory(n * copies);
    float *scale = memory(n / (128 * 128) * 4), *dense = memory(n * 4 * dense_copies), *x = memory((size_t)cols * 4),
          *y = memory((size_t)rows * 4);
    double t[2][MAX_ROUNDS];
    for (size_t i = 0; i < n * copies; i++) data[i] = (uint8_t)(0x30 + (i * 7 & 15));
    for (size_t i = 0; i < n / (128 * 128); i++) scale[i] = 0.01f;
    for (size_t i = 0; i < n * dense_copies; i++) dense[i] = (float)(i & 255) * 0.01f;
    for (int i = 0; i < cols; i++) x[i] = normal();
    const float *xs[1] = {x};
    float *ys[1] = {y};
    for (int r = -1; r < rounds; r++) {
        const struct mat w = make(rows, cols, data + n * ((size_t)(r + 1) % copies), scale);
        double begin = now();
        gemv(ys, xs, 1, &w);
        if (r >= 0) t[0][r] = now() - begin;
        if (!sgemv) continue;
        begin = now();
        sgemv(101, 111, rows, cols, 1, dense + n * ((size_t)(r + 1) % dense_copies), cols, x, 1, 0, y, 1);
        if (r >= 0) t[1][r] = now() - begin;
    }
    const double own = kernel_bench_median(t[0], rounds), blas = sgemv ? kernel_bench_median(t[1], rounds) : 0;
    printf("[%d, %d] FP8 GEMV %.0f us, SGEMV %.0f us (%.2f times)\n", rows, cols, own * 1e6, blas * 1e6, blas / own);
    free(data), free(scale), free(dense), free(x), free(y);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 31;
    if (rounds < 1 || rounds > MAX_ROUNDS) rounds = 31;
    struct kernels k;
    kernels_fill(&k, cpu_level_best());
    const gemv_fn gemv = kernels_gemv(&k, DT_E4M3, false);
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW);
    const sgemv_fn sgemv = lib ? (sgemv_fn)dlsym(lib, "cblas_sgemv") : NULL;
    printf("%s, %s, one thread, medians of %d interleaved rounds%s\n", cpu_describe(), cpu_level_name(cpu_level_best()),
           rounds, sgemv ? "" : ", without OpenBLAS");
    errors(gemv, 2048, 7168);
    errors(gemv, 7168, 2048);
    latency(gemv, sgemv, 2048, 7168, rounds);
    latency(gemv, sgemv, 7168, 2048, rounds);
    return 0;
}

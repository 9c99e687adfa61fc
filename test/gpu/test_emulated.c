/* Products of one token keep enough bytes under way to hide the latency of memory, by arithmetic.
 *
 * A stream's products are in FP8 while gpu_stream_set_fp8() says so, except those of few tokens, which answers have
 * too.
 *
 * Whether the programs that are named after the emulation use it: its cuBLAS is the one that is opened, and
 * CUDA_EMULATE_BLAS=0 hides it. Then a device that must use cuBLAS does not open, instead of computing with other
 * kernels. With CUDA_EMULATE_BLAS_STATUS the products of cuBLAS fail, as on a card that the library has no kernels for:
 * own kernels compute what it refused and all that follows, one line says so, and a device that must use cuBLAS
 * fails. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/minifloat.h"
#include "gpu/cuda.h"
#include "gpu/gpu.h"

int cuda_emulate_libraries(void);

/* y += x w^T, in two passes of tokens (PASS_TOKENS), each with enough tiles for cuBLAS */
enum { N = 4096 + 3 * 128 + 5, ROWS = 128, COLS = 32, BLOCK = 128 };
static int n_tokens = N; /* of the product */
struct product {
    float x[N * COLS], y[N * ROWS], wanted[N * ROWS], scale[1];
    uint16_t w[ROWS * COLS];
    uint8_t codes[ROWS * COLS];
};
static int warnings;
static void count_warning(void *ctx, enum log_level level, const char *text) {
    (void)ctx;
    warnings += level == LOG_WARN;
    printf("log: %s\n", text);
}

static void fill(struct product *p, bool is_fp8) {
    uint32_t state = 1;
    *p->scale = 0.5f;
    for (int i = 0; i < N * COLS; i++) state = state * 1664525u + 1013904223u, p->x[i] = (float)(state >> 24) / 128 - 1;
    for (int i = 0; i < ROWS * COLS; i++) {
        const float v = (float)((i * 37) % 33 - 16) / 16;
        p->w[i] = f32_to_bf16(v);
        p->codes[i] = f32_to_e4m3(v / *p->scale);
    }
    for (int t = 0; t < N; t++)
        for (int r = 0; r < ROWS; r++) {
            double sum = 0;
            for (int c = 0; c < COLS; c++)
                sum += (double)p->x[t * COLS + c] *
                       (is_fp8 ? (double)*p->scale * (double)e4m3_to_f32(p->codes[r * COLS + c])
                               : (double)bf16_to_f32(p->w[r * COLS + c]));
            p->y[t * ROWS + r] = (float)(t % 7);
            p->wanted[t * ROWS + r] = (float)(t % 7 + sum);
        }
}
/* Runs the product on the device; returns the largest difference, or -1 after a failure. in_fp8: as the products of a
 * prompt. */
static double run(struct gpu *g, struct product *p, bool is_fp8, bool in_fp8, struct error *e) {
    void *x = NULL, *y = NULL, *w = NULL, *scale = NULL;
    struct gpu_stream *s = NULL;
    const void *weights = is_fp8 ? (const void *)p->codes : p->w;
    const size_t w_size = is_fp8 ? sizeof p->codes : sizeof p->w;
    int r = gpu_alloc(g, &x, sizeof p->x, e) || gpu_alloc(g, &y, sizeof p->y, e) || gpu_alloc(g, &w, w_size, e) ||
            gpu_alloc(g, &scale, 4, e) || gpu_stream_open(g, &s, "test", false, NULL, e);
    if (!r) {
        gpu_copy(s, x, p->x, sizeof p->x, GPU_H2D);
        gpu_copy(s, y, p->y, sizeof p->y, GPU_H2D);
        gpu_copy(s, w, weights, w_size, GPU_H2D);
        gpu_copy(s, scale, p->scale, 4, GPU_H2D);
        const struct mat m = {.data = w,
                              .scale = is_fp8 ? scale : NULL,
                              .stride = COLS * (is_fp8 ? 1 : 2),
                              .rows = ROWS,
                              .cols = COLS,
                              .row_step = 1,
                              .block_rows = is_fp8 ? BLOCK : 0,
                              .block_cols = is_fp8 ? BLOCK : 0,
                              .scale_stride = 1,
                              .dtype = is_fp8 ? DT_E4M3 : DT_BF16,
                              .scale_dtype = DT_F32};
        gpu_stream_set_fp8(s, !in_fp8);
        gpu_stream_set_fp8(s, in_fp8); /* the last call counts */
        op_run(gpu_stream_exec(s), OP_LINEAR,
               &(union op_args){
                   .linear = {.y = y, .x = x, .w = m, .n = n_tokens, .ldx = COLS, .ldy = ROWS, .accumulate = true}});
        gpu_copy(s, p->y, y, sizeof p->y, GPU_D2H);
        r = gpu_stream_sync(s);
        if (r) gpu_error(g, e);
    }
    gpu_stream_close(&s);
    gpu_free(g, x), gpu_free(g, y), gpu_free(g, w), gpu_free(g, scale);
    double worst = r ? -1 : 0;
    for (int i = 0; !r && i < n_tokens * ROWS; i++) worst = fmax(worst, fabs((double)p->y[i] - (double)p->wanted[i]));
    return worst;
}

/* Two products of a device whose cuBLAS fails. Returns whether both are right, and `lines` lines said so. */
static bool computes(struct product *p, const char *list, double most, int lines) {
    struct gpu_spec spec;
    struct gpu *g = NULL;
    struct error e = {0};
    bool right = !gpu_spec_parse(&spec, list, &e) && !gpu_open(&g, &spec, 0, &e);
    warnings = 0;
    for (int i = 0; i < 2 && right; i++) {
        const bool is_fp8 = strstr(list, "fp8") != NULL;
        fill(p, is_fp8);
        const double worst = run(g, p, is_fp8, false, &e);
        printf("%s: product %d, largest difference %.2g of 8%s%s\n", list, i, worst, e.code ? ": " : "", e.text);
        right = worst >= 0 && worst < most;
    }
    gpu_close(&g);
    return right && warnings == lines;
}
static int check_failing(void) {
    struct product *p = malloc(sizeof *p);
    if (!p) return 1;
    struct gpu_spec spec;
    struct gpu *g = NULL;
    struct error e = {0};
    log_set(count_warning, NULL, LOG_WARN);
    bool right = computes(p, "0", 0.05, 1) && computes(p, "0,math=fp8", 0.5, 1) && computes(p, "0,gemm=own", 0.05, 0);
    if (gpu_spec_parse(&spec, "0,gemm=cublas", &e) || gpu_open(&g, &spec, 0, &e)) right = false;
    fill(p, false);
    right = right && run(g, p, false, false, &e) < 0 && strstr(e.text, "cublasGemmEx: NOT_SUPPORTED");
    printf("gemm=cublas: %s\n", e.text);
    gpu_close(&g);
    free(p);
    return !right;
}

/* The differences of BF16 and FP8 products with FP8 weights, of many tokens and of few. */
static int check_prompts(void) {
    struct product *p = malloc(sizeof *p);
    float *bf16 = malloc(sizeof p->y);
    struct gpu_spec spec;
    struct gpu *g = NULL;
    struct error e = {0};
    if (!p || !bf16 || gpu_spec_parse(&spec, "0", &e) || gpu_open(&g, &spec, 0, &e)) return 1;
    const bool has_fp8 = gpu_info(g)->has_fp8;
    bool right = true;
    for (n_tokens = 40; n_tokens > 0; n_tokens -= 20) {
        double off[3];
        for (int k = 0; k < 3; k++) { /* BF16, FP8, BF16 again */
            fill(p, true);
            off[k] = run(g, p, true, k == 1, &e);
            if (!k) memcpy(bf16, p->y, sizeof p->y);
            const bool same = !memcmp(bf16, p->y, (size_t)n_tokens * ROWS * 4);
            right &= off[k] >= 0 && same == (k != 1 || n_tokens <= BATCH_INVARIANT_ROWS || !has_fp8);
        }
        printf("%d tokens: largest difference in BF16 %.2g, in FP8 %.2g of 8%s\n", n_tokens, off[0], off[1],
               has_fp8 ? "" : "; the card has no FP8");
        right &= off[0] < 0.05 && off[1] < 0.5;
    }
    right &= has_fp8 == (!getenv("CUDA_EMULATE_SM") || atoi(getenv("CUDA_EMULATE_SM")) >= 89);
    gpu_close(&g);
    free(p), free(bf16);
    return !right;
}

/* Bytes under way on a multiprocessor, on average, while a matrix of `copies` experts is read by blocks of 128 threads:
 * as many as its shared memory and registers hold, at most all. */
static long under_way(enum dtype t, int rows, int cols, int copies, int n_sms, long shared) {
    const struct mat w = {.rows = rows, .cols = cols, .stride = dtype_bytes(t, (size_t)cols), .dtype = (uint8_t)t};
    const long blocks = (long)((rows + cuda_few_rows(&w) - 1) / cuda_few_rows(&w)) * copies;
    const long space = cuda_few_bytes(t, 1) + 5000; /* sums and the system's share */
    const long most = shared / space < 4 ? shared / space : 4;
    return (blocks < most * n_sms ? blocks : most * n_sms) * cuda_few_ahead(&w) / n_sms;
}
/* The latency of memory times its bandwidth, of each multiprocessor: an H100, an RTX 5090 and an RTX 4090 need 16, 8
 * and 5 KB. The output of small models has too few rows for an H100, which the table says. */
static int check_bytes_under_way(void) {
    static const struct {
        const char *name;
        int hidden, qkv, q, inter, topk; /* rows of q, k and v together; columns of the output */
    } models[] = {{"Qwen3-30B-A3B", 2048, 5120, 4096, 768, 8},       {"Qwen3.6-35B-A3B", 2048, 9216, 4096, 512, 8},
                  {"Qwen3-235B-A22B", 4096, 9216, 8192, 1536, 8},    {"gpt-oss-20b", 2880, 5120, 4096, 2880, 4},
                  {"gpt-oss-120b", 2880, 5120, 4096, 2880, 4},       {"GLM-4.5-Air", 4096, 14336, 12288, 1408, 8},
                  {"Mixtral-8x7B", 4096, 6144, 4096, 14336, 2},      {"MiniMax-M2", 3072, 8192, 6144, 1536, 8},
                  {"Qwen3-Coder-480B", 6144, 14336, 12288, 2560, 8}, {"DeepSeek-V3", 7168, 24576, 16384, 2048, 8}};
    static const struct {
        int n_sms, least;
        long shared;
    } cards[] = {{132, 16 << 10, 227 << 10}, {170, 8 << 10, 99 << 10}, {128, 5 << 10, 99 << 10}};
    static const enum dtype types[] = {DT_Q4_K, DT_E4M3, DT_Q8_0};
    int failed = 0;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            for (size_t c = 0; c < sizeof cards / sizeof *cards; c++) {
                const int h = models[i].hidden, inter = models[i].inter, topk = models[i].topk, sms = cards[c].n_sms;
                const int shapes[3][3] = {{models[i].qkv, h, 1}, {h, models[i].q, 1}, {inter, h, topk}};
                for (int k = 0; k < 3; k++) {
                    const long bytes =
                        under_way(types[t], shapes[k][0], shapes[k][1], shapes[k][2], sms, cards[c].shared);
                    if (bytes >= cards[c].least) continue;
                    failed++;
                    printf("FAIL %s, %s, %d x %d: %ld bytes under way on each of %d processors, %d wanted\n",
                           models[i].name, dtype_name(types[t]), shapes[k][0], shapes[k][1], bytes, sms,
                           cards[c].least);
                }
            }
    return failed;
}

int main(void) {
    const char *set = getenv("CUDA_EMULATE_BLAS");
    const bool wanted = !set || atoi(set);
    const char *name = cuda_blas_name();
    struct gpu_spec spec;
    struct gpu *g = NULL;
    struct error e = {0};
    if (getenv("CUDA_EMULATE_BLAS_STATUS")) return check_failing();
    if (check_prompts() || check_bytes_under_way()) return 1;
    const bool opens = !gpu_spec_parse(&spec, "0,gemm=cublas", &e) && !gpu_open(&g, &spec, 0, &e);
    gpu_close(&g);
    printf("cuBLAS: %s, the emulation was asked for %d libraries; gemm=cublas: %s\n", name ? name : "none",
           cuda_emulate_libraries(), opens ? "opens" : e.text);
    return !cuda_emulate_libraries() || !name == wanted || opens != wanted ||
           (!opens && !strstr(e.text, "gemm=cublas needs cuBLAS"));
}

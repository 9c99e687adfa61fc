/* Measures a device and its link, for the first hour with a card: copies from memory of each kind, timeline round
 * trips, products and attention by the engine's own calibration, and what that leaves out: MLA's keys and values made
 * from its cache, products with GGUF blocks, a draft's experts. An emulated device shows its configured speeds.
 *   bench_device <LIST as in --gpus> [MB to copy] [seconds of measuring]
 * Prints rows of Markdown tables, for the first rank only. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "cpu/pool.h"
#include "engine/placement/calibrate.h"
#include "engine/transfer/stage.h"

enum { UNIT = 44 << 20, ROUNDS = 200 }; /* an expert of DeepSeek-V3 */

static struct gpu_set *set;
static struct gpu *g;
static struct gpu_stream *stream;
static char *there; /* [UNIT] on the device */
static _Atomic int stop;

static void check(int rc, const char *what, const struct error *e) {
    struct error device = {0};
    if (!rc) return;
    if (!e || !e->code) gpu_error(g, &device), e = &device;
    printf("FAIL %s: %s\n", what, e->text);
    exit(1);
}

/* --- Copies ----------------------------------------------------------------------------------- */

/* Creates a file of that size, mapped read-only as checkpoints are. */
static const char *mapped(size_t bytes) {
    char path[] = "/tmp/bench_device.XXXXXX", block[1 << 16];
    int fd = mkstemp(path);
    if (fd < 0) return NULL;
    unlink(path);
    for (size_t i = 0; i < sizeof block; i++) block[i] = (char)(i * 37);
    for (size_t at = 0; at < bytes; at += sizeof block)
        if (write(fd, block, sizeof block) != (ssize_t)sizeof block) return NULL;
    void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? NULL : p;
}

static void row(const char *what, size_t bytes, double seconds) {
    printf("| %s | %.1f GB/s |\n", what, (double)bytes / seconds * 1e-9);
}

/* Copies whole units of [from, from + bytes); from NULL: always the same pinned one. */
static double copy_seconds(const char *from, char *pinned, size_t bytes, enum gpu_dir dir) {
    double begin = clock_now();
    for (size_t at = 0; at + UNIT <= bytes; at += UNIT)
        check(gpu_copy(stream, dir == GPU_H2D ? there : pinned, dir == GPU_H2D ? (from ? from + at : pinned) : there,
                       UNIT, dir),
              "copy", NULL);
    check(gpu_stream_sync(stream), "copies", NULL);
    return clock_now() - begin;
}

static void copies(size_t bytes) {
    struct error e = {0};
    char *pinned;
    bytes = bytes / UNIT * UNIT;
    const char *file = mapped(bytes);
    if (!file)
        check(ERR_RUNTIME, "a file to copy from",
              &(struct error){.code = ERR_RUNTIME, .text = "it could not be made in /tmp"});
    check(gpu_host_alloc(g, (void **)&pinned, UNIT, &e), "pinned memory", &e);
    memset(pinned, 1, UNIT);
    printf("| copies of 44 MB | |\n|---|---|\n");
    copy_seconds(NULL, pinned, UNIT, GPU_H2D); /* one-time setup */
    row("pinned memory to the device", bytes, copy_seconds(NULL, pinned, bytes, GPU_H2D));
    row("the device to pinned memory", bytes, copy_seconds(NULL, pinned, bytes, GPU_D2H));
    row("a mapped file as it lies", bytes, copy_seconds(file, NULL, bytes, GPU_H2D));
    for (int threads = 1; threads <= 8; threads *= 2) {
        struct stage *s;
        char name[80];
        check(stage_open(
                  &s, &(struct stage_options){.set = set, .g = g, .stream = stream, .stop = &stop, .threads = threads},
                  &e),
              "stage", &e);
        double begin = clock_now();
        for (size_t at = 0; at < bytes; at += UNIT)
            check(stage_send(s, &(struct stage_unit){.runs = &(struct copy_run){.host = file + at, .bytes = UNIT},
                                                     .n = 1,
                                                     .to = there}),
                  "stage", NULL);
        check(stage_flush(s), "stage", NULL);
        stage_close(&s);
        snprintf(name, sizeof name, "a mapped file through buffers, threads: %d", threads);
        row(name, bytes, clock_now() - begin);
    }
    double begin = clock_now();
    if (gpu_host_register(g, file, bytes, &e)) printf("| a mapped file, pinned | %s |\n", e.text);
    else {
        double took = clock_now() - begin;
        row("a mapped file, pinned", bytes, copy_seconds(file, NULL, bytes, GPU_H2D));
        printf("| pinning it | %.2f s a GB |\n", took / ((double)bytes * 1e-9));
        gpu_host_unregister(g, file, bytes);
    }
    gpu_host_free(g, pinned);
    munmap((void *)file, bytes);
}

/* --- Hand-off --------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
/* The host signals a timeline that the stream waits for, and the stream one that the host waits for: a round trip. */
static void hand_off(void) {
    struct gpu_timeline *to, *from;
    struct error e = {0};
    double took[ROUNDS];
    check(gpu_timeline_open(g, &to, &e), "number", &e);
    check(gpu_timeline_open(g, &from, &e), "number", &e);
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        check(gpu_timeline_wait(to, i, stream), "number", NULL);
        check(gpu_timeline_signal(from, i, stream), "number", NULL);
        double begin = clock_now();
        gpu_timeline_signal_host(to, i);
        check(gpu_timeline_wait_host(from, i, NULL), "number", NULL);
        took[i - 1] = clock_now() - begin;
    }
    check(gpu_stream_sync(stream), "numbers", NULL);
    gpu_timeline_close(&to);
    gpu_timeline_close(&from);
    qsort(took, ROUNDS, sizeof *took, by_time);
    printf("\n| a number to the device and one back | median %.1f us | p95 %.1f us |\n|---|---|---|\n",
           took[ROUNDS / 2] * 1e6, took[ROUNDS * 95 / 100] * 1e6);
}

/* --- Products and attention ------------------------------------------------------------------- */

static void rates(const char *list, double seconds) {
    static const char *const kinds[COST_KINDS] = {
        [COST_FFN] = "experts", [COST_LINEAR] = "linear", [COST_ATTENTION] = "attention", [COST_ELEM] = "others"};
    static const char *const formats[COST_FORMATS] = {
        [COST_F32] = "F32", [COST_16BIT] = "BF16", [COST_8BIT] = "FP8", [COST_4BIT] = "4 bit"};
    struct cost_machine m;
    struct error e = {0};
    struct pool *pool;
    struct exec *cpu;
    check(pool_open(&pool, 1, false, &e), "pool", &e);
    if (!(cpu = cpu_exec_open(pool, cpu_level_best(), &e))) check(ERR_MEMORY, "processor", &e);
    check(calibrate(&m,
                    &(struct calibrate_options){.cpu = cpu,
                                                .threads = 1,
                                                .gpu = &g,
                                                .n_gpus = 1,
                                                .gpus = list,
                                                .seconds = seconds,
                                                .bytes = (size_t)256 << 20},
                    &e),
          "measuring", &e);
    const struct cost_domain *d = &m.domain[1];
    printf("\n| products and attention | rows: TFLOP/s | GB/s read | by itself |\n|---|---|---|---|\n");
    for (int k = 0; k < COST_KINDS; k++)
        for (int f = 0; f < COST_FORMATS; f++) {
            const struct cost_curve *c = &d->rate[k][f];
            if (!c->n) continue;
            printf("| %s, %s |", kinds[k], formats[f]);
            for (int i = 0; i < c->n; i++) printf(" %g: %.3g", (double)c->rows[i], (double)c->value[i] * 1e-12);
            printf(" | %.0f | %.1f us |\n", d->bw[k].n ? (double)d->bw[k].value[0] * 1e-9 : 0, d->latency[k] * 1e6);
        }
    printf("| link to the device | | %.1f | %.1f us |\n| link from it | | %.1f | %.1f us |\n",
           d->link[COST_H2D].rate * 1e-9, d->link[COST_H2D].latency * 1e6, d->link[COST_D2H].rate * 1e-9,
           d->link[COST_D2H].latency * 1e6);
    cpu_exec_close(&cpu);
    pool_close(&pool);
}

/* --- Single operations ------------------------------------------------------------------------ */

/* Fills device memory with one byte value, for which no format's code or scale is special. */
static void *bytes_new(size_t n) {
    struct error e = {0};
    void *p;
    check(gpu_alloc(g, &p, n, &e), "device memory", &e);
    check(gpu_fill(stream, p, 0x11, n), "filling", NULL);
    return p;
}
static struct mat mat_new(int rows, int cols, enum dtype t) {
    size_t stride = dtype_bytes(t, (size_t)cols);
    return (struct mat){.data = bytes_new((size_t)rows * stride),
                        .stride = stride,
                        .rows = rows,
                        .cols = cols,
                        .row_step = 1,
                        .dtype = (uint8_t)t};
}
/* Returns the median of a few runs, after one that does the one-time setup. */
static double op_seconds(enum op_code code, const union op_args *a) {
    enum { TIMES = 5 };
    double took[TIMES];
    for (int i = -1; i < TIMES; i++) {
        double begin = clock_now();
        check(op_run(gpu_stream_exec(stream), code, a), op_name(code), NULL);
        check(gpu_stream_sync(stream), op_name(code), NULL);
        if (i >= 0) took[i] = clock_now() - begin;
    }
    qsort(took, TIMES, sizeof *took, by_time);
    return took[TIMES / 2];
}

/* With DeepSeek-V3's shapes, divided by `by` on emulated devices. */
static void expanded(int by) {
    const int keys = 32768 / by, heads = by > 1 ? 2 : 16, latent = 576;
    struct mat w = mat_new(heads * 256, 512, DT_BF16);
    void *cache = bytes_new((size_t)keys * (size_t)latent * 2), *k = bytes_new((size_t)keys * (size_t)heads * 384),
         *v = bytes_new((size_t)keys * (size_t)heads * 256);
    union op_args a = {
        .expand = {k, v, {.data = cache, .heads = 1, .dim = latent, .dtype = DT_BF16}, w, 0, keys, heads, 128, 128}};
    double took = op_seconds(OP_EXPAND, &a);
    printf("| keys and values of %d heads from %d latents | %.3g TFLOP/s | %.2f ms |\n", heads, keys,
           2.0 * keys * w.rows * w.cols / took * 1e-12, took * 1e3);
    gpu_free(g, k), gpu_free(g, v), gpu_free(g, cache), gpu_free(g, (void *)w.data);
}
/* The time of one operation among several that are enqueued together, so that the host's part does not count. */
static double op_seconds_among(enum op_code code, const union op_args *a) {
    enum { TIMES = 5, MORE = 8 };
    double took[2][TIMES];
    for (int i = -1; i < TIMES; i++)
        for (int more = 0; more < 2; more++) {
            double begin = clock_now();
            for (int k = 0; k <= more * MORE; k++) check(op_run(gpu_stream_exec(stream), code, a), op_name(code), NULL);
            check(gpu_stream_sync(stream), op_name(code), NULL);
            if (i >= 0) took[more][i] = clock_now() - begin;
        }
    for (int more = 0; more < 2; more++) qsort(took[more], TIMES, sizeof **took, by_time);
    const double all = took[1][TIMES / 2], one = took[0][TIMES / 2];
    return all > one ? (all - one) / MORE : one;
}
/* Of 58 to 125 MB, more than the caches hold. */
static void blocks(int by) {
    static const enum dtype types[] = {DT_Q4_K, DT_Q6_K, DT_Q8_0, DT_IQ4_XS, DT_MXFP4, DT_Q5_K, DT_IQ4_NL, DT_Q4_0};
    static const int tokens[] = {1, 4, 16, 32, 128, 512};
    const int rows = 57344 / by, cols = 2048, most = by > 1 ? 32 : 512;
    float *x = bytes_new((size_t)most * (size_t)cols * 4), *y = bytes_new((size_t)most * (size_t)rows * 4);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct mat w = mat_new(rows, cols, types[i]);
        printf("| %s, tokens: GB/s of weights, TFLOP/s |", dtype_name(types[i]));
        for (size_t k = 0; k < sizeof tokens / sizeof *tokens && tokens[k] <= most; k++) {
            const int n = tokens[k];
            double took = op_seconds_among(
                OP_LINEAR, &(union op_args){.linear = {.y = y, .x = x, .w = w, .n = n, .ldx = cols, .ldy = rows}});
            printf(" %d: %.0f, %.3g", n, (double)mat_bytes(&w) / took * 1e-9, 2.0 * n * rows * cols / took * 1e-12);
        }
        printf(" |\n");
        fflush(stdout);
        gpu_free(g, (void *)w.data);
    }
    gpu_free(g, x), gpu_free(g, y);
}
/* Causal attention of a whole prompt in chunks, 32 heads of 128 over 4, keys in BF16: half of the pairs are visible. */
static void prompts(int by) {
    enum { HEADS = 32, KV_HEADS = 4, DIM = 128 };
    const int chunk = 8192 / by;
    for (int n = 2048 / by; n <= (by > 1 ? 2048 : 32768) / by; n *= 4) {
        const size_t wide = (size_t)chunk * HEADS * DIM * 4, row = KV_HEADS * DIM * 2;
        float *q = bytes_new(wide), *out = bytes_new(wide);
        void *k = bytes_new((size_t)n * row), *v = bytes_new((size_t)n * row);
        double took = 0;
        for (int at = 0; at < n; at += chunk) {
            const int rows = n - at < chunk ? n - at : chunk;
            took += op_seconds(
                OP_ATTENTION,
                &(union op_args){.attention = {.out = out,
                                               .q = q,
                                               .k = {.data = k, .heads = KV_HEADS, .dim = DIM, .dtype = DT_BF16},
                                               .v = {.data = v, .heads = KV_HEADS, .dim = DIM, .dtype = DT_BF16},
                                               .n = rows,
                                               .n_heads = HEADS,
                                               .v_dim = DIM,
                                               .ldq = HEADS * DIM,
                                               .ldo = HEADS * DIM,
                                               .q_pos0 = at,
                                               .n_keys = at + rows,
                                               .scale = 0.088f}});
        }
        printf("| attention of %d tokens, 32 heads over 4 | %.1f TFLOP/s | %.2f ms |\n", n,
               2.0 * n * (double)n * HEADS * DIM / took * 1e-12, took * 1e3);
        fflush(stdout);
        gpu_free(g, q), gpu_free(g, out), gpu_free(g, k), gpu_free(g, v);
    }
}
static void draft(int by) {
    enum { EXPERTS = 16, TOPK = 8 };
    const int hidden = 7168 / by / 128 * 128, inter = 2048 / by;
    const int shape[3][2] = {{inter, hidden}, {inter, hidden}, {hidden, inter}};
    size_t each = 0;
    for (int i = 0; i < 3; i++) each += (size_t)shape[i][0] * (size_t)shape[i][1] / 128 * 66;
    each = (each + 63) & ~(size_t)63;
    const char *mem = bytes_new(each * EXPERTS);
    struct expert e[EXPERTS];
    for (int k = 0; k < EXPERTS; k++) {
        struct mat *m[3] = {&e[k].gate, &e[k].up, &e[k].down};
        const char *at = mem + (size_t)k * each, *scale = at + (size_t)hidden * (size_t)inter / 2 * 3;
        e[k] = (struct expert){0};
        for (int i = 0; i < 3; i++) {
            const int rows = shape[i][0], cols = shape[i][1];
            *m[i] = (struct mat){at, scale, (size_t)cols / 2, rows, cols, 1, 128, cols / 128, 0, 1, DT_INT4, DT_BF16};
            at += (size_t)rows * (size_t)cols / 2, scale += (size_t)rows * (size_t)cols / 64;
        }
    }
    int32_t ids[TOPK];
    for (int i = 0; i < TOPK; i++) ids[i] = i * 2;
    float *x = bytes_new((size_t)hidden * 4), *y = bytes_new((size_t)hidden * 4), *weights = bytes_new(TOPK * 4);
    int32_t *chosen = bytes_new(sizeof ids);
    check(gpu_copy(stream, chosen, ids, sizeof ids, GPU_H2D), "copy", NULL);
    check(gpu_stream_sync(stream), "copy", NULL);
    union op_args a = {.experts = {.y = y,
                                   .x = x,
                                   .ids = chosen,
                                   .weights = weights,
                                   .experts = e,
                                   .n = 1,
                                   .topk = TOPK,
                                   .n_experts = EXPERTS,
                                   .hidden = hidden}};
    double took = op_seconds(OP_EXPERTS, &a);
    printf("| a draft's experts in INT4, one token | %.1f GB/s | %.1f us |\n", (double)each * TOPK / took * 1e-9,
           took * 1e6);
    gpu_free(g, x), gpu_free(g, y), gpu_free(g, weights), gpu_free(g, there), gpu_free(g, (void *)mem);
}
static void operations(bool emulated) {
    printf("\n| operations of their own | | |\n|---|---|---|\n");
    expanded(emulated ? 64 : 1);
    blocks(emulated ? 64 : 1);
    prompts(emulated ? 32 : 1);
    draft(emulated ? 8 : 1);
}

static void quiet(void *ctx, enum log_level level, const char *text) {}

int main(int argc, char **argv) {
    size_t mb = argc > 2 ? (size_t)atol(argv[2]) : 2048;
    double seconds = argc > 3 ? atof(argv[3]) : 5;
    struct error e = {0};
    if (argc < 2)
        return fprintf(stderr, "usage: bench_device <LIST as --gpus> [MB to copy] [seconds of measuring]\n"), 2;
    log_set(quiet, NULL, LOG_WARN);
    if (mb < 44 || gpu_set_open(&set, argv[1], &e) || !set) {
        printf("FAIL %s: %s\n", argv[1], e.code ? e.text : "no device, or less than 44 MB");
        return 1;
    }
    g = set->gpu[0];
    check(gpu_stream_open(g, &stream, "bench", false, &stop, &e), "stream", &e);
    check(gpu_alloc(g, (void **)&there, UNIT, &e), "device memory", &e);
    printf("%s, %s, %.1f GB\n\n", gpu_info(g)->backend, gpu_info(g)->name, (double)gpu_info(g)->mem * 1e-9);
    fflush(stdout);
    copies(mb << 20);
    fflush(stdout);
    hand_off();
    fflush(stdout);
    gpu_free(g, there);
    rates(argv[1], seconds);
    fflush(stdout);
    operations(strcmp(gpu_info(g)->backend, "cuda") != 0);
    gpu_stream_close(&stream);
    gpu_set_close(&set);
    return 0;
}

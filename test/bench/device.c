/* What a device and its link do, for the first hour with a card: copies from memory of each kind, handing a number to and fro,
 * products and attention by the measurement that the engine plans with. On an emulated device it shows the speeds that it was given.
 *   bench_device <LIST as --gpus> [MB to copy] [seconds of measuring]
 * Prints rows of Markdown tables; the first rank alone. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cpu/ops.h"
#include "cpu/pool.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/pipe/stage.h"
#include "engine/sched/calibrate.h"

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

/* --- Copies ---------------------------------------------------------------------------------------------------------------------- */

/* A file of so many bytes, mapped read-only as checkpoints are. */
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

static void row(const char *what, size_t bytes, double seconds) { printf("| %s | %.1f GB/s |\n", what, (double)bytes / seconds * 1e-9); }

/* Whole units of [from, from + bytes), where from is NULL always the same pinned one. */
static double copy_seconds(const char *from, char *pinned, size_t bytes, enum gpu_dir dir) {
    double begin = clock_now();
    for (size_t at = 0; at + UNIT <= bytes; at += UNIT)
        check(gpu_copy(stream, dir == GPU_H2D ? there : pinned, dir == GPU_H2D ? (from ? from + at : pinned) : there, UNIT, dir), "copy", NULL);
    check(gpu_stream_sync(stream), "copies", NULL);
    return clock_now() - begin;
}

static void copies(size_t bytes) {
    struct error e = {0};
    char *pinned;
    bytes = bytes / UNIT * UNIT;
    const char *file = mapped(bytes);
    if (!file) check(ERR_RUNTIME, "a file to copy from", &(struct error){.code = ERR_RUNTIME, .text = "it could not be made in /tmp"});
    check(gpu_host_alloc(g, (void **)&pinned, UNIT, &e), "pinned memory", &e);
    memset(pinned, 1, UNIT);
    printf("| copies of 44 MB | |\n|---|---|\n");
    copy_seconds(NULL, pinned, UNIT, GPU_H2D); /* what is set up once */
    row("pinned memory to the device", bytes, copy_seconds(NULL, pinned, bytes, GPU_H2D));
    row("the device to pinned memory", bytes, copy_seconds(NULL, pinned, bytes, GPU_D2H));
    row("a mapped file as it lies", bytes, copy_seconds(file, NULL, bytes, GPU_H2D));
    for (int threads = 1; threads <= 8; threads *= 2) {
        struct stage *s;
        char name[80];
        check(stage_open(&s, &(struct stage_options){.set = set, .g = g, .stream = stream, .stop = &stop, .threads = threads}, &e), "stage", &e);
        double begin = clock_now();
        for (size_t at = 0; at < bytes; at += UNIT)
            check(stage_send(s, &(struct stage_unit){.runs = &(struct pipe_run){.host = file + at, .bytes = UNIT}, .n = 1, .to = there}), "stage", NULL);
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

/* --- Hand-off --------------------------------------------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
/* The host writes a number that the stream waits for, and the stream one that the host waits for: there and back. */
static void hand_off(void) {
    struct gpu_number *to, *from;
    struct error e = {0};
    double took[ROUNDS];
    check(gpu_number_open(g, &to, &e), "number", &e);
    check(gpu_number_open(g, &from, &e), "number", &e);
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        check(gpu_number_wait(to, i, stream), "number", NULL);
        check(gpu_number_write(from, i, stream), "number", NULL);
        double begin = clock_now();
        gpu_number_set(to, i);
        check(gpu_number_await(from, i, NULL), "number", NULL);
        took[i - 1] = clock_now() - begin;
    }
    check(gpu_stream_sync(stream), "numbers", NULL);
    gpu_number_close(&to);
    gpu_number_close(&from);
    qsort(took, ROUNDS, sizeof *took, by_time);
    printf("\n| a number to the device and one back | median %.1f us | p95 %.1f us |\n|---|---|---|\n", took[ROUNDS / 2] * 1e6, took[ROUNDS * 95 / 100] * 1e6);
}

/* --- Products and attention ----------------------------------------------------------------------------------------------------- */

static void rates(const char *list, double seconds) {
    static const char *const kinds[COST_KINDS] = {[COST_FFN] = "experts", [COST_LINEAR] = "linear", [COST_ATTENTION] = "attention", [COST_ELEM] = "others"};
    static const char *const formats[COST_FORMATS] = {[COST_F32] = "F32", [COST_16BIT] = "BF16", [COST_8BIT] = "FP8", [COST_4BIT] = "4 bit"};
    struct cost_machine m;
    struct error e = {0};
    struct pool *pool;
    struct exec *cpu;
    check(pool_open(&pool, 1, false, &e), "pool", &e);
    if (!(cpu = cpu_exec_open(pool, cpu_level_best(), &e))) check(ERR_MEMORY, "processor", &e);
    check(calibrate(&m,
                    &(struct calibrate_options){.cpu = cpu, .threads = 1, .gpu = &g, .n_gpus = 1, .gpus = list, .seconds = seconds, .bytes = (size_t)256 << 20},
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
    printf("| link to the device | | %.1f | %.1f us |\n| link from it | | %.1f | %.1f us |\n", d->link[COST_H2D].rate * 1e-9, d->link[COST_H2D].latency * 1e6,
           d->link[COST_D2H].rate * 1e-9, d->link[COST_D2H].latency * 1e6);
    cpu_exec_close(&cpu);
    pool_close(&pool);
}

static void quiet(void *ctx, enum log_level level, const char *text) {}

int main(int argc, char **argv) {
    size_t mb = argc > 2 ? (size_t)atol(argv[2]) : 2048;
    double seconds = argc > 3 ? atof(argv[3]) : 5;
    struct error e = {0};
    if (argc < 2) return fprintf(stderr, "usage: bench_device <LIST as --gpus> [MB to copy] [seconds of measuring]\n"), 2;
    log_set(quiet, NULL, LOG_WARN);
    if (mb < 44 || gpu_set_open(&set, argv[1], NULL, &e) || !set) {
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
    gpu_stream_close(&stream);
    gpu_set_close(&set);
    return 0;
}

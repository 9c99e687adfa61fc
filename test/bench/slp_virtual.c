/* Time to first token of DeepSeek-V3 on paper A's machine (two EPYC 9355, RTX 5090s, 57 GB/s to each), in virtual time:
 * the engine's pipeline code on devices that only advance clocks. Weights are addresses without memory.
 * usage: slp_virtual [check | table | layer | ring | few | memory | ratios | trace emu:N,virtual TOKENS FILE] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/exec/stream/slp.h"
#include "virtual_v3.h"

static struct slp_stats run(const char *gpus, int ranks, int n, const char *trace) {
    static struct kv_layer planes[61];
    struct gpu_set *set;
    struct error e = {0};
    struct slp_stats s = {0};
    for (int i = 0; i < 61; i++)
        planes[i].p[0] = (struct kv_plane){.data = v3.mem, .heads = 1, .dim = 576, .dtype = DT_BF16};
    if (gpu_set_open(&set, gpus, &e)) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
    struct slp_job j = {.w = &v3.w, .set = set, .ranks = ranks, .cache = planes, .n = n, .trace_path = trace};
    if (slp_prefill(&j, &s, &e)) {
        s.seconds = -1;
        fprintf(stderr, "%s, %d tokens: %s\n", gpus, n, e.text);
    }
    gpu_set_close(&set);
    return s;
}

/* Compute alone: the same run over a link that takes no time. Stream alone: on devices that compute in no time. */
static double part(int ranks, int n, bool compute) {
    char gpus[128];
    snprintf(gpus, sizeof gpus, "emu:%d,virtual,math=bf16,%s", ranks,
             compute ? "h2d=1e9,d2h=1e9" : "flops=1e9,attn=1e9,bw=1e12,launch=1e-9");
    return run(gpus, ranks, n, NULL).seconds;
}

static void table(void) {
    static const int lengths[] = {4096, 8192, 16384, 20480, 32768, 45056, 49152};
    printf("| tokens | SLP TTFT | tok/s | stream alone | compute alone | of max | ring | chunk | DSLP x2 TTFT | tok/s "
           "| gain | math=fp8: SLP | DSLP x2 "
           "|\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int n = lengths[i];
        struct slp_stats one = run("emu:1,virtual", 1, n, NULL),
                         two = run("emu:2,virtual,math=bf16,nopeer", 2, n, NULL);
        double stream = part(1, n, false), compute = part(1, n, true), most = stream > compute ? stream : compute;
        printf("| %d | %.1f s | %.0f | %.1f s | %.1f s | %.2f | %d | %d | %.1f s | %.0f | %.2f | %.1f s | %.1f s |\n",
               n, one.seconds, n / one.seconds, stream, compute, one.seconds / most, one.plan.ring_slots,
               one.plan.chunk_rows, two.seconds, n / two.seconds, one.seconds / two.seconds,
               run("emu:1,virtual,math=fp8", 1, n, NULL).seconds,
               run("emu:2,virtual,math=fp8,nopeer", 2, n, NULL).seconds);
        fflush(stdout);
    }
}

static void ring(void) {
    printf("| slots | ring | TTFT of 4K | TTFT of 16K |\n|---|---|---|---|\n");
    for (int r = 2; r <= 256; r *= 2) {
        char gpus[64];
        snprintf(gpus, sizeof gpus, "emu:1,virtual,ring=%d", r);
        printf("| %d | %.1f GB | %.2f s | %.2f s |\n", r, r * 44.07e-3, run(gpus, 1, 4096, NULL).seconds,
               run(gpus, 1, 16384, NULL).seconds);
    }
}

static void few(void) {
    printf("| tokens | TTFT | loaded |\n|---|---|---|\n");
    static const int lengths[] = {1, 4, 16, 64};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct slp_stats s = run("emu:1,virtual", 1, lengths[i], NULL);
        printf("| %d | %.2f s | %.0f GB |\n", lengths[i], s.seconds, (double)s.h2d / 1e9);
    }
}

static void memory(void) {
    printf("| tokens | card | ring | chunk | on the device |\n|---|---|---|---|---|\n");
    static const int lengths[] = {4096, 32768, 65536, 131072};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int gb = 16; gb <= 32; gb += 8) {
            char gpus[64];
            snprintf(gpus, sizeof gpus, "emu:1,virtual,mem=%dG", gb);
            struct slp_stats s = run(gpus, 1, lengths[i], NULL);
            if (s.seconds >= 0)
                printf("| %d | %d GB | %d | %d | %.1f GB |\n", lengths[i], gb, s.plan.ring_slots, s.plan.chunk_rows,
                       (double)s.plan.bytes / 1e9);
        }
}

/* A decoder layer, as the mean of 61 that all have experts. */
static void layer(void) {
    static const struct {
        const char *name, *gpus;
        int ranks;
    } rows[] = {{"one device", "emu:1,virtual", 1},
                {"two, SmallEP", "emu:2,virtual,nopeer", 2},
                {"two, SmallEP, BF16 between ranks", "emu:2,virtual,nopeer,math=bf16", 2},
                {"four, SmallEP", "emu:4,virtual,nopeer", 4},
                {"four, SmallEP, BF16 between ranks", "emu:4,virtual,nopeer,math=bf16", 4}};
    build(61, 0);
    printf("| 20,480 tokens | a layer | exchanged a layer and rank |\n|---|---|---|\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct slp_stats s = run(rows[i].gpus, rows[i].ranks, 20480, NULL);
        printf("| %s | %.0f ms | %.0f MB |\n", rows[i].name, s.seconds / 61 * 1e3,
               (double)s.exchanged / 61 / rows[i].ranks / 1e6);
    }
}

static void ratios(void) {
    double compute = part(1, 16384, true), bytes = (double)run("emu:1,virtual", 1, 16384, NULL).h2d;
    printf("| stream : compute | stream | compute | SLP | of the longer |\n|---|---|---|---|---|\n");
    for (double r = 0.25; r <= 4; r *= 2) {
        char gpus[64];
        snprintf(gpus, sizeof gpus, "emu:1,virtual,h2d=%g", bytes / (compute * r) / 1e9);
        double slp = run(gpus, 1, 16384, NULL).seconds;
        printf("| %.2f | %.2f s | %.2f s | %.2f s | %.3f |\n", r, compute * r, compute, slp,
               slp / (r > 1 ? compute * r : compute));
    }
}

/* Asserts what the tables claim, so that a regression of the pipeline or of the cost model is noticed. */
static int check(void) {
    int failed = 0;
#define HOLD(ok, ...) \
    do { \
        if (!(ok)) failed++, printf("FAIL: " __VA_ARGS__), printf("\n"); \
    } while (0)
    double compute = part(1, 16384, true), bytes = (double)run("emu:1,virtual", 1, 16384, NULL).h2d, last = 1e9;
    for (double r = 0.25; r <= 4; r *= 2) {
        char gpus[64];
        snprintf(gpus, sizeof gpus, "emu:1,virtual,h2d=%g", bytes / (compute * r) / 1e9);
        double of = run(gpus, 1, 16384, NULL).seconds / (r > 1 ? compute * r : compute);
        HOLD(of > 0.999 && of <= 1.11, "stream %.2f of compute: the run takes %.3f of the longer", r, of);
    }
    for (int ring = 2; ring <= 256; ring *= 4) { /* a longer ring never takes longer */
        char gpus[64];
        snprintf(gpus, sizeof gpus, "emu:1,virtual,ring=%d", ring);
        double t = run(gpus, 1, 16384, NULL).seconds;
        HOLD(t <= last * 1.001, "ring of %d: %.2f s, a shorter one %.2f s", ring, t, last);
        last = t;
    }
    double one = run("emu:1,virtual", 1, 32768, NULL).seconds,
           two = run("emu:2,virtual,math=bf16,nopeer", 2, 32768, NULL).seconds;
    double long2 = run("emu:2,virtual,math=bf16,nopeer", 2, 45056, NULL).seconds,
           again = run("emu:2,virtual,math=bf16,nopeer", 2, 32768, NULL).seconds;
    const double one8 = run("emu:1,virtual,math=fp8", 1, 32768, NULL).seconds,
                 two8 = run("emu:2,virtual,math=fp8,nopeer", 2, 45056, NULL).seconds;
    HOLD(one > 30 && one < 37 && long2 > 30 && long2 < 34, "BF16: 32K on one %.1f s, 45K on two %.1f s", one, long2);
    HOLD(one8 < 30 && two8 < 30, "math=fp8: 32K on one %.1f s, 45K on two %.1f s", one8, two8);
    HOLD(one / two >= 1.64, "two devices gain %.2f", one / two);
    HOLD(two == again || (two / again > 0.99 && two / again < 1.01), "the same run took %.3f s and %.3f s", two, again);
    struct slp_stats few = run("emu:1,virtual", 1, 4, NULL), many = run("emu:1,virtual", 1, 4096, NULL);
    HOLD(few.h2d * 5 < many.h2d && few.seconds * 5 < many.seconds,
         "4 tokens choose at most 32 of 256 experts: %.1f GB in %.2f s", (double)few.h2d / 1e9, few.seconds);
    build(12, 0);
    struct slp_stats small = run("emu:2,virtual,nopeer", 2, 20480, NULL),
                     half = run("emu:2,virtual,nopeer,math=bf16", 2, 20480, NULL);
    HOLD((double)half.exchanged < 0.6 * (double)small.exchanged && half.seconds < small.seconds,
         "BF16 between ranks: %.2f s, %.2f GB; float32: %.2f s, %.2f GB", half.seconds, (double)half.exchanged / 1e9,
         small.seconds, (double)small.exchanged / 1e9);
    printf("%d failed\n", failed);
    return failed != 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "table";
    int rc = 0;
    build(61, 3);
    if (!strcmp(what, "table")) table();
    else if (!strcmp(what, "ring")) ring();
    else if (!strcmp(what, "memory")) memory();
    else if (!strcmp(what, "few")) few();
    else if (!strcmp(what, "check")) rc = check();
    else if (!strcmp(what, "layer")) layer();
    else if (!strcmp(what, "ratios")) ratios();
    else if (!strcmp(what, "trace") && argc > 4)
        printf("%.2f s\n", run(argv[2], atoi(argv[2] + 4), atoi(argv[3]), argv[4]).seconds);
    else
        rc = 2, fprintf(stderr, "usage: slp_virtual [check | table | layer | ring | few | memory | ratios | trace "
                                "emu:N,virtual TOKENS FILE]\n");
    shape_only_close(&v3);
    return rc;
}

/* Uploads and compute overlap in stream-loading prefill. In slowed time: the link and the compute of an emulated device
 * run at given speeds, for five ratios of the two. From the trace: how long each was busy, both at once, and the total.
 * The fixture's layers are repeated, to test the steady pipeline. A run of four layers of which the first is dense
 * has computed almost nothing while a third of its bytes are uploaded, and no order of uploads changes that.
 * usage: test_overlap MODEL_DIR */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/exec/stream/slp.h"
#include "engine/layer/kv_planes.h"
#include "engine/weights/weights_open.h"

enum { TOKENS = 16, LAYERS = 12, TRIES = 12 }; /* other processes may delay a thread: the best of a few tries counts */

static int embed(void *ctx, float *out, int row, int n) {
    const struct config *c = ctx;
    for (int i = 0; i < n * c->hidden; i++) out[i] = (float)((i * 7 + row * 13) % 19 - 9) / 9.0f;
    return 0;
}

static int run(const struct weights *w, struct kv *kv, const char *gpus, const char *trace, struct slp_stats *s) {
    struct gpu_set *set;
    struct error e = {0};
    if (gpu_set_open(&set, gpus, &e)) return printf("%s\n", e.text), 1;
    struct slp_job j = {.w = w,
                        .set = set,
                        .ranks = 1,
                        .cache = kv->layer,
                        .n = TOKENS,
                        .embed = embed,
                        .ctx = (void *)&w->config,
                        .trace_path = trace};
    int rc = slp_prefill(&j, s, &e);
    if (rc) printf("%s: %s\n", gpus, e.text);
    gpu_set_close(&set);
    return rc;
}

/* Cancelled after the third layer, with a link slower than compute: by then the loader has enqueued a few modules
 * beyond that layer, not a ring of experts. */
static void stop_at_three(void *ctx, int done, int total) {
    if (done >= 3) atomic_store((_Atomic int *)ctx, 1);
}
static int stop_early(const struct weights *w, struct kv *kv, const char *gpus, const struct slp_stats *whole) {
    struct gpu_set *set;
    struct error e = {0};
    struct slp_stats s = {0};
    _Atomic int cancel = 0;
    double least = 1e18, layer = (double)whole->h2d / LAYERS;
    if (gpu_set_open(&set, gpus, &e)) return printf("%s\n", e.text), 1;
    for (int attempt = 0; attempt < TRIES && least > 3.6 * layer; attempt++) {
        atomic_store(&cancel, 0);
        struct slp_job j = {.w = w,
                            .set = set,
                            .ranks = 1,
                            .cache = kv->layer,
                            .n = TOKENS,
                            .embed = embed,
                            .ctx = (void *)&w->config,
                            .cancel = &cancel,
                            .progress = stop_at_three,
                            .progress_ctx = (void *)&cancel};
        int rc = slp_prefill(&j, &s, &e);
        if (rc != ERR_CANCELLED) return printf("FAIL: cancelled: %d %s\n", rc, e.text), 1;
        least = (double)s.h2d < least ? (double)s.h2d : least;
    }
    gpu_set_close(&set);
    printf("cancelled after 3 of %d layers: %.2f layers' bytes enqueued\n", LAYERS, least / layer);
    return least > 3.6 * layer ? printf("FAIL: the loader ran too far ahead\n"), 1 : 0;
}

/* The first layer once, then the others repeatedly. */
static struct layer *repeat(struct weights *w) {
    struct config *c = &w->config;
    struct layer *many = calloc(LAYERS, sizeof *many), *own = w->layers;
    for (int l = 0; many && l < LAYERS; l++) {
        int from = l ? 1 + (l - 1) % (c->n_layers - 1) : 0;
        many[l] = own[from];
        c->layer[l] = c->layer[from];
    }
    c->n_layers = LAYERS;
    w->layers = many;
    return own;
}

int main(int argc, char **argv) {
    struct weights w;
    struct kv kv;
    struct error e = {0};
    struct slp_stats s;
    char dir[] = "/tmp/hearth-overlap-XXXXXX", trace[64], gpus[128];
    int failed = 0;
    if (argc < 2 || access(argv[1], R_OK)) return printf("SKIPPED: no model in %s\n", argc > 1 ? argv[1] : "-"), 77;
    if (weights_open(&w, argv[1], false, &e) || !mkdtemp(dir)) return printf("%s\n", e.text), 1;
    struct layer *own = repeat(&w);
    if (kv_open(&kv, &w.config, kv_planes, 64, DT_F32, &e) || kv_commit(&kv, 64, &e)) return printf("%s\n", e.text), 1;
    snprintf(trace, sizeof trace, "%s/trace", dir);
    /* measures compute with 2 ms per operation in a run over a fast link; then sets the link to match */
    const char *device = "emu:1,cpu=scalar,launch=2000";
    if (run(&w, &kv, device, trace, &s)) return 1;
    double bytes = (double)s.h2d, compute = s.compute_s;
    printf("| stream : compute | stream busy | compute busy | both at once | whole run | of the longer "
           "|\n|---|---|---|---|---|---|\n");
    static const double ratios[] = {0.25, 0.5, 1, 2, 4};
    for (size_t i = 0; i < sizeof ratios / sizeof *ratios; i++) {
        double share = 0, least = 9;
        snprintf(gpus, sizeof gpus, "%s,h2d=%g", device, bytes / (compute * ratios[i]) / 1e9);
        for (int attempt = 0; attempt < TRIES && (share < 0.9 || least > 1.1); attempt++) {
            if (run(&w, &kv, gpus, trace, &s)) return 1;
            double shorter = s.load_s < s.compute_s ? s.load_s : s.compute_s,
                   longer = s.load_s < s.compute_s ? s.compute_s : s.load_s;
            share = s.overlap_s / shorter > share ? s.overlap_s / shorter : share;
            least = s.span_s / longer < least ? s.span_s / longer : least;
        }
        printf("| %.2f | %.2f s | %.2f s | %.2f s | %.2f s | %.2f |\n", ratios[i], s.load_s, s.compute_s, s.overlap_s,
               s.seconds, least);
        if (share < 0.9) failed++, printf("FAIL: only %.2f of the shorter one ran beside the longer\n", share);
        if (least > 1.1) failed++, printf("FAIL: from the first event to the last %.2f of the longer one\n", least);
    }
    failed += stop_early(&w, &kv, gpus, &s);
    unlink(trace);
    rmdir(dir);
    kv_close(&kv);
    free(w.layers);
    w.layers = own;
    weights_close(&w);
    return failed != 0;
}

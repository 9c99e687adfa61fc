/* Whether a card's memory is on the card. WSL2's driver serves allocations from system memory once a card is full, as
 * when other programs take some: they succeed, and reads of them take as long as the bus. */
#include "base/test_limits.h"
#include "gpu/cuda.h"

/* A part is elsewhere if a read of it takes SLOW times what the data sheet says, and GRACE_S more, which covers the
 * launch. That is between the slowest read on a card, half of the sheet's, and the bus: 16 MB take an RTX 3060 47 us
 * and a bus of 25 GB/s 670. */
static const double SLOW = 6, GRACE_S = 100e-6;
enum { PROBE_BYTES = 16 << 20, LEAST_BYTES = 8 << 20, PARTS = 512 };

/* Bytes/s of the card's memory by its data sheet; 0: unknown. */
static double sheet_rate(int card) {
    int khz = 0, bits = 0;
    if (cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, card) ||
        cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, card))
        cudaGetLastError();
    return 2e3 * khz * bits / 8; /* two transfers a clock */
}

struct probe {
    cudaStream_t stream;
    cudaEvent_t begin, end;
};
static void close_probe(struct probe *p) {
    if (p->begin) cudaEventDestroy(p->begin);
    if (p->end) cudaEventDestroy(p->end);
    if (p->stream) cudaStreamDestroy(p->stream);
    cudaGetLastError();
}
static bool open_probe(struct probe *p) {
    *p = (struct probe){0};
    if (!cudaStreamCreateWithPriority(&p->stream, cudaStreamNonBlocking, 0) && !cudaEventCreate(&p->begin) &&
        !cudaEventCreate(&p->end))
        return true;
    close_probe(p);
    return false;
}
/* Returns the seconds of a read; 0: it failed. */
static double time_read(const struct probe *p, const void *from, size_t bytes, int n_sms) {
    float ms = 0;
    if (cudaEventRecord(p->begin, p->stream) || cuda_probe_read(p->stream, from, bytes, n_sms) ||
        cudaEventRecord(p->end, p->stream) || cudaEventSynchronize(p->end) ||
        cudaEventElapsedTime(&ms, p->begin, p->end))
        cudaGetLastError();
    return (double)ms * 1e-3;
}

/* Returns the time of a read of some bytes of a part. Repeats a slow one, at another place if there is one, since other
 * programs may have used the card. */
static double best_time(const struct probe *p, const struct cuda_part *part, size_t bytes, double limit_s, int n_sms) {
    double best_s = 0;
    for (size_t k = 0; k < 3 && (!k || best_s > limit_s); k++) {
        const size_t at = (part->size - CUDA_ARENA_GRAIN - bytes) / 2 * k / sizeof(uint64_t[2]) * sizeof(uint64_t[2]);
        const double s = time_read(p, part->p + at, bytes, n_sms);
        best_s = !k || s < best_s ? s : best_s;
    }
    return best_s;
}

/* Copies the parts in use of a size that tells; returns their number. */
static int list_parts(struct cuda *g, size_t least, struct cuda_part *out) {
    int n = 0;
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < g->memory.n && n < PARTS; i++) {
        const struct cuda_part *p = &g->memory.parts[i];
        if (p->is_used && p->p != g->spare && p->size >= least) out[n++] = *p;
    }
    pthread_mutex_unlock(&g->lock);
    return n;
}

static void read_parts(struct cuda *g, struct gpu_elsewhere *out) {
    struct cuda_part part[PARTS];
    struct probe p;
    const size_t least = test_limits_get(TEST_LIMIT_PROBE_BYTES, LEAST_BYTES);
    if (!open_probe(&p)) return;
    for (int i = 0, n = list_parts(g, least, part); i < n; i++) {
        const size_t whole = part[i].size - CUDA_ARENA_GRAIN; /* of which the last may be nobody's */
        const size_t bytes = whole < PROBE_BYTES ? whole : PROBE_BYTES;
        const double limit_s = SLOW * (double)bytes / out->sheet + GRACE_S;
        const double best_s = best_time(&p, &part[i], bytes, limit_s, g->n_sms);
        out->used += part[i].size;
        if (!(best_s > limit_s)) continue;
        const double rate = (double)bytes / best_s;
        out->read = !out->bytes || rate < out->read ? rate : out->read;
        out->bytes += part[i].size;
    }
    close_probe(&p);
}

/* Making a stream may wait for the device, so no other one may wait for the CPU meanwhile. */
bool cuda_probe_elsewhere(struct gpu *base, struct gpu_elsewhere *out) {
    struct cuda *g = (struct cuda *)base;
    cudaSetDevice(g->card);
    *out = (struct gpu_elsewhere){.sheet = sheet_rate(g->card)};
    if (!(out->sheet > 0) || !cuda_timeline_pause_waits()) return false;
    read_parts(g, out);
    cuda_timeline_resume_waits();
    return out->bytes > 0;
}

/* A library that records what a card runs, loaded by the driver into any unchanged program:
 *
 *   cc -O2 -shared -fPIC -I CUDA/include -o timeline.so timeline.c -ldl
 *   CUDA_INJECTION64_PATH=$PWD/timeline.so TIMELINE_OUT=FILE [TIMELINE_LAST_MS=N] PROGRAM...
 *
 * Kernels of graphs are recorded one by one. FILE receives, when the program ends, a table of kernels by grid: their
 * number, time, and the idle time of the card before them, of the last N milliseconds; then the last records. The
 * recording itself costs time: compare the speed with that of a run without it. CUPTI is opened by name, from
 * LD_LIBRARY_PATH or the linker's folders; without it FILE says so. Needs the headers of CUDA 13. */
#include <cupti.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECORDS_MOST = 1 << 22, BUFFER = 8 << 20, TOTALS_MOST = 4096, SHOWN = 1500 };

struct record {
    uint64_t begin, end; /* ns */
    const char *name;
    uint32_t blocks, threads, registers, shared, stream, graph; /* blocks: of a copy its KB */
};
static struct record *records;
static atomic_uint n_records;
static atomic_ulong n_lost;

#define FUNCTIONS(X) \
    X(cuptiActivityRegisterCallbacks) \
    X(cuptiActivityEnable) X(cuptiActivityGetNextRecord) X(cuptiActivityGetNumDroppedRecords) X(cuptiActivityFlushAll)
#define DECLARE(name) static typeof(&name) p_##name;
FUNCTIONS(DECLARE)

static FILE *open_out(void) {
    const char *path = getenv("TIMELINE_OUT");
    return fopen(path ? path : "timeline.txt", "w");
}
static int fail(const char *what, const char *why) {
    FILE *f = open_out();
    if (f) fprintf(f, "FAILED: %s: %s\n", what, why ? why : "unknown"), fclose(f);
    return 0;
}

/* --- Recording -------------------------------------------------------------------------------- */

static void on_request(uint8_t **buffer, size_t *size, size_t *most) {
    *buffer = aligned_alloc(64, BUFFER);
    *size = *buffer ? BUFFER : 0;
    *most = 0;
}
static struct record kernel_record(const CUpti_ActivityKernel10 *k) {
    return (struct record){.begin = k->start,
                           .end = k->end,
                           .name = k->name ? k->name : "?",
                           .blocks = (uint32_t)k->gridX * (uint32_t)k->gridY * (uint32_t)k->gridZ,
                           .threads = (uint32_t)k->blockX * (uint32_t)k->blockY * (uint32_t)k->blockZ,
                           .registers = k->registersPerThread,
                           .shared = (uint32_t)k->staticSharedMemory + (uint32_t)k->dynamicSharedMemory,
                           .stream = k->streamId,
                           .graph = k->graphId};
}
static struct record copy_record(const CUpti_ActivityMemcpy6 *k) {
    static const char *const names[] = {[CUPTI_ACTIVITY_MEMCPY_KIND_HTOD] = "copy to the device",
                                        [CUPTI_ACTIVITY_MEMCPY_KIND_DTOH] = "copy to the host"};
    const size_t kind = k->copyKind, known = sizeof names / sizeof *names;
    return (struct record){.begin = k->start,
                           .end = k->end,
                           .name = kind < known && names[kind] ? names[kind] : "copy",
                           .blocks = (uint32_t)(k->bytes >> 10),
                           .stream = k->streamId,
                           .graph = k->graphId};
}
static struct record fill_record(const CUpti_ActivityMemset4 *k) {
    return (struct record){k->start, k->end, "fill", (uint32_t)(k->bytes >> 10), 0, 0, 0, k->streamId, k->graphId};
}
static void keep(const CUpti_Activity *a) {
    struct record r;
    if (a->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) r = kernel_record((const CUpti_ActivityKernel10 *)a);
    else if (a->kind == CUPTI_ACTIVITY_KIND_MEMCPY) r = copy_record((const CUpti_ActivityMemcpy6 *)a);
    else if (a->kind == CUPTI_ACTIVITY_KIND_MEMSET) r = fill_record((const CUpti_ActivityMemset4 *)a);
    else return;
    const unsigned at = atomic_fetch_add(&n_records, 1);
    if (at < RECORDS_MOST) records[at] = r;
    else atomic_fetch_add(&n_lost, 1);
}
static void on_complete(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    CUpti_Activity *a = NULL;
    size_t lost = 0;
    (void)size;
    while (valid && p_cuptiActivityGetNextRecord(buffer, valid, &a) == CUPTI_SUCCESS) keep(a);
    if (p_cuptiActivityGetNumDroppedRecords(context, stream, &lost) == CUPTI_SUCCESS) atomic_fetch_add(&n_lost, lost);
    free(buffer);
}

/* --- The table -------------------------------------------------------------------------------- */

struct total {
    const struct record *first;
    unsigned long n;
    double us, least, most, idle;
};
static struct total totals[TOTALS_MOST];
static int n_totals;

static int by_begin(const void *a, const void *b) {
    const struct record *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}
static int by_us(const void *a, const void *b) {
    const struct total *x = a, *y = b;
    return (x->us < y->us) - (x->us > y->us);
}
static double us_of(uint64_t ns) { return (double)ns / 1e3; }
static uint64_t idle_before(const struct record *r, uint64_t until) { return r->begin > until ? r->begin - until : 0; }

static struct total *total_of(const struct record *r) {
    int k = 0;
    while (k < n_totals && (totals[k].first->blocks != r->blocks || totals[k].first->threads != r->threads ||
                            strcmp(totals[k].first->name, r->name)))
        k++;
    if (k == TOTALS_MOST) return NULL;
    if (k == n_totals) totals[n_totals++] = (struct total){.first = r, .least = us_of(r->end - r->begin)};
    return &totals[k];
}
/* Sums records [0, n) up by kernel. Returns the time in which anything ran, us; *end: when the last one ended. */
static double sum_up(const struct record *r, unsigned n, uint64_t *end) {
    double busy = 0;
    uint64_t until = n ? r->begin : 0;
    for (; n; n--, r++) {
        struct total *t = total_of(r);
        const double us = us_of(r->end - r->begin);
        if (t) {
            t->n++, t->us += us, t->idle += us_of(idle_before(r, until));
            if (us < t->least) t->least = us;
            if (us > t->most) t->most = us;
        }
        if (r->end > until) busy += us_of(r->end - (r->begin > until ? r->begin : until)), until = r->end;
    }
    *end = until;
    return busy;
}
static void put_totals(FILE *f) {
    qsort(totals, (size_t)n_totals, sizeof *totals, by_us);
    fprintf(f, "| name | blocks or KB | threads | registers | shared | number | sum, us | mean | least | most | idle "
               "before, mean |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (const struct total *t = totals; t < totals + n_totals; t++)
        fprintf(f, "| %s | %u | %u | %u | %u | %lu | %.1f | %.2f | %.2f | %.2f | %.2f |\n", t->first->name,
                t->first->blocks, t->first->threads, t->first->registers, t->first->shared, t->n, t->us,
                t->us / (double)t->n, t->least, t->most, t->idle / (double)t->n);
}
static void put_records(FILE *f, const struct record *r, unsigned n) {
    uint64_t zero = n ? r->begin : 0, until = zero;
    fprintf(f, "\nbegin us, us, idle before, stream, graph, blocks, threads, name\n");
    for (; n; n--, r++) {
        fprintf(f, "%.2f %.2f %.2f %u %u %u %u %s\n", us_of(r->begin - zero), us_of(r->end - r->begin),
                us_of(idle_before(r, until)), r->stream, r->graph, r->blocks, r->threads, r->name);
        if (r->end > until) until = r->end;
    }
}
static void finish(void) {
    const char *last_ms = getenv("TIMELINE_LAST_MS");
    uint64_t until = 0;
    p_cuptiActivityFlushAll(1);
    FILE *f = open_out();
    if (!f) return;
    unsigned n = atomic_load(&n_records), first = 0;
    if (n > RECORDS_MOST) n = RECORDS_MOST;
    qsort(records, n, sizeof *records, by_begin);
    if (last_ms)
        while (first < n && records[first].begin + (uint64_t)(atof(last_ms) * 1e6) < records[n - 1].begin) first++;
    const double busy = sum_up(records + first, n - first, &until),
                 span = first < n ? us_of(until - records[first].begin) : 0;
    fprintf(f, "%u records, %lu lost; span %.1f us, busy %.1f us (%.1f %%)\n", n - first, atomic_load(&n_lost), span,
            busy, span > 0 ? 100 * busy / span : 0);
    put_totals(f);
    const unsigned shown = n - first < SHOWN ? n - first : SHOWN;
    put_records(f, records + (n - shown), shown);
    fclose(f);
}

/* Called by the driver when the program first uses it. */
int InitializeInjection(void) {
    static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                               CUPTI_ACTIVITY_KIND_MEMSET};
    void *cupti = dlopen("libcupti.so.13", RTLD_NOW | RTLD_GLOBAL);
    if (!cupti) return fail("CUPTI", dlerror());
#define LOOK_UP(name) \
    if (!(p_##name = (typeof(&name))dlsym(cupti, #name))) return fail("CUPTI", dlerror());
    FUNCTIONS(LOOK_UP)
    if (!(records = calloc(RECORDS_MOST, sizeof *records))) return fail("records", "no memory");
    if (p_cuptiActivityRegisterCallbacks(on_request, on_complete) != CUPTI_SUCCESS)
        return fail("CUPTI", "it refuses callbacks: another profiler is attached");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (p_cuptiActivityEnable(kinds[i]) != CUPTI_SUCCESS) return fail("CUPTI", "a kind of record is refused");
    atexit(finish);
    return 1;
}

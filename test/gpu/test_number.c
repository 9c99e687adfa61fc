/* Timelines between streams and the host: order, visibility of earlier writes, errors; and pinned memory.
 * usage: test_number LIST    LIST as in --gpus: two ranks. Exit 77 when a device is missing. A hang is a failure. */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "gpu/gpu.h"

enum { WORDS = 4096 };
static struct gpu_spec spec;
static struct gpu *dev[2];
static int failures;
#define CHECK(ok) \
    do { \
        if (!(ok)) printf("FAIL %s:%d (%s): %s\n", __FILE__, __LINE__, __func__, #ok), failures++; \
    } while (0)

static struct gpu_stream *stream(int d, const _Atomic int *cancel) {
    struct gpu_stream *s;
    struct error e = {0};
    if (gpu_stream_open(dev[d], &s, "test", false, cancel, &e)) printf("stream: %s\n", e.text), exit(1);
    return s;
}
static struct gpu_timeline *number(int d) {
    struct gpu_timeline *n;
    struct error e = {0};
    if (gpu_timeline_open(dev[d], &n, &e)) printf("number: %s\n", e.text), exit(1);
    return n;
}
static void *memory(int d, size_t size) {
    void *p;
    struct error e = {0};
    if (gpu_alloc(dev[d], &p, size, &e)) printf("memory: %s\n", e.text), exit(1);
    return p;
}
static uint32_t *pinned(size_t words) {
    void *p;
    struct error e = {0};
    if (gpu_host_alloc(dev[0], &p, words * 4, &e)) printf("pinned: %s\n", e.text), exit(1);
    return p;
}
static void rest(double seconds) { nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL); }

/* Nothing passes a wait before its value; after it, all earlier writes are visible. Rounds use the same two
 * timelines. */
static void rounds(void) {
    struct gpu_stream *s = stream(0, NULL);
    struct gpu_timeline *go = number(0), *done = number(0);
    uint32_t *in = pinned(WORDS), *out = pinned(WORDS);
    void *p = memory(0, WORDS * 4);
    enum { AHEAD = 40, ROUNDS = 300 };
    for (uint32_t i = 1; i <= ROUNDS + AHEAD; i++) {
        if (i <= ROUNDS) { /* the stream waits for `go` in rounds whose data does not exist yet */
            CHECK(!gpu_timeline_wait(go, i, s));
            CHECK(!gpu_copy(s, p, in, WORDS * 4, GPU_H2D) && !gpu_copy(s, out, p, WORDS * 4, GPU_D2H));
            CHECK(!gpu_timeline_signal(done, i, s));
        }
        if (i <= AHEAD) continue;
        uint32_t r = i - AHEAD;
        if (r % 50 == 1) rest(2e-3);
        CHECK(!gpu_timeline_reached(done, r) && gpu_timeline_reached(done, r - 1));
        for (int k = 0; k < WORDS; k++) in[k] = r * 7919 + (uint32_t)k;
        gpu_timeline_signal_host(go, r);
        CHECK(!gpu_timeline_wait_host(done, r, NULL));
        CHECK(out[0] == r * 7919 && out[WORDS - 1] == r * 7919 + WORDS - 1);
        memset(out, 0xee, WORDS * 4);
    }
    CHECK(!gpu_stream_sync(s));
    gpu_stream_close(&s);
    gpu_timeline_close(&go);
    gpu_timeline_close(&done);
    gpu_free(dev[0], p);
    gpu_host_free(dev[0], in);
    gpu_host_free(dev[0], out);
}

/* One buffer goes back and forth between two devices through the host; each device must find the other's data. */
static void devices(void) {
    enum { ROUNDS = 200 };
    struct gpu_stream *s[2] = {stream(0, NULL), stream(1, NULL)};
    struct gpu_timeline *n[2] = {number(0), number(1)};
    uint32_t *in = pinned(ROUNDS + 1), *out = pinned(ROUNDS + 1), *between = pinned(1);
    void *p[2] = {memory(0, 4), memory(1, 4)};
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        in[i] = i * 31;
        CHECK(!gpu_timeline_wait(n[1], i - 1, s[0]));
        CHECK(!gpu_copy(s[0], p[0], &in[i], 4, GPU_H2D) && !gpu_copy(s[0], between, p[0], 4, GPU_D2H) &&
              !gpu_timeline_signal(n[0], i, s[0]));
        CHECK(!gpu_timeline_wait(n[0], i, s[1]));
        CHECK(!gpu_copy(s[1], p[1], between, 4, GPU_H2D) && !gpu_copy(s[1], &out[i], p[1], 4, GPU_D2H) &&
              !gpu_timeline_signal(n[1], i, s[1]));
    }
    CHECK(!gpu_timeline_wait_host(n[1], ROUNDS, NULL));
    for (uint32_t i = 1; i <= ROUNDS; i++) CHECK(out[i] == i * 31);
    for (int d = 0; d < 2; d++) {
        CHECK(!gpu_stream_sync(s[d]));
        gpu_stream_close(&s[d]);
        gpu_timeline_close(&n[d]);
        gpu_free(dev[d], p[d]);
    }
    gpu_host_free(dev[0], in);
    gpu_host_free(dev[0], out);
    gpu_host_free(dev[0], between);
}

static void around(void) { /* past 2^32 */
    struct gpu_stream *s = stream(0, NULL);
    struct gpu_timeline *go = number(0), *done = number(0);
    static const uint32_t values[] = {1, 0x3fffffff, 0x7ffffffe, 0xb0000000, 0xefffffff, 3, 9};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        CHECK(!gpu_timeline_wait(go, values[i], s) && !gpu_timeline_signal(done, values[i], s));
        CHECK(!gpu_timeline_reached(done, values[i]));
        gpu_timeline_signal_host(go, values[i]);
        CHECK(!gpu_timeline_wait_host(done, values[i], NULL) && (!i || gpu_timeline_reached(done, values[i - 1])));
        gpu_timeline_signal_host(go, values[i] - 1); /* never backwards */
        CHECK(gpu_timeline_reached(go, values[i]));
    }
    gpu_stream_close(&s);
    gpu_timeline_close(&go);
    gpu_timeline_close(&done);
}

struct later {
    struct gpu_timeline *n;
    _Atomic int *cancel;
    pthread_t thread;
};
static void *later_run(void *arg) {
    struct later *l = arg;
    rest(20e-3);
    if (l->cancel) atomic_store(l->cancel, 1);
    if (l->n) gpu_timeline_abort(l->n);
    return NULL;
}
static void later(struct later *l, struct gpu_timeline *n, _Atomic int *cancel) {
    *l = (struct later){n, cancel, 0};
    if (pthread_create(&l->thread, NULL, later_run, l)) exit(1);
}

static void breaking(void) {
    struct gpu_stream *a = stream(0, NULL), *b = stream(1, NULL);
    struct gpu_timeline *n = number(0), *gate = number(0), *end = number(0);
    struct later l;
    /* follows the break and must not undo it */
    CHECK(!gpu_timeline_wait(gate, 1, a) && !gpu_timeline_signal(n, 1, a) && !gpu_timeline_signal(end, 1, a));
    CHECK(!gpu_timeline_wait(n, 5, b) && !gpu_timeline_reached(n, 5));
    later(&l, n, NULL);
    CHECK(gpu_timeline_wait_host(n, 5, NULL) == ERR_RUNTIME);
    pthread_join(l.thread, NULL);
    CHECK(!gpu_stream_sync(b) && gpu_timeline_reached(n, 5)); /* the other device works */
    gpu_timeline_signal_host(gate, 1);
    CHECK(!gpu_timeline_wait_host(end, 1, NULL));
    gpu_timeline_abort(n); /* a second break has no effect */
    gpu_timeline_wait(n, 9, b);
    CHECK(!gpu_stream_sync(b) && gpu_timeline_wait_host(n, 9, NULL) == ERR_RUNTIME &&
          gpu_timeline_wait_host(n, 1, NULL) == ERR_RUNTIME);
    gpu_stream_close(&a);
    gpu_stream_close(&b);
    gpu_timeline_close(&n);
    gpu_timeline_close(&gate);
    gpu_timeline_close(&end);
}

static void cancelling(void) {
    for (int how = 0; how < 3; how++) { /* waits by the host, by a stream, or by an event after one */
        _Atomic int cancel = 0;
        struct gpu_stream *s = stream(0, &cancel), *well = stream(1, NULL);
        struct gpu_timeline *n = number(0), *out = number(0);
        struct gpu_event *ev;
        struct error e = {0};
        struct later l;
        CHECK(!gpu_event_open(dev[0], &ev, &e));
        CHECK(!gpu_timeline_wait(n, 1, s) && !gpu_event_record(ev, s) && !gpu_timeline_signal(out, 1, s) &&
              !gpu_timeline_wait(out, 1, well));
        later(&l, NULL, &cancel);
        if (how == 0) CHECK(gpu_timeline_wait_host(n, 1, &cancel) == ERR_CANCELLED);
        if (how == 1) CHECK(gpu_stream_sync(s) == ERR_CANCELLED);
        if (how == 2) gpu_event_sync(ev);
        CHECK(cancel);
        CHECK(gpu_timeline_wait(n, 2, s) == ERR_CANCELLED && gpu_timeline_signal(out, 2, s) == ERR_CANCELLED);
        CHECK(gpu_stream_sync(s) == ERR_CANCELLED && !gpu_stream_sync(well) &&
              gpu_timeline_wait_host(out, 2, NULL) == ERR_RUNTIME);
        pthread_join(l.thread, NULL);
        gpu_event_close(&ev);
        gpu_stream_close(&s);
        gpu_stream_close(&well);
        gpu_timeline_close(&n);
        gpu_timeline_close(&out);
    }
}

/* The first device fails while others wait for its writes: waits from before the failure, after it, and without any
 * write. */
static void dying(bool dies) {
    for (int how = 0; how < 3; how++) {
        struct gpu_stream *a = stream(0, NULL), *b = stream(1, NULL);
        struct gpu_timeline *gate = number(1), *n = number(how == 1), *out = number(1);
        struct error e = {0};
        static float host[64];
        void *p = memory(0, sizeof host);
        CHECK(!gpu_timeline_wait(gate, 1, a));
        struct exec *x = gpu_stream_exec(a);
        float *bad = dies ? p : host; /* not memory of the device */
        CHECK(!x->ops->add(x, &(struct op_add){.y = bad, .x = bad, .n = 1, .m = 8}));
        CHECK(!gpu_fill(a, p, 0, 4)); /* the addition does not wait to be joined */
        if (how == 0) CHECK(!gpu_timeline_signal(n, 1, a));
        if (how == 1) {
            gpu_timeline_signal_host(gate, 1);
            gpu_stream_sync(a);
            CHECK(gpu_timeline_signal(n, 1, a) == ERR_RUNTIME);
        }
        CHECK(!gpu_timeline_wait(n, 1, b) && !gpu_timeline_signal(out, 1, b));
        gpu_timeline_signal_host(gate, 1);
        CHECK(gpu_timeline_wait_host(n, 1, NULL) == ERR_RUNTIME);
        CHECK(!gpu_stream_sync(b) && !gpu_timeline_wait_host(out, 1, NULL)); /* the other device continues */
        CHECK(gpu_stream_sync(a) == ERR_RUNTIME && gpu_error(dev[0], &e) == ERR_RUNTIME &&
              gpu_error(dev[1], NULL) == 0);
        gpu_stream_close(&a);
        gpu_stream_close(&b);
        gpu_timeline_close(&gate);
        gpu_timeline_close(&n);
        gpu_timeline_close(&out);
        gpu_free(dev[0], p);
        if (dies || !spec.is_emulated) { /* it stays dead, as a card does after a fault in a kernel */
            CHECK(gpu_clear(dev[0], &e) == ERR_RUNTIME);
            break;
        }
        CHECK(!gpu_clear(dev[0], &e));
    }
}

static void backwards(void) { /* the emulation names the mistake */
    struct gpu_stream *s = stream(0, NULL);
    struct gpu_timeline *n = number(0);
    struct error e = {0};
    gpu_timeline_signal(n, 7, s);
    gpu_timeline_signal(n, 5, s);
    CHECK(gpu_stream_sync(s) == ERR_RUNTIME && gpu_error(dev[0], &e) && strstr(e.text, "backwards, to 5") &&
          !gpu_clear(dev[0], &e));
    gpu_stream_close(&s);
    gpu_timeline_close(&n);
}

/* Virtual: two devices, each with a clock; 1 GB at 1 GB/s is a second, and over a link that was idle 8 us more. */
static double now(struct gpu_stream *s) {
    struct gpu_event *ev;
    struct error e = {0};
    if (gpu_event_open_timed(gpu_stream_gpu(s), &ev, &e) || gpu_event_record(ev, s) || gpu_event_sync(ev)) return -1;
    double t = gpu_event_time(ev);
    gpu_event_close(&ev);
    return t;
}
static void clocks(void) {
    const double idle = 8e-6;
    struct gpu_stream *a = stream(0, NULL), *b = stream(1, NULL), *c = stream(1, NULL);
    struct gpu_timeline *n = number(0), *back = number(1), *both = number(0);
    void *p = memory(0, 1000000000), *q = memory(1, 1000000000);
    for (uint32_t i = 1; i <= 3; i++) gpu_copy(a, p, NULL, 1000000000, GPU_H2D), gpu_timeline_signal(n, i, a);
    CHECK(!gpu_stream_sync(a) && fabs(now(a) - 3) < 1e-9);
    gpu_timeline_wait(n, 2, b); /* written long ago, at 2 s */
    CHECK(fabs(now(b) - 2.5) < 1e-9);
    gpu_copy(b, q, NULL, 500000000, GPU_H2D);
    gpu_timeline_wait(n, 3, b);
    CHECK(fabs(now(b) - 3.5) < 1e-9);
    gpu_timeline_wait(n, 1, b); /* an earlier time changes nothing */
    CHECK(fabs(now(b) - 3.5) < 1e-9);
    gpu_copy(b, NULL, q, 250000000, GPU_D2H);
    gpu_timeline_signal(back, 1, b);
    gpu_timeline_wait(back, 1, a);
    gpu_timeline_wait(back, 1, c);
    gpu_copy(a, p, NULL, 1000000000, GPU_H2D);
    CHECK(!gpu_stream_sync(a) && !gpu_stream_sync(c) && fabs(now(a) - (5.25 + 2 * idle)) < 1e-9 &&
          fabs(now(c) - (3.75 + idle)) < 1e-9);
    gpu_timeline_signal_host(back, 2);
    gpu_timeline_wait(back, 2, c); /* the host has no clock */
    CHECK(fabs(now(c) - (3.75 + idle)) < 1e-9);
    gpu_timeline_signal(both, 1, a);
    gpu_timeline_signal(both, 2, b);
    gpu_timeline_wait(both, 1, c); /* of the other device, although its own has signalled since */
    CHECK(fabs(now(c) - (5.75 + 2 * idle)) < 1e-9);
    struct gpu_stream *d = stream(0, NULL);
    /* a copy after a wait, and a wait for them in another stream, are run by the thread that ends the first wait */
    gpu_timeline_wait(both, 3, d);
    gpu_copy(d, p, NULL, 1000000000, GPU_H2D);
    gpu_timeline_signal(back, 3, d);
    gpu_timeline_wait(back, 3, c);
    gpu_copy(a, p, NULL, 1000000000, GPU_H2D);
    gpu_timeline_signal(both, 3, a);
    CHECK(gpu_timeline_reached(back, 3) && fabs(now(d) - (7.25 + 2 * idle)) < 1e-9 &&
          fabs(now(c) - (7.75 + 2 * idle)) < 1e-9);
    gpu_stream_close(&d);
    gpu_stream_close(&a);
    gpu_stream_close(&b);
    gpu_stream_close(&c);
    gpu_timeline_close(&n);
    gpu_timeline_close(&back);
    gpu_timeline_close(&both);
    gpu_free(dev[0], p);
    gpu_free(dev[1], q);
}

/* An allocation that waits for its device holds up no timeline of another device. */
struct allocation {
    _Atomic int state; /* 1: begun, 2: done */
    void *p;
    pthread_t thread;
};
static void *allocation_run(void *arg) {
    struct allocation *a = arg;
    a->state = 1;
    a->p = memory(0, (size_t)48 << 20); /* more than is kept, so that the driver is asked */
    a->state = 2;
    return NULL;
}
static void allocating(void) {
    enum { KERNELS = 64, FLOATS = 64 << 10 }; /* about a second in emulation */
    struct gpu_stream *busy = stream(0, NULL), *s = stream(1, NULL);
    struct gpu_timeline *n = number(1);
    struct allocation a = {0};
    volatile uint32_t *const computed = pinned(1); /* read without the driver, which would wait */
    float *sum = memory(0, FLOATS * 4);
    struct exec *x = gpu_stream_exec(busy);
    *computed = 0;
    CHECK(!gpu_fill(busy, sum, 1, FLOATS * 4));
    for (int i = 0; i < KERNELS; i++) CHECK(!x->ops->add(x, &(struct op_add){.y = sum, .x = sum, .n = 1, .m = FLOATS}));
    CHECK(!gpu_copy(busy, (void *)computed, sum, 4, GPU_D2H));
    if (pthread_create(&a.thread, NULL, allocation_run, &a)) exit(1);
    while (!a.state) rest(1e-4);
    rest(20e-3);
    for (uint32_t i = 1; i <= 10; i++) CHECK(!gpu_timeline_signal(n, i, s) && !gpu_timeline_wait_host(n, i, NULL));
    CHECK(a.state == 1 && !*computed); /* the driver still waits for the kernels */
    pthread_join(a.thread, NULL);
    CHECK(*computed);
    gpu_stream_close(&busy);
    gpu_stream_close(&s);
    gpu_timeline_close(&n);
    gpu_free(dev[0], a.p);
    gpu_free(dev[0], sum);
    gpu_host_free(dev[0], (void *)computed);
}

/* Pinning: writable memory always works, a mapped file where the system supports it; otherwise the error gives the
 * reason. */
static void pinning(void) {
    enum { SIZE = 64 << 10 };
    struct error e = {0};
    int fd = open("/proc/self/exe", O_RDONLY);
    void *file = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fd, 0),
         *own = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(file != MAP_FAILED && own != MAP_FAILED && !gpu_host_register(dev[0], own, SIZE, &e));
    gpu_host_unregister(dev[0], own, SIZE);
    int r = gpu_host_register(dev[0], file, SIZE, &e);
    CHECK(r ? r == ERR_MEMORY && strstr(e.text, "read-only") : !getenv("CUDA_EMULATE_READ_ONLY"));
    if (!r) gpu_host_unregister(dev[0], file, SIZE);
    munmap(file, SIZE);
    munmap(own, SIZE);
    close(fd);
}

int main(int argc, char **argv) {
    struct error e = {0};
    alarm(150);
    if (argc != 2 || gpu_spec_parse(&spec, argv[1], &e) || spec.n != 2)
        return printf("usage: test_number LIST of two %s\n", e.text), 2;
    if (spec.is_virtual) spec.signal = 0.5;
    for (int i = 0; i < 2; i++)
        if (gpu_open(&dev[i], &spec, i, &e)) return printf("SKIPPED: %s\n", e.text), 77;
    bool emulated = spec.is_emulated || strstr(gpu_info(dev[0])->name, "emulated");
    if (spec.fail) {
        dying(true);
    } else {
        pinning();
        around();
        breaking();
        cancelling();
        if (spec.is_virtual) clocks();
        if (!spec.is_virtual) rounds(), devices();
        if (emulated && !spec.is_emulated && getenv("CUDA_EMULATE_DRIVER")) allocating();
        if (spec.is_emulated) dying(false), backwards();
        else if (emulated) dying(false); /* a real card would not recover */
    }
    for (int i = 0; i < 2; i++) gpu_close(&dev[i]);
    printf("%d failed\n", failures);
    return failures != 0;
}

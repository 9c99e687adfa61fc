/* The host side: cards, streams as threads, events, copies. Answers as a card would, and refuses wrong calls that a card would
 * silently allow. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "internal.h"

enum { DEVICES = 8, RECORDS = 64 /* of an event, whose order is kept */ };

struct cuda_emulate_event {
    struct state { /* outlives the event while streams refer to it */
        std::mutex lock;
        std::condition_variable changed;
        uint64_t recorded = 0, passed = 0;
        double time = 0;
        std::map<uint64_t, order_clock> clocks; /* of the latest records */
    };
    std::shared_ptr<state> st = std::make_shared<state>();
    bool timed = true;
    int device;
    cuda_emulate_event();
    ~cuda_emulate_event();
};
struct cuda_emulate_stream {
    int device;
    std::mutex lock;
    std::condition_variable changed;
    struct command {
        const char *name;
        std::function<void()> run;
        uint64_t number; /* in its hardware queue */
        order_clock enqueued;
    };
    std::deque<command> tasks;
    int order;
    driver_queue *queue; /* NULL: none that it shares */
    bool busy = false, closing = false;
    std::shared_ptr<std::vector<command>> recorded; /* set: commands are recorded there, and queries fail */
    bool spoilt = false;
    uint64_t random;
    std::atomic<int> late_ms{0}; /* before each command */
    std::thread thread;
};

static std::mutex lock; /* guards all below */
static cudaError_t sticky[DEVICES];
static char fault_text[512];
static int faults;
struct pin_of {
    size_t size;
    bool mapped;
    order_shade *order;
};
static std::map<const char *, pin_of> pinned;
static bool peers[DEVICES][DEVICES];
static cuda_emulate_stream *null_stream[DEVICES];
static uint64_t streams_made;
static thread_local int current;
static thread_local cudaError_t last;

int host_setting(const char *name, int value) {
    char key[64];
    snprintf(key, sizeof key, "CUDA_EMULATE_%s", name);
    const char *text = getenv(key);
    return text && *text ? atoi(text) : value;
}
int host_shared() {
    static const int bytes = host_setting("SHARED", 99 << 10);
    return bytes;
}
/* CUDA_EMULATE_FAIL=kind:N: the Nth allocation (also of host memory), copy or launch fails. */
bool host_fails(const char *kind) {
    static std::map<std::string, int> count;
    const char *text = getenv("CUDA_EMULATE_FAIL");
    size_t n = strlen(kind);
    if (!text || strncmp(text, kind, n) || text[n] != ':') return false;
    std::lock_guard<std::mutex> hold(lock);
    return ++count[kind] == atoi(text + n + 1);
}
static int devices() {
    int n = host_setting("DEVICES", 2);
    return n > DEVICES ? DEVICES : n;
}
int host_device() { return current; }
bool host_reaches(int device, int other) {
    if (device == other) return true;
    std::lock_guard<std::mutex> hold(lock);
    return peers[device][other];
}
void host_fault(const char *text) {
    fprintf(stderr, "cuda_emulate: %s\n", text);
    std::lock_guard<std::mutex> hold(lock);
    snprintf(fault_text, sizeof fault_text, "%s", text);
    faults++;
    if (!sticky[current]) sticky[current] = cudaErrorLaunchFailure;
}
extern "C" int cuda_emulate_faults(char *text, size_t size) {
    std::lock_guard<std::mutex> hold(lock);
    int n = faults;
    snprintf(text, size, "%s", fault_text);
    faults = 0;
    for (cudaError_t &e : sticky) e = cudaSuccess;
    fault_text[0] = 0;
    return n;
}
cudaError_t host_error(cudaError_t e) {
    if (e) last = e;
    return e;
}
/* Returned by a call that did its part: a fault of the (current) device shows in every later call. */
static cudaError_t done(cudaError_t e = cudaSuccess, int device = -1) {
    std::lock_guard<std::mutex> hold(lock);
    return host_error(sticky[device < 0 ? current : device] ? sticky[device < 0 ? current : device] : e);
}
bool host_lost() {
    std::lock_guard<std::mutex> hold(lock);
    return sticky[current];
}
static cudaError_t wrong(cudaError_t e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static cudaError_t wrong(cudaError_t e, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "cuda_emulate: ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    return host_error(e);
}
static double seconds() {
    static std::atomic<int> asked;
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double hour = asked++ && driver_setting("HOUR", 1) ? 3600 : 0;
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9 + hour;
}

/* Cards. */
const char *cudaGetErrorString(cudaError_t e) {
    switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    default: return "another error";
    }
}
cudaError_t cudaGetLastError(void) {
    cudaError_t e = last;
    last = cudaSuccess;
    return e;
}
cudaError_t cudaPeekAtLastError(void) { return last; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { return *version = host_setting("CUDA", CUDART_VERSION), cudaSuccess; }
int cuda_emulate_access(const char *path, int) { return !strcmp(path, "/proc/driver/nvidia/version") && host_setting("MODULE", 0) ? 0 : -1; }
cudaError_t cudaGetDeviceCount(int *n) {
    *n = 0;
    if (host_setting("CUDA", CUDART_VERSION) / 1000 < CUDART_VERSION / 1000) return host_error(cudaErrorInsufficientDriver);
    *n = devices();
    return *n ? cudaSuccess : host_error(cudaErrorNoDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    if (device < 0 || device >= devices()) return host_error(cudaErrorInvalidDevice);
    int sm = host_setting("SM", 90);
    *p = {};
    snprintf(p->name, sizeof p->name, "emulated card %d", device);
    p->totalGlobalMem = (size_t)host_setting("MEM", 4096) << 20;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = (size_t)host_shared();
    p->major = sm / 10;
    p->minor = sm % 10;
    p->multiProcessorCount = host_setting("PROCESSORS", 4);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr a, int device) {
    cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, device)) return cudaErrorInvalidDevice;
    switch (a) {
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMemoryClockRate: *value = host_setting("CLOCK_KHZ", 0); break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 8; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; break;
    case cudaDevAttrHostRegisterReadOnlySupported: *value = host_setting("READ_ONLY", 1); break;
    }
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= devices()) return host_error(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) { return *device = current, cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = device != peer;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
    if (peer < 0 || peer >= devices() || peer == current) return host_error(cudaErrorInvalidDevice);
    std::lock_guard<std::mutex> hold(lock);
    if (peers[current][peer]) return host_error(cudaErrorPeerAccessAlreadyEnabled);
    peers[current][peer] = true;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *low, int *high) {
    *low = 0;
    *high = -5;
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *kernel) {
    *a = {};
    if (host_setting("OLD_PTX", 0)) return host_error(cudaErrorUnsupportedPtxVersion);
    usleep((useconds_t)host_setting("COMPILE_MS", 0) * 1000);
    driver_load(kernel);
    return done();
}
cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute a, int value) {
    if (a != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > host_shared()) return wrong(cudaErrorInvalidValue, "%d bytes of dynamic shared memory, a block may have %d", value, host_shared());
    driver_load(kernel);
    device_shared_set(kernel, value);
    return cudaSuccess;
}

/* Streams: threads that run their tasks in order; with a seed they add delays. */
static void serve(cuda_emulate_stream *s) {
    current = s->device;
    for (;;) {
        cuda_emulate_stream::command task;
        {
            std::unique_lock<std::mutex> hold(s->lock);
            s->busy = false;
            s->changed.notify_all();
            s->changed.wait(hold, [s] { return s->closing || !s->tasks.empty(); });
            if (s->tasks.empty()) return;
            task = std::move(s->tasks.front());
            s->tasks.pop_front();
            s->busy = true;
        }
        if (s->random) {
            s->random = s->random * 6364136223846793005ull + 1442695040888963407ull;
            if (s->random >> 62 == 0) usleep((useconds_t)(s->random >> 40 & 255));
        }
        if (const int ms = s->late_ms) usleep((useconds_t)ms * 1000);
        if (s->queue) driver_queue_begin(s->queue, task.number);
        order_begin(s->order, task.enqueued, task.name);
        task.run();
        order_end();
        if (s->queue) driver_queue_end(s->queue);
    }
}
static cuda_emulate_stream *stream_new(int device) {
    cuda_emulate_stream *s = new cuda_emulate_stream;
    std::lock_guard<std::mutex> hold(lock);
    int seed = host_setting("SEED", 0);
    s->device = device;
    s->order = order_open();
    s->queue = driver_queue_of(device, streams_made++);
    s->random = seed ? (uint64_t)seed * 0x9e3779b97f4a7c15ull + streams_made : 0;
    s->thread = std::thread(serve, s);
    return s;
}
static cuda_emulate_stream *real(cudaStream_t s) {
    if (s) return s;
    if (!null_stream[current]) null_stream[current] = stream_new(current);
    return null_stream[current];
}
int host_stream_device(cudaStream_t s) { return real(s)->device; }
/* Work of streams so far: 0 kernels, 1 copies and fills, 2 others. Recorded work counts whenever it runs. */
static std::atomic<uint64_t> enqueued[3];
extern "C" uint64_t cuda_emulate_enqueued(int kind) { return enqueued[kind]; }
static int kind_of(const char *name) {
    static const char *const copies[] = {"an upload", "a download", "a copy", "a copy between devices", "a fill"};
    for (const char *c : copies)
        if (!strcmp(name, c)) return 1;
    return !strncmp(name, "a ", 2) || !strncmp(name, "an ", 3) ? 2 : 0;
}
/* CUDA_EMULATE_LATE=NAME[:DEVICE],...: each command of streams with these names begins LATE_MS late, so that what does not wait for it comes first. The
 * name host: what host threads do after they waited for a timeline. */
static int lateness(const char *name, int device) {
    const char *late = getenv("CUDA_EMULATE_LATE");
    const std::string names = std::string(",") + (late ? late : "") + ",", any = std::string(",") + name;
    const bool is_late = names.find(any + ",") != std::string::npos || names.find(any + ":" + std::to_string(device) + ",") != std::string::npos;
    return is_late ? host_setting("LATE_MS", 10) : 0;
}
extern "C" void cuda_emulate_stream_name(cudaStream_t s, const char *name) { s->late_ms = lateness(name, s->device); }
void host_delay() { usleep((useconds_t)lateness("host", 0) * 1000); }
void host_enqueue(cudaStream_t stream, const char *name, std::function<void()> task) {
    cuda_emulate_stream *s = real(stream);
    driver_call call(s->device);
    std::unique_lock<std::mutex> hold(s->lock);
    static const size_t most = (size_t)driver_setting("PENDING", 1024);
    if (!s->recorded && most && s->tasks.size() >= most) {
        hold.unlock();
        call.exclude();
        hold.lock();
        s->changed.wait(hold, [s] { return s->tasks.size() < most; });
    }
    if (s->recorded) return s->recorded->push_back({name, std::move(task), 0, {}});
    enqueued[kind_of(name)]++;
    s->tasks.push_back({name, std::move(task), s->queue ? driver_queue_take(s->queue) : 0, order_host()});
    s->changed.notify_all();
}
static std::atomic<int> graphs;
static thread_local int recording; /* streams that this thread records */
/* A call that invalidates a recording. */
static bool spoils(cuda_emulate_stream *s, const char *what) {
    std::lock_guard<std::mutex> hold(s->lock);
    if (!s->recorded) return false;
    s->spoilt = true;
    fprintf(stderr, "cuda_emulate: %s of a stream that records\n", what);
    return true;
}
static void drain(cuda_emulate_stream *s) {
    std::unique_lock<std::mutex> hold(s->lock);
    s->changed.wait(hold, [s] { return !s->busy && s->tasks.empty(); });
}
static std::mutex all_lock;
static std::map<cuda_emulate_stream *, int> all;
void host_drain_device(int device) {
    std::vector<cuda_emulate_stream *> list;
    {
        std::lock_guard<std::mutex> hold(all_lock);
        for (auto &s : all)
            if (s.first->device == device && !s.first->recorded) list.push_back(s.first);
    }
    for (cuda_emulate_stream *s : list) drain(s); /* cudaStreamDestroy shares the context lock */
}

/* Anything left at the end fails the program. */
static std::atomic<int> events;
static void leftovers() {
    size_t bytes = 0;
    for (int i = 0; i < DEVICES; i++) bytes += memory_used(i);
    if (!bytes && all.empty() && pinned.empty() && !events && !graphs) return;
    fprintf(stderr, "cuda_emulate: left at the end: %zu bytes of device memory, %zu streams, %d events, %d graphs, %zu pieces of pinned memory\n", bytes,
        all.size(), (int)events, (int)graphs, pinned.size());
    fflush(NULL);
    _exit(86);
}
cuda_emulate_event::cuda_emulate_event() {
    static std::once_flag once;
    std::call_once(once, [] { atexit(leftovers); });
    device = current;
    events++;
}
cuda_emulate_event::~cuda_emulate_event() { events--; }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned, int priority) {
    if (priority > 0 || priority < -5) return wrong(cudaErrorInvalidValue, "stream priority %d", priority);
    *s = stream_new(current);
    std::lock_guard<std::mutex> hold(all_lock);
    all[*s] = 1;
    return done();
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    driver_call call(s->device);
    {
        std::lock_guard<std::mutex> hold(all_lock);
        if (!all.erase(s)) return wrong(cudaErrorInvalidResourceHandle, "destroying what is not a stream");
    }
    {
        std::lock_guard<std::mutex> hold(s->lock);
        s->closing = true;
        s->changed.notify_all();
    }
    s->thread.join();
    order_close(s->order);
    delete s;
    return done();
}
struct cuda_emulate_graph {
    std::shared_ptr<std::vector<cuda_emulate_stream::command>> tasks;
    int device;
};
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode) {
    std::lock_guard<std::mutex> hold(s->lock);
    if (s->recorded || mode != cudaStreamCaptureModeThreadLocal) return wrong(cudaErrorStreamCaptureUnsupported, "recording of mode %d", mode);
    s->recorded = std::make_shared<std::vector<cuda_emulate_stream::command>>();
    s->spoilt = false;
    recording++;
    return done();
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) {
    std::lock_guard<std::mutex> hold(s->lock);
    auto tasks = std::move(s->recorded);
    s->recorded.reset();
    *g = NULL;
    recording--;
    if (!tasks || s->spoilt) return host_error(cudaErrorStreamCaptureInvalidated);
    *g = new cuda_emulate_graph{tasks, s->device};
    graphs++;
    return done();
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long) {
    *x = new cuda_emulate_graph{g->tasks, g->device};
    graphs++;
    return done();
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s) {
    if (host_stream_device(s) != x->device) return wrong(cudaErrorInvalidResourceHandle, "a graph of device %d on another's stream", x->device);
    for (auto &task : *x->tasks) host_enqueue(s, task.name, task.run);
    return done();
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) {
    delete g;
    graphs--;
    return done();
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x) { return cudaGraphDestroy(x); }

cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    if (spoils(real(s), "synchronisation")) return host_error(cudaErrorStreamCaptureUnsupported);
    drain(real(s));
    order_host_sync(real(s)->order);
    return done(cudaSuccess, real(s)->device);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    cuda_emulate_stream *s = real(stream);
    if (spoils(s, "a question")) return host_error(cudaErrorStreamCaptureUnsupported);
    driver_call call(s->device);
    std::lock_guard<std::mutex> hold(s->lock);
    return s->busy || !s->tasks.empty() ? cudaErrorNotReady : done(cudaSuccess, s->device);
}
cudaError_t cudaDeviceSynchronize(void) {
    std::lock_guard<std::mutex> hold(all_lock);
    for (auto &s : all)
        if (s.first->device == current) drain(s.first), order_host_sync(s.first->order);
    return done();
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, void (*fn)(void *), void *ctx) {
    host_enqueue(s, "a host function", [=] { fn(ctx); });
    return done();
}

/* The driver's wait for a value in host memory; CUDA_EMULATE_WAIT=0: a driver without it. */
static int wait_value(cudaStream_t s, unsigned long long address, uint32_t value, unsigned flags) {
    const std::atomic<uint32_t> *word = (const std::atomic<uint32_t> *)address;
    if (flags || !host_mapped(word, 4)) return 1;
    host_enqueue(s, "a wait for a value", [=] {
        while ((int32_t)(*word - value) < 0 && !host_lost()) usleep(20);
        order_wait((const uint32_t *)word, value);
    });
    return 0;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **fn, unsigned, unsigned long long, cudaDriverEntryPointQueryResult *result) {
    bool known = !strcmp(symbol, "cuStreamWaitValue32") && host_setting("WAIT", 1);
    *fn = known ? (void *)wait_value : NULL;
    *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return done();
}

/* Memory. */
cudaError_t cudaMemGetInfo(size_t *here, size_t *total) {
    driver_call call(current);
    size_t used = memory_used(current);
    *total = (size_t)host_setting("MEM", 4096) << 20;
    *here = used < *total ? *total - used : 0;
    return done();
}
cudaError_t cudaMalloc(void **p, size_t size) {
    if (recording) return wrong(cudaErrorStreamCaptureUnsupported, "an allocation by a thread that records");
    driver_alone alone(driver_setting("MALLOC_WAITS", 1), "cudaMalloc");
    size_t here, total;
    cudaError_t e = cudaMemGetInfo(&here, &total);
    if (e) return e;
    *p = size && size <= here && !host_fails("alloc") ? memory_new(size, current) : NULL;
    return *p ? cudaSuccess : host_error(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void *p) {
    if (!p) return cudaSuccess;
    driver_alone alone(true, "cudaFree");
    if (!alone.held) cudaDeviceSynchronize();
    if (!memory_delete(p)) return wrong(cudaErrorInvalidValue, "free of %p, which is not an allocation", p);
    return done();
}
static size_t order_bytes(size_t size) { return (size / ORDER_GRAIN + 2) * sizeof(order_shade); }
static cudaError_t pin(const char *p, size_t size, bool mapped) {
    std::lock_guard<std::mutex> hold(lock);
    auto i = pinned.upper_bound(p + size - 1);
    if (i != pinned.begin() && (--i)->first + i->second.size > p) return host_error(cudaErrorHostMemoryAlreadyRegistered);
    void *order = mmap(NULL, order_bytes(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (order == MAP_FAILED) return host_error(cudaErrorMemoryAllocation);
    pinned[p] = {size, mapped, (order_shade *)order};
    return cudaSuccess;
}
static cudaError_t unpin(const void *p, size_t *size) {
    std::lock_guard<std::mutex> hold(lock);
    auto i = pinned.find((const char *)p);
    if (i == pinned.end()) return host_error(cudaErrorHostMemoryNotRegistered);
    *size = i->second.size;
    order_forget(p, *size);
    munmap(i->second.order, order_bytes(*size));
    pinned.erase(i);
    return cudaSuccess;
}
static bool is_pinned(const void *p, size_t size) {
    std::lock_guard<std::mutex> hold(lock);
    auto i = pinned.upper_bound((const char *)p);
    return i != pinned.begin() && (--i)->first + i->second.size >= (const char *)p + size;
}
bool host_mapped(const void *p, size_t size) {
    std::lock_guard<std::mutex> hold(lock);
    auto i = pinned.upper_bound((const char *)p);
    return i != pinned.begin() && (--i)->first + i->second.size >= (const char *)p + size && i->second.mapped;
}
const char *host_order(const void *p, size_t size, bool write) {
    order_shade *order = NULL;
    {
        std::lock_guard<std::mutex> hold(lock);
        auto i = pinned.upper_bound((const char *)p);
        if (i != pinned.begin() && (--i)->first + i->second.size >= (const char *)p + size)
            order = i->second.order + ((uintptr_t)p - (uintptr_t)i->first / ORDER_GRAIN * ORDER_GRAIN) / ORDER_GRAIN;
    }
    return order ? order_touch(order, p, size, write) : NULL;
}
cudaError_t cudaHostAlloc(void **p, size_t size, unsigned flags) {
    driver_alone alone(driver_setting("MALLOC_WAITS", 1), "cudaHostAlloc");
    *p = host_fails("alloc") ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*p == MAP_FAILED) return *p = NULL, host_error(cudaErrorMemoryAllocation);
    memset(*p, 0xff, size);
    return pin((char *)*p, size, flags & cudaHostAllocMapped);
}
cudaError_t cudaFreeHost(void *p) {
    if (!p) return cudaSuccess;
    driver_alone alone(true, "cudaFreeHost");
    size_t size;
    if (unpin(p, &size)) return host_error(cudaErrorInvalidValue);
    munmap(p, size);
    return done();
}
static bool writable(const void *p) {
    FILE *f = fopen("/proc/self/maps", "r");
    unsigned long from, to;
    char how[8] = "", line[512];
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f))
        found = sscanf(line, "%lx-%lx %7s", &from, &to, how) == 3 && (unsigned long)p >= from && (unsigned long)p < to;
    if (f) fclose(f);
    return found && how[1] == 'w';
}
cudaError_t cudaHostRegister(void *p, size_t size, unsigned flags) {
    if (!p || !size) return host_error(cudaErrorInvalidValue);
    if (flags & cudaHostRegisterReadOnly && !host_setting("READ_ONLY", 1)) return host_error(cudaErrorNotSupported);
    if (!(flags & cudaHostRegisterReadOnly) && !writable(p)) return host_error(cudaErrorInvalidValue);
    if (host_fails("alloc")) return host_error(cudaErrorMemoryAllocation);
    return pin((char *)p, size, false);
}
cudaError_t cudaHostUnregister(void *p) {
    driver_alone alone(true, "cudaHostUnregister");
    size_t size;
    return unpin(p, &size);
}

/* The part of a copy that runs: refuses one that does not wait for its memory. */
static void move(void *dst, const void *src, size_t size) {
    const char *wrong = memory_order(src, size, false);
    if (!wrong) wrong = memory_order(dst, size, true);
    if (wrong) host_fault(wrong);
    else memmove(dst, src, size);
    if (!wrong && is_pinned(dst, size)) order_downloaded(dst, size);
    if (!wrong && is_pinned(src, size)) order_uploaded(src, size);
}

/* Copies. From unpinned memory a card's driver copies before the call returns; into unpinned memory it waits. */
static cudaError_t copy_wrong(const char *what, const void *dst, const void *src, size_t size, bool to_device, bool from_device, int device, int other) {
    const char *d = to_device ? memory_check(dst, size, device) : memory_is_device(dst) ? "device memory" : NULL;
    const char *s = from_device ? memory_check(src, size, other) : memory_is_device(src) ? "device memory" : NULL;
    if (!d && !s) return cudaSuccess;
    return wrong(cudaErrorInvalidValue, "%s of %zu bytes from %p (%s) to %p (%s)", what, size, src, s ? s : "fine", dst, d ? d : "fine");
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t size, cudaMemcpyKind kind, cudaStream_t s) {
    bool to = kind != cudaMemcpyDeviceToHost, from = kind != cudaMemcpyHostToDevice;
    int device = host_stream_device(s);
    if (host_fails("copy")) return host_error(cudaErrorUnknown);
    if (kind == cudaMemcpyDefault || kind == cudaMemcpyHostToHost) return wrong(cudaErrorInvalidMemcpyDirection, "copy of kind %d", kind);
    if (copy_wrong("copy", dst, src, size, to, from, device, device)) return cudaErrorInvalidValue;
    if ((!from && !is_pinned(src, size)) || (!to && !is_pinned(dst, size)))
        if (spoils(real(s), "a copy of memory that is not pinned,")) return host_error(cudaErrorStreamCaptureUnsupported);
    std::shared_ptr<char[]> early;
    if (!from && !is_pinned(src, size)) {
        early.reset(new char[size]);
        memcpy(early.get(), src, size);
    }
    host_enqueue(s, kind == cudaMemcpyHostToDevice ? "an upload" : kind == cudaMemcpyDeviceToHost ? "a download" : "a copy", [=] {
        if (!copy_wrong("copy, as it runs", dst, src, size, to, from, device, device)) move(dst, early ? early.get() : src, size);
        else host_fault("a copy's memory was freed before it ran");
    });
    bool waits = size > 64 << 10 && driver_setting("PAGEABLE", 1);
    if ((!to && !is_pinned(dst, size)) || (early && waits)) cudaStreamSynchronize(s);
    return done();
}
cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device, size_t size, cudaStream_t s) {
    if (copy_wrong("copy between devices", dst, src, size, true, true, dst_device, src_device)) return cudaErrorInvalidValue;
    host_enqueue(s, "a copy between devices", [=] { move(dst, src, size); });
    return done();
}
cudaError_t cudaMemsetAsync(void *p, int byte, size_t size, cudaStream_t s) {
    const char *why = memory_check(p, size, host_stream_device(s));
    if (why) return wrong(cudaErrorInvalidValue, "memset of %zu bytes at %p: %s", size, p, why);
    host_enqueue(s, "a fill", [=] {
        if (const char *wrong = memory_order(p, size, true)) host_fault(wrong);
        else memset(p, byte, size);
    });
    return done();
}

/* Events. */
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    *e = new cuda_emulate_event;
    (*e)->timed = !(flags & cudaEventDisableTiming);
    return done();
}
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    delete e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    auto st = e->st;
    if (e->device != host_stream_device(s)) return wrong(cudaErrorInvalidResourceHandle, "an event of device %d recorded on another's stream", e->device);
    std::unique_lock<std::mutex> hold(st->lock);
    uint64_t turn = ++st->recorded;
    hold.unlock();
    host_enqueue(s, "an event", [st, turn] {
        std::lock_guard<std::mutex> hold(st->lock);
        st->clocks[turn] = order_now();
        if (st->clocks.size() > RECORDS) st->clocks.erase(st->clocks.begin());
        if (turn > st->passed) st->passed = turn;
        st->time = seconds();
        st->changed.notify_all();
    });
    return done();
}
static order_clock clock_of(const cuda_emulate_event::state *st, uint64_t turn) { /* under its lock */
    auto i = st->clocks.lower_bound(turn);
    return i == st->clocks.end() ? order_clock() : i->second;
}
static order_clock await(cuda_emulate_event::state *st, uint64_t turn) {
    std::unique_lock<std::mutex> hold(st->lock);
    st->changed.wait(hold, [=] { return st->passed >= turn; });
    return clock_of(st, turn);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    auto st = e->st;
    std::unique_lock<std::mutex> hold(st->lock);
    uint64_t turn = st->recorded;
    hold.unlock();
    if (!turn) return wrong(cudaErrorInvalidResourceHandle, "a stream waits for an event that was never recorded");
    host_enqueue(s, "a wait for an event", [st, turn] { order_join(await(st.get(), turn)); });
    return done();
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    std::unique_lock<std::mutex> hold(e->st->lock);
    uint64_t turn = e->st->recorded;
    hold.unlock();
    order_host_join(await(e->st.get(), turn));
    return done();
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    driver_call call(e->device);
    std::lock_guard<std::mutex> hold(e->st->lock);
    if (e->st->passed < e->st->recorded) return cudaErrorNotReady;
    order_host_join(clock_of(e->st.get(), e->st->recorded));
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    if (from->device != to->device) return wrong(cudaErrorInvalidResourceHandle, "time between events of two devices");
    if (!from->timed || !to->timed) return wrong(cudaErrorInvalidResourceHandle, "time of an event that was made without timing");
    if (cudaEventQuery(from) || cudaEventQuery(to)) return cudaErrorNotReady;
    *ms = (float)((to->st->time - from->st->time) * 1e3);
    return cudaSuccess;
}

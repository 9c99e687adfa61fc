/* Kernels with one mistake each, and correct ones. The emulation must find every mistake and nothing else. */
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "gpu/cuda_mma.cuh"

extern "C" int cuda_emulate_faults(char *text, size_t size);

static __global__ void shift(float *y, const float *x, int n, int sync) {
    __shared__ float tile[256];
    int i = threadIdx.x;
    if (i < n) tile[i] = x[i];
    if (sync) __syncthreads();
    if (i < n) y[i] = tile[i ? i - 1 : 0];
}
static __global__ void unwritten(float *y, int n) {
    __shared__ float a[64], b[64];
    if ((int)threadIdx.x < n) a[threadIdx.x] = b[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = a[threadIdx.x] + b[threadIdx.x];
}
static __global__ void over(float *y, int at) {
    __shared__ float a[64], b[64];
    a[threadIdx.x] = b[threadIdx.x] = 1;
    __syncthreads();
    if (!threadIdx.x) y[0] = a[at];
}
static __global__ void dynamic_over(float *y, int n) {
    extern __shared__ float space[];
    if ((int)threadIdx.x < n) space[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = threadIdx.x ? 0 : space[0];
}
static __global__ void fill(float *y, int n) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] = 3;
}
static __global__ void two_barriers(int *y, int split) {
    if ((int)threadIdx.x < split) __syncthreads();
    else
        __syncthreads();
    y[threadIdx.x] = 1;
}
static __global__ void lone_shuffle(int *y, int lanes) {
    int v = threadIdx.x;
    if ((int)threadIdx.x < lanes) v = __shfl_xor_sync(0xffffffffu, v, 1);
    y[threadIdx.x] = v;
}
static __global__ void all_add(int *y, int atomic) {
    if (atomic) atomicAdd(y, 1);
    else *y += 1;
}
/* The last block of two adds what both have written. fences: before and after the counter is changed. */
static __global__ void last_adds(int *y, int *counter, int before, int after, int resets) {
    __shared__ int is_last;
    y[1 + blockIdx.x * blockDim.x + threadIdx.x] = 1;
    __syncthreads();
    if (!threadIdx.x) {
        if (before) __threadfence();
        is_last = atomicAdd(counter, 1) == (int)gridDim.x - 1;
        if (is_last && resets) atomicExch(counter, 0);
        if (after) __threadfence();
    }
    __syncthreads();
    if (is_last && !threadIdx.x)
        for (int i = 0; i < (int)(gridDim.x * blockDim.x); i++) y[0] += y[1 + i];
}
static __global__ void wide(float *y, const float *x, int at) {
    float4 v = *(const float4 *)(x + at);
    y[threadIdx.x] = v.w;
}
static __global__ void warp_scan(int *y, int order) {
    __shared__ int s[32];
    s[threadIdx.x] = (int)threadIdx.x;
    if (order) __syncwarp();
    else __shfl_sync(0xffffffffu, 0, 0);
    y[threadIdx.x] = s[31 - threadIdx.x];
}
static __global__ void late(float *y, const float *x, int wait) {
    __shared__ __align__(16) float s[128];
    cp_async16(&s[threadIdx.x * 4], x + threadIdx.x * 4, 16);
    cp_commit();
    if (wait) cp_wait<0>();
    __syncthreads();
    y[threadIdx.x] = s[127 - threadIdx.x];
}

static int failures;
/* expect NULL: the kernel is correct, otherwise a part of the error message */
static void check(const char *name, const char *expect) {
    char text[512];
    cudaDeviceSynchronize();
    cudaError_t e = cudaGetLastError();
    int n = cuda_emulate_faults(text, sizeof text);
    bool ok = expect ? n == 1 && strstr(text, expect) : n == 0 && e == cudaSuccess;
    printf("%-44s %s\n", name, ok ? "ok" : "FAIL");
    if (!ok) failures++, printf("  wanted: %s\n  got %d, %s: %s\n", expect ? expect : "nothing", n, cudaGetErrorString(e), text);
}

/* The rules of driver.cpp: whether a call waits for work of another stream that waits for the host. */
static volatile bool released; /* the instrumentation has no atomics for host code */
static void hold(void *) {
    while (!released) usleep(100);
}
static void check_waits(const char *name, bool expect, cudaStream_t busy, std::function<void()> call) {
    volatile bool done = false;
    released = false;
    cudaLaunchHostFunc(busy, hold, NULL);
    std::thread caller([&] {
        cudaSetDevice(0);
        call();
        done = true;
    });
    for (int i = 0; i < (expect ? 50 : 2000) && !done; i++) usleep(1000);
    bool ok = done != expect;
    released = true;
    caller.join();
    cudaDeviceSynchronize();
    printf("%-44s %s\n", name, ok ? "ok" : "FAIL");
    failures += !ok;
}
static __global__ void first(float *y) { y[0] = 1; }
static __global__ void loaded(float *y) { y[0] = 2; }
static void check_rules(float *y, bool strict) {
    enum { STREAMS = 9, LARGE = 128 << 10 };
    cudaStream_t s[STREAMS];
    cudaFuncAttributes a;
    static char host[LARGE];
    char *large, *small;
    for (cudaStream_t &one : s) cudaStreamCreateWithPriority(&one, cudaStreamNonBlocking, 0);
    cudaMalloc((void **)&large, LARGE);
    cudaFuncGetAttributes(&a, (const void *)loaded);
    check_waits("a query", false, s[0], [&] { cudaStreamQuery(s[1]); });
    check_waits("a launch of a loaded kernel", false, s[0], [&] { loaded<<<1, 1, 0, s[1]>>>(y); });
    check_waits("the first launch of a kernel", strict, s[0], [&] { first<<<1, 1, 0, s[1]>>>(y); });
    check_waits("an allocation", strict, s[0], [&] { cudaMalloc((void **)&small, 100); });
    check_waits("a small copy of memory that is not pinned", false, s[0], [&] { cudaMemcpyAsync(large, host, 4096, cudaMemcpyHostToDevice, s[0]); });
    check_waits("a large copy of memory that is not pinned", strict, s[0], [&] { cudaMemcpyAsync(large, host, LARGE, cudaMemcpyHostToDevice, s[0]); });
    check_waits("a stream of another queue", false, s[0], [&] { cudaStreamSynchronize(s[1]); });
    check_waits("a stream of the same queue", strict, s[0], [&] {
        loaded<<<1, 1, 0, s[8]>>>(y);
        cudaStreamSynchronize(s[8]);
    });
    check_waits("the last command that a stream may hold", false, s[0], [&] {
        for (int i = 0; i < 1023; i++) cudaMemsetAsync(large, 0, 4, s[0]);
    });
    check_waits("one command more", strict, s[0], [&] {
        for (int i = 0; i < 1025; i++) cudaMemsetAsync(large, 0, 4, s[0]);
    });
    volatile int pushed = 0;
    std::thread filler;
    check_waits("a query beside a stream that is full", strict, s[0], [&] {
        filler = std::thread([&] {
            cudaSetDevice(0);
            for (; pushed < 1026; pushed = pushed + 1) cudaMemsetAsync(large, 0, 4, s[0]);
        });
        while (pushed < 1023) usleep(100);
        usleep(10000);
        cudaStreamQuery(s[1]);
    });
    filler.join();
    cudaDeviceSynchronize();
    check_waits("a free", true, s[0], [&] { cudaFree(large); });
    cudaFree(small);
    for (cudaStream_t one : s) cudaStreamDestroy(one);
}

/* order.cpp: the waits that order a command of one stream after a command of another. */
static __global__ void signal_word(volatile unsigned *word, unsigned value) { word[0] = value; }
static void check_order(float *y) {
    typedef int (*wait_value)(cudaStream_t, unsigned long long, unsigned, unsigned);
    cudaStream_t a, b;
    cudaEvent_t e;
    void *wait;
    cudaDriverEntryPointQueryResult found;
    unsigned *pinned;
    float *z;
    cudaMalloc((void **)&z, 256 * sizeof *z);
    cudaHostAlloc((void **)&pinned, 4096, cudaHostAllocMapped);
    cudaStreamCreateWithPriority(&a, cudaStreamNonBlocking, 0);
    cudaStreamCreateWithPriority(&b, cudaStreamNonBlocking, 0);
    cudaEventCreate(&e);
    cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &wait, 12000, cudaEnableDefault, &found);
    const char *missing = "a missing wait";
    memset(pinned, 0, 4096);
    loaded<<<1, 1, 0, a>>>(y);
    loaded<<<1, 1, 0, b>>>(y);
    check("writes of two streams", missing);
    loaded<<<1, 1, 0, a>>>(y);
    cudaStreamSynchronize(a);
    loaded<<<1, 1, 0, b>>>(y);
    check("the host waited between", NULL);
    loaded<<<1, 1, 0, a>>>(y);
    cudaEventRecord(e, a);
    cudaStreamWaitEvent(b, e, 0);
    loaded<<<1, 1, 0, b>>>(y);
    check("an event between", NULL);
    cudaEventRecord(e, a);
    loaded<<<1, 1, 0, a>>>(y);
    cudaStreamWaitEvent(b, e, 0);
    loaded<<<1, 1, 0, b>>>(y);
    check("an event before both", missing);
    cudaMemcpyAsync(pinned + 8, y, 16, cudaMemcpyDeviceToHost, a);
    cudaMemcpyAsync(pinned + 16, y, 16, cudaMemcpyDeviceToHost, b);
    check("reads of two streams", NULL);
    cudaMemcpyAsync(pinned + 8, y, 16, cudaMemcpyDeviceToHost, a);
    cudaMemsetAsync(y, 0, 16, b);
    check("a write after a read", missing);
    cudaMemcpyAsync(pinned + 8, y, 16, cudaMemcpyDeviceToHost, a);
    cudaMemcpyAsync(z, pinned + 8, 16, cudaMemcpyHostToDevice, b);
    check("through pinned memory", missing);
    for (int late = 0; late < 2; late++) { /* the host writes what an upload reads */
        cudaMemcpyAsync(z, pinned + 24, 16, cudaMemcpyHostToDevice, a);
        if (late) cudaStreamSynchronize(a);
        else usleep(100000);
        pinned[24]++;
        check(late ? "after an upload" : "while it may be under way", late ? NULL : missing);
    }
    for (unsigned value = 1; value < 4; value += 2) { /* the second time b waits for the signal before the write */
        signal_word<<<1, 1, 0, a>>>(pinned, value);
        loaded<<<1, 1, 0, a>>>(y);
        signal_word<<<1, 1, 0, a>>>(pinned, value + 1);
        ((wait_value)wait)(b, (unsigned long long)(uintptr_t)pinned, value == 1 ? 2 : 3, 0);
        loaded<<<1, 1, 0, b>>>(y);
        check(value == 1 ? "a timeline between" : "a timeline before both", value == 1 ? NULL : missing);
    }
    cudaFreeHost(pinned);
    cudaFree(z);
    cudaEventDestroy(e);
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
}

int main(void) {
    float *x, *y, *gone;
    cudaStream_t s;
    cudaEvent_t e;
    float host[256], more[256];
    cudaSetDevice(0);
    if (cudaMalloc((void **)&x, sizeof host) || cudaMalloc((void **)&y, sizeof host) || cudaMalloc((void **)&gone, 100)) return 1;
    if (cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, 0) || cudaEventCreate(&e)) return 1;
    for (int i = 0; i < 256; i++) host[i] = (float)i;
    cudaMemcpyAsync(x, host, sizeof host, cudaMemcpyHostToDevice, s);
    shift<<<1, 256, 0, s>>>(y, x, 250, 1);
    cudaMemcpyAsync(more, y, sizeof more, cudaMemcpyDeviceToHost, s);
    check("a barrier between", NULL);
    for (int i = 1; i < 250; i++) failures += more[i] != (float)(i - 1);
    failures += more[255] == more[255]; /* unwritten memory is NaN */
    shift<<<1, 256, 0, s>>>(y, x, 250, 0);
    check("no barrier between", "race");
    unwritten<<<1, 64, 0, s>>>(y, 64);
    check("all shared memory written", NULL);
    unwritten<<<1, 64, 0, s>>>(y, 63);
    check("shared memory not written", "not written");
    over<<<1, 64, 0, s>>>(y, 63);
    check("the last of an array", NULL);
    over<<<1, 64, 0, s>>>(y, 64);
    check("one behind a shared array", "outside its variables");
    dynamic_over<<<1, 64, 32 * 4, s>>>(y, 32);
    check("dynamic shared memory", NULL);
    dynamic_over<<<1, 64, 32 * 4, s>>>(y, 33);
    check("one behind dynamic shared memory", "outside its variables");
    fill<<<3, 100, 0, s>>>(y, 256);
    check("up to the end of an allocation", NULL);
    fill<<<3, 100, 0, s>>>(y, 257);
    check("behind the end of an allocation", "beyond the end");
    cudaFree(gone);
    fill<<<1, 1, 0, s>>>(gone, 1);
    check("freed memory", "not in a live allocation");
    fill<<<1, 1, 0, s>>>(host, 1);
    check("host memory", "host memory");
    two_barriers<<<1, 64, 0, s>>>((int *)y, 64);
    check("one barrier for all", NULL);
    two_barriers<<<1, 64, 0, s>>>((int *)y, 32);
    check("two barriers", "others wait at");
    lone_shuffle<<<1, 32, 0, s>>>((int *)y, 32);
    check("a shuffle of all lanes", NULL);
    lone_shuffle<<<1, 32, 0, s>>>((int *)y, 16);
    check("a shuffle of half the lanes", "wait for others for ever");
    all_add<<<2, 32, 0, s>>>((int *)y, 1);
    check("atomic adds", NULL);
    all_add<<<1, 32, 0, s>>>((int *)y, 0);
    check("plain adds of a block", "race");
    all_add<<<2, 1, 0, s>>>((int *)y, 0);
    check("plain adds of two blocks", "another block");
    struct {
        const char *name, *expect;
        int before, after, resets;
    } tickets[] = {{"the last block, by a counter", NULL, 1, 1, 1},
                   {"no fence before the counter", "another block", 0, 1, 1},
                   {"no fence after it", "another block", 1, 0, 1},
                   {"a counter that is not reset", "at the end", 1, 1, 0}};
    for (const auto &t : tickets) {
        cudaMemsetAsync(y, 0, 1024, s);
        last_adds<<<3, 64, 0, s>>>((int *)y + 1, (int *)y, t.before, t.after, t.resets);
        check(t.name, t.expect);
    }
    wide<<<1, 1, 0, s>>>(y, x, 4);
    check("an aligned load", NULL);
    wide<<<1, 1, 0, s>>>(y, x, 2);
    check("a load that is not aligned", "not aligned");
    warp_scan<<<1, 32, 0, s>>>((int *)y, 1);
    check("__syncwarp orders memory", NULL);
    warp_scan<<<1, 32, 0, s>>>((int *)y, 0);
    check("a shuffle does not", "race");
    late<<<1, 32, 0, s>>>(y, x, 1);
    check("a copy waited for", NULL);
    late<<<1, 32, 0, s>>>(y, x, 0);
    check("a copy not waited for", "not written");
    fill<<<1, 1025, 0, s>>>(y, 1);
    failures += cudaGetLastError() != cudaErrorInvalidConfiguration;
    dynamic_over<<<1, 64, 50 << 10, s>>>(y, 32);
    failures += cudaGetLastError() != cudaErrorInvalidConfiguration;
    failures += cudaFuncSetAttribute(dynamic_over, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10) != cudaSuccess;
    dynamic_over<<<1, 64, 50 << 10, s>>>(y, 32);
    check("more than 48 KB, asked for", NULL);
    failures += cudaStreamWaitEvent(s, e, 0) == cudaSuccess;
    failures += cudaMemcpyAsync(y, host, sizeof host + 4, cudaMemcpyHostToDevice, s) == cudaSuccess;
    failures += cudaMemcpyAsync(y, host, sizeof host, cudaMemcpyDeviceToHost, s) == cudaSuccess;
    cudaGetLastError();
    const char *driver = getenv("CUDA_EMULATE_DRIVER");
    check_rules(y, driver && *driver == '1');
    check_order(y);
    cudaEventDestroy(e);
    cudaStreamDestroy(s);
    cudaFree(x);
    cudaFree(y);
    printf("%d failed\n", failures);
    return failures != 0;
}

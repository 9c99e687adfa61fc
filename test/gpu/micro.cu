/* Measures what a token's layer is made of, apart from the program: reads by bytes in flight, kernels of a graph with and without programmatic
 * dependent launch, tickets against a second kernel, barriers, latencies, transfers from pinned memory, fetches into L2 ahead of their use.
 *   nvcc -O3 -std=c++17 -arch=sm_90 -cudart static -o micro micro.cu && micro      (also sm_80, sm_89, sm_120)
 * Prints rows of a Markdown table; 15 seconds. Exits with 1 if anything failed. */
#include <algorithm>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

static int n_failed;
static void check(cudaError_t r, const char *what, int line) {
    if (!r) return;
    printf("| FAILED: %s, line %d: %s | | |\n", what, line, cudaGetErrorString(r));
    n_failed++;
    cudaGetLastError();
}
#define CHECK(x) check(x, #x, __LINE__)
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define HAS_90 1
#endif
static __device__ __forceinline__ uint4 load16(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
static __device__ __forceinline__ void copy16(uint32_t to, const void *from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); }
static __device__ __forceinline__ void let_next_start() {
#ifdef HAS_90
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
static __device__ __forceinline__ void wait_for_previous() {
#ifdef HAS_90
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
static __device__ __forceinline__ uint64_t ns() {
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

static int n_sms;
static cudaStream_t stream;
static uint8_t *memory; // 2 GB
static const size_t memory_size = (size_t)2 << 30;
static float *small;    // 16 MB of other things, cleared

// us of what `enqueue` adds to the stream, as a graph that holds it `times` times; the best of 7 launches.
template <typename F> static double graph_us(int times, F enqueue) {
    cudaGraph_t g = nullptr;
    cudaGraphExec_t e = nullptr;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < times; i++) enqueue(i);
    CHECK(cudaStreamEndCapture(stream, &g));
    if (!g || cudaGraphInstantiate(&e, g, 0)) {
        check(cudaGetLastError(), "a graph", __LINE__);
        return 0;
    }
    cudaEvent_t a, b;
    cudaEventCreate(&a), cudaEventCreate(&b);
    float best = 1e30f;
    for (int i = 0; i < 8; i++) {
        float ms = 0;
        cudaEventRecord(a, stream), cudaGraphLaunch(e, stream), cudaEventRecord(b, stream);
        CHECK(cudaStreamSynchronize(stream));
        cudaEventElapsedTime(&ms, a, b);
        if (i && ms < best) best = ms;
    }
    cudaGraphExecDestroy(e), cudaGraphDestroy(g), cudaEventDestroy(a), cudaEventDestroy(b);
    return best * 1e3 / times;
}
template <typename... A> static void launch(void (*kernel)(A...), int blocks, int threads, size_t shared, bool early, A... args) {
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)blocks), c.blockDim = dim3((unsigned)threads), c.dynamicSmemBytes = shared, c.stream = stream;
    cudaLaunchAttribute at[1];
    at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at[0].val.programmaticStreamSerializationAllowed = 1;
    c.attrs = at, c.numAttrs = early ? 1 : 0;
    if (shared > 48 << 10) cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    CHECK(cudaLaunchKernelEx(&c, kernel, args...));
}

/* --- Reading, by bytes in flight --------------------------------------------------------------------------------------------------------- */
template <int N> __global__ void read_kernel(const uint8_t *p, size_t bytes, float *out) {
    const size_t all = (size_t)gridDim.x * blockDim.x, me = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t sum = 0;
    for (size_t at = me; at < bytes / 16; at += all * N) {
        uint4 v[N];
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = at + i * all < bytes / 16 ? load16(p + (at + i * all) * 16) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < N; i++) sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    if (sum == 0x12345678) *out = 1;
}
// Each warp has a ring of its own: STAGES x 512 bytes x W.
template <int STAGES> __global__ void copy_kernel(const uint8_t *p, size_t bytes, float *out) {
    extern __shared__ __align__(128) uint8_t ring[];
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(ring) + threadIdx.x * 16, step = blockDim.x * 16;
    const size_t all = (size_t)gridDim.x * blockDim.x, me = (size_t)blockIdx.x * blockDim.x + threadIdx.x, n = bytes / 16;
    size_t ask = me;
    uint32_t sum = 0;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++, ask += all) {
        if (ask < n) copy16(base + s * step, p + ask * 16);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    int slot = 0;
    for (size_t at = me; at < n; at += all, ask += all) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        uint32_t v;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(base + slot * step));
        sum += v;
        if (ask < n) copy16(base + (slot + STAGES - 1) % STAGES * step, p + ask * 16);
        asm volatile("cp.async.commit_group;" ::: "memory");
        slot = (slot + 1) % STAGES;
    }
    if (sum == 0x12345678) *out = 1;
}
// One thread asks for pieces of 2 KB by the bulk copy engine; `slots` of them in flight.
__global__ void bulk_kernel(const uint8_t *p, size_t bytes, int slots, float *out) {
#ifdef HAS_90
    extern __shared__ __align__(128) uint8_t ring[];
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(ring), bars = base + slots * 2048;
    const size_t n = bytes / 2048;
    uint32_t sum = 0;
    if (threadIdx.x == 0)
        for (int i = 0; i < slots; i++) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(bars + i * 8) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
    size_t ask = blockIdx.x;
    if (threadIdx.x == 0)
        for (int i = 0; i < slots && ask < n; i++, ask += gridDim.x) {
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 2048;" ::"r"(bars + i * 8) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 2048, [%2];" ::"r"(base + i * 2048), "l"(p + ask * 2048), "r"(bars + i * 8)
                         : "memory");
        }
    int slot = 0;
    uint32_t phase = 0;
    for (size_t at = blockIdx.x; at < n; at += gridDim.x) {
        uint32_t done = 0;
        while (!done)
            asm volatile("{.reg .pred q; mbarrier.try_wait.parity.shared.b64 q, [%1], %2; selp.u32 %0, 1, 0, q;}" : "=r"(done) : "r"(bars + slot * 8), "r"(phase) : "memory");
        uint32_t v;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(base + slot * 2048 + threadIdx.x * 16));
        sum += v;
        __syncthreads();
        if (threadIdx.x == 0 && ask < n) {
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 2048;" ::"r"(bars + slot * 8) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 2048, [%2];" ::"r"(base + slot * 2048), "l"(p + ask * 2048),
                         "r"(bars + slot * 8)
                         : "memory");
            ask += gridDim.x;
        }
        if (++slot == slots) slot = 0, phase ^= 1;
    }
    if (sum == 0x12345678) *out = 1;
#endif
}

/* --- Launches ---------------------------------------------------------------------------------------------------------------------------- */
struct large {
    uint64_t x[200];
};
__global__ void empty_kernel(float *out) {
    let_next_start();
    wait_for_previous();
    if (out && threadIdx.x == 4096) *out = 1;
}
__global__ void empty_large_kernel(large a, float *out) {
    let_next_start();
    wait_for_previous();
    uint64_t sum = 0;
    if (threadIdx.x < 200) sum = a.x[threadIdx.x];
    if (sum == 0x123456789) *out = 1;
}
// A product's shape: `bytes` of weights over all blocks through shared memory, after 8 KB of x that the previous kernel wrote; y for the next.
// mode 0: waits at once; 1: asks for its first pieces before it waits.
__global__ void __launch_bounds__(256) product_kernel(const uint8_t *w, size_t bytes, const float *x, float *y, int mode, int stages) {
    extern __shared__ __align__(128) uint8_t ring[];
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(ring) + threadIdx.x * 16;
    const size_t each = bytes / 16 / gridDim.x, n = each / 256; // pieces of 4 KB of a block
    const uint8_t *mine = w + (size_t)blockIdx.x * each * 16 + threadIdx.x * 16;
    let_next_start();
    size_t ask = 0;
    if (mode)
        for (; ask < (size_t)stages && ask < n; ask++) copy16(base + (uint32_t)ask * 4096, mine + ask * 4096);
    wait_for_previous();
    float sum = 0;
    for (int i = threadIdx.x; i < 2048; i += 256) sum += __ldcg(x + i);
    if (!mode)
        for (; ask < (size_t)stages && ask < n; ask++) copy16(base + (uint32_t)ask * 4096, mine + ask * 4096);
    // All that was asked for, then the rest with loads: enough to compare the modes.
    for (size_t at = ask; at < n; at += 4) {
        uint4 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = at + i < n ? load16(mine + (at + i) * 4096) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < 4; i++) sum += __uint_as_float(v[i].x & 0x3fffffff) + __uint_as_float(v[i].w & 0x3fffffff);
    }
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
    for (size_t i = 0; i < ask; i++) {
        uint32_t v;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(base + (uint32_t)i * 4096));
        sum += __uint_as_float(v & 0x3fffffff);
    }
    for (int i = 16; i; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    if (threadIdx.x % 32 == 0) y[(blockIdx.x * 8 + threadIdx.x / 32) % 2048] = sum * 1e-30f;
}

/* --- Between blocks ---------------------------------------------------------------------------------------------------------------------- */
__global__ void part_kernel(float *part) { part[(size_t)blockIdx.x * 512 + threadIdx.x] = (float)threadIdx.x; }
__global__ void sum_kernel(const float *part, int n, float *out) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += __ldcg(part + (size_t)i * 512 + threadIdx.x);
    out[threadIdx.x] = sum;
}
__global__ void ticket_kernel(float *part, float *out, unsigned *count) {
    __shared__ bool last;
    part[(size_t)blockIdx.x * 512 + threadIdx.x] = (float)threadIdx.x;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(count, 1) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    float sum = 0;
    for (unsigned i = 0; i < gridDim.x; i++) sum += __ldcg(part + (size_t)i * 512 + threadIdx.x);
    out[threadIdx.x] = sum;
    if (threadIdx.x == 0) *count = 0;
}
__global__ void grid_barrier_kernel(unsigned *count, int times, uint64_t *took) {
    const uint64_t from = ns();
    for (int i = 0; i < times; i++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(count, 1);
            unsigned seen;
            do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
            while (seen < gridDim.x * (unsigned)(i + 1));
        }
        __syncthreads();
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) *took = ns() - from;
}
__global__ void cluster_barrier_kernel(int times, uint64_t *took, float *out) {
#ifdef HAS_90
    __shared__ float mine[512];
    mine[threadIdx.x] = (float)threadIdx.x;
    uint32_t rank, size;
    asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %cluster_nctarank;" : "=r"(size));
    const uint64_t from = ns();
    float sum = 0;
    for (int i = 0; i < times; i++) {
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
        uint32_t at, other = (rank + 1 + i) % size;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"((uint32_t)__cvta_generic_to_shared(mine + threadIdx.x)), "r"(other));
        float v;
        asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(at));
        sum += v;
    }
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    if (blockIdx.x == 0 && threadIdx.x == 0) *took = ns() - from;
    if (sum == 0.5f) *out = 1;
#endif
}

/* --- Latencies --------------------------------------------------------------------------------------------------------------------------- */
__global__ void chase_kernel(const uint32_t *p, int steps, uint64_t *took, float *out) {
    uint32_t at = 0;
    for (int i = 0; i < steps / 4; i++) asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(at) : "l"(p + at));
    const uint64_t from = ns();
    for (int i = 0; i < steps; i++) asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(at) : "l"(p + at));
    *took = ns() - from;
    if (at == 0x12345678) *out = 1;
}
__global__ void host_words_kernel(const uint32_t *from, uint32_t *to, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = ((const volatile uint32_t *)from)[i];
}
__global__ void host_pieces_kernel(const uint4 *from, uint4 *to, int n) {
    uint4 v[2];
    for (int i = 0; i < 2; i++) {
        const int at = (int)threadIdx.x + i * 1024;
        if (at < n) asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v[i].x), "=r"(v[i].y), "=r"(v[i].z), "=r"(v[i].w) : "l"(from + at));
    }
    for (int i = 0; i < 2; i++)
        if ((int)threadIdx.x + i * 1024 < n) to[threadIdx.x + i * 1024] = v[i];
}
// Block 0 works `busy` ns on its own; the others ask for what the next kernel reads.
__global__ void busy_kernel(int busy, const uint8_t *p, size_t bytes) {
    const uint64_t from = ns();
    if (blockIdx.x == 0)
        while (ns() - from < (uint64_t)busy) {}
    else
        for (size_t at = ((size_t)(blockIdx.x - 1) * blockDim.x + threadIdx.x) * 128; at < bytes; at += (size_t)(gridDim.x - 1) * blockDim.x * 128)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(p + at));
}

static double best_read; // TB/s
static void row(const char *what, double value, const char *unit) {
    printf("| %s | %.3f | %s |\n", what, value, unit);
    fflush(stdout);
}
// A read of `bytes` that took us.
static void row_read(const char *what, size_t bytes, double us) {
    const double rate = us > 0 ? bytes / us / 1e6 : 0;
    if (rate > best_read) best_read = rate;
    row(what, rate, "TB/s");
}
template <int N> static void reads(int threads, int per_sm) {
    char text[128];
    const size_t bytes = memory_size;
    const double us = graph_us(1, [&](int) { read_kernel<N><<<n_sms * per_sm, threads, 0, stream>>>(memory, bytes, small); });
    snprintf(text, sizeof text, "read 2 GB, 16-byte loads, %.1f KB in flight per SM", threads * per_sm * N * 16 / 1024.0);
    row_read(text, bytes, us);
}
template <int S> static void copies(int threads) {
    char text[128];
    const size_t bytes = memory_size, shared = (size_t)S * threads * 16;
    const double us = graph_us(1, [&](int) { launch(copy_kernel<S>, n_sms, threads, shared, false, (const uint8_t *)memory, bytes, small); });
    snprintf(text, sizeof text, "read 2 GB, cp.async, %.1f KB in flight per SM", (S - 1) * threads * 16 / 1024.0);
    row_read(text, bytes, us);
}

int main(void) {
    setenv("CUDA_MODULE_LOADING", "EAGER", 1); // no kernel is loaded while a graph is recorded
    cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, 0)) return fprintf(stderr, "no device\n"), 1;
    n_sms = p.multiProcessorCount;
    const bool is_90 = p.major >= 9;
    printf("%s, sm_%d%d, %d SMs, %zu KB shared\n| what | value | unit |\n|---|---|---|\n", p.name, p.major, p.minor, n_sms, p.sharedMemPerBlockOptin >> 10);
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&memory, memory_size));
    CHECK(cudaMalloc(&small, 16 << 20));
    CHECK(cudaMemset(memory, 1, memory_size));
    CHECK(cudaMemset(small, 0, 16 << 20));
    unsigned *count = (unsigned *)small + (1 << 20);
    uint64_t *took = (uint64_t *)(small + (2 << 20)), us_of = 0;
    float *y = small + (3 << 20), *part = small + (1 << 18);

    reads<1>(128, 1), reads<1>(256, 1), reads<2>(256, 1), reads<4>(256, 1), reads<8>(256, 1), reads<4>(256, 2), reads<8>(256, 2), reads<8>(256, 4), reads<4>(1024, 2);
    copies<3>(256), copies<5>(256), copies<9>(256), copies<13>(256), copies<17>(256), copies<23>(256);
    if (is_90)
        for (int slots = 8; slots <= 96; slots = slots < 16 ? 16 : slots + 16) {
            char text[128];
            const double us = graph_us(1, [&](int) { launch(bulk_kernel, n_sms, 128, (size_t)slots * 2056, false, (const uint8_t *)memory, memory_size, slots, small); });
            snprintf(text, sizeof text, "read 2 GB, cp.async.bulk of 2 KB, %d KB in flight per SM", slots * 2);
            row_read(text, memory_size, us);
        }

    static large big;
    for (int early = 0; early <= (is_90 ? 1 : 0); early++)
        for (int blocks = 1; blocks <= n_sms; blocks += n_sms - 1) {
            char text[128];
            snprintf(text, sizeof text, "empty kernel of %d blocks in a graph of 200%s", blocks, early ? ", programmatic" : "");
            row(text, graph_us(200, [&](int) { launch(empty_kernel, blocks, 256, 0, early, small); }), "us");
            snprintf(text, sizeof text, "the same with 1.6 KB of parameters%s", early ? ", programmatic" : "");
            row(text, graph_us(200, [&](int) { launch(empty_large_kernel, blocks, 256, 0, early, big, small); }), "us");
        }
    // Pairs of 8.4 and 12.6 MB, over 1 GB, so that nothing is in L2.
    const size_t bytes[2] = {(size_t)n_sms * 16 * 4096, (size_t)n_sms * 24 * 4096};
    const int most = p.sharedMemPerBlockOptin >= 200 << 10 ? 24 : 20;
    for (int early = 0; early <= (is_90 ? 1 : 0); early++)
        for (int mode = 0; mode <= early; mode++)
            for (int stages = 8; stages <= most; stages += most - 8) {
                char text[160];
                const double us = graph_us(80, [&](int i) {
                    launch(product_kernel, n_sms, 256, (size_t)stages * 4096, early != 0, (const uint8_t *)memory + (size_t)i * bytes[1], bytes[i % 2], (const float *)y + i % 2 * 2048,
                           y + (i + 1) % 2 * 2048, mode, stages);
                });
                snprintf(text, sizeof text, "product of %.1f and %.1f MB in turn, %d KB first%s%s", bytes[0] / 1e6, bytes[1] / 1e6, stages * 4, early ? ", programmatic" : "",
                         mode ? ", weights before the wait" : "");
                row(text, us, "us each");
                row("  its bytes at the best of the reads above", (bytes[0] + bytes[1]) / 2 / best_read / 1e6, "us");
            }

    row("132 parts of 2 KB, then their sum in a second kernel", graph_us(100, [&](int) {
            part_kernel<<<132, 512, 0, stream>>>(part);
            sum_kernel<<<1, 512, 0, stream>>>(part, 132, y);
        }),
        "us");
    row("the same by the last block (ticket)", graph_us(100, [&](int) { ticket_kernel<<<132, 512, 0, stream>>>(part, y, count); }), "us");
    row("the parts alone", graph_us(100, [&](int) { part_kernel<<<132, 512, 0, stream>>>(part); }), "us");
    CHECK(cudaMemset(count, 0, 4));
    {
        int times = 1000;
        void *args[] = {&count, &times, &took};
        CHECK(cudaLaunchCooperativeKernel((const void *)grid_barrier_kernel, dim3((unsigned)n_sms), dim3(256), args, 0, stream));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaMemcpy(&us_of, took, 8, cudaMemcpyDeviceToHost));
        row("barrier of all SMs", us_of / 1e6, "us");
    }
    if (is_90) {
        cudaLaunchConfig_t c = {};
        c.gridDim = dim3(8), c.blockDim = dim3(512), c.stream = stream;
        cudaLaunchAttribute at[1];
        at[0].id = cudaLaunchAttributeClusterDimension;
        at[0].val.clusterDim.x = 8, at[0].val.clusterDim.y = 1, at[0].val.clusterDim.z = 1;
        c.attrs = at, c.numAttrs = 1;
        CHECK(cudaLaunchKernelEx(&c, cluster_barrier_kernel, 1000, took, small));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaMemcpy(&us_of, took, 8, cudaMemcpyDeviceToHost));
        row("barrier of a cluster of 8 and a read of a neighbour's 2 KB", us_of / 1e6, "us");
    }

    for (int far = 0; far < 2; far++) { // in L2, then in DRAM
        const size_t range = far ? (size_t)512 << 20 : (size_t)8 << 20;
        const uint32_t n = (uint32_t)(range / 128);
        std::vector<uint32_t> order(n), chain((size_t)n * 32, 0);
        for (uint32_t i = 0; i < n; i++) order[i] = i;
        uint64_t seed = 88172645463325252ull;
        for (uint32_t i = n - 1; i; i--) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            std::swap(order[i], order[seed % (i + 1)]);
        }
        for (uint32_t i = 0; i < n; i++) chain[(size_t)order[i] * 32] = order[(i + 1) % n] * 32;
        CHECK(cudaMemcpy(memory, chain.data(), range, cudaMemcpyHostToDevice));
        const int steps = far ? 20000 : (int)n;
        for (int i = 0; i < (far ? 1 : 2); i++) chase_kernel<<<1, 1, 0, stream>>>((const uint32_t *)memory, steps, took, small);
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaMemcpy(&us_of, took, 8, cudaMemcpyDeviceToHost));
        row(far ? "latency of DRAM" : "latency of L2", (double)us_of / steps, "ns");
    }

    uint32_t *host = nullptr;
    CHECK(cudaHostAlloc(&host, 1 << 20, cudaHostAllocPortable));
    row("28 KB from pinned memory, words one after another", graph_us(100, [&](int) { host_words_kernel<<<1, 1024, 0, stream>>>(host, (uint32_t *)y, 7168); }), "us");
    row("28 KB from pinned memory, 16 bytes at once", graph_us(100, [&](int) { host_pieces_kernel<<<1, 1024, 0, stream>>>((const uint4 *)host, (uint4 *)y, 1792); }), "us");

    const size_t next = (size_t)20 << 20;
    for (int fetch = 0; fetch < 2; fetch++) {
        const double alone = graph_us(20, [&](int k) { busy_kernel<<<fetch ? n_sms : 1, 256, 0, stream>>>(10000, memory + (size_t)k * next, next); });
        const double both = graph_us(20, [&](int k) {
            busy_kernel<<<fetch ? n_sms : 1, 256, 0, stream>>>(10000, memory + (size_t)k * next, next);
            read_kernel<8><<<n_sms * 2, 256, 0, stream>>>(memory + (size_t)k * next, next, small);
        });
        row(fetch ? "10 us on one SM while others fetch 20 MB into L2" : "10 us on one SM", alone, "us");
        row("  and reading those 20 MB after it", both - alone, "us");
    }
    CHECK(cudaDeviceSynchronize());
    return n_failed > 0;
}

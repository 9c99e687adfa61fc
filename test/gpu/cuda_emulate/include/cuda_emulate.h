#pragma once
/* Runs CUDA kernels on the CPU to check their results. Speed means nothing here.
 *
 * translate.py turns FILE.cu into C++: launches kernel<<<grid, block, shared, stream>>>(args) become calls of
 * cuda_emulate_launch, and __shared__ variables are in the block's own memory. g++ compiles that with this folder's
 * headers before CUDA's, and with -fsanitize=thread but without its library: device.cpp defines the functions that the
 * compiler calls before each access, and so checks all of them. Threads of a block are fibers, blocks run one after
 * another, streams are host threads. Detected and reported, as cudaErrorLaunchFailure and on stderr:
 *  - accesses outside a live allocation of a device that this one can reach, to host memory, or not aligned to their
 * size;
 *  - accesses outside the shared variables, and reads of shared memory that the block has not written;
 *  - races: two threads access a byte, one writes, with no barrier between; blocks of one launch likewise, in device
 * memory;
 *    A block that changes an int after __threadfence() releases what it did before, and one that fences after its
 * change acquires what earlier ones released; such a counter must be 0 at the end of the launch;
 *  - threads that meet at different barriers or warp functions, lanes missing from a mask, blocks that never end;
 *  - launches whose grid, threads, arguments or shared memory a card would refuse (CUDA_EMULATE_SHARED, 99 KB);
 *  - copies outside allocations or in a direction that does not match their pointers, waits for events never recorded;
 *  - memory, streams and events left at the end of the program, which then exits with 86.
 * New device memory, and shared memory before each block, is filled with 0xff: NaN in every format.
 *
 * To add gpu/cuda_NAME.cu: add its name to cuda_kernels in gpu/meson.build. Nothing else is needed as long as it uses
 * only what is declared here. Instructions without a C name belong in gpu/cuda_mma.cuh, with a function in warp.cpp.
 *
 * CUDA_EMULATE_SEED=n (n > 0) runs the warps, lanes, blocks and streams in a random order of that seed; _DEVICES (2),
 * _SM (90), _MEM (4096 MiB), _PROCESSORS (4), _BLAS=0 (cuBLAS is missing), _BLAS_STATUS=n (its products
 * fail with that status, or every _BLAS_EVERY-th one) describe the cards. _FAIL=kind:n: the nth
 * alloc, copy or launch fails. _DRIVER=1: calls block as a driver's do; driver.cpp has the rules. _ORDER=0: missing
 * waits are not found; order.cpp has the rules. _LATE=NAME[:DEVICE],...: streams that the backend opened under these
 * names run late, by _LATE_MS (10) a command; NAME host: host threads after each wait for a timeline. _CUDA (13000):
 * the version of CUDA that the driver is for, 0: libcuda is missing; _MODULE=1: its kernel module is there;
 * _COMPILE_MS: to load a kernel takes so long; _OLD_PTX=1: the driver does not know this PTX. _CLOCK_KHZ (0: not told):
 * of memory that is 8 bits wide; _SLOW=KERNEL:MS: it takes so much longer. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n)    __attribute__((aligned(n)))
#define __forceinline__ inline
#define __noinline__    __attribute__((noinline))

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint3 {
    unsigned x, y, z;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

enum { CUDA_EMULATE_SLOT = 128 };
extern "C" {
/* Indices of the calling thread: constant as far as it can tell. */
__attribute__((const)) uint3 cuda_emulate_thread(void);
__attribute__((const)) uint3 cuda_emulate_block(void);
__attribute__((const)) uint3 cuda_emulate_block_dim(void);
__attribute__((const)) uint3 cuda_emulate_grid_dim(void);
void *cuda_emulate_shared(const void *site, size_t size, size_t align);
void *cuda_emulate_shared_dynamic(size_t align);
void cuda_emulate_sync(int line);
void cuda_emulate_nanosleep(void);
void cuda_emulate_fence(void);
void cuda_emulate_threadfence(void);
void cuda_emulate_syncwarp(unsigned mask, int line);
/* Lanes of the mask meet and exchange their values, of at most CUDA_EMULATE_SLOT bytes, at out + CUDA_EMULATE_SLOT *
 * lane. */
const char *cuda_emulate_meet(unsigned mask, const void *mine, size_t size, int line);
int cuda_emulate_lane(void);
int cuda_emulate_atomic_int(int *p, int op, int value, int compare);
float cuda_emulate_atomic_float(float *p, float add);
void cuda_emulate_run(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t s,
                      void (*call)(void *), const void *args, size_t size);
void __cudaRegisterFunction(void **file, const char *kernel, char *device, const char *name, int threads, void *tid,
                            void *bid, void *block, void *grid, int *warp);
}
#define threadIdx cuda_emulate_thread()
#define blockIdx  cuda_emulate_block()
#define blockDim  cuda_emulate_block_dim()
#define gridDim   cuda_emulate_grid_dim()
#define warpSize  32

/* Registers kernels before main(), as nvcc's code does. */
static void *cuda_emulate_file; /* its address stands for the file */
template <auto K> struct cuda_emulate_kernel {
    static inline const bool known = [] {
        __cudaRegisterFunction(&cuda_emulate_file, (const char *)K, NULL, "", 0, NULL, NULL, NULL, NULL, NULL);
        return true;
    }();
};
/* Arguments are converted to the kernel's types now and kept by value, as CUDA does. */
template <auto K, class... P, class... A>
static inline void cuda_emulate_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                       cudaStream_t s, A &&...args) {
    struct call {
        void (*kernel)(P...);
        std::tuple<std::remove_cv_t<P>...> args;
        static void run(void *p) {
            call *c = (call *)p;
            std::apply(c->kernel, c->args);
        }
    };
    (void)&cuda_emulate_kernel<K>::known;
    call c = {kernel, std::tuple<std::remove_cv_t<P>...>((P)(args)...)};
    cuda_emulate_run(name, (const void *)kernel, grid, block, shared, s, call::run, &c, sizeof c);
}

#define __syncthreads() cuda_emulate_sync(__LINE__)
#define __syncwarp(...) cuda_emulate_syncwarp(cuda_emulate_mask(__VA_ARGS__), __LINE__)
static inline unsigned cuda_emulate_mask(unsigned m = 0xffffffffu) { return m; }
static inline void __threadfence(void) { cuda_emulate_threadfence(); }
static inline void __threadfence_block(void) {}
static inline void __threadfence_system(void) { cuda_emulate_fence(); }
static inline void __nanosleep(unsigned) { cuda_emulate_nanosleep(); }

/* Shuffles of 4-byte values within `width` neighbouring lanes; a source outside them gives the lane's own value. */
template <class T> static inline T cuda_emulate_take(unsigned mask, T v, int from, int width, int line) {
    static_assert(sizeof(T) == 4, "shuffles of 4 bytes");
    int lane = cuda_emulate_lane(), base = lane & ~(width - 1);
    const char *all = cuda_emulate_meet(mask, &v, sizeof v, line);
    if (from < base || from >= base + width || !(mask >> from & 1)) from = lane;
    memcpy(&v, all + CUDA_EMULATE_SLOT * from, sizeof v);
    return v;
}
template <class T> static inline T cuda_emulate_shfl(int kind, int line, unsigned mask, T v, int d, int width = 32) {
    int lane = cuda_emulate_lane(), base = lane & ~(width - 1);
    int from = kind == 0 ? lane ^ d : kind == 1 ? lane + d : kind == 2 ? lane - d : base + (d & (width - 1));
    return cuda_emulate_take(mask, v, from, width, line);
}
#define __shfl_xor_sync(...)  cuda_emulate_shfl(0, __LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) cuda_emulate_shfl(1, __LINE__, __VA_ARGS__)
#define __shfl_up_sync(...)   cuda_emulate_shfl(2, __LINE__, __VA_ARGS__)
#define __shfl_sync(...)      cuda_emulate_shfl(3, __LINE__, __VA_ARGS__)
static inline unsigned cuda_emulate_ballot(unsigned mask, int v, int line) {
    const char *all = cuda_emulate_meet(mask, &v, sizeof v, line);
    unsigned votes = 0;
    for (int i = 0; i < 32; i++) {
        int other = 0;
        if (mask >> i & 1) memcpy(&other, all + CUDA_EMULATE_SLOT * i, sizeof other);
        votes |= other ? 1u << i : 0;
    }
    return votes;
}
#define __ballot_sync(mask, v) cuda_emulate_ballot(mask, (v) ? 1 : 0, __LINE__)
#define __any_sync(mask, v)    (cuda_emulate_ballot(mask, (v) ? 1 : 0, __LINE__) != 0)
#define __all_sync(mask, v)    (cuda_emulate_ballot(mask, (v) ? 0 : 1, __LINE__) == 0)

enum { CUDA_EMULATE_MIN, CUDA_EMULATE_MAX, CUDA_EMULATE_ADD, CUDA_EMULATE_CAS, CUDA_EMULATE_EXCH, CUDA_EMULATE_OR };
static inline int atomicMin(int *p, int v) { return cuda_emulate_atomic_int(p, CUDA_EMULATE_MIN, v, 0); }
static inline int atomicMax(int *p, int v) { return cuda_emulate_atomic_int(p, CUDA_EMULATE_MAX, v, 0); }
static inline int atomicAdd(int *p, int v) { return cuda_emulate_atomic_int(p, CUDA_EMULATE_ADD, v, 0); }
static inline int atomicOr(int *p, int v) { return cuda_emulate_atomic_int(p, CUDA_EMULATE_OR, v, 0); }
static inline int atomicExch(int *p, int v) { return cuda_emulate_atomic_int(p, CUDA_EMULATE_EXCH, v, 0); }
static inline int atomicCAS(int *p, int compare, int v) {
    return cuda_emulate_atomic_int(p, CUDA_EMULATE_CAS, v, compare);
}
static inline float atomicAdd(float *p, float v) { return cuda_emulate_atomic_float(p, v); }

template <class T, class U> static inline T cuda_emulate_bits(U v) {
    static_assert(sizeof(T) == sizeof(U), "as bits");
    T out;
    memcpy(&out, &v, sizeof out);
    return out;
}
static inline float __uint_as_float(unsigned v) { return cuda_emulate_bits<float>(v); }
static inline unsigned __float_as_uint(float v) { return cuda_emulate_bits<unsigned>(v); }
static inline float __int_as_float(int v) { return cuda_emulate_bits<float>(v); }
static inline int __float_as_int(float v) { return cuda_emulate_bits<int>(v); }
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
    uint64_t both = (uint64_t)y << 32 | x;
    unsigned v = 0;
    for (int i = 0; i < 4; i++) v |= (unsigned)(both >> (s >> 4 * i & 7) * 8 & 255) << 8 * i;
    return v;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (by & 31));
}
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return c;
}
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
#define __expf expf
#define __logf logf
static inline float __fdividef(float a, float b) { return a / b; }
static inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
static inline int __float2int_rn(float v) { return (int)rintf(v); }
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcv(const T *p) { return *p; }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }

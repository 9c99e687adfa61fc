/* Loads every kernel when a device is opened. A driver loads a kernel at its first launch, and waits for the device to
 * drain: a step whose stream waits for the CPU would wait for ever. */
#include "base/clock.h"
#include "base/log.h"
#include "gpu/cuda.h"

enum { KERNELS = 1024 };

/* nvcc's code registers each kernel before main(); the linker's --wrap lets us see which. */
static const void *kernels[KERNELS];
static int n_kernels;

void __real___cudaRegisterFunction(void **file, const char *kernel, char *device, const char *name, int threads,
                                   void *thread, void *block, void *block_dim, void *grid_dim, int *warp);
void __wrap___cudaRegisterFunction(void **file, const char *kernel, char *device, const char *name, int threads,
                                   void *thread, void *block, void *block_dim, void *grid_dim, int *warp);
void __wrap___cudaRegisterFunction(void **file, const char *kernel, char *device, const char *name, int threads,
                                   void *thread, void *block, void *block_dim, void *grid_dim, int *warp) {
    if (n_kernels < KERNELS) kernels[n_kernels] = kernel;
    n_kernels++;
    __real___cudaRegisterFunction(file, kernel, device, name, threads, thread, block, block_dim, grid_dim, warp);
}

#ifndef CUDA_CUBINS /* set by the build: architectures that are assembled, and that whose PTX goes along */
#define CUDA_CUBINS 80, 89, 90, 120
#define CUDA_PTX    90
#endif
enum cuda_code cuda_load_code(int sm) {
    static const int cubins[] = {CUDA_CUBINS};
    for (size_t i = 0; i < sizeof cubins / sizeof *cubins; i++)
        if (cubins[i] / 10 == sm / 10 && cubins[i] <= sm) return CUDA_CODE_CUBIN; /* runs within a major version */
    return CUDA_PTX && CUDA_PTX <= sm ? CUDA_CODE_PTX : CUDA_CODE_NONE;
}

/* The first kernel of a file took this long: the driver compiles, and has not kept what it compiled before. */
static const double COMPILES_S = 0.3;

int cuda_load_kernels(int sm, const char *name, struct error *e) {
    if (n_kernels < 1 || n_kernels > KERNELS)
        return error_set(e, ERR_RUNTIME, "this build lists %d CUDA kernels; link it with --wrap=__cudaRegisterFunction",
                         n_kernels);
    const double begin_s = clock_now();
    bool is_announced = cuda_load_code(sm) == CUDA_CODE_CUBIN;
    for (int i = 0; i < n_kernels; i++) {
        struct cudaFuncAttributes a;
        cudaError_t r = cudaFuncGetAttributes(&a, kernels[i]);
        if (r == cudaErrorUnsupportedPtxVersion)
            return error_set(e, ERR_RUNTIME,
                             "the driver is older than the CUDA that hearth was built with, and cannot compile its "
                             "kernels for this card (%s, sm_%d): update the driver",
                             name, sm);
        if (r != cudaSuccess)
            return error_set(e, ERR_RUNTIME, "cannot load the CUDA kernels: %s", cudaGetErrorString(r));
        if (is_announced || clock_now() - begin_s < COMPILES_S) continue;
        is_announced = true;
        log_say(LOG_WARN,
                "the driver compiles hearth's kernels for this card (%s, sm_%d), for which this build has none: that "
                "takes minutes, once",
                name, sm);
    }
    return 0;
}

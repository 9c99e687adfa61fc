/* Loads every kernel when a device is opened. A driver loads a kernel at its first launch, and waits for the device to
 * drain: a step whose stream waits for the CPU would wait for ever. */
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

int cuda_load_kernels(struct error *e) {
    if (n_kernels < 1 || n_kernels > KERNELS)
        return error_set(e, ERR_RUNTIME, "this build lists %d CUDA kernels; link it with --wrap=__cudaRegisterFunction",
                         n_kernels);
    for (int i = 0; i < n_kernels; i++) {
        struct cudaFuncAttributes a;
        cudaError_t r = cudaFuncGetAttributes(&a, kernels[i]);
        if (r != cudaSuccess)
            return error_set(e, ERR_RUNTIME, "cannot load the CUDA kernels: %s", cudaGetErrorString(r));
    }
    return 0;
}

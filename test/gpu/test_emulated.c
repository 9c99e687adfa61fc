/* Whether the programs that are named after the emulation use it: its cuBLAS is the one that is opened, and
 * CUDA_EMULATE_BLAS=0 hides it. Then a device that must use cuBLAS does not open, instead of computing with other
 * kernels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda.h"
#include "gpu/gpu.h"

int cuda_emulate_libraries(void);

int main(void) {
    const char *set = getenv("CUDA_EMULATE_BLAS");
    const bool wanted = !set || atoi(set);
    const char *name = cuda_blas_name();
    struct gpu_spec spec;
    struct gpu *g = NULL;
    struct error e = {0};
    const bool opens = !gpu_spec_parse(&spec, "0,gemm=cublas", &e) && !gpu_open(&g, &spec, 0, &e);
    gpu_close(&g);
    printf("cuBLAS: %s, the emulation was asked for %d libraries; gemm=cublas: %s\n", name ? name : "none",
           cuda_emulate_libraries(), opens ? "opens" : e.text);
    return !cuda_emulate_libraries() || !name == wanted || opens != wanted ||
           (!opens && !strstr(e.text, "gemm=cublas needs cuBLAS"));
}

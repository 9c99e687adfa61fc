/* Whether the programs that are named after the emulation use it: its cuBLAS is the one that is opened, and CUDA_EMULATE_BLAS=0 hides it. */
#include <stdio.h>
#include <stdlib.h>

#include "gpu/cuda.h"

int cuda_emulate_libraries(void);

int main(void) {
    const char *set = getenv("CUDA_EMULATE_BLAS");
    const bool wanted = !set || atoi(set);
    const char *name = cuda_blas_name();
    printf("cuBLAS: %s, the emulation was asked for %d libraries\n", name ? name : "none", cuda_emulate_libraries());
    return !cuda_emulate_libraries() || !name == wanted;
}

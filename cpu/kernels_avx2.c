#include "cpu/simd_avx2.h"

#include "cpu/attn_inner.h"
#include "cpu/formats.h"
#include "cpu/kernel_bench_inner.h"

#ifndef ISA
#define ISA avx2
#endif
#define ROW(name)    FORMAT_JOIN(FORMAT_JOIN(ISA, _), name)
#define EXTERN(name) extern const struct format_kernels ROW(name);
FORMATS(EXTERN)

void kernels_avx2(struct kernels *k) {
#define FILL(name) kernels_format(k, &ROW(name));
    FORMATS(FILL)
    fill_attn(k);
    k->read = read_all;
    k->peak = fma_peak;
}

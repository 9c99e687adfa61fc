#include "cpu/simd_avx512.h"

#include "cpu/delta_inner.h"
#include "cpu/scan_inner.h"

void delta_avx512(struct kernels *k) { fill_delta(k), fill_scan(k); }

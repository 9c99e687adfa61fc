#include "cpu/simd_avx2.h"

#include "cpu/delta_inner.h"
#include "cpu/scan_inner.h"

void delta_avx2(struct kernels *k) { fill_delta(k), fill_scan(k); }

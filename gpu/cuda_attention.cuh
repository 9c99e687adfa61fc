#pragma once
/* What both attention kernels need to know about their keys. */
#include "gpu/cuda_device.cuh"

/* Keys that a query at pos sees: rows [lo, hi). */
__device__ inline void seen(const struct cuda_attention &a, int pos, int *lo, int *hi) {
    int h = pos - a.k_pos0 + 1, l = a.window > 0 ? pos - a.window + 1 - a.k_pos0 : 0;
    *hi = h < 0 ? 0 : h > a.n_keys ? a.n_keys : h;
    *lo = l < 0 ? 0 : l;
}
__device__ inline int position(const struct cuda_attention &a, int i) { return a.q_pos ? a.q_pos[i] : a.q_pos0 + i; }

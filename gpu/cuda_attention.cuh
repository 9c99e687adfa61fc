#pragma once
/* What both attention kernels need to know about their keys. */
#include "gpu/cuda_device.cuh"

/* Keys that a query at pos sees: rows [lo, hi), or places in its list of chosen ones. */
__device__ inline void seen(const struct cuda_attention &a, int pos, int *lo, int *hi) {
    int h = pos < a.k_pos0 ? 0 : (pos - a.k_pos0) / a.k_step + 1, l = a.window > 0 ? pos - a.window + 1 - a.k_pos0 : 0;
    *hi = h > a.n_keys ? a.n_keys : h;
    if (a.chosen && *hi > a.n_chosen) *hi = a.n_chosen;
    *lo = l < 0 ? 0 : l;
}
__device__ inline int position(const struct cuda_attention &a, int i) { return a.q_pos ? a.q_pos[i] : a.q_pos0 + i; }

/* Where chunk s of the keys begins when queries are few: 16 chunks of 256 rows, 16 of 512 and so on. It depends on s alone, so
 * that neither the other queries of a call nor later keys show in a query's result. */
__host__ __device__ inline int chunk_begin(int s) { return 4096 * ((1 << s / 16) - 1) + s % 16 * (256 << s / 16); }

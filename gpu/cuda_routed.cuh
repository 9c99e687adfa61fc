#pragma once
/* Shared by the kernels of routed experts for few tokens (struct cuda_routed). */
#include "gpu/cuda_linear.cuh"

enum { MAX_TOPK = 64 };

/* The matrix of the expert that is `at` bytes after the first one. */
__device__ inline struct mat expert_mat(const struct mat &first, size_t at) {
    struct mat m = first;
    m.data = (const uint8_t *)m.data + at;
    if (m.scale) m.scale = (const uint8_t *)m.scale + at;
    if (m.order) m.order = (const int32_t *)((const uint8_t *)m.order + at);
    return m;
}

__device__ inline float bias_at(const float *first, size_t at, int r) { return first ? ((const float *)((const char *)first + at))[r] : 0.0f; }

/* Writes a token's choices to `order` in rising order of expert, then of position. Returns their number; called by all lanes of a warp. */
__device__ inline int order_choices(uint8_t *order, const int32_t *ids, int topk, int n_experts) {
    const int lane = (int)threadIdx.x % 32, none = 0x7fffffff;
    int key[MAX_TOPK / 32], rank[MAX_TOPK / 32] = {0}, n = 0; /* rank: how many choices come before */
#pragma unroll
    for (int i = 0; i < MAX_TOPK / 32; i++) {
        const int k = lane + 32 * i, id = k < topk ? ids[k] : -1;
        key[i] = id >= 0 && id < n_experts ? id * MAX_TOPK + k : none;
    }
    for (int j = 0; j < topk; j++) {
        const int other = __shfl_sync(0xffffffffu, j < 32 ? key[0] : key[1], j % 32);
        n += other != none;
#pragma unroll
        for (int i = 0; i < MAX_TOPK / 32; i++) rank[i] += other < key[i];
    }
#pragma unroll
    for (int i = 0; i < MAX_TOPK / 32; i++)
        if (key[i] != none) order[rank[i]] = (uint8_t)(lane + 32 * i);
    return n;
}
/* y[t][row] += sum over the token's choices, in that order, of weight * part[choice * ld]. */
__device__ inline void add_choices(const struct cuda_routed &a, int t, int row, const uint8_t *order, int n, const float *part, int ld) {
    const size_t rows = (size_t)a.down.rows;
    if (a.by_choice) {
        for (int k = 0; k < n; k++) a.y[((size_t)t * (size_t)a.topk + order[k]) * rows + (size_t)row] += part[order[k] * ld];
        return;
    }
    float sum = a.y[(size_t)t * rows + (size_t)row];
    for (int k = 0; k < n; k++) sum = fmaf(a.weights[t * a.topk + order[k]], part[order[k] * ld], sum);
    a.y[(size_t)t * rows + (size_t)row] = sum;
}

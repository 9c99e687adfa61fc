#pragma once
/* Shared by the product kernels without tiles: heads of a batch, and storing a result. */
#include "gpu/cuda_device.cuh"

/* The weights of one head of a batch. */
__device__ inline struct mat head_of(const struct cuda_linear &l, int z) {
    struct mat m = l.w;
    m.data = (const uint8_t *)m.data + (size_t)z * (size_t)l.batch_rows * m.stride;
    m.row0 += z * l.batch_rows * m.row_step;
    return m;
}
inline unsigned heads_of(const struct cuda_linear *l) { return l->batch > 1 ? (unsigned)l->batch : 1; }

/* Output o of token t of the block's head; outs: of a head. */
__device__ inline void linear_store(const struct cuda_linear &l, int t, int o, int outs, float v) {
    float *y = l.y + (size_t)t * (size_t)l.ldy + (size_t)blockIdx.z * (size_t)l.batch_y + (size_t)o;
    if (l.bias) v += l.bias[(size_t)blockIdx.z * (size_t)outs + (size_t)o];
    *y = l.accumulate ? *y + v : v;
}

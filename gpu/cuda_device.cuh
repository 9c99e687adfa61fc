#pragma once
/* Element-wise decoding on the device, and reductions. base/mat.h and base/minifloat.h define the formats. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/cuda_blocks.cuh"
#include "gpu/cuda_kernels.h"

/* Round to nearest even, saturating to 448. */
__device__ inline uint8_t e4m3_encode(float f) {
    uint32_t u = __float_as_uint(f), sign = u >> 24 & 0x80;
    u &= 0x7fffffff;
    if (u > 0x7f800000) return (uint8_t)(sign | 0x7f);
    if (u >= __float_as_uint(448.0f)) return (uint8_t)(sign | 0x7e);
    if (u < __float_as_uint(0x1p-6f))
        return (uint8_t)(sign | (__float_as_uint(__uint_as_float(u) + 0x1p14f) - __float_as_uint(0x1p14f)));
    return (uint8_t)(sign | ((u - (120u << 23) + 0x7ffff + (u >> 20 & 1)) >> 20));
}
__device__ inline float half_at(const void *p, size_t i) { return __half2float(((const __half *)p)[i]); }
__device__ inline float bf16_at(const void *p, size_t i) { return __uint_as_float((uint32_t)((const uint16_t *)p)[i] << 16); }

__device__ inline float scalar_at(const void *p, int dtype, size_t i) {
    switch (dtype) {
    case DT_BF16: return bf16_at(p, i);
    case DT_F16: return half_at(p, i);
    case DT_E8M0: return e8m0_decode(((const uint8_t *)p)[i]);
    default: return ((const float *)p)[i];
    }
}
__device__ inline size_t scale_index(const struct mat &m, int r, int c) {
    return (size_t)((m.row0 + r * m.row_step) / m.block_rows) * (size_t)m.scale_stride + (size_t)(c / m.block_cols);
}
/* at / size, without a division where size is a power of two: block_of(size, block_shift(size), at). */
__device__ inline int block_shift(int size) { return size > 0 && !(size & (size - 1)) ? 31 - __clz(size) : -1; }
__device__ inline int block_of(int size, int shift, int at) { return shift >= 0 ? at >> shift : at / size; }
/* Scale number i of a matrix that has scales. */
__device__ inline float scale_number(const struct mat &m, size_t i) {
    if (m.scale_dtype == DT_F32) return ((const float *)m.scale)[i];
    if (m.scale_dtype == DT_E4M3) return e4m3_decode(((const uint8_t *)m.scale)[i]) * m.scale_gain;
    if (m.scale_dtype == DT_F32Z) return __uint_as_float(((const uint32_t *)m.scale)[i] & ~255u);
    return scalar_at(m.scale, m.scale_dtype, i);
}
/* The number of row r's first scale, 0 without scales. shift: block_shift(m.block_rows). */
__device__ inline size_t first_scale(const struct mat &m, int shift, int r) {
    return m.scale ? (size_t)block_of(m.block_rows, shift, m.row0 + r * m.row_step) * (size_t)m.scale_stride : 0;
}
__device__ inline float scale_of(const struct mat &m, int r, int c) { return m.scale ? scale_number(m, scale_index(m, r, c)) : 1; }
/* The zero point that code_at subtracts, minus the block's own zero point. */
__device__ inline float zero_shift(const struct mat &m, int r, int c) {
    if (!m.scale || m.scale_dtype != DT_F32Z) return 0;
    return (float)((m.dtype == DT_I4 ? 8 : 128) - (int)(((const uint32_t *)m.scale)[scale_index(m, r, c)] & 255));
}
/* The stored number, without its scale or the zero point of its block. */
__device__ inline float code_at(const struct mat &m, int r, int c) {
    const uint8_t *p = (const uint8_t *)m.data + (size_t)r * m.stride;
    switch (m.dtype) {
    case DT_BF16: return bf16_at(p, (size_t)c);
    case DT_F16: return half_at(p, (size_t)c);
    case DT_E4M3: return e4m3_decode(p[c]);
    case DT_E2M1: return e2m1_decode((uint32_t)p[c / 2] >> (c % 2 * 4) & 15);
    case DT_NF4: return nf4_decode((uint32_t)p[c / 2] >> (c % 2 ? 0 : 4) & 15);
    case DT_I8: return (float)(int8_t)p[c];
    case DT_I4: return (float)((int)((uint32_t)p[c / 2] >> (c % 2 * 4) & 15) - 8);
    case DT_F32: return ((const float *)p)[c];
    }
    float v;
    blocks_at<1>(&v, p, m.dtype, c);
    return v;
}
__device__ inline float weight_at(const struct mat &m, int r, int c) { return (code_at(m, r, c) + zero_shift(m, r, c)) * scale_of(m, r, c); }

/* A row of a plane, as row `row` of the arrays at data and scale. */
struct plane_row {
    char *data;
    float *scale;
    size_t row;
};
__device__ inline struct plane_row plane_row(const struct kv_plane &p, size_t row) {
    struct plane_row r = {(char *)p.data, p.scale, row};
    if (p.blocks) {
        const unsigned at = (unsigned)row + (unsigned)p.first, which = p.inverse ? __umulhi(at, p.inverse) : at; /* 2^32 has no inverse: blocks of one row */
        const struct kv_block b = p.blocks[which];
        r.data = b.mem + p.at, r.scale = (float *)(b.mem + p.scale_at);
        r.row = (size_t)b.mem_index * (size_t)p.block_rows + (at - which * (unsigned)p.block_rows);
    }
    return r;
}
__device__ inline float plane_value(const struct kv_plane &p, const struct plane_row &r, int head, int d) {
    size_t at = (r.row * (size_t)p.heads + (size_t)head) * (size_t)p.dim + (size_t)d;
    switch (p.dtype) {
    case DT_BF16: return bf16_at(r.data, at);
    case DT_E4M3: return e4m3_decode(((const uint8_t *)r.data)[at]) * r.scale[r.row * (size_t)p.heads + (size_t)head];
    default: return ((const float *)r.data)[at];
    }
}
__device__ inline float plane_at(const struct kv_plane &p, size_t row, int head, int d) { return plane_value(p, plane_row(p, row), head, d); }
/* Sets the plane's addresses from memory. */
__device__ inline void plane_set_address(struct kv_plane *p, const struct op_address *to) { p->data = to->data, p->scale = to->scale, p->blocks = to->blocks; }

__device__ inline float warp_sum(float v) {
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}
__device__ inline float warp_max(float v) {
    for (int d = 16; d; d >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}
/* Sum over a block of at most 1024 threads, in one fixed order; every thread gets it. */
__device__ inline float block_sum(float v, float *shared /* [32] */) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
    v = warp_sum(v);
    __syncthreads();
    if (!lane) shared[warp] = v;
    __syncthreads();
    v = lane < warps ? shared[lane] : 0;
    return warp_sum(v);
}

/* Whether this thread block is the last of n blocks to come here with this counter, which is 0 before and after. It then sees what the others have written. Called by all
 * threads of a block; shared: a number in shared memory. */
__device__ inline bool last_block(int *counter, int n, int *shared) {
    __syncthreads();
    if (!threadIdx.x) {
        __threadfence(); /* releases what the block has written */
        *shared = atomicAdd(counter, 1) == n - 1;
        if (*shared) atomicExch(counter, 0);
        __threadfence(); /* acquires what the others have released */
    }
    __syncthreads();
    return *shared != 0;
}

inline unsigned blocks_of(size_t n, size_t per) { return (unsigned)((n + per - 1) / per); }

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/* Combines gate and up of an FFN; NaN stays NaN. */
__device__ inline float glu(float gate, float up, const struct glu &a) {
    if (a.is_ungated) up = 1.0f;
    if (a.is_relu) return (gate < 0 ? 0.0f : gate) * up;
    if (a.is_erf) return 0.5f * gate * (1.0f + erff(gate * 0.70710678f)) * up; /* 1 / sqrt(2) */
    if (a.xielu_beta > 0) return (gate > 0 ? a.xielu_p * gate * gate : a.xielu_n * (expm1f(gate) - gate)) + a.xielu_beta * gate;
    if (a.gate_cap > 0) return a.gate_cap * tanhf(gate / a.gate_cap) * sigmoid(gate) * (a.up_cap * tanhf(up / a.up_cap));
    if (a.limit > 0) {
        gate = gate > a.limit && !a.clamp_after ? a.limit : gate;
        up = up > a.limit ? a.limit : up < -a.limit ? -a.limit : up;
    }
    const float rate = (a.alpha > 0 ? a.alpha : 1.0f) + (a.cubic > 0 ? a.cubic * gate * gate : 0.0f);
    gate /= 1.0f + expf(-rate * gate);
    if (a.clamp_after && a.limit > 0 && gate > a.limit) gate = a.limit;
    return gate * (up + a.shift);
}

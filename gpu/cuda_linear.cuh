#pragma once
/* Shared by the product kernels without tiles: heads of a batch, loading activations, and storing a result. */
#include "gpu/cuda_device.cuh"

/* The weights of one head of a batch. */
__device__ inline struct mat head_of(const struct op_linear &l, int z) {
    struct mat m = l.w;
    m.data = (const uint8_t *)m.data + (size_t)z * (size_t)l.batch_rows * m.stride;
    m.row0 += z * l.batch_rows * m.row_step;
    return m;
}
inline unsigned heads_of(const struct op_linear *l) { return l->batch > 1 ? (unsigned)l->batch : 1; }

/* Stores output o of token t, of the thread block's head, which has `outs` outputs. */
__device__ inline void linear_store(const struct op_linear &l, int t, int o, int outs, float v) {
    float *y = l.y + (size_t)t * (size_t)l.ldy + (size_t)blockIdx.z * (size_t)l.batch_y + (size_t)o;
    if (l.bias) v += l.bias[(size_t)blockIdx.z * (size_t)outs + (size_t)o];
    if (l.row_weight) *y += l.row_weight[t] * v;
    else *y = l.accumulate ? *y + v : v;
}
/* Products in one launch; begin: the first thread block of each. */
struct joined {
    struct op_join o;
    int begin[OP_JOIN_MAX + 1];
};
/* The number of the product of a join that this thread block computes. */
__device__ inline int join_part(const struct joined &j) {
    int k = 0;
    while (k + 1 < j.o.n && (int)blockIdx.x >= j.begin[k + 1]) k++;
    return k;
}
/* Assigns the blocks of a join's products: one per `rows` rows. Returns their number. */
inline unsigned join_blocks(struct joined *j, int rows) {
    j->begin[0] = 0;
    for (int k = 0; k < j->o.n; k++) j->begin[k + 1] = j->begin[k] + (int)blocks_of((size_t)j->o.linear[k].w.rows, (size_t)rows);
    return (unsigned)j->begin[j->o.n];
}

/* The epilogue that a kernel has among its arguments, or nothing. */
struct no_epilogue {};
template <bool HAS> struct epilogue_of {
    typedef struct no_epilogue type;
    static type value(const struct cuda_epilogue *) { return {}; }
};
template <> struct epilogue_of<true> {
    typedef struct cuda_epilogue type;
    static type value(const struct cuda_epilogue *e) { return *e; }
};

/* The power of two that brings the largest of some activations to [2^14, 2^15), near the end of FP16's range, and its inverse. Infinity and NaN are not
 * scaled, and the scale stays finite. */
__device__ inline float fp16_scale(float largest, float *unscale) {
    const uint32_t e = __float_as_uint(largest) >> 23, f = e == 255 ? 127 : e < 15 ? 253 : 268 - e; /* biased exponents: e + f = 2 * 127 + 14 */
    *unscale = __uint_as_float((254 - f) << 23);
    return __uint_as_float(f << 23);
}

/* 16 numbers of a row; those from `left` on are zero. aligned: p is 16-byte aligned. */
__device__ inline void load_x(float v[16], const float *p, int left, bool aligned) {
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
        float4 f = make_float4(0, 0, 0, 0);
        if (aligned && i + 4 <= left) f = *(const float4 *)(p + i);
        else {
            if (i < left) f.x = p[i];
            if (i + 1 < left) f.y = p[i + 1];
            if (i + 2 < left) f.z = p[i + 2];
            if (i + 3 < left) f.w = p[i + 3];
        }
        v[i] = f.x, v[i + 1] = f.y, v[i + 2] = f.z, v[i + 3] = f.w;
    }
}

/* Prepares and finishes the tiled products of expert groups and MLA heads: gathers tokens in the product's input type, converts scales to its layout, and
 * adds results to their tokens in one fixed order. */
#include "gpu/cuda_device.cuh"

static __global__ void gather_bf16_kernel(__nv_bfloat16 *out, const float *x, const int32_t *index, int dim, int ldx, int ldo) {
    const float *src = x + (size_t)(index ? index[blockIdx.x] : (int)blockIdx.x) * (size_t)ldx;
    for (int d = threadIdx.x; d < dim; d += blockDim.x) out[(size_t)blockIdx.x * (size_t)ldo + (size_t)d] = __float2bfloat16_rn(src[d]);
}
cudaError_t cuda_gather_bf16(cudaStream_t s, void *out, const float *x, const int32_t *index, int n, int dim, int ldx, int ldo) {
    gather_bf16_kernel<<<(unsigned)n, 256, 0, s>>>((__nv_bfloat16 *)out, x, index, dim, ldx, ldo);
    return cudaGetLastError();
}

/* One warp per 128 columns of a token. */
static __global__ void gather_fp8_kernel(uint8_t *out, float *scale, const float *x, const int32_t *index, int dim, int ldx, int ldo,
                                         int scale_ld) {
    const float *src = x + (size_t)(index ? index[blockIdx.x] : (int)blockIdx.x) * (size_t)ldx;
    uint8_t *dst = out + (size_t)blockIdx.x * (size_t)ldo;
    int lane = threadIdx.x % 32;
    for (int b = threadIdx.x / 32; b * 128 < dim; b += blockDim.x / 32) {
        float v[4], top = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int d = b * 128 + i * 32 + lane;
            v[i] = d < dim ? src[d] : 0.0f;
            top = fmaxf(top, fabsf(v[i]));
        }
        float f = fmaxf(warp_max(top), 1e-4f) / 448.0f;
        if (!lane) scale[(size_t)b * (size_t)scale_ld + blockIdx.x] = f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int d = b * 128 + i * 32 + lane;
            if (d < dim) dst[d] = e4m3_encode(v[i] / f);
        }
    }
}
cudaError_t cuda_gather_fp8(cudaStream_t s, void *out, float *scale, const float *x, const int32_t *index, int n, int dim, int ldx, int ldo,
                            int scale_ld) {
    gather_fp8_kernel<<<(unsigned)n, 256, 0, s>>>((uint8_t *)out, scale, x, index, dim, ldx, ldo, scale_ld);
    return cudaGetLastError();
}

static __global__ void scales_kernel(float *out, struct mat w, int ld) {
    for (int c = threadIdx.x; c < ld; c += blockDim.x)
        out[(size_t)blockIdx.x * (size_t)ld + (size_t)c] =
            c * w.block_cols < w.cols ? scale_of(w, (int)blockIdx.x * w.block_rows, c * w.block_cols) : 0.0f;
}
cudaError_t cuda_expand_scales(cudaStream_t s, float *out, struct mat w, int ld) {
    scales_kernel<<<blocks_of((size_t)w.rows, (size_t)w.block_rows), 128, 0, s>>>(out, w, ld);
    return cudaGetLastError();
}

static __global__ void expand_rest_kernel(const __grid_constant__ struct op_expand o, const float *y) {
    size_t t = blockIdx.x;
    int lora = o.w.cols, rope = o.latent.dim - lora, k_dim = o.nope + rope, rows = o.nope + o.v_dim;
    __nv_bfloat16 *k = (__nv_bfloat16 *)o.k + t * (size_t)(o.heads * k_dim), *v = (__nv_bfloat16 *)o.v + t * (size_t)(o.heads * o.v_dim);
    for (int i = threadIdx.x; i < o.heads * rope; i += blockDim.x)
        k[i / rope * k_dim + o.nope + i % rope] = __float2bfloat16_rn(plane_at(o.latent, t, 0, lora + i % rope));
    for (int i = threadIdx.x; y && i < o.heads * rows; i += blockDim.x) {
        int h = i / rows, r = i % rows;
        *(r < o.nope ? k + h * k_dim + r : v + h * o.v_dim + r - o.nope) = __float2bfloat16_rn(y[t * (size_t)(o.heads * rows) + (size_t)i]);
    }
}
cudaError_t cuda_expand_rest(cudaStream_t s, const struct op_expand *o, const float *y) {
    expand_rest_kernel<<<(unsigned)o->n, 256, 0, s>>>(*o, y);
    return cudaGetLastError();
}

/* One block per pair. The first pair of a token adds all of the token's pairs, so that a row of y has one writer. Tokens rise within a
 * group, so lane k finds the token's pair in group k by binary search. */
static __global__ void combine_kernel(const __grid_constant__ struct cuda_combine c) {
    __shared__ int pair[OP_GROUP_MAX];
    int i = blockIdx.x, t = c.token[i], k = threadIdx.x;
    if (k < c.n) {
        int lo = c.begin[k], end = c.begin[k + 1], hi = end;
        while (lo < hi) {
            int mid = (lo + hi) / 2;
            if (c.token[mid] < t) lo = mid + 1;
            else hi = mid;
        }
        pair[k] = lo < end && c.token[lo] == t ? lo : -1;
    }
    __syncthreads();
    int first = 0;
    while (pair[first] < 0) first++;
    if (pair[first] != i) return;
    float *y = c.y + (size_t)t * (size_t)c.ldy;
    for (int d = threadIdx.x; d < c.dim; d += blockDim.x) {
        float v = y[d];
        for (int p = first; p < c.n; p++)
            if (pair[p] >= 0) v += c.weight[pair[p]] * c.x[(size_t)pair[p] * (size_t)c.dim + (size_t)d];
        y[d] = v;
    }
}
cudaError_t cuda_combine(cudaStream_t s, const struct cuda_combine *c) {
    int pairs = c->begin[c->n] - c->begin[0];
    if (pairs > 0) combine_kernel<<<(unsigned)pairs, 256, 0, s>>>(*c);
    return cudaGetLastError();
}

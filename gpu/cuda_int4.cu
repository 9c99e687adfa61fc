/* A layer's routed experts in INT4 for few tokens, for drafts: two launches that read the choices on the device, so the host does
 * not wait. Bound by memory bandwidth: a warp keeps one 16-byte load of each of several rows in flight and multiplies four
 * codes per instruction, with activations as two planes of eight bits (steps of 2^-15 of the largest of 128 columns). Each block
 * builds these planes in shared memory.
 *
 * DT_INT4 stores column i of 128 in the low nibble of byte i and column 64 + i in the high nibble, each with 8 added; a lane
 * has 32 columns of 128 and subtracts 8 times the sum of its activations. */
#include "gpu/cuda_device.cuh"

enum { WARPS = 8, GROUP = 128, PIECES = 4, ROWS = 2 }; /* PIECES lanes share a group; a warp processes ROWS rows of a matrix at once */
static const float largest_code = 127 * 256;           /* of 16-bit activations: high * 256 + low, both of 8 bits with a sign */

/* Activations of `groups` groups in shared memory. Plane layout: [low or high nibble][group][64]. */
struct planes {
    int8_t *high, *low; /* v = 256 high + low */
    float *scale;       /* [groups] of v */
    int *sum;           /* [groups, PIECES] of v, over a lane's columns */
};
__device__ inline struct planes planes_at(uint8_t *space, int groups) {
    struct planes p;
    p.high = (int8_t *)space;
    p.low = p.high + groups * GROUP;
    p.scale = (float *)(p.low + groups * GROUP);
    p.sum = (int *)(p.scale + groups);
    return p;
}
static size_t planes_bytes(int groups) { return (size_t)groups * (2 * GROUP + 4 + 4 * PIECES); }
/* One warp per group: lane l has columns 4l .. 4l + 3. */
__device__ inline void planes_fill(const struct planes &p, const float *x, int n, int groups) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int g = warp; g < groups; g += WARPS) {
        float v[4], most = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int c = g * GROUP + lane * 4 + i;
            v[i] = c < n ? x[c] : 0.0f;
            most = fmaxf(most, fabsf(v[i]));
        }
        most = warp_max(most);
        float scale = most > 1e-30f ? largest_code / most : 0.0f;
        uint32_t high = 0, low = 0;
        int sum = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int q = __float2int_rn(v[i] * scale), h = (q + 128) >> 8;
            high |= (uint32_t)(h & 255) << 8 * i;
            low |= (uint32_t)((q - h * 256) & 255) << 8 * i;
            sum += q;
        }
        int at = ((lane / 16) * groups + g) * (GROUP / 2) + lane % 16 * 4;
        *(uint32_t *)(p.high + at) = high;
        *(uint32_t *)(p.low + at) = low;
        sum += __shfl_xor_sync(0xffffffffu, sum, 1); /* lane j: columns 16j .. 16j + 15 and those + 64 */
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        sum += __shfl_xor_sync(0xffffffffu, sum, 16);
        if (lane < 16 && lane % 4 == 0) p.sum[g * PIECES + lane / 4] = sum;
        if (!lane) p.scale[g] = most / largest_code;
    }
}

/* Dot products of ROWS rows starting at r of each of N matrices, over all columns: every lane gets them. offset: bytes from the first expert's matrices. */
template <int N> __device__ inline void dots(float out[N][ROWS], const struct mat *const m[N], const size_t offset[N], int r, const struct planes &p, int groups) {
    int lane = threadIdx.x % 32, j = lane % PIECES, rows = m[0]->rows;
#pragma unroll
    for (int k = 0; k < N; k++)
#pragma unroll
        for (int i = 0; i < ROWS; i++) out[k][i] = 0;
    for (int g = lane / PIECES; g < groups; g += 32 / PIECES) {
        uint4 w[N][ROWS];
        float s[N][ROWS];
#pragma unroll
        for (int k = 0; k < N; k++)
#pragma unroll
            for (int i = 0; i < ROWS; i++) { /* rows past the last are computed but not stored */
                size_t row = (size_t)(r + i < rows ? r + i : rows - 1);
                w[k][i] = *(const uint4 *)((const uint8_t *)m[k]->data + offset[k] + row * m[k]->stride + (size_t)(g * (GROUP / 2) + j * 16));
                s[k][i] = bf16_at((const uint8_t *)m[k]->scale + offset[k], row * (size_t)m[k]->scale_stride + (size_t)g);
            }
        const int4 *high = (const int4 *)(p.high + g * (GROUP / 2) + j * 16), *low = (const int4 *)(p.low + g * (GROUP / 2) + j * 16);
        int4 x[4] = {high[0], high[groups * (GROUP / 2) / 16], low[0], low[groups * (GROUP / 2) / 16]}; /* columns of low nibbles, of high nibbles */
        const int *xs = (const int *)x;
        float f = p.scale[g];
        int excess = 8 * p.sum[g * PIECES + j]; /* the 8 that is added to each code, over all columns */
#pragma unroll
        for (int k = 0; k < N; k++)
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const uint32_t *codes = (const uint32_t *)&w[k][i];
                int a = 0, b = 0;
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int c = (int)(codes[e] & 0x0f0f0f0f), d = (int)(codes[e] >> 4 & 0x0f0f0f0f);
                    a = __dp4a(c, xs[e], __dp4a(d, xs[4 + e], a));
                    b = __dp4a(c, xs[8 + e], __dp4a(d, xs[12 + e], b));
                }
                out[k][i] = fmaf((float)(a * 256 + b - excess), s[k][i] * f, out[k][i]);
            }
    }
#pragma unroll
    for (int k = 0; k < N; k++)
#pragma unroll
        for (int i = 0; i < ROWS; i++) out[k][i] = warp_sum(out[k][i]);
}

/* h[pair] = glu(gate x, up x): grid (rows of inter, (token, choice) pairs). */
static __global__ void __launch_bounds__(WARPS * 32) int4_up_kernel(const __grid_constant__ struct cuda_routed a) {
    extern __shared__ __align__(16) uint8_t space[];
    int pair = (int)blockIdx.y, id = a.ids[pair], groups = (a.gate.cols + GROUP - 1) / GROUP, inter = a.gate.rows;
    if (id < 0 || id >= a.n_experts) return;
    struct planes p = planes_at(space, groups);
    planes_fill(p, a.x + (size_t)(pair / a.topk) * (size_t)a.gate.cols, a.gate.cols, groups);
    __syncthreads();
    const struct mat *const m[2] = {&a.gate, &a.up};
    const size_t offset[2] = {(size_t)id * a.expert_stride, (size_t)id * a.expert_stride};
    for (int r = ((int)blockIdx.x * WARPS + (int)threadIdx.x / 32) * ROWS; r < inter; r += (int)gridDim.x * WARPS * ROWS) {
        float v[2][ROWS];
        dots<2>(v, m, offset, r, p, groups);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (threadIdx.x % 32 == 0 && r + i < inter) a.h[(size_t)pair * (size_t)inter + (size_t)(r + i)] = glu(v[0][i], v[1][i], a.glu);
    }
}
/* y[t] += sum over its choices, in their order, of weight * down h: grid (rows of hidden, tokens). */
static __global__ void __launch_bounds__(WARPS * 32) int4_down_kernel(const __grid_constant__ struct cuda_routed a) {
    extern __shared__ __align__(16) uint8_t space[];
    int t = (int)blockIdx.y, groups = (a.down.cols + GROUP - 1) / GROUP, r = ((int)blockIdx.x * WARPS + (int)threadIdx.x / 32) * ROWS;
    struct planes p = planes_at(space, groups);
    const struct mat *const m[1] = {&a.down};
    float sum[ROWS] = {};
    for (int k = 0; k < a.topk; k++) {
        int pair = t * a.topk + k, id = a.ids[pair];
        if (id < 0 || id >= a.n_experts) continue; /* uniform within the block */
        __syncthreads();
        planes_fill(p, a.h + (size_t)pair * (size_t)a.down.cols, a.down.cols, groups);
        __syncthreads();
        const size_t offset[1] = {(size_t)id * a.expert_stride};
        float v[1][ROWS];
        dots<1>(v, m, offset, r, p, groups);
#pragma unroll
        for (int i = 0; i < ROWS; i++) sum[i] += a.weights[pair] * v[0][i];
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (threadIdx.x % 32 == 0 && r + i < a.down.rows) a.y[(size_t)t * (size_t)a.down.rows + (size_t)(r + i)] += sum[i];
}

/* Whether the kernels read this matrix. */
static int is_readable(const struct mat *m) {
    return m->dtype == DT_INT4 && m->scale && m->scale_dtype == DT_BF16 && m->block_rows == 1 && m->block_cols == GROUP && !m->row0 && m->row_step == 1 &&
           ((size_t)m->data | m->stride) % 16 == 0 && planes_bytes((m->cols + GROUP - 1) / GROUP) <= (48u << 10);
}
int cuda_int4_fits(const struct cuda_routed *a) {
    return a->expert_stride % 16 == 0 && !a->by_choice && !a->gate_bias && !a->up_bias && !a->down_bias && is_readable(&a->gate) && is_readable(&a->up) && is_readable(&a->down);
}
cudaError_t cuda_int4_experts(cudaStream_t s, const struct cuda_routed *a) {
    dim3 up(blocks_of((size_t)a->gate.rows, WARPS * ROWS), (unsigned)(a->n * a->topk)), down(blocks_of((size_t)a->down.rows, WARPS * ROWS), (unsigned)a->n);
    int4_up_kernel<<<up, WARPS * 32, planes_bytes((a->gate.cols + GROUP - 1) / GROUP), s>>>(*a);
    int4_down_kernel<<<down, WARPS * 32, planes_bytes((a->down.cols + GROUP - 1) / GROUP), s>>>(*a);
    return cudaGetLastError();
}

/* Attention. The prefill kernel runs on tensor cores in BF16 with float32 sums and online softmax: a block takes 64 queries
 * of one head and walks over the keys they see. The other kernel computes in float32 and takes any shape: a block has one
 * query and up to eight heads of one KV head, so a key that is read once serves them all (absorbed MLA has one KV head for
 * 128); with few queries the keys are split over blocks and the parts combined by their log-sum-exp. */
#include "gpu/cuda_device.cuh"
#include "gpu/cuda_mma.cuh"

/* Keys that a query at pos sees: rows [lo, hi). */
__device__ static void seen(const struct cuda_attention &a, int pos, int *lo, int *hi) {
    int h = pos - a.k_pos0 + 1, l = a.window > 0 ? pos - a.window + 1 - a.k_pos0 : 0;
    *hi = h < 0 ? 0 : h > a.n_keys ? a.n_keys : h;
    *lo = l < 0 ? 0 : l;
}
__device__ static int position(const struct cuda_attention &a, int i) { return a.q_pos ? a.q_pos[i] : a.q_pos0 + i; }

enum { HEADS = 8, KEYS = 32, WIDE = 4 /* 128 threads x 4 = values of up to 512 */, THREADS = 128 };

static __global__ void __launch_bounds__(THREADS) attention_f32_kernel(struct cuda_attention a) {
    extern __shared__ float qs[]; /* [HEADS][k.dim] */
    __shared__ float p[HEADS][KEYS], top[HEADS], sum[HEADS], fade[HEADS];
    int group = a.n_heads / a.k.heads, parts = (group + HEADS - 1) / HEADS;
    int i = blockIdx.x, kv = (int)blockIdx.y / parts, h0 = kv * group + (int)blockIdx.y % parts * HEADS, split = blockIdx.z;
    int heads = kv * group + group - h0 < HEADS ? kv * group + group - h0 : HEADS;
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, lo, hi;
    seen(a, position(a, i), &lo, &hi);
    if (hi < lo) hi = lo;
    if (a.splits > 1) {
        int share = (hi - lo + a.splits - 1) / a.splits, begin = lo + share * split;
        hi = begin + share < hi ? begin + share : hi;
        lo = begin;
    }
    for (int d = tid; d < heads * a.k.dim; d += THREADS)
        qs[d] = a.q[(size_t)i * (size_t)a.ldq + (size_t)h0 * (size_t)a.k.dim + (size_t)d] * a.scale;
    if (tid < HEADS) top[tid] = -INFINITY, sum[tid] = 0;
    float acc[HEADS][WIDE];
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int w = 0; w < WIDE; w++) acc[h][w] = 0;
    __syncthreads();
    for (int k0 = lo; k0 < hi; k0 += KEYS) {
        int m = hi - k0 < KEYS ? hi - k0 : KEYS;
        for (int k = warp; k < m; k += THREADS / 32) { /* a warp a key */
            float dot[HEADS] = {0};
            for (int d = lane; d < a.k.dim; d += 32) {
                float v = plane_at(a.k, (size_t)(k0 + k), kv, d);
#pragma unroll
                for (int h = 0; h < HEADS; h++)
                    if (h < heads) dot[h] += v * qs[h * a.k.dim + d];
            }
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float v = warp_sum(dot[h]);
                if (!lane) p[h][k] = v;
            }
        }
        __syncthreads();
        for (int h = warp; h < heads; h += THREADS / 32) { /* a warp a head, a lane a key */
            float v = lane < m ? p[h][lane] : -INFINITY, old = top[h], now = fmaxf(old, warp_max(v));
            float w = now == -INFINITY ? 0.0f : expf(v - now), f = old == -INFINITY ? 0.0f : expf(old - now), s = warp_sum(w);
            p[h][lane] = w;
            __syncwarp();
            if (!lane) top[h] = now, sum[h] = sum[h] * f + s, fade[h] = f;
        }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            if (h < heads) {
#pragma unroll
                for (int w = 0; w < WIDE; w++) acc[h][w] *= fade[h];
            }
        for (int k = 0; k < m; k++)
#pragma unroll
            for (int w = 0; w < WIDE; w++) {
                int d = tid + w * THREADS;
                if (d >= a.v_dim) continue;
                float v = plane_at(a.v, (size_t)(k0 + k), kv * a.v.heads / a.k.heads, d);
#pragma unroll
                for (int h = 0; h < HEADS; h++)
                    if (h < heads) acc[h][w] += p[h][k] * v;
            }
        __syncthreads();
    }
    if (a.sinks && split == 0 && tid < heads) { /* one more logit, without a value */
        float s = a.sinks[h0 + tid], now = fmaxf(top[tid], s);
        fade[tid] = top[tid] == -INFINITY ? 0.0f : expf(top[tid] - now);
        sum[tid] = sum[tid] * fade[tid] + expf(s - now);
        top[tid] = now;
    }
    __syncthreads();
    bool sunk = a.sinks && split == 0;
    float *out = a.splits > 1 ? a.part + ((size_t)split * (size_t)a.n + (size_t)i) * (size_t)a.n_heads * (size_t)a.v_dim
                              : a.out + (size_t)i * (size_t)a.ldo;
    float *lse = a.splits > 1 ? a.part_lse + (size_t)split * (size_t)a.n * (size_t)a.n_heads : a.lse;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (h >= heads) break;
        float f = sum[h] != 0 ? (sunk ? fade[h] : 1.0f) / sum[h] : 0.0f;
#pragma unroll
        for (int w = 0; w < WIDE; w++) {
            int d = tid + w * THREADS;
            if (d < a.v_dim) out[(size_t)(h0 + h) * (size_t)a.v_dim + (size_t)d] = acc[h][w] * f;
        }
        if (lse && !tid) lse[(size_t)i * (size_t)a.n_heads + (size_t)(h0 + h)] = sum[h] != 0 ? top[h] + logf(sum[h]) : -INFINITY;
    }
}

/* One block a (query, head): the parts weighted by exp(lse - total). */
static __global__ void combine_kernel(struct cuda_attention a) {
    size_t at = blockIdx.x, i = at / (unsigned)a.n_heads, h = at % (unsigned)a.n_heads, rows = (size_t)a.n * (size_t)a.n_heads;
    float top = -INFINITY, sum = 0;
    for (int s = 0; s < a.splits; s++) top = fmaxf(top, a.part_lse[(size_t)s * rows + at]);
    for (int s = 0; s < a.splits; s++) sum += top == -INFINITY ? 0.0f : expf(a.part_lse[(size_t)s * rows + at] - top);
    for (int d = threadIdx.x; d < a.v_dim; d += blockDim.x) {
        float v = 0;
        for (int s = 0; s < a.splits && sum != 0; s++)
            v += expf(a.part_lse[(size_t)s * rows + at] - top) / sum * a.part[((size_t)s * rows + at) * (size_t)a.v_dim + (size_t)d];
        a.out[i * (size_t)a.ldo + h * (size_t)a.v_dim + (size_t)d] = v;
    }
    if (a.lse && !threadIdx.x) a.lse[at] = sum != 0 ? top + logf(sum) : -INFINITY;
}

cudaError_t cuda_attention_f32(cudaStream_t s, const struct cuda_attention *a) {
    int group = a->n_heads / a->k.heads;
    size_t bytes = (size_t)HEADS * (size_t)a->k.dim * sizeof(float);
    if (a->v_dim > WIDE * THREADS || bytes > 40 * 1024) return cudaErrorInvalidValue;
    dim3 grid((unsigned)a->n, (unsigned)(a->k.heads * ((group + HEADS - 1) / HEADS)), (unsigned)(a->splits > 1 ? a->splits : 1));
    attention_f32_kernel<<<grid, THREADS, bytes, s>>>(*a);
    if (a->splits > 1) combine_kernel<<<(unsigned)a->n * (unsigned)a->n_heads, 128, 0, s>>>(*a);
    return cudaGetLastError();
}

/* Prefill on tensor cores. Four warps, 16 queries each; a tile of 64 keys. K lies in shared memory as it is, V transposed,
 * so that both are read as column-major fragments by 32-bit words; rows are padded by 8 elements against bank conflicts.
 * 192 + 128 dims take 70 KB, within the 99 KB of consumer cards. */
enum { QT = 64, KT = 64, PAD = 8 };

__device__ static inline uint32_t word(const __nv_bfloat16 *p) { return *(const uint32_t *)p; }
__device__ static inline uint32_t pack(float x, float y) {
    __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
    return *(uint32_t *)&v;
}

template <int KD, int VD> static __global__ void __launch_bounds__(128) attention_mma_kernel(struct cuda_attention a) {
    extern __shared__ __align__(16) __nv_bfloat16 smem[];
    const int KL = KD + PAD, VL = KT + PAD;
    __nv_bfloat16 *qs = smem, *ks = qs + QT * KL, *vs = ks + KT * KL; /* vs [VD][VL] */
    __shared__ int first, last;
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
    int i0 = (int)blockIdx.x * QT, h = blockIdx.y, kv = h / (a.n_heads / a.k.heads), vkv = kv * a.v.heads / a.k.heads;
    if (!tid) first = 0x7fffffff, last = 0;
    __syncthreads();
    if (tid < QT && i0 + tid < a.n) { /* the keys that any query of the tile sees */
        int l, e;
        seen(a, position(a, i0 + tid), &l, &e);
        if (e > l) atomicMin(&first, l), atomicMax(&last, e);
    }
    for (int e = tid; e < QT * KD; e += 128) {
        int i = e / KD, d = e % KD;
        float v = i0 + i < a.n ? a.q[(size_t)(i0 + i) * (size_t)a.ldq + (size_t)h * KD + (size_t)d] : 0.0f;
        qs[i * KL + d] = __float2bfloat16_rn(v);
    }
    int lo[2], hi[2]; /* of the two queries whose sums this thread holds */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = i0 + warp * 16 + g + r * 8;
        lo[r] = hi[r] = 0;
        if (i < a.n) seen(a, position(a, i), &lo[r], &hi[r]);
    }
    float o[VD / 8][4], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < VD / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[j][e] = 0;
    __syncthreads();
    int end = last;
    for (int k0 = end > 0 ? first / KT * KT : 0; k0 < end; k0 += KT) {
        __syncthreads(); /* all have read the last tile */
        for (int e = tid; e < KT * KD; e += 128) {
            int k = e / KD, d = e % KD;
            ks[k * KL + d] = __float2bfloat16_rn(k0 + k < a.n_keys ? plane_at(a.k, (size_t)(k0 + k), kv, d) : 0.0f);
        }
        for (int e = tid; e < KT * VD; e += 128) {
            int k = e / VD, d = e % VD;
            vs[d * VL + k] = __float2bfloat16_rn(k0 + k < a.n_keys ? plane_at(a.v, (size_t)(k0 + k), vkv, d) : 0.0f);
        }
        __syncthreads();
        float s[KT / 8][4];
#pragma unroll
        for (int j = 0; j < KT / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[j][e] = 0;
#pragma unroll 4
        for (int d = 0; d < KD; d += 16) {
            const __nv_bfloat16 *p = qs + (warp * 16 + g) * KL + d + 2 * t;
            uint32_t q[4] = {word(p), word(p + 8 * KL), word(p + 8), word(p + 8 * KL + 8)};
#pragma unroll
            for (int j = 0; j < KT / 8; j++) {
                const __nv_bfloat16 *b = ks + (j * 8 + g) * KL + d + 2 * t;
                mma_bf16(s[j], q, word(b), word(b + 8));
            }
        }
        float most[2] = {top[0], top[1]};
#pragma unroll
        for (int j = 0; j < KT / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int k = k0 + j * 8 + 2 * t + e % 2, r = e / 2;
                s[j][e] = k >= lo[r] && k < hi[r] ? s[j][e] * a.scale : -INFINITY;
                most[r] = fmaxf(most[r], s[j][e]);
            }
#pragma unroll
        for (int r = 0; r < 2; r++) { /* the four lanes of a row agree */
            most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 1));
            most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 2));
        }
        float fade[2], add[2] = {0, 0};
#pragma unroll
        for (int r = 0; r < 2; r++) fade[r] = top[r] == -INFINITY ? 0.0f : __expf(top[r] - most[r]);
#pragma unroll
        for (int j = 0; j < KT / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[j][e] = s[j][e] == -INFINITY ? 0.0f : __expf(s[j][e] - most[e / 2]);
                add[e / 2] += s[j][e];
            }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            add[r] += __shfl_xor_sync(0xffffffffu, add[r], 1);
            add[r] += __shfl_xor_sync(0xffffffffu, add[r], 2);
            sum[r] = sum[r] * fade[r] + add[r];
            top[r] = most[r];
        }
#pragma unroll
        for (int j = 0; j < VD / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[j][e] *= fade[e / 2];
#pragma unroll
        for (int k = 0; k < KT / 16; k++) { /* the sums of two key tiles are the next product's left operand */
            uint32_t p[4] = {pack(s[2 * k][0], s[2 * k][1]), pack(s[2 * k][2], s[2 * k][3]), pack(s[2 * k + 1][0], s[2 * k + 1][1]),
                pack(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
            for (int j = 0; j < VD / 8; j++) {
                const __nv_bfloat16 *b = vs + (j * 8 + g) * VL + k * 16 + 2 * t;
                mma_bf16(o[j], p, word(b), word(b + 8));
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = i0 + warp * 16 + g + r * 8;
        if (i >= a.n) continue;
        float f = 1;
        if (a.sinks) {
            float now = fmaxf(top[r], a.sinks[h]);
            f = top[r] == -INFINITY ? 0.0f : __expf(top[r] - now);
            sum[r] = sum[r] * f + __expf(a.sinks[h] - now);
            top[r] = now;
        }
        f = sum[r] != 0 ? f / sum[r] : 0.0f;
        float *out = a.out + (size_t)i * (size_t)a.ldo + (size_t)h * VD;
#pragma unroll
        for (int j = 0; j < VD / 8; j++) {
            out[j * 8 + 2 * t] = o[j][2 * r] * f;
            out[j * 8 + 2 * t + 1] = o[j][2 * r + 1] * f;
        }
        if (a.lse && !t) a.lse[(size_t)i * (size_t)a.n_heads + (size_t)h] = sum[r] != 0 ? top[r] + logf(sum[r]) : -INFINITY;
    }
}

template <int KD, int VD> static cudaError_t launch(cudaStream_t s, const struct cuda_attention *a) {
    const int bytes = (QT * (KD + PAD) + KT * (KD + PAD) + VD * (KT + PAD)) * 2;
    cudaError_t r = cudaFuncSetAttribute(attention_mma_kernel<KD, VD>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (r != cudaSuccess) return r;
    dim3 grid(blocks_of((size_t)a->n, QT), (unsigned)a->n_heads);
    attention_mma_kernel<KD, VD><<<grid, 128, (size_t)bytes, s>>>(*a);
    return cudaGetLastError();
}
int cuda_attention_mma_fits(const struct cuda_attention *a) {
    int k = a->k.dim, v = a->v_dim;
    return a->n >= 16 && a->splits <= 1 && a->v.dim >= v && ((k == 64 && v == 64) || (k == 128 && v == 128) || (k == 192 && v == 128));
}
cudaError_t cuda_attention_mma(cudaStream_t s, const struct cuda_attention *a) {
    if (a->k.dim == 64) return launch<64, 64>(s, a);
    if (a->k.dim == 128) return launch<128, 128>(s, a);
    return launch<192, 128>(s, a);
}

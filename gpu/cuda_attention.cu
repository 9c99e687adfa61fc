/* Attention in float32, of any shape. A block has one query and up to 16 heads of one KV head, so each key is read once for all
 * of them (absorbed MLA has one KV head for 128 heads). With few queries the keys are split over blocks and the parts are combined
 * by their log-sum-exp. Tensor cores: cuda_attention_mma.cu. */
#include "gpu/cuda_attention.cuh"

enum { KEYS = 32, THREADS = 128, VALUES = 4 }; /* keys per tile; value columns of a thread: up to 512 of a head */

template <int HEADS> static __global__ void __launch_bounds__(THREADS) attention_f32_kernel(struct cuda_attention a) {
    extern __shared__ float qs[]; /* [HEADS][k.dim] */
    __shared__ float p[HEADS][KEYS]; /* scores, then their exponentials */
    __shared__ float top[HEADS], sum[HEADS], rescale[HEADS]; /* largest score, sum of exponentials so far, factor of earlier sums */
    int group = a.o.n_heads / a.o.k.heads, parts = (group + HEADS - 1) / HEADS;
    int i = blockIdx.x, kv = (int)blockIdx.y / parts, h0 = kv * group + (int)blockIdx.y % parts * HEADS, split = blockIdx.z;
    int heads = kv * group + group - h0 < HEADS ? kv * group + group - h0 : HEADS;
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, lo, hi;
    const int32_t *chosen = a.o.chosen ? a.o.chosen + (size_t)(i * a.o.chosen_lists + kv * a.o.chosen_lists / a.o.k.heads) * (size_t)a.o.n_chosen : NULL;
    const struct attention_inputs in = read_inputs(a);
    visible_keys(a, in, query_pos(a, in, i), &lo, &hi);
    if (hi < lo) hi = lo;
    if (a.chunked) {
        lo = max(lo, chunk_begin(split));
        hi = max(lo, min(hi, chunk_begin(split + 1)));
    } else if (a.splits > 1) {
        int share = (hi - lo + a.splits - 1) / a.splits, begin = lo + share * split;
        hi = begin + share < hi ? begin + share : hi;
        lo = begin;
    }
    if (split && lo >= hi) { /* no key: cuda_attention_combine skips the part */
        if (tid < heads) a.part_lse[((size_t)split * (size_t)a.o.n + (size_t)i) * (size_t)a.o.n_heads + (size_t)(h0 + tid)] = -INFINITY;
        return;
    }
    for (int d = tid; d < heads * a.o.k.dim; d += THREADS)
        qs[d] = a.o.q[(size_t)i * (size_t)a.o.ldq + (size_t)h0 * (size_t)a.o.k.dim + (size_t)d] * a.o.scale;
    if (tid < HEADS) top[tid] = -INFINITY, sum[tid] = 0;
    float acc[HEADS][VALUES];
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int w = 0; w < VALUES; w++) acc[h][w] = 0;
    __syncthreads();
    for (int k0 = lo; k0 < hi; k0 += KEYS) {
        int m = hi - k0 < KEYS ? hi - k0 : KEYS;
        for (int k = warp; k < m; k += THREADS / 32) { /* one warp per key */
            float dot[HEADS] = {0};
            const int pos = query_pos(a, in, i), key = key_row(a, in, chosen, pos, k0 + k), distance = a.o.bias ? pos - a.o.k_pos0 - key : 0;
            const struct plane_row row = plane_row(in.k, (size_t)key);
            const float temperature = score_temperature(a, pos);
            for (int d = lane; d < a.o.k.dim; d += 32) {
                float v = plane_value(in.k, row, kv, d);
#pragma unroll
                for (int h = 0; h < HEADS; h++)
                    if (h < heads) dot[h] = fmaf(v, qs[h * a.o.k.dim + d], dot[h]);
            }
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                if (h >= heads) break;
                float v = warp_sum(dot[h]);
                if (a.o.softcap > 0) v = a.o.softcap * tanhf(v / a.o.softcap);
                v *= temperature;
                if (a.o.bias && distance >= 0 && distance < a.o.extent) v += a.o.bias[((size_t)i * (size_t)a.o.n_heads + (size_t)(h0 + h)) * (size_t)a.o.extent + (size_t)distance];
                if (!lane) p[h][k] = v;
            }
        }
        __syncthreads();
        for (int h = warp; h < heads; h += THREADS / 32) { /* one warp per head, one lane per key */
            float v = lane < m ? p[h][lane] : -INFINITY, old = top[h], now = fmaxf(old, warp_max(v));
            float w = now == -INFINITY ? 0.0f : expf(v - now), f = old == -INFINITY ? 0.0f : expf(old - now), s = warp_sum(w);
            p[h][lane] = w;
            __syncwarp();
            if (!lane) top[h] = now, sum[h] = sum[h] * f + s, rescale[h] = f;
        }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            if (h < heads) {
#pragma unroll
                for (int w = 0; w < VALUES; w++) acc[h][w] *= rescale[h];
            }
        for (int k = 0; k < m; k++) {
            const struct plane_row row = plane_row(in.v, (size_t)key_row(a, in, chosen, query_pos(a, in, i), k0 + k));
#pragma unroll
            for (int w = 0; w < VALUES; w++) {
                int d = tid + w * THREADS;
                if (d >= a.o.v_dim) continue;
                float v = plane_value(in.v, row, kv * a.o.v.heads / a.o.k.heads, d);
#pragma unroll
                for (int h = 0; h < HEADS; h++)
                    if (h < heads) acc[h][w] = fmaf(p[h][k], v, acc[h][w]);
            }
        }
        __syncthreads();
    }
    if (a.o.sinks && split == 0 && tid < heads) { /* one more logit, without a value */
        float s = a.o.sinks[h0 + tid], now = fmaxf(top[tid], s);
        rescale[tid] = top[tid] == -INFINITY ? 0.0f : expf(top[tid] - now);
        sum[tid] = sum[tid] * rescale[tid] + expf(s - now);
        top[tid] = now;
    }
    __syncthreads();
    bool has_sink = a.o.sinks && split == 0;
    float *out = a.splits > 1 ? a.part + ((size_t)split * (size_t)a.o.n + (size_t)i) * (size_t)a.o.n_heads * (size_t)a.o.v_dim
                              : a.o.out + (size_t)i * (size_t)a.o.ldo;
    float *lse = a.splits > 1 ? a.part_lse + (size_t)split * (size_t)a.o.n * (size_t)a.o.n_heads : a.o.lse;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (h >= heads) break;
        float f = sum[h] != 0 ? (has_sink ? rescale[h] : 1.0f) / sum[h] : 0.0f;
#pragma unroll
        for (int w = 0; w < VALUES; w++) {
            int d = tid + w * THREADS;
            if (d < a.o.v_dim) out[(size_t)(h0 + h) * (size_t)a.o.v_dim + (size_t)d] = acc[h][w] * f;
        }
        if (lse && !tid) lse[(size_t)i * (size_t)(a.splits > 1 ? a.o.n_heads : a.lse_ld) + (size_t)(h0 + h)] = sum[h] != 0 ? top[h] + logf(sum[h]) : -INFINITY;
    }
}

/* One block per (query, head) */
static __global__ void combine_kernel(struct cuda_attention a) {
    extern __shared__ float share[]; /* [splits] */
    combine_pair<true>(a, blockIdx.x, share, (int)threadIdx.x, (int)blockDim.x);
}

cudaError_t cuda_attention_combine(cudaStream_t s, const struct cuda_attention *a) {
    combine_kernel<<<(unsigned)a->o.n * (unsigned)a->o.n_heads, 128, (size_t)a->splits * sizeof(float), s>>>(*a);
    return cudaGetLastError();
}

template <int HEADS> static cudaError_t launch(cudaStream_t s, const struct cuda_attention *a) {
    int group = a->o.n_heads / a->o.k.heads;
    size_t bytes = (size_t)HEADS * (size_t)a->o.k.dim * sizeof(float);
    if (a->o.v_dim > VALUES * THREADS || bytes > 40 * 1024) return cudaErrorInvalidValue;
    dim3 grid((unsigned)a->o.n, (unsigned)(a->o.k.heads * ((group + HEADS - 1) / HEADS)), (unsigned)a->splits);
    attention_f32_kernel<HEADS><<<grid, THREADS, bytes, s>>>(*a);
    return a->splits > 1 ? cuda_attention_combine(s, a) : cudaGetLastError();
}
int cuda_attention_chunks(int keys) {
    int s = 1;
    while (chunk_begin(s) < keys) s++;
    return s;
}
int cuda_attention_f32_heads(const struct cuda_attention *a) { return a->o.n_heads / a->o.k.heads > 8 && a->o.k.dim <= 640 ? 16 : 8; }
cudaError_t cuda_attention_f32(cudaStream_t s, const struct cuda_attention *a) {
    return cuda_attention_f32_heads(a) == 16 ? launch<16>(s, a) : launch<8>(s, a);
}

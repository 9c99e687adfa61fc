/* The lightning indexer: scores the keys, then selects the best of each query. A score block is one query by 32 keys; a thread has
 * one key, and its warp every eighth head. The order of sums is fixed, so a query's selection does not depend on the other queries. */
#include "gpu/cuda_device.cuh"

enum { KEYS = 32, WARPS = 8 /* per thread block of score_kernel; each computes one head at a time */, GROUP = 16 /* heads whose queries are in shared memory */, SELECT_THREADS = 256 };

/* Candidates of query i: keys, or blocks before its own. */
__device__ inline int n_candidates(const struct cuda_select &a, int i) {
    int pos = a.at ? a.at->pos + a.first + i : a.q_pos0 + i, most = a.at ? a.at->pos + a.all : a.n_keys;
    int n = pos < a.k_pos0 ? 0 : (pos - a.k_pos0) / a.k_step + 1;
    n = n < most ? n : most;
    return a.block ? max(n - 1, 0) / a.block : n;
}

static __global__ void score_kernel(struct cuda_select a) {
    extern __shared__ float keys[]; /* [KEYS][dim + 1], then [GROUP][dim] */
    __shared__ float part[WARPS][KEYS];
    int dim = a.k.dim, i = (int)blockIdx.y, first = (int)blockIdx.x * KEYS, n = n_candidates(a, i), key = threadIdx.x % KEYS, warp = threadIdx.x / KEYS;
    float *q = keys + KEYS * (dim + 1), sum = 0;
    if (n <= a.topk) return;
    if (a.block) n *= a.block;
    if (first >= n) return;
    struct cuda_plane k = a.k;
    if (a.at) plane_set_address(&k, a.at);
    for (int at = threadIdx.x; at < KEYS * dim; at += blockDim.x)
        keys[at / dim * (dim + 1) + at % dim] = first + at / dim < n ? plane_at(k, (size_t)(first + at / dim), 0, at % dim) : 0.0f;
    for (int h0 = 0; h0 < a.heads; h0 += GROUP) {
        int heads = a.heads - h0 < GROUP ? a.heads - h0 : GROUP;
        __syncthreads();
        for (int at = threadIdx.x; at < heads * dim; at += blockDim.x) q[at] = a.q[(size_t)i * (size_t)a.ldq + (size_t)h0 * (size_t)dim + (size_t)at];
        __syncthreads();
        for (int h = warp; h < heads; h += WARPS) {
            float dot = 0;
            for (int d = 0; d < dim; d++) dot = fmaf(q[h * dim + d], keys[key * (dim + 1) + d], dot);
            sum += a.weight[(size_t)i * (size_t)a.heads + (size_t)(h0 + h)] * (dot < 0 ? 0.0f : dot);
        }
    }
    part[warp][key] = sum;
    __syncthreads();
    if (warp || first + key >= n) return;
    for (int l = 1; l < WARPS; l++) sum += part[l][key];
    float *score = a.key_score ? a.key_score + (size_t)i * (size_t)a.keys : a.score + (size_t)i * (size_t)a.candidates;
    score[first + key] = sum * a.scale;
}

/* A block's score: the best of its keys' scores. */
static __global__ void score_blocks_kernel(struct cuda_select a) {
    const int i = (int)blockIdx.y, block = (int)(blockIdx.x * blockDim.x + threadIdx.x), n = n_candidates(a, i);
    if (n <= a.topk || block >= n) return;
    const float *keys = a.key_score + (size_t)i * (size_t)a.keys + (size_t)block * (size_t)a.block;
    float best = keys[0];
    for (int k = 1; k < a.block; k++) best = fmaxf(best, keys[k]);
    a.score[(size_t)i * (size_t)a.candidates + (size_t)block] = best;
}

/* Excludes keys outside the listed blocks of query blockIdx.x, if its list is full. A thread has the keys between two listed blocks. */
static __global__ void limit_keys_kernel(struct cuda_select a) {
    const int n = n_candidates(a, (int)blockIdx.x), own = max(n - 1, 0) / a.among_block;
    const int32_t *list = a.among + (size_t)blockIdx.x * (size_t)a.n_among;
    float *score = a.score + (size_t)blockIdx.x * (size_t)a.candidates;
    if (n <= a.topk || own <= a.n_among) return;
    for (int k = (int)threadIdx.x; k <= a.n_among; k += (int)blockDim.x) {
        const int from = k ? (list[k - 1] + 1) * a.among_block : 0, to = (k < a.n_among ? list[k] : own) * a.among_block;
        for (int j = from; j < to; j++) score[j] = -INFINITY;
    }
}

/* Without weights: each head's score of a candidate, the best of its keys' scores. A block of threads has one query and one candidate. */
static __global__ void score_heads_kernel(struct cuda_select a) {
    extern __shared__ float keys[]; /* [KEYS][dim + 1], then [GROUP][dim] */
    const int dim = a.k.dim, i = (int)blockIdx.y, candidate = (int)blockIdx.x, n = n_candidates(a, i), key = threadIdx.x % KEYS, warp = threadIdx.x / KEYS,
              each = a.block ? a.block : 1;
    float *q = keys + KEYS * (dim + 1);
    if (n <= a.topk || candidate >= n) return;
    struct cuda_plane k = a.k;
    if (a.at) plane_set_address(&k, a.at);
    for (int h0 = 0; h0 < a.heads; h0 += GROUP) {
        const int heads = a.heads - h0 < GROUP ? a.heads - h0 : GROUP;
        float best[GROUP / WARPS];
        for (int m = 0; m < GROUP / WARPS; m++) best[m] = -INFINITY;
        __syncthreads();
        for (int at = threadIdx.x; at < heads * dim; at += blockDim.x) q[at] = a.q[(size_t)i * (size_t)a.ldq + (size_t)h0 * (size_t)dim + (size_t)at];
        for (int k0 = 0; k0 < each; k0 += KEYS) {
            __syncthreads();
            for (int at = threadIdx.x; at < KEYS * dim; at += blockDim.x)
                if (k0 + at / dim < each) keys[at / dim * (dim + 1) + at % dim] = plane_at(k, (size_t)(candidate * each + k0 + at / dim), 0, at % dim);
            __syncthreads();
            for (int h = warp, m = 0; h < heads && k0 + key < each; h += WARPS, m++) {
                float dot = 0;
                for (int d = 0; d < dim; d++) dot = fmaf(q[h * dim + d], keys[key * (dim + 1) + d], dot);
                best[m] = fmaxf(best[m], dot * a.scale);
            }
        }
        for (int h = warp, m = 0; h < heads; h += WARPS, m++) { /* a warp has one warp of heads, and all keys */
            const float top = warp_max(best[m]);
            if (!key) a.score[((size_t)i * (size_t)a.lists + (size_t)(h0 + h)) * (size_t)a.candidates + (size_t)candidate] = top;
        }
    }
}

/* Maps a float to an integer of the same order; NaN ranks lowest. */
__device__ inline uint32_t rank_of(float v) {
    uint32_t u = __float_as_uint(v + 0.0f);
    if (isnan(v)) return 0;
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* Candidate k of n, whose latest ones are always selected. */
__device__ inline uint32_t rank_at(const struct cuda_select &a, const float *score, int k, int n) {
    return rank_of(k >= n - a.latest ? INFINITY : score[k]);
}

/* Radix select of the threshold, eight bits at a time. Selects the keys above it, then the first keys equal to it, in order of rows. */
static __global__ void __launch_bounds__(SELECT_THREADS) select_kernel(struct cuda_select a) {
    __shared__ int count[256], warp_over[SELECT_THREADS / 32], warp_tie[SELECT_THREADS / 32], left;
    __shared__ uint32_t prefix;
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, n = n_candidates(a, (int)blockIdx.x / a.lists);
    int32_t *out = a.chosen + (size_t)blockIdx.x * (size_t)a.topk;
    const float *score = a.score + (size_t)blockIdx.x * (size_t)a.candidates;
    if (n <= a.topk) {
        for (int k = tid; k < a.topk; k += SELECT_THREADS) out[k] = k < n ? k : -1;
        return;
    }
    uint32_t mask = 0;
    if (!tid) left = a.topk, prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        count[tid] = 0;
        __syncthreads();
        for (int k = tid; k < n; k += SELECT_THREADS) {
            uint32_t r = rank_at(a, score, k, n);
            if ((r & mask) == prefix) atomicAdd(&count[r >> shift & 255], 1);
        }
        __syncthreads();
        if (!tid) {
            int digit = 255;
            for (; count[digit] < left; digit--) left -= count[digit];
            prefix |= (uint32_t)digit << shift;
        }
        mask |= 255u << shift;
        __syncthreads();
    }
    uint32_t least = prefix, before = (1u << lane) - 1;
    int ties = left, over_base = 0, tie_base = 0;
    for (int k0 = 0; k0 < n; k0 += SELECT_THREADS) {
        uint32_t r = k0 + tid < n ? rank_at(a, score, k0 + tid, n) : 0;
        bool over = k0 + tid < n && r > least, tie = k0 + tid < n && r == least;
        unsigned overs = __ballot_sync(0xffffffffu, over), tied = __ballot_sync(0xffffffffu, tie);
        if (!lane) warp_over[warp] = __popc(overs), warp_tie[warp] = __popc(tied);
        __syncthreads();
        int over_at = over_base + __popc(overs & before), tie_at = tie_base + __popc(tied & before);
        for (int w = 0; w < SELECT_THREADS / 32; w++) {
            if (w < warp) over_at += warp_over[w], tie_at += warp_tie[w];
            over_base += warp_over[w], tie_base += warp_tie[w];
        }
        if (over || (tie && tie_at < ties)) out[over_at + (tie_at < ties ? tie_at : ties)] = k0 + tid;
        __syncthreads();
    }
}

cudaError_t cuda_select_keys(cudaStream_t s, const struct cuda_select *a) {
    size_t bytes = ((size_t)KEYS * (size_t)(a->k.dim + 1) + (size_t)GROUP * (size_t)a->k.dim) * sizeof(float);
    if (bytes > 40 * 1024) return cudaErrorInvalidValue;
    if (a->candidates > 0 && !a->weight) score_heads_kernel<<<dim3((unsigned)a->candidates, (unsigned)a->n), KEYS * WARPS, bytes, s>>>(*a);
    else if (a->candidates > 0) score_kernel<<<dim3(blocks_of((size_t)(a->block ? a->keys : a->candidates), KEYS), (unsigned)a->n), KEYS * WARPS, bytes, s>>>(*a);
    if (a->candidates > 0 && a->key_score) score_blocks_kernel<<<dim3(blocks_of((size_t)a->candidates, 128), (unsigned)a->n), 128, 0, s>>>(*a);
    if (a->candidates > 0 && a->among) limit_keys_kernel<<<(unsigned)a->n, SELECT_THREADS, 0, s>>>(*a);
    select_kernel<<<(unsigned)(a->n * a->lists), SELECT_THREADS, 0, s>>>(*a);
    return cudaGetLastError();
}

/* The lightning indexer: scores the keys, then selects the best of each query. A score block is one query by 32 keys; a thread has
 * one key, and its warp every eighth head. The order of sums is fixed, so a query's selection does not depend on the other queries. */
#include "gpu/cuda_device.cuh"

/* A thread block of the score kernels has KEYS keys and WARPS warps, which compute one head at a time, and queries of GROUP heads in shared memory. */
enum { KEYS = 32, WARPS = 8, GROUP = 16 };
enum { SELECT_THREADS = 256 };
enum { MAX_SHARED = 40 << 10 }; /* bytes of keys and queries: with the static shared memory less than the 48 KB that need no attribute */

/* Number of candidates of query i: keys, or blocks before its own. */
__device__ inline int n_candidates(const struct cuda_select &a, int i) {
    int pos = a.o.at ? a.o.at->pos + a.first + i : a.o.q_pos0 + i, most = a.o.at ? a.o.at->pos + a.all : a.o.n_keys;
    int n = pos < a.o.k_pos0 ? 0 : (pos - a.o.k_pos0) / a.o.k_step + 1;
    n = n < most ? n : most;
    return a.o.block ? max(n - 1, 0) / a.o.block : n;
}

/* With weights: each key's score, a weighted sum over the heads. */
static __global__ void score_kernel(struct cuda_select a) {
    extern __shared__ float keys[]; /* [KEYS][dim + 1], then [GROUP][dim] */
    __shared__ float part[WARPS][KEYS];
    int dim = a.o.k.dim, i = (int)blockIdx.y, first = (int)blockIdx.x * KEYS, n = n_candidates(a, i), key = threadIdx.x % KEYS, warp = threadIdx.x / KEYS;
    float *q = keys + KEYS * (dim + 1), sum = 0;
    if (n <= a.o.topk) return;
    if (a.o.block) n *= a.o.block;
    if (first >= n) return;
    struct kv_plane k = a.o.k;
    if (a.o.at) plane_set_address(&k, a.o.at);
    for (int at = threadIdx.x; at < KEYS * dim; at += blockDim.x)
        keys[at / dim * (dim + 1) + at % dim] = first + at / dim < n ? plane_at(k, (size_t)(first + at / dim), 0, at % dim) : 0.0f;
    for (int h0 = 0; h0 < a.o.heads; h0 += GROUP) {
        int heads = a.o.heads - h0 < GROUP ? a.o.heads - h0 : GROUP;
        __syncthreads();
        for (int at = threadIdx.x; at < heads * dim; at += blockDim.x) q[at] = a.o.q[(size_t)i * (size_t)a.o.ldq + (size_t)h0 * (size_t)dim + (size_t)at];
        __syncthreads();
        for (int h = warp; h < heads; h += WARPS) {
            float dot = 0;
            for (int d = 0; d < dim; d++) dot = fmaf(q[h * dim + d], keys[key * (dim + 1) + d], dot);
            sum += a.o.weight[(size_t)i * (size_t)a.o.heads + (size_t)(h0 + h)] * (dot < 0 ? 0.0f : dot);
        }
    }
    part[warp][key] = sum;
    __syncthreads();
    if (warp || first + key >= n) return;
    for (int l = 1; l < WARPS; l++) sum += part[l][key];
    float *score = a.key_score ? a.key_score + (size_t)i * (size_t)a.keys : a.score + (size_t)i * (size_t)a.candidates;
    score[first + key] = sum * a.o.scale;
}

/* A block's score: the best of its keys' scores. */
static __global__ void score_blocks_kernel(struct cuda_select a) {
    const int i = (int)blockIdx.y, block = (int)(blockIdx.x * blockDim.x + threadIdx.x), n = n_candidates(a, i);
    if (n <= a.o.topk || block >= n) return;
    const float *keys = a.key_score + (size_t)i * (size_t)a.keys + (size_t)block * (size_t)a.o.block;
    float best = keys[0];
    for (int k = 1; k < a.o.block; k++) best = fmaxf(best, keys[k]);
    a.score[(size_t)i * (size_t)a.candidates + (size_t)block] = best;
}

/* Excludes keys outside the listed blocks of query blockIdx.x, if its list is full. A thread has the keys between two listed blocks. */
static __global__ void limit_keys_kernel(struct cuda_select a) {
    const int n = n_candidates(a, (int)blockIdx.x), own = max(n - 1, 0) / a.o.among_block;
    const int32_t *list = a.o.among + (size_t)blockIdx.x * (size_t)a.o.n_among;
    float *score = a.score + (size_t)blockIdx.x * (size_t)a.candidates;
    if (n <= a.o.topk || own <= a.o.n_among) return;
    for (int k = (int)threadIdx.x; k <= a.o.n_among; k += (int)blockDim.x) {
        const int from = k ? (list[k - 1] + 1) * a.o.among_block : 0, to = (k < a.o.n_among ? list[k] : own) * a.o.among_block;
        for (int j = from; j < to; j++) score[j] = -INFINITY;
    }
}

/* Without weights: each head's score of a candidate, the best of its keys' scores. A thread block has one query and one candidate, and a lane one of 32 keys at a
 * time. */
static __global__ void score_heads_kernel(struct cuda_select a) {
    extern __shared__ float keys[]; /* [KEYS][dim + 1], then [GROUP][dim] */
    const int dim = a.o.k.dim, i = (int)blockIdx.y, candidate = (int)blockIdx.x, n = n_candidates(a, i), key = threadIdx.x % KEYS, warp = threadIdx.x / KEYS,
              n_keys = a.o.block ? a.o.block : 1; /* of a candidate */
    float *q = keys + KEYS * (dim + 1);
    if (n <= a.o.topk || candidate >= n) return;
    struct kv_plane k = a.o.k;
    if (a.o.at) plane_set_address(&k, a.o.at);
    for (int h0 = 0; h0 < a.o.heads; h0 += GROUP) {
        const int heads = a.o.heads - h0 < GROUP ? a.o.heads - h0 : GROUP;
        float best[GROUP / WARPS]; /* of this lane's keys, for each head of its warp */
        for (int m = 0; m < GROUP / WARPS; m++) best[m] = -INFINITY;
        __syncthreads();
        for (int at = threadIdx.x; at < heads * dim; at += blockDim.x) q[at] = a.o.q[(size_t)i * (size_t)a.o.ldq + (size_t)h0 * (size_t)dim + (size_t)at];
        for (int k0 = 0; k0 < n_keys; k0 += KEYS) {
            __syncthreads();
            for (int at = threadIdx.x; at < KEYS * dim; at += blockDim.x)
                if (k0 + at / dim < n_keys) keys[at / dim * (dim + 1) + at % dim] = plane_at(k, (size_t)(candidate * n_keys + k0 + at / dim), 0, at % dim);
            __syncthreads();
            for (int h = warp, m = 0; h < heads && k0 + key < n_keys; h += WARPS, m++) {
                float dot = 0;
                for (int d = 0; d < dim; d++) dot = fmaf(q[h * dim + d], keys[key * (dim + 1) + d], dot);
                best[m] = fmaxf(best[m], dot * a.o.scale);
            }
        }
        for (int h = warp, m = 0; h < heads; h += WARPS, m++) { /* the best of all lanes' */
            const float top = warp_max(best[m]);
            if (!key) a.score[((size_t)i * (size_t)a.lists + (size_t)(h0 + h)) * (size_t)a.candidates + (size_t)candidate] = top;
        }
    }
}

/* Maps a float to an integer that is larger for larger floats; NaN ranks lowest. */
__device__ inline uint32_t rank_of(float v) {
    uint32_t u = __float_as_uint(v + 0.0f);
    if (isnan(v)) return 0;
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* The rank of candidate k of n. The latest ones rank highest, so that they are always selected. */
__device__ inline uint32_t rank_at(const struct cuda_select &a, const float *score, int k, int n) {
    return rank_of(k >= n - a.o.latest ? INFINITY : score[k]);
}

/* Finds the rank of the topk-th best candidate by radix selection, eight bits at a time: prefix has the bits found so far, and `left` of the candidates with this
 * prefix are to be selected. Then lists the candidates above that threshold and the first ones equal to it, in order of rows. */
static __global__ void __launch_bounds__(SELECT_THREADS) select_kernel(struct cuda_select a) {
    __shared__ int count[256], warp_above[SELECT_THREADS / 32], warp_tie[SELECT_THREADS / 32], left;
    __shared__ uint32_t prefix;
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, n = n_candidates(a, (int)blockIdx.x / a.lists);
    int32_t *out = a.o.chosen + (size_t)blockIdx.x * (size_t)a.o.topk;
    const float *score = a.score + (size_t)blockIdx.x * (size_t)a.candidates;
    if (n <= a.o.topk) {
        for (int k = tid; k < a.o.topk; k += SELECT_THREADS) out[k] = k < n ? k : -1;
        return;
    }
    uint32_t mask = 0;
    if (!tid) left = a.o.topk, prefix = 0;
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
    uint32_t threshold = prefix, lanes_before = (1u << lane) - 1;
    int ties = left, above_base = 0, tie_base = 0;
    for (int k0 = 0; k0 < n; k0 += SELECT_THREADS) {
        uint32_t r = k0 + tid < n ? rank_at(a, score, k0 + tid, n) : 0;
        bool above = k0 + tid < n && r > threshold, tie = k0 + tid < n && r == threshold;
        unsigned aboves = __ballot_sync(0xffffffffu, above), tied = __ballot_sync(0xffffffffu, tie);
        if (!lane) warp_above[warp] = __popc(aboves), warp_tie[warp] = __popc(tied);
        __syncthreads();
        int above_at = above_base + __popc(aboves & lanes_before), tie_at = tie_base + __popc(tied & lanes_before);
        for (int w = 0; w < SELECT_THREADS / 32; w++) {
            if (w < warp) above_at += warp_above[w], tie_at += warp_tie[w];
            above_base += warp_above[w], tie_base += warp_tie[w];
        }
        if (above || (tie && tie_at < ties)) out[above_at + (tie_at < ties ? tie_at : ties)] = k0 + tid;
        __syncthreads();
    }
}

cudaError_t cuda_select_keys(cudaStream_t s, const struct cuda_select *a) {
    size_t bytes = ((size_t)KEYS * (size_t)(a->o.k.dim + 1) + (size_t)GROUP * (size_t)a->o.k.dim) * sizeof(float);
    if (bytes > MAX_SHARED) return cudaErrorInvalidValue;
    if (a->candidates > 0 && !a->o.weight) score_heads_kernel<<<dim3((unsigned)a->candidates, (unsigned)a->o.n), KEYS * WARPS, bytes, s>>>(*a);
    else if (a->candidates > 0) score_kernel<<<dim3(blocks_of((size_t)(a->o.block ? a->keys : a->candidates), KEYS), (unsigned)a->o.n), KEYS * WARPS, bytes, s>>>(*a);
    if (a->candidates > 0 && a->key_score) score_blocks_kernel<<<dim3(blocks_of((size_t)a->candidates, 128), (unsigned)a->o.n), 128, 0, s>>>(*a);
    if (a->candidates > 0 && a->o.among) limit_keys_kernel<<<(unsigned)a->o.n, SELECT_THREADS, 0, s>>>(*a);
    select_kernel<<<(unsigned)(a->o.n * a->lists), SELECT_THREADS, 0, s>>>(*a);
    return cudaGetLastError();
}

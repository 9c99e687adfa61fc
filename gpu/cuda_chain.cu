/* Chains: operations on few numbers, one after another in one block. A step takes a microsecond or less, as long as a launch. */
#include "gpu/cuda_small.cuh"

enum { CHAIN_THREADS = 1024 };

template <typename T, typename F> __device__ static inline void for_each(const T &o, size_t n, F f) {
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) f(o, i);
}
/* Pinned memory is read past the caches. */
__device__ static inline void transfer_word(const struct cuda_transfer &o, size_t i) { o.dst[i] = ((const volatile uint32_t *)o.src)[i]; }
/* A warp has a token, and all of them compare experts. */
__device__ static inline void route_tokens(const struct cuda_route &r, char *space) {
    const int token = (int)threadIdx.x / 32;
    const size_t bytes = route_bytes(r);
    if (!route_counts(r)) {
        if (token < r.n) route_token(r, token, space + (size_t)token * bytes);
        return;
    }
    const struct route_space s = route_space(r, space + (size_t)(token < r.n ? token : 0) * bytes);
    if (token < r.n) route_scores(r, token, s);
    route_count(r, route_space(r, space), bytes);
    if (token < r.n) route_by_rank(r, s), route_store(r, token, s);
}

/* A thread has whole channels, so what it keeps of the inputs needs no barrier. */
__device__ static inline void conv_channels(const struct cuda_conv &called) {
    const struct cuda_conv o = conv_with_addresses(called);
    for (int c = threadIdx.x; c < o.channels; c += blockDim.x) {
        for (int i = 0; i < o.n; i++) conv_number(o, i, c);
        if (!o.is_peek) conv_keep(o, c);
    }
}

static __global__ void __launch_bounds__(CHAIN_THREADS) chain_kernel(const __grid_constant__ struct cuda_chain c) {
    __shared__ float sums[32];
    extern __shared__ char space[];
    for (int k = 0; k < c.n; k++) {
        const struct cuda_step &s = c.step[k];
        if (s.waits) __syncthreads();
        switch (s.kind) {
        case CUDA_STEP_NORM: norm_rows(s.norm, 0, 1, sums); break;
        case CUDA_STEP_ROPE: rope_heads(s.rope, 0, 1); break;
        case CUDA_STEP_KV_STORE: kv_store_heads(s.kv_store, 0, 1); break;
        case CUDA_STEP_ROUTE: route_tokens(s.route, space); break;
        case CUDA_STEP_ADD: for_each(s.add, (size_t)s.add.n * (size_t)s.add.m, add_number); break;
        case CUDA_STEP_SIGMOID: for_each(s.each, s.each.n, sigmoid_number); break;
        case CUDA_STEP_CLIP: for_each(s.each, s.each.n, clip_number); break;
        case CUDA_STEP_FILL: for_each(s.each, s.each.n, fill_number); break;
        case CUDA_STEP_SOFTCAP: for_each(s.each, s.each.n, softcap_number); break;
        case CUDA_STEP_COPY:
            for (int i = 0; i < s.copy.n; i++) copy_row(s.copy, i);
            break;
        case CUDA_STEP_GATE: for_each(s.gate, (size_t)s.gate.n * (size_t)s.gate.heads * (size_t)s.gate.dim, gate_number); break;
        case CUDA_STEP_SCALE:
            for (int i = 0; i < s.scale.n; i++) scale_row(s.scale, i);
            break;
        case CUDA_STEP_CONV: conv_channels(s.conv); break;
        case CUDA_STEP_TRANSFER: for_each(s.transfer, s.transfer.n, transfer_word); break;
        }
    }
}
cudaError_t cuda_chain_run(cudaStream_t s, const struct cuda_chain *called) {
    struct cuda_chain c = *called;
    size_t space = 16;
    for (int k = 0; k < c.n; k++) {
        if (c.step[k].kind != CUDA_STEP_ROUTE) continue;
        struct cuda_route *r = &c.step[k].route;
        if (r->n > CUDA_CHAIN_ROWS) return cudaErrorInvalidValue;
        if (r->n_group < 1) r->n_group = 1;
        space = space > (size_t)r->n * route_bytes(*r) ? space : (size_t)r->n * route_bytes(*r);
    }
    if (space > 48 << 10) { /* more than a block gets without asking */
        const cudaError_t e = cudaFuncSetAttribute(chain_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)space);
        if (e != cudaSuccess) return e;
    }
    chain_kernel<<<1, CHAIN_THREADS, space, s>>>(c);
    return cudaGetLastError();
}

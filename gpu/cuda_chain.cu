/* Chains: operations on few numbers, one after another in one block. A step takes a microsecond or less, as long as a launch. */
#include "gpu/cuda_small.cuh"

enum { CHAIN_THREADS = 1024 };

template <typename T, typename F> __device__ static inline void for_each(const T &o, size_t n, F f) {
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) f(o, i);
}
/* Of n rows of m numbers. */
template <typename T, typename F> __device__ static inline void for_numbers(const T &o, F f) { for_each(o, (size_t)o.n * (size_t)o.m, f); }
/* Pinned memory is read past the caches. */
__device__ static inline void transfer_word(const struct op_transfer &o, size_t i) { ((uint32_t *)o.dst)[i] = ((const volatile uint32_t *)o.src)[i]; }
/* A warp has a token, and all of them compare experts. */
__device__ static inline void route_tokens(const struct op_route &r, char *space) {
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
__device__ static inline void conv_channels(const struct op_conv &called) {
    const struct op_conv o = conv_with_addresses(called);
    for (int c = threadIdx.x; c < o.channels; c += blockDim.x) {
        for (int i = 0; i < o.n; i++) conv_number(o, i, c);
        if (!o.is_peek) conv_keep(o, c);
    }
}

static __global__ void __launch_bounds__(CHAIN_THREADS) chain_kernel(const __grid_constant__ struct op_chain c) {
    __shared__ float sums[32];
    extern __shared__ char space[];
    for (int k = 0; k < c.n; k++) {
        const struct op_step &s = c.step[k];
        if (s.waits) __syncthreads();
        switch (s.code) {
        case OP_NORM: norm_rows(s.args.norm, 0, 1, sums); break;
        case OP_ROPE: rope_heads(s.args.rope, 0, 1); break;
        case OP_KV_STORE: kv_store_heads(s.args.kv_store, 0, 1); break;
        case OP_ROUTE: route_tokens(s.args.route, space); break;
        case OP_ADD: for_numbers(s.args.add, add_number); break;
        case OP_SIGMOID: for_numbers(s.args.sigmoid, sigmoid_number); break;
        case OP_CLIP: for_numbers(s.args.clip, clip_number); break;
        case OP_FILL: for_numbers(s.args.fill, fill_number); break;
        case OP_SOFTCAP: for_numbers(s.args.softcap, softcap_number); break;
        case OP_COPY:
            for (int i = 0; i < s.args.copy.n; i++) copy_row(s.args.copy, i);
            break;
        case OP_GATE: for_each(s.args.gate, (size_t)s.args.gate.n * (size_t)s.args.gate.heads * (size_t)s.args.gate.dim, gate_number); break;
        case OP_SCALE:
            for (int i = 0; i < s.args.scale.n; i++) scale_row(s.args.scale, i);
            break;
        case OP_CONV: conv_channels(s.args.conv); break;
        case OP_TRANSFER: for_each(s.args.transfer, s.args.transfer.size / 4, transfer_word); break;
        default: break; /* not in op_small */
        }
    }
}
cudaError_t cuda_chain(cudaStream_t s, const struct op_chain *c) {
    size_t space = 16;
    for (int k = 0; k < c->n; k++) {
        if (c->step[k].code != OP_ROUTE) continue;
        const struct op_route *r = &c->step[k].args.route;
        if (r->n > OP_CHAIN_ROWS) return cudaErrorInvalidValue;
        space = space > (size_t)r->n * route_bytes(*r) ? space : (size_t)r->n * route_bytes(*r);
    }
    if (space > 48 << 10) { /* more than a block gets without asking */
        const cudaError_t e = cudaFuncSetAttribute(chain_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)space);
        if (e != cudaSuccess) return e;
    }
    chain_kernel<<<1, CHAIN_THREADS, space, s>>>(*c);
    return cudaGetLastError();
}
cudaError_t cuda_transfer(cudaStream_t s, const struct op_transfer *o) {
    struct op_chain c = {};
    c.n = 1, c.step[0].code = OP_TRANSFER, c.step[0].args.transfer = *o;
    return cuda_chain(s, &c);
}

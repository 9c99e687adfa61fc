#pragma once
/* Operations on few numbers, one after another in one block: a chain of its own (cuda_chain.cu), or the epilogue of products, run by the block that ends
 * last. A step takes a microsecond or less, as long as a launch. */
#include "gpu/cuda_small.cuh"

template <typename T, typename F> __device__ inline void for_each(const T &o, size_t n, F f) {
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) f(o, i);
}
/* Of n rows of m numbers. */
template <typename T, typename F> __device__ inline void for_numbers(const T &o, F f) { for_each(o, (size_t)o.n * (size_t)o.m, f); }
/* Pinned memory is read past the caches, with as many loads under way as possible: each is a round trip over the link. */
__device__ inline void transfer_words(const struct op_transfer &o) {
    enum { LOADS = 4 };
    const size_t words = o.size / 4, wide = (((size_t)o.dst | (size_t)o.src) & 15) == 0 ? words / 4 : 0, step = blockDim.x;
    for (size_t i = threadIdx.x; i < wide; i += LOADS * step) {
        uint4 v[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; k++)
            if (i + k * step < wide) v[k] = __ldcv((const uint4 *)o.src + i + k * step);
#pragma unroll
        for (int k = 0; k < LOADS; k++)
            if (i + k * step < wide) ((uint4 *)o.dst)[i + k * step] = v[k];
    }
    for (size_t i = 4 * wide + threadIdx.x; i < words; i += step) ((uint32_t *)o.dst)[i] = ((const volatile uint32_t *)o.src)[i];
}
/* A warp has a token, and all of them compare experts: at most as many tokens as the block has warps. */
__device__ inline void route_tokens(const struct op_route &r, char *space) {
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
__device__ inline void conv_channels(const struct op_conv &called) {
    const struct op_conv o = conv_with_addresses(called);
    for (int c = threadIdx.x; c < o.channels; c += blockDim.x) {
        for (int i = 0; i < o.n; i++) conv_number(o, i, c);
        if (!o.is_peek) conv_keep(o, c);
    }
}

/* Runs the steps of a chain. Called by all threads of a block; space: shared memory of its routers, cuda_chain_space(). */
__device__ inline void chain_steps(const struct op_chain &c, float *sums /* [32], shared */, char *space) {
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
        case OP_TRANSFER: transfer_words(s.args.transfer); break;
        default: break; /* not in op_small */
        }
    }
}

__device__ static __noinline__ void last_steps(const struct op_chain &c, float *sums, char *space) { chain_steps(c, sums, space); } /* once in a kernel */

/* --- Epilogues (struct cuda_epilogue) ------------------------------------------------------------------------------------------------------- */

/* Runs those steps of an epilogue that work on head number `head` of product number k. */
__device__ static __noinline__ void head_steps(const struct cuda_epilogue &e, int k, int head, float *sums) {
    for (int i = 0; i < e.chain.n; i++) {
        const struct op_step &s = e.chain.step[i];
        if (e.product[i] != k) continue;
        __syncthreads(); /* all threads have stored what the last step computed */
        if (s.code == OP_NORM) {
            struct op_norm o = s.args.norm;
            const int heads = o.rows / e.rows;
            o.x += (size_t)head * (size_t)o.dim, o.out += (size_t)head * (size_t)o.dim;
            o.rows = e.rows, o.ldx = o.ldo = heads * o.dim;
            norm_rows(o, 0, 1, sums);
        } else if (s.code == OP_ROPE) {
            struct op_rope o = s.args.rope;
            o.x += (size_t)head * (size_t)o.head_ld, o.heads = 1;
            rope_heads(o, 0, 1);
        } else kv_store_heads(s.args.kv_store, 0, 1, head);
    }
}
/* What follows the products of a block: of product k of a join, rows of W from o0 on, `rows` of them, of n_blocks blocks. Called by all threads of a block
 * after they have stored their results; space: shared memory, which nothing else uses any more. */
__device__ inline void epilogue_run(const struct cuda_epilogue &e, int k, int o0, int rows, int n_blocks, float *sums /* [32], shared */, char *space) {
    if (e.kind == EPILOGUE_HEADS) {
        const int dim = e.dim[k];
        if (!dim || !last_block(e.tickets + e.first[k] + o0 / dim, dim / rows, (int *)sums)) return;
        head_steps(e, k, o0 / dim, sums);
    } else if (e.kind == EPILOGUE_LAST) {
        if (!last_block(e.tickets, n_blocks, (int *)sums)) return;
        __syncthreads();
        last_steps(e.chain, sums, space);
    }
}

#pragma once
/* Key ranges, shared by all attention kernels, and numbers of those on tensor cores. */
#include "gpu/cuda_device.cuh"

enum { PAD = 8 }; /* BF16 numbers after each row in shared memory, against bank conflicts */
static const float log2_e = 1.44269504f, ln_2 = 0.693147181f;

/* Addresses of keys and values and the position of the queries: from the arguments, or read from memory (op_address) at run time. */
struct attention_inputs {
    struct kv_plane k, v;
    int q_pos0, n_keys;
};
__device__ inline struct attention_inputs read_inputs(const struct cuda_attention &a) {
    struct attention_inputs in = {a.o.k, a.o.v, a.o.q_pos0, a.o.n_keys};
    if (a.o.at) {
        plane_set_address(&in.k, a.o.at);
        plane_set_address(&in.v, a.o.v_at);
        in.q_pos0 = a.o.at->pos + a.first, in.n_keys = a.o.at->pos + a.all;
    }
    return in;
}
/* op_listed_blocks() for that many visible keys */
__device__ inline int listed_blocks(const struct cuda_attention &a, int visible) { return max(visible - a.o.own_block, 0) / a.o.chosen_block; }
/* The keys that a query at pos sees: rows [lo, hi), or with selected keys the indexes [lo, hi) of key_row(). */
__device__ inline void visible_keys(const struct cuda_attention &a, const struct attention_inputs &in, int pos, int *lo, int *hi) {
    int end = pos < a.o.k_pos0 ? 0 : (pos - a.o.k_pos0) / a.o.k_step + 1, begin = a.o.window > 0 ? pos - a.o.window + 1 - a.o.k_pos0 : 0;
    *hi = end > in.n_keys ? in.n_keys : end;
    if (a.o.chunk_keys > 0) begin = max(begin, pos - pos % a.o.chunk_keys - a.o.k_pos0);
    if (a.o.chosen_block) { /* keys of the selected blocks, then those after the last block that can be selected */
        const int complete = listed_blocks(a, *hi);
        *hi = min(complete, a.o.n_chosen) * a.o.chosen_block + *hi - complete * a.o.chosen_block;
    } else if (a.o.chosen && *hi > a.o.n_chosen) *hi = a.o.n_chosen;
    *lo = begin < 0 ? 0 : begin;
}
/* The row of the i-th key that a query at pos sees, where i is in the range of visible_keys(). */
__device__ inline int key_row(const struct cuda_attention &a, const struct attention_inputs &in, const int32_t *chosen, int pos, int i) {
    if (!chosen) return i;
    if (!a.o.chosen_block) return chosen[i];
    const int visible = min(pos < a.o.k_pos0 ? 0 : pos - a.o.k_pos0 + 1, in.n_keys), complete = listed_blocks(a, visible);
    const int listed = min(complete, a.o.n_chosen) * a.o.chosen_block;
    return i < listed ? chosen[i / a.o.chosen_block] * a.o.chosen_block + i % a.o.chosen_block : complete * a.o.chosen_block + i - listed;
}
/* Factor of the scores of a query at this position. */
__device__ inline float score_temperature(const struct cuda_attention &a, int pos) {
    return a.o.temperature_len > 1 && pos > a.o.temperature_len ? log2f((float)pos) / log2f((float)a.o.temperature_len) : 1.0f;
}
__device__ inline int query_pos(const struct cuda_attention &a, const struct attention_inputs &in, int i) { return a.o.q_pos ? a.o.q_pos[i] : in.q_pos0 + i; }

/* Writes the results of one (query, head) pair, number `at`: adds the parts, weighted by exp(lse - total), in rising order of splits. So splits without keys after them
 * change nothing. Called by all `threads` of a warp or a block, t is this one's number; share: [splits] in shared memory. */
template <bool IS_BLOCK> __device__ inline void combine_pair(const struct cuda_attention &a, size_t at, float *share, int t, int threads) {
    const size_t i = at / (unsigned)a.o.n_heads, h = at % (unsigned)a.o.n_heads, rows = (size_t)a.o.n * (size_t)a.o.n_heads;
    const int lane = t % 32;
    auto sync = [] {
        if (IS_BLOCK) __syncthreads();
        else __syncwarp();
    };
    for (int s = t; s < a.splits; s += threads) share[s] = a.part_lse[(size_t)s * rows + at];
    sync();
    float top = -INFINITY, sum = 0;
    for (int s = lane; s < a.splits; s += 32) top = fmaxf(top, share[s]);
    top = warp_max(top);
    for (int s = lane; s < a.splits; s += 32) sum += top == -INFINITY ? 0.0f : expf(share[s] - top);
    sum = warp_sum(sum);
    sync();
    for (int s = t; s < a.splits; s += threads) share[s] = sum != 0 ? expf(share[s] - top) / sum : 0.0f;
    sync();
    float *out = a.o.out + i * (size_t)a.o.ldo + h * (size_t)a.o.v_dim;
    const float *part = a.part + at * (size_t)a.o.v_dim;
    const size_t next = rows * (size_t)a.o.v_dim; /* from split to split */
    if (!IS_BLOCK && a.o.v_dim % 4 == 0 && ((size_t)out & 15) == 0) {
        for (int d = 4 * t; d < a.o.v_dim; d += 4 * threads) {
            float4 v = make_float4(0, 0, 0, 0);
#pragma unroll 8
            for (int s = 0; s < a.splits; s++) {
                const float4 p = *(const float4 *)(part + (size_t)s * next + d); /* undefined where the share is 0 */
                const float w = share[s];
                if (w != 0) v.x += w * p.x, v.y += w * p.y, v.z += w * p.z, v.w += w * p.w;
            }
            *(float4 *)(out + d) = v;
        }
    } else
        for (int d = t; d < a.o.v_dim; d += threads) {
            float v = 0;
#pragma unroll 8
            for (int s = 0; s < a.splits; s++) {
                const float p = part[(size_t)s * next + (size_t)d];
                v += share[s] != 0 ? share[s] * p : 0.0f;
            }
            out[d] = v;
        }
    if (a.o.lse && !t) a.o.lse[i * (size_t)a.lse_ld + h] = sum != 0 ? top + logf(sum) : -INFINITY;
}

/* First key of chunk s when there are few queries: 16 chunks of 64 rows each, 16 of 128, 16 of 256, then of 512. Depends on s only, so that neither the
 * other queries of a call nor later keys change a query's result. Few keys are spread over many blocks. A call takes as long as its largest chunk, so they
 * do not grow without end. */
__host__ __device__ inline int chunk_begin(int s) {
    return s < 16 ? 64 * s : s < 32 ? 1024 + 128 * (s - 16) : s < 48 ? 3072 + 256 * (s - 32) : 7168 + 512 * (s - 48);
}

#pragma once
/* Operations on few numbers, as device functions. A kernel of its own runs one over many blocks (cuda_elem.cu), a chain several in one block
 * (cuda_chain.cu): both compute the same bits. */
#include "gpu/cuda_device.cuh"

/* --- Norm ------------------------------------------------------------------------------------------------------------------------------ */

/* Threads that sum a row: their number fixes the order of the sum. */
__host__ __device__ inline int norm_threads(int dim) { return dim >= 1024 ? 512 : dim >= 256 ? 128 : 32; }
/* Sum over each group of `threads` neighbouring threads in the order of block_sum(); called by all threads of a block. */
__device__ inline float group_sum(float v, int threads, float *shared /* [32] */) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = threads / 32;
    v = warp_sum(v);
    if (warps == 1) return v;
    __syncthreads();
    if (!lane) shared[warp] = v;
    __syncthreads();
    v = lane < warps ? shared[warp / warps * warps + lane] : 0;
    return warp_sum(v);
}
/* Sum over a row of x - mean, or of its square, in the order of norm_threads() for a block that has fewer: a thread takes the place of up to four. */
__device__ inline float norm_sum(const float *x, int dim, float mean, bool squares, float *sums /* [32] */) {
    const int threads = norm_threads(dim), each = threads / (int)blockDim.x, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    __syncthreads();
#pragma unroll 1
    for (int k = 0; k < each; k++) {
        float v = 0;
        for (int i = (int)threadIdx.x + k * (int)blockDim.x; i < dim; i += threads) v = squares ? fmaf(x[i] - mean, x[i] - mean, v) : v + x[i];
        v = warp_sum(v);
        if (!lane) sums[warp + k * ((int)blockDim.x / 32)] = v;
    }
    __syncthreads();
    return warp_sum(lane < threads / 32 ? sums[lane] : 0.0f);
}
/* Stores numbers t, t + threads, .. of a row from its mean and the sum of its squares; marks what is not finite. */
__device__ inline void norm_store(const struct op_norm &o, int row, float mean, float sum, int t, int threads) {
    const float *x = o.x + (size_t)row * (size_t)o.ldx;
    const size_t first = o.w_rows ? (size_t)(row % o.w_rows) * (size_t)o.dim : 0; /* of w and bias */
    float *out = o.out + (size_t)row * (size_t)o.ldo;
    const float shorten = o.l2_limit / (sqrtf(sum) + 1e-6f); /* NaN is not clipped */
    const float f = o.l2_limit > 0 ? (shorten > 1.0f ? 1.0f : shorten) : 1.0f / sqrtf(sum / (float)o.dim + o.eps);
    bool finite = true;
    for (int i = t; i < o.dim; i += threads) {
        finite = finite && isfinite(x[i]);
        const float v = (x[i] - mean) * f * (o.w ? scalar_at(o.w, o.w_dtype, first + (size_t)i) + o.add : 1.0f);
        out[i] = o.bias ? v + scalar_at(o.bias, o.w_dtype, first + (size_t)i) : v;
    }
    if (o.bad && !finite) atomicCAS(o.bad, -1, o.tag);
}
/* Norms rows, one per group of threads: as many at a time as the block has groups, those of number `begin`, begin + step, .. of such sets. Called by all threads
 * of a block. */
__device__ inline void norm_rows(const struct op_norm &o, int begin, int step, float *sums /* [32] */) {
    const int threads = norm_threads(o.dim), groups = (int)blockDim.x / threads, t = (int)threadIdx.x % threads;
    for (int row = begin; !groups && row < o.rows; row += step) {
        const float *x = o.x + (size_t)row * (size_t)o.ldx;
        const float mean = o.layer_norm ? norm_sum(x, o.dim, 0, false, sums) / (float)o.dim : 0;
        norm_store(o, row, mean, norm_sum(x, o.dim, mean, true, sums), (int)threadIdx.x, (int)blockDim.x);
    }
    for (int base = begin * groups; groups && base < o.rows; base += step * groups) {
        const int row = base + (int)threadIdx.x / threads, dim = row < o.rows ? o.dim : 0; /* a group without a row waits for the others */
        const float *x = o.x + (size_t)row * (size_t)o.ldx;
        float sum = 0, mean = 0;
        if (o.layer_norm) {
            for (int i = t; i < dim; i += threads) sum += x[i];
            mean = group_sum(sum, threads, sums) / (float)o.dim;
            sum = 0;
        }
        for (int i = t; i < dim; i += threads) {
            const float v = x[i] - mean;
            sum = fmaf(v, v, sum);
        }
        sum = group_sum(sum, threads, sums);
        if (dim) norm_store(o, row, mean, sum, t, threads);
    }
}

/* --- Rope and KV rows ------------------------------------------------------------------------------------------------------------------ */

/* A warp per (row, head): as many at a time as the block has warps, those of number `first`, first + step, .. of such sets. */
__device__ inline void rope_heads(const struct op_rope &o, int first, int step) {
    const int lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    for (int k = first * warps + (int)threadIdx.x / 32; k < o.n * o.heads; k += step * warps) {
        const int i = k / o.heads, h = k - i * o.heads;
        float *p = o.x + (size_t)i * (size_t)o.ld + (size_t)h * (size_t)o.head_ld;
        for (int j = lane; j < o.half; j += 32) {
            const size_t t = (size_t)i * (size_t)o.half + (size_t)j;
            float *a = o.interleaved ? p + 2 * j : p + j, *b = o.interleaved ? a + 1 : a + o.half;
            const float c = o.cos[t], s = o.sin[t] * (o.inverse ? -1.0f : 1.0f), u = *a, v = *b;
            *a = u * c - v * s;
            *b = v * c + u * s;
        }
    }
}

/* A warp per (row, head): as many at a time as the block has warps, those of number `first`, first + step, .. of such sets. */
__device__ inline void kv_store_heads(const struct op_kv_store &o, int first, int step, int only = -1) {
    struct kv_plane p = o.plane;
    const int lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    int row0 = o.row0, n = o.n;
    if (o.at) plane_set_address(&p, o.at), row0 = o.every ? o.at->pos / o.every : o.at->pos;
    if (o.at && o.every) n = min(n, (o.at->pos + o.tokens) / o.every - row0);
    const int heads = only < 0 ? p.heads : 1; /* only: this head, or all of them */
    for (int k = first * warps + (int)threadIdx.x / 32; k < n * heads; k += step * warps) {
        const size_t i = (size_t)(k / heads), h = (size_t)(only < 0 ? k % heads : only);
        const struct plane_row to = plane_row(p, (size_t)row0 + i);
        const float *src = o.x + i * (size_t)o.ldx + h * (size_t)p.dim;
        const size_t at = (to.row * (size_t)p.heads + h) * (size_t)p.dim;
        float scale = 1;
        if (p.dtype == DT_E4M3) {
            float top = 0;
            for (int d = lane; d < p.dim; d += 32) top = fmaxf(top, fabsf(src[d]));
            top = warp_max(top);
            scale = top > 0 ? top / 448.0f : 1.0f;
            if (!lane) to.scale[to.row * (size_t)p.heads + h] = scale;
        }
        for (int d = lane; d < p.dim; d += 32) {
            if (p.dtype == DT_BF16) ((__nv_bfloat16 *)to.data)[at + (size_t)d] = __float2bfloat16_rn(src[d]);
            else if (p.dtype == DT_E4M3) ((uint8_t *)to.data)[at + (size_t)d] = e4m3_encode(src[d] / scale);
            else ((float *)to.data)[at + (size_t)d] = src[d];
        }
    }
}

/* --- Element-wise ---------------------------------------------------------------------------------------------------------------------- */

__device__ inline void add_number(const struct op_add &o, size_t i) {
    const unsigned m = (unsigned)o.m, row = o.m == o.ldx ? 0 : (unsigned)i / m; /* fewer than 2^32 numbers, see cuda_add() */
    o.y[i] += o.x[o.m == o.ldx ? i : (size_t)row * (size_t)o.ldx + ((unsigned)i - row * m)];
}
__device__ inline void sigmoid_number(const struct op_sigmoid &o, size_t i) { o.x[i] = sigmoid(o.x[i]); }
__device__ inline void fill_number(const struct op_fill &o, size_t i) { o.x[i] = o.value; }
__device__ inline void softcap_number(const struct op_softcap &o, size_t i) { o.x[i] = o.cap * tanhf(o.x[i] / o.cap); }
__device__ inline void clip_number(const struct op_clip &o, size_t i) { o.x[i] = o.x[i] > o.limit ? o.limit : o.x[i] < -o.limit ? -o.limit : o.x[i]; }
__device__ inline void copy_row(const struct op_copy &o, int i) {
    for (int k = threadIdx.x; k < o.heads * o.dim; k += blockDim.x) {
        const int h = k / o.dim, d = k % o.dim;
        o.y[(size_t)i * (size_t)o.ldy + (size_t)h * (size_t)o.head_ldy + (size_t)d] =
            o.x[(size_t)i * (size_t)o.ldx + (size_t)h * (size_t)o.head_ldx + (size_t)d];
    }
}
__device__ inline float position_scale(const struct op_scale &o, int at) {
    const float t = (float)at / (float)o.every;
    if (o.kind == SCALE_POWER) return expf(o.slope * log1pf(t));
    return 1 + o.slope * logf(o.kind == SCALE_SMOOTH ? fmaxf(t, 1.0f) : (float)(1 + at / o.every));
}
__device__ inline void scale_row(const struct op_scale &o, int i) {
    float by = o.by;
    if (o.slopes) {
        const float logarithm = logf((float)(1 + o.pos[i] + o.shift));
        for (int c = threadIdx.x; c < o.m; c += blockDim.x)
            o.x[(size_t)i * (size_t)o.ld + (size_t)c] *= by * (o.slopes[c / o.dim] * logarithm + o.bases[c / o.dim]);
        return;
    }
    if (o.slope != 0) by *= position_scale(o, o.pos[i] + o.shift);
    for (int c = threadIdx.x; c < o.m; c += blockDim.x) o.x[(size_t)i * (size_t)o.ld + (size_t)c] *= by;
}
__device__ inline void gate_number(const struct op_gate &o, size_t at) {
    const unsigned head = (unsigned)at / (unsigned)o.dim; /* fewer than 2^32 numbers, see cuda_gate() */
    const size_t d = (unsigned)at - head * (unsigned)o.dim, i = head / (unsigned)o.heads, h = head - (unsigned)i * (unsigned)o.heads;
    float v = o.g[i * (size_t)o.ldg + h * (size_t)o.head_ldg + (o.per_head ? 0 : d)], f = sigmoid(v);
    if (o.kind == GATE_SILU) f *= v;
    if (o.kind == GATE_SOFTPLUS) f = softplus(v);
    if (o.kind == GATE_SOFTPLUS2) f = softplus(v * 0.69314718f) * 1.44269504f; /* log 2, 1 / log 2 */
    if (o.kind == GATE_LINEAR) f = v;
    if (o.kind == GATE_GELU_TANH) f = v / (1.0f + expf(-(1.59576912f + 0.0713548163f * v * v) * v));
    if (o.kind == GATE_NORMAL) f = 0.5f * (1.0f + erff(v * 0.70710678f)); /* 1 / sqrt(2) */
    o.y[i * (size_t)o.ldy + h * (size_t)o.head_ldy + d] *= f;
}

/* --- Short convolutions ------------------------------------------------------------------------------------------------------------------ */

/* Returns the arguments, with the state's addresses read from memory (op_address) if the call was recorded. */
template <typename T> __device__ inline T with_addresses(T o) {
    if (o.at) o.before = (const float *)o.at->data, o.after = (float *)o.at->after;
    return o;
}
/* Input row i of channel c; i < 0: from the state, a row before the first one. */
__device__ inline float conv_at(const struct op_conv &o, int i, int c) {
    if (i >= 0) return o.x[(size_t)i * (size_t)o.ldx + (size_t)c];
    return o.before ? o.before[(size_t)(i + o.past) * (size_t)o.channels + (size_t)c] : 0;
}
/* with_addresses() for a convolution, whose state may be a part of what the addresses name. */
__device__ inline struct op_conv conv_with_addresses(struct op_conv o) {
    if (!o.at) return o;
    o = with_addresses(o);
    if (o.before) o.before += o.state_at;
    o.after += o.state_at;
    return o;
}
__device__ inline void conv_number(const struct op_conv &o, int i, int c) {
    float sum = o.bias ? o.bias[c] : 0;
    for (int j = 0; j < o.taps; j++) {
        const float x = conv_at(o, i - o.delay - o.taps + 1 + j, c);
        sum += o.w ? o.w[(size_t)j * (size_t)o.channels + (size_t)c] * x : x;
    }
    o.out[(size_t)i * (size_t)o.ldo + (size_t)c] = o.is_linear ? sum : sum / (1.0f + expf(-sum));
}
/* Stores channel c of the state after the last row, in rising order of rows: each is read from a later row than it is written to, if both states are the
 * same memory. */
__device__ inline void conv_keep(const struct op_conv &o, int c) {
    for (int i = 0; i < o.past; i++) o.after[(size_t)i * (size_t)o.channels + (size_t)c] = conv_at(o, o.n - o.past + i, c);
}

/* --- Router ------------------------------------------------------------------------------------------------------------------------------ */

/* A token's scores, choices and marks are in shared memory. Its warp computes them; the best ones are found by that warp, one after the other, or by a whole
 * block, which counts for each expert how many are better. Both are exact, ties go to the lower index. */
struct route_space {
    float *score, *choice, *group, *weight; /* [n], [n], [n_group], [topk] */
    int *pick, *rank;                       /* [topk], [n] */
    uint8_t *mark;                          /* [n] or [n_group] */
};
/* Bytes of shared memory of a token; n_group is at least 1. */
__host__ __device__ inline size_t route_bytes(const struct op_route &r) {
    const size_t all = (size_t)(r.n_experts + r.n_idle), marks = all > (size_t)r.n_group ? all : (size_t)r.n_group;
    return ((3 * all + (size_t)r.n_group + 2 * (size_t)r.topk) * sizeof(float) + marks + 15) & ~(size_t)15;
}
__device__ inline struct route_space route_space(const struct op_route &r, void *bytes) {
    const int n = r.n_experts + r.n_idle;
    struct route_space s;
    s.score = (float *)bytes, s.choice = s.score + n, s.group = s.choice + n, s.weight = s.group + r.n_group;
    s.pick = (int *)(s.weight + r.topk), s.rank = s.pick + r.topk, s.mark = (uint8_t *)(s.rank + n);
    return s;
}
struct best {
    float v;
    int i;
};
__device__ inline struct best better(struct best a, struct best b) {
    if (b.i < 0) return a;
    if (a.i < 0) return b;
    bool take = b.v > a.v || (b.v == a.v && b.i < a.i);
    return take ? b : a;
}
__device__ inline int best_of(const float *v, const uint8_t *taken, int n) {
    struct best b = {0, -1};
    for (int i = threadIdx.x % 32; i < n; i += 32)
        if (!taken[i]) {
            struct best c = {isnan(v[i]) ? -INFINITY : v[i], i};
            b = better(b, c);
        }
    for (int d = 16; d; d >>= 1) {
        struct best o = {__shfl_xor_sync(0xffffffffu, b.v, d), __shfl_xor_sync(0xffffffffu, b.i, d)};
        b = better(b, o);
    }
    return b.i;
}
/* Weight of the best unmarked logit: its softmax share among the unmarked logits within the jitter threshold. */
__device__ inline float mixer_weight(const struct op_route &r, const float *logits, const uint8_t *mark, int best) {
    float top = logits[best], sum = 0;
    for (int i = threadIdx.x % 32; i < r.n_experts; i += 32) {
        float size = fabsf(logits[i]) > top ? fabsf(logits[i]) : top;
        if (!mark[i] && !((top - logits[i]) / size > 2 * r.jitter)) sum += expf(logits[i] - top);
    }
    return 1.0f / warp_sum(sum);
}
/* Computes a token's scores and what experts are chosen by. */
__device__ inline void route_scores(const struct op_route &r, int token, const struct route_space &s) {
    const int n = r.n_experts + r.n_idle, lane = (int)(threadIdx.x % 32);
    const bool softmax = r.score == SCORE_SOFTMAX, mixer = r.score == SCORE_MIXER, by_logit = mixer || r.score == SCORE_SIGMOID_BY_LOGIT;
    const float *logits = r.logits + (size_t)token * (size_t)n;
    float top = -INFINITY, sum = 0;
    if (softmax || mixer) {
        for (int i = lane; i < n; i += 32) top = fmaxf(top, logits[i]);
        top = warp_max(top);
    }
    for (int i = lane; i < n; i += 32) {
        s.score[i] = r.score == SCORE_SIGMOID || r.score == SCORE_SIGMOID_BY_LOGIT ? sigmoid(logits[i]) : r.score == SCORE_SQRT_SOFTPLUS ? sqrtf(softplus(logits[i])) : expf(logits[i] - top);
        sum += s.score[i];
    }
    sum = warp_sum(sum);
    for (int i = lane; i < n; i += 32) {
        if (softmax) s.score[i] /= sum;
        s.choice[i] = (by_logit ? logits[i] : s.score[i]) + (r.bias ? r.bias[i] : 0.0f);
    }
    __syncwarp();
    if (r.n_group > 1 && r.group_each) {
        const int size = r.n_experts / r.n_group;
        for (int i = lane; i < n; i += 32) s.mark[i] = 0;
        __syncwarp();
        for (int at = 0; at < r.topk; at++) { /* the best expert of each group */
            const int first = at % r.n_group * size, i = first + best_of(s.choice + first, s.mark + first, size);
            __syncwarp();
            if (!lane) s.mark[i] = 1;
            __syncwarp();
        }
        for (int i = lane; i < n; i += 32)
            if (!s.mark[i]) s.choice[i] = -INFINITY;
        __syncwarp();
    } else if (r.n_group > 1) {
        const int size = n / r.n_group;
        for (int g = lane; g < r.n_group; g += 32) {
            float first = -INFINITY, second = -INFINITY;
            for (int i = g * size; i < (g + 1) * size; i++) {
                if (s.choice[i] > first) second = first, first = s.choice[i];
                else if (s.choice[i] > second) second = s.choice[i];
            }
            s.group[g] = r.group_top2 && size > 1 ? first + second : first;
            s.mark[g] = 0;
        }
        __syncwarp();
        for (int k = 0; k < r.topk_group && k < r.n_group; k++) {
            int g = best_of(s.group, s.mark, r.n_group);
            __syncwarp();
            if (!lane) s.mark[g] = 1;
            __syncwarp();
        }
        for (int i = lane; i < n; i += 32)
            if (i / size < r.n_group && !s.mark[i / size]) s.choice[i] = r.group_zero ? 0.0f : -INFINITY;
        __syncwarp();
    }
    for (int i = lane; i < n; i += 32) s.mark[i] = 0;
    __syncwarp();
}
/* Picks a token's experts one after the other. The last ones are those that are always chosen. */
__device__ inline void route_pick(const struct op_route &r, int token, const struct route_space &s) {
    const int n = r.n_experts + r.n_idle, lane = (int)(threadIdx.x % 32);
    const int32_t *known = r.table ? r.table + (size_t)r.tokens[token] * (size_t)r.topk : NULL;
    for (int k = 0; k < r.topk; k++) {
        const int left = r.topk - k, i = known ? known[k] : left <= r.n_always ? n - left : best_of(s.choice, s.mark, n - r.n_always);
        const float weight = r.score == SCORE_MIXER ? mixer_weight(r, r.logits + (size_t)token * (size_t)n, s.mark, i) : s.score[i];
        __syncwarp();
        if (!lane) s.mark[i] = 1, s.pick[k] = i, s.weight[k] = weight;
        __syncwarp();
    }
}
/* Whether counting picks the same experts as route_pick(). */
__device__ inline bool route_counts(const struct op_route &r) { return !r.table && r.score != SCORE_MIXER; }
/* Counts for each expert and token how many experts are better: the expert's rank. Called by all threads of a block, with barriers. s: token 0's space, which
 * those of other tokens follow at a distance of `bytes`. */
__device__ inline void route_count(const struct op_route &r, const struct route_space &s, size_t bytes) {
    const int n = r.n_experts + r.n_idle - r.n_always, pairs = r.n * n, parts = (int)blockDim.x > pairs ? (int)blockDim.x / pairs : 1, part_size = (n + parts - 1) / parts;
    for (int at = threadIdx.x; at < pairs; at += blockDim.x) ((int *)((char *)s.rank + (size_t)(at / n) * bytes))[at % n] = 0;
    __syncthreads();
    for (int at = threadIdx.x; at < pairs * parts; at += blockDim.x) {
        const int pair = at % pairs, part = at / pairs, token = pair / n, i = pair - token * n, end = min(n, (part + 1) * part_size);
        const float *choice = (const float *)((const char *)s.choice + (size_t)token * bytes), own = isnan(choice[i]) ? -INFINITY : choice[i];
        int n_better = 0;
        for (int j = part * part_size; j < end; j++) {
            const float v = choice[j] == choice[j] ? choice[j] : -INFINITY;
            n_better += v > own || (v == own && j < i);
        }
        if (n_better) atomicAdd((int *)((char *)s.rank + (size_t)token * bytes) + i, n_better);
    }
    __syncthreads();
}
/* Picks a token's experts by their ranks. */
__device__ inline void route_by_rank(const struct op_route &r, const struct route_space &s) {
    const int n = r.n_experts + r.n_idle, lane = (int)(threadIdx.x % 32), most = r.topk - r.n_always;
    for (int i = lane; i < n; i += 32) {
        const int k = i < n - r.n_always ? s.rank[i] : most + (i - (n - r.n_always));
        if (i < n - r.n_always && k >= most) continue;
        s.mark[i] = 1, s.pick[k] = i, s.weight[k] = s.score[i];
    }
    __syncwarp();
}
/* Stores a token's experts and weights. Idle choices become unused experts of weight 0; their weight goes to r.idle. */
__device__ inline void route_store(const struct op_route &r, int token, const struct route_space &s) {
    const int lane = (int)(threadIdx.x % 32);
    int32_t *ids = r.ids + (size_t)token * (size_t)r.topk;
    float *weights = r.weights + (size_t)token * (size_t)r.topk, total = 0;
    for (int k = 0; k < r.topk; k++) total += s.weight[k];
    __syncwarp();
    for (int k = lane; k < r.topk; k += 32) {
        const float w = s.weight[k], by = (r.norm ? w / (total + 1e-20f) : w) * r.scale * (r.expert_scale ? r.expert_scale[s.pick[k]] : 1.0f);
        weights[k] = s.weight[k] = by;
        ids[k] = s.pick[k];
    }
    if (!r.n_idle) return;
    __syncwarp();
    float idle = 0;
    for (int k = 0; k < r.topk; k++) {
        if (s.pick[k] < r.n_experts) continue;
        const int i = best_of(s.choice, s.mark, r.n_experts);
        idle += s.weight[k];
        __syncwarp();
        if (!lane) s.mark[i] = 1, ids[k] = i, weights[k] = 0;
        __syncwarp();
    }
    if (!lane) r.idle[token] = idle;
}
/* Routes a token by one warp. space: shared memory of route_bytes(). */
__device__ inline void route_token(const struct op_route &r, int token, void *space) {
    const struct route_space s = route_space(r, space);
    route_scores(r, token, s);
    route_pick(r, token, s);
    route_store(r, token, s);
}

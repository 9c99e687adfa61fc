/* Residual streams (hyper-connections, attention residuals), table rows of hashed n-grams, gates by relation, rounding to narrow formats, and compressed keys that
 * represent several tokens. Each element has its own fixed order of summation, independent of the number of rows in a call. */
#include "gpu/cuda_device.cuh"

/* --- Adding a block's output to each stream ------------------------------------------------------------------------------------------ */

static __global__ void spread_kernel(struct op_spread o, size_t total) {
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= total) return;
    size_t d = at % (size_t)o.hidden, row = at / (size_t)o.hidden; /* of streams */
    float v = o.x[row / (size_t)o.n_streams * (size_t)o.hidden + d];
    o.streams[at] = o.post ? o.streams[at] + o.post[row] * v : v;
}
cudaError_t cuda_spread(cudaStream_t s, const struct op_spread *o) {
    size_t total = (size_t)o->n * (size_t)o->n_streams * (size_t)o->hidden;
    spread_kernel<<<blocks_of(total, 256), 256, 0, s>>>(*o, total);
    return cudaGetLastError();
}

/* --- Hashed n-grams ------------------------------------------------------------------------------------------------------------------ */

/* Token i of the call, or for i < 0 the one before its first row, as it is hashed. */
__device__ inline int32_t token_at(const struct op_ngram &o, int i) {
    if (i >= 0) return o.ids ? o.ids[o.tokens[i]] : o.tokens[i];
    return o.before ? o.before[i + o.size - 1] : o.end;
}
static __global__ void ngram_kernel(const __grid_constant__ struct op_ngram o) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= o.n) return;
    int32_t *rows = o.rows + (size_t)i * (size_t)((o.size - 1) * o.per);
    unsigned long long hash = (unsigned long long)token_at(o, i) * o.multiplier[0];
    bool ended = false;
    for (int back = 1; back < o.size; back++) {
        int32_t token = token_at(o, i - back);
        ended |= !o.passes_end && token == o.end;
        hash ^= (unsigned long long)(ended ? o.end : token) * o.multiplier[back];
        for (int k = (back - 1) * o.per; k < back * o.per; k++) rows[k] = (int32_t)(hash % o.vocab[k] + o.offset[k]);
    }
}
/* Runs after ngram_kernel, since both states may be the same memory. In rising order each token is read before its place is written. */
static __global__ void ngram_keep_kernel(const __grid_constant__ struct op_ngram o) {
    for (int i = 0; i < o.size - 1; i++) o.after[i] = token_at(o, o.n - o.size + 1 + i);
}
cudaError_t cuda_ngram(cudaStream_t s, const struct op_ngram *o) {
    ngram_kernel<<<blocks_of((size_t)o->n, 128), 128, 0, s>>>(*o);
    ngram_keep_kernel<<<1, 1, 0, s>>>(*o);
    return cudaGetLastError();
}

/* --- Relation: a gate from the scaled product of two rows (struct op_relate) ----------------------------------------------------------- */

static __global__ void relate_kernel(struct op_relate o) {
    __shared__ float shared[32];
    const size_t at = (size_t)blockIdx.x * (size_t)o.dim;
    float sum = 0;
    for (int d = (int)threadIdx.x; d < o.dim; d += (int)blockDim.x) sum += o.x[at + (size_t)d] * o.y[at + (size_t)d];
    sum = block_sum(sum, shared) * o.scale;
    const float root = sqrtf(fmaxf(fabsf(sum), 1e-6f));
    if (!threadIdx.x) o.out[blockIdx.x] = 1.0f / (1.0f + expf(sum > 0 ? -root : sum < 0 ? root : 0.0f));
}
cudaError_t cuda_relate(cudaStream_t s, const struct op_relate *o) {
    relate_kernel<<<(unsigned)o->n * (unsigned)o->heads, 256, 0, s>>>(*o);
    return cudaGetLastError();
}

/* --- Rounding to narrow formats and back (struct op_round) ------------------------------------------------------------------------------ */

/* The least power of two that is at least v. */
__device__ inline float power_above(float v) { return __uint_as_float((__float_as_uint(v) + 0x7fffffu) & 0x7f800000u); }
__device__ inline float to_e2m1(float v) {
    const float a = fabsf(v);
    const float r = a > 5 ? 6.0f : a >= 3.5f ? 4.0f : a > 2.5f ? 3.0f : a >= 1.75f ? 2.0f : a > 1.25f ? 1.5f : a >= 0.75f ? 1.0f : a > 0.25f ? 0.5f : 0.0f;
    return isnan(v) ? v : copysignf(r, v);
}
/* A thread rounds one block, because blocks are small. */
static __global__ void round_kernel(struct op_round o, int blocks, size_t total) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    float *v = o.x + i / (size_t)blocks * (size_t)o.ld + i % (size_t)blocks * (size_t)o.block;
    float most = o.kind == ROUND_E4M3 ? 1e-4f : o.kind == ROUND_E2M1 ? 6 * 0x1p-126f : 6 * 0x1p-9f;
    for (int k = 0; k < o.block; k++) most = fabsf(v[k]) > most ? fabsf(v[k]) : most;
    const float scale = o.kind == ROUND_E4M3   ? power_above(most / 448.0f)
                        : o.kind == ROUND_E2M1 ? power_above(most / 6.0f)
                                               : e4m3_decode(e4m3_encode(most / 6.0f));
    for (int k = 0; k < o.block; k++) {
        const float part = v[k] / scale;
        v[k] = scale * (o.kind == ROUND_E4M3 ? e4m3_decode(e4m3_encode(part)) : to_e2m1(part));
    }
}
cudaError_t cuda_round(cudaStream_t s, const struct op_round *o) {
    if (o->block < 1 || o->m % o->block) return cudaErrorInvalidValue;
    const size_t total = (size_t)o->n * (size_t)(o->m / o->block);
    round_kernel<<<blocks_of(total, 128), 128, 0, s>>>(*o, o->m / o->block, total);
    return cudaGetLastError();
}

/* --- Mixing a block's input from the streams, and the streams with each other ---------------------------------------------------------- */

enum { MIX_THREADS = 256 };

/* One thread block per row. A thread has one of comb's n * n elements, then columns of all streams. */
static __global__ void __launch_bounds__(MIX_THREADS) mix_kernel(struct op_mix o) {
    __shared__ float shared[32], pre[STREAMS_MOST], comb[STREAMS_MOST * STREAMS_MOST], total[STREAMS_MOST];
    int n = o.n_streams, n_mix = !o.mix ? 0 : !o.post ? n : o.iters ? (2 + n) * n : 2 * n, tid = threadIdx.x, from = tid / n, to = tid % n;
    bool mixes = o.post && o.iters, has_element = mixes && tid < n * n;
    size_t hidden = (size_t)o.hidden, row = blockIdx.x, width = (size_t)n * hidden;
    float *x = o.streams + row * width, sum = 0;
    const float *mix = o.mix + row * (size_t)n_mix;
    for (size_t i = (size_t)tid; i < width; i += MIX_THREADS) sum += x[i] * x[i];
    float r = 1.0f / sqrtf(block_sum(sum, shared) / (float)width + o.norm_eps);
    if (tid < n) {
        float weight = n_mix ? sigmoid(mix[tid] * r * o.scale[0] + o.base[tid]) + o.eps : 0.0f;
        if (o.earlier) { /* uses the weight that the call before left, and leaves this one */
            float *earlier = o.earlier + row * (size_t)o.ld_earlier + tid, now = *earlier;
            if (n_mix) *earlier = weight;
            weight = now;
        }
        pre[tid] = weight;
        if (o.post) o.post[row * (size_t)n + (size_t)tid] = o.magnitude * sigmoid(mix[n + tid] * r * o.scale[1] + o.base[n + tid]) + o.post_eps;
    }
    if (has_element) comb[tid] = mix[2 * n + tid] * r * o.scale[2] + o.base[2 * n + tid];
    __syncthreads();
    if (tid < n && mixes) { /* softmax of a row */
        float *c = comb + tid * n, top = c[0], s = 0;
        for (int t = 1; t < n; t++) top = fmaxf(top, c[t]);
        for (int t = 0; t < n; t++) s += c[t] = expf(c[t] - top);
        for (int t = 0; t < n; t++) c[t] = c[t] / s + o.eps;
    }
    __syncthreads();
    for (int i = 0; i < 2 * o.iters - 1 && mixes; i++) { /* columns first, then alternately rows and columns */
        if (tid < n) {
            float s = o.eps;
            for (int b = 0; b < n; b++) s += i % 2 ? comb[tid * n + b] : comb[b * n + tid];
            total[tid] = s;
        }
        __syncthreads();
        if (has_element) comb[tid] /= total[i % 2 ? from : to];
        __syncthreads();
    }
    for (size_t d = (size_t)tid; d < hidden; d += MIX_THREADS) {
        float old[STREAMS_MOST], in = 0;
#pragma unroll
        for (int s = 0; s < STREAMS_MOST; s++)
            if (s < n) old[s] = x[(size_t)s * hidden + d], in += pre[s] * old[s];
        o.in[row * hidden + d] = in;
        if (o.out) o.out[row * hidden + d] = 0;
        for (int t = 0; t < n && mixes; t++) {
            float v = 0;
#pragma unroll
            for (int s = 0; s < STREAMS_MOST; s++)
                if (s < n) v += comb[s * n + t] * old[s];
            x[(size_t)t * hidden + d] = v;
        }
    }
}
cudaError_t cuda_mix(cudaStream_t s, const struct op_mix *o) {
    if (o->n_streams > STREAMS_MOST) return cudaErrorNotSupported;
    mix_kernel<<<(unsigned)o->n, MIX_THREADS, 0, s>>>(*o);
    return cudaGetLastError();
}

/* --- Attention residuals (struct op_pool) ------------------------------------------------------------------------------------------- */

/* One thread block per row. A warp computes the norm of a source and its product with each query. */
static __global__ void __launch_bounds__(MIX_THREADS) pool_kernel(const __grid_constant__ struct op_pool o) {
    __shared__ float norm[POOL_SOURCES_MOST], p[POOL_QUERIES_MOST][POOL_SOURCES_MOST];
    const int tid = (int)threadIdx.x, lane = tid % 32;
    const size_t hidden = (size_t)o.hidden, row = (size_t)blockIdx.x * hidden;
    float *x = o.streams + row * (size_t)o.n_streams, *into = x + (size_t)o.into * hidden;
    for (size_t d = (size_t)tid; d < hidden && o.x; d += MIX_THREADS) {
        into[d] = o.begins ? o.x[row + d] : into[d] + o.x[row + d];
        o.x[row + d] = 0;
    }
    __syncthreads();
    for (int s = tid / 32; o.n_queries && s < o.n_sources; s += MIX_THREADS / 32) {
        const float *v = x + (size_t)op_pool_stream(&o, s) * hidden;
        float square = 0, dot[POOL_QUERIES_MOST] = {0};
        for (int d = lane; d < o.hidden; d += 32) {
            square = fmaf(v[d], v[d], square);
#pragma unroll
            for (int q = 0; q < POOL_QUERIES_MOST; q++)
                if (q < o.n_queries) dot[q] = fmaf(v[d], o.query[q][d], dot[q]);
        }
        const float f = 1.0f / sqrtf(warp_sum(square) / (float)o.hidden + o.eps);
        if (!lane) norm[s] = f;
#pragma unroll
        for (int q = 0; q < POOL_QUERIES_MOST; q++) {
            const float v_sum = warp_sum(dot[q]);
            if (!lane) p[q][s] = v_sum / sqrtf((float)o.hidden) * f;
        }
    }
    __syncthreads();
    if (tid < o.n_queries) {
        float *w = p[tid], top = w[0], sum = 0;
        for (int s = 1; s < o.n_sources; s++) top = fmaxf(top, w[s]);
        for (int s = 0; s < o.n_sources; s++) sum += w[s] = expf(w[s] - top);
        for (int s = 0; s < o.n_sources; s++) w[s] = o.sums_raw ? w[s] / sum : w[s] / sum * norm[s];
    }
    __syncthreads();
    for (size_t d = (size_t)tid; d < hidden && o.n_queries; d += MIX_THREADS) {
        float sum[POOL_QUERIES_MOST] = {0};
        for (int s = 0; s < o.n_sources; s++) {
            const float v = x[(size_t)op_pool_stream(&o, s) * hidden + d];
#pragma unroll
            for (int q = 0; q < POOL_QUERIES_MOST; q++)
                if (q < o.n_queries) sum[q] = fmaf(p[q][s], v, sum[q]);
        }
#pragma unroll
        for (int q = 0; q < POOL_QUERIES_MOST; q++)
            if (q < o.n_queries) o.out[q][row + d] = sum[q];
    }
}
cudaError_t cuda_pool(cudaStream_t s, const struct op_pool *o) {
    if (o->n_sources < 1 || o->n_sources > POOL_SOURCES_MOST || o->n_queries > POOL_QUERIES_MOST) return cudaErrorNotSupported;
    pool_kernel<<<(unsigned)o->n, MIX_THREADS, 0, s>>>(*o);
    return cudaGetLastError();
}

/* --- Compression: one entry per window of tokens ------------------------------------------------------------------------------------ */

struct entry { /* an online softmax: the largest gate, the sum of weights, the weighted sum */
    float top, sum, acc;
};
__device__ inline struct entry entry_read(const float *state, int dim) { return {state[0], state[dim], state[2 * dim]}; }
__device__ inline void entry_write(float *state, int dim, const struct entry &e) { state[0] = e.top, state[dim] = e.sum, state[2 * dim] = e.acc; }

/* Adds the call's tokens at positions [from, to) to column c of an entry; series: which of the two. */
__device__ inline void add_tokens(const struct op_compress &o, struct entry *e, int from, int to, int series, int c) {
    int width = (o.overlap ? 2 : 1) * o.dim, at = series * o.dim + c;
    for (int pos = from; pos < to; pos++) {
        size_t row = (size_t)(pos - o.pos0) * (size_t)o.ldx + (size_t)at;
        float g = (o.gate ? o.gate[row] : 0.0f) + (o.bias ? o.bias[(size_t)(pos % o.ratio) * (size_t)width + (size_t)at] : 0.0f);
        float top = g > e->top ? g : e->top, keep = expf(e->top - top), w = expf(g - top);
        if (g != g) top = keep = w = g; /* NaN must propagate */
        e->sum = e->sum * keep + w;
        e->acc = e->acc * keep + w * o.kv[row];
        e->top = top;
    }
}
/* The first position from `pos` on that is in the call: earlier tokens are in the state. */
__device__ inline int in_call(const struct op_compress &o, int pos) { return pos < o.pos0 ? o.pos0 : pos; }

/* Column c of the entry of window w, from tokens before `end`; with overlap: the first series of window w - 1, the second of window w.
 * Tokens before this call are in the state: the open entry and, with overlap, the next. */
__device__ inline struct entry entry_of(const struct op_compress &o, int w, int end, int c) {
    int begin = w * o.ratio, first = o.pos0 / o.ratio; /* first: the open window */
    struct entry e = {-INFINITY, 0, 0};
    if (w == first && o.pos0) e = entry_read(o.before + c, o.dim);
    if (w == first + 1 && o.overlap && o.pos0) e = entry_read(o.before + 3 * o.dim + c, o.dim);
    if (o.overlap && w > first) add_tokens(o, &e, in_call(o, begin - o.ratio), begin, 0, c);
    add_tokens(o, &e, in_call(o, begin), end, o.overlap ? 1 : 0, c);
    return e;
}

/* For a recorded call, state and position are read from memory. */
__device__ inline struct op_compress with_addresses(struct op_compress o) {
    if (!o.at) return o;
    o.before = (const float *)o.at->data + o.state_at, o.after = (float *)o.at->after + o.state_at, o.pos0 = o.at->pos;
    return o;
}

enum { COLUMNS = 64 };
/* Stores the entries that the call completes. */
static __global__ void entries_kernel(struct op_compress called) {
    const struct op_compress o = with_addresses(called);
    int c = (int)blockIdx.y * COLUMNS + (int)threadIdx.x, w = o.pos0 / o.ratio + (int)blockIdx.x;
    if (c >= o.dim || w >= (o.pos0 + o.n) / o.ratio) return;
    struct entry e = entry_of(o, w, (w + 1) * o.ratio, c);
    o.out[(size_t)blockIdx.x * (size_t)o.dim + (size_t)c] = e.acc / e.sum;
}
/* Stores the sums of the open entries. A thread reads its whole column before it writes, because both states may be the same memory. */
static __global__ void open_entries_kernel(struct op_compress called) {
    const struct op_compress o = with_addresses(called);
    int c = (int)blockIdx.x * COLUMNS + (int)threadIdx.x, end = o.pos0 + o.n, w = end / o.ratio;
    if (c >= o.dim) return;
    struct entry open = entry_of(o, w, end, c), next = {-INFINITY, 0, 0};
    if (o.overlap) {
        if (w == o.pos0 / o.ratio && o.pos0) next = entry_read(o.before + 3 * o.dim + c, o.dim);
        add_tokens(o, &next, in_call(o, w * o.ratio), end, 0, c);
        entry_write(o.after + 3 * o.dim + c, o.dim, next);
    }
    entry_write(o.after + c, o.dim, open);
}
cudaError_t cuda_compress(cudaStream_t s, const struct op_compress *o) {
    unsigned columns = blocks_of((size_t)o->dim, COLUMNS);
    if (op_compressed(o)) entries_kernel<<<dim3((unsigned)op_compressed(o), columns), COLUMNS, 0, s>>>(*o);
    open_entries_kernel<<<columns, COLUMNS, 0, s>>>(*o);
    return cudaGetLastError();
}

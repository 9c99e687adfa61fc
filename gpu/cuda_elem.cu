/* Operations on the numbers of a row or head (norms, RoPE, KV rows, routing, copies, gates, element-wise), and what products need besides: sorting pairs by
 * expert, gathering, adding bias, converting weights. Streams, recurrences, selection of keys and attention have files of their own. A sum is computed by one
 * block or warp, so that its order is fixed. */
#include "gpu/cuda_small.cuh"

static __global__ void embed_kernel(struct op_embed o) {
    size_t row = blockIdx.x;
    for (int c = threadIdx.x; c < o.table.cols; c += blockDim.x) o.out[row * (size_t)o.table.cols + (size_t)c] = weight_at(o.table, o.ids[row], c) * o.scale;
}
cudaError_t cuda_embed(cudaStream_t s, const struct op_embed *o) {
    if (!cuda_mat_is_supported(o->table.dtype)) return cudaErrorNotSupported;
    embed_kernel<<<(unsigned)o->n, 256, 0, s>>>(*o);
    return cudaGetLastError();
}

static __global__ void norm_kernel(struct op_norm o) {
    __shared__ float sums[32];
    norm_rows(o, (int)blockIdx.x, (int)gridDim.x, sums);
}
cudaError_t cuda_norm(cudaStream_t s, const struct op_norm *o) {
    norm_kernel<<<(unsigned)o->rows, (unsigned)norm_threads(o->dim), 0, s>>>(*o);
    return cudaGetLastError();
}

/* The angle is rounded to float32, as in the models' own code and on the CPU; its cosine uses double range reduction. */
static __global__ void rope_table_kernel(struct op_rope_table t) {
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x, i = at / (size_t)t.half;
    if (at >= (size_t)t.n * (size_t)t.half) return;
    bool is_long = t.longest && (t.length ? t.length[i] : t.total) > t.longest;
    float mscale = is_long ? t.long_mscale : t.mscale;
    int pos0 = t.at ? t.at->pos / t.step * t.step : t.pos0, pos = t.pos ? t.pos[i] : pos0 + (int)i * t.step;
    if (t.place) pos = t.place[3 * i + (size_t)op_rope_part(&t, (int)(at % (size_t)t.half))];
    double a = (double)((float)pos * t.inv_freq[at % (size_t)t.half + (is_long ? (size_t)t.half : 0)]), sn, cs;
    sincos(a, &sn, &cs);
    t.cos[at] = (float)cs * mscale;
    t.sin[at] = (float)sn * mscale;
}
cudaError_t cuda_rope_table(cudaStream_t s, const struct op_rope_table *t) {
    rope_table_kernel<<<blocks_of((size_t)t->n * (size_t)t->half, 256), 256, 0, s>>>(*t);
    return cudaGetLastError();
}

static __global__ void rope_kernel(struct op_rope o) { rope_heads(o, (int)blockIdx.x, (int)gridDim.x); }
cudaError_t cuda_rope(cudaStream_t s, const struct op_rope *o) {
    rope_kernel<<<blocks_of((size_t)o->n * (size_t)o->heads, 8), 256, 0, s>>>(*o);
    return cudaGetLastError();
}

static __global__ void kv_store_kernel(struct op_kv_store o) { kv_store_heads(o, (int)blockIdx.x, (int)gridDim.x); }
cudaError_t cuda_kv_store(cudaStream_t s, const struct op_kv_store *o) {
    kv_store_kernel<<<blocks_of((size_t)o->n * (size_t)o->plane.heads, 4), 128, 0, s>>>(*o);
    return cudaGetLastError();
}
static __global__ void kv_load_kernel(struct op_kv_load o) {
    size_t i = blockIdx.x / (unsigned)o.plane.heads, h = blockIdx.x % (unsigned)o.plane.heads;
    for (int d = threadIdx.x; d < o.plane.dim; d += blockDim.x)
        o.out[i * (size_t)o.ldo + h * (size_t)o.plane.dim + (size_t)d] = plane_at(o.plane, (size_t)o.row0 + i, (int)h, d);
}
cudaError_t cuda_kv_load(cudaStream_t s, const struct op_kv_load *o) {
    kv_load_kernel<<<(unsigned)o->n * (unsigned)o->plane.heads, 128, 0, s>>>(*o);
    return cudaGetLastError();
}

static __global__ void route_kernel(struct op_route r) {
    extern __shared__ char space[];
    route_token(r, (int)blockIdx.x, space);
}
cudaError_t cuda_route(cudaStream_t s, const struct op_route *r) {
    route_kernel<<<(unsigned)r->n, 32, route_bytes(*r), s>>>(*r);
    return cudaGetLastError();
}

static __global__ void copy_kernel(struct op_copy o) { copy_row(o, (int)blockIdx.x); }
cudaError_t cuda_copy(cudaStream_t s, const struct op_copy *o) {
    copy_kernel<<<(unsigned)o->n, 256, 0, s>>>(*o);
    return cudaGetLastError();
}

/* Runs f for the numbers that a thread of the grid computes. */
template <typename T, typename F> __device__ static inline void for_each(const T &o, size_t n, F f) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) f(o, i);
}
/* Whether the numbers are more than an index of 32 bits counts. */
static int too_many(int a, int b, int c) { return (size_t)a * (size_t)b * (size_t)c > UINT32_MAX; }
static unsigned grid_of(size_t n) {
    size_t b = (n + 255) / 256;
    return (unsigned)(b < 65536 ? b : 65536);
}
static __global__ void add_kernel(struct op_add o) { for_each(o, (size_t)o.n * (size_t)o.m, add_number); }
cudaError_t cuda_add(cudaStream_t s, const struct op_add *o) {
    if (too_many(o->n, o->m, 1)) return cudaErrorInvalidValue;
    add_kernel<<<grid_of((size_t)o->n * (size_t)o->m), 256, 0, s>>>(*o);
    return cudaGetLastError();
}
static __global__ void sigmoid_kernel(struct op_sigmoid o) { for_each(o, (size_t)o.n * (size_t)o.m, sigmoid_number); }
cudaError_t cuda_sigmoid(cudaStream_t s, const struct op_sigmoid *o) {
    sigmoid_kernel<<<grid_of((size_t)o->n * (size_t)o->m), 256, 0, s>>>(*o);
    return cudaGetLastError();
}
static __global__ void fill_kernel(struct op_fill o) { for_each(o, (size_t)o.n * (size_t)o.m, fill_number); }
cudaError_t cuda_fill(cudaStream_t s, const struct op_fill *o) {
    fill_kernel<<<grid_of((size_t)o->n * (size_t)o->m), 256, 0, s>>>(*o);
    return cudaGetLastError();
}
static __global__ void softcap_kernel(struct op_softcap o) { for_each(o, (size_t)o.n * (size_t)o.m, softcap_number); }
cudaError_t cuda_softcap(cudaStream_t s, const struct op_softcap *o) {
    softcap_kernel<<<grid_of((size_t)o->n * (size_t)o->m), 256, 0, s>>>(*o);
    return cudaGetLastError();
}
static __global__ void clip_kernel(struct op_clip o) { for_each(o, (size_t)o.n * (size_t)o.m, clip_number); }
cudaError_t cuda_clip(cudaStream_t s, const struct op_clip *o) {
    clip_kernel<<<grid_of((size_t)o->n * (size_t)o->m), 256, 0, s>>>(*o);
    return cudaGetLastError();
}
static __global__ void scale_kernel(struct op_scale o) { scale_row(o, (int)blockIdx.x); }
cudaError_t cuda_scale(cudaStream_t s, const struct op_scale *o) {
    scale_kernel<<<(unsigned)o->n, 256, 0, s>>>(*o);
    return cudaGetLastError();
}
static __global__ void gate_kernel(struct op_gate o) {
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < (size_t)o.n * (size_t)o.heads * (size_t)o.dim) gate_number(o, at);
}
cudaError_t cuda_gate(cudaStream_t s, const struct op_gate *o) {
    if (too_many(o->n, o->heads, o->dim)) return cudaErrorInvalidValue;
    gate_kernel<<<blocks_of((size_t)o->n * (size_t)o->heads * (size_t)o->dim, 256), 256, 0, s>>>(*o);
    return cudaGetLastError();
}

/* Sorts (token, expert) pairs by expert, in three launches: one block per expert counts its pairs, the counts become offsets, and one block per expert stores its
 * pairs in order. Hundreds of blocks read the same few megabytes from the L2 cache; without atomics, the order inside a group is deterministic. */
static __global__ void sort_count_kernel(int32_t *offset, const int32_t *ids, size_t pairs, int first) {
    __shared__ float shared[32];
    int e = (int)blockIdx.x + first, mine = 0;
    for (size_t i = threadIdx.x; i < pairs; i += blockDim.x) mine += ids[i] == e;
    /* exact in float: a thread's count and the sum over 1024 threads stay below 2^24 for a prompt */
    float sum = block_sum((float)mine, shared);
    if (!threadIdx.x) offset[blockIdx.x + 1] = (int32_t)sum;
}
/* Counts to offsets: one warp, 32 at a time. */
static __global__ void sort_scan_kernel(int32_t *offset, int n) {
    int lane = (int)threadIdx.x, base = 0;
    for (int i0 = 1; i0 <= n; i0 += 32) {
        int v = i0 + lane <= n ? offset[i0 + lane] : 0;
        for (int d = 1; d < 32; d *= 2) {
            int before = __shfl_up_sync(0xffffffffu, v, d);
            if (lane >= d) v += before;
        }
        if (i0 + lane <= n) offset[i0 + lane] = base + v;
        base += __shfl_sync(0xffffffffu, v, 31);
    }
    if (!lane) offset[0] = 0;
}
/* The sum over the lanes of a warp, in all of them. */
__device__ inline int warp_count(int v) {
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}
static __global__ void sort_fill_kernel(const int32_t *offset, int32_t *token, float *weight, const int32_t *ids, const float *weights,
    size_t pairs, int topk, int first) {
    __shared__ int count[32];
    const int e = (int)blockIdx.x + first, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    /* Each warp has a run of pairs and passes it twice without a barrier: to count the expert's, and to store them. */
    const size_t run = (pairs + (size_t)blockDim.x - 1) / blockDim.x * 32, from = run * (size_t)warp, end = from + run < pairs ? from + run : pairs;
    int mine = 0;
#pragma unroll 4
    for (size_t i = from + (size_t)lane; i < end; i += 32) mine += ids[i] == e;
    mine = warp_count(mine);
    if (!lane) count[warp] = mine;
    __syncthreads();
    int at = offset[blockIdx.x];
    for (int w = 0; w < warp; w++) at += count[w];
#pragma unroll 4
    for (size_t i0 = from; i0 < end; i0 += 32) {
        const size_t i = i0 + (size_t)lane;
        const bool is_mine = i < end && ids[i] == e;
        const unsigned votes = __ballot_sync(0xffffffffu, is_mine);
        const int to = at + __popc(votes & ((1u << lane) - 1));
        if (is_mine) {
            token[to] = (int32_t)((uint32_t)i / (uint32_t)topk); /* a division of 64 bits is a call */
            weight[to] = weights[i];
        }
        at += __popc(votes);
    }
}
cudaError_t cuda_sort(cudaStream_t s, const struct op_sort *o) {
    const size_t pairs = (size_t)o->n * (size_t)o->topk;
    const unsigned experts = (unsigned)(o->last - o->first);
    sort_count_kernel<<<experts, 512, 0, s>>>(o->offset, o->ids, pairs, o->first);
    sort_scan_kernel<<<1, 32, 0, s>>>(o->offset, (int)experts);
    sort_fill_kernel<<<experts, 1024, 0, s>>>(o->offset, o->token, o->weight, o->ids, o->weights, pairs, o->topk, o->first);
    return cudaGetLastError();
}

static __global__ void gather_kernel(struct op_gather o) {
    const float *src = o.x + (size_t)o.index[blockIdx.x] * (size_t)o.ldx;
    for (int d = threadIdx.x; d < o.dim; d += blockDim.x) o.out[(size_t)blockIdx.x * (size_t)o.dim + (size_t)d] = src[d];
}
cudaError_t cuda_gather(cudaStream_t s, const struct op_gather *o) {
    gather_kernel<<<(unsigned)o->n, 256, 0, s>>>(*o);
    return cudaGetLastError();
}
/* A block per row: each thread finds the best of its numbers, then warps, then the block. */
static __global__ void __launch_bounds__(1024) top_kernel(struct op_top o) {
    __shared__ struct best warps[32];
    __shared__ int nan;
    const float *x = o.x + (size_t)blockIdx.x * (size_t)o.ldx;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    struct best b = {0, -1};
    bool has_nan = false;
    if (!threadIdx.x) nan = 0;
    __syncthreads();
    const int wide = ((size_t)x & 15) == 0 ? o.m / 4 * 4 : 0;
#pragma unroll 4
    for (int i = 4 * (int)threadIdx.x; i < wide; i += 4 * (int)blockDim.x) {
        const float4 v = *(const float4 *)(x + i);
        has_nan |= isnan(v.x) || isnan(v.y) || isnan(v.z) || isnan(v.w);
        b = better(better(b, {v.x, i}), better(better({v.y, i + 1}, {v.z, i + 2}), {v.w, i + 3}));
    }
    for (int i = wide + (int)threadIdx.x; i < o.m; i += (int)blockDim.x) has_nan |= isnan(x[i]), b = better(b, {x[i], i});
    auto of_warp = [](struct best v) {
        for (int d = 16; d; d >>= 1) v = better(v, {__shfl_xor_sync(0xffffffffu, v.v, d), __shfl_xor_sync(0xffffffffu, v.i, d)});
        return v;
    };
    b = of_warp(b);
    if (!lane) warps[warp] = b;
    if (has_nan) atomicOr(&nan, 1);
    __syncthreads();
    if (warp) return;
    b = of_warp(lane < (int)blockDim.x / 32 ? warps[lane] : best{0, -1});
    if (!lane) o.top[blockIdx.x] = nan ? -1 : b.i;
}
cudaError_t cuda_top(cudaStream_t s, const struct op_top *o) {
    top_kernel<<<(unsigned)o->n, 1024, 0, s>>>(*o);
    return cudaGetLastError();
}
static __global__ void remap_kernel(struct op_remap o) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < o.n) o.out[i] = o.ids[i] >= 0 && o.ids[i] < o.n_map ? o.map[o.ids[i]] : -1;
}
cudaError_t cuda_remap(cudaStream_t s, const struct op_remap *o) {
    remap_kernel<<<(unsigned)((o->n + 127) / 128), 128, 0, s>>>(*o);
    return cudaGetLastError();
}
static __global__ void order_x_kernel(float *out, const float *x, struct mat w, int ldx) {
    size_t i = blockIdx.x;
    for (int c = threadIdx.x; c < w.cols; c += blockDim.x) {
        const int at = w.order[c] - w.x0;
        out[i * (size_t)w.cols + (size_t)c] = at >= 0 && at < w.x_cols ? x[i * (size_t)ldx + (size_t)at] : 0;
    }
}
cudaError_t cuda_order_x(cudaStream_t s, float *out, const float *x, struct mat w, int n, int ldx) {
    order_x_kernel<<<(unsigned)n, 256, 0, s>>>(out, x, w, ldx);
    return cudaGetLastError();
}
static __global__ void scatter_add_kernel(struct op_scatter_add o) {
    size_t i = blockIdx.x;
    float *dst = o.y + (o.index ? (size_t)o.index[i] : i) * (size_t)o.ldy, w = o.weight ? o.weight[i] : 1.0f;
    for (int d = threadIdx.x; d < o.dim; d += blockDim.x) dst[d] += w * o.x[i * (size_t)o.dim + (size_t)d];
}
cudaError_t cuda_scatter_add(cudaStream_t s, const struct op_scatter_add *o) {
    scatter_add_kernel<<<(unsigned)o->n, 256, 0, s>>>(*o);
    return cudaGetLastError();
}

/* One block per (row, head); all threads read lse before the first writes it. */
static __global__ void merge_kernel(struct op_merge o) {
    size_t i = blockIdx.x / (unsigned)o.heads, h = blockIdx.x % (unsigned)o.heads, at = i * (size_t)o.heads + h;
    float l = o.lse[at], l2 = o.lse2[at], top = fmaxf(l, l2);
    __syncthreads();
    if (l2 == -INFINITY) return;
    float w = expf(l - top), w2 = expf(l2 - top), sum = w + w2;
    float *out = o.out + i * (size_t)o.ldo + h * (size_t)o.dim;
    const float *out2 = o.out2 + i * (size_t)o.ldo2 + h * (size_t)o.dim;
    for (int d = threadIdx.x; d < o.dim; d += blockDim.x) out[d] = (w * out[d] + w2 * out2[d]) / sum;
    if (!threadIdx.x) o.lse[at] = top + logf(sum);
}
cudaError_t cuda_merge(cudaStream_t s, const struct op_merge *o) {
    merge_kernel<<<(unsigned)o->n * (unsigned)o->heads, 64, 0, s>>>(*o);
    return cudaGetLastError();
}

static __global__ void bias_kernel(float *y, const float *bias, int m, int ldy) {
    for (int d = threadIdx.x; d < m; d += blockDim.x) y[(size_t)blockIdx.x * (size_t)ldy + (size_t)d] += bias[d];
}
cudaError_t cuda_bias(cudaStream_t s, float *y, const float *bias, int n, int m, int ldy) {
    bias_kernel<<<(unsigned)n, 256, 0, s>>>(y, bias, m, ldy);
    return cudaGetLastError();
}
static __global__ void glu_kernel(float *out, const float *gate_up, int inter, struct glu a) {
    const float *g = gate_up + (size_t)blockIdx.x * 2 * (size_t)inter, *u = g + inter;
    for (int d = threadIdx.x; d < inter; d += blockDim.x) out[(size_t)blockIdx.x * (size_t)inter + (size_t)d] = glu(g[d], u[d], a);
}
cudaError_t cuda_glu(cudaStream_t s, float *out, const float *gate_up, int n, int inter, struct glu a) {
    glu_kernel<<<(unsigned)n, 256, 0, s>>>(out, gate_up, inter, a);
    return cudaGetLastError();
}

/* A thread converts 16 neighbouring columns: one 16-byte load of FP8 and two stores where alignment allows it. */
static __global__ void mat_to_bf16_kernel(__nv_bfloat16 *out, struct mat w) {
    int r = blockIdx.x, c0 = (int)(blockIdx.y * blockDim.x + threadIdx.x) * 16; /* rows in x: grid y is limited to 65,535 */
    if (c0 >= w.cols) return;
    __nv_bfloat16 *dst = out + (size_t)r * (size_t)w.cols;
    const uint8_t *row = (const uint8_t *)w.data + (size_t)r * w.stride;
    bool whole = w.dtype == DT_E4M3 && c0 + 16 <= w.cols && w.cols % 8 == 0 && (size_t)out % 16 == 0 && ((size_t)row + (size_t)c0) % 16 == 0 && (!w.scale || w.block_cols % 16 == 0);
    if (whole) {
        uint4 v = *(const uint4 *)(row + c0), y[2];
        const uint8_t *code = (const uint8_t *)&v;
        __nv_bfloat162 *pair = (__nv_bfloat162 *)y;
        float scale = scale_of(w, r, c0);
#pragma unroll
        for (int i = 0; i < 8; i++) pair[i] = __floats2bfloat162_rn(e4m3_decode(code[2 * i]) * scale, e4m3_decode(code[2 * i + 1]) * scale);
        *(uint4 *)(dst + c0) = y[0];
        *(uint4 *)(dst + c0 + 8) = y[1];
        return;
    }
    const bool eights = is_blocks(w.dtype) && !w.scale;
    for (int c = c0; eights && c < c0 + 16; c += 8) {
        float v[8];
        blocks_at<8>(v, (const uint8_t *)w.data + (size_t)r * w.stride, w.dtype, c);
        for (int i = 0; i < 8; i++) dst[c + i] = __float2bfloat16_rn(v[i]);
    }
    for (int c = c0; !eights && c < c0 + 16 && c < w.cols; c++) dst[c] = __float2bfloat16_rn(weight_at(w, r, c));
}
cudaError_t cuda_mat_to_bf16(cudaStream_t s, void *out, struct mat w) {
    dim3 grid((unsigned)w.rows, blocks_of((size_t)w.cols, 128 * 16));
    mat_to_bf16_kernel<<<grid, 128, 0, s>>>((__nv_bfloat16 *)out, w);
    return cudaGetLastError();
}

/* All operations except matrix products and attention. One row or one head per block, so that the order of sums is fixed. */
#include "gpu/cuda_device.cuh"

static __global__ void embed_kernel(float *out, const int32_t *ids, struct mat table, float scale) {
    size_t row = blockIdx.x;
    for (int c = threadIdx.x; c < table.cols; c += blockDim.x) out[row * (size_t)table.cols + (size_t)c] = weight_at(table, ids[row], c) * scale;
}
cudaError_t cuda_embed(cudaStream_t s, float *out, const int32_t *ids, struct mat table, int n, float scale) {
    embed_kernel<<<(unsigned)n, 256, 0, s>>>(out, ids, table, scale);
    return cudaGetLastError();
}

static __global__ void norm_kernel(float *out, const float *x, const void *w, const void *bias, int w_dtype, int dim, int ldx, int ldo,
    float eps, float add, int layer_norm, int tag, int *bad) {
    __shared__ float shared[32];
    x += (size_t)blockIdx.x * (size_t)ldx;
    out += (size_t)blockIdx.x * (size_t)ldo;
    float sum = 0, mean = 0;
    if (layer_norm) {
        for (int i = threadIdx.x; i < dim; i += blockDim.x) sum += x[i];
        mean = block_sum(sum, shared) / (float)dim;
        sum = 0;
    }
    bool finite = true;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
        float v = x[i] - mean;
        finite = finite && isfinite(x[i]);
        sum += v * v;
    }
    if (bad && !finite) atomicCAS(bad, -1, tag);
    float f = 1.0f / sqrtf(block_sum(sum, shared) / (float)dim + eps);
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
        float v = (x[i] - mean) * f * (w ? scalar_at(w, w_dtype, (size_t)i) + add : 1.0f);
        out[i] = bias ? v + scalar_at(bias, w_dtype, (size_t)i) : v;
    }
}
cudaError_t cuda_norm(cudaStream_t s, float *out, const float *x, const void *w, const void *bias, int w_dtype, int rows, int dim, int ldx,
    int ldo, float eps, float add, int layer_norm, int tag, int *bad) {
    int threads = dim >= 1024 ? 512 : dim >= 256 ? 128 : 32;
    norm_kernel<<<(unsigned)rows, threads, 0, s>>>(out, x, w, bias, w_dtype, dim, ldx, ldo, eps, add, layer_norm, tag, bad);
    return cudaGetLastError();
}

/* The angle is rounded to float32, as in the models' own code and on the CPU; its cosine uses double range reduction. */
static __global__ void rope_table_kernel(struct cuda_rope_table t) {
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x, i = at / (size_t)t.half;
    if (at >= (size_t)t.n * (size_t)t.half) return;
    bool far = t.longest && (t.length ? t.length[i] : t.total) > t.longest;
    float mscale = far ? t.long_mscale : t.mscale;
    int pos0 = t.at ? t.at->pos / t.step * t.step : t.pos0, pos = t.pos ? t.pos[i] : pos0 + (int)i * t.step;
    double a = (double)((float)pos * t.inv_freq[at % (size_t)t.half + (far ? (size_t)t.half : 0)]), sn, cs;
    sincos(a, &sn, &cs);
    t.cos[at] = (float)cs * mscale;
    t.sin[at] = (float)sn * mscale;
}
cudaError_t cuda_rope_table(cudaStream_t s, const struct cuda_rope_table *t) {
    rope_table_kernel<<<blocks_of((size_t)t->n * (size_t)t->half, 256), 256, 0, s>>>(*t);
    return cudaGetLastError();
}

static __global__ void rope_kernel(float *x, const float *cs, const float *sn, int n, int heads, int ld, int head_ld, int half,
                                   int interleaved, float sign) {
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)n * (size_t)heads * (size_t)half) return;
    int j = (int)(at % (size_t)half), h = (int)(at / (size_t)half % (size_t)heads);
    size_t i = at / (size_t)half / (size_t)heads, t = i * (size_t)half + (size_t)j;
    float *p = x + i * (size_t)ld + (size_t)h * (size_t)head_ld;
    float *a = interleaved ? p + 2 * j : p + j, *b = interleaved ? a + 1 : a + half;
    float c = cs[t], s = sn[t] * sign, u = *a, v = *b;
    *a = u * c - v * s;
    *b = v * c + u * s;
}
cudaError_t cuda_rope(cudaStream_t s, float *x, const float *cs, const float *sn, int n, int heads, int ld, int head_ld, int half,
    int interleaved, int inverse) {
    size_t total = (size_t)n * (size_t)heads * (size_t)half;
    rope_kernel<<<blocks_of(total, 256), 256, 0, s>>>(x, cs, sn, n, heads, ld, head_ld, half, interleaved, inverse ? -1.0f : 1.0f);
    return cudaGetLastError();
}

/* One block per (row, head). */
static __global__ void kv_store_kernel(struct cuda_plane p, const float *x, int row0, int ldx, const struct cuda_place *place, int every, int tokens) {
    __shared__ float shared[32];
    if (place) plane_set_address(&p, place), row0 = every ? place->pos / every : place->pos;
    if (place && every && (int)(blockIdx.x / (unsigned)p.heads) >= (place->pos + tokens) / every - row0) return;
    size_t i = blockIdx.x / (unsigned)p.heads, h = blockIdx.x % (unsigned)p.heads;
    const struct plane_row to = plane_row(p, (size_t)row0 + i);
    const float *src = x + i * (size_t)ldx + h * (size_t)p.dim;
    size_t at = (to.row * (size_t)p.heads + h) * (size_t)p.dim;
    float scale = 1;
    if (p.dtype == DT_E4M3) {
        float top = 0;
        for (int d = threadIdx.x; d < p.dim; d += blockDim.x) top = fmaxf(top, fabsf(src[d]));
        top = warp_max(top);
        if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = top;
        __syncthreads();
        for (int w = 0; w < (int)(blockDim.x / 32); w++) top = fmaxf(top, shared[w]);
        scale = top > 0 ? top / 448.0f : 1.0f;
        if (!threadIdx.x) to.scale[to.row * (size_t)p.heads + h] = scale;
    }
    for (int d = threadIdx.x; d < p.dim; d += blockDim.x) {
        if (p.dtype == DT_BF16) ((__nv_bfloat16 *)to.data)[at + (size_t)d] = __float2bfloat16_rn(src[d]);
        else if (p.dtype == DT_E4M3) ((uint8_t *)to.data)[at + (size_t)d] = e4m3_encode(src[d] / scale);
        else ((float *)to.data)[at + (size_t)d] = src[d];
    }
}
cudaError_t cuda_kv_store(cudaStream_t s, struct cuda_plane p, const float *x, int row0, int n, int ldx, const struct cuda_place *at, int every, int tokens) {
    kv_store_kernel<<<(unsigned)n * (unsigned)p.heads, 128, 0, s>>>(p, x, row0, ldx, at, every, tokens);
    return cudaGetLastError();
}
static __global__ void kv_load_kernel(struct cuda_plane p, float *out, int row0, int ldo) {
    size_t i = blockIdx.x / (unsigned)p.heads, h = blockIdx.x % (unsigned)p.heads;
    for (int d = threadIdx.x; d < p.dim; d += blockDim.x)
        out[i * (size_t)ldo + h * (size_t)p.dim + (size_t)d] = plane_at(p, (size_t)row0 + i, (int)h, d);
}
cudaError_t cuda_kv_load(cudaStream_t s, struct cuda_plane p, float *out, int row0, int n, int ldo) {
    kv_load_kernel<<<(unsigned)n * (unsigned)p.heads, 128, 0, s>>>(p, out, row0, ldo);
    return cudaGetLastError();
}

/* The router: one warp per token. A token's scores, choices and marks are in shared memory; an argmax runs per lane over its share,
 * then across lanes, ties to the lower index. */
struct best {
    float v;
    int i;
};
__device__ static struct best better(struct best a, struct best b) {
    if (b.i < 0) return a;
    if (a.i < 0) return b;
    bool take = b.v > a.v || (b.v == a.v && b.i < a.i);
    return take ? b : a;
}
__device__ static int best_of(const float *v, const uint8_t *taken, int n) {
    struct best b = {0, -1};
    for (int i = threadIdx.x; i < n; i += 32)
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
__device__ static float mixer_weight(const struct cuda_route &r, const float *logits, const uint8_t *mark, int best) {
    float top = logits[best], sum = 0;
    for (int i = threadIdx.x; i < r.n_experts; i += 32) {
        float size = fabsf(logits[i]) > top ? fabsf(logits[i]) : top;
        if (!mark[i] && !((top - logits[i]) / size > 2 * r.jitter)) sum += expf(logits[i] - top);
    }
    return 1.0f / warp_sum(sum);
}
__device__ static float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
static __global__ void route_kernel(struct cuda_route r) {
    extern __shared__ float space[];
    int n = r.n_experts + r.n_idle, lane = threadIdx.x;
    bool softmax = r.score == CUDA_SOFTMAX, mixer = r.score == CUDA_MIXER;
    const int32_t *known = r.table ? r.table + (size_t)r.tokens[blockIdx.x] * (size_t)r.topk : NULL;
    float *score = space, *choice = space + n, *group = choice + n;
    uint8_t *mark = (uint8_t *)(group + r.n_group);
    const float *logits = r.logits + (size_t)blockIdx.x * (size_t)n;
    float top = -INFINITY, sum = 0;
    if (softmax || mixer) {
        for (int i = lane; i < n; i += 32) top = fmaxf(top, logits[i]);
        top = warp_max(top);
    }
    for (int i = lane; i < n; i += 32) {
        score[i] = r.score == CUDA_SIGMOID ? 1.0f / (1.0f + expf(-logits[i])) : r.score == CUDA_SQRT_SOFTPLUS ? sqrtf(softplus(logits[i])) : expf(logits[i] - top);
        sum += score[i];
    }
    sum = warp_sum(sum);
    for (int i = lane; i < n; i += 32) {
        if (softmax) score[i] /= sum;
        choice[i] = (mixer ? logits[i] : score[i]) + (r.bias ? r.bias[i] : 0.0f);
    }
    __syncwarp();
    if (r.n_group > 1) {
        int size = n / r.n_group;
        for (int g = lane; g < r.n_group; g += 32) {
            float first = -INFINITY, second = -INFINITY;
            for (int i = g * size; i < (g + 1) * size; i++) {
                if (choice[i] > first) second = first, first = choice[i];
                else if (choice[i] > second) second = choice[i];
            }
            group[g] = r.group_top2 && size > 1 ? first + second : first;
            mark[g] = 0;
        }
        __syncwarp();
        for (int k = 0; k < r.topk_group && k < r.n_group; k++) {
            int g = best_of(group, mark, r.n_group);
            __syncwarp();
            if (!lane) mark[g] = 1;
            __syncwarp();
        }
        for (int i = lane; i < n; i += 32)
            if (i / size < r.n_group && !mark[i / size]) choice[i] = r.group_zero ? 0.0f : -INFINITY;
        __syncwarp();
    }
    for (int i = lane; i < n; i += 32) mark[i] = 0;
    __syncwarp();
    int32_t *ids = r.ids + (size_t)blockIdx.x * (size_t)r.topk;
    float *weights = r.weights + (size_t)blockIdx.x * (size_t)r.topk;
    float total = 0;
    for (int k = 0; k < r.topk; k++) {
        int left = r.topk - k; /* the last ones are those that are always chosen */
        int i = known ? known[k] : left <= r.n_always ? n - left : best_of(choice, mark, n - r.n_always);
        float weight = mixer ? mixer_weight(r, logits, mark, i) : score[i];
        total += weight;
        __syncwarp();
        if (!lane) {
            mark[i] = 1;
            ids[k] = i;
            weights[k] = weight;
        }
        __syncwarp();
    }
    for (int k = lane; k < r.topk; k += 32) {
        float w = weights[k];
        weights[k] = (r.norm ? w / (total + 1e-20f) : w) * r.scale * (r.expert_scale ? r.expert_scale[ids[k]] : 1.0f);
    }
    if (!r.n_idle) return;
    __syncwarp();
    float idle = 0;
    for (int k = 0; k < r.topk; k++) {
        if (ids[k] < r.n_experts) continue;
        int i = best_of(choice, mark, r.n_experts);
        idle += weights[k];
        __syncwarp();
        if (!lane) mark[i] = 1, ids[k] = i, weights[k] = 0;
        __syncwarp();
    }
    if (!lane) r.idle[blockIdx.x] = idle;
}
cudaError_t cuda_route_tokens(cudaStream_t s, const struct cuda_route *r) {
    struct cuda_route c = *r;
    if (c.n_group < 1) c.n_group = 1;
    size_t all = (size_t)(c.n_experts + c.n_idle), marks = all > (size_t)c.n_group ? all : (size_t)c.n_group;
    size_t bytes = (2 * all + (size_t)c.n_group) * sizeof(float) + marks;
    route_kernel<<<(unsigned)c.n, 32, bytes, s>>>(c);
    return cudaGetLastError();
}

static __global__ void copy_kernel(float *y, const float *x, int heads, int dim, int ldx, int ldy, int head_ldx, int head_ldy) {
    size_t i = blockIdx.x;
    for (int k = threadIdx.x; k < heads * dim; k += blockDim.x) {
        int h = k / dim, d = k % dim;
        y[i * (size_t)ldy + (size_t)h * (size_t)head_ldy + (size_t)d] = x[i * (size_t)ldx + (size_t)h * (size_t)head_ldx + (size_t)d];
    }
}
cudaError_t cuda_copy(cudaStream_t s, float *y, const float *x, int n, int heads, int dim, int ldx, int ldy, int head_ldx, int head_ldy) {
    copy_kernel<<<(unsigned)n, 256, 0, s>>>(y, x, heads, dim, ldx, ldy, head_ldx, head_ldy);
    return cudaGetLastError();
}

static __global__ void add_kernel(float *y, const float *x, size_t n, size_t m, size_t ldx) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) y[i] += m == ldx ? x[i] : x[i / m * ldx + i % m];
}
static unsigned grid_of(size_t n) {
    size_t b = (n + 255) / 256;
    return (unsigned)(b < 65536 ? b : 65536);
}
cudaError_t cuda_add(cudaStream_t s, float *y, const float *x, int n, int m, int ldx) {
    const size_t all = (size_t)n * (size_t)m;
    add_kernel<<<grid_of(all), 256, 0, s>>>(y, x, all, (size_t)m, (size_t)(ldx ? ldx : m));
    return cudaGetLastError();
}
static __global__ void sigmoid_kernel(float *x, size_t n) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] = 1.0f / (1.0f + expf(-x[i]));
}
cudaError_t cuda_sigmoid(cudaStream_t s, float *x, size_t n) {
    sigmoid_kernel<<<grid_of(n), 256, 0, s>>>(x, n);
    return cudaGetLastError();
}

static __global__ void fill_kernel(float *x, size_t n, float value) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) x[i] = value;
}
cudaError_t cuda_fill(cudaStream_t s, float *x, size_t n, float value) {
    fill_kernel<<<grid_of(n), 256, 0, s>>>(x, n, value);
    return cudaGetLastError();
}

static __global__ void scale_kernel(float *x, const int32_t *pos, int m, int ld, int every, int shift, float by, float slope, int smooth) {
    const int at = slope != 0 ? pos[blockIdx.x] + shift : 0;
    if (slope != 0) by *= 1 + slope * logf(!smooth ? (float)(1 + at / every) : at > every ? (float)at / (float)every : 1.0f);
    for (int c = threadIdx.x; c < m; c += blockDim.x) x[(size_t)blockIdx.x * (size_t)ld + (size_t)c] *= by;
}
cudaError_t cuda_scale(cudaStream_t s, float *x, const int32_t *pos, int n, int m, int ld, int every, int shift, float by, float slope, int smooth) {
    scale_kernel<<<(unsigned)n, 256, 0, s>>>(x, pos, m, ld, every, shift, by, slope, smooth);
    return cudaGetLastError();
}

static __global__ void softcap_kernel(float *x, size_t n, float cap) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) x[i] = cap * tanhf(x[i] / cap);
}
cudaError_t cuda_softcap(cudaStream_t s, float *x, size_t n, float cap) {
    softcap_kernel<<<grid_of(n), 256, 0, s>>>(x, n, cap);
    return cudaGetLastError();
}

static __global__ void clip_kernel(float *x, size_t n, float limit) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] = x[i] > limit ? limit : x[i] < -limit ? -limit : x[i];
}
cudaError_t cuda_clip(cudaStream_t s, float *x, size_t n, float limit) {
    clip_kernel<<<grid_of(n), 256, 0, s>>>(x, n, limit);
    return cudaGetLastError();
}

/* Sort by expert: one block per expert reads all choices and stores its own in order. Hundreds of blocks read the same few
 * megabytes from the L2 cache; without atomics, the order inside a group is deterministic. */
static __global__ void sort_count_kernel(int32_t *offset, const int32_t *ids, size_t picks, int first) {
    __shared__ float shared[32];
    int e = (int)blockIdx.x + first, mine = 0;
    for (size_t i = threadIdx.x; i < picks; i += blockDim.x) mine += ids[i] == e;
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
static __global__ void sort_fill_kernel(const int32_t *offset, int32_t *token, float *weight, const int32_t *ids, const float *weights,
    size_t picks, int topk, int first) {
    __shared__ int warp_count[32], base;
    int e = (int)blockIdx.x + first, lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (!threadIdx.x) base = offset[blockIdx.x]; /* read after the first barrier */
    for (size_t i0 = 0; i0 < picks; i0 += blockDim.x) {
        size_t i = i0 + threadIdx.x;
        bool mine = i < picks && ids[i] == e;
        unsigned votes = __ballot_sync(0xffffffffu, mine);
        if (!lane) warp_count[warp] = __popc(votes);
        __syncthreads();
        int at = base + __popc(votes & ((1u << lane) - 1));
        for (int w = 0; w < warp; w++) at += warp_count[w];
        if (mine) {
            token[at] = (int32_t)(i / (size_t)topk);
            weight[at] = weights[i];
        }
        __syncthreads();
        if (!threadIdx.x)
            for (int w = 0; w < warps; w++) base += warp_count[w];
        __syncthreads();
    }
}
cudaError_t cuda_sort(cudaStream_t s, int32_t *offset, int32_t *token, float *weight, const int32_t *ids, const float *weights, int n,
                      int topk, int first, int last) {
    size_t picks = (size_t)n * (size_t)topk;
    sort_count_kernel<<<(unsigned)(last - first), 512, 0, s>>>(offset, ids, picks, first);
    sort_scan_kernel<<<1, 32, 0, s>>>(offset, last - first);
    sort_fill_kernel<<<(unsigned)(last - first), 512, 0, s>>>(offset, token, weight, ids, weights, picks, topk, first);
    return cudaGetLastError();
}

static __global__ void gather_kernel(float *out, const float *x, const int32_t *index, int dim, int ldx) {
    const float *src = x + (size_t)index[blockIdx.x] * (size_t)ldx;
    for (int d = threadIdx.x; d < dim; d += blockDim.x) out[(size_t)blockIdx.x * (size_t)dim + (size_t)d] = src[d];
}
cudaError_t cuda_gather(cudaStream_t s, float *out, const float *x, const int32_t *index, int n, int dim, int ldx) {
    gather_kernel<<<(unsigned)n, 256, 0, s>>>(out, x, index, dim, ldx);
    return cudaGetLastError();
}
static __global__ void scatter_add_kernel(float *y, const float *x, const int32_t *index, const float *weight, int dim, int ldy) {
    size_t i = blockIdx.x;
    float *dst = y + (index ? (size_t)index[i] : i) * (size_t)ldy, w = weight ? weight[i] : 1.0f;
    for (int d = threadIdx.x; d < dim; d += blockDim.x) dst[d] += w * x[i * (size_t)dim + (size_t)d];
}
cudaError_t cuda_scatter_add(cudaStream_t s, float *y, const float *x, const int32_t *index, const float *weight, int n, int dim, int ldy) {
    scatter_add_kernel<<<(unsigned)n, 256, 0, s>>>(y, x, index, weight, dim, ldy);
    return cudaGetLastError();
}

/* One block per (row, head); all threads read lse before the first writes it. */
static __global__ void merge_kernel(float *out, float *lse, const float *out2, const float *lse2, int heads, int dim, int ldo, int ldo2) {
    size_t i = blockIdx.x / (unsigned)heads, h = blockIdx.x % (unsigned)heads, at = i * (size_t)heads + h;
    float l = lse[at], l2 = lse2[at], top = fmaxf(l, l2);
    __syncthreads();
    if (l2 == -INFINITY) return;
    float w = expf(l - top), w2 = expf(l2 - top), sum = w + w2;
    float *o = out + i * (size_t)ldo + h * (size_t)dim;
    const float *o2 = out2 + i * (size_t)ldo2 + h * (size_t)dim;
    for (int d = threadIdx.x; d < dim; d += blockDim.x) o[d] = (w * o[d] + w2 * o2[d]) / sum;
    if (!threadIdx.x) lse[at] = top + logf(sum);
}
cudaError_t cuda_merge(cudaStream_t s, float *out, float *lse, const float *out2, const float *lse2, int n, int heads, int dim, int ldo,
                       int ldo2) {
    merge_kernel<<<(unsigned)n * (unsigned)heads, 64, 0, s>>>(out, lse, out2, lse2, heads, dim, ldo, ldo2);
    return cudaGetLastError();
}

static __global__ void bias_kernel(float *y, const float *bias, int m, int ldy) {
    for (int d = threadIdx.x; d < m; d += blockDim.x) y[(size_t)blockIdx.x * (size_t)ldy + (size_t)d] += bias[d];
}
cudaError_t cuda_bias(cudaStream_t s, float *y, const float *bias, int n, int m, int ldy) {
    bias_kernel<<<(unsigned)n, 256, 0, s>>>(y, bias, m, ldy);
    return cudaGetLastError();
}
static __global__ void glu_kernel(float *out, const float *gate_up, int inter, struct cuda_glu a) {
    const float *g = gate_up + (size_t)blockIdx.x * 2 * (size_t)inter, *u = g + inter;
    for (int d = threadIdx.x; d < inter; d += blockDim.x) out[(size_t)blockIdx.x * (size_t)inter + (size_t)d] = glu(g[d], u[d], a);
}
cudaError_t cuda_glu(cudaStream_t s, float *out, const float *gate_up, int n, int inter, struct cuda_glu a) {
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

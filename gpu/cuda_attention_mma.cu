/* Attention on tensor cores: BF16 products, float32 sums, online softmax. The rows of a block are (query, head) pairs of one KV
 * head, so that grouped queries share each key read: 128 queries of one head in the prefill of multi-head models, 32 of
 * the 128 heads of one query where MLA decodes in its latent space. A block iterates over the key tiles that any of its rows
 * sees, or, with few blocks, over a part of them.
 *
 * Keys and values have the cache's layout in shared memory, with rows padded by 16 bytes against bank conflicts; ldmatrix loads
 * fragments, transposed for values. Values are copied while scores are computed, the next keys while values are used. All
 * shapes fit the 99 KB of consumer cards.
 *
 * MLA's latents may be FP8 when exists are few queries. Their codes are exact in BF16, so the tensor cores multiply unscaled codes; a row's scale is a factor
 * of its score, and of its weight before that is rounded to BF16. The codes of the next tile are copied while this tile is used, and decoded once. */
#include "gpu/cuda_attention.cuh"
#include "gpu/cuda_mma.cuh"

/* Copies rows [k0, k0 + ROWS) of one head of a plane to shared memory; columns from `dim` and rows from `rows` on become zero. */
template <int ROWS, int COLS, int THREADS>
__device__ inline void load_tile(__nv_bfloat16 *dst, const struct kv_plane &p, int head, int dim, int k0, int rows) {
    const int pieces = COLS / 8; /* a row's pieces of 16 bytes */
    const int team = pieces % 32 == 0 ? 32 : pieces % 16 == 0 ? 16 : pieces % 8 == 0 ? 8 : 4; /* threads of a row, so that each computes few addresses of rows */
    for (int k = (int)threadIdx.x / team; k < ROWS; k += THREADS / team) {
        const bool exists = k0 + k < rows;
        const struct plane_row row = plane_row(p, (size_t)(exists ? k0 + k : 0)); /* the address must be valid even if nothing is read */
        const __nv_bfloat16 *src = (const __nv_bfloat16 *)row.data + (row.row * (size_t)p.heads + (size_t)head) * (size_t)p.dim;
#pragma unroll
        for (int piece = (int)threadIdx.x % team; piece < pieces; piece += team) {
            const bool is_read = exists && piece * 8 < dim;
            cp_async16(dst + k * (COLS + PAD) + piece * 8, src + (is_read ? piece * 8 : 0), is_read ? 16 : 0);
        }
    }
}

/* The same for a plane in E4M3, as codes, with the rows' scales. */
template <int ROWS, int COLS, int THREADS>
__device__ inline void load_codes(uint8_t *dst, float *scales, const struct kv_plane &p, int head, int dim, int k0, int rows) {
    const int pieces = COLS / 16, team = pieces % 8 == 0 ? 8 : 4; /* threads of a row */
    for (int k = (int)threadIdx.x / team; k < ROWS; k += THREADS / team) {
        const bool exists = k0 + k < rows;
        const struct plane_row row = plane_row(p, (size_t)(exists ? k0 + k : 0));
        const size_t at = row.row * (size_t)p.heads + (size_t)head;
        const uint8_t *src = (const uint8_t *)row.data + at * (size_t)p.dim;
        if ((int)threadIdx.x % team == 0) cp_async4(scales + k, row.scale + at, exists ? 4 : 0);
#pragma unroll
        for (int piece = (int)threadIdx.x % team; piece < pieces; piece += team) {
            const bool is_read = exists && piece * 16 < dim;
            cp_async16(dst + k * COLS + piece * 16, src + (is_read ? piece * 16 : 0), is_read ? 16 : 0);
        }
    }
}
/* Decodes ROWS rows of codes to the layout of load_tile(). */
template <int ROWS, int COLS, int THREADS> __device__ inline void decode_codes(__nv_bfloat16 *dst, const uint8_t *codes) {
#pragma unroll
    for (int i = (int)threadIdx.x; i < ROWS * (COLS / 16); i += THREADS) {
        const uint4 v = *(const uint4 *)(codes + i * 16);
        uint4 *to = (uint4 *)(dst + i / (COLS / 16) * (COLS + PAD) + i % (COLS / 16) * 16);
        uint32_t b[8];
        e4m3_four(b, v.x), e4m3_four(b + 2, v.y), e4m3_four(b + 4, v.z), e4m3_four(b + 6, v.w);
        to[0] = make_uint4(b[0], b[1], b[2], b[3]), to[1] = make_uint4(b[4], b[5], b[6], b[7]);
    }
}

/* KD, VD: dims of keys and values, multiples of 16. WR warps of 16 rows each; WD warps share the scores of their rows and hold
 * VD / WD columns of the result each. KT keys per tile. V_IN_K: values are the first VD columns of the keys. FP8: with V_IN_K, of latents in E4M3. */
template <int KD, int VD, int WR, int WD, int KT, bool V_IN_K, bool FP8> struct shape {
    /* kl, vl, pl: distance of rows of keys, values and weights. .._at: offsets in shared memory, in BF16 numbers */
    static const int rows = 16 * WR, threads = 32 * WR * WD, kl = KD + PAD, vl = V_IN_K ? KD + PAD : VD + PAD, pl = KT + PAD;
    static const int q_at = 0, k_at = rows * kl, v_at = V_IN_K ? k_at : k_at + KT * kl, p_at = k_at + KT * kl + (V_IN_K ? 0 : KT * vl);
    static const int top_at = p_at + (WD > 1 ? rows * pl : 0), codes_at = top_at * 2 + (WD > 1 ? rows * WD * 4 : 0); /* codes_at: in bytes */
    static const int scales_at = codes_at + (FP8 ? KT * KD : 0), bytes = scales_at + (FP8 ? 2 * KT * 4 : 0);
};

template <int KD, int VD, int WR, int WD, int KT, bool V_IN_K, bool FP8>
static __global__ void __launch_bounds__(32 * WR * WD, 1) attention_mma_kernel(struct cuda_attention a) {
    typedef struct shape<KD, VD, WR, WD, KT, V_IN_K, FP8> S;
    const int SLICE = KT / WD, NS = SLICE / 8, NO = VD / WD / 8, ROWS = S::rows;
    extern __shared__ __align__(16) __nv_bfloat16 smem[];
    __shared__ int first, last;
    __nv_bfloat16 *qs = smem + S::q_at, *ks = smem + S::k_at, *vs = smem + S::v_at, *ps = smem + S::p_at;
    float *tops = (float *)(smem + S::top_at); /* [WD][ROWS] */
    uint8_t *codes = (uint8_t *)smem + S::codes_at;             /* FP8: [KT][KD], of the next tile */
    float *scales = (float *)((uint8_t *)smem + S::scales_at);  /* FP8: [2][KT], of the tile in use and the next */
    int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32, wr = warp % WR, wd = warp / WR, g = lane / 4, t = lane % 4;
    int kv = (int)blockIdx.y, split = (int)blockIdx.z, group = a.o.n_heads / a.o.k.heads, rows = a.o.n * group;
    int r0 = (int)(gridDim.x - 1 - blockIdx.x) * ROWS; /* the rows that see most keys start first */
    bool idle = r0 + wr * 16 >= rows;
    const struct attention_inputs in = read_inputs(a);
    if (!tid) first = 0x7fffffff, last = 0;
    __syncthreads();
    if (tid < ROWS && r0 + tid < rows) { /* range of keys that any row sees */
        int l, e;
        visible_keys(a, in, query_pos(a, in, (r0 + tid) / group), &l, &e);
        if (e > l) atomicMin(&first, l), atomicMax(&last, e);
    }
    for (int e = tid; e < ROWS * (KD / 2); e += S::threads) {
        int r = e / (KD / 2), d = e % (KD / 2) * 2, row = r0 + r;
        float x = 0, y = 0;
        if (row < rows) {
            const float *q = a.o.q + (size_t)(row / group) * (size_t)a.o.ldq + (size_t)(kv * group + row % group) * (size_t)a.q_dim;
            x = d < a.q_dim ? q[d] : 0.0f;
            y = d + 1 < a.q_dim ? q[d + 1] : 0.0f;
        }
        *(uint32_t *)(qs + r * S::kl + d) = bf16x2_pack(x, y);
    }
    int lo[2], hi[2]; /* for the two rows whose sums this thread holds */
    float c[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = r0 + wr * 16 + g + r * 8;
        lo[r] = hi[r] = 0, c[r] = a.o.scale * log2_e;
        if (row >= rows) continue;
        const int pos = query_pos(a, in, row / group);
        visible_keys(a, in, pos, &lo[r], &hi[r]);
        c[r] *= score_temperature(a, pos);
    }
    float o[NO][4], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < NO; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[j][e] = 0;
    /* Start of this lane's row of each 8 x 8 matrix that ldmatrix loads. */
    const __nv_bfloat16 *q_row = qs + (wr * 16 + lane % 16) * S::kl + lane / 16 * 8;
    const __nv_bfloat16 *k_row = ks + (wd * SLICE + lane / 16 * 8 + lane % 8) * S::kl + lane / 8 % 2 * 8;
    const __nv_bfloat16 *v_row = vs + (lane % 16) * S::vl + wd * (VD / WD) + lane / 16 * 8;
    const __nv_bfloat16 *p_row = ps + (wr * 16 + lane % 16) * S::pl + lane / 16 * 8;
    __syncthreads();
    int begin = last > 0 ? first / KT * KT : 0, end = last;
    if (a.chunked) {
        begin = max(begin, chunk_begin(split));
        end = min(end, chunk_begin(split + 1));
    } else {
        int share = ((end - begin + KT - 1) / KT + a.splits - 1) / a.splits * KT;
        begin += share * split;
        end = begin + share < end ? begin + share : end;
    }
    if (split && begin >= end) { /* no key: cuda_attention_combine skips the part */
        if (tid < ROWS && r0 + tid < rows) {
            const int row = r0 + tid;
            a.part_lse[((size_t)split * (size_t)a.o.n + (size_t)(row / group)) * (size_t)a.o.n_heads + (size_t)(kv * group + row % group)] = -INFINITY;
        }
        return;
    }
    if (begin < end && FP8) load_codes<KT, KD, S::threads>(codes, scales, in.k, kv, a.o.k.dim, begin, in.n_keys);
    else if (begin < end) load_tile<KT, KD, S::threads>(ks, in.k, kv, a.o.k.dim, begin, in.n_keys);
    cp_commit();
    for (int k0 = begin; k0 < end; k0 += KT) {
        const float *row_scale = scales + (k0 - begin) / KT % 2 * KT; /* scales of the keys in this tile */
        cp_wait<0>();
        __syncthreads(); /* the keys have arrived, and all threads are done with the previous values */
        if (FP8) {
            decode_codes<KT, KD, S::threads>(ks, codes);
            __syncthreads(); /* the keys are decoded, and the codes' memory is free */
            if (k0 + KT < end) load_codes<KT, KD, S::threads>(codes, scales + ((k0 - begin) / KT + 1) % 2 * KT, in.k, kv, a.o.k.dim, k0 + KT, in.n_keys);
            cp_commit();
        }
        if (!V_IN_K) {
            load_tile<KT, VD, S::threads>(vs, in.v, kv, a.o.v_dim, k0, in.n_keys);
            cp_commit();
        }
        float s[NS][4], new_top[2] = {top[0], top[1]};
        if (!idle) {
#pragma unroll
            for (int j = 0; j < NS; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[j][e] = 0;
#pragma unroll 4
            for (int d = 0; d < KD; d += 16) {
                uint32_t q[4];
                ldmatrix_x4(q, q_row + d);
#pragma unroll
                for (int j = 0; j < NS; j += 2) {
                    uint32_t k[4];
                    ldmatrix_x4(k, k_row + j * 8 * S::kl + d);
                    mma_bf16(s[j], q, k[0], k[1]);
                    mma_bf16(s[j + 1], q, k[2], k[3]);
                }
            }
            int k1 = k0 + wd * SLICE;
            bool all = k1 >= lo[0] && k1 >= lo[1] && k1 + SLICE <= hi[0] && k1 + SLICE <= hi[1];
#pragma unroll
            for (int j = 0; j < NS; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int k = k1 + j * 8 + 2 * t + e % 2, r = e / 2;
                    if (FP8) s[j][e] *= row_scale[k - k0];
                    if (a.o.softcap > 0) s[j][e] = a.o.softcap * tanhf(s[j][e] * a.o.scale / a.o.softcap) / a.o.scale;
                    s[j][e] = all || (k >= lo[r] && k < hi[r]) ? s[j][e] * c[r] : -INFINITY;
                    new_top[r] = fmaxf(new_top[r], s[j][e]);
                }
#pragma unroll
            for (int r = 0; r < 2; r++) { /* across the four lanes of a row */
                new_top[r] = fmaxf(new_top[r], __shfl_xor_sync(0xffffffffu, new_top[r], 1));
                new_top[r] = fmaxf(new_top[r], __shfl_xor_sync(0xffffffffu, new_top[r], 2));
                if (WD > 1 && !t) tops[wd * ROWS + wr * 16 + g + r * 8] = new_top[r];
            }
        }
        if (WD > 1) __syncthreads();
        if (!idle) {
            float rescale[2], base[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (WD > 1)
                    for (int w = 0; w < WD; w++) new_top[r] = fmaxf(new_top[r], tops[w * ROWS + wr * 16 + g + r * 8]);
                base[r] = new_top[r] == -INFINITY ? 0.0f : new_top[r];
                rescale[r] = exp2f(top[r] - base[r]);
                sum[r] *= rescale[r];
                top[r] = new_top[r];
            }
#pragma unroll
            for (int j = 0; j < NS; j++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    s[j][e] = exp2f(s[j][e] - base[e / 2]);
                    sum[e / 2] += s[j][e];
                    if (FP8) s[j][e] *= row_scale[wd * SLICE + j * 8 + 2 * t + e % 2]; /* now the weight of the value's codes */
                }
                if (WD > 1)
#pragma unroll
                    for (int r = 0; r < 2; r++)
                        *(uint32_t *)(ps + (wr * 16 + g + r * 8) * S::pl + wd * SLICE + j * 8 + 2 * t) = bf16x2_pack(s[j][2 * r], s[j][2 * r + 1]);
            }
#pragma unroll
            for (int j = 0; j < NO; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) o[j][e] *= rescale[e / 2];
        }
        if (!V_IN_K) cp_wait<0>();
        if (!V_IN_K || WD > 1) __syncthreads(); /* values and scores have arrived; all threads are done with the keys */
        if (!V_IN_K && k0 + KT < end) load_tile<KT, KD, S::threads>(ks, in.k, kv, a.o.k.dim, k0 + KT, in.n_keys);
        if (!V_IN_K) cp_commit();
        if (!idle) {
#pragma unroll
            for (int k = 0; k < KT / 16; k++) { /* the sums of two key tiles are the left operand of the next product */
                uint32_t p[4];
                if (WD > 1) ldmatrix_x4(p, p_row + k * 16);
                else
#pragma unroll
                    for (int e = 0; e < 4; e++) p[e] = bf16x2_pack(s[(2 * k + e / 2) % NS][e % 2 * 2], s[(2 * k + e / 2) % NS][e % 2 * 2 + 1]);
#pragma unroll
                for (int j = 0; j < NO; j += 2) {
                    uint32_t v[4];
                    ldmatrix_x4_trans(v, v_row + k * 16 * S::vl + j * 8);
                    mma_bf16(o[j], p, v[0], v[1]);
                    mma_bf16(o[j + 1], p, v[2], v[3]);
                }
            }
        }
        if (V_IN_K && !FP8) {
            __syncthreads(); /* all threads are done with the values, which share memory with the keys */
            if (k0 + KT < end) load_tile<KT, KD, S::threads>(ks, in.k, kv, a.o.k.dim, k0 + KT, in.n_keys);
            cp_commit();
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
        if (!idle) {
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        }
    if (WD > 1) { /* the loop's last barrier came after all reads of tops */
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (!t) tops[wd * ROWS + wr * 16 + g + r * 8] = sum[r];
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] = 0;
            for (int w = 0; w < WD; w++) sum[r] += tops[w * ROWS + wr * 16 + g + r * 8];
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = r0 + wr * 16 + g + r * 8, i = row / group, h = kv * group + row % group;
        if (row >= rows) continue;
        float f = 1;
        if (a.o.sinks && !split) { /* one more logit, without a value */
            float sink = a.o.sinks[h] * log2_e, now = fmaxf(top[r], sink);
            f = exp2f(top[r] - now);
            sum[r] = sum[r] * f + exp2f(sink - now);
            top[r] = now;
        }
        f = sum[r] != 0 ? f / sum[r] : 0.0f;
        float *out = a.splits > 1 ? a.part + (((size_t)split * (size_t)a.o.n + (size_t)i) * (size_t)a.o.n_heads + (size_t)h) * (size_t)a.o.v_dim
                                  : a.o.out + (size_t)i * (size_t)a.o.ldo + (size_t)h * (size_t)a.o.v_dim;
        float *lse = a.splits > 1 ? a.part_lse + ((size_t)split * (size_t)a.o.n + (size_t)i) * (size_t)a.o.n_heads + (size_t)h
                                  : a.o.lse ? a.o.lse + (size_t)i * (size_t)a.lse_ld + (size_t)h : NULL;
#pragma unroll
        for (int j = 0; j < NO; j++) {
            int d = wd * (VD / WD) + j * 8 + 2 * t;
            if (d < a.o.v_dim) out[d] = o[j][2 * r] * f;
            if (d + 1 < a.o.v_dim) out[d + 1] = o[j][2 * r + 1] * f;
        }
        if (lse && !t && !wd) *lse = sum[r] != 0 ? (top[r] + log2f(sum[r])) * ln_2 : -INFINITY;
    }
}

template <int KD, int VD, int WR, int WD, int KT, bool V_IN_K, bool FP8 = false> static cudaError_t launch(cudaStream_t s, const struct cuda_attention *a) {
    typedef struct shape<KD, VD, WR, WD, KT, V_IN_K, FP8> S;
    cudaError_t r = cudaFuncSetAttribute(attention_mma_kernel<KD, VD, WR, WD, KT, V_IN_K, FP8>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::bytes);
    if (r != cudaSuccess) return r;
    dim3 grid(blocks_of((size_t)a->o.n * (size_t)(a->o.n_heads / a->o.k.heads), S::rows), (unsigned)a->o.k.heads, (unsigned)a->splits);
    attention_mma_kernel<KD, VD, WR, WD, KT, V_IN_K, FP8><<<grid, S::threads, (size_t)S::bytes, s>>>(*a);
    return a->splits > 1 ? cuda_attention_combine(s, a) : cudaGetLastError();
}

/* Shapes in rising order; the first that holds a model's dims is used. */
static const struct {
    int k, v, rows, v_in_k, fp8;
    cudaError_t (*launch)(cudaStream_t, const struct cuda_attention *);
} shapes[] = {
    {64, 64, 128, 0, 0, launch<64, 64, 8, 1, 64, false>},     {96, 96, 128, 0, 0, launch<96, 96, 8, 1, 64, false>},
    {128, 128, 128, 0, 0, launch<128, 128, 8, 1, 64, false>}, {192, 128, 128, 0, 0, launch<192, 128, 8, 1, 64, false>},
    {256, 256, 64, 0, 0, launch<256, 256, 4, 1, 32, false>},  {576, 512, 32, 1, 0, launch<576, 512, 2, 2, 32, true>},
    {576, 512, 32, 1, 1, launch<576, 512, 2, 2, 32, true, true>},
};
static int shape_of(const struct cuda_attention *a) {
    const int v_in_k = kv_planes_equal(&a->o.k, &a->o.v) && a->o.k.dim > 256, fp8 = v_in_k && a->o.k.dtype == DT_E4M3;
    for (int i = 0; i < (int)(sizeof shapes / sizeof shapes[0]); i++)
        if (a->q_dim <= shapes[i].k && a->o.v_dim <= shapes[i].v && shapes[i].v_in_k == v_in_k && shapes[i].fp8 == fp8) return i;
    return -1;
}
int cuda_attention_mma_rows(const struct cuda_attention *a) {
    int i = shape_of(a);
    return i < 0 || a->o.v.heads != a->o.k.heads || a->o.k.heads > 65535 ? 0 : shapes[i].rows;
}
/* Whether rows of a plane begin at multiples of 16 bytes. */
static int is_aligned(const struct kv_plane *p, int dtype) {
    return p->dtype == dtype && p->dim % (dtype == DT_BF16 ? 8 : 16) == 0 && (p->blocks ? p->at : (size_t)p->data) % 16 == 0;
}
int cuda_attention_mma_direct(const struct cuda_attention *a) {
    const int i = shape_of(a), dtype = i >= 0 && shapes[i].fp8 && a->chunked ? DT_E4M3 : DT_BF16; /* many queries would decode the codes too often */
    return is_aligned(&a->o.k, dtype) && is_aligned(&a->o.v, dtype);
}
cudaError_t cuda_attention_mma(cudaStream_t s, const struct cuda_attention *a) { return shapes[shape_of(a)].launch(s, a); }

static __global__ void plane_to_bf16_kernel(__nv_bfloat16 *out, struct kv_plane p, int head0, int heads, int dim) {
    size_t row = blockIdx.x;
    for (int e = (int)threadIdx.x; e < heads * dim; e += (int)blockDim.x) {
        int h = e / dim, d = e % dim;
        out[row * (size_t)(heads * dim) + (size_t)e] = __float2bfloat16_rn(d < p.dim ? plane_at(p, row, head0 + h, d) : 0.0f);
    }
}
cudaError_t cuda_plane_to_bf16(cudaStream_t s, void *out, struct kv_plane p, int head0, int heads, int rows, int dim) {
    plane_to_bf16_kernel<<<(unsigned)rows, 256, 0, s>>>((__nv_bfloat16 *)out, p, head0, heads, dim);
    return cudaGetLastError();
}

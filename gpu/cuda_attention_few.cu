/* Attention of few queries on tensor cores, with keys and values in BF16 or FP8 of up to 256 columns. A block has 16 (query, head) pairs of one KV
 * head and one chunk of the keys. Its warps take 16 keys of a tile each, so that one query keeps all of them busy; they meet only at the
 * end, where their results are combined by the largest score, as those of chunks are (combine_pair). The key's position alone decides
 * which chunk and which warp has it: a query's result does not depend on other queries of the call. FP8 is decoded and rounded to BF16: the codes of the next tile are
 * copied while this one is used, where shared memory has room for two tiles and rows are aligned to 16 bytes; else on the way to shared memory. */
#include "gpu/cuda_attention.cuh"
#include "gpu/cuda_mma.cuh"

enum { ROWS = 16, WARPS = 4, THREADS = 32 * WARPS, KEYS = 16 * WARPS };

/* Layout of shared memory, in BF16 numbers unless a name says bytes: queries, then one tile of keys and values, or two if they fit in 90 KB; afterwards the warps'
 * results. kl, vl: distance of rows. */
template <int KD, int VD> struct few_shape {
    /* FP8: codes in place of the second tile's memory, then the rows' scales, in bytes from there on */
    static const int codes_v = KEYS * KD, codes_scale = KEYS * (KD + VD);
    static const int kl = KD + PAD, vl = VD + PAD, tile_at = ROWS * kl, tile = KEYS * (kl + vl), tiles = 2 * (tile_at + 2 * tile) <= 90 << 10 ? 2 : 1;
    static const int tile_bytes = 2 * (tile_at + tiles * tile), result_bytes = 4 * WARPS * ROWS * (VD + 2);
    static const int bytes = tile_bytes > result_bytes ? tile_bytes : result_bytes;
};

/* Eight columns of an FP8 row as BF16; `left` of them exist. */
__device__ static inline void decode_columns(uint32_t out[4], const struct kv_plane &p, const struct plane_row &row, int head, int d, int left) {
    const size_t at = (row.row * (size_t)p.heads + (size_t)head) * (size_t)p.dim + (size_t)d;
    const uint8_t *codes = (const uint8_t *)row.data + at;
    const float scale = left > 0 ? row.scale[row.row * (size_t)p.heads + (size_t)head] : 0.0f;
    float v[8];
    if (left >= 8 && !((size_t)codes & 7)) {
        const uint2 w = *(const uint2 *)codes;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t pair = e4m3_halves((i < 2 ? w.x : w.y) >> i % 2 * 16);
            v[2 * i] = half_at(&pair, 0) * scale, v[2 * i + 1] = half_at(&pair, 1) * scale;
        }
    } else
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = i < left ? e4m3_decode(codes[i]) * scale : 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) out[i] = bf16x2_pack(v[2 * i], v[2 * i + 1]);
}
/* Loads rows [k0, k0 + KEYS) of one head of a plane to shared memory; columns from `dim` and rows from `rows` on are zero. */
template <int COLS> __device__ static inline void load_tile(__nv_bfloat16 *dst, const struct kv_plane &p, int head, int dim, int k0, int rows) {
    const int pieces = COLS / 8; /* a row's pieces of 16 bytes */
    const int team = pieces % 16 == 0 ? 16 : pieces % 8 == 0 ? 8 : 4; /* threads of a row, so that each computes few addresses of rows */
    for (int k = (int)threadIdx.x / team; k < KEYS; k += THREADS / team) {
        const bool exists = k0 + k < rows;
        const struct plane_row row = plane_row(p, (size_t)(exists ? k0 + k : 0)); /* the address must be valid even if nothing is read */
        const __nv_bfloat16 *src = (const __nv_bfloat16 *)row.data + (row.row * (size_t)p.heads + (size_t)head) * (size_t)p.dim;
#pragma unroll
        for (int piece = (int)threadIdx.x % team; piece < pieces; piece += team) {
            __nv_bfloat16 *to = dst + k * (COLS + PAD) + piece * 8;
            const int left = exists ? dim - piece * 8 : 0;
            if (p.dtype == DT_BF16) cp_async16(to, src + (left > 0 ? piece * 8 : 0), left > 0 ? 16 : 0);
            else {
                uint32_t v[4];
                decode_columns(v, p, row, head, piece * 8, left);
                *(uint4 *)to = make_uint4(v[0], v[1], v[2], v[3]);
            }
        }
    }
}

/* The codes and scales of rows [k0, k0 + KEYS) of one head of an FP8 plane, asynchronously; those that load_tile() leaves out are zero. */
template <int COLS> __device__ static inline void load_codes(uint8_t *codes, float *scales, const struct kv_plane &p, int head, int dim, int k0, int rows) {
    enum { PIECES = COLS / 16 };
    for (int i = (int)threadIdx.x; i < KEYS * PIECES; i += THREADS) {
        const int k = i / PIECES, piece = i % PIECES;
        const bool exists = k0 + k < rows, some = exists && piece * 16 < dim;
        const struct plane_row row = plane_row(p, (size_t)(exists ? k0 + k : 0));
        const size_t at = row.row * (size_t)p.heads + (size_t)head;
        cp_async16(codes + i * 16, (const uint8_t *)row.data + at * (size_t)p.dim + (some ? piece * 16 : 0), some ? 16 : 0);
        if (!piece) cp_async4(scales + k, row.scale + at, exists ? 4 : 0);
    }
}
/* Decodes them to the layout of load_tile(). */
template <int COLS> __device__ static inline void decode_codes(__nv_bfloat16 *dst, const uint8_t *codes, const float *scales) {
    enum { PIECES = COLS / 16 };
    for (int i = (int)threadIdx.x; i < KEYS * PIECES; i += THREADS) {
        const uint4 v = *(const uint4 *)(codes + i * 16);
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
        const float scale = scales[i / PIECES];
        uint32_t out[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const uint32_t pair = k % 2 ? e4m3_high_halves(w[k / 2]) : e4m3_halves(w[k / 2]);
            out[k] = bf16x2_pack(half_at(&pair, 0) * scale, half_at(&pair, 1) * scale);
        }
        uint4 *to = (uint4 *)(dst + i / PIECES * (COLS + PAD) + i % PIECES * 16);
        to[0] = make_uint4(out[0], out[1], out[2], out[3]), to[1] = make_uint4(out[4], out[5], out[6], out[7]);
    }
}
/* Whether the codes of a plane's rows can be copied 16 bytes at a time. */
__device__ static inline bool copies_codes(const struct kv_plane &p) {
    return p.dtype == DT_E4M3 && p.dim % 16 == 0 && ((p.blocks ? p.at : (size_t)p.data) & 15) == 0;
}
/* Both planes' codes of a tile. */
template <int KD, int VD>
__device__ static inline void load_both(uint8_t *codes, const struct cuda_attention &a, const struct attention_inputs &in, int kv, int k0) {
    typedef struct few_shape<KD, VD> S;
    float *scales = (float *)(codes + S::codes_scale);
    load_codes<KD>(codes, scales, in.k, kv, a.o.k.dim, k0, in.n_keys), load_codes<VD>(codes + S::codes_v, scales + KEYS, in.v, kv, a.o.v_dim, k0, in.n_keys);
}

/* Computes a block's rows of its chunk of keys. rows, query, head: in shared memory. */
template <int KD, int VD> __device__ static inline void attend_chunk(const struct cuda_attention &a, __nv_bfloat16 *smem, int &first, int &last, int *query, int *head) {
    typedef struct few_shape<KD, VD> S;
    const int NO = VD / 8;
    const int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
    const int kv = (int)blockIdx.y, split = (int)blockIdx.z, group = a.o.n_heads / a.o.k.heads, r0 = (int)blockIdx.x * ROWS;
    const int rows = min(a.o.n * group - r0, (int)ROWS); /* of this block */
    const struct attention_inputs in = read_inputs(a);
    if (!tid) first = 0x7fffffff, last = 0;
    __syncthreads();
    if (tid < rows) {
        int l, e;
        query[tid] = (r0 + tid) / group, head[tid] = kv * group + (r0 + tid) % group;
        visible_keys(a, in, query_pos(a, in, query[tid]), &l, &e);
        if (e > l) atomicMin(&first, l), atomicMax(&last, e);
    }
    __syncthreads();
    const int begin = max(last > 0 ? first / KEYS * KEYS : 0, chunk_begin(split)), end = min(last, chunk_begin(split + 1));
    if (split && begin >= end) { /* no key: cuda_attention_combine skips the part */
        if (tid < rows) a.part_lse[((size_t)split * (size_t)a.o.n + (size_t)query[tid]) * (size_t)a.o.n_heads + (size_t)head[tid]] = -INFINITY;
        return;
    }
    __nv_bfloat16 *qs = smem, *tiles = smem + S::tile_at;
    const bool by_codes = S::tiles > 1 && copies_codes(in.k) && copies_codes(in.v);
    uint8_t *codes = (uint8_t *)(tiles + S::tile);
    if (begin < end && by_codes) load_both<KD, VD>(codes, a, in, kv, begin);
    else if (begin < end) load_tile<KD>(tiles, in.k, kv, a.o.k.dim, begin, in.n_keys), load_tile<VD>(tiles + KEYS * S::kl, in.v, kv, a.o.v_dim, begin, in.n_keys);
    cp_commit();
    for (int e = tid; e < ROWS * (KD / 2); e += THREADS) {
        const int r = e / (KD / 2), d = e % (KD / 2) * 2, row = r < rows ? r : 0;
        const float *q = a.o.q + (size_t)query[row] * (size_t)a.o.ldq + (size_t)head[row] * (size_t)a.q_dim;
        *(uint32_t *)(qs + r * S::kl + d) = bf16x2_pack(r < rows && d < a.q_dim ? q[d] : 0.0f, r < rows && d + 1 < a.q_dim ? q[d + 1] : 0.0f);
    }
    int lo[2], hi[2]; /* for the two rows whose sums this thread holds */
    float c[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        lo[r] = hi[r] = 0, c[r] = a.o.scale * log2_e;
        if (g + r * 8 >= rows) continue;
        const int pos = query_pos(a, in, query[g + r * 8]);
        visible_keys(a, in, pos, &lo[r], &hi[r]);
        c[r] *= score_temperature(a, pos);
    }
    /* Online softmax in base 2: largest score and sum of exponentials of the warp's keys so far; o: their weighted values. */
    float o[NO][4], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < NO; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[j][e] = 0;
    /* Start of this lane's row of each 8 x 8 matrix that ldmatrix loads. */
    const __nv_bfloat16 *q_row = qs + lane % 16 * S::kl + lane / 16 * 8;
    const int k_at = (warp * 16 + lane / 16 * 8 + lane % 8) * S::kl + lane / 8 % 2 * 8;
    const int v_at = KEYS * S::kl + (warp * 16 + lane % 16) * S::vl + lane / 16 * 8;
    for (int k0 = begin, i = 0; k0 < end; k0 += KEYS, i++) {
        /* The next tile is loaded while this one is used, if there is room for two. */
        const __nv_bfloat16 *tile = tiles + (S::tiles > 1 && !by_codes ? i % 2 * S::tile : 0);
        if (by_codes) {
            const float *scales = (const float *)(codes + S::codes_scale);
            cp_wait<0>();
            __syncthreads(); /* the codes have arrived */
            decode_codes<KD>(tiles, codes, scales), decode_codes<VD>(tiles + KEYS * S::kl, codes + S::codes_v, scales + KEYS);
            __syncthreads(); /* they are decoded, and their memory is free */
            if (k0 + KEYS < end) load_both<KD, VD>(codes, a, in, kv, k0 + KEYS);
            cp_commit();
        } else if (S::tiles > 1) {
            __nv_bfloat16 *next = tiles + (i + 1) % 2 * S::tile;
            if (k0 + KEYS < end)
                load_tile<KD>(next, in.k, kv, a.o.k.dim, k0 + KEYS, in.n_keys), load_tile<VD>(next + KEYS * S::kl, in.v, kv, a.o.v_dim, k0 + KEYS, in.n_keys);
            cp_commit();
            cp_wait<1>();
        } else cp_wait<0>();
        if (!by_codes) __syncthreads(); /* the tile has arrived */
        /* Scores of this warp's 16 keys. */
        float s[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}}, new_top[2] = {top[0], top[1]}, rescale[2], base[2];
#pragma unroll 4
        for (int d = 0; d < KD; d += 16) {
            uint32_t q[4], k[4];
            ldmatrix_x4(q, q_row + d);
            ldmatrix_x4(k, tile + k_at + d);
            mma_bf16(s[0], q, k[0], k[1]);
            mma_bf16(s[1], q, k[2], k[3]);
        }
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int k = k0 + warp * 16 + j * 8 + 2 * t + e % 2, r = e / 2;
                if (a.o.softcap > 0) s[j][e] = a.o.softcap * tanhf(s[j][e] * a.o.scale / a.o.softcap) / a.o.scale;
                s[j][e] = k >= lo[r] && k < hi[r] ? s[j][e] * c[r] : -INFINITY;
                new_top[r] = fmaxf(new_top[r], s[j][e]);
            }
#pragma unroll
        for (int r = 0; r < 2; r++) { /* a row is in four lanes */
            new_top[r] = fmaxf(new_top[r], __shfl_xor_sync(0xffffffffu, new_top[r], 1));
            new_top[r] = fmaxf(new_top[r], __shfl_xor_sync(0xffffffffu, new_top[r], 2));
            base[r] = new_top[r] == -INFINITY ? 0.0f : new_top[r];
            rescale[r] = exp2f(top[r] - base[r]);
            sum[r] *= rescale[r];
            top[r] = new_top[r];
        }
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[j][e] = exp2f(s[j][e] - base[e / 2]);
                sum[e / 2] += s[j][e];
            }
#pragma unroll
        for (int j = 0; j < NO; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[j][e] *= rescale[e / 2];
        /* The exponentials, as the left operand of the product with the values. */
        const uint32_t p[4] = {bf16x2_pack(s[0][0], s[0][1]), bf16x2_pack(s[0][2], s[0][3]), bf16x2_pack(s[1][0], s[1][1]), bf16x2_pack(s[1][2], s[1][3])};
#pragma unroll
        for (int j = 0; j < NO; j += 2) {
            uint32_t v[4];
            ldmatrix_x4_trans(v, tile + v_at + j * 8);
            mma_bf16(o[j], p, v[0], v[1]);
            mma_bf16(o[j + 1], p, v[2], v[3]);
        }
        __syncthreads(); /* all warps are done with the tile */
        if (S::tiles == 1) {
            if (k0 + KEYS < end)
                load_tile<KD>(tiles, in.k, kv, a.o.k.dim, k0 + KEYS, in.n_keys), load_tile<VD>(tiles + KEYS * S::kl, in.v, kv, a.o.v_dim, k0 + KEYS, in.n_keys);
            cp_commit();
        }
    }
    cp_wait<0>();
    __syncthreads(); /* the tiles' memory now holds the warps' results; without a tile, queries were still being written to it */
    /* Combines the warps' results. */
    float *results = (float *)smem, *tops = results + WARPS * ROWS * VD, *sums = tops + WARPS * ROWS; /* [WARPS, ROWS, VD], [WARPS, ROWS] twice */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        if (!t) tops[warp * ROWS + g + r * 8] = top[r], sums[warp * ROWS + g + r * 8] = sum[r];
#pragma unroll
        for (int j = 0; j < NO; j++) {
            float *to = results + (size_t)(warp * ROWS + g + r * 8) * VD + j * 8 + 2 * t;
            to[0] = o[j][2 * r], to[1] = o[j][2 * r + 1];
        }
    }
    __syncthreads();
    if (tid < rows) { /* sums becomes the share of each warp's result */
        const int i = query[tid], h = head[tid];
        float largest = -INFINITY, all = 0;
        for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, tops[w * ROWS + tid]);
        const float sink = a.o.sinks && !split ? a.o.sinks[h] * log2_e : -INFINITY; /* one more logit, without a value */
        largest = fmaxf(largest, sink);
        const float base = largest == -INFINITY ? 0.0f : largest;
        for (int w = 0; w < WARPS; w++) {
            tops[w * ROWS + tid] = exp2f(tops[w * ROWS + tid] - base);
            all += sums[w * ROWS + tid] * tops[w * ROWS + tid];
        }
        all += exp2f(sink - base);
        for (int w = 0; w < WARPS; w++) sums[w * ROWS + tid] = all != 0 ? tops[w * ROWS + tid] / all : 0.0f;
        float *lse = a.splits > 1 ? a.part_lse + ((size_t)split * (size_t)a.o.n + (size_t)i) * (size_t)a.o.n_heads + (size_t)h
                                  : a.o.lse ? a.o.lse + (size_t)i * (size_t)a.lse_ld + (size_t)h : NULL;
        if (lse) *lse = all != 0 ? (base + log2f(all)) * ln_2 : -INFINITY;
    }
    __syncthreads();
    for (int e = tid; e < rows * VD; e += THREADS) {
        const int r = e / VD, d = e % VD, i = query[r], h = head[r];
        if (d >= a.o.v_dim) continue;
        float v = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) v += results[(w * ROWS + r) * VD + d] * sums[w * ROWS + r];
        float *out = a.splits > 1 ? a.part + (((size_t)split * (size_t)a.o.n + (size_t)i) * (size_t)a.o.n_heads + (size_t)h) * (size_t)a.o.v_dim
                                  : a.o.out + (size_t)i * (size_t)a.o.ldo + (size_t)h * (size_t)a.o.v_dim;
        out[d] = v;
    }
}

template <int KD, int VD> static __global__ void __launch_bounds__(THREADS, 1) attention_few_kernel(const __grid_constant__ struct cuda_attention a) {
    extern __shared__ __align__(16) __nv_bfloat16 smem[];
    __shared__ int first, last, query[ROWS], head[ROWS]; /* keys that some row sees: [first, last); of each row */
    attend_chunk<KD, VD>(a, smem, first, last, query, head);
    if (!a.tickets || !last_block(a.tickets + blockIdx.y * gridDim.x + blockIdx.x, (int)gridDim.z, &first)) return;
    const int warp = (int)threadIdx.x / 32, rows = min(a.o.n * (a.o.n_heads / a.o.k.heads) - (int)blockIdx.x * ROWS, (int)ROWS);
    for (int r = warp; r < rows; r += WARPS) {
        combine_pair<false>(a, (size_t)query[r] * (size_t)a.o.n_heads + (size_t)head[r], (float *)smem + warp * a.splits, (int)threadIdx.x % 32, 32);
        __syncwarp();
    }
}

template <int KD, int VD> static cudaError_t launch(cudaStream_t s, const struct cuda_attention *a) {
    typedef struct few_shape<KD, VD> S;
    cudaError_t r = cudaFuncSetAttribute(attention_few_kernel<KD, VD>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::bytes);
    if (r != cudaSuccess) return r;
    dim3 grid(blocks_of((size_t)a->o.n * (size_t)(a->o.n_heads / a->o.k.heads), ROWS), (unsigned)a->o.k.heads, (unsigned)a->splits);
    struct cuda_attention b = *a;
    if (a->splits < 2 || grid.x * grid.y > CUDA_TICKETS || WARPS * (size_t)a->splits * sizeof(float) > (size_t)S::bytes) b.tickets = NULL;
    attention_few_kernel<KD, VD><<<grid, THREADS, (size_t)S::bytes, s>>>(b);
    return a->splits > 1 && !b.tickets ? cuda_attention_combine(s, a) : cudaGetLastError();
}

/* Shapes in rising order; the first that holds a model's dims is used. */
static const struct {
    int k, v;
    cudaError_t (*launch)(cudaStream_t, const struct cuda_attention *);
} shapes[] = {{64, 64, launch<64, 64>}, {96, 96, launch<96, 96>}, {128, 128, launch<128, 128>}, {192, 128, launch<192, 128>}, {256, 256, launch<256, 256>}};
static int shape_of(const struct cuda_attention *a) {
    for (int i = 0; i < (int)(sizeof shapes / sizeof shapes[0]); i++)
        if (a->q_dim <= shapes[i].k && a->o.v_dim <= shapes[i].v) return i;
    return -1;
}
static int is_readable(const struct kv_plane *p) {
    return p->dtype == DT_E4M3 || (p->dtype == DT_BF16 && p->dim % 8 == 0 && (p->blocks ? p->at : (size_t)p->data) % 16 == 0);
}
int cuda_attention_few_ready(const struct cuda_attention *a) {
    return a->chunked && !a->o.chosen && !a->o.bias && shape_of(a) >= 0 && a->o.v.heads == a->o.k.heads && a->o.k.heads <= 65535 && is_readable(&a->o.k) && is_readable(&a->o.v);
}
cudaError_t cuda_attention_few(cudaStream_t s, const struct cuda_attention *a) { return shapes[shape_of(a)].launch(s, a); }

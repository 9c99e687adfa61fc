/* Matrix products without a library: gemv for few tokens of the formats that cuda_skinny.cu does not support, including GGUF's;
 * gemm_f32 for any format; gemm_mma on tensor cores for the rest. gemm_mma keeps the weights exact: FP8, FP4, INT8 and BF16
 * codes are exact in BF16, so the tensor cores multiply unscaled codes, and the scale is applied once per block of K to the
 * float32 sum. Activations are the sum of two BF16 (16 bits of mantissa), so results agree with float32 to about 1e-5. */
#include "gpu/cuda_chain.cuh"
#include "gpu/cuda_linear.cuh"
#include "gpu/cuda_mma.cuh"

int cuda_mat_is_supported(int dtype) {
    return dtype == DT_F32 || dtype == DT_BF16 || dtype == DT_F16 || dtype == DT_E4M3 || dtype == DT_E2M1 || dtype == DT_I8 || dtype == DT_I4 || dtype == DT_NF4 ||
           (dtype >= DT_Q8_0 && dtype < DT_COUNT);
}

/* Whether columns c .. c + 7 exist, are codes of 4 or 8 bits, and share a scale. */
__device__ static inline bool share_scale(const struct mat &w, int c) {
    return (w.dtype == DT_I4 || w.dtype == DT_E2M1 || w.dtype == DT_NF4 || w.dtype == DT_I8) && c + 8 <= w.cols && (!w.scale || w.block_cols % 8 == 0 || w.block_cols >= w.cols);
}
/* Eight weights of a row starting at column c, scaled; those past the last column are zero. aligned: all can be loaded at once. */
__device__ static inline void load_eight(float v[8], const struct mat &w, int r, const uint8_t *row, int c, bool aligned) {
    if (is_blocks(w.dtype)) {
        blocks_at<8>(v, row, w.dtype, c);
        if (!w.scale) return;
        float scale = scale_of(w, r, c);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] *= scale;
    } else if (aligned && w.dtype == DT_E4M3) {
        uint2 codes = *(const uint2 *)(row + c);
        float scale = scale_of(w, r, c);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = e4m3_decode(((const uint8_t *)&codes)[i]) * scale;
    } else if (share_scale(w, c)) {
        float scale = scale_of(w, r, c), shift = zero_shift(w, r, c);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = (code_at(w, r, c + i) + shift) * scale;
    } else if (aligned) {
        uint4 pairs = *(const uint4 *)(row + 2 * c);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = bf16_at(&pairs, (size_t)i);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = c + i < w.cols ? weight_at(w, r, c + i) : 0.0f;
    }
}

/* One warp per row of W, up to GEMV_N tokens at once, so that a weight is read and decoded once. */
enum { GEMV_N = 8, GEMV_WARPS = 8 };
/* A lane's part of the products of row r of W with `count` tokens of x. */
__device__ static inline void gemv_lane(float acc[GEMV_N], const struct mat &w, int r, const float *x, int ldx, int count) {
    const int lane = threadIdx.x % 32;
    const uint8_t *row = (const uint8_t *)w.data + (size_t)r * w.stride;
    bool aligned = w.dtype == DT_E4M3   ? (size_t)row % 8 == 0 && (!w.scale || w.block_cols % 8 == 0 || w.block_cols >= w.cols)
                : w.dtype == DT_BF16 ? (size_t)row % 16 == 0 && !w.scale
                                     : false;
    bool aligned_x = (size_t)x % 16 == 0 && ldx % 4 == 0;
#pragma unroll
    for (int t = 0; t < GEMV_N; t++) acc[t] = 0;
    for (int c0 = lane * 8; c0 < w.cols; c0 += 256) {
        float v[8];
        bool whole = c0 + 8 <= w.cols;
        load_eight(v, w, r, row, c0, aligned && whole);
#pragma unroll
        for (int t = 0; t < GEMV_N; t++) {
            if (t >= count) break;
            const float *p = x + (size_t)t * (size_t)ldx + c0;
            if (aligned_x && whole) {
                const float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
                const float begin = fmaf(v[3], a.w, fmaf(v[2], a.z, fmaf(v[1], a.y, v[0] * a.x)));
                acc[t] += fmaf(v[7], b.w, fmaf(v[6], b.z, fmaf(v[5], b.y, fmaf(v[4], b.x, begin))));
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (c0 + i < w.cols) acc[t] = fmaf(v[i], p[i], acc[t]);
            }
        }
    }
}
/* Computes and stores the rows of thread block number `block`, for tokens [first, first + count). */
__device__ static inline void gemv_rows(const struct op_linear &l, int block, int first, int count) {
    const int r = block * GEMV_WARPS + (int)threadIdx.x / 32, z = blockIdx.z;
    if (r >= l.w.rows) return;
    float acc[GEMV_N];
    gemv_lane(acc, head_of(l, z), r, l.x + (size_t)first * (size_t)l.ldx + (size_t)z * (size_t)l.batch_x, l.ldx, count);
#pragma unroll
    for (int t = 0; t < GEMV_N; t++) {
        if (t >= count) break;
        float sum = warp_sum(acc[t]);
        if (threadIdx.x % 32 == 0) linear_store(l, first + t, r, l.w.rows, sum);
    }
}
static __global__ void gemv_kernel(struct op_linear l, int first, int count) { gemv_rows(l, (int)blockIdx.x, first, count); }
cudaError_t cuda_gemv(cudaStream_t s, const struct op_linear *l) {
    dim3 grid(blocks_of((size_t)l->w.rows, GEMV_WARPS), 1, heads_of(l));
    for (int t = 0; t < l->n; t += GEMV_N) gemv_kernel<<<grid, GEMV_WARPS * 32, 0, s>>>(*l, t, l->n - t < GEMV_N ? l->n - t : GEMV_N);
    return cudaGetLastError();
}

template <bool EPILOGUE>
static __global__ void gemv_join_kernel(const __grid_constant__ struct joined j, const __grid_constant__ struct epilogue_of<EPILOGUE>::type e) {
    const int k = join_part(j), n = j.o.linear[k].n;
#pragma unroll 1
    for (int t = 0; t < n; t += GEMV_N) gemv_rows(j.o.linear[k], (int)blockIdx.x - j.begin[k], t, n - t < GEMV_N ? n - t : GEMV_N);
    if constexpr (EPILOGUE) {
        extern __shared__ __align__(16) char space[];
        __shared__ float sums[32];
        epilogue_run(e, k, ((int)blockIdx.x - j.begin[k]) * GEMV_WARPS, GEMV_WARPS, (int)gridDim.x, sums, space);
    }
}
int cuda_gemv_rows(void) { return GEMV_WARPS; }
cudaError_t cuda_gemv_join(cudaStream_t s, const struct op_join *called, const struct cuda_epilogue *e) {
    struct joined j = {*called, {0}};
    const unsigned blocks = join_blocks(&j, GEMV_WARPS);
    if (e) gemv_join_kernel<true><<<blocks, GEMV_WARPS * 32, cuda_chain_space(&e->chain), s>>>(j, *e);
    else gemv_join_kernel<false><<<blocks, GEMV_WARPS * 32, 0, s>>>(j, no_epilogue());
    return cudaGetLastError();
}

static __global__ void gemv_gated_kernel(struct op_linear l, struct mat up, const float *up_bias, struct glu a) {
    const int r = (int)blockIdx.x * GEMV_WARPS + (int)threadIdx.x / 32;
    if (r >= l.w.rows) return;
#pragma unroll 1
    for (int first = 0; first < l.n; first += GEMV_N) {
        const int count = l.n - first < GEMV_N ? l.n - first : GEMV_N;
        float sum[2][GEMV_N];
#pragma unroll 1
        for (int which = 0; which < 2; which++) { /* gate, then up, in a loop: the decoders are large and occur once */
            float acc[GEMV_N];
            gemv_lane(acc, which ? up : l.w, r, l.x + (size_t)first * (size_t)l.ldx, l.ldx, count);
#pragma unroll
            for (int t = 0; t < GEMV_N; t++) {
                if (t < count) acc[t] = warp_sum(acc[t]);
                if (which) sum[1][t] = acc[t];
                else sum[0][t] = acc[t];
            }
        }
#pragma unroll
        for (int t = 0; t < GEMV_N; t++) {
            if (t >= count || threadIdx.x % 32) continue;
            float g = sum[0][t], u = sum[1][t];
            if (l.bias) g += l.bias[r];
            if (up_bias) u += up_bias[r];
            l.y[(size_t)(first + t) * (size_t)l.ldy + (size_t)r] = glu(g, u, a);
        }
    }
}
cudaError_t cuda_gemv_gated(cudaStream_t s, const struct op_linear *gate, const struct op_linear *up, struct glu a) {
    gemv_gated_kernel<<<blocks_of((size_t)gate->w.rows, GEMV_WARPS), GEMV_WARPS * 32, 0, s>>>(*gate, up->w, up->bias, a);
    return cudaGetLastError();
}

/* 64 tokens x 64 outputs per block, 16 of K at a time, 4 x 4 per thread. */
enum { TILE = 64, DEPTH = 16 };
static __global__ void gemm_f32_kernel(struct op_linear l) {
    __shared__ __align__(16) float xs[DEPTH][TILE + 4], ws[DEPTH][TILE + 4];
    int z = blockIdx.z, tid = threadIdx.x;
    struct mat w = head_of(l, z);
    int in = l.transposed ? w.rows : w.cols, out = l.transposed ? w.cols : w.rows;
    int o0 = (int)blockIdx.x * TILE, tr = tid / 16 * 4, tc = tid % 16 * 4;
    const float *x = l.x + (size_t)z * (size_t)l.batch_x;
    float *y = l.y + (size_t)z * (size_t)l.batch_y;
    for (int t0 = (int)blockIdx.y * TILE; t0 < l.n; t0 += (int)gridDim.y * TILE) {
        float acc[4][4] = {{0}};
        for (int k0 = 0; k0 < in; k0 += DEPTH) {
            for (int i = tid; i < TILE * DEPTH; i += 256) {
                int k = k0 + i % DEPTH, t = t0 + i / DEPTH, o = o0 + i / DEPTH;
                xs[i % DEPTH][i / DEPTH] = t < l.n && k < in ? x[(size_t)t * (size_t)l.ldx + (size_t)k] : 0.0f;
                if (!l.transposed) ws[i % DEPTH][i / DEPTH] = o < out && k < in ? weight_at(w, o, k) : 0.0f;
            }
            for (int i = tid; l.transposed && i < TILE * DEPTH; i += 256) { /* neighbours in a row of W are outputs */
                int k = k0 + i / TILE, o = o0 + i % TILE;
                ws[i / TILE][i % TILE] = o < out && k < in ? weight_at(w, k, o) : 0.0f;
            }
            __syncthreads();
#pragma unroll
            for (int k = 0; k < DEPTH; k++) {
                const float4 a = *(const float4 *)&xs[k][tr], b = *(const float4 *)&ws[k][tc];
                const float av[4] = {a.x, a.y, a.z, a.w}, bv[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) acc[i][j] = fmaf(av[i], bv[j], acc[i][j]);
            }
            __syncthreads();
        }
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) {
                int t = t0 + tr + i, o = o0 + tc + j;
                if (t >= l.n || o >= out) continue;
                float v = acc[i][j] + (l.bias ? l.bias[(size_t)z * (size_t)out + (size_t)o] : 0.0f);
                float *p = y + (size_t)t * (size_t)l.ldy + (size_t)o;
                *p = l.accumulate ? *p + v : v;
            }
    }
}
cudaError_t cuda_gemm_f32(cudaStream_t s, const struct op_linear *l) {
    unsigned tokens = blocks_of((size_t)l->n, TILE);
    dim3 grid(blocks_of((size_t)(l->transposed ? l->w.cols : l->w.rows), TILE), tokens < 65535 ? tokens : 65535, heads_of(l));
    gemm_f32_kernel<<<grid, 256, 0, s>>>(*l);
    return cudaGetLastError();
}

/* Tensor cores: 64 tokens x 128 rows of W per block, 32 of K at a time; 8 warps in 2 x 4, each 32 x 32 as 2 x 4 tiles
 * of m16n8k16. Shared rows are padded to 40 elements, so that the eight rows of a fragment load hit different banks. */
enum { MMA_M = 64, MMA_N = 128, MMA_K = 32, MMA_LD = MMA_K + 8 };

__device__ static inline uint32_t word(const __nv_bfloat16 *p) { return *(const uint32_t *)p; }

static __global__ void __launch_bounds__(256) gemm_mma_kernel(struct op_linear l) {
    __shared__ __align__(16) __nv_bfloat16 hi[MMA_M][MMA_LD], lo[MMA_M][MMA_LD], ws[MMA_N][MMA_LD];
    __shared__ float sc[MMA_N];
    int z = blockIdx.z, tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, q = lane % 4;
    struct mat w = head_of(l, z);
    int t0 = (int)blockIdx.x * MMA_M, o0 = (int)blockIdx.y * MMA_N, wm = warp / 4 * 32, wn = warp % 4 * 32;
    const float *x = l.x + (size_t)z * (size_t)l.batch_x;
    int xr = tid / 4, xc = tid % 4 * 8, wr = tid / 2, wc = tid % 2 * 16; /* this thread's loads */
    bool row_ok = o0 + wr < w.rows, tok_ok = t0 + xr < l.n;
    const uint8_t *wrow = (const uint8_t *)w.data + (size_t)(row_ok ? o0 + wr : 0) * w.stride;
    const float *xrow = x + (size_t)(tok_ok ? t0 + xr : 0) * (size_t)l.ldx;
    bool fast8 = w.dtype == DT_E4M3 && (size_t)wrow % 16 == 0, fast_x = (size_t)xrow % 16 == 0;
    int block = w.scale && w.block_cols < w.cols ? w.block_cols : w.cols; /* columns per scale */
    float acc[2][4][4] = {{{0}}}, part[2][4][4] = {{{0}}};

    for (int k0 = 0; k0 < w.cols; k0 += MMA_K) {
        float xv[8];
        int xk = k0 + xc, wk = k0 + wc;
        if (tok_ok && fast_x && xk + 8 <= w.cols) {
            *(float4 *)&xv[0] = *(const float4 *)(xrow + xk);
            *(float4 *)&xv[4] = *(const float4 *)(xrow + xk + 4);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) xv[i] = tok_ok && xk + i < w.cols ? xrow[xk + i] : 0.0f;
        }
        float wv[16];
        if (row_ok && fast8 && wk + 16 <= w.cols) {
            uint4 codes = *(const uint4 *)(wrow + wk);
#pragma unroll
            for (int i = 0; i < 16; i++) wv[i] = e4m3_decode(((const uint8_t *)&codes)[i]);
        } else {
#pragma unroll
            for (int i = 0; i < 16; i++) wv[i] = row_ok && wk + i < w.cols ? code_at(w, o0 + wr, wk + i) : 0.0f;
        }
        __syncthreads(); /* all threads have read the previous tile */
#pragma unroll
        for (int i = 0; i < 8; i++) {
            __nv_bfloat16 h = __float2bfloat16_rn(xv[i]);
            hi[xr][xc + i] = h;
            lo[xr][xc + i] = __float2bfloat16_rn(xv[i] - __bfloat162float(h));
        }
#pragma unroll
        for (int i = 0; i < 16; i++) ws[wr][wc + i] = __float2bfloat16_rn(wv[i]);
        if (k0 % block == 0 && tid < MMA_N) sc[tid] = o0 + tid < w.rows ? scale_of(w, o0 + tid, k0) : 0.0f;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < MMA_K; k += 16) {
            uint32_t ah[2][4], al[2][4], b[4][2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int r = wm + i * 16 + g, c = k + 2 * q;
                ah[i][0] = word(&hi[r][c]), ah[i][1] = word(&hi[r + 8][c]), ah[i][2] = word(&hi[r][c + 8]),
                ah[i][3] = word(&hi[r + 8][c + 8]);
                al[i][0] = word(&lo[r][c]), al[i][1] = word(&lo[r + 8][c]), al[i][2] = word(&lo[r][c + 8]),
                al[i][3] = word(&lo[r + 8][c + 8]);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int r = wn + j * 8 + g, c = k + 2 * q;
                b[j][0] = word(&ws[r][c]), b[j][1] = word(&ws[r][c + 8]);
            }
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    mma_bf16(part[i][j], ah[i], b[j][0], b[j][1]);
                    mma_bf16(part[i][j], al[i], b[j][0], b[j][1]);
                }
        }
        if ((k0 + MMA_K) % block == 0 || k0 + MMA_K >= w.cols) { /* end of a block of K: scale its sum */
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        acc[i][j][e] = fmaf(part[i][j][e], sc[wn + j * 8 + 2 * q + e % 2], acc[i][j][e]);
                        part[i][j][e] = 0;
                    }
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int t = t0 + wm + i * 16 + g + e / 2 * 8, o = o0 + wn + j * 8 + 2 * q + e % 2;
                if (t >= l.n || o >= w.rows) continue;
                float *p = l.y + (size_t)z * (size_t)l.batch_y + (size_t)t * (size_t)l.ldy + (size_t)o;
                float v = acc[i][j][e] + (l.bias ? l.bias[(size_t)z * (size_t)w.rows + (size_t)o] : 0.0f);
                *p = l.accumulate ? *p + v : v;
            }
}
int cuda_gemm_mma_fits(const struct op_linear *l) {
    const struct mat *w = &l->w;
    int exact = w->dtype == DT_E4M3 || w->dtype == DT_BF16 || w->dtype == DT_E2M1 || w->dtype == DT_I8 || w->dtype == DT_I4;
    return exact && !l->transposed && (!w->scale || w->scale_dtype != DT_F32Z) && (!w->scale || w->block_cols % MMA_K == 0 || w->block_cols >= w->cols) &&
           (w->rows + MMA_N - 1) / MMA_N < 65536;
}
cudaError_t cuda_gemm_mma(cudaStream_t s, const struct op_linear *l) {
    dim3 grid(blocks_of((size_t)l->n, MMA_M), blocks_of((size_t)l->w.rows, MMA_N), heads_of(l));
    gemm_mma_kernel<<<grid, 256, 0, s>>>(*l);
    return cudaGetLastError();
}

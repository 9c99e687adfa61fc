/* Products of few tokens, bound by reading W: every weight is read once, in 16-byte loads, for any number of tokens up to
 * BATCH_INVARIANT_ROWS, and a token's result does not depend on the number of tokens.
 *
 * skinny_kernel, for FP8 in blocks and BF16: on tensor cores, rows of W as the 16 rows of a product and tokens as its 8 columns. The columns of W are
 * processed in steps of STEP.
 * - FP8 weights are exact in FP16, and an activation becomes the sum of two FP16. A power of two for each token and step first brings the largest one to
 *   [2^14, 2^15), so the sum is off by at most 2^-24 of the activation or 2^-39 of the largest.
 * - BF16 weights are multiplied by the sum of three BF16, which hold an activation's full float32 precision.
 * The warps of a block alternate over the steps, so that matrices with few rows also keep enough loads in flight; their sums are added in order. One token's
 * activations are split once per block, in shared memory: splitting takes more instructions than the products.
 *
 * In the templates MT is the number of tiles of 16 rows of a block, NT that of tiles of 8 tokens. In a warp, lane = 4 * g + q: g is the row or token of the lane's
 * part of a tile, q its place among the four lanes of that row.
 *
 * transposed_kernel, for W^T x of the heads of absorbed MLA: a lane has four columns, the warps alternate over rows. */
#include "gpu/cuda_chain.cuh"
#include "gpu/cuda_linear.cuh"
#include "gpu/cuda_mma.cuh"

enum { WARPS = 8, STEP = 64 };
enum { SPLIT_COLUMNS = 3072 }; /* least columns for which one token's activations are split first, in shared memory */

/* 16 bytes of a row; bytes from `left` on are zero. */
__device__ static inline uint4 load16(const uint8_t *p, int left, bool aligned) {
    if (aligned && left >= 16) return *(const uint4 *)p;
    uint32_t v[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (i < left) v[i / 4] |= (uint32_t)p[i] << i % 4 * 8;
    return make_uint4(v[0], v[1], v[2], v[3]);
}
/* A step's activations of a token, of which a lane has 16, as fragments: product j takes columns 4j .. 4j + 3 of every lane, as the sum of SUMMANDS numbers. */
template <bool FP8> struct activations {
    enum { SUMMANDS = FP8 ? 2 : 3 };
    uint32_t b[4][2][SUMMANDS];
    float unscale; /* undoes the power of two: factor of the products */
};
/* The power of two that brings the largest of a token's 64 activations to [2^14, 2^15), and its inverse. */
__device__ static inline float step_scale(const float v[16], float *unscale) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) largest = fmaxf(largest, fabsf(v[i]));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    return fp16_scale(largest, unscale);
}
/* Splits a lane's 16 activations of a step. All lanes of the step take part. */
template <bool FP8> __device__ static inline void split(struct activations<FP8> *to, const float v[16]) {
    const float scale = FP8 ? step_scale(v, &to->unscale) : 1;
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
        uint32_t *b = to->b[i / 4][i / 2 % 2];
        if (FP8) {
            const float x = v[i] * scale, y = v[i + 1] * scale;
            b[0] = f16x2_pack(x, y);
            b[1] = f16x2_pack(x - half_at(&b[0], 0), y - half_at(&b[0], 1));
        } else {
            float x = v[i], y = v[i + 1];
#pragma unroll
            for (int k = 0; k < to->SUMMANDS; k++) {
                const __nv_bfloat162 w = __floats2bfloat162_rn(x, y);
                b[k] = *(const uint32_t *)&w;
                x -= __uint_as_float(b[k] << 16);
                y -= __uint_as_float(b[k] & 0xffff0000);
            }
        }
    }
}

/* A lane's weights of a step: 16 neighbouring columns of rows g and g + 8 of each fragment, and FP8's scales. */
template <bool FP8, int MT> struct weights {
    uint4 v[MT][2][FP8 ? 1 : 2];
    float scale[MT][2];
};
/* The same as fragments of the four products. Any assignment of columns works as long as the activations use the same. */
template <bool FP8> __device__ static inline void fragment(uint32_t a[4], const uint4 v[2][FP8 ? 1 : 2], int j) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t *w = (const uint32_t *)v[r];
        a[r] = FP8 ? e4m3_halves(w[j]) : w[FP8 ? 0 : 2 * j];
        a[2 + r] = FP8 ? e4m3_high_halves(w[j]) : w[FP8 ? 0 : 2 * j + 1];
    }
}
/* The rows of W that a thread block reads: the first `whole` columns in aligned 16-byte loads without checks, the rest of them checked. */
template <bool FP8, int MT> struct rows_of_w {
    const uint8_t *row[MT][2];
    size_t scale_row[MT][2];
    int cols, whole, shift[MT]; /* shift: block_shift() of the columns' blocks */
    bool aligned;               /* rows begin at multiples of 16 bytes */
    __device__ inline void load(struct weights<FP8, MT> *to, const struct mat &w, const struct mat &w2, int k0, int q) const {
        const int size = FP8 ? 1 : 2, c = k0 + q * 16;
        if (k0 < whole) {
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int r = 0; r < 2; r++)
#pragma unroll
                    for (int i = 0; i < size; i++) to->v[m][r][i] = ((const uint4 *)(row[m][r] + (size_t)c * size))[i];
        } else {
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int r = 0; r < 2; r++)
#pragma unroll
                    for (int i = 0; i < size; i++) to->v[m][r][i] = load16(row[m][r] + (size_t)c * size + i * 16, (cols - c) * size - i * 16, aligned);
        }
        if (FP8) {
#pragma unroll
            for (int m = 0; m < MT; m++) load_scales(to->scale[m], m ? w2 : w, scale_row[m], shift[m], k0);
        }
    }
    __device__ static inline void load_scales(float to[2], const struct mat &of, const size_t at[2], int shift, int k0) {
        const size_t block = of.scale ? (size_t)block_of(of.block_cols, shift, k0) : 0;
#pragma unroll
        for (int r = 0; r < 2; r++) to[r] = of.scale ? scale_number(of, at[r] + block) : 1;
    }
};
/* A lane's 16 activations of a step. whole: all of them exist, in aligned 16-byte loads; else as load_x(). */
__device__ static inline void load_step(float v[16], const float *x, int left, bool whole, bool aligned) {
    if (whole) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float4 f = ((const float4 *)x)[i];
            v[4 * i] = f.x, v[4 * i + 1] = f.y, v[4 * i + 2] = f.z, v[4 * i + 3] = f.w;
        }
    } else load_x(v, x, left, aligned);
}

/* A part of one token's activations, split. */
template <bool FP8> struct split_columns {
    enum { COLUMNS = 4096, PIECES = 2 * activations<FP8>::SUMMANDS };
    uint4 b[PIECES][COLUMNS / 16];
    float unscale[COLUMNS / STEP];
    /* Called by all threads of a block: columns from c0 on, at most COLUMNS; whole: as in rows_of_w. A barrier must follow. */
    __device__ inline void fill(const float *x, int c0, int cols, int whole, bool aligned) {
        const int n = min(cols - c0, (int)COLUMNS), groups = (n + STEP - 1) / STEP * (STEP / 16);
        for (int base = 0; base < groups; base += WARPS * 32) {
            const int i = base + (int)threadIdx.x, at = i < groups ? i : 0, c = c0 + at * 16; /* all lanes of a step take part */
            float v[16];
            load_step(v, x + c, cols - c, c / STEP * STEP < whole, aligned);
            struct activations<FP8> as;
            split<FP8>(&as, v);
            if (i >= groups) continue;
            const uint32_t *words = &as.b[0][0][0];
#pragma unroll
            for (int k = 0; k < PIECES; k++) b[k][i] = make_uint4(words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3]);
            if (FP8 && i % (STEP / 16) == 0) unscale[i / (STEP / 16)] = as.unscale;
        }
    }
    /* The activations of group i of 16 columns. */
    __device__ inline void load(struct activations<FP8> *to, int i) const {
        uint32_t *words = &to->b[0][0][0];
#pragma unroll
        for (int k = 0; k < PIECES; k++) words[4 * k] = b[k][i].x, words[4 * k + 1] = b[k][i].y, words[4 * k + 2] = b[k][i].z, words[4 * k + 3] = b[k][i].w;
        if (FP8) to->unscale = unscale[i / (STEP / 16)];
    }
};
/* Shared memory of skinny_kernel besides its sums. ONE: a single token, whose activations are split there. */
struct no_columns {};
template <bool FP8, bool ONE> struct columns_of { typedef no_columns type; };
template <bool FP8> struct columns_of<FP8, true> { typedef split_columns<FP8> type; };

template <int MT, int NT> struct skinny_sums {
    float of[WARPS][NT * 8][MT * 16 + 1];
};
/* Computes in `sums`, followed by a barrier, the products of MT * 16 rows of W from row o0 on with all tokens; GATED: of 16 rows of W and the same rows of W2.
 * AHEAD: steps whose loads are in flight. */
template <bool FP8, bool GATED, int MT, int NT, bool ONE, int AHEAD>
__device__ static inline void skinny_rows(struct skinny_sums<MT, NT> &sums, typename columns_of<FP8, ONE>::type &columns, const struct mat &w, const struct mat &w2,
                                          const float *x, int n, int ldx, int o0) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
    struct rows_of_w<FP8, MT> rows;
#pragma unroll
    for (int m = 0; m < MT; m++) {
        const struct mat &of = GATED && m ? w2 : w;
        const int row_shift = block_shift(of.block_rows);
#pragma unroll
        for (int r = 0; r < 2; r++) { /* rows past the last are computed but not stored */
            int o = o0 + (GATED ? 0 : m * 16) + r * 8 + g;
            o = o < of.rows ? o : of.rows - 1;
            rows.row[m][r] = (const uint8_t *)of.data + (size_t)o * of.stride;
            rows.scale_row[m][r] = FP8 ? first_scale(of, row_shift, o) : 0;
        }
        rows.shift[m] = block_shift(of.block_cols);
    }
    const bool aligned_x = (size_t)x % 16 == 0 && ldx % 4 == 0;
    rows.aligned = ((size_t)w.data | w.stride | (GATED ? (size_t)w2.data | w2.stride : 0)) % 16 == 0;
    rows.cols = w.cols, rows.whole = rows.aligned && aligned_x ? w.cols / STEP * STEP : 0;
    float acc[MT][NT][4];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int t = 0; t < NT; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[m][t][e] = 0;
    struct weights<FP8, MT> steps[AHEAD + 1];
    int k0 = warp * STEP;
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (k0 + i * WARPS * STEP < w.cols) rows.load(&steps[i], w, GATED ? w2 : w, k0 + i * WARPS * STEP, q);
    const int window = ONE ? (int)split_columns<FP8>::COLUMNS : w.cols;
    for (int c0 = 0; c0 < w.cols; c0 += window) {
        if constexpr (ONE) {
            if (c0) __syncthreads(); /* all warps are done with the columns before */
            columns.fill(x, c0, w.cols, rows.whole, aligned_x);
            __syncthreads();
        }
        for (const int end = w.cols - c0 < window ? w.cols : c0 + window; k0 < end; k0 += WARPS * STEP) {
            const struct weights<FP8, MT> &now = steps[0];
            if (k0 + AHEAD * WARPS * STEP < w.cols) rows.load(&steps[AHEAD], w, GATED ? w2 : w, k0 + AHEAD * WARPS * STEP, q);
#pragma unroll
            for (int t = 0; t < NT; t++) {
                float part[MT][4] = {{0}}, unscale[2] = {1, 1}; /* unscale: of tokens 2q and 2q + 1 */
                struct activations<FP8> as;
                if constexpr (ONE) {
                    columns.load(&as, (k0 - c0) / 16 + q);
                    if (FP8) unscale[0] = unscale[1] = as.unscale;
                } else {
                    const int token = t * 8 + g, c = k0 + q * 16;
                    float v[16];
                    load_step(v, x + (size_t)(token < n ? token : 0) * (size_t)ldx + c, w.cols - c, k0 < rows.whole,
                              aligned_x); /* columns of the product past the last token are not stored */
                    split<FP8>(&as, v);
                    if (FP8) unscale[0] = __shfl_sync(0xffffffffu, as.unscale, 8 * q), unscale[1] = __shfl_sync(0xffffffffu, as.unscale, 8 * q + 4);
                }
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        uint32_t a[4];
                        fragment<FP8>(a, now.v[m], j);
#pragma unroll
                        for (int i = 0; i < as.SUMMANDS; i++) {
                            if (FP8) mma_f16(part[m], a, as.b[j][0][i], as.b[j][1][i]);
                            else mma_bf16(part[m], a, as.b[j][0][i], as.b[j][1][i]);
                        }
                    }
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        acc[m][t][e] = FP8 ? fmaf(part[m][e], now.scale[m][e / 2] * unscale[e % 2], acc[m][t][e]) : acc[m][t][e] + part[m][e];
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) steps[i] = steps[i + 1];
        }
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int t = 0; t < NT; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums.of[warp][t * 8 + 2 * q + e % 2][m * 16 + e / 2 * 8 + g] = acc[m][t][e];
    __syncthreads();
}
/* The product of row r and token t: the warps' sums, in order. */
template <int MT, int NT> __device__ static inline float sum_of(const struct skinny_sums<MT, NT> &sums, int t, int r) {
    float v = 0;
#pragma unroll
    for (int k = 0; k < WARPS; k++) v += sums.of[k][t][r];
    return v;
}
/* Computes and stores MT * 16 rows of a product, those of block number `block`. */
template <bool FP8, int MT, int NT, bool ONE, int AHEAD>
__device__ static inline void skinny_block(struct skinny_sums<MT, NT> &sums, typename columns_of<FP8, ONE>::type &columns, const struct op_linear &l, int block) {
    const struct mat w = head_of(l, (int)blockIdx.z);
    const int o0 = block * (MT * 16);
    skinny_rows<FP8, false, MT, NT, ONE, AHEAD>(sums, columns, w, w, l.x + (size_t)blockIdx.z * (size_t)l.batch_x, l.n, l.ldx, o0);
    for (int i = threadIdx.x; i < l.n * MT * 16; i += WARPS * 32) {
        int t = i / (MT * 16), r = i % (MT * 16);
        if (o0 + r < w.rows) linear_store(l, t, o0 + r, w.rows, sum_of(sums, t, r));
    }
}
/* Thread blocks per multiprocessor for which the compiler must leave registers; 0: its own choice, which is as good. */
__host__ __device__ constexpr int least_blocks(bool fp8, int mt, int nt) { return fp8 && mt == 2 && nt == 3 ? 2 : !fp8 && mt == 1 && nt == 2 ? 3 : 0; }
template <bool FP8, int MT, int NT, bool ONE> static __global__ void __launch_bounds__(WARPS * 32, least_blocks(FP8, MT, NT)) skinny_kernel(struct op_linear l) {
    typedef struct skinny_sums<MT, NT> block_sums;
    typedef typename columns_of<FP8, ONE>::type block_columns;
    __shared__ block_sums sums;
    __shared__ block_columns columns;
    skinny_block<FP8, MT, NT, ONE, FP8 && MT == 1 ? 2 : 1>(sums, columns, l, (int)blockIdx.x); /* blocks of 16 rows are few, and wait for memory */
}
template <int MT, int NT, bool ONE, bool EPILOGUE>
static __global__ void __launch_bounds__(WARPS * 32) join_kernel(const __grid_constant__ struct joined j, const __grid_constant__ struct epilogue_of<EPILOGUE>::type e) {
    typedef struct skinny_sums<MT, NT> block_sums;
    typedef typename columns_of<false, ONE>::type wide_columns; /* the larger */
    typedef typename columns_of<true, ONE>::type fp8_columns;
    __shared__ block_sums sums;
    __shared__ wide_columns columns;
    const int k = join_part(j), block = (int)blockIdx.x - j.begin[k];
    if (j.o.linear[k].w.dtype == DT_E4M3) skinny_block<true, MT, NT, ONE, 1>(sums, (fp8_columns &)columns, j.o.linear[k], block);
    else skinny_block<false, MT, NT, ONE, 1>(sums, columns, j.o.linear[k], block);
    if constexpr (EPILOGUE) {
        extern __shared__ __align__(16) char space[];
        epilogue_run(e, k, block * MT * 16, MT * 16, (int)gridDim.x, (float *)&sums, space);
    }
}
/* y = glu(W x + bias, up x + up_bias) */
template <bool FP8, int NT, bool ONE> static __global__ void __launch_bounds__(WARPS * 32) gated_kernel(struct op_linear l, struct mat up, const float *up_bias, struct glu a) {
    typedef struct skinny_sums<2, NT> block_sums;
    typedef typename columns_of<FP8, ONE>::type block_columns;
    __shared__ block_sums sums;
    __shared__ block_columns columns;
    const int o0 = (int)blockIdx.x * 16;
    skinny_rows<FP8, true, 2, NT, ONE, 1>(sums, columns, l.w, up, l.x, l.n, l.ldx, o0);
    for (int i = threadIdx.x; i < l.n * 16; i += WARPS * 32) {
        int t = i / 16, r = i % 16, o = o0 + r;
        if (o >= l.w.rows) continue;
        float g = sum_of(sums, t, r), u = sum_of(sums, t, 16 + r);
        if (l.bias) g += l.bias[o];
        if (up_bias) u += up_bias[o];
        l.y[(size_t)t * (size_t)l.ldy + (size_t)o] = glu(g, u, a);
    }
}

int cuda_skinny_fits(const struct mat *w) {
    if (w->dtype == DT_BF16) return !w->scale;
    return w->dtype == DT_E4M3 && (!w->scale || w->block_cols % STEP == 0 || w->block_cols >= w->cols);
}
/* 32 rows per block where that fills the device, else 16: more blocks. A row's sum is the same. */
template <bool FP8, int NT, bool ONE> static void launch(cudaStream_t s, const struct op_linear *l, int n_sms) {
    long blocks = (long)blocks_of((size_t)l->w.rows, 32) * heads_of(l);
    if (blocks >= 2L * n_sms) skinny_kernel<FP8, 2, NT, ONE><<<dim3(blocks_of((size_t)l->w.rows, 32), 1, heads_of(l)), WARPS * 32, 0, s>>>(*l);
    else skinny_kernel<FP8, 1, NT, ONE><<<dim3(blocks_of((size_t)l->w.rows, 16), 1, heads_of(l)), WARPS * 32, 0, s>>>(*l);
}
template <bool FP8> static cudaError_t launch_any(cudaStream_t s, const struct op_linear *l, int n_sms) {
    if (l->n == 1 && l->w.cols >= SPLIT_COLUMNS) launch<FP8, 1, true>(s, l, n_sms);
    else if (l->n <= 8) launch<FP8, 1, false>(s, l, n_sms);
    else if (l->n <= 16) launch<FP8, 2, false>(s, l, n_sms);
    else if (l->n <= 24) launch<FP8, 3, false>(s, l, n_sms);
    else return cudaErrorInvalidValue;
    return cudaGetLastError();
}
cudaError_t cuda_skinny(cudaStream_t s, const struct op_linear *l, int n_sms) {
    return l->w.dtype == DT_E4M3 ? launch_any<true>(s, l, n_sms) : launch_any<false>(s, l, n_sms);
}

int cuda_skinny_rows(const struct op_join *called, int n_sms) {
    struct joined j = {*called, {0}};
    return join_blocks(&j, 32) >= 2u * (unsigned)n_sms ? 32 : 16;
}
template <int NT, bool ONE, bool EPILOGUE> static void launch_join(cudaStream_t s, const struct op_join *called, int n_sms, const struct cuda_epilogue *e) {
    struct joined j = {*called, {0}};
    const int rows = cuda_skinny_rows(called, n_sms);
    const unsigned blocks = join_blocks(&j, rows);
    const size_t space = EPILOGUE ? cuda_chain_space(&e->chain) : 0;
    if (rows == 32) join_kernel<2, NT, false, EPILOGUE><<<blocks, WARPS * 32, space, s>>>(j, epilogue_of<EPILOGUE>::value(e));
    else join_kernel<1, NT, ONE, EPILOGUE><<<blocks, WARPS * 32, space, s>>>(j, epilogue_of<EPILOGUE>::value(e));
}
cudaError_t cuda_skinny_join(cudaStream_t s, const struct op_join *j, int n_sms, const struct cuda_epilogue *e) {
    const int n = j->linear[0].n;
    const bool one = n == 1 && j->linear[0].w.cols >= SPLIT_COLUMNS;
    if (e && n > 8) return cudaErrorInvalidValue;
    if (e && one) launch_join<1, true, true>(s, j, n_sms, e);
    else if (e) launch_join<1, false, true>(s, j, n_sms, e);
    else if (one) launch_join<1, true, false>(s, j, n_sms, e);
    else if (n <= 8) launch_join<1, false, false>(s, j, n_sms, e);
    else if (n <= 16) launch_join<2, false, false>(s, j, n_sms, e);
    else if (n <= 24) launch_join<3, false, false>(s, j, n_sms, e);
    else return cudaErrorInvalidValue;
    return cudaGetLastError();
}

template <bool FP8> static cudaError_t launch_gated(cudaStream_t s, const struct op_linear *l, const struct op_linear *up, struct glu a) {
    const unsigned blocks = blocks_of((size_t)l->w.rows, 16);
    if (l->n == 1 && l->w.cols >= SPLIT_COLUMNS) gated_kernel<FP8, 1, true><<<blocks, WARPS * 32, 0, s>>>(*l, up->w, up->bias, a);
    else if (l->n <= 8) gated_kernel<FP8, 1, false><<<blocks, WARPS * 32, 0, s>>>(*l, up->w, up->bias, a);
    else if (l->n <= 16) gated_kernel<FP8, 2, false><<<blocks, WARPS * 32, 0, s>>>(*l, up->w, up->bias, a);
    else if (l->n <= 24) gated_kernel<FP8, 3, false><<<blocks, WARPS * 32, 0, s>>>(*l, up->w, up->bias, a);
    else return cudaErrorInvalidValue;
    return cudaGetLastError();
}
cudaError_t cuda_skinny_gated(cudaStream_t s, const struct op_linear *gate, const struct op_linear *up, struct glu a) {
    return gate->w.dtype == DT_E4M3 ? launch_gated<true>(s, gate, up, a) : launch_gated<false>(s, gate, up, a);
}

/* Four neighbouring weights of a row, scaled; columns past the last are zero. aligned: they can be loaded at once. row_shift: block_shift(w.block_rows); block:
 * number of the columns' block. */
__device__ static inline void load_four(float v[4], const struct mat &w, int r, int c, bool aligned, int row_shift, size_t block) {
    const uint8_t *p = (const uint8_t *)w.data + (size_t)r * w.stride;
    if (aligned && c + 4 <= w.cols) {
        const float scale = w.scale ? scale_number(w, first_scale(w, row_shift, r) + block) : 1;
        if (w.dtype == DT_E4M3) {
            const uint32_t codes = *(const uint32_t *)(p + c), a = e4m3_halves(codes), b = e4m3_high_halves(codes);
            v[0] = half_at(&a, 0) * scale, v[1] = half_at(&a, 1) * scale, v[2] = half_at(&b, 0) * scale, v[3] = half_at(&b, 1) * scale;
        } else {
            uint2 pairs = *(const uint2 *)(p + 2 * c);
            v[0] = __uint_as_float(pairs.x << 16) * scale, v[1] = __uint_as_float(pairs.x & 0xffff0000) * scale;
            v[2] = __uint_as_float(pairs.y << 16) * scale, v[3] = __uint_as_float(pairs.y & 0xffff0000) * scale;
        }
        return;
    }
#pragma unroll 1
    for (int i = 0; i < 4; i++) { /* once in the kernel: its decoder is large */
        const float f = c + i < w.cols ? weight_at(w, r, c + i) : 0.0f;
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = k == i ? f : v[k];
    }
}
enum { TRANSPOSED_TOKENS = 8, COLUMNS = 128 }; /* tokens per pass; columns per block */
/* y = W^T x for tokens [first, first + count). */
static __global__ void __launch_bounds__(WARPS * 32) transposed_kernel(struct op_linear l, int first, int count) {
    __shared__ float sums[WARPS][COLUMNS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, c0 = (int)blockIdx.x * COLUMNS, c = c0 + lane * 4;
    struct mat w = head_of(l, (int)blockIdx.z);
    const float *x = l.x + (size_t)blockIdx.z * (size_t)l.batch_x + (size_t)first * (size_t)l.ldx;
    bool aligned = (w.dtype == DT_E4M3 ? ((size_t)w.data | w.stride) % 4 == 0 : w.dtype == DT_BF16 && ((size_t)w.data | w.stride) % 8 == 0) &&
                (!w.scale || w.block_cols % 4 == 0 || w.block_cols >= w.cols);
    const int row_shift = block_shift(w.block_rows);
    const size_t block = w.scale ? (size_t)(c / w.block_cols) : 0;
    float acc[TRANSPOSED_TOKENS][4] = {{0}};
    for (int r = warp; r < w.rows && c < w.cols; r += WARPS) {
        float v[4];
        load_four(v, w, r, c, aligned, row_shift, block);
#pragma unroll
        for (int t = 0; t < TRANSPOSED_TOKENS; t++) {
            if (t >= count) break;
            float f = x[(size_t)t * (size_t)l.ldx + (size_t)r];
#pragma unroll
            for (int i = 0; i < 4; i++) acc[t][i] = fmaf(v[i], f, acc[t][i]);
        }
    }
#pragma unroll
    for (int t = 0; t < TRANSPOSED_TOKENS; t++) {
        if (t >= count) break;
#pragma unroll
        for (int i = 0; i < 4; i++) sums[warp][lane * 4 + i] = acc[t][i];
        __syncthreads();
        if (threadIdx.x < COLUMNS && c0 + (int)threadIdx.x < w.cols) {
            float v = 0;
            for (int k = 0; k < WARPS; k++) v += sums[k][threadIdx.x];
            linear_store(l, first + t, c0 + (int)threadIdx.x, w.cols, v);
        }
        __syncthreads();
    }
}
cudaError_t cuda_skinny_transposed(cudaStream_t s, const struct op_linear *l) {
    dim3 grid(blocks_of((size_t)l->w.cols, COLUMNS), 1, heads_of(l));
    for (int t = 0; t < l->n; t += TRANSPOSED_TOKENS) transposed_kernel<<<grid, WARPS * 32, 0, s>>>(*l, t, l->n - t < TRANSPOSED_TOKENS ? l->n - t : TRANSPOSED_TOKENS);
    return cudaGetLastError();
}

#pragma once
/* Products of few tokens with quantized weights, on tensor cores: a warp multiplies 16 rows of W with up to 4 tokens per tile of 8 columns.
 *
 * Weights: the bytes of a row are copied to shared memory as they lie in the file, by asynchronous copies of 16 bytes, some steps ahead of their use. A
 * step is a block, or several small ones. Its codes become FP16 without their scale, which holds them exactly; the scale multiplies the sum over the 16 or
 * 32 columns that share it, in float32. What a format adds to each weight of such a group is multiplied by the sum of the group's activations.
 * Activations: a power of two for each token and 32 columns brings the largest to [2^14, 2^15); then each is the sum of two FP16, off by at most 2^-24 of
 * itself or 2^-39 of the largest. The two are neighbouring columns of a product, so a token takes two of the eight.
 *
 * In a warp, lane = 4 * g + q: g is the row of W or the column of the product, q the lane's place among the four of that row. Of 32 columns of W a lane
 * has eight, in four pairs. Any assignment works as long as weights and activations use the same; a format has one of two: see few_column(). */
#include "gpu/cuda_few_formats.cuh"
#include "gpu/cuda_linear.cuh"

enum { FEW_WARPS = 4, FEW_THREADS = 32 * FEW_WARPS, FEW_ROWS = 16, FEW_TOKENS = 4 /* of a tile */, FEW_GROUP = 32 /* columns */ };

/* First of the four columns, relative to the group, from which lane q's pairs 2 * half and 2 * half + 1 come: (0, 2) and (1, 3) of these four.
 * halves: pairs 0 and 1 come from the first 16 columns, the others from the last 16. */
__device__ inline int few_column(bool halves, int q, int half) { return halves ? 16 * half + 4 * q : 8 * q + 4 * half; }

/* --- Activations -------------------------------------------------------------------------------------------------------------------------- */

/* What a lane needs of a token and group: its four pairs as high and low parts, the inverse of the power of two, and sums over the columns of pairs 0 and
 * 1, and of 2 and 3, of all four lanes. */
struct few_activations {
    uint32_t high[4], low[4];
    float unscale, sum[2];
};
/* Splits eight activations of a lane. adds_up: sum[0] becomes that of all columns. All lanes of a group take part. */
__device__ inline void few_split(struct few_activations *to, const float v[8], bool adds_up) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(v[i]));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const float scale = fp16_scale(largest, &to->unscale);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = 0;
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const float a = v[4 * half + p], b = v[4 * half + p + 2], x = a * scale, y = b * scale;
            const uint32_t high = f16x2_pack(x, y);
            sum += a + b;
            to->high[2 * half + p] = high;
            to->low[2 * half + p] = f16x2_pack(x - half_at(&high, 0), y - half_at(&high, 1));
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        to->sum[half] = sum + __shfl_xor_sync(0xffffffffu, sum, 2);
    }
    if (adds_up) to->sum[0] += to->sum[1];
}
/* A lane's eight activations of the group that begins at column c; those from `cols` on are zero. */
__device__ inline void few_load(float v[8], const float *x, int c, int cols, bool halves, int q, bool aligned) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = c + few_column(halves, q, half);
        float4 f = make_float4(0, 0, 0, 0);
        if (aligned && at + 4 <= cols) f = *(const float4 *)(x + at);
        else {
            if (at < cols) f.x = x[at];
            if (at + 1 < cols) f.y = x[at + 1];
            if (at + 2 < cols) f.z = x[at + 2];
            if (at + 3 < cols) f.w = x[at + 3];
        }
        v[4 * half] = f.x, v[4 * half + 1] = f.y, v[4 * half + 2] = f.z, v[4 * half + 3] = f.w;
    }
}
/* A warp's split activations of one step, in shared memory: for each token and group four lanes' high parts and low parts; and what few_split() gives
 * besides. */
struct few_space {
    uint4 *parts;    /* [tokens][groups][2][4] */
    float4 *numbers; /* [tokens][groups]: unscale, the two sums */
};
/* Bytes of a warp's few_space for that many tokens. */
__host__ __device__ constexpr int few_space_bytes(int groups, int tokens) { return groups * tokens * (8 * (int)sizeof(uint4) + (int)sizeof(float4)); }
__device__ inline struct few_space few_space_at(uint8_t *space, int groups, int tokens) {
    return {(uint4 *)space, (float4 *)(space + groups * tokens * 8 * (int)sizeof(uint4))};
}
/* Splits the eight activations of each lane, those of group lane / 4 of a step, as token number `to` of the warp's. A barrier of the warp must
 * follow. */
template <class F> __device__ inline void few_store(const struct few_space &s, int to, const float v[8]) {
    const int GROUPS = F::COLUMNS / FEW_GROUP;
    const int lane = (int)threadIdx.x % 32, group = lane / 4, q = lane % 4;
    struct few_activations a;
    few_split(&a, v, F::SCALES == 1);
    if (group >= GROUPS) return;
    uint4 *parts = s.parts + (to * GROUPS + group) * 8 + q;
    parts[0] = make_uint4(a.high[0], a.high[1], a.high[2], a.high[3]);
    parts[4] = make_uint4(a.low[0], a.low[1], a.low[2], a.low[3]);
    if (!q) s.numbers[to * GROUPS + group] = make_float4(a.unscale, a.sum[0], a.sum[1], 0);
}

/* --- A warp's products --------------------------------------------------------------------------------------------------------------------- */

/* The rows of W that a lane requests and multiplies: g and g + 8 of the FEW_ROWS from row r on; past the last it is the last one. */
struct few_rows {
    const uint8_t *row[2];
    size_t scale[2]; /* number of the row's first scale */
    int bytes;       /* of a row */
};
template <class F> __device__ inline struct few_rows few_rows_of(const struct mat &w, int r, int bytes) {
    struct few_rows rows = {{}, {}, bytes};
    const int g = (int)threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int at = min(r + g + 8 * i, w.rows - 1);
        rows.row[i] = (const uint8_t *)w.data + (size_t)at * w.stride;
        if (F::SCALED) rows.scale[i] = first_scale(w, block_shift(w.block_rows), at);
    }
    return rows;
}
/* A scale of a matrix from its bytes. */
__device__ inline float few_scale_number(const struct mat &w, uint32_t raw) {
    switch (w.scale_dtype) {
    case DT_F32: return __uint_as_float(raw);
    case DT_F32Z: return __uint_as_float(raw & ~255u);
    case DT_BF16: return __uint_as_float(raw << 16);
    case DT_F16: return block_half_bits(raw);
    case DT_E8M0: return e8m0_decode(raw);
    default: return e4m3_decode((uint8_t)raw) * w.scale_gain;
    }
}
/* The heads of a SCALED format's rows for step number `step`; of others nothing. All loads come before the first use. */
template <class F> __device__ inline void few_scales(typename F::head head[2], const struct mat &w, const struct few_rows &rows, int step) {
    if constexpr (F::SCALED) {
        enum { EACH = F::SCALED == 2 ? 2 : 2 * F::SCALES }; /* of a row */
        const int q = (int)threadIdx.x % 4, shift = block_shift(w.block_cols);
        const int size = w.scale_dtype == DT_F32 || w.scale_dtype == DT_F32Z ? 4 : w.scale_dtype == DT_BF16 || w.scale_dtype == DT_F16 ? 2 : 1;
        uint32_t raw[2 * EACH];
#pragma unroll
        for (int k = 0; k < 2 * EACH; k++) {
            const int e = k % EACH, group = q + 4 * (e / F::SCALES);
            const int c = min(step * F::COLUMNS + (F::SCALED == 2 ? F::COLUMNS / 2 * e : group * (int)FEW_GROUP + 16 * (e % F::SCALES)), w.cols - 1);
            const size_t at = rows.scale[k / EACH] + (size_t)(w.scale ? block_of(w.block_cols, shift, c) : 0);
            raw[k] = !w.scale ? 0 : size == 4 ? ((const uint32_t *)w.scale)[at] : size == 2 ? ((const uint16_t *)w.scale)[at] : ((const uint8_t *)w.scale)[at];
        }
#pragma unroll
        for (int k = 0; k < 2 * EACH; k++) {
            const float d = w.scale ? few_scale_number(w, raw[k]) : 1.0f;
            head[k / EACH].d[k % EACH] = d * F::gain;
            if (F::ADDS) head[k / EACH].add[k % EACH] = -d * (float)(w.scale && w.scale_dtype == DT_F32Z ? raw[k] & 255 : F::DTYPE == DT_I4 ? 8 : 128);
        }
    }
}
template <class F> struct few_shape {
    /* Pieces of 16 bytes of a row and step. If steps begin anywhere, the first piece begins up to 15 bytes before the step, and four bytes past the step may be
     * read. */
    static const int groups = F::COLUMNS / FEW_GROUP, pieces = F::ALIGN == 16 ? F::BYTES / 16 : (F::BYTES + 15 + 4 + 15) / 16;
    static const int pitch = (pieces | 1) * 16, slot = FEW_ROWS * pitch, ring = F::STAGES * slot; /* bytes: of a row, of a step, of a warp */
};
/* How many bytes of a step's first piece precede the step. at: the step's first byte in a row of W. */
template <class F> __device__ inline int few_shift(const uint8_t *at) { return F::ALIGN == 16 ? 0 : (int)((size_t)at & 15); }
/* Requests step number `step` of a warp's rows. Bytes past the end of a row are zero. */
template <class F> __device__ inline void few_request(uint8_t *slot, const struct few_rows &w, int step) {
    typedef struct few_shape<F> S;
    const int lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint8_t *at = w.row[i] + (size_t)((unsigned)step * F::BYTES);
        const int shift = few_shift<F>(at), left = w.bytes - step * F::BYTES + shift; /* bytes from the first piece to the end of the row */
        const uint8_t *from = at - shift + q * 16;
        uint8_t *to = slot + (g + 8 * i) * S::pitch + q * 16;
#pragma unroll
        for (int k = 0; k < S::pieces; k += 4) {
            const int rest = left - (q + k) * 16;
            if (q + k >= S::pieces) break;
            if (F::ALIGN == 16 && !F::SCALED) cp_async16(to + k * 16, from + k * 16, 16); /* blocks of a whole step */
            else cp_async16(to + k * 16, rest > 0 ? from + k * 16 : at - shift, min(max(rest, 0), 16));
        }
    }
}
/* A group's activations as a lane needs them for a tile of FEW_TOKENS tokens: the fragments of its column of the product, and the numbers of token q. */
struct few_operand {
    uint32_t b[4];
    float unscale, sum[2];
};
/* From a warp's few_space, which has n tokens of the step. */
template <int GROUPS> __device__ inline void few_staged(struct few_operand *to, const struct few_space &x, int k, int n) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const uint4 b = g < 2 * n ? x.parts[(g / 2 * GROUPS + k) * 8 + g % 2 * 4 + q] : make_uint4(0, 0, 0, 0);
    const float4 numbers = x.numbers[(q < n ? q : 0) * GROUPS + k];
    to->b[0] = b.x, to->b[1] = b.y, to->b[2] = b.z, to->b[3] = b.w;
    to->unscale = numbers.x, to->sum[0] = numbers.y, to->sum[1] = numbers.z;
}
/* From n rows of x, for the group that begins at column c. Columns of tokens that do not exist are those of token 0. */
template <class F> __device__ inline void few_direct(struct few_operand *to, const float *x, int ldx, int n, int c, int cols, bool aligned) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4;
    float v[8];
    struct few_activations a;
    few_load(v, x + (g / 2 < n ? (size_t)(g / 2) * (size_t)ldx : 0), c, cols, F::HALVES, q, aligned);
    few_split(&a, v, F::SCALES == 1);
#pragma unroll
    for (int i = 0; i < 4; i++) to->b[i] = g % 2 ? a.low[i] : a.high[i];
    to->unscale = __shfl_sync(0xffffffffu, a.unscale, 8 * q);
    if (F::ADDS) to->sum[0] = __shfl_sync(0xffffffffu, a.sum[0], 8 * q);
    if (F::ADDS && F::SCALES > 1) to->sum[1] = __shfl_sync(0xffffffffu, a.sum[1], 8 * q);
}
/* A lane's part of a group of rows g and g + 8: fragments, scales and addends. */
template <class F> struct few_weights {
    uint32_t first[4], second[4];
    float d[2][2], add[2][2];
};
/* Adds a group's products to sums: sums[i] is that of row g + 8 i and token q. */
template <class F> __device__ inline void few_add(float sums[2], const struct few_weights<F> &w, const struct few_operand &x) {
    float part[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}}; /* of pairs 0 and 1, and of 2 and 3 where these have scales of their own */
    mma_f16(part[0], w.first, x.b[0], x.b[1]);
    mma_f16(part[F::SCALES - 1], w.second, x.b[2], x.b[3]);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int half = 0; half < F::SCALES; half++) {
            sums[i] = fmaf(part[half][2 * i] + part[half][2 * i + 1], w.d[i][half] * x.unscale, sums[i]);
            if (F::ADDS) sums[i] = fmaf(w.add[i][half], x.sum[half], sums[i]);
        }
}
/* Adds the products of step number `step` to the sums of NT tiles of tokens; head is that of few_scales(); staged has the activations if NT is 1, else
 * they are read from n rows of x. */
template <class F, int NT>
__device__ inline void few_multiply(float sums[NT][2], const uint8_t *slot, const struct few_rows &w, typename F::head head[2], int step,
                                    const struct few_space &staged, const float *x, int ldx, int n, int cols, bool aligned) {
    typedef struct few_shape<F> S;
    const int lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4;
    struct few_row row[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        row[i].p = slot + (g + 8 * i) * S::pitch;
        row[i].shift = few_shift<F>(w.row[i] + (size_t)((unsigned)step * F::BYTES));
        if constexpr (!F::SCALED) F::read(&head[i], row[i]);
    }
#pragma unroll F::UNROLL
    for (int k = 0; k < S::groups; k++) {
        struct few_weights<F> group;
        struct few_operand operand;
        uint32_t pairs[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) F::codes(pairs[i], row[i], k, q), F::scale(group.d[i], group.add[i], head[i], row[i], k);
#pragma unroll
        for (int i = 0; i < 2; i++)
            group.first[i] = pairs[i][0], group.first[2 + i] = pairs[i][1], group.second[i] = pairs[i][2], group.second[2 + i] = pairs[i][3];
        if (NT == 1) {
            few_staged<S::groups>(&operand, staged, k, n);
            few_add<F>(sums[0], group, operand);
        } else
#pragma unroll
            for (int t = 0; t < NT; t++) {
                const int have = n - t * FEW_TOKENS;
                if (have <= 0) break;
                few_direct<F>(&operand, x + (size_t)(t * FEW_TOKENS) * (size_t)ldx, ldx, have, step * F::COLUMNS + k * FEW_GROUP, cols, aligned);
                few_add<F>(sums[t], group, operand);
            }
    }
}
/* The eight activations of this lane in step `step` of a row of x. */
template <class F> __device__ inline void few_step_x(float v[8], const float *x, int step, int cols, bool aligned) {
    const int lane = (int)threadIdx.x % 32;
    few_load(v, x, step * F::COLUMNS + lane / 4 % few_shape<F>::groups * FEW_GROUP, cols, F::HALVES, lane % 4, aligned);
}

/* How a block shares its work: `deep` warps alternate over the steps of FEW_ROWS rows, so that a block has FEW_WARPS / deep times as many rows. */
struct few_plan {
    int steps, deep, row_bytes;
};
template <class F> __host__ __device__ inline struct few_plan few_plan_of(int cols) {
    const int steps = (cols + F::COLUMNS - 1) / F::COLUMNS;
    return {steps, steps >= FEW_WARPS ? (int)FEW_WARPS : steps >= 2 ? 2 : 1, (int)((long)cols * F::BYTES / F::COLUMNS)};
}
/* Sums of the warps of a block, of M matrices and NT tiles of tokens. */
template <int NT, int M> struct few_sums {
    float of[FEW_WARPS][M][NT * FEW_TOKENS][FEW_ROWS + 1];
};
/* Shared memory of a block for n tokens: every warp's ring, and activations that are staged. */
template <class F> __host__ __device__ constexpr int few_bytes(int n) {
    return FEW_WARPS * (few_shape<F>::ring + (n > FEW_TOKENS ? 0 : few_space_bytes(few_shape<F>::groups, n)));
}
/* Computes in `sums`, followed by a barrier, the products of a block's rows, from row o0 on, with n rows of x; with M == 2, of the same rows of both
 * matrices. Called by all threads of a block; space: few_bytes() bytes of shared memory. */
template <class F, int NT, int M>
__device__ inline void few_block(struct few_sums<NT, M> &sums, uint8_t *space, const struct mat &w, const struct mat &w2, const float *x, int n, int ldx, int o0) {
    typedef struct few_shape<F> S;
    const struct few_plan plan = few_plan_of<F>(w.cols);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, r0 = o0 + warp / plan.deep * FEW_ROWS;
    const bool aligned = ((size_t)x & 15) == 0 && ldx % 4 == 0;
    uint8_t *ring = space + warp * S::ring;
    const struct few_space xs = few_space_at(space + FEW_WARPS * S::ring + warp * few_space_bytes(S::groups, n), S::groups, n); /* used if NT is 1 */
    const struct few_rows rows[2] = {few_rows_of<F>(w, r0, plan.row_bytes), few_rows_of<F>(M > 1 ? w2 : w, r0, plan.row_bytes)};
    typename F::head next[M][2] = {}; /* scales of the next step: they are loaded while this one is computed */
    const int first = r0 < w.rows ? warp % plan.deep : plan.steps; /* without rows nothing is done */
    float acc[M][NT][2] = {};
    int ahead = first, ahead_m = 0, ahead_slot = 0, slot = 0; /* the next step to request, its matrix and place in the ring; the place of the step in work */
    auto request = [&] {
        if (ahead < plan.steps) few_request<F>(ring + ahead_slot * S::slot, M > 1 && ahead_m ? rows[1] : rows[0], ahead);
        cp_commit();
        if (++ahead_m == M) ahead_m = 0, ahead += plan.deep;
        if (++ahead_slot == F::STAGES) ahead_slot = 0;
    };
#pragma unroll
    for (int i = 0; i < F::STAGES - 1; i++) request();
    if (first < plan.steps)
#pragma unroll
        for (int m = 0; m < M; m++) few_scales<F>(next[m], m ? w2 : w, rows[m], first);
#pragma unroll 1
    for (int step = first; step < plan.steps; step += plan.deep) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            cp_wait<F::STAGES - 2>();
            __syncwarp(); /* the step has arrived, and the warp is done with the step and the activations before */
            request();
            if (NT == 1 && !m) {
#pragma unroll 1
                for (int i = 0; i < n; i++) {
                    float v[8];
                    few_step_x<F>(v, x + (size_t)i * (size_t)ldx, step, w.cols, aligned);
                    few_store<F>(xs, i, v);
                }
                __syncwarp();
            }
            typename F::head now[2] = {next[m][0], next[m][1]};
            if (step + plan.deep < plan.steps) few_scales<F>(next[m], m ? w2 : w, rows[m], step + plan.deep);
            few_multiply<F, NT>(acc[m], ring + slot * S::slot, rows[m], now, step, xs, x, ldx, n, w.cols, aligned);
            if (++slot == F::STAGES) slot = 0;
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int t = 0; t < NT; t++)
#pragma unroll
            for (int i = 0; i < 2; i++) sums.of[warp][m][t * FEW_TOKENS + lane % 4][lane / 4 + 8 * i] = acc[m][t][i];
    cp_wait<0>();
    __syncthreads();
}
/* The product of a block's row r and token t with matrix m: the sums of its warps, in order. */
template <int NT, int M> __device__ inline float few_sum(const struct few_sums<NT, M> &sums, int deep, int m, int t, int r) {
    float v = 0;
    for (int k = 0; k < deep; k++) v += sums.of[r / FEW_ROWS * deep + k][m][t][r % FEW_ROWS];
    return v;
}

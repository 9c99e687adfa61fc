/* A layer's routed experts for few tokens, in any format: two launches that read the choices on the device, so that the host does not
 * wait and a layer can be recorded. Bound by reading the weights: a lane has 16 neighbouring columns (8 of formats other than FP8 and
 * BF16), and a warp keeps the loads of several rows in flight. A product is summed over columns in one fixed order, and a token's experts are added in rising order. */
#include "gpu/cuda_mma.cuh"
#include "gpu/cuda_routed.cuh"

enum { WARPS = 8, COLUMNS = 16, ANY_COLUMNS = 8, UP_ROWS = 2, DOWN_ROWS = 4 };
enum weight_kind { WEIGHT_FP8, WEIGHT_BF16, WEIGHT_OTHER };

/* 16 weights of a row of FP8 or BF16, in one or two aligned loads, without scales that are stored apart. */
template <enum weight_kind KIND> __device__ static inline void load_whole(float v[COLUMNS], const uint8_t *p) {
    if (KIND == WEIGHT_FP8) {
        const uint4 codes = *(const uint4 *)p;
        const uint32_t w[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t a = e4m3_halves(w[i]), b = e4m3_high_halves(w[i]);
            v[4 * i] = half_at(&a, 0), v[4 * i + 1] = half_at(&a, 1);
            v[4 * i + 2] = half_at(&b, 0), v[4 * i + 3] = half_at(&b, 1);
        }
    } else {
        const uint4 pairs[2] = {((const uint4 *)p)[0], ((const uint4 *)p)[1]};
        const uint32_t *w = (const uint32_t *)pairs;
#pragma unroll
        for (int i = 0; i < 8; i++) v[2 * i] = __uint_as_float(w[i] << 16), v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000);
    }
}
/* The same for any address; weights from `left` on are zero. */
template <enum weight_kind KIND> __device__ static inline void load_part(float v[COLUMNS], const uint8_t *p, int left) {
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) v[i] = i >= left ? 0.0f : KIND == WEIGHT_FP8 ? e4m3_decode(p[i]) : bf16_at(p, (size_t)i);
}

/* Addresses of N rows of each of M matrices, and of their scales. */
template <int M, int N> struct dot_rows {
    const uint8_t *row[M][N];
    size_t scale_row[M][N]; /* number of the row's first scale */
    int shift[M];           /* block_shift() of the columns' blocks */
};
/* Adds this lane's part of the products to out. WHOLE: the rows and x are aligned to 16 bytes and have whole groups of columns; the sums are the same without. */
template <enum weight_kind KIND, bool WHOLE, int M, int N>
__device__ static inline void add_dots(float out[M][N], const struct mat m[M], const struct dot_rows<M, N> &rows, const float *x) {
    const int cols = m[0].cols, size = KIND == WEIGHT_FP8 ? 1 : 2;
    for (int c = (int)(threadIdx.x % 32) * COLUMNS; c < cols; c += 32 * COLUMNS) {
        float a[COLUMNS];
        if (WHOLE) load_x(a, x + c, COLUMNS, true);
        else load_x(a, x + c, cols - c, ((size_t)x & 15) == 0);
#pragma unroll
        for (int k = 0; k < M; k++) {
            const size_t block = m[k].scale ? (size_t)block_of(m[k].block_cols, rows.shift[k], c) : 0;
#pragma unroll
            for (int i = 0; i < N; i++) {
                float w[COLUMNS], sum = 0, scale = 1;
                if (WHOLE) load_whole<KIND>(w, rows.row[k][i] + (size_t)c * size);
                else load_part<KIND>(w, rows.row[k][i] + (size_t)c * size, cols - c);
                if (m[k].scale) scale = scale_number(m[k], rows.scale_row[k][i] + block);
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) sum = fmaf(w[j], a[j], sum);
                out[k][i] = fmaf(sum, scale, out[k][i]);
            }
        }
    }
}
/* Products of x with N rows of each of M matrices, from row r on: every lane gets them. Rows past the last are computed again from the
 * last one. */
template <enum weight_kind KIND, int M, int N> __device__ static inline void dots(float out[M][N], const struct mat m[M], int r, const float *x) {
    struct dot_rows<M, N> rows;
    size_t address = (size_t)x;
    bool whole = m[0].cols % COLUMNS == 0;
#pragma unroll
    for (int k = 0; k < M; k++) {
        const int row_shift = block_shift(m[k].block_rows);
        rows.shift[k] = block_shift(m[k].block_cols);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int at = r + i < m[k].rows ? r + i : m[k].rows - 1;
            rows.row[k][i] = (const uint8_t *)m[k].data + (size_t)at * m[k].stride;
            rows.scale_row[k][i] = first_scale(m[k], row_shift, at);
            address |= (size_t)rows.row[k][i];
            out[k][i] = 0;
        }
    }
    if (whole && (address & 15) == 0) add_dots<KIND, true, M, N>(out, m, rows, x);
    else add_dots<KIND, false, M, N>(out, m, rows, x);
#pragma unroll
    for (int k = 0; k < M; k++)
#pragma unroll
        for (int i = 0; i < N; i++) out[k][i] = warp_sum(out[k][i]);
}

/* --- Any other format. Its decoder is large, so it is in each kernel once and computes one row after another. ------------------------- */

__device__ static __noinline__ float code_of(const struct mat &m, int r, int c) { return code_at(m, r, c); }

/* Columns c .. c + 7 of a row; columns past the last are zero. */
__device__ static inline void load_any(float v[ANY_COLUMNS], const struct mat &m, int r, int c) {
    if (is_blocks(m.dtype)) {
        blocks_at<ANY_COLUMNS>(v, (const uint8_t *)m.data + (size_t)r * m.stride, m.dtype, c);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < ANY_COLUMNS; i++) {
        const float code = c + i < m.cols ? code_of(m, r, c + i) : 0.0f;
#pragma unroll
        for (int k = 0; k < ANY_COLUMNS; k++) v[k] = k == i ? code : v[k];
    }
}
/* The product of x with a row, which every lane gets. */
__device__ static inline float dot_any(const struct mat &m, int r, const float *x) {
    const int row = r < m.rows ? r : m.rows - 1;
    float all = 0;
#pragma unroll 1
    for (int c = (int)(threadIdx.x % 32) * ANY_COLUMNS; c < m.cols; c += 32 * ANY_COLUMNS) {
        float w[ANY_COLUMNS], sum = 0;
        load_any(w, m, row, c);
        if (!m.order && c + ANY_COLUMNS <= m.cols && ((size_t)x & 15) == 0) { /* the same sum with two loads of 16 bytes */
            const float4 lo = *(const float4 *)(x + c), hi = *(const float4 *)(x + c + 4);
            sum = fmaf(w[3], lo.w, fmaf(w[2], lo.z, fmaf(w[1], lo.y, fmaf(w[0], lo.x, sum))));
            sum = fmaf(w[7], hi.w, fmaf(w[6], hi.z, fmaf(w[5], hi.y, fmaf(w[4], hi.x, sum))));
        } else
#pragma unroll
        for (int j = 0; j < ANY_COLUMNS; j++) sum = fmaf(w[j], c + j < m.cols ? x[m.order ? m.order[c + j] : c + j] : 0.0f, sum);
        all = fmaf(sum, scale_of(m, row, c), all);
    }
    return warp_sum(all);
}
/* dots() for any format. */
template <int M, int N> __device__ static inline void dots_any(float out[M][N], const struct mat m[M], int r, const float *x) {
#pragma unroll 1
    for (int at = 0; at < M * N; at++) {
        struct mat w = m[0]; /* by member, not by index, so that it stays in registers and its addresses are known to be global */
        if (M > 1 && at >= N) {
            const struct mat &o = m[M - 1];
            w.data = o.data, w.stride = o.stride, w.rows = o.rows, w.order = o.order, w.x0 = o.x0, w.x_cols = o.x_cols;
            w.scale = o.scale, w.scale_dtype = o.scale_dtype, w.scale_gain = o.scale_gain, w.scale_stride = o.scale_stride;
            w.block_rows = o.block_rows, w.block_cols = o.block_cols, w.row0 = o.row0, w.row_step = o.row_step;
        }
        const float all = dot_any(w, r + at % N, x);
#pragma unroll
        for (int k = 0; k < M * N; k++)
            if (k == at) out[k / N][k % N] = all;
    }
}

/* h[pair] = glu(gate x, up x): grid (rows of inter, (token, choice) pairs). */
template <enum weight_kind KIND> static __global__ void __launch_bounds__(WARPS * 32, KIND == WEIGHT_FP8 ? 3 : 1) up_kernel(const __grid_constant__ struct cuda_routed a) {
    const int pair = (int)blockIdx.y, id = a.ids[pair], inter = a.gate.rows, r = ((int)blockIdx.x * WARPS + (int)threadIdx.x / 32) * UP_ROWS;
    if (id < 0 || id >= a.n_experts || r >= inter) return;
    const size_t at = (size_t)id * a.expert_stride;
    const struct mat m[2] = {expert_mat(a.gate, at), expert_mat(a.up, at)};
    float v[2][UP_ROWS];
    const float *x = a.x + (size_t)(pair / a.topk) * (size_t)a.gate.cols;
    if (KIND == WEIGHT_OTHER) dots_any<2, UP_ROWS>(v, m, r, x);
    else dots<KIND, 2, UP_ROWS>(v, m, r, x);
#pragma unroll
    for (int i = 0; i < UP_ROWS; i++)
        if (threadIdx.x % 32 == 0 && r + i < inter)
            a.h[(size_t)pair * (size_t)inter + (size_t)(r + i)] =
                glu(v[0][i] + bias_at(a.gate_bias, at, r + i), v[1][i] + bias_at(a.up_bias, at, r + i), a.glu);
}

/* y[t] += sum over its choices of weight * down h: grid (rows of hidden, tokens); the warps of a block alternate over the choices. */
template <enum weight_kind KIND> static __global__ void __launch_bounds__(WARPS * 32) down_kernel(const __grid_constant__ struct cuda_routed a) {
    __shared__ float part[MAX_TOPK][DOWN_ROWS];
    __shared__ uint8_t order[MAX_TOPK];
    __shared__ int n_chosen;
    const int t = (int)blockIdx.y, r = (int)blockIdx.x * DOWN_ROWS, rows = a.down.rows, inter = a.down.cols;
    const int32_t *ids = a.ids + t * a.topk;
    if (threadIdx.x / 32 == WARPS - 1) {
        const int n = order_choices(order, ids, a.topk, a.n_experts);
        if (threadIdx.x % 32 == 0) n_chosen = n;
    }
    for (int k = (int)threadIdx.x / 32; k < a.topk; k += WARPS) {
        if (ids[k] < 0 || ids[k] >= a.n_experts) continue;
        const size_t at = (size_t)ids[k] * a.expert_stride;
        const struct mat m[1] = {expert_mat(a.down, at)};
        float v[1][DOWN_ROWS];
        const float *h = a.h + ((size_t)t * (size_t)a.topk + (size_t)k) * (size_t)inter;
        if (KIND == WEIGHT_OTHER) dots_any<1, DOWN_ROWS>(v, m, r, h);
        else dots<KIND, 1, DOWN_ROWS>(v, m, r, h);
#pragma unroll
        for (int i = 0; i < DOWN_ROWS; i++)
            if (threadIdx.x % 32 == 0) part[k][i] = v[0][i] + bias_at(a.down_bias, at, r + i < rows ? r + i : rows - 1);
    }
    __syncthreads();
    const int i = (int)threadIdx.x;
    if (i < DOWN_ROWS && r + i < rows) add_choices(a, t, r + i, order, n_chosen, &part[0][i], DOWN_ROWS);
}

static int mat_fits(const struct mat *m) { return !m->scale || m->block_cols % COLUMNS == 0 || m->block_cols >= m->cols; }
int cuda_routed_fits(const struct cuda_routed *a) {
    if (a->gate.order && (a->gate.dtype == DT_E4M3 || a->gate.dtype == DT_BF16)) return 0; /* only the kernel of other formats sorts x */
    return a->topk <= MAX_TOPK && a->gate.dtype == a->up.dtype && a->gate.cols == a->up.cols && mat_fits(&a->gate) && mat_fits(&a->up) && mat_fits(&a->down);
}
int cuda_routed_has_epilogue(const struct cuda_routed *a) { return a->n <= EPILOGUE_ROWS && cuda_few_routed_fits(&a->down, &a->down, a->expert_stride); }
cudaError_t cuda_routed_up(cudaStream_t s, const struct cuda_routed *a) {
    const dim3 grid(blocks_of((size_t)a->gate.rows, WARPS * UP_ROWS), (unsigned)(a->n * a->topk));
    if (cuda_few_routed_fits(&a->gate, &a->up, a->expert_stride)) return cuda_few_up(s, a);
    if (a->gate.dtype == DT_E4M3) up_kernel<WEIGHT_FP8><<<grid, WARPS * 32, 0, s>>>(*a);
    else if (a->gate.dtype == DT_BF16) up_kernel<WEIGHT_BF16><<<grid, WARPS * 32, 0, s>>>(*a);
    else up_kernel<WEIGHT_OTHER><<<grid, WARPS * 32, 0, s>>>(*a);
    return cudaGetLastError();
}
cudaError_t cuda_routed_down(cudaStream_t s, const struct cuda_routed *a, const struct cuda_epilogue *e) {
    const dim3 grid(blocks_of((size_t)a->down.rows, DOWN_ROWS), (unsigned)a->n);
    if (cuda_few_routed_fits(&a->down, &a->down, a->expert_stride)) return cuda_few_down(s, a, e);
    if (e) return cudaErrorInvalidValue;
    if (a->down.dtype == DT_E4M3) down_kernel<WEIGHT_FP8><<<grid, WARPS * 32, 0, s>>>(*a);
    else if (a->down.dtype == DT_BF16) down_kernel<WEIGHT_BF16><<<grid, WARPS * 32, 0, s>>>(*a);
    else down_kernel<WEIGHT_OTHER><<<grid, WARPS * 32, 0, s>>>(*a);
    return cudaGetLastError();
}

/* --- Values of a mixture (struct op_values): a warp computes VALUE_ROWS numbers of a token, over its choices in rising order of expert. --- */

enum { VALUE_ROWS = 4 };

template <enum weight_kind KIND> static __global__ void __launch_bounds__(WARPS * 32) values_kernel(const __grid_constant__ struct op_values o) {
    __shared__ uint8_t order[MAX_TOPK];
    __shared__ int n_chosen;
    const int t = (int)blockIdx.y, warp = (int)threadIdx.x / 32, r = ((int)blockIdx.x * WARPS + warp) * VALUE_ROWS;
    const int32_t *ids = o.ids + (size_t)t * (size_t)o.topk;
    if (!warp) {
        const int n = order_choices(order, ids, o.topk, o.n_experts);
        if (!threadIdx.x) n_chosen = n;
    }
    __syncthreads();
    if (r >= o.dim) return;
    const struct mat m[1] = {o.w};
    const float *x = o.x + (size_t)t * (size_t)o.ldx;
    float sum[VALUE_ROWS] = {0};
    for (int k = 0; k < n_chosen; k++) {
        const int first = ids[order[k]] * o.dim + r;
        float v[1][VALUE_ROWS];
        if (KIND == WEIGHT_OTHER) dots_any<1, VALUE_ROWS>(v, m, first, x);
        else dots<KIND, 1, VALUE_ROWS>(v, m, first, x);
#pragma unroll
        for (int i = 0; i < VALUE_ROWS; i++) sum[i] = fmaf(o.weights[(size_t)t * (size_t)o.topk + order[k]], v[0][i] * sigmoid(v[0][i]), sum[i]);
    }
#pragma unroll
    for (int i = 0; i < VALUE_ROWS; i++)
        if (threadIdx.x % 32 == 0 && r + i < o.dim) o.y[(size_t)t * (size_t)o.ldy + (size_t)(r + i)] = sum[i];
}
cudaError_t cuda_values(cudaStream_t s, const struct op_values *o) {
    const dim3 grid(blocks_of((size_t)o->dim, WARPS * VALUE_ROWS), (unsigned)o->n);
    const bool whole = mat_fits(&o->w);
    if (o->topk > MAX_TOPK || o->w.order) return cudaErrorInvalidValue;
    if (whole && o->w.dtype == DT_E4M3) values_kernel<WEIGHT_FP8><<<grid, WARPS * 32, 0, s>>>(*o);
    else if (whole && o->w.dtype == DT_BF16) values_kernel<WEIGHT_BF16><<<grid, WARPS * 32, 0, s>>>(*o);
    else values_kernel<WEIGHT_OTHER><<<grid, WARPS * 32, 0, s>>>(*o);
    return cudaGetLastError();
}

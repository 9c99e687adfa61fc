/* Products of few tokens with quantized weights (cuda_few.cuh): y = W x, several at once, and glu(W x, W2 x). The warps of a block alternate over the
 * steps of its rows, and their sums are added in order, so a token's result depends neither on the number of tokens nor on how rows are spread over
 * blocks. */
#include "gpu/cuda_chain.cuh"
#include "gpu/cuda_few.cuh"

int cuda_few_rows(const struct mat *w) {
#define CASE(F) \
    case F::DTYPE: return FEW_ROWS * FEW_WARPS / few_plan_of<F>(w->cols).deep;
    switch (w->dtype) { FEW_FORMATS(CASE) }
#undef CASE
    return 1;
}
template <class F> static int bytes_ahead(const struct mat *w) {
    const struct few_plan plan = few_plan_of<F>(w->cols);
    const int steps = (plan.steps + plan.deep - 1) / plan.deep; /* of a warp */
    return FEW_WARPS * few_shape<F>::slot * (steps < F::STAGES - 1 ? steps : F::STAGES - 1);
}
int cuda_few_ahead(const struct mat *w) {
#define CASE(F) \
    case F::DTYPE: return bytes_ahead<F>(w);
    switch (w->dtype) { FEW_FORMATS(CASE) }
#undef CASE
    return 0;
}
int cuda_few_bytes(int dtype, int n) {
#define CASE(F) \
    case F::DTYPE: return few_bytes<F>(n);
    switch (dtype) { FEW_FORMATS(CASE) }
#undef CASE
    return 0;
}

/* Returns the number of rows of W of a block. */
template <class F, int NT> __device__ static inline int linear_block(struct few_sums<NT, 1> &sums, uint8_t *space, const struct op_linear &l, int block) {
    const struct mat w = head_of(l, (int)blockIdx.z);
    const int deep = few_plan_of<F>(w.cols).deep, rows = FEW_ROWS * FEW_WARPS / deep, o0 = block * rows;
    few_block<F, NT, 1>(sums, space, w, w, l.x + (size_t)blockIdx.z * (size_t)l.batch_x, l.n, l.ldx, o0);
    for (int i = (int)threadIdx.x; i < l.n * rows; i += FEW_THREADS) {
        const int t = i / rows, r = i % rows;
        if (o0 + r < w.rows) linear_store(l, t, o0 + r, w.rows, few_sum(sums, deep, 0, t, r));
    }
    return rows;
}
template <int NT, bool EPILOGUE>
static __global__ void __launch_bounds__(FEW_THREADS, NT == 1 ? 4 : 2) few_join_kernel(const __grid_constant__ struct joined j, const __grid_constant__ struct epilogue_of<EPILOGUE>::type e) {
    typedef struct few_sums<NT, 1> block_sums;
    extern __shared__ __align__(16) uint8_t space[];
    __shared__ block_sums sums;
    const int k = join_part(j), block = (int)blockIdx.x - j.begin[k];
    int rows = 0;
#define CASE(F) \
    case F::DTYPE: rows = linear_block<F, NT>(sums, space, j.o.linear[k], block); break;
    switch (j.o.linear[k].w.dtype) { FEW_FORMATS(CASE) }
#undef CASE
    if constexpr (EPILOGUE) epilogue_run(e, k, block * rows, rows, (int)gridDim.x, (float *)&sums, (char *)space);
}
/* y = glu(W x + bias, up x + up_bias) */
template <class F, int NT>
__device__ static inline void gated_block(struct few_sums<NT, 2> &sums, uint8_t *space, const struct op_linear &l, const struct mat &up, const float *up_bias, const struct glu &a) {
    const int deep = few_plan_of<F>(l.w.cols).deep, rows = FEW_ROWS * FEW_WARPS / deep, o0 = (int)blockIdx.x * rows;
    few_block<F, NT, 2>(sums, space, l.w, up, l.x, l.n, l.ldx, o0);
    for (int i = (int)threadIdx.x; i < l.n * rows; i += FEW_THREADS) {
        const int t = i / rows, r = i % rows, o = o0 + r;
        if (o >= l.w.rows) continue;
        const float g = few_sum(sums, deep, 0, t, r), u = few_sum(sums, deep, 1, t, r);
        l.y[(size_t)t * (size_t)l.ldy + (size_t)o] = glu(l.bias ? g + l.bias[o] : g, up_bias ? u + up_bias[o] : u, a);
    }
}
template <int NT> static __global__ void __launch_bounds__(FEW_THREADS, NT == 1 ? 4 : 2) few_gated_kernel(const __grid_constant__ struct op_linear l, const __grid_constant__ struct mat up, const float *up_bias, struct glu a) {
    typedef struct few_sums<NT, 2> block_sums;
    extern __shared__ __align__(16) uint8_t space[];
    __shared__ block_sums sums;
#define CASE(F) \
    case F::DTYPE: gated_block<F, NT>(sums, space, l, up, up_bias, a); break;
    switch (l.w.dtype) { FEW_FORMATS(CASE) }
#undef CASE
}

template <class F> static bool fits(const struct mat *w) {
    const int half = F::COLUMNS / 2; /* of a step */
    if (w->cols % (F::SCALED == 2 ? half : (int)FEW_GROUP) || ((size_t)w->data | w->stride) % F::ALIGN) return false;
    if (!w->scale || !F::SCALED) return !w->scale;
    return w->block_cols >= w->cols || w->block_cols % (F::SCALED == 2 ? half : (int)FEW_GROUP / F::SCALES) == 0;
}
int cuda_few_fits(const struct mat *w) {
#define CASE(F) \
    case F::DTYPE: return fits<F>(w);
    switch (w->dtype) { FEW_FORMATS(CASE) }
#undef CASE
    return 0;
}
template <int NT, bool EPILOGUE> static cudaError_t launch_join(cudaStream_t s, const struct op_join *called, const struct cuda_epilogue *epilogue) {
    struct joined j = {*called, {0}};
    int bytes = EPILOGUE ? (int)cuda_chain_space(&epilogue->chain) : 0;
    for (int k = 0; k < j.o.n; k++) {
        const struct op_linear *l = &j.o.linear[k];
        const int own = cuda_few_bytes(l->w.dtype, l->n);
        bytes = own > bytes ? own : bytes;
        j.begin[k + 1] = j.begin[k] + (int)blocks_of((size_t)l->w.rows, (size_t)cuda_few_rows(&l->w));
    }
    const cudaError_t e = cudaFuncSetAttribute(few_join_kernel<NT, EPILOGUE>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != cudaSuccess) return e;
    const dim3 grid((unsigned)j.begin[j.o.n], 1, heads_of(&j.o.linear[0]));
    few_join_kernel<NT, EPILOGUE><<<grid, FEW_THREADS, (size_t)bytes, s>>>(j, epilogue_of<EPILOGUE>::value(epilogue));
    return cudaGetLastError();
}
cudaError_t cuda_few_join(cudaStream_t s, const struct op_join *j, const struct cuda_epilogue *e) {
    const int n = j->linear[0].n;
    if (e) return n <= FEW_TOKENS ? launch_join<1, true>(s, j, e) : cudaErrorInvalidValue;
    if (n <= FEW_TOKENS) return launch_join<1, false>(s, j, e);
    return n <= BATCH_INVARIANT_ROWS ? launch_join<6, false>(s, j, e) : cudaErrorInvalidValue;
}
cudaError_t cuda_few(cudaStream_t s, const struct op_linear *l) {
    struct op_join j = {};
    j.n = 1, j.linear[0] = *l;
    return cuda_few_join(s, &j, NULL);
}
template <int NT> static cudaError_t launch_gated(cudaStream_t s, const struct op_linear *l, const struct op_linear *up, struct glu a) {
    const int bytes = cuda_few_bytes(l->w.dtype, l->n);
    const cudaError_t e = cudaFuncSetAttribute(few_gated_kernel<NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != cudaSuccess) return e;
    few_gated_kernel<NT><<<blocks_of((size_t)l->w.rows, (size_t)cuda_few_rows(&l->w)), FEW_THREADS, (size_t)bytes, s>>>(*l, up->w, up->bias, a);
    return cudaGetLastError();
}
cudaError_t cuda_few_gated(cudaStream_t s, const struct op_linear *gate, const struct op_linear *up, struct glu a) {
    if (gate->n <= FEW_TOKENS) return launch_gated<1>(s, gate, up, a);
    return gate->n <= BATCH_INVARIANT_ROWS ? launch_gated<6>(s, gate, up, a) : cudaErrorInvalidValue;
}

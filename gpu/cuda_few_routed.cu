/* A layer's routed experts for few tokens, with quantized weights (cuda_few.cuh): two launches that read the choices on the device. Of gate and up
 * the warps of a block alternate over the steps of 16 rows, of down over a token's choices. */
#include "gpu/cuda_chain.cuh"
#include "gpu/cuda_few.cuh"
#include "gpu/cuda_routed.cuh"

/* h[pair] = glu(gate x, up x): grid (rows of inter, (token, choice) pairs). */
template <class F> __device__ static inline void up_block(struct few_sums<1, 2> &sums, uint8_t *space, const struct cuda_routed &a) {
    const int pair = (int)blockIdx.y, id = a.ids[pair], inter = a.gate.rows, deep = few_plan_of<F>(a.gate.cols).deep;
    const int rows = FEW_ROWS * FEW_WARPS / deep, o0 = (int)blockIdx.x * rows;
    if (id < 0 || id >= a.n_experts) return;
    const size_t at = (size_t)id * a.expert_stride;
    few_block<F, 1, 2>(sums, space, expert_mat(a.gate, at), expert_mat(a.up, at), a.x + (size_t)(pair / a.topk) * (size_t)a.gate.cols, 1, 0, o0);
    const int r = (int)threadIdx.x, o = o0 + r;
    if (r < rows && o < inter)
        a.h[(size_t)pair * (size_t)inter + (size_t)o] =
            glu(few_sum(sums, deep, 0, 0, r) + bias_at(a.gate_bias, at, o), few_sum(sums, deep, 1, 0, r) + bias_at(a.up_bias, at, o), a.glu);
}
static __global__ void __launch_bounds__(FEW_THREADS, 4) few_up_kernel(const __grid_constant__ struct cuda_routed a) {
    typedef struct few_sums<1, 2> block_sums;
    extern __shared__ __align__(16) uint8_t space[];
    __shared__ block_sums sums;
#define CASE(F) \
    case F::DTYPE: up_block<F>(sums, space, a); break;
    switch (a.gate.dtype) { FEW_FORMATS(CASE) }
#undef CASE
}

/* A warp's way through the steps of its choices: those at position warp, warp + FEW_WARPS, .. that are experts. */
struct choice_steps {
    int k, step; /* k: a choice, topk at the end */
    __device__ inline void skip(const struct cuda_routed &a, const int32_t *ids) {
        while (k < a.topk && (ids[k] < 0 || ids[k] >= a.n_experts)) k += FEW_WARPS;
    }
    __device__ inline void next(const struct cuda_routed &a, const int32_t *ids, int steps) {
        if (++step < steps) return;
        step = 0, k += FEW_WARPS;
        skip(a, ids);
    }
};
/* part[choice] = the 16 rows' products of a token's choices with h, for the choices of each warp. */
template <class F> __device__ static inline void down_block(float part[][FEW_ROWS], uint8_t *space, const struct cuda_routed &a, int t, int r) {
    typedef struct few_shape<F> S;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, rows = a.down.rows, inter = a.down.cols;
    const struct few_plan plan = few_plan_of<F>(inter);
    const int32_t *ids = a.ids + t * a.topk;
    uint8_t *ring = space + warp * S::ring;
    const struct few_space xs = few_space_at(space + FEW_WARPS * S::ring + warp * few_space_bytes(S::groups, 1), S::groups, 1);
    struct choice_steps now = {warp, 0}, ahead;
    now.skip(a, ids);
    ahead = now;
    int ahead_slot = 0, slot = 0;
    auto request = [&] {
        if (ahead.k < a.topk) {
            const struct mat m = expert_mat(a.down, (size_t)ids[ahead.k] * a.expert_stride);
            few_request<F>(ring + ahead_slot * S::slot, few_rows_of<F>(m, r, plan.row_bytes), ahead.step);
            ahead.next(a, ids, plan.steps);
        }
        cp_commit();
        if (++ahead_slot == F::STAGES) ahead_slot = 0;
    };
#pragma unroll
    for (int i = 0; i < F::STAGES - 1; i++) request();
    float acc[1][2] = {};
    while (now.k < a.topk) {
        const size_t at = (size_t)ids[now.k] * a.expert_stride;
        const struct mat m = expert_mat(a.down, at);
        const float *h = a.h + ((size_t)t * (size_t)a.topk + (size_t)now.k) * (size_t)inter;
        const int k = now.k, step = now.step;
        const struct few_rows w = few_rows_of<F>(m, r, plan.row_bytes);
        typename F::head head[2];
        float v[8];
        few_scales<F>(head, m, w, step);
        few_step_x<F>(v, h, step, inter, ((size_t)h & 15) == 0);
        cp_wait<F::STAGES - 2>();
        __syncwarp(); /* the step has arrived, and the warp is done with the step and the activations before */
        request();
        few_store<F>(xs, 0, v);
        __syncwarp();
        few_multiply<F, 1>(acc, ring + slot * S::slot, w, head, step, xs, h, 0, 1, inter, false);
        if (++slot == F::STAGES) slot = 0;
        now.next(a, ids, plan.steps);
        if (now.k == k) continue;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = lane / 4 + 8 * i;
            if (lane % 4 == 0) part[k][row] = acc[0][i] + bias_at(a.down_bias, at, r + row < rows ? r + row : rows - 1);
            acc[0][i] = 0;
        }
    }
    cp_wait<0>();
}
/* y[t] += sum over its choices of weight * down h: grid (rows of hidden, tokens). */
template <bool EPILOGUE>
static __global__ void __launch_bounds__(FEW_THREADS, 4) few_down_kernel(const __grid_constant__ struct cuda_routed a, const __grid_constant__ struct epilogue_of<EPILOGUE>::type e) {
    extern __shared__ __align__(16) uint8_t space[];
    __shared__ float part[MAX_TOPK][FEW_ROWS];
    __shared__ uint8_t order[MAX_TOPK];
    __shared__ int n_chosen;
    const int t = (int)blockIdx.y, r = (int)blockIdx.x * FEW_ROWS;
    if (threadIdx.x / 32 == FEW_WARPS - 1) {
        const int n = order_choices(order, a.ids + t * a.topk, a.topk, a.n_experts);
        if (threadIdx.x % 32 == 0) n_chosen = n;
    }
#define CASE(F) \
    case F::DTYPE: down_block<F>(part, space, a, t, r); break;
    switch (a.down.dtype) { FEW_FORMATS(CASE) }
#undef CASE
    __syncthreads();
    const int i = (int)threadIdx.x;
    if (i < FEW_ROWS && r + i < a.down.rows) add_choices(a, t, r + i, order, n_chosen, &part[0][i], FEW_ROWS);
    if constexpr (EPILOGUE) {
        __syncthreads(); /* the sums have been read, and their memory serves the epilogue */
        epilogue_run(e, 0, 0, 0, (int)(gridDim.x * gridDim.y), &part[0][0], (char *)space);
    }
}

int cuda_few_routed_fits(const struct mat *a, const struct mat *b, size_t expert_stride) {
    return cuda_few_fits(a) && cuda_few_fits(b) && a->dtype == b->dtype && !a->order && expert_stride % 16 == 0;
}
cudaError_t cuda_few_up(cudaStream_t s, const struct cuda_routed *a) {
    const int bytes = cuda_few_bytes(a->gate.dtype, 1);
    const cudaError_t e = cudaFuncSetAttribute(few_up_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != cudaSuccess) return e;
    few_up_kernel<<<dim3(blocks_of((size_t)a->gate.rows, (size_t)cuda_few_rows(&a->gate)), (unsigned)(a->n * a->topk)), FEW_THREADS, (size_t)bytes, s>>>(*a);
    return cudaGetLastError();
}
template <bool EPILOGUE> static cudaError_t launch_down(cudaStream_t s, const struct cuda_routed *a, const struct cuda_epilogue *e) {
    const int own = cuda_few_bytes(a->down.dtype, 1), space = EPILOGUE ? (int)cuda_chain_space(&e->chain) : 0, bytes = own > space ? own : space;
    const dim3 grid(blocks_of((size_t)a->down.rows, FEW_ROWS), (unsigned)a->n);
    const cudaError_t r = cudaFuncSetAttribute(few_down_kernel<EPILOGUE>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (r != cudaSuccess) return r;
    few_down_kernel<EPILOGUE><<<grid, FEW_THREADS, (size_t)bytes, s>>>(*a, epilogue_of<EPILOGUE>::value(e));
    return cudaGetLastError();
}
cudaError_t cuda_few_down(cudaStream_t s, const struct cuda_routed *a, const struct cuda_epilogue *e) {
    return e ? launch_down<true>(s, a, e) : launch_down<false>(s, a, e);
}

/* Tiled products on tensor cores in FP8: weights in their stored format, activations quantised to E4M3 per token and 128 columns
 * (cuda_gather_fp8). A step is 128 of K; its sum, which the tensor cores hold with less than float32 precision, is promoted:
 * multiplied by both scales and added to a float32 sum. Twice the speed of BF16 and no decoding, at a precision of about 2^-4
 * of an activation. */
#include "gpu/cuda_tile.cuh"

enum { STEP = 128, STAGES = 3 };

template <int TM> struct stage { static constexpr int X = TM * STEP, WT = TILE_ROWS * STEP, SIZE = X + WT + (TM + TILE_ROWS) * 4; };
/* Offset of 16-byte vector c of a row: the eight rows of an ldmatrix load hit different banks. */
__device__ inline int place(int row, int c) { return row * STEP + ((c ^ row % 8) * 16); }

template <int TM>
static __global__ void __launch_bounds__(TILE_THREADS, TM >= 64 ? 1 : 2) tile_fp8_kernel(const __grid_constant__ struct cuda_tiles p) {
    extern __shared__ __align__(16) uint8_t space[];
    using shape = tile_shape<TM>;
    using ring = stage<TM>;
    constexpr int MI = shape::MI, NI = shape::NI, PASS = TILE_THREADS / 8;
    const tile_at at = tile_find<TM>(p);
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, q = lane % 4;
    int wm = warp / shape::N * (MI * 16), wn = warp % shape::N * (NI * 8);
    int cols = p.w[at.w].cols, rows = at.o1, steps = (cols + STEP - 1) / STEP;

    /* This thread copies one vector of every 32nd row of W and of x ... */
    int r = tid / 8, c = tid % 8, o, w_step = p.gated ? PASS / 2 : PASS, bytes = cols - c * 16;
    const struct mat &w = tile_row(p, at, r, &o);
    const uint8_t *w_from = (const uint8_t *)w.data + (size_t)(o < rows ? o : 0) * w.stride + c * 16;
    size_t w_next = (size_t)w_step * w.stride;
    const uint8_t *x_from = (const uint8_t *)p.x + (size_t)(at.t0 + r < at.t1 ? at.t0 + r : at.t0) * (size_t)p.ldx + c * 16;
    /* ... and a scale: the first half of the block of a row, the second half of a token. */
    int st = tid - TILE_ROWS, so;
    const struct mat &sm = tile_row(p, at, tid % TILE_ROWS, &so);
    int s_row = sm.scale && so < rows ? (sm.row0 + so * sm.row_step) / sm.block_rows * sm.scale_stride : 0;

    auto load = [&](int k) {
        uint8_t *to = space + k % STAGES * ring::SIZE;
#pragma unroll
        for (int i = 0; i < (TM + 31) / 32; i++) {
            if (TM < 32 && r >= TM) break;
            bool ok = at.t0 + r + i * 32 < at.t1;
            vector_load(to + place(r + i * 32, c), x_from + (ok ? (size_t)i * 32 * (size_t)p.ldx : 0) + (size_t)k * STEP,
                       ok ? bytes - k * STEP : 0, 16);
        }
#pragma unroll
        for (int i = 0; i < TILE_ROWS / PASS; i++) {
            bool ok = o + i * w_step < rows;
            vector_load(to + ring::X + place(r + i * PASS, c), w_from + (ok ? (size_t)i * w_next : 0) + (size_t)k * STEP,
                       ok ? bytes - k * STEP : 0, p.align);
        }
    };
    auto scale = [&](int k) {
        if (k >= steps) return 1.0f;
        if (st >= 0) return st < TM && at.t0 + st < at.t1 ? p.x_scale[(size_t)k * (size_t)p.scale_ld + (size_t)(at.t0 + st)] : 0.0f;
        if (!sm.scale || so >= rows) return 1.0f;
        return scalar_at(sm.scale, sm.scale_dtype, (size_t)(s_row + k * STEP / sm.block_cols));
    };
    auto keep_scale = [&](int k, float v) {
        float *sc = (float *)(space + k % STAGES * ring::SIZE + ring::X + ring::WT);
        if (st < TM) sc[tid] = v;
    };

    float acc[MI][NI][4] = {}, part[MI][NI][4] = {};
#pragma unroll
    for (int k = 0; k < STAGES - 1; k++) {
        if (k < steps) load(k);
        keep_scale(k, scale(k));
        cp_commit();
    }
    for (int k = 0; k < steps; k++) {
        cp_wait<STAGES - 2>();
        __syncthreads(); /* step k has arrived for all threads; step k - 1 is no longer read */
        int ahead = k + STAGES - 1;
        if (ahead < steps) load(ahead);
        cp_commit();
        float s = scale(ahead);
        const uint8_t *xs = space + k % STAGES * ring::SIZE, *ws = xs + ring::X;
        const float *sc = (const float *)(ws + ring::WT);
#pragma unroll
        for (int k32 = 0; k32 < STEP / 32; k32++) {
            uint32_t a[MI][4];
#pragma unroll
            for (int i = 0; i < MI; i++) ldmatrix_x4(a[i], xs + place(wm + i * 16 + lane % 16, k32 * 2 + lane / 16));
#pragma unroll
            for (int j = 0; j < NI; j += 2) { /* two columns of fragments at once */
                uint32_t b[4];
                ldmatrix_x4(b, ws + place(wn + j * 8 + lane / 16 * 8 + lane % 8, k32 * 2 + lane / 8 % 2));
#pragma unroll
                for (int i = 0; i < MI; i++) {
                    mma_e4m3(part[i][j], a[i], b[0], b[1]);
                    mma_e4m3(part[i][j + 1], a[i], b[2], b[3]);
                }
            }
        }
        float fx[MI][2], fw[NI][2];
#pragma unroll
        for (int i = 0; i < MI; i++) fx[i][0] = sc[TILE_ROWS + wm + i * 16 + g], fx[i][1] = sc[TILE_ROWS + wm + i * 16 + g + 8];
#pragma unroll
        for (int j = 0; j < NI; j++) fw[j][0] = sc[wn + j * 8 + 2 * q], fw[j][1] = sc[wn + j * 8 + 2 * q + 1];
        promote<MI, NI>(acc, part, fx, fw);
        if (ahead < steps) keep_scale(ahead, s);
    }
    tile_store<MI, NI, false>(p, at, acc, wm, wn);
}

template <int TM> static cudaError_t launch(cudaStream_t s, const struct cuda_tiles *t) {
    struct cuda_tiles p = *t;
    dim3 grid = tile_plan(&p, TM);
    constexpr int bytes = stage<TM>::SIZE * STAGES;
    if (!grid.x) return cudaSuccess;
    cudaError_t r = cudaFuncSetAttribute(tile_fp8_kernel<TM>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (r != cudaSuccess) return r;
    tile_fp8_kernel<TM><<<grid, TILE_THREADS, bytes, s>>>(p);
    return cudaGetLastError();
}
int cuda_tiles_fp8_fit(const struct mat *w) {
    return w->dtype == DT_E4M3 && (!w->scale || w->block_cols % STEP == 0 || w->block_cols >= w->cols);
}
cudaError_t cuda_tiles_fp8(cudaStream_t s, const struct cuda_tiles *t, int tokens) {
    if (t->n_parts < 1) return cudaSuccess;
    return tokens <= 16 ? launch<16>(s, t) : tokens <= 32 ? launch<32>(s, t) : tokens <= 64 ? launch<64>(s, t) : launch<128>(s, t);
}

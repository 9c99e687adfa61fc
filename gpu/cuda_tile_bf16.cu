/* Tiled products on tensor cores in BF16 with weights in their stored format: FP8 and FP4 codes are copied asynchronously to shared
 * memory, converted to BF16 in registers (exactly), and scaled once per block of K in the float32 sum. So a matrix is read from
 * device memory once and never expanded there.
 *
 * A step is 64 of K, in two chunks of 32. The order of K inside a chunk is arbitrary as long as both operands agree: a thread
 * takes eight neighbouring columns of a row, the first four for one product of 16 and the others for the next, so that every
 * format is read in one load of 4, 8 or 16 bytes. */
#include "gpu/cuda_tile.cuh"

enum { STEP = 64, CHUNK = 32 };
enum { W_BF16, W_E4M3, W_E2M1 };
/* Bytes per row of the tile, 64 columns. */
template <int W> struct width { static constexpr int value = W == W_BF16 ? 128 : W == W_E4M3 ? 64 : 32; };

/* Eight neighbouring columns of a row: those of lane q in chunk c. */
template <int W> __device__ inline void weights_at(uint32_t b[4], const uint8_t *tile, int row, int c, int q) {
    if (W == W_BF16) {
        uint4 v = *(const uint4 *)(tile + tile_place<128>(row, c * 4 + q));
        b[0] = v.x, b[1] = v.y, b[2] = v.z, b[3] = v.w;
    } else if (W == W_E4M3) {
        uint2 v = *(const uint2 *)(tile + tile_place<64>(row, c * 2 + q / 2) + q % 2 * 8);
        e4m3_four(b, v.x), e4m3_four(b + 2, v.y);
    } else {
        uint32_t v = *(const uint32_t *)(tile + tile_place<32>(row, c) + q * 4);
#pragma unroll
        for (int i = 0; i < 4; i++, v >>= 8) b[i] = e2m1_pair((v & 0xf) << 12 | (v & 0xf0) << 24);
    }
}

template <int TM, int W> struct stage {
    static constexpr int X = TM * 128, WT = TILE_ROWS * width<W>::value, SCALES = 2 * TILE_ROWS * 4, SIZE = X + WT + SCALES;
    static constexpr int N = TM >= 64 ? 3 : 4; /* within 99 KB */
};

template <int TM, int W>
static __global__ void __launch_bounds__(TILE_THREADS, TM >= 64 ? 1 : 2) tile_bf16_kernel(const __grid_constant__ struct cuda_tiles p) {
    extern __shared__ __align__(16) uint8_t space[];
    using shape = tile_shape<TM>;
    using ring = stage<TM, W>;
    constexpr int R = width<W>::value, MI = shape::MI, NI = shape::NI, PIECES = R / 16, PASS = TILE_THREADS / PIECES;
    const tile_at at = tile_find<TM>(p);
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, q = lane % 4;
    int wm = warp / shape::N * (MI * 16), wn = warp % shape::N * (NI * 8);
    int cols = p.w[at.w].cols, rows = at.o1, steps = (cols + STEP - 1) / STEP;

    /* This thread copies one vector of every PASS-th row of W and of every 32nd row of x ... */
    int wr = tid / PIECES, wc = tid % PIECES, o;
    const struct mat &wm_mat = tile_row(p, at, wr, &o);
    const uint8_t *w_from = (const uint8_t *)wm_mat.data + (size_t)(o < rows ? o : 0) * wm_mat.stride + wc * 16;
    size_t w_next = (size_t)(p.gated ? PASS / 2 : PASS) * wm_mat.stride;
    int w_bytes = (W == W_BF16 ? cols * 2 : W == W_E4M3 ? cols : (cols + 1) / 2) - wc * 16, w_step = p.gated ? PASS / 2 : PASS;
    int xr = tid / 8, xc = tid % 8, x_bytes = cols * 2 - xc * 16;
    const uint8_t *x_from = (const uint8_t *)p.x + ((size_t)(at.t0 + xr < at.t1 ? at.t0 + xr : at.t0) * (size_t)p.ldx + (size_t)xc * 8) * 2;
    /* ... and the scale of a row for one of a step's chunks. */
    int so;
    const struct mat &sm = tile_row(p, at, tid % TILE_ROWS, &so);
    int s_row = sm.scale && so < rows ? (sm.row0 + so * sm.row_step) / sm.block_rows * sm.scale_stride : 0;
    int block = sm.scale && sm.block_cols < cols ? sm.block_cols : steps * STEP; /* columns per scale */

    auto load = [&](int k) {
        uint8_t *to = space + k % ring::N * ring::SIZE;
#pragma unroll
        for (int i = 0; i < (TM + 31) / 32; i++) {
            if (TM < 32 && xr >= TM) break;
            bool ok = at.t0 + xr + i * 32 < at.t1;
            vector_load(to + tile_place<128>(xr + i * 32, xc), x_from + (ok ? (size_t)i * 64 * (size_t)p.ldx : 0) + (size_t)k * STEP * 2,
                       ok ? x_bytes - k * STEP * 2 : 0, 16);
        }
#pragma unroll
        for (int i = 0; i < TILE_ROWS / PASS; i++) {
            bool ok = o + i * w_step < rows;
            vector_load(to + ring::X + tile_place<R>(wr + i * PASS, wc), w_from + (ok ? (size_t)i * w_next : 0) + (size_t)k * R,
                       ok ? w_bytes - k * R : 0, p.align);
        }
    };
    auto scale = [&](int k) {
        int c = k * STEP + tid / TILE_ROWS * CHUNK;
        if (!sm.scale || so >= rows || k >= steps) return 1.0f;
        return scalar_at(sm.scale, sm.scale_dtype, (size_t)(s_row + (c < cols ? c : cols - 1) / sm.block_cols));
    };
    auto keep_scale = [&](int k, float v) { ((float *)(space + k % ring::N * ring::SIZE + ring::X + ring::WT))[tid] = v; };

    float acc[MI][NI][4] = {}, part[MI][NI][4] = {};
#pragma unroll
    for (int k = 0; k < ring::N - 1; k++) {
        if (k < steps) load(k);
        keep_scale(k, scale(k));
        cp_commit();
    }
    int left = block;
    for (int k = 0; k < steps; k++) {
        cp_wait<ring::N - 2>();
        __syncthreads(); /* step k has arrived for all threads; step k - 1 is no longer read */
        int ahead = k + ring::N - 1;
        if (ahead < steps) load(ahead);
        cp_commit();
        float s = scale(ahead);
        const uint8_t *xs = space + k % ring::N * ring::SIZE, *ws = xs + ring::X;
        const float *sc = (const float *)(ws + ring::WT);
#pragma unroll
        for (int c = 0; c < STEP / CHUNK; c++) {
            uint4 x[MI][2];
            tile_load_x<MI>(x, xs, wm + g, c * 4 + q);
#pragma unroll
            for (int j = 0; j < NI; j++) {
                uint32_t b[4];
                weights_at<W>(b, ws, wn + j * 8 + g, c, q);
                tile_multiply<MI, NI>(part, j, x, b);
            }
            left -= CHUNK;
            if (left == 0 || (k == steps - 1 && c == 1)) {
                float one[MI][2], f[NI][2];
#pragma unroll
                for (int i = 0; i < MI; i++) one[i][0] = one[i][1] = 1;
#pragma unroll
                for (int j = 0; j < NI; j++)
                    f[j][0] = sc[c * TILE_ROWS + wn + j * 8 + 2 * q], f[j][1] = sc[c * TILE_ROWS + wn + j * 8 + 2 * q + 1];
                promote<MI, NI>(acc, part, one, f);
                left = block;
            }
        }
        if (ahead < steps) keep_scale(ahead, s);
    }
    tile_store<MI, NI, true>(p, at, acc, wm, wn);
}

template <int TM, int W> static cudaError_t launch(cudaStream_t s, const struct cuda_tiles *t) {
    struct cuda_tiles p = *t;
    dim3 grid = tile_plan(&p, TM);
    constexpr int bytes = stage<TM, W>::SIZE * stage<TM, W>::N;
    if (!grid.x) return cudaSuccess;
    cudaError_t r = cudaFuncSetAttribute(tile_bf16_kernel<TM, W>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (r != cudaSuccess) return r;
    tile_bf16_kernel<TM, W><<<grid, TILE_THREADS, bytes, s>>>(p);
    return cudaGetLastError();
}
template <int TM> static cudaError_t launch_any(cudaStream_t s, const struct cuda_tiles *t) {
    if (cuda_tiles_blocks_fit(&t->w[t->part[0].w])) return cuda_tiles_blocks(s, t, TM);
    switch (t->w[t->part[0].w].dtype) {
    case DT_E4M3: return launch<TM, W_E4M3>(s, t);
    case DT_E2M1: return launch<TM, W_E2M1>(s, t);
    default: return launch<TM, W_BF16>(s, t);
    }
}
int cuda_tiles_fit(const struct mat *w) {
    if (cuda_tiles_blocks_fit(w)) return 1;
    int exact = w->dtype == DT_E4M3 || w->dtype == DT_E2M1 || w->dtype == DT_BF16;
    return exact && (!w->scale || (w->scale_dtype != DT_E4M3 && (w->block_cols % CHUNK == 0 || w->block_cols >= w->cols)));
}
cudaError_t cuda_tiles_bf16(cudaStream_t s, const struct cuda_tiles *t, int tokens) {
    if (t->n_parts < 1) return cudaSuccess;
    return tokens <= 16   ? launch_any<16>(s, t)
           : tokens <= 32 ? launch_any<32>(s, t)
           : tokens <= 64 ? launch_any<64>(s, t)
                          : launch_any<128>(s, t);
}

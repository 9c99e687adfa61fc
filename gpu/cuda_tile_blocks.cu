/* Tiled products on tensor cores with GGUF blocks, which are converted to BF16 on the way to shared memory: a weight is read once, in
 * its stored format, and decoded once for all tokens of a tile. Blocks are unaligned and contain their scales, so asynchronous
 * copies cannot load them. Instead a thread holds the codes of the step after the next in registers while it multiplies, and
 * writes the next step's weights to the unused half of the buffer. Half of the warps decode first and the others multiply first,
 * so that each scheduler has one of each kind.
 *
 * Every format is bytes u of 0 .. 255 with a scale d and an offset m for 16 neighbouring columns, d * u - m: signed codes are
 * biased by 128, four-bit Q4_0 by 8. The weight is rounded to BF16 once. A thread has two runs of 16 columns of one row: for
 * formats in blocks of 32, one block, low nibbles of its bytes first; for the others, 16 bytes whose low and high nibbles are 32
 * columns apart. */
#include "gpu/cuda_tile.cuh"

enum { STEP = 64, DEPTH = 3 };

template <int TM> struct stage {
    static constexpr int X = TM * 128, W = TILE_ROWS * 128, SIZE = X * DEPTH + W * 2;
};
/* Offset of 16-byte vector c of a row of W: eight rows written together hit different banks, and so do two rows read together. */
__device__ inline int w_place(int row, int c) { return row * 128 + ((c ^ ((row & 1) << 2 | (row >> 1 & 3))) * 16); }

/* Reads BYTES from any address in aligned words; words without a requested byte are not read. */
template <int BYTES> __device__ inline void take(uint32_t to[BYTES / 4], const uint8_t *p) {
    int off = (int)((size_t)p & 3);
    const uint32_t *word = (const uint32_t *)(p - off);
    uint32_t now = word[0];
#pragma unroll
    for (int i = 0; i < BYTES / 4; i++) {
        uint32_t next = i + 1 < BYTES / 4 || off ? word[i + 1] : 0;
        to[i] = __funnelshift_r(now, next, (unsigned)off * 8);
        now = next;
    }
}
__device__ inline uint32_t two_bytes(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }

/* A thread's part of 64 columns of a row: codes, separately stored upper bits, and stored scales. */
struct codes {
    uint32_t q[8], high[4], head[4];
};
/* Blocks of 256. */
__host__ __device__ constexpr bool is_k(int dtype) { return dtype == DT_Q4_K || dtype == DT_Q5_K || dtype == DT_Q6_K || dtype == DT_IQ4_XS; }
/* Columns c .. c + 63 of a row, c a multiple of 64; h: the thread's run pair. */
template <int DT> __device__ inline void codes_load(struct codes &to, const uint8_t *row, int c, int h) {
    constexpr int dtype = DT;
    constexpr bool K = is_k(DT);
    if (!K) {
        int scale = dtype == DT_MXFP4 ? 1 : 2;
        const uint8_t *b = row + (size_t)(c / 32 + h) * (size_t)(scale + (dtype == DT_Q8_0 ? 32 : 16));
        to.head[0] = scale == 1 ? b[0] : two_bytes(b);
        take<16>(to.q, b + scale);
        if (dtype == DT_Q8_0) take<16>(to.q + 4, b + scale + 16);
        return;
    }
    const uint8_t *b = row + (size_t)(c / 256) * (dtype == DT_Q4_K ? 144 : dtype == DT_Q5_K ? 176 : dtype == DT_Q6_K ? 210 : 136);
    int j = c % 256 / 64;
    if (dtype == DT_Q6_K) {
        to.head[0] = two_bytes(b + 208);
        to.head[1] = (uint32_t)b[192 + j * 4 + h] | (uint32_t)b[192 + j * 4 + 2 + h] << 8;
        take<16>(to.q, b + j / 2 * 64 + h * 16);
        take<16>(to.q + 4, b + j / 2 * 64 + 32 + h * 16);
        take<16>(to.high, b + 128 + j / 2 * 32 + h * 16);
        return;
    }
    take<16>(to.head, b); /* IQ4_XS needs only 8 */
    if (dtype == DT_Q5_K) take<16>(to.high, b + 16 + h * 16);
    take<16>(to.q, dtype == DT_IQ4_XS ? b + 8 + (2 * j + h) * 16 : b + (dtype == DT_Q5_K ? 48 : 16) + j * 32 + h * 16);
}

/* Looks up each byte of `code` (< 16) in a table of 16 bytes. */
__device__ inline uint32_t look_up(uint32_t code, uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3) {
    uint32_t s = code & 0x07070707, high = (code >> 3 & 0x01010101) * 255;
    s |= s >> 4;
    s = (s & 0xff) | (s >> 8 & 0xff00);
    return (__byte_perm(t0, t1, s) & ~high) | (__byte_perm(t2, t3, s) & high);
}
/* Run u of the thread: 16 bytes, their scale and offset. */
template <int DT> __device__ inline void codes_run(uint32_t to[4], float *d, float *m, const struct codes &from, int c, int h, int u) {
    constexpr int dtype = DT;
    constexpr bool K = is_k(DT);
    constexpr bool iq4 = dtype == (K ? DT_IQ4_XS : DT_IQ4_NL), six = K && dtype == DT_Q6_K, eight = !K && dtype == DT_Q8_0;
    const int j = c % 256 / 64;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t w = six || eight ? from.q[4 * u + i] : from.q[i] >> 4 * u;
        if (six) w = w >> (j % 2 * 4);
        if (!eight) w &= 0x0f0f0f0f;
        if (six) w |= (from.high[i] >> (j % 2 * 4 + u * 2) & 0x03030303) << 4;
        if (K && dtype == DT_Q5_K) w |= (from.high[i] >> (2 * j + u) & 0x01010101) << 4;
        if (iq4) w = look_up(w, 0x3f2d1801, 0x766a5d4f, 0xa6998d81, 0xf1d9c5b5);                          /* mat_iq4 + 128 */
        if (!K && dtype == DT_MXFP4) w = look_up(w, 0x83828180, 0x8c888684, 0x7d7e7f80, 0x74787a7c);       /* 2 * E2M1 + 128 */
        to[i] = eight ? w ^ 0x80808080 : w;
    }
    *d = !K && dtype == DT_MXFP4 ? 0.5f * e8m0_decode(from.head[0]) : block_half_bits(from.head[0]);
    if (six) *d *= (float)(int8_t)(from.head[1] >> 8 * u);
    if (K && iq4) {
        int k = 2 * j + h;
        *d *= (float)((int)((from.head[1] >> 4 * k & 15) | (from.head[0] >> (16 + 2 * k) & 3) << 4) - 32);
    }
    *m = *d * (six ? 32.0f : !K && dtype == DT_Q4_0 ? 8.0f : 128.0f);
    if (K && (dtype == DT_Q4_K || dtype == DT_Q5_K)) { /* sub-block 2j + u: six bits each of scale and minimum, packed in twelve bytes */
        int at = (2 * j + u) % 4 * 8;
        uint32_t a = from.head[1] >> at & 255, b = from.head[2] >> at & 255, e = from.head[3] >> at & 255;
        *m = block_half_bits(from.head[0] >> 16) * (float)(j < 2 ? b & 63 : e >> 4 | b >> 6 << 4);
        *d *= (float)(j < 2 ? a & 63 : (e & 15) | a >> 6 << 4);
    }
}
/* Formats with codes of 8 bits, of which those that are signed are biased by 128. */
__host__ __device__ constexpr bool has_8_bits(int dtype) { return dtype == DT_Q8_0 || dtype == DT_IQ4_NL || dtype == DT_IQ4_XS || dtype == DT_MXFP4; }
/* Byte b of a word as a float that is BASE larger, which the offset of the weight makes up for: the byte is placed in the mantissa, without an
 * addition. 2^7 has room for codes of 7 bits, and its multiples of a scale keep more bits below them than those of 2^15. */
template <int DT> __host__ __device__ constexpr float byte_base() { return has_8_bits(DT) ? 0x1p15f : 0x1p7f; }
template <int DT> __device__ inline float byte_at(uint32_t w, int b) {
    return __uint_as_float(has_8_bits(DT) ? __byte_perm(w, 0x47000000, 0x7404u | (unsigned)b << 4) : __byte_perm(w, 0x43000000, 0x7044u | (unsigned)b << 8));
}

template <int TM, int DT>
static __global__ void __launch_bounds__(TILE_THREADS, TM >= 64 ? 1 : 2) tile_blocks_kernel(const __grid_constant__ struct cuda_tiles p) {
    extern __shared__ __align__(16) uint8_t space[];
    using shape = tile_shape<TM>;
    using ring = stage<TM>;
    constexpr int MI = shape::MI, NI = shape::NI;
    constexpr bool runs_apart = is_k(DT) && DT != DT_IQ4_XS;
    const tile_at at = tile_find<TM>(p);
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, q = lane % 4;
    int wm = warp / shape::N * (MI * 16), wn = warp % shape::N * (NI * 8);
    int cols = p.w[at.w].cols, steps = (cols + STEP - 1) / STEP;
    uint8_t *const w_space = space + DEPTH * ring::X;

    /* This thread decodes runs h of row r; rows past the last are decoded but not stored ... */
    int r = tid / 2, h = tid % 2, o;
    const struct mat &w = tile_row(p, at, r, &o);
    const uint8_t *row = (const uint8_t *)w.data + (size_t)(o < at.o1 ? o : at.o0) * w.stride;
    /* ... and copies one vector of every 32nd row of x. */
    int xr = tid / 8, xc = tid % 8, x_bytes = cols * 2 - xc * 16;
    const uint8_t *x_from = (const uint8_t *)p.x + ((size_t)(at.t0 + xr < at.t1 ? at.t0 + xr : at.t0) * (size_t)p.ldx + (size_t)xc * 8) * 2;

    auto load_x = [&](int k) {
        uint8_t *to = space + k % DEPTH * ring::X;
#pragma unroll
        for (int i = 0; i < (TM + 31) / 32; i++) {
            if (TM < 32 && xr >= TM) break;
            bool ok = at.t0 + xr + i * 32 < at.t1;
            vector_load(to + tile_place<128>(xr + i * 32, xc), x_from + (ok ? (size_t)i * 64 * (size_t)p.ldx : 0) + (size_t)k * STEP * 2,
                       ok ? x_bytes - k * STEP * 2 : 0, 16);
        }
    };
    struct codes ahead;
    auto there = [&](int k) { return k * STEP + (runs_apart ? 0 : 32 * h) < cols; }; /* the last step may be a single block */
    auto load_w = [&](int k) {
        if (k < steps && there(k)) codes_load<DT>(ahead, row, k * STEP, h);
    };
    auto decode = [&](int k) {
        uint8_t *to = w_space + k % 2 * ring::W;
#pragma unroll
        for (int u = 0; u < 2; u++) {
            uint32_t bytes[4] = {0, 0, 0, 0};
            float d = 0, m = 0;
            if (there(k)) codes_run<DT>(bytes, &d, &m, ahead, k * STEP, h, u);
            m = fmaf(d, byte_base<DT>(), m);
            int piece = runs_apart ? 2 * h + 4 * u : 4 * h + 2 * u;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t v[4];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    uint32_t word = bytes[2 * i + e / 2];
                    v[e] = bf16x2_pack(fmaf(d, byte_at<DT>(word, e % 2 * 2), -m), fmaf(d, byte_at<DT>(word, e % 2 * 2 + 1), -m));
                }
                *(uint4 *)(to + w_place(r, piece + i)) = make_uint4(v[0], v[1], v[2], v[3]);
            }
        }
    };
    float acc[MI][NI][4] = {};
    auto multiply = [&](int k) {
        const uint8_t *xs = space + k % DEPTH * ring::X, *ws = w_space + k % 2 * ring::W;
#pragma unroll
        for (int c = 0; c < 2; c++) { /* as in cuda_tile_bf16.cu: eight neighbouring columns per thread */
            uint4 x[MI][2];
            tile_load_x<MI>(x, xs, wm + g, c * 4 + q);
#pragma unroll
            for (int j = 0; j < NI; j++) {
                uint4 v = *(const uint4 *)(ws + w_place(wn + j * 8 + g, c * 4 + q));
                const uint32_t b[4] = {v.x, v.y, v.z, v.w};
                tile_multiply<MI, NI>(acc, j, x, b);
            }
        }
    };

    load_w(0);
#pragma unroll
    for (int k = 0; k < DEPTH - 1; k++) {
        if (k < steps) load_x(k);
        cp_commit();
    }
    decode(0);
    load_w(1);
    for (int k = 0; k < steps; k++) {
        cp_wait<DEPTH - 2>();
        __syncthreads(); /* step k has arrived for all threads; step k - 1 is no longer read */
        if (k + DEPTH - 1 < steps) load_x(k + DEPTH - 1);
        cp_commit();
#pragma unroll 1
        for (int turn = 0; turn < 2; turn++) {
            if ((turn ^ (warp / 4)) & 1) {
                multiply(k);
            } else if (k + 1 < steps) {
                decode(k + 1);
                load_w(k + 2);
            }
        }
    }
    tile_store<MI, NI, true>(p, at, acc, wm, wn);
}

template <int TM, int DT> static cudaError_t launch(cudaStream_t s, const struct cuda_tiles *t) {
    struct cuda_tiles p = *t;
    dim3 grid = tile_plan(&p, TM);
    if (!grid.x) return cudaSuccess;
    cudaError_t r = cudaFuncSetAttribute(tile_blocks_kernel<TM, DT>, cudaFuncAttributeMaxDynamicSharedMemorySize, stage<TM>::SIZE);
    if (r != cudaSuccess) return r;
    tile_blocks_kernel<TM, DT><<<grid, TILE_THREADS, stage<TM>::SIZE, s>>>(p);
    return cudaGetLastError();
}
template <int DT> static cudaError_t launch_any(cudaStream_t s, const struct cuda_tiles *t, int tokens) {
    return tokens <= 16 ? launch<16, DT>(s, t) : tokens <= 32 ? launch<32, DT>(s, t) : tokens <= 64 ? launch<64, DT>(s, t) : launch<128, DT>(s, t);
}
int cuda_tiles_blocks_fit(const struct mat *w) { return w->dtype >= DT_Q8_0 && w->dtype <= DT_MXFP4 && !w->scale; }
cudaError_t cuda_tiles_blocks(cudaStream_t s, const struct cuda_tiles *t, int tokens) {
    if (t->n_parts < 1) return cudaSuccess;
    switch (t->w[t->part[0].w].dtype) {
    case DT_Q8_0: return launch_any<DT_Q8_0>(s, t, tokens);
    case DT_Q4_0: return launch_any<DT_Q4_0>(s, t, tokens);
    case DT_Q4_K: return launch_any<DT_Q4_K>(s, t, tokens);
    case DT_Q5_K: return launch_any<DT_Q5_K>(s, t, tokens);
    case DT_Q6_K: return launch_any<DT_Q6_K>(s, t, tokens);
    case DT_IQ4_NL: return launch_any<DT_IQ4_NL>(s, t, tokens);
    case DT_IQ4_XS: return launch_any<DT_IQ4_XS>(s, t, tokens);
    default: return launch_any<DT_MXFP4>(s, t, tokens);
    }
}

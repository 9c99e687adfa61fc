#pragma once
/* Shared by the tiled products: how a block finds its tokens and rows of W, and how 16-byte vectors are copied to and laid out in
 * shared memory. A tile of W has 128 rows; gated: 64 of gate and 64 of up, alternating in groups of eight, so that a thread holds
 * both sums of an output in registers. */
#include "gpu/cuda_device.cuh"
#include "gpu/cuda_mma.cuh"

enum { TILE_ROWS = 128, TILE_THREADS = 256 };

/* Eight warps over tokens x rows, each MI x NI fragments of 16 x 8. */
template <int TM> struct tile_shape { static constexpr int M = TM >= 64 ? 2 : 1, N = 8 / M, MI = TM / M / 16, NI = TILE_ROWS / N / 8; };

struct tile_at {
    int w, t0, t1, o0, o1; /* matrix; tokens [t0, t1); first row of W, and the end of its head's rows or of all rows */
};
template <int TM> __device__ inline tile_at tile_find(const struct cuda_tiles &p) {
    int k = 0;
    while (k + 1 < p.n_parts && (int)blockIdx.x >= p.part[k + 1].tile) k++;
    int t0 = p.part[k].row + ((int)blockIdx.x - p.part[k].tile) * TM, end = p.part[k].row + p.part[k].n;
    int w = p.part[k].w, head = (int)blockIdx.z * p.head_rows;
    return {w, t0, t0 + TM < end ? t0 + TM : end, head + (int)blockIdx.y * (p.gated ? TILE_ROWS / 2 : TILE_ROWS),
            p.head_rows ? head + p.head_rows : p.w[w].rows};
}
/* Returns the matrix, and in *o its row, for row r of the tile. */
__device__ inline const struct mat &tile_row(const struct cuda_tiles &p, const tile_at &at, int r, int *o) {
    *o = p.gated ? at.o0 + r / 16 * 8 + r % 8 : at.o0 + r;
    return p.gated && r & 8 ? p.w2[at.w] : p.w[at.w];
}

/* Offset of 16-byte vector c of a row of R bytes. The two halves of a row are swapped in every other 128 bytes, so that the lanes of a
 * load hit different banks. */
template <int R> __device__ inline int tile_place(int row, int c) { return row * R + ((c ^ (row / (128 / R) & 1) * (R / 32)) * 16); }

/* Copies 16 bytes to shared memory: `bytes` are read, the rest is zero. Rows of a checkpoint need not be 16-byte aligned. */
__device__ inline void vector_load(uint8_t *dst, const uint8_t *src, int bytes, int align) {
    if (align >= 16) {
        cp_async16(dst, src, bytes < 0 ? 0 : bytes > 16 ? 16 : bytes);
    } else if (align == 8) {
#pragma unroll
        for (int i = 0; i < 16; i += 8) cp_async8(dst + i, bytes > i ? src + i : src, bytes <= i ? 0 : bytes - i > 8 ? 8 : bytes - i);
    } else if (align == 4) {
#pragma unroll
        for (int i = 0; i < 16; i += 4) cp_async4(dst + i, bytes > i ? src + i : src, bytes <= i ? 0 : bytes - i > 4 ? 4 : bytes - i);
    } else {
        for (int i = 0; i < 16; i++) dst[i] = i < bytes ? src[i] : 0;
    }
}

/* BF16: 16-byte vector `at` of rows row and row + 8 of MI fragments of x, in rows of 64 columns. */
template <int MI> __device__ inline void tile_load_x(uint4 x[MI][2], const uint8_t *xs, int row, int at) {
#pragma unroll
    for (int i = 0; i < MI; i++) {
        x[i][0] = *(const uint4 *)(xs + tile_place<128>(row + i * 16, at));
        x[i][1] = *(const uint4 *)(xs + tile_place<128>(row + i * 16 + 8, at));
    }
}
/* BF16: adds the products of these vectors of x with the same eight columns of fragment j of W: the first four columns in one product, then the others. */
template <int MI, int NI> __device__ inline void tile_multiply(float sum[MI][NI][4], int j, const uint4 x[MI][2], const uint32_t b[4]) {
#pragma unroll
    for (int i = 0; i < MI; i++) {
        const uint32_t a[4] = {x[i][0].x, x[i][1].x, x[i][0].y, x[i][1].y};
        mma_bf16(sum[i][j], a, b[0], b[1]);
    }
#pragma unroll
    for (int i = 0; i < MI; i++) {
        const uint32_t a[4] = {x[i][0].z, x[i][1].z, x[i][0].w, x[i][1].w};
        mma_bf16(sum[i][j], a, b[2], b[3]);
    }
}

/* Scales the sums of a block of K, adds them to the result and clears them. */
template <int MI, int NI>
__device__ inline void promote(float acc[MI][NI][4], float part[MI][NI][4], const float xs[MI][2], const float ws[NI][2]) {
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
        for (int j = 0; j < NI; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                acc[i][j][e] = fmaf(part[i][j][e], xs[i][e / 2] * ws[j][e % 2], acc[i][j][e]);
                part[i][j][e] = 0;
            }
}

/* The upper left sum of fragment i, j is token t0 + 16 i + g, row 8 j + 2 q of the tile. */
template <int MI, int NI, bool BF16>
__device__ inline void tile_store(const struct cuda_tiles &p, const tile_at &at, float acc[MI][NI][4], int wm, int wn) {
    int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, rows = at.o1;
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int t = at.t0 + wm + i * 16 + half * 8 + g;
            if (t >= at.t1) continue;
            if (BF16 && p.head_rows) { /* a pair of rows is never split: nope, v_dim and ldy are even */
                size_t row = (size_t)t * gridDim.z + blockIdx.z;
#pragma unroll
                for (int j = 0; j < NI; j++) {
                    int o = at.o0 + wn + j * 8 + 2 * q, r = o - (int)blockIdx.z * p.head_rows;
                    if (o >= rows) continue;
                    __nv_bfloat16 *to = r < p.nope ? (__nv_bfloat16 *)p.y + row * (size_t)p.ldy + (size_t)r
                                                   : (__nv_bfloat16 *)p.v + row * (size_t)(p.head_rows - p.nope) + (size_t)(r - p.nope);
                    *(__nv_bfloat162 *)to = __floats2bfloat162_rn(acc[i][j][2 * half], acc[i][j][2 * half + 1]);
                }
                continue;
            }
            if (p.gated) {
#pragma unroll
                for (int j = 0; j < NI; j += 2) {
                    int o = at.o0 + (wn + j * 8) / 2 + 2 * q;
                    if (o >= rows) continue;
                    size_t to = (size_t)t * (size_t)p.ldy + (size_t)o; /* ldy is even and at least rows: o + 1 is writable */
                    float v[2];
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float gate = acc[i][j][2 * half + e], up = acc[i][j + 1][2 * half + e];
                        if (p.bias[at.w] && o + e < rows) gate += p.bias[at.w][o + e];
                        if (p.bias2[at.w] && o + e < rows) up += p.bias2[at.w][o + e];
                        v[e] = glu(gate, up, p.glu);
                    }
                    if (BF16) *(__nv_bfloat162 *)((__nv_bfloat16 *)p.y + to) = __floats2bfloat162_rn(v[0], v[1]);
                    else ((float *)p.y)[to] = v[0], ((float *)p.y)[to + 1] = v[1];
                }
                continue;
            }
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int o = at.o0 + wn + j * 8 + 2 * q + e;
                    if (o >= rows) continue;
                    float *y = (float *)p.y + (size_t)t * (size_t)p.ldy + (size_t)o, v = acc[i][j][2 * half + e];
                    if (p.bias[at.w]) v += p.bias[at.w][o];
                    *y = p.accumulate ? *y + v : v;
                }
        }
}

/* Host side: numbers the tiles and finds the alignment. Returns the grid. */
inline dim3 tile_plan(struct cuda_tiles *p, int tokens) {
    int tiles = 0;
    size_t bits = 0;
    for (int i = 0; i < p->n_parts; i++) {
        const struct mat *w = &p->w[p->part[i].w], *w2 = &p->w2[p->part[i].w];
        p->part[i].tile = tiles;
        tiles += (p->part[i].n + tokens - 1) / tokens;
        bits |= (size_t)w->data | w->stride;
        if (p->gated) bits |= (size_t)w2->data | w2->stride;
    }
    p->align = bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : bits % 4 == 0 ? 4 : 1;
    int all = p->w[p->part[0].w].rows, rows = p->head_rows ? p->head_rows : all;
    return dim3((unsigned)tiles, blocks_of((size_t)rows, p->gated ? TILE_ROWS / 2 : TILE_ROWS), (unsigned)(all / rows));
}

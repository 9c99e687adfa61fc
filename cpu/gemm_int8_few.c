/* Products of up to BATCH_INVARIANT_ROWS tokens and quantized weights, with vpdpbusd: lanes run along K, so that a row
 * is read and unpacked once for all tokens, and no panel is needed.
 *
 * Activations become eight-bit integers with a scale for each 16 columns: at most 1 / 254 of the largest of the 16 off.
 * Weights are not rounded. Vectors of 256 columns are turned so that a lane has 16 neighbouring columns, which share a
 * scale in every format: the sum of a lane's 16 products is an exact integer, and becomes a float once:
 *
 *     lane += ((sum of code * q) * scale + off * (sum of q)) * unit
 *
 * for each block of 256 columns, in order; the lanes are summed at the end of a row. So a row has the same bits in any
 * batch, and whichever rows it is computed with.
 *
 * Instructions for 256 columns of a row: about 40 to unpack and turn, and 8 for each token: 4 products, a conversion, a
 * product of scales, 2 FMAs. */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe */
#include <immintrin.h>
#endif
#include <math.h>
#include <string.h>

#include "cpu/gemm_int8_blocks.h"
#include "cpu/intdot_planes.h"

enum {
    FEW = 3,     /* up to this many tokens, sums stay in registers */
    TOKENS = 24, /* at once */
    AHEAD = 2048 /* prefetch distance per row, in bytes */
};

/* A block of a token, a lane for each 16 columns. */
struct x_block {
    int8_t q[4][64];
    int32_t start[16];       /* -128 * sum of q, because codes are made unsigned by adding 128 */
    float unit[16], sum[16]; /* sum of q */
};

static int blocks(int k) { return (k + INT8_K - 1) / INT8_K; }

/* --- Activations ------------------------------------------------------------------------------ */

static size_t packed_bytes(int n, int k) { return (size_t)n * (size_t)blocks(k) * sizeof(struct x_block); }

/* Scales are NaN where a column is not finite. */
static void pack_block(struct x_block *b, const float *x, int n) {
    int8_t in_order[INT8_K] __attribute__((aligned(64)));
    float inverse[16];
    V v[16];
    __m512i m[16], q[4];
    EACH (int i = 0; i < 16; i++) v[i] = load_left(x + 16 * i, n - 16 * i), m[i] = magnitude(v[i]);
    const V most = _mm512_castsi512_ps(_mm512_inserti64x4(_mm512_castsi256_si512(largest_8(m)), largest_8(m + 8), 1));
    const V steps = vset1(127);
    const __mmask16 finite = _mm512_cmp_ps_mask(most, vset1(INFINITY), _CMP_LT_OQ),
                    some = finite & _mm512_cmp_ps_mask(most, vset1(1e-36f), _CMP_GE_OQ); /* 127 / most is finite */
    const V unit = _mm512_mask_mov_ps(vset1(NAN), finite, _mm512_maskz_div_ps(some, most, steps));
    vstore(inverse, _mm512_maskz_div_ps(some, steps, most));
    EACH (int i = 0; i < 16; i++)
        _mm_store_si128((__m128i *)(void *)(in_order + 16 * i),
                        _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(vmul(v[i], vset1(inverse[i])))));
    EACH (int i = 0; i < 4; i++) q[i] = _mm512_load_si512(in_order + 64 * i);
    turn(q);
    __m512i sum = _mm512_setzero_si512();
    EACH (int i = 0; i < 4; i++)
        _mm512_store_si512(b->q[i], q[i]), sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), q[i]);
    const V units = _mm512_permutexvar_ps(lane_scale(16), unit);
    _mm512_store_si512(b->start, _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sum, 7)));
    vstore(b->unit, units);
    vstore(b->sum, _mm512_cvtepi32_ps(sum));
}
static void pack(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts) {
    const int each = blocks(k);
    const int64_t all = (int64_t)n * each;
    for (int64_t at = all * part / parts; at < all * (part + 1) / parts; at++) {
        const int i = (int)(at / each), b = (int)(at % each);
        pack_block((struct x_block *)dst + (size_t)b * (size_t)n + (size_t)i,
                   x + (size_t)(gather ? gather[i] : i) * (size_t)ldx + b * INT8_K, k - b * INT8_K);
    }
}

/* --- Products --------------------------------------------------------------------------------- */

INLINE __m512i dot(__m512i sum, __m512i w, __m512i x) {
#ifdef HEARTH_SIMDE
    return _mm512_dpbusd_epi32(sum, w, x);
#else
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x)); /* compilers would copy sums back and forth */
    return sum;
#endif
}
/* Adds a block's products to a lane's sums. With so few bits, what is multiplied by x's unit is rounded once. */
INLINE V add_block(V sum, __m512i d, V scale, V off, V unit, V x_sum, const bool with_off) {
    const V whole =
        with_off ? vfma(_mm512_cvtepi32_ps(d), scale, vmul(off, x_sum)) : vmul(_mm512_cvtepi32_ps(d), scale);
    return vfma(whole, unit, sum);
}
/* The products of R rows' blocks with a token, added to their sums. */
INLINE void token(V sum[4], const struct row_block *w, const struct x_block *x, const int R, const bool with_off) {
    __m512i d[4];
    EACH (int r = 0; r < R; r++) d[r] = with_off ? _mm512_setzero_si512() : _mm512_load_si512(x->start);
    EACH (int k = 0; k < 4; k++) {
        const __m512i q = _mm512_load_si512(x->q[k]);
        EACH (int r = 0; r < R; r++) d[r] = dot(d[r], w[r].code[k], q);
    }
    const V unit = vload(x->unit), x_sum = vload(x->sum);
    EACH (int r = 0; r < R; r++) sum[r] = add_block(sum[r], d[r], w[r].scale, w[r].off, unit, x_sum, with_off);
}
/* Where the sums of a block are written, in turn in one of two halves of `space`. A load waits for an earlier store
 * whose address has the same low twelve bits, so they move with x: a step writes to where x was read just before. */
typedef float sums[4][16]; /* of a token */
enum { PAGE = 4096, HALF = PAGE + TOKENS * sizeof(sums) };
INLINE sums *sums_of(const struct x_block *x, int block, void *space) {
    char *half = (char *)space + block % 2 * HALF;
    return (sums *)(half + ((uintptr_t)x - sizeof(sums) - (uintptr_t)half) % PAGE);
}

/* At the end of rows of blocks of 32 columns, what follows is read as well, and its scales are cleared; where nothing
 * follows, zeros are read. */
INLINE const uint8_t *at_end(uint8_t end[INT8_K / 32 * 34], const uint8_t *p, int cols, const uint8_t *last,
                             const int bytes, const int dtype) {
    if (last - p >= bytes) return p;
    memset(end, 0, (size_t)bytes);
    return memcpy(end, p, (size_t)(cols / 32 * bytes_32(dtype)));
}
static __mmask16 lanes_of(int cols) { return _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(cols / 16), lane_scale(16)); }
/* Four rows by n tokens at x, `ld` blocks from one to the next of each: out[t][row]. N: n, if constant, else 0. `last`:
 * the end of all rows. */
INLINE void four_rows(float (*out)[4], const uint8_t *const row[4], const uint8_t *last, int cols,
                      const struct x_block *x, int n, size_t ld, void *space, const int N, const int dtype) {
    const int bytes = (int)dtype_bytes((uint8_t)dtype, INT8_K);
    const uint8_t *p[4];
    V few[FEW][4];
    sums *from = (sums *)((char *)space + HALF);
    EACH (int i = 0; i < 4; i++) p[i] = row[i];
    EACH (int t = 0; t < N; t++)
        EACH (int i = 0; i < 4; i++) few[t][i] = vzero();
    if (!N) memset(from, 0, sizeof *from * (size_t)n);
    for (int c = 0; c < cols; c += INT8_K, x += ld) {
        struct scales_k scales;
        struct row_block b[4];
        uint8_t end[4][INT8_K / 32 * 34];
        const bool ends = bytes_32(dtype) && cols - c < INT8_K;
        if (is_q4_k(dtype)) scales_k(&scales, p);
        EACH (int i = 0; i < 4; i++) {
            EACH (int line = 0; line < (bytes + 63) / 64; line++)
                _mm_prefetch((const char *)p[i] + AHEAD + 64 * line, _MM_HINT_T0);
            if (ends) p[i] = at_end(end[i], p[i], cols - c, last, bytes, dtype);
            b[i] = block_of(p[i], &scales, i, dtype);
            if (ends) {
                const __mmask16 have = lanes_of(cols - c);
                b[i].scale = _mm512_maskz_mov_ps(have, b[i].scale), b[i].off = _mm512_maskz_mov_ps(have, b[i].off);
            }
            EACH (int t = 0; t < N; t++) token(few[t] + i, b + i, x + t, 1, has_off(dtype));
            p[i] += bytes;
        }
        if (N) continue;
        sums *next = sums_of(x, c / INT8_K, space);
        for (int t = 0; t < n; t++) {
            V sum[4];
            EACH (int i = 0; i < 4; i++) sum[i] = vload(from[t][i]);
            token(sum, b, x + t, 4, has_off(dtype));
            EACH (int i = 0; i < 4; i++) vstore(next[t][i], sum[i]);
        }
        from = next;
    }
    EACH (int t = 0; t < N; t++) vsum4(few[t][0], few[t][1], few[t][2], few[t][3], 1, out[t]);
    for (int t = 0; t < n && !N; t++)
        vsum4(vload(from[t][0]), vload(from[t][1]), vload(from[t][2]), vload(from[t][3]), 1, out[t]);
}
typedef void (*rows_fn)(float (*out)[4], const uint8_t *const row[4], const uint8_t *last, int cols,
                        const struct x_block *x, int n, size_t ld, void *space);
#define ROWS_N(name, N) \
    static __attribute__((noinline)) void rows_##name##_##N(float(*out)[4], const uint8_t *const row[4], \
                                                            const uint8_t *last, int cols, const struct x_block *x, \
                                                            int n, size_t ld, void *space) { \
        four_rows(out, row, last, cols, x, N ? N : n, ld, space, N, FORMAT_DTYPE(name)); \
    }
#define ROWS(name) ROWS_N(name, 0) ROWS_N(name, 1) ROWS_N(name, 2) ROWS_N(name, 3)
FORMATS_INT8_FEW(ROWS)
static const rows_fn rows_of[DT_COUNT][FEW + 1] = {
#define ROW(name) [FORMAT_DTYPE(name)] = {rows_##name##_0, rows_##name##_1, rows_##name##_2, rows_##name##_3},
    FORMATS_INT8_FEW(ROW)
#undef ROW
};

static size_t scratch_bytes(int n, int k) { return 2 * HALF; }
static void rows(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate,
                 void *scratch) {
    const int gap = (r1 - r0) / 4, ends = r0 + gap * 4, groups = (n + TOKENS - 1) / TOKENS;
    const uint8_t *last =
        (const uint8_t *)w->data + w->stride * (size_t)(w->rows - 1) + dtype_bytes(w->dtype, (size_t)w->cols);
    /* Four rows, of which `have` exist, each a stream of its own: the rows from one to the next are read one after the
     * other. */
    for (int r = r0; r < r1; r = r + 1 == r0 + gap ? ends : r < ends ? r + 1 : r1) {
        const int step = r < ends ? gap : 1, have = r < ends ? 4 : r1 - r;
        const uint8_t *p[4];
        for (int i = 0; i < 4; i++)
            p[i] = (const uint8_t *)w->data + w->stride * (size_t)(r + (i < have ? i : have - 1) * step);
        for (int g = 0; g < groups; g++) {
            const int t0 = n * g / groups, m = n * (g + 1) / groups - t0;
            float out[TOKENS][4];
            rows_of[w->dtype][m <= FEW ? m : 0](out, p, last, w->cols, (const struct x_block *)packed + t0, m,
                                                (size_t)n, scratch);
            for (int t = 0; t < m; t++)
                for (int i = 0; i < have; i++) {
                    float *to = y + (size_t)(t0 + t) * (size_t)ldy + r + i * step;
                    *to = accumulate ? *to + out[t][i] : out[t][i];
                }
        }
    }
}

static bool takes(const struct mat *w, int n) { return !w->scale && rows_of[w->dtype][0]; }

const struct gemm gemm_int8_few = {.name = "int8 few",
                                   .is_int8 = true,
                                   .row_tile = 4,
                                   .packed_bytes = packed_bytes,
                                   .pack = pack,
                                   .scratch_bytes = scratch_bytes,
                                   .rows = rows,
                                   .supports = takes};

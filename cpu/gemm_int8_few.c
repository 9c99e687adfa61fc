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
 * gemm_int16_few, for four-bit codes with scales of their own, keeps 16 bits of an activation as two bytes: two
 * products instead of one, and units that are powers of two (intdot_planes.h).
 *
 * Instructions for 256 columns of a row: about 40 to unpack and turn, and 8 for each token: 4 products, a conversion, a
 * product of scales, 2 FMAs. */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe */
#include <immintrin.h>
#endif
#include <math.h>
#include <string.h>

#include "cpu/gemm_int8_apart.h"
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
/* The same with 16 bits: an activation is 256 * q + low, and `start` and `sum` are those of this number. */
struct x_block16 {
    struct x_block b;
    int8_t low[4][64];
};
/* Block i of those at x. */
INLINE const struct x_block *x_at(const void *x, size_t i, const bool two) {
    return two ? &((const struct x_block16 *)x + i)->b : (const struct x_block *)x + i;
}

static int blocks(int k) { return (k + INT8_K - 1) / INT8_K; }

/* --- Activations ------------------------------------------------------------------------------ */

static size_t packed_bytes(int n, int k) { return (size_t)n * (size_t)blocks(k) * sizeof(struct x_block); }
static size_t packed_bytes16(int n, int k) { return (size_t)n * (size_t)blocks(k) * sizeof(struct x_block16); }

/* Turns bytes in order, and returns the sums of each lane's. */
INLINE __m512i put_turned(int8_t to[4][64], const int8_t *in_order) {
    __m512i q[4], sum = _mm512_setzero_si512();
    EACH (int i = 0; i < 4; i++) q[i] = _mm512_load_si512(in_order + 64 * i);
    turn(q);
    EACH (int i = 0; i < 4; i++)
        _mm512_store_si512(to[i], q[i]), sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), q[i]);
    return sum;
}
INLINE void put_sums(struct x_block *b, __m512i sum, V unit) {
    _mm512_store_si512(b->start, _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sum, 7)));
    vstore(b->unit, spread_16(unit));
    vstore(b->sum, _mm512_cvtepi32_ps(sum));
}
/* Scales are NaN where a column is not finite. */
static void pack_block(struct x_block *b, const float *x, int n) {
    int8_t in_order[INT8_K] __attribute__((aligned(64)));
    float inverse[16];
    V v[16];
    __m512i m[16];
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
    put_sums(b, put_turned(b->q, in_order), unit);
}
static void pack_block16(struct x_block16 *b, const float *x, int n) {
    int8_t high[INT8_K] __attribute__((aligned(64))), low[INT8_K] __attribute__((aligned(64)));
    float inverse[16];
    V v[16];
    EACH (int i = 0; i < 16; i++) v[i] = load_left(x + 16 * i, n - 16 * i);
    const __m256 first = units_8(v, inverse, false), second = units_8(v + 8, inverse + 8, false);
    EACH (int i = 0; i < 16; i++) {
        const __m512i q = _mm512_cvtps_epi32(vmul(v[i], vset1(inverse[i]))),
                      h = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
        _mm_store_si128((__m128i *)(void *)(high + 16 * i), _mm512_cvtepi32_epi8(h));
        _mm_store_si128((__m128i *)(void *)(low + 16 * i),
                        _mm512_cvtepi32_epi8(_mm512_sub_epi32(q, _mm512_slli_epi32(h, 8))));
    }
    const __m512i sum = put_turned(b->b.q, high);
    put_sums(&b->b, _mm512_add_epi32(_mm512_slli_epi32(sum, 8), put_turned(b->low, low)),
             _mm512_insertf32x8(_mm512_castps256_ps512(first), second, 1));
}
INLINE void pack_all(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts,
                     const bool two) {
    const int each = blocks(k);
    const int64_t all = (int64_t)n * each;
    for (int64_t at = all * part / parts; at < all * (part + 1) / parts; at++) {
        const int i = (int)(at / each), b = (int)(at % each);
        const float *from = x + (size_t)(gather ? gather[i] : i) * (size_t)ldx + b * INT8_K;
        const size_t to = (size_t)b * (size_t)n + (size_t)i;
        if (two) pack_block16((struct x_block16 *)dst + to, from, k - b * INT8_K);
        else pack_block((struct x_block *)dst + to, from, k - b * INT8_K);
    }
}
static void pack(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts) {
    pack_all(dst, x, gather, ldx, n, k, part, parts, false);
}
static void pack16(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts) {
    pack_all(dst, x, gather, ldx, n, k, part, parts, true);
}

/* --- Products --------------------------------------------------------------------------------- */

/* Adds a block's products to the lanes' sums. With 8-bit activations the integer and its product with `off` are exact,
 * so that there is one rounding before x's unit. */
INLINE V add_block(V sum, __m512i d, V scale, V off, V unit, V x_sum, const bool with_off) {
    const V whole =
        with_off ? vfma(_mm512_cvtepi32_ps(d), scale, vmul(off, x_sum)) : vmul(_mm512_cvtepi32_ps(d), scale);
    return vfma(whole, unit, sum);
}
/* The products of R rows' blocks with a token, added to their sums. two: x has 16 bits. */
INLINE void token(V sum[4], const struct row_block *w, const struct x_block *x, const int R, const bool with_off,
                  const bool two) {
    __m512i d[4];
    EACH (int r = 0; r < R; r++) d[r] = with_off || two ? _mm512_setzero_si512() : _mm512_load_si512(x->start);
    EACH (int k = 0; k < 4; k++) {
        const __m512i q = _mm512_load_si512(x->q[k]);
        EACH (int r = 0; r < R; r++) d[r] = add_fours(d[r], w[r].code[k], q);
    }
    if (two) {
        const struct x_block16 *all = (const struct x_block16 *)(const void *)x;
        EACH (int r = 0; r < R; r++) d[r] = _mm512_slli_epi32(d[r], 8);
        EACH (int k = 0; k < 4; k++) {
            const __m512i q = _mm512_load_si512(all->low[k]);
            EACH (int r = 0; r < R; r++) d[r] = add_fours(d[r], w[r].code[k], q);
        }
        EACH (int r = 0; r < R && !with_off; r++) d[r] = _mm512_add_epi32(d[r], _mm512_load_si512(x->start));
    }
    const V unit = vload(x->unit), x_sum = vload(x->sum);
    EACH (int r = 0; r < R; r++) sum[r] = add_block(sum[r], d[r], w[r].scale, w[r].off, unit, x_sum, with_off);
}
/* Returns the place for the sums after a block, in one half of `space` after even blocks and in the other after odd
 * ones. The CPU delays a load behind an earlier store whose address has the same low 12 bits. So the place moves along
 * with x: each store has the low bits of an address that has just been read, and is not read again soon. */
typedef float sums[4][16]; /* of a token */
enum { PAGE = 4096, HALF = PAGE + TOKENS * sizeof(sums) };
INLINE sums *sums_of(const void *x, int block, void *space) {
    char *half = (char *)space + block % 2 * HALF;
    return (sums *)(half + ((uintptr_t)x - sizeof(sums) - (uintptr_t)half) % PAGE);
}

/* The last block of a row may have fewer than 256 columns. The bytes after it are decoded as well, and row_block() sets
 * their scales to 0. At the end of the matrix, where there are no such bytes, returns a copy with zeros instead. */
INLINE const uint8_t *at_end(uint8_t end[INT8_K / 32 * 34], const uint8_t *p, int cols, const uint8_t *last,
                             const int kind) {
    if (last - p >= block_bytes(kind)) return p;
    memset(end, 0, (size_t)block_bytes(kind));
    return memcpy(end, p, (size_t)(cols / 32 * bytes_32(kind)));
}
static __mmask16 lanes_of(int cols) { return _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(cols / 16), lane_scale(16)); }
/* The block of row i at column c. */
INLINE struct row_block row_block(const struct four *w, int i, int c, const struct scales_k *scales, const int kind) {
    const int left = w->cols - c;
    const uint8_t *p = w->p[i] + (size_t)(c / INT8_K) * (size_t)block_bytes(kind);
    const bool ends = bytes_32(kind) && left < INT8_K;
    uint8_t end[INT8_K / 32 * 34], end_s[32];
    EACH (int line = 0; line < (block_bytes(kind) + 63) / 64; line++)
        _mm_prefetch((const char *)p + AHEAD + 64 * line, _MM_HINT_T0);
    if (ends) p = at_end(end, p, left, w->last, kind);
    struct row_block b;
    if (is_apart(kind)) {
        const uint8_t *s = w->s[i] + c / scale_cols(kind) * scale_bytes(kind);
        if (ends) {
            const int n = (left + scale_cols(kind) - 1) / scale_cols(kind) * scale_bytes(kind);
            memset(end_s, 0, sizeof end_s);
            s = memcpy(end_s, s, (size_t)n);
        }
        b = block_apart(p, s, w, kind);
    } else b = block_of(p, scales, i, kind);
    if (ends) {
        const __mmask16 have = lanes_of(left);
        b.scale = _mm512_maskz_mov_ps(have, b.scale), b.off = _mm512_maskz_mov_ps(have, b.off);
    }
    return b;
}
/* Four rows by n tokens at x, `ld` blocks from one to the next of each: out[t][row]. N: n, if constant, else 0. */
INLINE void four_rows(float (*out)[4], const struct four *w, const void *packed, int n, size_t ld, void *space,
                      const int N, const int kind) {
    const bool two = is_apart(kind);
    V few[FEW][4];
    sums *from = (sums *)((char *)space + HALF);
    EACH (int t = 0; t < N; t++)
        EACH (int i = 0; i < 4; i++) few[t][i] = vzero();
    if (!N) memset(from, 0, sizeof *from * (size_t)n);
    for (int c = 0; c < w->cols; c += INT8_K) {
        const struct x_block *x = x_at(packed, (size_t)(c / INT8_K) * ld, two);
        struct scales_k scales;
        struct row_block b[4];
        if (is_q4_k(kind)) {
            const uint8_t *p[4];
            EACH (int i = 0; i < 4; i++) p[i] = w->p[i] + (size_t)(c / INT8_K) * (size_t)block_bytes(kind);
            scales_k(&scales, p);
        }
        EACH (int i = 0; i < 4; i++) {
            b[i] = row_block(w, i, c, &scales, kind);
            EACH (int t = 0; t < N; t++) token(few[t] + i, b + i, x_at(x, (size_t)t, two), 1, has_off(kind), two);
        }
        if (N) continue;
        sums *next = sums_of(x, c / INT8_K, space);
        for (int t = 0; t < n; t++) {
            V sum[4];
            EACH (int i = 0; i < 4; i++) sum[i] = vload(from[t][i]);
            token(sum, b, x_at(x, (size_t)t, two), 4, has_off(kind), two);
            EACH (int i = 0; i < 4; i++) vstore(next[t][i], sum[i]);
        }
        from = next;
    }
    EACH (int t = 0; t < N; t++) vsum4(few[t][0], few[t][1], few[t][2], few[t][3], 1, out[t]);
    for (int t = 0; t < n && !N; t++)
        vsum4(vload(from[t][0]), vload(from[t][1]), vload(from[t][2]), vload(from[t][3]), 1, out[t]);
}
typedef void (*rows_fn)(float (*out)[4], const struct four *w, const void *x, int n, size_t ld, void *space);
#define ROWS_N(name, kind, N) \
    static __attribute__((noinline)) void rows_##name##_##N(float(*out)[4], const struct four *w, const void *x, \
                                                            int n, size_t ld, void *space) { \
        four_rows(out, w, x, N ? N : n, ld, space, N, kind); \
    }
#define ROWS_KIND(name, kind) ROWS_N(name, kind, 0) ROWS_N(name, kind, 1) ROWS_N(name, kind, 2) ROWS_N(name, kind, 3)
#define ROWS(name)            ROWS_KIND(name, FORMAT_DTYPE(name))
FORMATS_INT8_FEW(ROWS)
ROWS_KIND(e2m1_e8m0, E2M1_E8M0)
ROWS_KIND(e2m1_e4m3, E2M1_E4M3)
ROWS_KIND(i4_32, I4_32)
ROWS_KIND(i4_128, I4_128)
ROWS_KIND(i4_zeros, I4_ZEROS)
static const rows_fn rows_of[INT8_FEW_KINDS][FEW + 1] = {
#define OF(name) \
    { rows_##name##_0, rows_##name##_1, rows_##name##_2, rows_##name##_3 }
#define ROW(name) [FORMAT_DTYPE(name)] = OF(name),
    FORMATS_INT8_FEW(ROW)[E2M1_E8M0] = OF(e2m1_e8m0), [E2M1_E4M3] = OF(e2m1_e4m3), [I4_32] = OF(i4_32),
    [I4_128] = OF(i4_128), [I4_ZEROS] = OF(i4_zeros)};

/* Returns the index of w's kind in rows_of; -1 if w has no kernel here. */
static int kind_of(const struct mat *w) {
    const bool half = w->scale_dtype == DT_F16 || w->scale_dtype == DT_BF16;
    if (w->dtype != DT_E2M1 && w->dtype != DT_I4) return !w->scale && rows_of[w->dtype][0] ? w->dtype : -1;
    if (!w->scale || w->cols % 32) return -1;
    if (w->dtype == DT_E2M1) {
        if (w->scale_dtype == DT_E8M0) return w->block_cols == 32 ? E2M1_E8M0 : -1;
        return w->scale_dtype == DT_E4M3 && w->block_cols == 16 ? E2M1_E4M3 : -1;
    }
    if (w->block_cols == 128) return half ? I4_128 : w->scale_dtype == DT_F32Z ? I4_ZEROS : -1;
    return half && w->block_cols == 32 ? I4_32 : -1;
}
static bool takes(const struct mat *w, int n) { return kind_of(w) >= 0 && !is_apart(kind_of(w)); }
static bool takes16(const struct mat *w, int n) { return is_apart(kind_of(w)); }

static size_t scratch_bytes(int n, int k) { return 2 * HALF; }
/* Rows r, r + step and so on, of which `have` of four exist, each a stream of its own: a task reads the rows from one
 * to the next one after the other. */
static void rows_at(const struct mat *w, int kind, int r, int step, int have, const void *packed, int n, float *y,
                    int ldy, bool accumulate, void *space) {
    const int groups = (n + TOKENS - 1) / TOKENS;
    struct four f = {.last = (const uint8_t *)w->data + w->stride * (size_t)(w->rows - 1) +
                             dtype_bytes(w->dtype, (size_t)w->cols),
                     .cols = w->cols,
                     .gain = E4M3_AS_F16 / 2 * w->scale_gain, /* values are doubled */
                     .is_f16 = w->scale_dtype == DT_F16};
    for (int i = 0; i < 4; i++) {
        const int row = r + (i < have ? i : have - 1) * step;
        f.p[i] = (const uint8_t *)w->data + w->stride * (size_t)row;
        f.s[i] = is_apart(kind) ? (const uint8_t *)w->scale + scale_row(w, row) * (size_t)scale_bytes(kind) : NULL;
    }
    for (int g = 0; g < groups; g++) {
        const int t0 = n * g / groups, m = n * (g + 1) / groups - t0;
        float out[TOKENS][4];
        rows_of[kind][m <= FEW ? m : 0](out, &f, x_at(packed, (size_t)t0, is_apart(kind)), m, (size_t)n, space);
        for (int t = 0; t < m; t++)
            for (int i = 0; i < have; i++) {
                float *to = y + (size_t)(t0 + t) * (size_t)ldy + r + i * step;
                *to = accumulate ? *to + out[t][i] : out[t][i];
            }
    }
}
static void rows(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate,
                 void *scratch) {
    const int kind = kind_of(w), gap = (r1 - r0) / 4, rest = r0 + gap * 4;
    for (int r = r0; r < r0 + gap; r++) rows_at(w, kind, r, gap, 4, packed, n, y, ldy, accumulate, scratch);
    if (rest < r1) rows_at(w, kind, rest, 1, r1 - rest, packed, n, y, ldy, accumulate, scratch);
}

const struct gemm gemm_int8_few = {.name = "int8 few",
                                   .is_int8 = true,
                                   .row_tile = 4,
                                   .packed_bytes = packed_bytes,
                                   .pack = pack,
                                   .scratch_bytes = scratch_bytes,
                                   .rows = rows,
                                   .supports = takes};
const struct gemm gemm_int16_few = {.name = "int16 few",
                                    .is_int16 = true,
                                    .row_tile = 4,
                                    .packed_bytes = packed_bytes16,
                                    .pack = pack16,
                                    .scratch_bytes = scratch_bytes,
                                    .rows = rows,
                                    .supports = takes16};

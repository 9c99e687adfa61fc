/* Products of up to BATCH_INVARIANT_ROWS tokens, or GEMM_SKINNY_BF16_MAX of a larger batch: too few to pay for
 * gemm_vnni.c's transposed panels. Weights are decoded to BF16 in registers in their stored order, 64 columns of a row
 * at once, and multiplied with every token's columns by vdpbf16ps; lanes run along K and are summed at the end of the
 * row.
 *
 * Two versions: gemm_skinny keeps activations as the sum of two BF16 (2^-17: for batched decode and verify, where a
 * token must get the same bits as alone); gemm_skinny_bf16 rounds them to BF16 (for small groups of a long prompt,
 * whose large groups do the same).
 *
 * Packed: for each group of tokens and each 64 columns, zero-padded: the 64 numbers of each token, plane by plane. So a
 * step reads neighbouring lines at fixed distances, which use all sets of L1. Then the same tokens as float32, because
 * E4M3 scales that many rows share multiply x before it is split: sums then run on over scale blocks, which saves up to
 * 40 % of the time. */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe */
#include <immintrin.h>
#endif
#include <string.h>

#include "base/scale.h"
#include "cpu/e4m3_bf16.h"
#include "cpu/gemm_inner.h"

#define INLINE static inline __attribute__((always_inline))
#define EACH   _Pragma("GCC unroll 16") for

enum {
    STEP = 64,
    AHEAD = 2560 /* prefetch distance per row, in bytes */,
    GROUP = 4 /* tokens */,
    MOST = 2 * GROUP,
    PART = 512,
    SHARED_ROWS = 64
};

static size_t width(int k) { return (size_t)(k + STEP - 1) / STEP * STEP; }
static size_t planes_bytes(int n, int k, int planes) {
    return (size_t)n * width(k) * (size_t)planes * sizeof(uint16_t);
}
static size_t packed_bytes(int n, int k, int planes) {
    return planes_bytes(n, k, planes) + (size_t)n * width(k) * sizeof(float);
}
static size_t bytes_1(int n, int k) { return packed_bytes(n, k, 1); }
static size_t bytes_2(int n, int k) { return packed_bytes(n, k, 2); }
/* Tokens of a group: all, or as even as possible; the last group may be smaller. */
static int group_size(int n) {
    const int groups = (n + GROUP - 1) / GROUP;
    return (n + groups - 1) / groups;
}

/* Stores 16 numbers as BF16 and, with two planes, their remainders a plane further. */
INLINE void store_split(uint16_t *to, __m512 v, const int S) {
    const __m256i head = (__m256i)_mm512_cvtneps_pbh(v);
    _mm256_storeu_si256((__m256i *)(void *)to, head);
    if (S == 1) return;
    v = _mm512_sub_ps(v, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(head), 16)));
    _mm256_storeu_si256((__m256i *)(void *)(to + STEP), (__m256i)_mm512_cvtneps_pbh(v));
}
INLINE void pack(uint16_t *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts,
                 const int S) {
    const size_t w = width(k), steps = w / 16;
    const int each = group_size(n);
    float *floats = (float *)(void *)((uint8_t *)dst + planes_bytes(n, k, S));
    const size_t end = (size_t)n * steps * (size_t)(part + 1) / (size_t)parts;
    for (size_t at = (size_t)n * steps * (size_t)part / (size_t)parts; at < end;) {
        const size_t token = at / steps, begin = token * steps, stop = begin + steps < end ? begin + steps : end;
        const int i = (int)token, first = i - i % each, group = n - first < each ? n - first : each;
        const float *from = x + (size_t)(gather ? gather[i] : i) * (size_t)ldx;
        uint16_t *to = dst + (w * (size_t)first + (size_t)(i - first) * STEP) * S;
        for (; at < stop; at++) {
            const size_t c = (at - begin) * 16;
            const int left = k - (int)c;
            const __mmask16 have = (__mmask16)(left >= 16 ? 0xffff : left > 0 ? (1 << left) - 1 : 0);
            const __m512 v = _mm512_maskz_loadu_ps(have, from + c);
            store_split(to + c / STEP * STEP * (size_t)(group * S) + c % STEP, v, S);
            _mm512_storeu_ps(floats + at * 16, v);
        }
    }
}
/* A group's planes of x times the scales that `scales` is the first of, from its float32 rows. */
INLINE void pack_scaled(uint16_t *to, const float *x, int n, const struct mat *w, size_t scales, const int S) {
    const int all = (int)width(w->cols);
    for (int c = 0; c < all; c += STEP) {
        const __m512 f = _mm512_set1_ps(scale_load(w, scales + (size_t)(c / w->block_cols)));
        for (int i = 0; i < n; i++, to += STEP * S)
            EACH (int u = 0; u < STEP; u += 16)
                store_split(to + u, _mm512_mul_ps(_mm512_loadu_ps(x + (size_t)i * (size_t)all + c + u), f), S);
    }
}
static void pack_1(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts) {
    pack(dst, x, gather, ldx, n, k, part, parts, 1);
}
static void pack_2(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts) {
    pack(dst, x, gather, ldx, n, k, part, parts, 2);
}

/* --- 64 weights as two vectors of BF16, columns in order -------------------------------------- */

INLINE void weights(const struct e4m3_bf16 *t, const uint8_t *p, __m512i out[2], const int format) {
    if (format == DT_BF16) {
        out[0] = _mm512_loadu_si512(p);
        out[1] = _mm512_loadu_si512(p + 64);
    } else e4m3_bf16_decode(t, _mm512_loadu_si512(p), out);
}
INLINE __m512 dot(__m512 sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

/* --- Rows ------------------------------------------------------------------------------------- */

struct job {
    const struct mat *w;
    const uint16_t *x, *second; /* packed tokens of a group, and of a second one */
    float *y;                   /* the first token's, indexed by row */
    int ldy;
    int last;        /* rows past it repeat it; their sums are discarded */
    int part, block; /* columns of a partial sum, and of a scale: multiples of the former */
    bool accumulate;
};
/* A range: rows r, r + gap, ... over columns [k0, k1). jump: where prefetch continues past k1, relative to that. */
struct piece {
    int r, gap, k0, k1, ahead;
    int64_t jump;
};

/* The last n < 64 columns of a row at `from`, zero-padded. */
static __attribute__((noinline)) const uint8_t *row_end(uint8_t *to, const uint8_t *from, size_t n) {
    memset(to, 0, 128);
    return memcpy(to, from, n);
}

/* 64 columns of R rows, starting at c; n < 64 at the end of the rows. */
INLINE void step(const struct job *j, const struct e4m3_bf16 *t, const struct piece *p, const uint8_t *const *row,
                 __m512 part[4][MOST], int c, int n, const int R, const int N, const int S, const int format) {
    const size_t size = format == DT_BF16 ? 2 : 1, at = size * (size_t)c;
    int64_t ahead = (int64_t)at + p->ahead;
    if (ahead >= (int64_t)size * p->k1) ahead += p->jump;
    uint8_t ends[4][128];
    const uint8_t *from[4];
    EACH (int i = 0; i < R; i++) from[i] = row[i] + at;
    if (n < STEP) /* once per row; a single copy of the code after it, which takes long to compile */
        EACH (int i = 0; i < R; i++) from[i] = row_end(ends[i], from[i], size * (size_t)n);
    __m512i v[4][2];
    EACH (int i = 0; i < R; i++) {
        EACH (size_t line = 0; line < size; line++) _mm_prefetch((const char *)row[i] + ahead + 64 * line, _MM_HINT_T0);
        weights(t, from[i], v[i], format);
    }
    EACH (int k = 0; k < N; k++)
        EACH (int s = 0; s < S; s++) {
            const int g = N > GROUP ? (N + 1) / 2 : N, left = k < g ? g : N - g; /* tokens of its group */
            const uint16_t *x =
                (k < g ? j->x : j->second) + (size_t)c * (left * S) + ((k < g ? k : k - g) * S + s) * STEP;
            __m512i lo = _mm512_loadu_si512(x), hi = _mm512_loadu_si512(x + 32);
            EACH (int i = 0; i < R; i++) part[i][k] = dot(dot(part[i][k], v[i][0], lo), v[i][1], hi);
        }
}

/* Hides from the compiler how pointers depend on each other: it would keep one for each of 16 sums, most of them on the
 * stack. */
#ifdef HEARTH_SIMDE
#define OPAQUE(p)
#else
#define OPAQUE(p) __asm__("" : "+r"(p))
#endif

/* total[row * N + token] += the range's sums, R rows of it. Order of a sum: lanes, parts; the same for all N and R. */
INLINE void piece(const struct job *j, const struct e4m3_bf16 *t, const struct piece *p, __m512 *total, const int R,
                  const int N, const int S, const int format) {
    const struct mat *w = j->w;
    const uint8_t *row[4];
    __m512 *sum[4];
    size_t scales[4];
    EACH (int i = 0; i < R; i++) {
        const int r = p->r + i * p->gap, at = r < j->last ? r : j->last;
        row[i] = (const uint8_t *)w->data + (size_t)at * w->stride;
        scales[i] = scale_row(w, at);
        sum[i] = total + i * p->gap * N;
        OPAQUE(sum[i]);
    }
    int b = p->k0 / j->block, edge = (b + 1) * j->block;
    for (int c = p->k0; c < p->k1;) {
        const int end = p->k1 - c < j->part ? p->k1 : c + j->part;
        __m512 part[4][MOST];
        EACH (int i = 0; i < R; i++)
            EACH (int k = 0; k < N; k++) part[i][k] = _mm512_setzero_ps();
        for (; c < end; c += STEP) step(j, t, p, row, part, c, end - c, R, N, S, format);
        c = end;
        EACH (int i = 0; i < R; i++) {
            const __m512 s = _mm512_set1_ps(scale_load(w, scales[i] + (size_t)b));
            EACH (int k = 0; k < N; k++) sum[i][k] = _mm512_fmadd_ps(part[i][k], s, sum[i][k]);
        }
        if (c == edge) b++, edge += j->block;
    }
}

/* Chunks of rows, each walked as R distant streams, in spans of columns whose tokens fit L1. */
INLINE void all_rows(struct job *j, const struct e4m3_bf16 *t, int r0, int r1, const int R, const int N, const int S,
                     const int format) {
    enum { L1 = 24 << 10 };
    const int chunk = 256 / N / R * R, cols = j->w->cols, size = format == DT_BF16 ? 2 : 1;
    const int64_t stride = (int64_t)j->w->stride;
    int span = L1 / (2 * N * S) / j->part * j->part;
    if (span < j->part) span = j->part;
    if (span >= cols || 4 * span > 3 * cols) span = cols;
    for (int base = r0; base < r1; base += chunk) {
        const int rows = r1 - base < chunk ? r1 - base : chunk, gap = rows / R;
        j->last = base + rows - 1;
        __m512 total[256 + 4 * MOST];
        for (int i = 0; i < rows * N; i++) total[i] = _mm512_setzero_ps();
        for (int k0 = 0; k0 < cols; k0 += span) {
            struct piece p = {.gap = gap, .k0 = k0, .k1 = cols - k0 < span ? cols : k0 + span};
            const int64_t back = (int64_t)size * (p.k1 - k0);
            const int rows_ahead = back < AHEAD ? (int)(AHEAD / (back + 1)) + 1 : 1; /* several, if rows are short */
            p.ahead = back < AHEAD ? (int)back : AHEAD;
            for (int i = 0; i < gap + (rows > gap * R); i++) {
                p.r = base + i, p.jump = rows_ahead * stride - back;
                if (i + rows_ahead >= gap) /* prefetch continues in the next span or chunk */
                    p.jump += p.k1 < cols ? back - gap * stride : (rows - gap) * stride - (int64_t)size * k0;
                if (i == gap) p.r = base + gap * R, p.gap = 1; /* remainder of the chunk */
                piece(j, t, &p, total + (p.r - base) * N, R, N, S, format);
            }
        }
        for (int i = 0; i < rows; i++)
            EACH (int k = 0; k < N; k++) {
                float *y = j->y + (size_t)k * (size_t)j->ldy + base + i, sum = _mm512_reduce_add_ps(total[i * N + k]);
                *y = j->accumulate ? *y + sum : sum;
            }
    }
}
/* A function for each case: one function with all of them takes three times as long to compile. */
#define ALL_ROWS(n, R, S, format) \
    static __attribute__((noinline)) void all_rows_##n##_##S##_##format(struct job *j, int r0, int r1) { \
        const struct e4m3_bf16 t = e4m3_bf16_load(); \
        all_rows(j, &t, r0, r1, R, n, S, format); \
    }
#define ALL_PLANES(n, R, format) ALL_ROWS(n, R, 1, format) ALL_ROWS(n, R, 2, format)
#define ONE_GROUP(format) \
    ALL_PLANES(1, 4, format) ALL_PLANES(2, 4, format) ALL_PLANES(3, 4, format) ALL_PLANES(4, 4, format)
/* As many rows at a time as their sums fit the registers. Two groups of E4M3 weights are decoded twice, the second time
 * from L2: faster than two rows at a time from memory. */
ONE_GROUP(DT_E4M3)
ONE_GROUP(DT_BF16)
ALL_PLANES(5, 2, DT_BF16)
ALL_PLANES(6, 2, DT_BF16)
ALL_PLANES(7, 2, DT_BF16)
ALL_PLANES(8, 2, DT_BF16)

#define UP_TO_4(S, format) \
    all_rows_1_##S##_##format, all_rows_2_##S##_##format, all_rows_3_##S##_##format, all_rows_4_##S##_##format
#define UP_TO_8(S, format) \
    UP_TO_4(S, format), all_rows_5_##S##_##format, all_rows_6_##S##_##format, all_rows_7_##S##_##format, \
        all_rows_8_##S##_##format
/* By whether weights are E4M3, by planes and by tokens. */
static void (*const all_rows_of[2][2][MOST])(struct job *, int, int) = {{{UP_TO_8(1, DT_BF16)}, {UP_TO_8(2, DT_BF16)}},
                                                                        {{UP_TO_4(1, DT_E4M3)}, {UP_TO_4(2, DT_E4M3)}}};

/* E4M3 with one scale for many rows of a column block, as in FP8 checkpoints. */
static bool shares_scales(const struct mat *w) {
    return w->dtype == DT_E4M3 && w->scale && w->block_cols < w->cols && w->block_rows >= SHARED_ROWS &&
           w->row_step == 1;
}
INLINE void rows(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate,
                 void *scratch, const int S) {
    const bool shared = shares_scales(w);
    const float *floats = (const float *)(const void *)((const uint8_t *)packed + planes_bytes(n, w->cols, S));
    struct mat plain = *w;
    if (shared) plain.scale = NULL;
    struct job j = {.w = &plain, .ldy = ldy, .accumulate = accumulate};
    j.block = plain.scale && w->block_cols < w->cols ? w->block_cols : w->cols / PART * PART + PART;
    j.part = j.block % PART ? j.block : PART;
    for (int r = r0, end; r < r1; r = end) {
        const int same = shared ? w->block_rows - (w->row0 + r) % w->block_rows : r1;
        end = r1 - r < same ? r1 : r + same;
        for (int i = 0, each = group_size(n), m; i < n; i += m) {
            const int second = n - i - each < each ? n - i - each : each; /* tokens of the next group */
            m = n - i < each ? n - i : each;
            if (w->dtype == DT_BF16 && (second == m || second == m - 1)) m += second;
            j.x = (const uint16_t *)packed + (size_t)(i * S) * width(w->cols);
            j.second = j.x + (size_t)(each * S) * width(w->cols);
            j.y = y + (size_t)i * (size_t)ldy;
            if (shared)
                pack_scaled(scratch, floats + (size_t)i * width(w->cols), m, w, scale_row(w, r), S), j.x = scratch;
            all_rows_of[w->dtype == DT_E4M3][S - 1][m - 1](&j, r, end);
        }
    }
}
static void rows_1(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate,
                   void *scratch) {
    rows(w, r0, r1, packed, n, y, ldy, accumulate, scratch, 1);
}
static void rows_2(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate,
                   void *scratch) {
    rows(w, r0, r1, packed, n, y, ldy, accumulate, scratch, 2);
}
static size_t scratch_1(int n, int k) { return planes_bytes(group_size(n), k, 1); }
static size_t scratch_2(int n, int k) { return planes_bytes(group_size(n), k, 2); }

/* A scale block must hold whole steps. */
static bool takes(const struct mat *w, int n) {
    return (w->dtype == DT_E4M3 || w->dtype == DT_BF16) &&
           (!w->scale || w->block_cols >= w->cols || w->block_cols % STEP == 0);
}

const struct gemm gemm_skinny = {.name = "skinny",
                                 .bf16x2 = true,
                                 .scales_x = true,
                                 .row_tile = 32,
                                 .packed_bytes = bytes_2,
                                 .pack = pack_2,
                                 .scratch_bytes = scratch_2,
                                 .rows = rows_2,
                                 .supports = takes};
const struct gemm gemm_skinny_bf16 = {.name = "skinny bf16",
                                      .bf16 = true,
                                      .scales_x = true,
                                      .row_tile = 32,
                                      .packed_bytes = bytes_1,
                                      .pack = pack_1,
                                      .scratch_bytes = scratch_1,
                                      .rows = rows_1,
                                      .supports = takes};

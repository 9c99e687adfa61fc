#pragma once
/* Shared by gemm_amx.c (many tokens) and gemm_amx_skinny.c: packs tokens and decodes weights for AMX tiles.
 *
 * Weights are the first operand: a tile has 32 columns of 16 rows of W in their stored order, so only results are
 * transposed. The columns of the second operand are tokens, packed once.
 *
 * Packed: tiles [tokens / width][k / 32] of 16 column pairs of W by `width` tokens, zero past the last of either. Of
 * each 64 columns of W the first of two tiles has 0-7, 16-23, 32-39 and 48-55, the second the others: the order that
 * unpacking bytes yields. */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe */
#include <immintrin.h>
#endif
#include <string.h>

#include "base/scale.h"
#include "cpu/bf16_scale_pow2.h"
#include "cpu/gemm_inner.h"
#include "cpu/transpose16.h"

#define INLINE static inline __attribute__((always_inline))
#define EACH   _Pragma("GCC unroll 16") for

enum {
    SIDE = 16,          /* rows and columns of a tile of sums */
    DEEP = 32,          /* columns of W in a tile */
    TILE = SIDE * DEEP, /* elements of a packed tile of SIDE columns */
    SPAN = 256,         /* columns of W decoded at once */
    /* bytes between rows of a panel: an odd number of lines, so that 16 rows map to 16 cache sets */
    PITCH = SPAN * 2 + 64,
    FEW = 6,           /* maximum column tiles of a skinny product */
    PLANES = DT_COUNT, /* a pseudo dtype, where code is generated per format: any format of gemm_bf16_decoder.c */
    FOLDED,            /* E4M3 with its scales folded in (gemm_folds_scales) */
    DECODED            /* decoded in advance */
};
/* Weights decoded without scales, whose sums must be multiplied by them. Otherwise sums stay in tiles over all of K, or
 * are reloaded. */
#define SCALED(kind) ((kind) == DT_E4M3 || (kind) == DECODED)

/* --- Activations ------------------------------------------------------------------------------ */

INLINE int up(int n, int unit) { return (n + unit - 1) / unit; }
INLINE int depth(int k) { return up(k, 2 * DEEP) * 2; } /* in tiles */

/* x[0 .. 7] and x[16 .. 23], of which n exist. */
INLINE __m512 load16(const float *x, int n) {
    if (n >= 24) return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(x)), _mm256_loadu_ps(x + 16), 1);
    const unsigned have = n > 0 ? (1u << n) - 1 : 0;
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_maskz_loadu_ps((__mmask8)have, x)),
                              _mm256_maskz_loadu_ps((__mmask8)(have >> 16), x + 16), 1);
}

/* The remainder of a number after rounding to BF16; 0 for infinity and NaN. */
INLINE __m512 over(__m512 x) {
    const __m512 head =
        _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)), 16));
    return _mm512_maskz_sub_ps((__mmask16)~_mm512_fpclass_ps_mask(head, 0x99), x, head);
}

/* A token's elements at a step along k of the packed tiles: rounded to BF16, or with `rest` the remainder. */
INLINE __m512i pack_pairs(const float *x, int step, int k, const bool rest) {
    const int c = step / 2 * 2 * DEEP + step % 2 * 8;
    const __m512 u = load16(x + c, k - c), v = load16(x + c + 32, k - c - 32);
    return (__m512i)(rest ? _mm512_cvtne2ps_pbh(over(v), over(u)) : _mm512_cvtne2ps_pbh(v, u));
}

/* --- Weights ---------------------------------------------------------------------------------- */

/* Columns that share a scale within a span; 0: the format or its blocks do not allow scaling after the sum. */
INLINE int segment(const struct mat *w) {
    if (w->dtype != DT_E4M3 && w->dtype != DT_BF16 && (w->dtype != DT_E2M1 || w->scale_dtype == DT_E8M0)) return 0;
    if (!w->scale || w->block_cols >= w->cols || w->block_cols % SPAN == 0) return SPAN;
    return w->block_cols % 64 == 0 && SPAN % w->block_cols == 0 ? w->block_cols : 0;
}

/* The kind that is decoded on the fly: DT_E4M3, DT_BF16 or FOLDED; else DECODED. */
INLINE int decode_kind(const struct mat *w) {
    if (w->dtype == DT_BF16 && !w->scale) return DT_BF16;
    if (w->dtype != DT_E4M3) return DECODED;
    return gemm_folds_scales(w) ? FOLDED : segment(w) ? DT_E4M3 : DECODED;
}

INLINE __mmask64 first(int n) { return n >= 64 ? ~(__mmask64)0 : n > 0 ? ((__mmask64)1 << n) - 1 : 0; }

/* Converts 64 codes to BF16. The exponent's upper bits are the code's top bit and its complement, all others move, so
 * each byte is an affine function of the code. Subnormal codes and NaN are exceptions ("rare"), and few weights have
 * them. */
struct e4m3 {
    __m512i high, low, rare_high, rare_low;
    /* FOLDED: increment for 64 elements of each row of the unit, valid if `one`: else rows differ */
    __m512i times[SPAN / 64];
    bool one;
};
/* The matrix of gf2p8affineqb: the row for result bit b is byte 7 - b. */
#define GF2(b7, b6, b5, b4, b3, b2, b1, b0) \
    (long long)((uint64_t)(b7) | (uint64_t)(b6) << 8 | (uint64_t)(b5) << 16 | (uint64_t)(b4) << 24 | \
                (uint64_t)(b3) << 32 | (uint64_t)(b2) << 40 | (uint64_t)(b1) << 48 | (uint64_t)(b0) << 56)
INLINE struct e4m3 e4m3_make(void) {
    /* Indexed by the code's low four bits: BF16 of 0 .. 7 times 2^-9, and of NaN. */
    const __m128i high = _mm_setr_epi8(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0, 0, 0, 0, 0, 0, 0, 0x7f);
    const __m128i low =
        _mm_setr_epi8(0, 0, (char)0x80, (char)0xc0, 0, 0x20, 0x40, 0x60, 0, 0, 0, 0, 0, 0, 0, (char)0xc0);
    return (struct e4m3){
        /* then bits 2 to 5 are inverted: 0x3c */
        .high = _mm512_set1_epi64(GF2(0x80, 0x40, 0x40, 0x40, 0x40, 0x40, 0x20, 0x10)),
        .low = _mm512_set1_epi64(GF2(0x08, 0x04, 0x02, 0x01, 0, 0, 0, 0)),
        .rare_high = _mm512_broadcast_i32x4(high),
        .rare_low = _mm512_broadcast_i32x4(low),
    };
}
/* 2 * code - 16: above 0xed for exponent 0 and NaN. */
INLINE __m512i e4m3_rare(__m512i code) { return _mm512_sub_epi8(_mm512_add_epi8(code, code), _mm512_set1_epi8(16)); }
INLINE __mmask64 e4m3_any(__m512i rare) { return _mm512_cmpgt_epu8_mask(rare, _mm512_set1_epi8((char)0xed)); }
INLINE void e4m3_store(uint16_t *to, __m512i low, __m512i high) {
    _mm512_store_si512(to, _mm512_unpacklo_epi8(low, high));
    _mm512_store_si512(to + 32, _mm512_unpackhi_epi8(low, high));
}
struct job {
    const struct mat *w;
    int r1;
    int seg; /* columns per sum in tiles; 0: weights are split */
    int n, ldy;
    int width; /* tokens per tile */
    bool accumulate;
    bool split;                    /* a second product for the weights' BF16 remainders */
    struct gemm_bf16_decoder make; /* for PLANES */
    int kind;                      /* DT_E4M3, DT_BF16, PLANES, FOLDED or DECODED */
    size_t span;                   /* bytes of SPAN columns */
    const uint16_t *x;             /* [column tiles][deep][SIDE][width][2] */
    int deep;
    float *y;
    uint8_t *panel[2], *rest[2]; /* rows of PITCH bytes: the current and the next; rest: of a split */
    float *scales;               /* many tokens: [SPAN / seg][ROWS] */
    float *sums;                 /* [strips of a block][column tiles][SIDE][width] */
    float *out;                  /* [tiles of sums][SIDE][width] */
    float *turned;               /* few tokens: [column tiles][width][SIDE] */
};

INLINE struct job job_make(const struct mat *w, int r1, const void *packed, int n, int width, float *y, int ldy,
                           bool accumulate) {
    struct job j = {.w = w,
                    .r1 = r1,
                    .seg = segment(w),
                    .n = n,
                    .ldy = ldy,
                    .width = width,
                    .accumulate = accumulate,
                    .x = packed,
                    .y = y};
    j.make = gemm_bf16_decoder_for(w);
    j.kind = decode_kind(w);
    if (j.kind == DECODED && j.make.rows) j.kind = PLANES;
    j.span = dtype_bytes(w->dtype, SPAN);
    j.deep = depth(w->cols);
    return j;
}
/* Converts n columns of a row to BF16, any codes. */
static __attribute__((noinline, unused)) void row_e4m3_rare(const struct e4m3 *t, uint16_t *to, const uint8_t *row,
                                                            int n) {
    for (int c = 0; c < n; c += 64) {
        const __mmask64 have = first(n - c);
        const __m512i code = _mm512_maskz_loadu_epi8(have, row + c);
        const __mmask64 rare = e4m3_any(e4m3_rare(code));
        const __m512i by = _mm512_and_si512(code, _mm512_set1_epi8(15)),
                      sign = _mm512_and_si512(code, _mm512_set1_epi8((char)0x80));
        __m512i high = _mm512_gf2p8affine_epi64_epi8(code, t->high, 0x3c),
                low = _mm512_gf2p8affine_epi64_epi8(code, t->low, 0);
        high = _mm512_mask_mov_epi8(high, rare, _mm512_or_si512(sign, _mm512_shuffle_epi8(t->rare_high, by)));
        e4m3_store(to + c, _mm512_mask_shuffle_epi8(low, rare, t->rare_low, by), high);
    }
}
/* Converts SPAN columns to BF16, assuming no rare codes; returns max(most, e4m3_rare of all codes). ahead: prefetch
 * distance in bytes. */
INLINE __m512i row_e4m3(const struct e4m3 *t, uint16_t *to, const uint8_t *row, ptrdiff_t ahead, __m512i most,
                        const bool folded) {
    EACH (int c = 0; c < SPAN; c += 64) {
        const __m512i code = _mm512_loadu_si512(row + c);
        _mm_prefetch(row + c + ahead, _MM_HINT_T1);
        most = _mm512_max_epu8(most, e4m3_rare(code));
        const __m512i low = _mm512_gf2p8affine_epi64_epi8(code, t->low, 0),
                      high = _mm512_gf2p8affine_epi64_epi8(code, t->high, 0x3c);
        const __m512i times = folded ? t->times[c / 64] : _mm512_setzero_si512(); /* no element is 0 or NaN here */
        _mm512_store_si512(to + c, _mm512_add_epi16(_mm512_unpacklo_epi8(low, high), times));
        _mm512_store_si512(to + c + 32, _mm512_add_epi16(_mm512_unpackhi_epi8(low, high), times));
    }
    return most;
}
/* Reorders 64 elements into two tiles. */
INLINE void reorder_columns(uint16_t *to, __m512i a, __m512i b) {
    _mm512_store_si512(to, _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13), b));
    _mm512_store_si512(to + 32, _mm512_permutex2var_epi64(a, _mm512_setr_epi64(2, 3, 6, 7, 10, 11, 14, 15), b));
}
INLINE void row_bf16(uint16_t *to, const uint8_t *row, int n, ptrdiff_t ahead) {
    for (int c = 0; c < n; c += 64, row += 128) {
        _mm_prefetch(row + ahead, _MM_HINT_T1);
        _mm_prefetch(row + ahead + 64, _MM_HINT_T1);
        if (n - c >= 64) reorder_columns(to + c, _mm512_loadu_si512(row), _mm512_loadu_si512(row + 64));
        else
            reorder_columns(to + c, _mm512_maskz_loadu_epi16((__mmask32)first(n - c < 32 ? n - c : 32), row),
                            _mm512_maskz_loadu_epi16((__mmask32)first(n - c - 32), row + 64));
    }
}
struct unit {
    const uint8_t *data; /* at its first row and column */
    int r, c0, n;        /* rows starting at r, columns [c0, c0 + n) */
};
INLINE struct unit unit_at(const struct job *j, int r, int c0) {
    const int n = j->w->cols - c0 < SPAN ? j->w->cols - c0 : SPAN;
    return (struct unit){(const uint8_t *)j->w->data + (size_t)r * j->w->stride + (size_t)(c0 / SPAN) * j->span, r, c0,
                         n};
}
/* Sets the powers of two that FOLDED rows of unit u are multiplied by. */
INLINE void unit_times(struct e4m3 *t, const struct job *j, const struct unit *u, int rows) {
    const struct mat *w = j->w;
    const int last = u->r + rows < j->r1 ? u->r + rows - 1 : j->r1 - 1;
    if (u->r > last) return;
    const size_t first = scale_row(w, u->r);
    t->one = first == scale_row(w, last); /* non-decreasing over rows */
    for (int c = 0; c < u->n; c += 64)
        t->times[c / 64] = _mm512_set1_epi16(
            gemm_exponent_increment(gemm_scale_exponent(w, first + (size_t)((u->c0 + c) / w->block_cols))));
}
/* Multiplies n decoded elements of row r, starting at column c0, by their scales: 64 at a time, which have one scale,
 * and whose order is that of the tiles. */
static __attribute__((noinline, unused)) void row_times(uint16_t *to, const struct mat *w, int r, int c0, int n) {
    const size_t scale = scale_row(w, r);
    for (int c = 0; c < n; c += 64) {
        const int power = gemm_scale_exponent(w, scale + (size_t)((c0 + c) / w->block_cols));
        const __m512i by = _mm512_set1_epi16(gemm_exponent_increment(power));
        for (int half = 0; half < 64; half += 32)
            _mm512_store_si512(to + c + half, bf16_scale_pow2(_mm512_load_si512(to + c + half), by));
    }
}
/* Converts rows [i, end) of the unit to BF16; ahead: prefetch distance in bytes. whole: the unit has SPAN columns and
 * all of these rows. Tests for rare codes once for all rows, so that the function call's register spills stay off the
 * fast path. */
INLINE void unit_rows(const struct job *j, const struct e4m3 *t, const struct unit *u, uint8_t *panel, uint8_t *rest,
                      int i, int end, ptrdiff_t ahead, const int kind, const bool whole) {
    const int n = whole ? SPAN : u->n, last = whole || u->r + end <= j->r1 ? end : j->r1 - u->r;
    const uint8_t *const data = u->data;
    const size_t stride = j->w->stride;
    if ((kind == DT_E4M3 || (kind == FOLDED && t->one)) && n == SPAN) {
        __m512i most = _mm512_setzero_si512();
        for (int at = i; at < last; at++)
            most = row_e4m3(t, (uint16_t *)(void *)(panel + at * PITCH), data + (size_t)at * stride, ahead, most,
                            kind == FOLDED);
        if (__builtin_expect(e4m3_any(most) == 0, 1)) return;
    }
    if (kind == PLANES) {
        uint16_t *to = (uint16_t *)(void *)(panel + i * PITCH),
                 *over = rest ? (uint16_t *)(void *)(rest + i * PITCH) : NULL;
        if (i < last) j->make.rows(to, over, PITCH / 2, j->w, u->r + i, last - i, u->c0, n, ahead);
        return;
    }
    for (; i < last; i++) {
        uint16_t *to = (uint16_t *)(void *)(panel + i * PITCH);
        const uint8_t *row = data + (size_t)i * stride;
        if (kind == DT_BF16) row_bf16(to, row, n, ahead);
        else row_e4m3_rare(t, to, row, n);
        if (kind == FOLDED) row_times(to, j->w, u->r + i, u->c0, n);
    }
}
/* Index of the first scale of rows r .. r + SIDE; rows past `last` use last's. Returns true if all rows share one. */
INLINE bool strip_first(const struct mat *w, size_t *first, int r, int last) {
    const int end = r + SIDE - 1 < last ? r + SIDE - 1 : last;
    first[0] = scale_row(w, r);
    if (first[0] == scale_row(w, end)) return true; /* non-decreasing over rows */
    for (int i = 1; i < SIDE; i++) first[i] = scale_row(w, r + i < end ? r + i : end);
    return false;
}
/* Scales of a strip for columns that share one; at: its index within a row. one: all rows share it. */
INLINE void strip_scales(const struct mat *w, float *scale, const size_t *first, size_t at, bool one) {
    if (one) _mm512_store_ps(scale, _mm512_set1_ps(scale_load(w, first[0] + at)));
    else
        for (int i = 0; i < SIDE; i++) scale[i] = scale_load(w, first[i] + at);
}

/* --- Results ---------------------------------------------------------------------------------- */

/* Stores the sums of a strip, rows r .. r + rows of W, by column tiles [t0, t1), to y. */
INLINE void store_strip(const struct job *j, int r, int rows, int t0, int t1, const float *sums) {
    const int width = j->width;
    const __mmask16 have = (__mmask16)(rows >= SIDE ? 0xffff : (1 << rows) - 1);
    for (int t = t0; t < t1; t++, sums += SIDE * width) {
        float *turned = j->turned + (t - t0) * width * SIDE;
        if (width < SIDE) {
            const __m512i at = _mm512_mullo_epi32(
                _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(width));
            for (int i = 0; i < width; i++) _mm512_store_ps(turned + i * SIDE, _mm512_i32gather_ps(at, sums + i, 4));
            continue;
        }
        __m512i a[SIDE];
        EACH (int i = 0; i < SIDE; i++) a[i] = _mm512_load_si512(sums + i * SIDE);
        transpose16(a);
        EACH (int i = 0; i < SIDE; i++) _mm512_store_si512(turned + i * SIDE, a[i]);
    }
    for (int i = t0 * width; i < t1 * width && i < j->n; i++) {
        __m512 sum = _mm512_load_ps(j->turned + (i - t0 * width) * SIDE);
        float *y = j->y + (size_t)i * (size_t)j->ldy + r;
        if (j->accumulate) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(have, y));
        _mm512_mask_storeu_ps(y, have, sum);
    }
}

/* --- Few columns (gemm_amx_skinny.c): all at once, at most FEW tiles, of plain weights or PLANES --- */

/* Rows [r0, j->r1). j is complete except for its work buffers, which are placed in scratch. */
void gemm_amx_skinny_rows(struct job *j, int r0, void *scratch);
size_t gemm_amx_skinny_scratch_bytes(void);

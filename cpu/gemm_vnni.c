/* Weights as BF16 pairs for vdpbf16ps: a lane is a row of W and holds two neighbouring columns. 16 rows are loaded in
 * their stored order, their dwords transposed (four 8-bit columns, or two 16-bit ones, of one row stay together), and
 * E4M3 is decoded after that, four rows of bytes per instruction.
 *
 * Exactness: every E4M3 value is a BF16 number, so these are stored unscaled, and the scale is applied to the float32
 * sum of a segment; or scaled, if the scale is a power of two (gemm_folds_scales). Others, e.g. F16, F32 and INT4 with
 * float32 scales, are converted to float32 and split into a BF16 number and its BF16 remainder: two products, 2^-17 of
 * the weight. Quantized formats have a product of their own (gemm_int8.c). */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe */
#include <immintrin.h>
#endif
#include <string.h>

#include "base/scale.h"
#include "cpu/bf16_scale_pow2.h"
#include "cpu/e4m3_table.h"
#include "cpu/gemm_inner.h"
#include "cpu/transpose16.h"

enum { LANES = 16, PANEL_LEN = GEMM_K_BF16 * GEMM_PANEL, MAX_SEG = GEMM_K_BF16 / 32 };

static int blocks(int k) { return (k + GEMM_K_BF16 - 1) / GEMM_K_BF16; }

/* --- Activations ------------------------------------------------------------------------------ */

size_t gemm_vnni_packed(int n, int k) { return (size_t)n * (size_t)blocks(k) * GEMM_K_BF16 * 2; }

void gemm_vnni_pack(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts) {
    int begin = (int)((int64_t)n * part / parts), end = (int)((int64_t)n * (part + 1) / parts);
    for (int i = begin; i < end; i++) {
        const float *row = x + (size_t)(gather ? gather[i] : i) * (size_t)ldx;
        for (int c = 0; c < blocks(k) * GEMM_K_BF16; c += 16) {
            __mmask16 m = c + 16 <= k ? 0xffff : c < k ? (__mmask16)((1u << (k - c)) - 1) : 0;
            uint16_t *to =
                (uint16_t *)dst + ((size_t)(c / GEMM_K_BF16) * (size_t)n + (size_t)i) * GEMM_K_BF16 + c % GEMM_K_BF16;
            _mm256_store_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(m, row + c)));
        }
    }
}

/* --- Tables of codes -------------------------------------------------------------------------- */

struct codes { /* BF16 of a code as separate bytes, indexed by its low seven bits */
    __m512i lo[2], hi[2];
};
static const uint8_t e4m3_high[128] = {E4M3_ALL(E4M3_HIGH, 0)}, e4m3_low[128] = {E4M3_ALL(E4M3_LOW, 0)};
static void codes_e4m3(struct codes *t) {
    for (int i = 0; i < 2; i++)
        t->lo[i] = _mm512_loadu_si512(e4m3_low + 64 * i), t->hi[i] = _mm512_loadu_si512(e4m3_high + 64 * i);
}

static void codes_times(struct codes *t, int power) {
    const __m512i by = _mm512_set1_epi16(gemm_exponent_increment(power));
    for (int i = 0; i < 2; i++) {
        const __m512i a = bf16_scale_pow2(_mm512_unpacklo_epi8(t->lo[i], t->hi[i]), by),
                      b = bf16_scale_pow2(_mm512_unpackhi_epi8(t->lo[i], t->hi[i]), by);
        const __m512i low = _mm512_set1_epi16(0xff);
        t->lo[i] = _mm512_packus_epi16(_mm512_and_si512(a, low), _mm512_and_si512(b, low));
        t->hi[i] = _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
    }
}

/* --- Panels ----------------------------------------------------------------------------------- */

static inline __mmask64 first(int n) { return n >= 64 ? ~(__mmask64)0 : n <= 0 ? 0 : ((__mmask64)1 << n) - 1; }

/* Start and stride of 16 rows of W; rows from `have` on repeat the last one. */
struct strip {
    const uint8_t *row;
    size_t stride;
    int have;
};
#define NEXT_ROW(p, s, i) ((p) + ((i) + 1 < (s)->have ? (s)->stride : 0))

/* 16 rows of codes, columns [c0, c0 + n), into lanes `half` of a panel; columns past n decode from zeros. ahead:
 * prefetch distance in bytes, for the first `lines` columns. */
static void panel_e4m3(const struct codes *t, uint16_t *panel, int half, const struct strip *rows, int c0, int n,
                       ptrdiff_t ahead, int lines) {
    const __m512i pairs = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    for (int c = 0; c < n; c += 64) {
        __m512i a[LANES];
        const uint8_t *p = rows->row + c0 + c;
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            if (c < lines) _mm_prefetch(p + ahead, _MM_HINT_T0);
            a[i] = n - c >= 64 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi8(first(n - c), p);
            p = NEXT_ROW(p, rows, i);
        }
        transpose16(a);
        uint16_t *to = panel + (size_t)c * GEMM_PANEL + half * 2 * LANES;
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            const __m512i b = _mm512_shuffle_epi8(a[i], pairs), lo = _mm512_permutex2var_epi8(t->lo[0], b, t->lo[1]);
            __m512i hi = _mm512_permutex2var_epi8(t->hi[0], b, t->hi[1]);
            hi = _mm512_ternarylogic_epi64(hi, b, sign, 0xf8); /* hi | (b & sign) */
            _mm512_store_si512(to + (size_t)(2 * i) * 2 * GEMM_PANEL, _mm512_unpacklo_epi8(lo, hi));
            _mm512_store_si512(to + (size_t)(2 * i + 1) * 2 * GEMM_PANEL, _mm512_unpackhi_epi8(lo, hi));
        }
    }
}

/* Decodes a panel with its scales folded in; scale[i]: index of row i's first scale. */
static void panel_folded(const struct codes *codes, uint16_t *panel, int half, const struct mat *w, const size_t *scale,
                         const struct strip *rows, int c0, int n, ptrdiff_t ahead, int lines) {
    for (int c = 0, m; c < n; c += m) {
        const size_t at = (size_t)((c0 + c) / w->block_cols);
        const int left = w->block_cols - (c0 + c) % w->block_cols, power = gemm_scale_exponent(w, scale[0] + at);
        m = n - c < left ? n - c : left;
        uint16_t *to = panel + (size_t)c * GEMM_PANEL;
        struct codes t = *codes;
        if (scale[0] == scale[LANES - 1]) { /* non-decreasing over rows */
            codes_times(&t, power);
            panel_e4m3(&t, to, half, rows, c0 + c, m, ahead, lines - c);
            continue;
        }
        uint32_t by[LANES]; /* for both numbers of a lane */
        for (int i = 0; i < LANES; i++)
            by[i] = (uint16_t)gemm_exponent_increment(gemm_scale_exponent(w, scale[i] + at)) * 0x10001u;
        const __m512i power_of = _mm512_loadu_si512(by);
        panel_e4m3(&t, to, half, rows, c0 + c, m, ahead, lines - c);
        to += half * 2 * LANES;
        for (int i = 0; i < m; i += 2, to += 2 * GEMM_PANEL)
            _mm512_store_si512(to, bf16_scale_pow2(_mm512_load_si512(to), power_of));
    }
}

static void panel_bf16(uint16_t *panel, int half, const struct strip *rows, int c0, int n, ptrdiff_t ahead) {
    for (int c = 0; c < n; c += 32) {
        __m512i a[LANES];
        const uint8_t *p = rows->row + 2 * (c0 + c);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            _mm_prefetch(p + ahead, _MM_HINT_T0);
            a[i] = _mm512_maskz_loadu_epi16((__mmask32)first(n - c < 32 ? n - c : 32), p);
            p = NEXT_ROW(p, rows, i);
        }
        transpose16(a);
        uint16_t *to = panel + (size_t)c * GEMM_PANEL + half * 2 * LANES;
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) _mm512_store_si512(to + (size_t)i * 2 * GEMM_PANEL, a[i]);
    }
}

/* BF16 of 32 floats, and their remainders. */
static inline __attribute__((always_inline)) void split32(const float *from, __m512i *head, __m512i *rest) {
    __m512 u = _mm512_load_ps(from), v = _mm512_load_ps(from + 16);
    __m512i p = (__m512i)_mm512_cvtne2ps_pbh(v, u);
    __m512 pu = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(p)), 16));
    __m512 pv = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(p, 1)), 16));
    *head = p;
    *rest = (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(v, pv), _mm512_sub_ps(u, pu));
}

/* Any format: through float32 rows, into the panel and the panel of remainders. */
static void panel_split(uint16_t *panel, uint16_t *rest, int half, const struct mat *w, decode_fn decode, int r0,
                        int last, int c0, int n) {
    enum { SPAN = 256 }; /* a whole block of every format */
    float row[LANES][SPAN] __attribute__((aligned(64)));
    for (int span = 0; span < n; span += SPAN) {
        int m = n - span < SPAN ? n - span : SPAN;
        for (int i = 0; i < LANES; i++) {
            decode(row[i], w, r0 + i < last ? r0 + i : last, c0 + span, c0 + span + m);
            if (m % 32) memset(row[i] + m, 0, (size_t)(32 - m % 32) * sizeof(float));
        }
        for (int c = 0; c < m; c += 32) {
            __m512i a[LANES], b[LANES];
            for (int i = 0; i < LANES; i++) split32(row[i] + c, &a[i], &b[i]);
            transpose16(a);
            transpose16(b);
            size_t at = (size_t)(span + c) * GEMM_PANEL + (size_t)half * 2 * LANES;
            for (int i = 0; i < LANES; i++) {
                _mm512_store_si512(panel + at + (size_t)i * 2 * GEMM_PANEL, a[i]);
                _mm512_store_si512(rest + at + (size_t)i * 2 * GEMM_PANEL, b[i]);
            }
        }
    }
}

/* --- A product -------------------------------------------------------------------------------- */

size_t gemm_vnni_scratch(int n, int k) {
    size_t sums = sizeof(float) * GEMM_PANEL * (size_t)(n < GEMM_CHUNK ? n : GEMM_CHUNK);
    return (2 * PANEL_LEN * sizeof(uint16_t) + MAX_SEG * GEMM_PANEL * sizeof(float) + sums) * GEMM_PANELS;
}

/* Columns that share a scale within a K block; 0: the format or its blocks do not allow scaling after the sum. */
static int segment(const struct mat *w, bool folds) {
    if (w->dtype != DT_E4M3 && w->dtype != DT_BF16 && w->dtype != DT_E2M1) return 0;
    if (!w->scale || w->block_cols >= w->cols || w->block_cols % GEMM_K_BF16 == 0 || folds) return GEMM_K_BF16;
    return w->block_cols % 32 == 0 && GEMM_K_BF16 % w->block_cols == 0 ? w->block_cols : 0;
}

/* Scales of a panel for segments of columns c0 + s * seg; first[i]: index of row i's first scale. */
static void panel_scales(float *out, const struct mat *w, const size_t *first, int c0, int n_seg, int seg) {
    for (int s = 0; s < n_seg; s++, out += GEMM_PANEL) {
        float v = 1;
        for (int i = 0; i < GEMM_PANEL; i++) {
            if (w->scale && (!i || first[i] != first[i - 1]))
                v = scale_load(w, first[i] + (size_t)((c0 + s * seg) / w->block_cols));
            out[i] = v;
        }
    }
}
void gemm_vnni_rows(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate,
                    void *scratch, gemm_tile_fn run) {
    uint16_t *panels = scratch, *rest = panels + (size_t)PANEL_LEN * GEMM_PANELS;
    float *scales = (float *)(rest + (size_t)PANEL_LEN * GEMM_PANELS),
          *sums = scales + MAX_SEG * GEMM_PANEL * GEMM_PANELS;
    struct codes t;
    codes_e4m3(&t);
    const bool folds = w->block_cols < w->cols && w->block_cols % GEMM_K_BF16 && gemm_folds_scales(w);
    int seg = segment(w, folds);
    /* scaled: weights of a panel include their scales; split: a number and its remainder */
    const bool scaled = !seg, split = scaled || w->dtype == DT_E2M1;
    struct mat decoded = *w;
    if (scaled) seg = GEMM_K_BF16;
    else decoded.scale = NULL;
    decode_fn decode = gemm_kernels(CPU_AVX512)->decode[w->dtype];

    int step = gemm_rows_per_step(n, 12, GEMM_PANEL, GEMM_PANELS), chunks = (n + GEMM_CHUNK - 1) / GEMM_CHUNK;
    for (int task = 0; task < chunks * ((r1 - r0 + step - 1) / step); task++) {
        int chunk = task % chunks, rb = r0 + task / chunks * step, i0 = (int)((int64_t)n * chunk / chunks);
        int m = (int)((int64_t)n * (chunk + 1) / chunks) - i0, have = r1 - rb < step ? r1 - rb : step,
            last = rb + have - 1;
        struct gemm_tile tile = {.n_panels = (have + GEMM_PANEL - 1) / GEMM_PANEL,
                                 .scale = scales,
                                 .seg = seg,
                                 .n = m,
                                 .sums = sums,
                                 .ld = step};
        size_t first_scale[GEMM_PANEL * GEMM_PANELS];
        for (int i = 0; i < tile.n_panels * GEMM_PANEL; i++)
            first_scale[i] = scale_row(w, rb + i < last ? rb + i : last);
        for (int b = 0; b < blocks(w->cols); b++) {
            int c0 = b * GEMM_K_BF16, cols = w->cols - c0 < GEMM_K_BF16 ? w->cols - c0 : GEMM_K_BF16;
            ptrdiff_t ahead = (ptrdiff_t)dtype_bytes(w->dtype, GEMM_K_BF16);
            if (b + 1 == blocks(w->cols))
                ahead = (ptrdiff_t)w->stride * step - (ptrdiff_t)dtype_bytes(w->dtype, (size_t)c0);
            tile.n_seg = (cols + seg - 1) / seg;
            /* Few tokens: half of the next weights are prefetched during the product. */
            bool spread = step == GEMM_PANEL && w->dtype == DT_E4M3;
            int lines = spread ? GEMM_K_BF16 / 2 : GEMM_K_BF16;
            tile.ahead = spread ? (const uint8_t *)w->data + (size_t)rb * w->stride + c0 + ahead + lines : NULL;
            tile.ahead_stride = w->stride;
            for (int p = 0; p < tile.n_panels; p++) {
                int pr = rb + p * GEMM_PANEL;
                uint16_t *panel = panels + (size_t)p * PANEL_LEN;
                float *scale = scales + p * tile.n_seg * GEMM_PANEL;
                for (int half = 0; half < 2; half++) {
                    int r = pr + half * LANES < last ? pr + half * LANES : last;
                    const struct strip rows = {(const uint8_t *)w->data + (size_t)r * w->stride, w->stride,
                                               last - r + 1};
                    if (split)
                        panel_split(panel, rest + (size_t)p * PANEL_LEN, half, &decoded, decode, r, last, c0, cols);
                    else if (w->dtype == DT_BF16) panel_bf16(panel, half, &rows, c0, cols, ahead);
                    else if (folds)
                        panel_folded(&t, panel, half, w, first_scale + p * GEMM_PANEL + half * LANES, &rows, c0, cols,
                                     ahead, lines);
                    else panel_e4m3(&t, panel, half, &rows, c0, cols, ahead, lines);
                }
                if (scaled || folds)
                    for (int i = 0; i < GEMM_PANEL; i++) scale[i] = 1;
                else panel_scales(scale, w, first_scale + p * GEMM_PANEL, c0, tile.n_seg, seg);
            }
            tile.w = panels, tile.add = b;
            tile.cols = (cols + 31) / 32 * 32;
            tile.x = (const uint16_t *)packed + ((size_t)b * (size_t)n + (size_t)i0) * GEMM_K_BF16;
            run(&tile);
            if (split) {
                tile.w = rest, tile.add = true;
                run(&tile);
            }
        }
        gemm_store_sums(y + (size_t)i0 * (size_t)ldy + rb, ldy, sums, step, m, have, accumulate);
    }
}

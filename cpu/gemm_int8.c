/* Products of quantized formats with vpdpbusd: a lane is a row of W and holds four neighbouring columns, 32 rows by up
 * to 6 tokens in registers.
 *
 * Activations become eight-bit integers with a scale for each 32 columns, as llama.cpp's do: at most 1 / 254 of the
 * largest of the 32 off. Weights are not rounded: their codes, plus 128 because vpdpbusd's first operand is unsigned,
 * are multiplied as integers, and 128 times the sum of the activations' codes is where a sum starts. The sum of a
 * segment, columns with one scale, is converted to float32, which holds it exactly.
 *
 * Per 32 columns of 32 rows and 12 tokens: 192 products, and 24 times a conversion, a product of scales and an FMA;
 * half as many products if scales are for 16 columns. */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe */
#include <immintrin.h>
#endif
#include <math.h>
#include <string.h>

#include "cpu/gemm_int8.h"
#include "cpu/intdot_planes.h"
#include "cpu/transpose16.h"

enum { TOKENS = 6, PANEL_BYTES = INT8_K * GEMM_PANEL, PANEL_SCALES = INT8_PARTS * GEMM_PANEL };

/* A K block of a token. Sums are those of the codes, by 16 and by 32 columns. */
struct x_block {
    int8_t q[INT8_K];
    int32_t start16[16], start32[8]; /* -128 * sum */
    float sum16[16], sum32[8];
    float scale[8];
};

static int blocks(int k) { return (k + INT8_K - 1) / INT8_K; }

/* --- Activations ------------------------------------------------------------------------------ */

static size_t packed_bytes(int n, int k) { return (size_t)n * (size_t)blocks(k) * sizeof(struct x_block); }

/* Scales of eight groups of 32 columns, and their reciprocals. A scale is NaN if a column is not finite. */
INLINE __m256 scales_8(const V x[16], float inverse[8]) {
    __m512i v[8];
    EACH (int i = 0; i < 8; i++) v[i] = _mm512_max_epu32(magnitude(x[2 * i]), magnitude(x[2 * i + 1]));
    const __m256 most = _mm256_castsi256_ps(largest_8(v)), steps = _mm256_set1_ps(127);
    const __m256 finite = _mm256_cmp_ps(most, _mm256_set1_ps(INFINITY), _CMP_LT_OQ);
    /* 127 / most is finite */
    const __m256 some = _mm256_and_ps(finite, _mm256_cmp_ps(most, _mm256_set1_ps(1e-36f), _CMP_GE_OQ));
    _mm256_storeu_ps(inverse, _mm256_and_ps(some, _mm256_div_ps(steps, most)));
    return _mm256_blendv_ps(_mm256_set1_ps(NAN), _mm256_and_ps(some, _mm256_div_ps(most, steps)), finite);
}
static void pack_block(struct x_block *b, const float *x, int n) {
    float inverse[8];
    V v[16];
    __m512i s[4];
    EACH (int i = 0; i < 16; i++) v[i] = load_left(x + 16 * i, n - 16 * i);
    const __m256 scale = scales_8(v, inverse);
    EACH (int i = 0; i < 16; i++)
        _mm_storeu_si128((__m128i *)(void *)(b->q + 16 * i),
                         _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(vmul(v[i], vset1(inverse[i / 2])))));
    EACH (int i = 0; i < 4; i++)
        s[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_loadu_si512(b->q + 64 * i));
    const __m512i t = _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
    const __m512i w = _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
    /* lane 4 * i + v */
    const __m512i turned = _mm512_add_epi32(_mm512_unpacklo_epi64(t, w), _mm512_unpackhi_epi64(t, w));
    const __m512i sum16 =
        _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), turned);
    const __m256i sum32 = _mm512_cvtepi64_epi32(_mm512_add_epi32(sum16, _mm512_srli_epi64(sum16, 32)));
    _mm512_storeu_si512(b->start16, _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sum16, 7)));
    _mm256_storeu_si256((__m256i *)(void *)b->start32,
                        _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(sum32, 7)));
    vstore(b->sum16, _mm512_cvtepi32_ps(sum16));
    _mm256_storeu_ps(b->sum32, _mm256_cvtepi32_ps(sum32));
    _mm256_storeu_ps(b->scale, scale);
}
static void pack(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts) {
    const int begin = (int)((int64_t)n * part / parts), end = (int)((int64_t)n * (part + 1) / parts);
    for (int i = begin; i < end; i++)
        for (int b = 0; b < blocks(k); b++)
            pack_block((struct x_block *)dst + (size_t)b * (size_t)n + (size_t)i,
                       x + (size_t)(gather ? gather[i] : i) * (size_t)ldx + b * INT8_K, k - b * INT8_K);
}

/* --- Panels ----------------------------------------------------------------------------------- */

/* Rows `half` of a panel: w[column / 4][row][column % 4], plus 128, and scales by segment. */
static void fill_panel(uint8_t *w, float *scale, float *off, int half, const struct int8_rows *rows, int have, int cols,
                       bool has_off) {
    __m512i a[16];
    const __m512i up = _mm512_set1_epi8((char)0x80);
    for (int c = 0; c < cols; c += 64) {
        EACH (int i = 0; i < 16; i++) a[i] = _mm512_load_si512(rows->code[i < have ? i : 0] + c);
        transpose16(a);
        EACH (int i = 0; i < 16; i++)
            _mm512_store_si512(w + (size_t)(c / 4 + i) * 4 * GEMM_PANEL + half * 64, _mm512_xor_si512(a[i], up));
    }
    for (int k = 0; k < 1 + has_off; k++) {
        float *to = (k ? off : scale) + 16 * half;
        EACH (int i = 0; i < 16; i++) a[i] = _mm512_load_si512((k ? rows->off : rows->scale)[i < have ? i : 0]);
        transpose16(a);
        EACH (int i = 0; i < 16; i++) _mm512_store_si512(to + i * GEMM_PANEL, a[i]);
    }
}

/* --- A product -------------------------------------------------------------------------------- */

/* A K block of up to GEMM_PANELS panels and all tokens. */
struct tile {
    const uint8_t *w;
    const float *scale, *off; /* off: NULL if there is none */
    int n_panels, n_segments, segment;
    const struct x_block *x; /* [n] */
    int n, ld;
    float *sums; /* [n][ld] */
};

/* n tokens, a constant at each call. */
INLINE void micro(const int n, const struct tile *t, int panel, const struct x_block *x, const uint8_t *next,
                  float *y) {
    enum { LD = sizeof *x / 4 };
    const uint8_t *w = t->w + (size_t)panel * PANEL_BYTES, *q = (const uint8_t *)x->q;
    const float *scale = t->scale + (size_t)panel * PANEL_SCALES,
                *off = t->off ? t->off + (size_t)panel * PANEL_SCALES : NULL;
    const int narrow = t->segment == 16, steps = t->segment / 16;
    const int32_t *start = narrow ? x->start16 : x->start32;
    const float *sum = narrow ? x->sum16 : x->sum32;
    __m512 f[TOKENS][2];
    EACH (int i = 0; i < n; i++)
        f[i][0] = _mm512_load_ps(y + (size_t)(i * t->ld)), f[i][1] = _mm512_load_ps(y + (size_t)(i * t->ld) + 16);
    for (int s = 0; s < t->n_segments; s++, scale += GEMM_PANEL, start++, sum++) {
        __m512i a[TOKENS][2];
        EACH (int i = 0; i < n; i++) a[i][0] = a[i][1] = _mm512_set1_epi32(start[i * LD]);
        for (int c = 0; c < steps; c++, q += 16, w += 16 * GEMM_PANEL, next += 64) {
            _mm_prefetch(next, _MM_HINT_T0);
            EACH (int u = 0; u < 4; u++) {
                const __m512i w0 = _mm512_load_si512(w + u * 4 * GEMM_PANEL),
                              w1 = _mm512_load_si512(w + u * 4 * GEMM_PANEL + 64);
                EACH (int i = 0; i < n; i++) {
                    int four;
                    memcpy(&four, q + (size_t)i * sizeof *x + 4 * u, sizeof four);
                    const __m512i v = _mm512_set1_epi32(four);
                    a[i][0] = add_fours(a[i][0], w0, v);
                    a[i][1] = add_fours(a[i][1], w1, v);
                }
            }
        }
        const __m512 s0 = _mm512_load_ps(scale), s1 = _mm512_load_ps(scale + 16);
        const float *d = x->scale + (narrow ? s / 2 : s);
        __m512 g[TOKENS][2];
        if (off) { /* a product of so few bits is exact */
            const __m512 m0 = _mm512_load_ps(off), m1 = _mm512_load_ps(off + 16);
            off += GEMM_PANEL;
            EACH (int i = 0; i < n; i++) {
                const __m512 m = _mm512_set1_ps(sum[i * LD]);
                g[i][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[i][0]), s0, _mm512_mul_ps(m0, m));
                g[i][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[i][1]), s1, _mm512_mul_ps(m1, m));
            }
        } else
            EACH (int i = 0; i < n; i++)
                g[i][0] = _mm512_mul_ps(_mm512_cvtepi32_ps(a[i][0]), s0),
                g[i][1] = _mm512_mul_ps(_mm512_cvtepi32_ps(a[i][1]), s1);
        EACH (int i = 0; i < n; i++) {
            const __m512 by = _mm512_set1_ps(d[i * LD]);
            f[i][0] = _mm512_fmadd_ps(g[i][0], by, f[i][0]);
            f[i][1] = _mm512_fmadd_ps(g[i][1], by, f[i][1]);
        }
    }
    EACH (int i = 0; i < n; i++)
        _mm512_store_ps(y + (size_t)(i * t->ld), f[i][0]), _mm512_store_ps(y + (size_t)(i * t->ld) + 16, f[i][1]);
}
static void tokens(int n, const struct tile *t, int panel, const struct x_block *x, const uint8_t *next, float *y) {
    switch (n) {
    case 1: micro(1, t, panel, x, next, y); break;
    case 2: micro(2, t, panel, x, next, y); break;
    case 3: micro(3, t, panel, x, next, y); break;
    case 4: micro(4, t, panel, x, next, y); break;
    case 5: micro(5, t, panel, x, next, y); break;
    default: micro(TOKENS, t, panel, x, next, y);
    }
}
static void run(const struct tile *t) {
    for (int i = 0, n; i < t->n; i += n) {
        n = t->n - i < TOKENS ? t->n - i : TOKENS;
        if (t->n - i > TOKENS && t->n - i < 12) n = (t->n - i + 1) / 2; /* 7 as 4 + 3, not 6 + 1 */
        /* each panel prefetches a part of the next tokens */
        const uint8_t *next = (const uint8_t *)(t->x + i + n);
        for (int p = 0; p < t->n_panels; p++)
            tokens(n, t, p, t->x + i, next + 1024 * p, t->sums + (size_t)i * (size_t)t->ld + p * GEMM_PANEL);
    }
}

static size_t scratch_bytes(int n, int k) {
    const size_t sums = sizeof(float) * GEMM_PANEL * (size_t)(n < GEMM_CHUNK ? n : GEMM_CHUNK);
    return sizeof(struct int8_rows) + GEMM_PANELS * (PANEL_BYTES + 2 * PANEL_SCALES * sizeof(float) + sums);
}
static void rows(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate,
                 void *scratch) {
    struct int8_rows *decoded = scratch;
    uint8_t *panels = (uint8_t *)(decoded + 1);
    float *scales = (float *)(void *)(panels + GEMM_PANELS * PANEL_BYTES), *offs = scales + GEMM_PANELS * PANEL_SCALES,
          *sums = offs + GEMM_PANELS * PANEL_SCALES;
    const struct int8_decoder d = gemm_int8_decoder_for(w);
    memset(decoded->scale, 0, sizeof decoded->scale + sizeof decoded->off);
    const int step = gemm_rows_per_step(n, 12, GEMM_PANEL, GEMM_PANELS), chunks = (n + GEMM_CHUNK - 1) / GEMM_CHUNK;
    for (int task = 0; task < chunks * ((r1 - r0 + step - 1) / step); task++) {
        const int chunk = task % chunks, rb = r0 + task / chunks * step, i0 = (int)((int64_t)n * chunk / chunks);
        const int m = (int)((int64_t)n * (chunk + 1) / chunks) - i0, have = r1 - rb < step ? r1 - rb : step,
                  last = rb + have - 1;
        struct tile tile = {.w = panels,
                            .scale = scales,
                            .off = d.has_off ? offs : NULL,
                            .n_panels = (have + GEMM_PANEL - 1) / GEMM_PANEL,
                            .segment = d.segment,
                            .n = m,
                            .ld = step,
                            .sums = sums};
        memset(sums, 0, sizeof *sums * (size_t)m * (size_t)step);
        for (int b = 0; b < blocks(w->cols); b++) {
            const int c0 = b * INT8_K, cols = w->cols - c0 < INT8_K ? w->cols - c0 : INT8_K;
            ptrdiff_t ahead = (ptrdiff_t)dtype_bytes(w->dtype, INT8_K);
            if (b + 1 == blocks(w->cols))
                ahead = (ptrdiff_t)w->stride * step - (ptrdiff_t)dtype_bytes(w->dtype, (size_t)c0);
            for (int h = 0; h < 2 * tile.n_panels; h++) {
                const int r = rb + 16 * h < last ? rb + 16 * h : last, left = last - r + 1 < 16 ? last - r + 1 : 16,
                          p = h / 2;
                d.rows(decoded, w, r, left, c0, cols, ahead);
                fill_panel(panels + p * PANEL_BYTES, scales + p * PANEL_SCALES, offs + p * PANEL_SCALES, h % 2, decoded,
                           left, cols, d.has_off);
            }
            tile.n_segments = (cols + d.segment - 1) / d.segment;
            tile.x = (const struct x_block *)packed + (size_t)b * (size_t)n + (size_t)i0;
            run(&tile);
        }
        gemm_store_sums(y + (size_t)i0 * (size_t)ldy + rb, ldy, sums, step, m, have, accumulate);
    }
}

static bool takes(const struct mat *w, int n) { return gemm_int8_decoder_for(w).rows != NULL; }

const struct gemm gemm_int8 = {.name = "int8",
                               .is_int8 = true,
                               .row_tile = GEMM_PANEL * GEMM_PANELS,
                               .packed_bytes = packed_bytes,
                               .pack = pack,
                               .scratch_bytes = scratch_bytes,
                               .rows = rows,
                               .supports = takes};

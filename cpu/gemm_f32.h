/* Float32 products: the body of gemm_avx2.c and gemm_avx512.c, which define before:
 *     LEVEL, LANES          enum cpu_level and floats per vector
 *     TOKENS                tokens of a micro-kernel: TOKENS * 2 sums, 2 weights and a broadcast fill the registers
 *     V, LOAD, STORE, SET1, ZERO, FMA, ADD    on vectors of floats
 *     transpose(V a[LANES]), and panel_e4m3 (below)
 * A panel is 2 * LANES rows of W, decoded and scaled, in column order: panel[c * 2 * LANES + row]. */
#include <string.h>

#include "base/scale.h"
#include "cpu/gemm_inner.h"

enum { PANEL = 2 * LANES, PANEL_LEN = PANEL * GEMM_K_F32, PANELS = 4, CHUNK = GEMM_CHUNK };

/* --- Decoding --------------------------------------------------------------------------------- */

/* Columns [c0, c0 + n) of LANES rows of E4M3 into lanes of a panel, scales[i] for row i; false: a NaN among the codes,
 * which this arithmetic decodes as 480. `ahead`: prefetch distance in bytes. */
static bool panel_e4m3(float *panel, const uint8_t *const row[LANES], V scales, int c0, int n, ptrdiff_t ahead);

/* Scales for one column of LANES rows; false: a scale is too large for the arithmetic of panel_e4m3. */
static bool lane_scales(float out[LANES], const struct mat *w, int r0, int last, int c) {
    size_t was = SIZE_MAX;
    float v = 1;
    bool small = true;
    for (int i = 0; i < LANES; i++) {
        const size_t at = scale_row(w, r0 + i < last ? r0 + i : last) + (w->scale ? (size_t)(c / w->block_cols) : 0);
        if (at != was) v = scale_load(w, at), was = at;
        out[i] = v;
        small &= v <= 64 && v >= -64;
    }
    return small;
}

/* Any format, row by row; whole K blocks, which are whole blocks of every format. */
static void panel_any(float *panel, const struct mat *w, decode_fn decode, int r0, int last, int c0, int n,
                      ptrdiff_t ahead) {
    float row[LANES][GEMM_K_F32] __attribute__((aligned(64)));
    const size_t bytes = dtype_bytes(w->dtype, (size_t)n);
    for (int i = 0; i < LANES; i++) {
        int r = r0 + i < last ? r0 + i : last;
        const char *p = (const char *)w->data + (size_t)r * w->stride + dtype_bytes(w->dtype, (size_t)c0) + ahead;
        for (size_t line = 0; line < bytes; line += 64) _mm_prefetch(p + line, _MM_HINT_T0);
        decode(row[i], w, r, c0, c0 + n);
        if (n % LANES) memset(row[i] + n, 0, (size_t)(LANES - n % LANES) * sizeof(float));
    }
    for (int c = 0; c < n; c += LANES) {
        V a[LANES];
        for (int i = 0; i < LANES; i++) a[i] = LOAD(row[i] + c);
        transpose(a);
        for (int i = 0; i < LANES; i++) STORE(panel + (size_t)(c + i) * PANEL, a[i]);
    }
}

static void panel_fill(float *panel, const struct mat *w, decode_fn decode, int r0, int last, int c0, int n,
                       ptrdiff_t ahead) {
    int block = w->scale && w->block_cols < w->cols ? w->block_cols : (w->cols + 63) / 64 * 64;
    for (int half = 0; half < 2; half++, r0 += LANES, panel += LANES) {
        if (w->dtype != DT_E4M3 || block % 64) {
            panel_any(panel, w, decode, r0, last, c0, n, ahead);
            continue;
        }
        const uint8_t *row[LANES];
        for (int i = 0; i < LANES; i++)
            row[i] = (const uint8_t *)w->data + (size_t)(r0 + i < last ? r0 + i : last) * w->stride;
        for (int c = 0, m; c < n; c += m) { /* columns that share a scale */
            m = block - (c0 + c) % block;
            if (m > n - c) m = n - c;
            float scales[LANES] __attribute__((aligned(64)));
            float *to = panel + (size_t)c * PANEL;
            if (!lane_scales(scales, w, r0, last, c0 + c) || !panel_e4m3(to, row, LOAD(scales), c0 + c, m, ahead))
                panel_any(to, w, decode, r0, last, c0 + c, m, ahead);
        }
    }
}

/* --- Products --------------------------------------------------------------------------------- */

/* One column of a panel by n tokens. */
static inline __attribute__((always_inline)) void column(int n, V sum[TOKENS][2], const float *w, const float *x) {
    V a = LOAD(w), b = LOAD(w + LANES);
#pragma GCC unroll 12
    for (int i = 0; i < n; i++) {
        V v = SET1(x[i * GEMM_K_F32]);
        sum[i][0] = FMA(a, v, sum[i][0]);
        sum[i][1] = FMA(b, v, sum[i][1]);
    }
}

/* n tokens, a constant at each call, so that the sums stay in registers. `next`: tokens to prefetch. */
static inline __attribute__((always_inline)) void micro(int n, const float *w, int cols, const float *x,
                                                        const float *next, float *y, int ldy, bool add) {
    V sum[TOKENS][2];
#pragma GCC unroll 12
    for (int i = 0; i < n; i++) sum[i][0] = sum[i][1] = ZERO();
    int c = 0;
    for (; c + 4 <= cols; c += 4) {
        _mm_prefetch((const char *)(next + 4 * c), _MM_HINT_T1);
#pragma GCC unroll 4
        for (int u = 0; u < 4; u++) column(n, sum, w + (size_t)(c + u) * PANEL, x + c + u);
    }
    for (; c < cols; c++) column(n, sum, w + (size_t)c * PANEL, x + c);
#pragma GCC unroll 12
    for (int i = 0; i < n; i++) {
        float *o = y + (size_t)i * (size_t)ldy;
        V p = add ? LOAD(o) : ZERO(), q = add ? LOAD(o + LANES) : ZERO();
        STORE(o, ADD(p, sum[i][0]));
        STORE(o + LANES, ADD(q, sum[i][1]));
    }
}

static void tokens(int n, const float *w, int cols, const float *x, const float *next, float *y, int ldy, bool add) {
    switch (n) {
#define CASE(k) \
    case k: micro(k, w, cols, x, next, y, ldy, add); break;
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
#if TOKENS > 6
        CASE(6)
        CASE(7)
        CASE(8)
        CASE(9)
        CASE(10)
        CASE(11)
#endif
#undef CASE
    default: micro(TOKENS, w, cols, x, next, y, ldy, add);
    }
}

/* Decoded panels by n tokens; sums are [n][ld]. */
static void products(const float *panels, int n_panels, int cols, const float *x, int n, float *sums, int ld,
                     bool add) {
    for (int i = 0, m; i < n; i += m) {
        m = n - i < TOKENS ? n - i : TOKENS;
        if (n - i > TOKENS && n - i < 2 * TOKENS) m = (n - i + 1) / 2; /* 7 as 4 + 3, not 6 + 1 */
        /* each panel prefetches a part of the next tokens */
        const float *xi = x + (size_t)i * GEMM_K_F32, *next = xi + m * GEMM_K_F32;
        for (int p = 0; p < n_panels; p++, next += 4 * GEMM_K_F32)
            tokens(m, panels + (size_t)p * PANEL_LEN, cols, xi, next, sums + (size_t)i * (size_t)ld + p * PANEL, ld,
                   add);
    }
}

static size_t scratch_bytes(int n, int k) {
    return sizeof(float) * (PANEL_LEN * PANELS + (size_t)PANEL * PANELS * (size_t)(n < CHUNK ? n : CHUNK));
}

static void rows(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate,
                 void *scratch) {
    float *panels = scratch, *sums = panels + PANEL_LEN * PANELS;
    decode_fn decode = gemm_kernels(LEVEL)->decode[w->dtype];
    int step = gemm_rows_per_step(n, TOKENS, PANEL, PANELS), k = w->cols, blocks = (k + GEMM_K_F32 - 1) / GEMM_K_F32;
    int chunks = (n + CHUNK - 1) / CHUNK;
    for (int t = 0; t < chunks * ((r1 - r0 + step - 1) / step); t++) {
        int chunk = t % chunks, rb = r0 + t / chunks * step, i0 = (int)((int64_t)n * chunk / chunks);
        int m = (int)((int64_t)n * (chunk + 1) / chunks) - i0, have = r1 - rb < step ? r1 - rb : step;
        for (int b = 0; b < blocks; b++) {
            int c0 = b * GEMM_K_F32, cols = k - c0 < GEMM_K_F32 ? k - c0 : GEMM_K_F32;
            ptrdiff_t ahead = (ptrdiff_t)dtype_bytes(w->dtype, GEMM_K_F32);
            if (b + 1 == blocks) ahead = (ptrdiff_t)w->stride * step - (ptrdiff_t)dtype_bytes(w->dtype, (size_t)c0);
            for (int p = 0; p < have; p += PANEL)
                panel_fill(panels + (size_t)p * GEMM_K_F32, w, decode, rb + p, rb + have - 1, c0, cols, ahead);
            products(panels, (have + PANEL - 1) / PANEL, cols,
                     (const float *)packed + ((size_t)b * (size_t)n + (size_t)i0) * GEMM_K_F32, m, sums, step, b);
        }
        gemm_store_sums(y + (size_t)i0 * (size_t)ldy + rb, ldy, sums, step, m, have, accumulate);
    }
}

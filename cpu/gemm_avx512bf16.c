/* Products of BF16 pairs with vdpbf16ps: 32 rows of W by up to 12 tokens in registers. */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe */
#include <immintrin.h>
#endif
#include <string.h>

#include "cpu/gemm_inner.h"

enum { TOKENS = 12 };
_Static_assert(GEMM_K_BF16 / 8 == GEMM_PANEL && GEMM_K_BF16 / 2 == 128, "which lines micro asks for");

/* n tokens, a constant at each call, so that the sums stay in registers. */
static inline __attribute__((always_inline)) void micro(int n, const struct gemm_tile *t, const uint16_t *w,
                                                        const float *scale, const uint16_t *x, const uint16_t *next,
                                                        float *y, int ldy) {
    const uint8_t *ahead = x == t->x ? t->ahead : NULL;
    for (int s = 0; s < t->n_seg; s++) {
        __m512 sum[TOKENS][2];
#pragma GCC unroll 12
        for (int i = 0; i < n; i++) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
        int begin = s * t->seg, end = begin + t->seg < t->cols ? begin + t->seg : t->cols;
        for (int c = begin; c < end; c += 8) {
            _mm_prefetch(next + 4 * c, _MM_HINT_T1);
            if (ahead) { /* two cache lines of a row per eighth column: GEMM_K_BF16 / 8 is GEMM_PANEL */
                _mm_prefetch(ahead + (size_t)(c / 8) * t->ahead_stride, _MM_HINT_T0);
                _mm_prefetch(ahead + (size_t)(c / 8) * t->ahead_stride + 64, _MM_HINT_T0);
            }
#pragma GCC unroll 4
            for (int u = 0; u < 8; u += 2) {
                const uint16_t *pairs = w + (size_t)(c + u) * GEMM_PANEL;
                __m512bh a = (__m512bh)_mm512_load_si512(pairs), b = (__m512bh)_mm512_load_si512(pairs + GEMM_PANEL);
#pragma GCC unroll 12
                for (int i = 0; i < n; i++) {
                    int pair;
                    memcpy(&pair, x + i * GEMM_K_BF16 + c + u, sizeof pair);
                    __m512bh v = (__m512bh)_mm512_set1_epi32(pair);
                    sum[i][0] = _mm512_dpbf16_ps(sum[i][0], a, v);
                    sum[i][1] = _mm512_dpbf16_ps(sum[i][1], b, v);
                }
            }
        }
        __m512 s0 = _mm512_load_ps(scale + s * GEMM_PANEL), s1 = _mm512_load_ps(scale + s * GEMM_PANEL + 16);
        bool add = t->add || s;
#pragma GCC unroll 12
        for (int i = 0; i < n; i++) {
            float *o = y + (size_t)i * (size_t)ldy;
            __m512 p = add ? _mm512_loadu_ps(o) : _mm512_setzero_ps(),
                   q = add ? _mm512_loadu_ps(o + 16) : _mm512_setzero_ps();
            _mm512_storeu_ps(o, _mm512_fmadd_ps(sum[i][0], s0, p));
            _mm512_storeu_ps(o + 16, _mm512_fmadd_ps(sum[i][1], s1, q));
        }
    }
}

static void tokens(int n, const struct gemm_tile *t, const uint16_t *w, const float *scale, const uint16_t *x,
                   const uint16_t *next, float *y, int ldy) {
    switch (n) {
// clang-format off
#define CASE(k) \
    case k: micro(k, t, w, scale, x, next, y, ldy); break;
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11)
#undef CASE
    default: micro(TOKENS, t, w, scale, x, next, y, ldy);
        // clang-format on
    }
}

static void run(const struct gemm_tile *t) {
    for (int i = 0, n; i < t->n; i += n) {
        n = t->n - i < TOKENS ? t->n - i : TOKENS;
        if (t->n - i > TOKENS && t->n - i < 2 * TOKENS) n = (t->n - i + 1) / 2; /* 13 as 7 + 6, not 12 + 1 */
        /* each panel prefetches a part of the next tokens */
        const uint16_t *x = t->x + (size_t)i * GEMM_K_BF16, *next = x + n * GEMM_K_BF16;
        for (int p = 0; p < t->n_panels; p++, next += 4 * GEMM_K_BF16)
            tokens(n, t, t->w + (size_t)p * GEMM_K_BF16 * GEMM_PANEL, t->scale + p * t->n_seg * GEMM_PANEL, x, next,
                   t->sums + (size_t)i * (size_t)t->ld + p * GEMM_PANEL, t->ld);
    }
}

static void rows(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate,
                 void *scratch) {
    gemm_vnni_rows(w, r0, r1, packed, n, y, ldy, accumulate, scratch, run);
}

const struct gemm gemm_avx512bf16 = {
    .name = "avx512bf16",
    .bf16 = true,
    .row_tile = GEMM_PANEL * GEMM_PANELS,
    .packed_bytes = gemm_vnni_packed,
    .pack = gemm_vnni_pack,
    .scratch_bytes = gemm_vnni_scratch,
    .rows = rows,
};

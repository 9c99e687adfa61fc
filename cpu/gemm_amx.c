/* Products of BF16 pairs in AMX tiles: 32 tokens by 32 rows of W in four sums. Tiles of the last tokens are configured as low
 * as the tokens are many, so that 9 tokens cost 9 of 16 rows. flags.c has asked the kernel for the tiles. */
#include <immintrin.h>
#include <string.h>

#include "cpu/gemm_inner.h"

enum { HALF = 16 };

struct tile_config { /* what ldtilecfg reads */
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} __attribute__((aligned(64)));

/* Tiles 0-3: sums [token half][row half]; 4, 5: tokens; 6, 7: weights. */
static void configure(int m0, int m1) {
    struct tile_config c = {.palette = 1};
    const int rows[8] = {m0, m0, m1, m1, m0, m1, HALF, HALF};
    for (int i = 0; i < 8; i++)
        if (rows[i]) c.rows[i] = (uint8_t)rows[i], c.bytes[i] = 64;
    _tile_loadconfig(&c);
}

/* Columns [begin, end) of one panel by the configured tokens; the sums go to out [tokens][GEMM_PANEL]. */
static void product(const uint16_t *w, const uint16_t *x, int begin, int end, bool both, float *out) {
    const long xs = GEMM_K_BF16 * 2, ws = GEMM_PANEL * 4, os = GEMM_PANEL * 4;
    const uint16_t *x1 = x + HALF * GEMM_K_BF16;
    _tile_zero(0);
    _tile_zero(1);
    if (both) {
        _tile_zero(2);
        _tile_zero(3);
        for (int c = begin; c < end; c += 32) {
            const uint16_t *b = w + (size_t)c * GEMM_PANEL;
            _tile_loadd(6, b, ws);
            _tile_loadd(4, x + c, xs);
            _tile_loadd(7, b + 2 * HALF, ws);
            _tile_loadd(5, x1 + c, xs);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(2, out + HALF * GEMM_PANEL, os);
        _tile_stored(3, out + HALF * GEMM_PANEL + HALF, os);
    } else {
        for (int c = begin; c < end; c += 32) {
            const uint16_t *b = w + (size_t)c * GEMM_PANEL;
            _tile_loadd(6, b, ws);
            _tile_loadd(4, x + c, xs);
            _tile_loadd(7, b + 2 * HALF, ws);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
        }
    }
    _tile_stored(0, out, os);
    _tile_stored(1, out + HALF, os);
}

static void run(const struct gemm_tile *t) {
    float out[2 * HALF * GEMM_PANEL] __attribute__((aligned(64)));
    for (int i = 0; t->ahead && i < GEMM_PANEL; i++)
        for (int line = 0; line < GEMM_K_BF16 / 2; line += 64) _mm_prefetch(t->ahead + (size_t)i * t->ahead_stride + line, _MM_HINT_T0);
    for (int i = 0, n, was = 0; i < t->n; i += n) {
        n = t->n - i < 2 * HALF ? t->n - i : 2 * HALF;
        if (n != was) configure(n < HALF ? n : HALF, n > HALF ? n - HALF : 0);
        was = n;
        for (int p = 0; p < t->n_panels; p++)
            for (int s = 0; s < t->n_seg; s++) {
                int begin = s * t->seg, end = begin + t->seg < t->cols ? begin + t->seg : t->cols;
                product(t->w + (size_t)p * GEMM_K_BF16 * GEMM_PANEL, t->x + (size_t)i * GEMM_K_BF16, begin, end, n > HALF, out);
                const float *scale = t->scale + (p * t->n_seg + s) * GEMM_PANEL;
                __m512 s0 = _mm512_load_ps(scale), s1 = _mm512_load_ps(scale + HALF), zero = _mm512_setzero_ps();
                bool add = t->add || s;
                for (int j = 0; j < n; j++) {
                    float *to = t->sums + (size_t)(i + j) * (size_t)t->ld + p * GEMM_PANEL;
                    const float *from = out + j * GEMM_PANEL;
                    _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_load_ps(from), s0, add ? _mm512_load_ps(to) : zero));
                    _mm512_store_ps(to + HALF, _mm512_fmadd_ps(_mm512_load_ps(from + HALF), s1, add ? _mm512_load_ps(to + HALF) : zero));
                }
            }
    }
    _tile_release();
}

static void rows(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate, void *scratch) {
    gemm_vnni_rows(w, r0, r1, packed, n, y, ldy, accumulate, scratch, run);
}

const struct gemm gemm_amx = {
    .name = "amx",
    .bf16 = true,
    .row_tile = GEMM_PANEL * GEMM_PANELS,
    .packed_bytes = gemm_vnni_packed,
    .pack = gemm_vnni_pack,
    .scratch_bytes = gemm_vnni_scratch,
    .rows = rows,
};

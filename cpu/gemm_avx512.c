/* Many-token products in float32 with AVX-512: 32 rows of W by up to 12 tokens in registers. */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe */
#include <immintrin.h>
#endif

#include "cpu/cpu.h"
#include "cpu/transpose16.h"

#define LEVEL  CPU_AVX512
#define LANES  16
#define TOKENS 12
#define V      __m512
#define LOAD   _mm512_load_ps
#define STORE  _mm512_store_ps
#define SET1   _mm512_set1_ps
#define ZERO   _mm512_setzero_ps
#define FMA    _mm512_fmadd_ps
#define ADD    _mm512_add_ps

static inline __attribute__((always_inline)) void transpose(__m512 a[16]) {
    __m512i b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) b[i] = _mm512_castps_si512(a[i]);
    transpose16(b);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = _mm512_castsi512_ps(b[i]);
}

#include "cpu/gemm_f32.h"

/* Four columns of a row move as one dword. A code shifted to the top byte, shifted right by four and masked is a
 * float32 of the code's value times 2^-120, subnormals included. */
static bool panel_e4m3(float *panel, const uint8_t *const row[LANES], V scales, int c0, int n, ptrdiff_t ahead) {
    const __m512i mask = _mm512_set1_epi32((int)0x87f00000), nan = _mm512_set1_epi8(0x7f);
    __m512 up = _mm512_mul_ps(scales, _mm512_set1_ps(0x1p120f));
    __mmask64 bad = 0;
    for (int c = 0; c < n; c += 64) {
        __m512 a[LANES];
        __mmask64 have = n - c >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << (n - c)) - 1;
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            const uint8_t *p = row[i] + c0 + c;
            _mm_prefetch(p + ahead, _MM_HINT_T0);
            __m512i v = _mm512_maskz_loadu_epi8(have, p);
            bad |= _mm512_cmpeq_epi8_mask(_mm512_and_si512(v, nan), nan);
            a[i] = _mm512_castsi512_ps(v);
        }
        transpose(a);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            __m512i v = _mm512_castps_si512(a[i]);
            float *to = panel + (size_t)(c + 4 * i) * PANEL;
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) {
                __m512i u = _mm512_and_si512(_mm512_srai_epi32(_mm512_slli_epi32(v, (unsigned)(24 - 8 * q)), 4), mask);
                _mm512_store_ps(to + q * PANEL, _mm512_mul_ps(_mm512_castsi512_ps(u), up));
            }
        }
    }
    return !bad;
}

const struct gemm gemm_avx512 = {
    .name = "avx512",
    .row_tile = PANEL * PANELS,
    .packed_bytes = gemm_packed_f32,
    .pack = gemm_pack_f32,
    .scratch_bytes = scratch_bytes,
    .rows = rows,
};

/* Many-token products in float32 with AVX2 and FMA: 16 rows of W by up to 6 tokens in registers. */
#include <immintrin.h>

#include "cpu/cpu.h"

#define LEVEL  CPU_AVX2
#define LANES  8
#define TOKENS 6
#define V      __m256
#define LOAD   _mm256_load_ps
#define STORE  _mm256_store_ps
#define SET1   _mm256_set1_ps
#define ZERO   _mm256_setzero_ps
#define FMA    _mm256_fmadd_ps
#define ADD    _mm256_add_ps

/* a[i] lane j <-> a[j] lane i */
static inline __attribute__((always_inline)) void transpose(__m256 a[8]) {
    __m256 b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        a[4 * i] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], 0x44);
        a[4 * i + 1] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], 0xee);
        a[4 * i + 2] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0x44);
        a[4 * i + 3] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        b[i] = _mm256_permute2f128_ps(a[i], a[4 + i], 0x20);
        b[4 + i] = _mm256_permute2f128_ps(a[i], a[4 + i], 0x31);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) a[i] = b[i];
}

#include "cpu/gemm_f32.h"

/* Four columns of a row move as one dword. A code shifted to the top byte, shifted right by four and masked is a
 * float32 of the code's value times 2^-120, subnormals included. */
static bool panel_e4m3(float *panel, const uint8_t *const row[LANES], V scales, int c0, int n, ptrdiff_t ahead) {
    const __m256i mask = _mm256_set1_epi32((int)0x87f00000), nan = _mm256_set1_epi8(0x7f);
    __m256 up = _mm256_mul_ps(scales, _mm256_set1_ps(0x1p120f));
    __m256i bad = _mm256_setzero_si256();
    for (int c = 0; c < n; c += 32) {
        __m256 a[LANES];
        uint8_t edge[32];
#pragma GCC unroll 8
        for (int i = 0; i < LANES; i++) {
            const uint8_t *p = row[i] + c0 + c;
            if (!(c & 32)) _mm_prefetch((const char *)p + ahead, _MM_HINT_T0);
            if (n - c < 32) {
                memset(edge, 0, sizeof edge);
                p = memcpy(edge, p, (size_t)(n - c));
            }
            __m256i v = _mm256_loadu_si256((const __m256i *)p);
            bad = _mm256_or_si256(bad, _mm256_cmpeq_epi8(_mm256_and_si256(v, nan), nan));
            a[i] = _mm256_castsi256_ps(v);
        }
        transpose(a);
#pragma GCC unroll 8
        for (int i = 0; i < LANES; i++) {
            __m256i v = _mm256_castps_si256(a[i]);
            float *to = panel + (size_t)(c + 4 * i) * PANEL;
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) {
                __m256i u = _mm256_and_si256(_mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * q), 4), mask);
                _mm256_store_ps(to + q * PANEL, _mm256_mul_ps(_mm256_castsi256_ps(u), up));
            }
        }
    }
    return !_mm256_movemask_epi8(bad);
}

const struct gemm gemm_avx2 = {
    .name = "avx2",
    .row_tile = PANEL * PANELS,
    .packed_bytes = gemm_packed_f32,
    .pack = gemm_pack_f32,
    .scratch_bytes = scratch_bytes,
    .rows = rows,
};

/* Blocks of 128 columns in one bit each, or of 64 in two, low bits first, after one scale: Q1_0 and Q2_0, 64 columns a
 * vector. Codes are one more than their values, -1 and 1 or -1 to 2, and the sum of x is subtracted in integers. x has
 * one unit for a block, which is one exact sum.
 *
 * Instructions per block of 18 bytes: 4 or 3 to unpack, 4 or 2 products, 9 more. */
#include <stdint.h>

#include "cpu/formats.h"
#include "cpu/intdot_planes.h"

#define DTYPE    FORMAT_DTYPE(FORMAT)
#define FLOATS   FORMAT_JOIN(avx512_, FORMAT)
#define EACH_ROW EACH
enum {
    GROUP = FORMAT_BLOCK(FORMAT),
    TURN = 1,
    BYTES = FORMAT_BYTES(FORMAT),
    VECTORS = GROUP / 64,
};
struct group {
    int8_t high[VECTORS][64], low[VECTORS][64];
    int32_t start[16]; /* minus the sum of x over the columns of each lane */
    float unit[16];
} __attribute__((aligned(64)));
#include "cpu/intdot_inner.h"

INLINE void group_make(struct group *g, const float *x, int n) {
    const __m512i ones[2] = {_mm512_set1_epi8(1), _mm512_set1_epi8(1)};
    V u[4 * VECTORS], most[8];
    float f[8];
    EACH (int i = 0; i < 4 * VECTORS; i++) u[i] = vload(x + 16 * i);
    __m512i all = magnitude(u[0]);
    EACH (int i = 1; i < 4 * VECTORS; i++) all = _mm512_max_epu32(all, magnitude(u[i]));
    EACH (int i = 0; i < 8; i++) most[i] = _mm512_castsi512_ps(all);
    vstore(g->unit, _mm512_broadcastss_ps(_mm256_castps256_ps128(units_8(most, f, false))));
    EACH (int v = 0; v < VECTORS; v++)
        planes_64(g->high[v], g->low[v], u[4 * v], u[4 * v + 1], u[4 * v + 2], u[4 * v + 3], f[0], f[0], f[0], f[0]);
    _mm512_store_si512(g->start, _mm512_sub_epi32(_mm512_setzero_si512(), dot_planes(ones, g->high, g->low, VECTORS)));
}

/* 64 columns. */
INLINE __m512i load_codes(const uint8_t *q) {
    if (DTYPE == DT_Q2_0) { /* eight of them in the lowest two bytes of each eight */
        const __m512i eight = _mm512_cvtepu16_epi64(_mm_loadu_si128((const __m128i *)(const void *)q));
        return _mm512_and_si512(_mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x0e0c0a0806040200), eight),
                                _mm512_set1_epi8(3));
    }
    uint64_t bits;
    memcpy(&bits, q, 8);
    return _mm512_maskz_mov_epi8((__mmask64)bits, _mm512_set1_epi8(2));
}

INLINE void group_dot(V *sum, const uint8_t *p, const uint8_t *s, const struct group *x, int ld, const int n,
                      const int N) {
    uint16_t d;
    __m512i w[VECTORS];
    memcpy(&d, p, 2);
    const V scale = _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(d)));
    EACH (int v = 0; v < VECTORS; v++) w[v] = load_codes(p + 2 + 16 / VECTORS * v);
    EACH (int t = 0; t < N; t++, x += ld) {
        const __m512i dot = _mm512_add_epi32(dot_planes(w, x->high, x->low, VECTORS), _mm512_load_si512(x->start));
        sum[t] = vfma(_mm512_cvtepi32_ps(dot), vmul(scale, vload(x->unit)), sum[t]);
    }
}

#include "cpu/simd_avx512.h"

struct group {
    int8_t high[128], low[128]; /* x = scale * (256 * high + low) */
    int32_t eight[16];          /* -8 * x, over the columns of each lane */
} __attribute__((aligned(64)));
struct group_x {
    __m512i high[2], low[2], eight;
};
INLINE struct group_x group_load(const struct group *g) {
    return (struct group_x){{_mm512_load_si512(g->high), _mm512_load_si512(g->high + 64)},
                            {_mm512_load_si512(g->low), _mm512_load_si512(g->low + 64)},
                            _mm512_load_si512(g->eight)};
}
/* Products of 128 columns, four of each half of the group per lane. */
INLINE V group_dot(const struct group_x *x, const uint8_t *p) {
    const __m512i codes = _mm512_loadu_si512(p), four = _mm512_set1_epi8(15);
    const __m512i a = _mm512_and_si512(codes, four), b = _mm512_and_si512(_mm512_srli_epi16(codes, 4), four);
    const __m512i high = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), a, x->high[0]), b, x->high[1]);
    const __m512i low = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(x->eight, a, x->low[0]), b, x->low[1]);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(low, _mm512_slli_epi32(high, 8)));
}
/* Stores the planes of LANES columns starting at c; group_end then the values common to the group. */
INLINE void group_put(struct group *g, int c, V v);
INLINE void group_end(struct group *g);

#include "cpu/int4_inner.h"

INLINE void group_put(struct group *g, int c, V v) {
    const __m512i q = _mm512_cvtps_epi32(v), high = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
    _mm_store_si128((__m128i *)(void *)(g->high + c), _mm512_cvtepi32_epi8(high));
    _mm_store_si128((__m128i *)(void *)(g->low + c),
                    _mm512_cvtepi32_epi8(_mm512_sub_epi32(q, _mm512_slli_epi32(high, 8))));
}
INLINE void group_end(struct group *g) {
    const __m512i eight = _mm512_set1_epi8(8), none = _mm512_setzero_si512();
    struct group_x v = {{_mm512_load_si512(g->high), _mm512_load_si512(g->high + 64)},
                        {_mm512_load_si512(g->low), _mm512_load_si512(g->low + 64)},
                        none};
    const __m512i high = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(none, eight, v.high[0]), eight, v.high[1]);
    const __m512i low = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(none, eight, v.low[0]), eight, v.low[1]);
    _mm512_store_si512(g->eight, _mm512_sub_epi32(none, _mm512_add_epi32(low, _mm512_slli_epi32(high, 8))));
}

extern const struct format_kernels avx512_int4;
GEMV_FN(int4_gemv_avx512vnni) {
    if (int4_takes(w)) int4_gemv(y, x, n, w);
    else avx512_int4.gemv(y, x, n, w);
}

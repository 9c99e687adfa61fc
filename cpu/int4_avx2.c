/* Compiled once more for AVX-VNNI, which sums in 32 bits directly, with the same bits (meson.build: ISA). */
#include "cpu/formats.h"
#include "cpu/simd_avx2.h"

#ifndef ISA
#define ISA avx2
#endif

struct group {
    int8_t high[128], low[128]; /* x = scale * (256 * high + low) */
#ifdef __AVXVNNI__
    int32_t eight[8]; /* -8 * x, over the columns of each lane */
#else
    int16_t eight_high[16], eight_low[16]; /* 8 * high and low, over the columns of each lane */
#endif
} __attribute__((aligned(64)));
struct group_x {
    const struct group *g; /* its planes are memory operands: there are too few registers */
};
INLINE struct group_x group_load(const struct group *g) { return (struct group_x){g}; }
INLINE __m256i plane(const int8_t *p) { return _mm256_load_si256((const __m256i *)(const void *)p); }
#ifdef __AVXVNNI__
INLINE V group_dot(const struct group_x *x, const uint8_t *p) {
    const struct group *g = x->g;
    const __m256i four = _mm256_set1_epi8(15), u = _mm256_loadu_si256((const __m256i *)(const void *)p),
                  v = _mm256_loadu_si256((const __m256i *)(const void *)(p + 32));
    const __m256i w[4] = {_mm256_and_si256(u, four), _mm256_and_si256(v, four),
                          _mm256_and_si256(_mm256_srli_epi16(u, 4), four),
                          _mm256_and_si256(_mm256_srli_epi16(v, 4), four)};
    __m256i high = _mm256_setzero_si256(), low = _mm256_load_si256((const __m256i *)(const void *)g->eight);
    EACH (int i = 0; i < 4; i++) high = _mm256_dpbusd_avx_epi32(high, w[i], plane(g->high + 32 * i));
    EACH (int i = 0; i < 4; i++) low = _mm256_dpbusd_avx_epi32(low, w[i], plane(g->low + 32 * i));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_slli_epi32(high, 8), low));
}
#else
/* Pair sums in 16 bits: of eight products of at most 15 * 128 each, which fit. */
INLINE V group_dot(const struct group_x *x, const uint8_t *p) {
    const struct group *g = x->g;
    const __m256i four = _mm256_set1_epi8(15), u = _mm256_loadu_si256((const __m256i *)(const void *)p),
                  v = _mm256_loadu_si256((const __m256i *)(const void *)(p + 32));
    const __m256i a = _mm256_and_si256(u, four), b = _mm256_and_si256(v, four),
                  c = _mm256_and_si256(_mm256_srli_epi16(u, 4), four),
                  d = _mm256_and_si256(_mm256_srli_epi16(v, 4), four);
    __m256i high = _mm256_add_epi16(
        _mm256_add_epi16(_mm256_maddubs_epi16(a, plane(g->high)), _mm256_maddubs_epi16(b, plane(g->high + 32))),
        _mm256_add_epi16(_mm256_maddubs_epi16(c, plane(g->high + 64)), _mm256_maddubs_epi16(d, plane(g->high + 96))));
    __m256i low = _mm256_add_epi16(
        _mm256_add_epi16(_mm256_maddubs_epi16(a, plane(g->low)), _mm256_maddubs_epi16(b, plane(g->low + 32))),
        _mm256_add_epi16(_mm256_maddubs_epi16(c, plane(g->low + 64)), _mm256_maddubs_epi16(d, plane(g->low + 96))));
    high = _mm256_sub_epi16(high, _mm256_load_si256((const __m256i *)(const void *)g->eight_high));
    low = _mm256_sub_epi16(low, _mm256_load_si256((const __m256i *)(const void *)g->eight_low));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_madd_epi16(high, _mm256_set1_epi16(256)),
                                               _mm256_madd_epi16(low, _mm256_set1_epi16(1))));
}
#endif
/* Stores the planes of LANES columns starting at c; group_end then the values common to the group. */
INLINE void group_put(struct group *g, int c, V v);
INLINE void group_end(struct group *g);

#include "cpu/int4_inner.h"

INLINE void group_put(struct group *g, int c, V v) {
    const __m256i q = _mm256_cvtps_epi32(v), high = _mm256_srai_epi32(_mm256_add_epi32(q, _mm256_set1_epi32(128)), 8);
    /* per half: 4 high, 4 low */
    const __m256i both = _mm256_packs_epi32(high, _mm256_sub_epi32(q, _mm256_slli_epi32(high, 8)));
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    const __m128i sorted = _mm_shuffle_epi32(bytes, _MM_SHUFFLE(3, 1, 2, 0));
    _mm_storel_epi64((__m128i *)(void *)(g->high + c), sorted);
    _mm_storeh_pd((double *)(void *)(g->low + c), _mm_castsi128_pd(sorted));
}
#ifdef __AVXVNNI__
INLINE void group_end(struct group *g) {
    __m256i high = _mm256_setzero_si256(), low = high;
    EACH (int i = 0; i < 4; i++) {
        high = _mm256_dpbusd_avx_epi32(high, _mm256_set1_epi8(8), plane(g->high + 32 * i));
        low = _mm256_dpbusd_avx_epi32(low, _mm256_set1_epi8(8), plane(g->low + 32 * i));
    }
    const __m256i eight = _mm256_add_epi32(_mm256_slli_epi32(high, 8), low);
    _mm256_store_si256((__m256i *)(void *)g->eight, _mm256_sub_epi32(_mm256_setzero_si256(), eight));
}
#else
INLINE void eights(int16_t *out, const int8_t *p) {
    const __m256i eight = _mm256_set1_epi8(8);
    __m256i sum = _mm256_setzero_si256();
    EACH (int i = 0; i < 4; i++) sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(eight, plane(p + 32 * i)));
    _mm256_store_si256((__m256i *)(void *)out, sum);
}
INLINE void group_end(struct group *g) {
    eights(g->eight_high, g->high);
    eights(g->eight_low, g->low);
}
#endif

extern const struct format_kernels avx2_int4;
GEMV_FN(FORMAT_JOIN(int4_gemv_, ISA)) {
    if (int4_takes(w)) int4_gemv(y, x, n, w);
    else avx2_int4.gemv(y, x, n, w);
}

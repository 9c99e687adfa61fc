#include "cpu/quant.h"
#include "cpu/simd_avx2.h"

INLINE __m128i load8(const uint8_t *p) { return _mm_loadl_epi64((const __m128i *)(const void *)p); }
INLINE __m128i load8_m(const uint8_t *p, int n) {
    uint64_t b = 0;
    memcpy(&b, p, (size_t)n);
    return _mm_cvtsi64_si128((long long)b);
}
INLINE V i8_v(const uint8_t *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load8(p))); }
INLINE V i8_m(const uint8_t *p, int n) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load8_m(p, n))); }

struct nibble {
    V scale, min;
};
INLINE struct nibble nibble_make(float s, float m) { return (struct nibble){vset1(s), vset1(m)}; }
INLINE void nibble_i(__m256i i, struct nibble a, struct nibble b, V *lo, V *hi) {
    *lo = _mm256_fmsub_ps(_mm256_cvtepi32_ps(_mm256_and_si256(i, _mm256_set1_epi32(15))), a.scale, a.min);
    *hi = _mm256_fmsub_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(i, 4)), b.scale, b.min);
}
INLINE void nibble_v(const uint8_t *p, struct nibble a, struct nibble b, V *lo, V *hi) { nibble_i(_mm256_cvtepu8_epi32(load8(p)), a, b, lo, hi); }
INLINE void nibble_m(const uint8_t *p, int n, struct nibble a, struct nibble b, V *lo, V *hi) { nibble_i(_mm256_cvtepu8_epi32(load8_m(p, n)), a, b, lo, hi); }

INLINE V q6_v(const uint8_t *ql, const uint8_t *qh, const bool low, const int shift) {
    __m128i l = load8(ql), h = load8(qh);
    l = _mm_and_si128(low ? l : _mm_srli_epi16(l, 4), _mm_set1_epi8(15));
    h = _mm_and_si128(shift < 4 ? _mm_slli_epi16(h, 4 - shift) : _mm_srli_epi16(h, shift - 4), _mm_set1_epi8(0x30));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_sub_epi8(_mm_or_si128(l, h), _mm_set1_epi8(32))));
}

#include "cpu/quant_inner.h"

void quant_avx2(struct kernels *k) { fill_quant(k); }

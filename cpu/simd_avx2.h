#pragma once
/* The SIMD wrappers of simd_avx512.h for AVX2 + FMA + F16C. */
#include <immintrin.h>
#include <stdint.h>

#include "base/minifloat.h"
#include "cpu/kernels.h"

typedef __m256 V;
#define INLINE static inline __attribute__((always_inline))
#define EACH   _Pragma("GCC unroll 16") for /* a loop of constant count over arrays that must become registers */
enum { LANES = 8, ROWS_1 = 4, ROWS_2 = 4, ROWS_4 = 2, ROWS_8 = 1 };
#define ROWS_3 3

INLINE V vzero(void) { return _mm256_setzero_ps(); }
INLINE V vset1(float f) { return _mm256_set1_ps(f); }
INLINE V vadd(V a, V b) { return _mm256_add_ps(a, b); }
INLINE V vsub(V a, V b) { return _mm256_sub_ps(a, b); }
INLINE V vmul(V a, V b) { return _mm256_mul_ps(a, b); }
INLINE V vdiv(V a, V b) { return _mm256_div_ps(a, b); }
INLINE V vmax(V a, V b) { return _mm256_max_ps(a, b); } /* b if either is NaN */
INLINE V vmin(V a, V b) { return _mm256_min_ps(a, b); }
INLINE V vfma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
INLINE __m256i vmask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE V vload(const float *p) { return _mm256_loadu_ps(p); }
INLINE V vloadm(const float *p, int n) { return _mm256_maskload_ps(p, vmask(n)); }
INLINE void vstore(float *p, V v) { _mm256_storeu_ps(p, v); }
INLINE void vstorem(float *p, V v, int n) { _mm256_maskstore_ps(p, vmask(n), v); }

INLINE float vsum(V v) {
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
INLINE void vsum4(V a, V b, V c, V d, float scale, float *out) {
    V ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)),
      cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    __m256d x = _mm256_castps_pd(ab), y = _mm256_castps_pd(cd);
    V v = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
    _mm_storeu_ps(out,
                  _mm_mul_ps(_mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)), _mm_set1_ps(scale)));
}
INLINE float vtop(V v) {
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

INLINE V vclamp(V x, float low, float high) {
    return _mm256_max_ps(vset1(low), _mm256_min_ps(vset1(high), x));
} /* NaN passes: both return the second operand */
INLINE V vnearest(V x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* x * 2^n, integral n from -151 to 128: in two factors */
INLINE V vscale(V x, V n) {
    __m256i k = _mm256_cvtps_epi32(n), a = _mm256_srai_epi32(k, 1), b = _mm256_sub_epi32(k, a),
            bias = _mm256_set1_epi32(127);
    V fa = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(a, bias), 23));
    V fb = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(b, bias), 23));
    return vmul(vmul(x, fa), fb);
}
#include "cpu/simd_exp.h"

/* --- Weights as LANES floats from one address ------------------------------------------------- */

INLINE __m128i bytes_m(const uint8_t *p, int bytes) { /* bytes < 16; reads nothing past them */
    uint8_t buf[16] = {0};
    memcpy(buf, p, (size_t)bytes);
    return _mm_loadu_si128((const __m128i *)(const void *)buf);
}
INLINE V load_f32(const uint8_t *p) { return _mm256_loadu_ps((const float *)(const void *)p); }
INLINE V load_f32m(const uint8_t *p, int n) { return _mm256_maskload_ps((const float *)(const void *)p, vmask(n)); }
INLINE V bf16_v(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
INLINE V load_bf16(const uint8_t *p) { return bf16_v(_mm_loadu_si128((const __m128i *)(const void *)p)); }
INLINE V load_bf16m(const uint8_t *p, int n) { return bf16_v(bytes_m(p, 2 * n)); }
INLINE V load_f16(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)); }
INLINE V load_f16m(const uint8_t *p, int n) { return _mm256_cvtph_ps(bytes_m(p, 2 * n)); }
INLINE V load_i8(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
INLINE V load_i8m(const uint8_t *p, int n) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes_m(p, n))); }
/* See simd_avx512.h. */
#ifndef E4M3_SUBNORMAL
#define E4M3_X    1.0f
#define E4M3_POST 0x1p8f
INLINE V e4m3_v(__m128i b) {
    return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(b), 7), _mm_set1_epi16((short)0xbf80)));
}
#else
#define E4M3_X     0x1p64f
#define E4M3_POST  0x1p56f
INLINE V e4m3_v(__m128i b) {
    __m256i w = _mm256_slli_epi32(_mm256_cvtepi8_epi32(b), 20);
    return _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32((int)0x87f00000)));
}
/* 32 codes in fewer instructions: vector q of four has columns q, q + 4, .... The upper halves of dwords (2 and 3) or
 * the lower ones hold codes with their signs, times 16. */
#define E4M3_SPLIT 4
struct e4m3_split {
    __m256i even, odd;
};
INLINE struct e4m3_split e4m3_split(const uint8_t *p) {
    __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return (struct e4m3_split){_mm256_maddubs_epi16(_mm256_set1_epi16(16), b), _mm256_srai_epi16(b, 4)};
}
INLINE V e4m3_nth(struct e4m3_split s, const int q) {
    __m256i w = q % 2 ? s.odd : s.even;
    return _mm256_castsi256_ps(
        _mm256_and_si256(q < 2 ? _mm256_slli_epi32(w, 16) : w, _mm256_set1_epi32((int)0x87f00000)));
}
#endif
INLINE V load_e4m3(const uint8_t *p) { return e4m3_v(_mm_loadl_epi64((const __m128i *)(const void *)p)); }
INLINE V load_e4m3m(const uint8_t *p, int n) { return e4m3_v(bytes_m(p, n)); }
INLINE V e4m3_nan(V v) {
    return _mm256_blendv_ps(v, vset1(NAN), _mm256_cmp_ps(_mm256_andnot_ps(vset1(-0.0f), v), vset1(480), _CMP_EQ_OQ));
}

INLINE V e2m1_lane(__m256i i) { /* magnitude by the low three bits, sign from bit 3 */
    const V table = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    __m256i sign = _mm256_and_si256(_mm256_slli_epi32(i, 28), _mm256_set1_epi32((int)0x80000000));
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, i), _mm256_castsi256_ps(sign));
}
INLINE void e2m1_v(__m128i b, V *even, V *odd) {
    __m256i i = _mm256_cvtepu8_epi32(b);
    *even = e2m1_lane(i);
    *odd = e2m1_lane(_mm256_srli_epi32(i, 4));
}
INLINE void load_e2m1(const uint8_t *p, V *even, V *odd) {
    e2m1_v(_mm_loadl_epi64((const __m128i *)(const void *)p), even, odd);
}
INLINE void load_e2m1m(const uint8_t *p, int bytes, V *even, V *odd) { e2m1_v(bytes_m(p, bytes), even, odd); }
/* NF4: sixteen levels, of which bit 3 of a code chooses a half. The even columns are the high nibbles. */
INLINE V nf4_lane(__m256i i) {
    const V low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(mat_nf4), i),
            high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(mat_nf4 + 8), i);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
}
INLINE void nf4_v(__m128i b, V *even, V *odd) {
    const __m256i i = _mm256_cvtepu8_epi32(b);
    *even = nf4_lane(_mm256_srli_epi32(i, 4));
    *odd = nf4_lane(i);
}
INLINE void load_nf4(const uint8_t *p, V *even, V *odd) {
    nf4_v(_mm_loadl_epi64((const __m128i *)(const void *)p), even, odd);
}
INLINE void load_nf4m(const uint8_t *p, int bytes, V *even, V *odd) { nf4_v(bytes_m(p, bytes), even, odd); }
INLINE V lanes_0213(V v) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8)); }
INLINE void vsplit(V a, V b, V *even, V *odd) {
    *even = lanes_0213(_mm256_shuffle_ps(a, b, 0x88));
    *odd = lanes_0213(_mm256_shuffle_ps(a, b, 0xdd));
}
INLINE void vjoin(V even, V odd, V *a, V *b) {
    V lo = _mm256_unpacklo_ps(even, odd), hi = _mm256_unpackhi_ps(even, odd);
    *a = _mm256_permute2f128_ps(lo, hi, 0x20);
    *b = _mm256_permute2f128_ps(lo, hi, 0x31);
}

/* --- Parts of GGUF blocks; see simd_avx512.h -------------------------------------------------- */

INLINE __m128i load8(const uint8_t *p) { return _mm_loadl_epi64((const __m128i *)(const void *)p); }
INLINE V i8_v(const uint8_t *p) { return load_i8(p); }
INLINE V u8_v(const uint8_t *p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load8(p))); }
/* Joins eights of a and of b in turns. */
INLINE void vjoin8(V a, V b, V *first, V *second) { *first = a, *second = b; }

struct nibble {
    V scale, min;
};
INLINE struct nibble nibble_make(float s, float m) { return (struct nibble){vset1(s), vset1(m)}; }
INLINE void nibble_i(__m256i i, struct nibble a, struct nibble b, V *lo, V *hi) {
    *lo = _mm256_fmsub_ps(_mm256_cvtepi32_ps(_mm256_and_si256(i, _mm256_set1_epi32(15))), a.scale, a.min);
    *hi = _mm256_fmsub_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(i, 4)), b.scale, b.min);
}
INLINE void nibble_v(const uint8_t *p, struct nibble a, struct nibble b, V *lo, V *hi) {
    nibble_i(_mm256_cvtepu8_epi32(load8(p)), a, b, lo, hi);
}

/* A 16-entry table for four-bit codes, times a scale; look_v: decodes the low and the high nibbles of LANES bytes. */
struct look {
    __m128i values;
    V scale;
};
INLINE struct look look_make(const int8_t *values, float s) {
    return (struct look){_mm_loadu_si128((const __m128i *)(const void *)values), vset1(s)};
}
INLINE V look_i(__m128i code, struct look t) {
    return _mm256_mul_ps(
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_shuffle_epi8(t.values, _mm_and_si128(code, _mm_set1_epi8(15))))),
        t.scale);
}
INLINE void look_bytes(__m128i b, struct look t, V *lo, V *hi) {
    *lo = look_i(b, t);
    *hi = look_i(_mm_srli_epi16(b, 4), t);
}
INLINE void look_v(const uint8_t *p, struct look t, V *lo, V *hi) { look_bytes(load8(p), t, lo, hi); }
INLINE void look_vm(const uint8_t *p, int bytes, struct look t, V *lo, V *hi) {
    look_bytes(bytes_m(p, bytes), t, lo, hi);
}
INLINE struct look look_minus(int zero) {
    return (struct look){
        _mm_sub_epi8(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm_set1_epi8((char)zero)),
        vset1(1)};
}
/* The values of LANES codes of five bits: low or high nibbles, and bit `bit` of other bytes. values: 32. */
INLINE V look5_v(const uint8_t *ql, const uint8_t *qh, const bool low, const int bit, const int8_t *values) {
    const __m128i *table = (const __m128i *)(const void *)values;
    const __m128i one = _mm_set1_epi8((char)(1 << bit)), h = _mm_and_si128(load8(qh), one), q = load8(ql);
    const __m128i code = _mm_and_si128(low ? q : _mm_srli_epi16(q, 4), _mm_set1_epi8(15));
    const __m128i v = _mm_blendv_epi8(_mm_shuffle_epi8(_mm_loadu_si128(table), code),
                                      _mm_shuffle_epi8(_mm_loadu_si128(table + 1), code), _mm_cmpeq_epi8(h, one));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v));
}
/* Four bits and a fifth, bit number `bit` of another byte. */
INLINE V q5_v(const uint8_t *ql, const uint8_t *qh, const bool low, const int bit) {
    __m128i l = load8(ql), h = load8(qh);
    l = _mm_and_si128(low ? l : _mm_srli_epi16(l, 4), _mm_set1_epi8(15));
    h = _mm_and_si128(bit < 4 ? _mm_slli_epi16(h, 4 - bit) : _mm_srli_epi16(h, bit - 4), _mm_set1_epi8(0x10));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_or_si128(l, h)));
}
INLINE V q6_v(const uint8_t *ql, const uint8_t *qh, const bool low, const int shift) {
    __m128i l = load8(ql), h = load8(qh);
    l = _mm_and_si128(low ? l : _mm_srli_epi16(l, 4), _mm_set1_epi8(15));
    h = _mm_and_si128(shift < 4 ? _mm_slli_epi16(h, 4 - shift) : _mm_srli_epi16(h, shift - 4), _mm_set1_epi8(0x30));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_sub_epi8(_mm_or_si128(l, h), _mm_set1_epi8(32))));
}
/* Four bits and a fifth, bit i of `bits` for lane i. */
INLINE V q5_bits_v(const uint8_t *ql, uint32_t bits, const bool low) {
    __m128i l = load8(ql);
    l = _mm_and_si128(low ? l : _mm_srli_epi16(l, 4), _mm_set1_epi8(15));
    const __m128i each = _mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, (char)128, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m128i is_set = _mm_cmpeq_epi8(_mm_and_si128(_mm_set1_epi8((char)bits), each), each);
    l = _mm_or_si128(l, _mm_and_si128(is_set, _mm_set1_epi8(0x10)));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(l));
}
/* Bits shift and shift + 1 of each byte. */
INLINE V q2_v(const uint8_t *q, const int shift) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_and_si128(_mm_srli_epi16(load8(q), shift), _mm_set1_epi8(3))));
}
/* Bits shift and shift + 1 of each byte, and a third, bit number `bit` of another byte, minus 4. */
INLINE V q3_v(const uint8_t *q, const uint8_t *qh, const int shift, const int bit) {
    __m128i l = _mm_and_si128(_mm_srli_epi16(load8(q), shift), _mm_set1_epi8(3)), h = load8(qh);
    h = _mm_and_si128(bit < 2 ? _mm_slli_epi16(h, 2 - bit) : _mm_srli_epi16(h, bit - 2), _mm_set1_epi8(4));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_sub_epi8(_mm_or_si128(l, h), _mm_set1_epi8(4))));
}
INLINE V signed_v(uint64_t a, uint64_t b, uint32_t signs) {
    const V v = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)a)));
    const __m256i top =
        _mm256_sllv_epi32(_mm256_set1_epi32((int)signs), _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24));
    return _mm256_xor_ps(v, _mm256_castsi256_ps(_mm256_and_si256(top, _mm256_set1_epi32((int)0x80000000))));
}
INLINE V tq1_v(const uint8_t *p, const int power) {
    __m128i w = _mm_cvtepu8_epi16(load8(p));
    w = _mm_and_si128(_mm_mullo_epi16(w, _mm_set1_epi16((short)power)), _mm_set1_epi16(255));
    return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_srli_epi16(_mm_mullo_epi16(w, _mm_set1_epi16(3)), 8)));
}

#pragma once
/* The SIMD wrappers in which gemv_inner.h and attn_inner.h are written, for AVX-512 F/BW/VL/DQ: V is LANES floats. The
 * suffix m means partial: only the first n < LANES elements are accessed, the others read as 0. */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe, for machines without AVX-512 */
#include <immintrin.h>
#endif
#include <stdint.h>

#include "base/minifloat.h"
#include "cpu/kernels.h"

typedef __m512 V;
#define INLINE static inline __attribute__((always_inline))
#define EACH   _Pragma("GCC unroll 16") for /* a loop of constant count over arrays that must become registers */
/* rows walked in parallel for 1, 2, 3-4, 5-8 tokens, limited by registers */
enum { LANES = 16, ROWS_1 = 4, ROWS_2 = 4, ROWS_4 = 4, ROWS_8 = 3 };

INLINE V vzero(void) { return _mm512_setzero_ps(); }
INLINE V vset1(float f) { return _mm512_set1_ps(f); }
INLINE V vadd(V a, V b) { return _mm512_add_ps(a, b); }
INLINE V vsub(V a, V b) { return _mm512_sub_ps(a, b); }
INLINE V vmul(V a, V b) { return _mm512_mul_ps(a, b); }
INLINE V vdiv(V a, V b) { return _mm512_div_ps(a, b); }
INLINE V vmax(V a, V b) { return _mm512_max_ps(a, b); } /* b if either is NaN */
INLINE V vmin(V a, V b) { return _mm512_min_ps(a, b); }
INLINE V vfma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
INLINE __mmask16 vmask(int n) { return (__mmask16)((1u << n) - 1); }

INLINE V vload(const float *p) { return _mm512_loadu_ps(p); }
INLINE V vloadm(const float *p, int n) { return _mm512_maskz_loadu_ps(vmask(n), p); }
INLINE void vstore(float *p, V v) { _mm512_storeu_ps(p, v); }
INLINE void vstorem(float *p, V v, int n) { _mm512_mask_storeu_ps(p, vmask(n), v); }

/* Sum of the lanes in one fixed order: adds halves. */
INLINE float vsum(V v) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
/* out[0..3] = the sums of four vectors, each in a fixed order. */
INLINE void vsum4(V a, V b, V c, V d, float scale, float *out) {
    V ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)),
      cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
    V v = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    _mm_storeu_ps(out,
                  _mm_mul_ps(_mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)), _mm_set1_ps(scale)));
}
INLINE float vtop(V v) {
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

INLINE V vclamp(V x, float low, float high) {
    return _mm512_max_ps(vset1(low), _mm512_min_ps(vset1(high), x));
} /* NaN passes: both return the second operand */
INLINE V vnearest(V x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE V vscale(V x, V n) { return _mm512_scalef_ps(x, n); }
#include "cpu/simd_exp.h"

/* --- Weights as LANES floats from one address ------------------------------------------------- */

INLINE V load_f32(const uint8_t *p) { return _mm512_loadu_ps((const float *)(const void *)p); }
INLINE V load_f32m(const uint8_t *p, int n) { return _mm512_maskz_loadu_ps(vmask(n), p); }
INLINE V bf16_v(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }
INLINE V load_bf16(const uint8_t *p) { return bf16_v(_mm256_loadu_si256((const __m256i *)(const void *)p)); }
INLINE V load_bf16m(const uint8_t *p, int n) { return bf16_v(_mm256_maskz_loadu_epi16(vmask(n), p)); }
INLINE V load_f16(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p)); }
INLINE V load_f16m(const uint8_t *p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(vmask(n), p)); }
INLINE V load_i8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
INLINE V load_i8m(const uint8_t *p, int n) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(vmask(n), p)));
}
/* E4M3, exact for all 254 finite codes, but too small by a power of two that the caller applies: in part to x (E4M3_X,
 * which keeps products out of the subnormals), the rest to the scale (E4M3_POST). Codes 0x7f and 0xff decode as 480.
 *
 * Default: shifts the sign-extended byte so that exponent and mantissa match the low bits of an fp16's (value * 2^-8);
 * the conversion to float normalises subnormals. E4M3_SUBNORMAL does the same with a float (value * 2^-120) without a
 * conversion; subnormal codes stay subnormal, which costs an FMA nothing on AMD but much on Intel. */
#ifndef E4M3_SUBNORMAL
#define E4M3_X    1.0f
#define E4M3_POST 0x1p8f
INLINE V e4m3_v(__m128i b) {
    __m256i h = _mm256_slli_epi16(_mm256_cvtepi8_epi16(b), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(h, _mm256_set1_epi16((short)0xbf80)));
}
#else
#define E4M3_X    0x1p64f
#define E4M3_POST 0x1p56f
INLINE V e4m3_v(__m128i b) {
    __m512i w = _mm512_slli_epi32(_mm512_cvtepi8_epi32(b), 20);
    return _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32((int)0x87f00000)));
}
#endif
#if defined HEARTH_VBMI || defined HEARTH_GFNI
/* 64 codes at once, in order: builds the upper two bytes of each float (e4m3_line), and widens sixteen at a time when
 * they are needed (e4m3_part). All values / E4M3_POST, as with the conversion above. */
#define E4M3_LINE
#include "cpu/e4m3_table.h"
static const uint8_t e4m3_high[128] = {E4M3_ALL(E4M3_HIGH, -8)}, e4m3_low[128] = {E4M3_ALL(E4M3_LOW, -8)};
INLINE __m512i e4m3_codes(const uint8_t *p, int n) { /* n of 64; the rest is zero */
    return n >= 64 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi8(((__mmask64)1 << n) - 1, p);
}
#endif
#ifdef HEARTH_VBMI
/* The bytes by table look-ups, in two registers from which widening selects. */
struct e4m3_line {
    __m512i high, low;
};
INLINE struct e4m3_line e4m3_line(const uint8_t *p, int n) {
    const uint8_t *high = e4m3_high, *low = e4m3_low;
    __m512i code = e4m3_codes(p, n);
    __m512i h = _mm512_permutex2var_epi8(_mm512_loadu_si512(high), code, _mm512_loadu_si512(high + 64));
    __m512i l = _mm512_permutex2var_epi8(_mm512_loadu_si512(low), code, _mm512_loadu_si512(low + 64));
    /* h | (code & 0x80) */
    return (struct e4m3_line){_mm512_ternarylogic_epi32(h, code, _mm512_set1_epi8((char)0x80), 0xf8), l};
}
INLINE V e4m3_part(struct e4m3_line line, const int u) {
    const __m512i first = _mm512_set_epi32(0x4f0f0000, 0x4e0e0000, 0x4d0d0000, 0x4c0c0000, 0x4b0b0000, 0x4a0a0000,
                                           0x49090000, 0x48080000, 0x47070000, 0x46060000, 0x45050000, 0x44040000,
                                           0x43030000, 0x42020000, 0x41010000, 0x40000000);
    __m512i at = _mm512_add_epi8(first, _mm512_set1_epi32(0x10100000 * u));
    return _mm512_castsi512_ps(_mm512_maskz_permutex2var_epi8(0xcccccccccccccccc, line.low, at, line.high));
}
#endif
#ifdef HEARTH_GFNI
/* The bytes by two affine bit maps: the exponent's upper bits are assumed to be 0111. That is wrong for code exponent
 * 0, so those are looked up in a branch: few weights of a checkpoint are that small relative to the largest of their
 * block. The codes are first permuted so that unpacking leaves sixteen consecutive ones in the upper halves of a vector
 * and sixteen more in the lower ones. */
struct e4m3_line {
    __m512i first, second; /* columns 0 to 31, and 32 to 63 */
};
#define E4M3_TURN(c) \
    (c), 16 + (c), (c) + 1, 17 + (c), (c) + 2, 18 + (c), (c) + 3, 19 + (c), 32 + (c), 48 + (c), 33 + (c), 49 + (c), \
        34 + (c), 50 + (c), 35 + (c), 51 + (c)
static const uint8_t e4m3_turn[64] = {E4M3_TURN(0), E4M3_TURN(4), E4M3_TURN(8), E4M3_TURN(12)};
INLINE struct e4m3_line e4m3_line(const uint8_t *p, int n) {
    const __m512i to_high = _mm512_set1_epi64(0x1020400000000080), to_low = _mm512_set1_epi64(0x01020408);
    __m512i code = _mm512_permutexvar_epi8(_mm512_loadu_si512(e4m3_turn), e4m3_codes(p, n));
    __m512i high = _mm512_gf2p8affine_epi64_epi8(code, to_high, 0x38),
            low = _mm512_gf2p8affine_epi64_epi8(code, to_low, 0);
    __mmask64 tiny = _mm512_testn_epi8_mask(code, _mm512_set1_epi8(0x78));
    if (__builtin_expect(tiny != 0, 0)) {
        high = _mm512_mask_permutexvar_epi8(high, tiny, code, _mm512_loadu_si512(e4m3_high));
        high = _mm512_ternarylogic_epi32(high, code, _mm512_set1_epi8((char)0x80), 0xf8); /* high | (code & 0x80) */
        low = _mm512_mask_permutexvar_epi8(low, tiny, code, _mm512_loadu_si512(e4m3_low));
    }
    return (struct e4m3_line){_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}
INLINE V e4m3_part(struct e4m3_line line, const int u) {
    __m512i pair = u < 2 ? line.first : line.second;
    return _mm512_castsi512_ps(u % 2 ? _mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000))
                                     : _mm512_slli_epi32(pair, 16));
}
#endif
INLINE V load_e4m3(const uint8_t *p) { return e4m3_v(_mm_loadu_si128((const __m128i *)(const void *)p)); }
INLINE V load_e4m3m(const uint8_t *p, int n) { return e4m3_v(_mm_maskz_loadu_epi8(vmask(n), p)); }
INLINE V e4m3_nan(V v) { /* codes 0x7f and 0xff decode as 480 */
    __m512i mag = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
    return _mm512_mask_mov_ps(v, _mm512_cmpeq_epi32_mask(mag, _mm512_castps_si512(vset1(480))), vset1(NAN));
}

/* E2M1: 2 * LANES weights, even columns and odd ones; x is split in the same way. */
INLINE void e2m1_v(__m128i b, V *even, V *odd) {
    const V table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    __m512i i = _mm512_cvtepu8_epi32(b);
    *even = _mm512_permutexvar_ps(i, table); /* uses only the low four bits */
    *odd = _mm512_permutexvar_ps(_mm512_srli_epi32(i, 4), table);
}
INLINE void load_e2m1(const uint8_t *p, V *even, V *odd) {
    e2m1_v(_mm_loadu_si128((const __m128i *)(const void *)p), even, odd);
}
INLINE void load_e2m1m(const uint8_t *p, int bytes, V *even, V *odd) {
    e2m1_v(_mm_maskz_loadu_epi8(vmask(bytes), p), even, odd);
}
INLINE void vsplit(V a, V b, V *even, V *odd) {
    const __m512i e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(a, e, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(e, _mm512_set1_epi32(1)), b);
}
INLINE void vjoin(V even, V odd, V *a, V *b) {
    const __m512i lo = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *a = _mm512_permutex2var_ps(even, lo, odd);
    *b = _mm512_permutex2var_ps(even, _mm512_add_epi32(lo, _mm512_set1_epi32(8)), odd);
}

/* --- Parts of GGUF blocks: signed bytes; int4 values q * s - m, rounded once, low nibbles with a and high ones with b;
 * Q6_K's nibbles of ql with two bits of qh, minus 32 --- */

INLINE __m128i load16(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)(const void *)p); }
INLINE V i8_v(const uint8_t *p) { return load_i8(p); }
INLINE V u8_v(const uint8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load16(p))); }
/* Joins eights of a and of b in turns. */
INLINE void vjoin8(V a, V b, V *first, V *second) {
    const __m512i eights = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    *first = _mm512_permutex2var_ps(a, eights, b);
    *second = _mm512_permutex2var_ps(a, _mm512_add_epi32(eights, _mm512_set1_epi32(8)), b);
}

/* All sixteen values in a register; a look-up uses the low four bits of each lane and ignores the others. */
struct nibble {
    V values;
};
INLINE struct nibble nibble_make(float s, float m) {
    const V q = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return (struct nibble){_mm512_fmsub_ps(q, vset1(s), vset1(m))};
}
INLINE void nibble_i(__m512i i, struct nibble a, struct nibble b, V *lo, V *hi) {
    *lo = _mm512_permutexvar_ps(i, a.values);
    *hi = _mm512_permutexvar_ps(_mm512_srli_epi32(i, 4), b.values);
}
INLINE void nibble_v(const uint8_t *p, struct nibble a, struct nibble b, V *lo, V *hi) {
    nibble_i(_mm512_cvtepu8_epi32(load16(p)), a, b, lo, hi);
}
/* A 16-entry table for four-bit codes, times a scale; look_v: decodes the low and the high nibbles of LANES bytes. */
struct look {
    V values;
};
INLINE struct look look_make(const int8_t *values, float s) {
    return (struct look){vmul(i8_v((const uint8_t *)values), vset1(s))};
}
INLINE void look_bytes(__m128i b, struct look t, V *lo, V *hi) {
    __m512i i = _mm512_cvtepu8_epi32(b);
    *lo = _mm512_permutexvar_ps(i, t.values);
    *hi = _mm512_permutexvar_ps(_mm512_srli_epi32(i, 4), t.values);
}
INLINE void look_v(const uint8_t *p, struct look t, V *lo, V *hi) { look_bytes(load16(p), t, lo, hi); }
INLINE void look_vm(const uint8_t *p, int bytes, struct look t, V *lo, V *hi) {
    look_bytes(_mm_maskz_loadu_epi8(vmask(bytes), p), t, lo, hi);
}
/* The even columns of NF4 are the high nibbles. */
INLINE void load_nf4(const uint8_t *p, V *even, V *odd) { look_v(p, (struct look){vload(mat_nf4)}, odd, even); }
INLINE void load_nf4m(const uint8_t *p, int bytes, V *even, V *odd) {
    look_vm(p, bytes, (struct look){vload(mat_nf4)}, odd, even);
}
/* The codes themselves, minus a number. */
INLINE struct look look_minus(int zero) {
    return (struct look){
        _mm512_sub_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), vset1((float)zero))};
}
/* The values of LANES codes of five bits: low or high nibbles, and bit `bit` of other bytes. values: 32. */
INLINE V look5_v(const uint8_t *ql, const uint8_t *qh, const bool low, const int bit, const int8_t *values) {
    const __m128i *table = (const __m128i *)(const void *)values;
    const __m128i one = _mm_set1_epi8((char)(1 << bit)), h = _mm_and_si128(load16(qh), one), q = load16(ql);
    const __m128i code = _mm_and_si128(low ? q : _mm_srli_epi16(q, 4), _mm_set1_epi8(15));
    const __m128i v = _mm_blendv_epi8(_mm_shuffle_epi8(_mm_loadu_si128(table), code),
                                      _mm_shuffle_epi8(_mm_loadu_si128(table + 1), code), _mm_cmpeq_epi8(h, one));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v));
}
/* Four bits and a fifth, bit number `bit` of another byte. */
INLINE V q5_v(const uint8_t *ql, const uint8_t *qh, const bool low, const int bit) {
    __m128i l = load16(ql), h = load16(qh);
    l = _mm_and_si128(low ? l : _mm_srli_epi16(l, 4), _mm_set1_epi8(15));
    h = _mm_and_si128(bit < 4 ? _mm_slli_epi16(h, 4 - bit) : _mm_srli_epi16(h, bit - 4), _mm_set1_epi8(0x10));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_or_si128(l, h)));
}
INLINE V q6_v(const uint8_t *ql, const uint8_t *qh, const bool low, const int shift) {
    __m128i l = load16(ql), h = load16(qh);
    l = _mm_and_si128(low ? l : _mm_srli_epi16(l, 4), _mm_set1_epi8(15));
    h = _mm_and_si128(shift < 4 ? _mm_slli_epi16(h, 4 - shift) : _mm_srli_epi16(h, shift - 4), _mm_set1_epi8(0x30));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_sub_epi8(_mm_or_si128(l, h), _mm_set1_epi8(32))));
}
/* Four bits and a fifth, bit i of `bits` for lane i. */
INLINE V q5_bits_v(const uint8_t *ql, uint32_t bits, const bool low) {
    __m128i l = load16(ql);
    l = _mm_and_si128(low ? l : _mm_srli_epi16(l, 4), _mm_set1_epi8(15));
    l = _mm_or_si128(l, _mm_maskz_mov_epi8((__mmask16)bits, _mm_set1_epi8(0x10)));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(l));
}
/* Bits shift and shift + 1 of each byte. */
INLINE V q2_v(const uint8_t *q, const int shift) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_and_si128(_mm_srli_epi16(load16(q), shift), _mm_set1_epi8(3))));
}
/* Bits shift and shift + 1 of each byte, and a third, bit number `bit` of another byte, minus 4. */
INLINE V q3_v(const uint8_t *q, const uint8_t *qh, const int shift, const int bit) {
    __m128i l = _mm_and_si128(_mm_srli_epi16(load16(q), shift), _mm_set1_epi8(3)), h = load16(qh);
    h = _mm_and_si128(bit < 2 ? _mm_slli_epi16(h, 2 - bit) : _mm_srli_epi16(h, bit - 2), _mm_set1_epi8(4));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_sub_epi8(_mm_or_si128(l, h), _mm_set1_epi8(4))));
}
/* Eight bytes of a and of b, negative where `signs` has the lane's bit. */
INLINE V signed_v(uint64_t a, uint64_t b, uint32_t signs) {
    const V v = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_set_epi64x((long long)b, (long long)a)));
    return _mm512_mask_sub_ps(v, (__mmask16)signs, vzero(), v);
}
/* Ternary digit of each byte, 0 to 2: the upper part of three times the fraction byte * power. */
INLINE V tq1_v(const uint8_t *p, const int power) {
    __m256i w = _mm256_cvtepu8_epi16(load16(p));
    w = _mm256_and_si256(_mm256_mullo_epi16(w, _mm256_set1_epi16((short)power)), _mm256_set1_epi16(255));
    return _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(_mm256_srli_epi16(_mm256_mullo_epi16(w, _mm256_set1_epi16(3)), 8)));
}

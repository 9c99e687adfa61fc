/* Decodes weights with in-block scales, and FP4 with an E8M0 per 32 columns, to BF16 for gemm_amx.c and gemm_vnni.c: rounded, or as a BF16
 * number and its BF16 remainder, 2^-17 of the weight.
 *
 * An AMX pair is two neighbouring columns, and gemm_amx.c expects 0-7, 16-23, 32-39 and 48-55 of 64 in the first of two tiles. Every
 * format is unpacked to bytes in column order, 64 at a time, in two to five instructions. Then:
 *
 * Four bits: the sixteen possible weights of a block are computed once per 32 columns, as BF16; two unpacks and two word look-ups
 * do the rest.
 *
 * Five, six and eight bits: a byte look-up moves the codes of two lanes to the upper ends of dwords, where a conversion and a
 * multiplication by the scale yield floats; two such vectors become one of BF16. */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe */
#include <immintrin.h>
#endif
#include <string.h>

#include "cpu/formats.h"
#include "cpu/gemm_inner.h"
#include "engine/base/scale.h"

#define INLINE static inline __attribute__((always_inline))
#define EACH   _Pragma("GCC unroll 16") for

INLINE void ask(const uint8_t *p, int bytes, ptrdiff_t ahead) {
    for (int i = 0; i < bytes; i += 64) _mm_prefetch(p + i + ahead, _MM_HINT_T1);
}
INLINE float half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}
/* Keeps eight floats in memory: broadcasting one from memory is free, from a register it costs a shuffle, of which one can issue per cycle.
 * Compilers would keep them in registers. */
#define IN_MEMORY(name, v) \
    float name[8]; \
    _mm256_storeu_ps(name, v); \
    __asm__("" : "+m"(name))

/* Eight bytes, each times d. */
INLINE __m256 eight(uint64_t bytes, float d) {
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes))), _mm256_set1_ps(d));
}
/* Q4_K and Q5_K: factor and addend of each part of 32 columns. */
INLINE void k_scales(const uint8_t *p, __m256 *scale, __m256 *off) {
    uint32_t u[3];
    memcpy(u, p + 4, sizeof u);
    const uint64_t sc = (u[0] & 0x3f3f3f3f) | (uint64_t)((u[2] & 0x0f0f0f0f) | (u[0] >> 2 & 0x30303030)) << 32;
    const uint64_t mn = (u[1] & 0x3f3f3f3f) | (uint64_t)((u[2] >> 4 & 0x0f0f0f0f) | (u[1] >> 2 & 0x30303030)) << 32;
    *scale = eight(sc, half_at(p));
    *off = eight(mn, -half_at(p + 2));
}

/* --- Four bits --- */

INLINE __m512 values(const int8_t *table) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)table))); }
INLINE __m512 widen(__m256i words) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16)); }
/* BF16 remainders of a and b after rounding to head. */
INLINE __m512i over(__m512 a, __m512 b, __m512i head) {
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(b, widen(_mm512_extracti64x4_epi64(head, 1))), _mm512_sub_ps(a, widen(_mm512_castsi512_si256(head))));
}
INLINE void look(uint16_t *to, __m512i codes, __m512i table) {
    _mm512_store_si512(to, _mm512_permutexvar_epi16(_mm512_unpacklo_epi8(codes, codes), table));
    _mm512_store_si512(to + 32, _mm512_permutexvar_epi16(_mm512_unpackhi_epi8(codes, codes), table));
}
/* 64 columns: a and b hold all possible weights of the first and the last 32; codes of the latter have 16 added. */
INLINE void put_four(uint16_t *head, uint16_t *rest, __m512i codes, __m512 a, __m512 b) {
    const __m512i table = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    look(head, codes, table);
    if (!rest) return;
    look(rest, codes, over(a, b, table));
}
/* The low four bits, plus 16 for the second half. */
INLINE __m512i four_bits(__m512i b) {
    const __m512i other = _mm512_setr_epi64(0, 0, 0, 0, 0x1010101010101010, 0x1010101010101010, 0x1010101010101010, 0x1010101010101010);
    return _mm512_ternarylogic_epi32(b, _mm512_set1_epi8(15), other, 0xea); /* (b & 15) | other */
}
/* Twice 16 bytes, low nibbles before high ones. */
INLINE __m512i codes_16(const uint8_t *a, const uint8_t *b) {
    const __m512i both = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)a)), 0xff00,
                                                     _mm_loadu_si128((const __m128i *)(const void *)b));
    return four_bits(_mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)));
}
/* 32 bytes, low nibbles before high ones. */
INLINE __m512i codes_32(const uint8_t *p) {
    const __m512i both = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return four_bits(_mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4)));
}
/* 32 bytes, or fewer for n columns, of neighbouring pairs. */
INLINE __m512i codes_pairs(const uint8_t *p, int n) {
    const __mmask32 have = n >= 64 ? ~(__mmask32)0 : (__mmask32)(((uint64_t)1 << (n + 1) / 2) - 1);
    const __m512i wide = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(have, p));
    return four_bits(_mm512_or_si512(wide, _mm512_slli_epi16(wide, 4)));
}
/* One fp16 for each block of 32 columns, n columns in all; blocks are `step` bytes apart. */
INLINE uint64_t half_of(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}
INLINE __m256 half_scales(const uint8_t *p, int step, int n) {
    uint64_t u[2] = {0};
    if (n >= 256)
        EACH (int b = 0; b < 8; b++) u[b / 4] |= half_of(p + step * b) << 16 * (b % 4);
    else
        for (int b = 0; 32 * b < n; b++) u[b / 4] |= half_of(p + step * b) << 16 * (b % 4);
    return _mm256_cvtph_ps(_mm_set_epi64x((long long)u[1], (long long)u[0]));
}

/* One byte for each block, as above. */
INLINE __m256i exponents(const uint8_t *p, int step, int n) {
    uint64_t u = 0;
    if (step == 1 && n >= 256) memcpy(&u, p, sizeof u);
    else if (n >= 256)
        EACH (int b = 0; b < 8; b++) u |= (uint64_t)p[step * b] << 8 * b;
    else
        for (int b = 0; 32 * b < n; b++) u |= (uint64_t)p[step * b] << 8 * b;
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)u));
}
/* 2^(e - 127), with 255 (NaN) as infinity; 2^(e - 128) for all of them (minifloat.h). */
INLINE __m256 powers(__m256i e) { return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(0x00400000))); }
INLINE __m256 half_powers(const uint8_t *p, int step, int n) {
    const __m256i e = exponents(p, step, n), normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    return _mm256_castsi256_ps(_mm256_mask_sllv_epi32(normal, _mm256_cmplt_epu32_mask(e, _mm256_set1_epi32(2)), _mm256_set1_epi32(0x00200000), e));
}

/* Two variants each: with remainders, and without. */
#define PLANES_ARGS uint16_t *head, uint16_t *rest, const struct mat *w, int r, int c0, int n, ptrdiff_t ahead
#define PLANES(name) \
    INLINE void make_##name(PLANES_ARGS, const bool split); \
    static void planes_##name(uint16_t *head, uint16_t *rest, int pitch, const struct mat *w, int r, int rows, int c0, int n, ptrdiff_t ahead) { \
        if (rest) \
            for (int i = 0; i < rows; i++) make_##name(head + i * pitch, rest + i * pitch, w, r + i, c0, n, ahead, true); \
        else \
            for (int i = 0; i < rows; i++) make_##name(head + i * pitch, NULL, w, r + i, c0, n, ahead, false); \
    } \
    INLINE void make_##name(PLANES_ARGS, const bool split)
#define ROW_AT(name) ((const uint8_t *)w->data + (size_t)r * w->stride + (size_t)c0 / FORMAT_BLOCK(name) * FORMAT_BYTES(name))
#define REST(c)      (split ? rest + (c) : NULL)

/* If the second block of 32 columns does not exist, the first is used again: activations are zero there. */
#define PLANES_32(name, bytes, codes, table, make_scales) \
    PLANES(name) { \
        const uint8_t *p = ROW_AT(name); \
        const __m512 all = values(table); \
        IN_MEMORY(s, make_scales(p, bytes, n)); \
        for (int c = 0, i = 0; c < n; c += 64, i += 2, p += 2 * (bytes)) { \
            const int second = n - c > 32; \
            const uint8_t *q = second ? p + (bytes) : p; \
            ask(p, 2 * (bytes), ahead); \
            put_four(head + c, REST(c), codes_16(p + (codes), q + (codes)), _mm512_mul_ps(all, _mm512_set1_ps(s[i])), \
                     _mm512_mul_ps(all, _mm512_set1_ps(s[i + second]))); \
        } \
    }
PLANES_32(q4_0, 18, 2, mat_q4_0, half_scales)
PLANES_32(iq4_nl, 18, 2, mat_iq4, half_scales)
PLANES_32(mxfp4, 17, 1, mat_mxfp4, half_powers)

PLANES(q4_1) {
    const uint8_t *p = ROW_AT(q4_1);
    const __m512 all = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    IN_MEMORY(s, half_scales(p, 20, n));
    IN_MEMORY(m, half_scales(p + 2, 20, n));
    for (int c = 0, i = 0; c < n; c += 64, i += 2, p += 40) {
        const int second = n - c > 32;
        const uint8_t *q = second ? p + 20 : p;
        ask(p, 40, ahead);
        put_four(head + c, REST(c), codes_16(p + 4, q + 4), _mm512_fmadd_ps(all, _mm512_set1_ps(s[i]), _mm512_set1_ps(m[i])),
                 _mm512_fmadd_ps(all, _mm512_set1_ps(s[i + second]), _mm512_set1_ps(m[i + second])));
    }
}

PLANES(e2m1) {
    const uint8_t *p = ROW_AT(e2m1);
    const __m512 all = _mm512_mul_ps(values(mat_mxfp4), _mm512_set1_ps(0.5f));
    IN_MEMORY(s, powers(exponents((const uint8_t *)w->scale + scale_row(w, r) + (size_t)c0 / 32, 1, n)));
    for (int c = 0, i = 0; c < n; c += 64, i += 2, p += 32) {
        ask(p, 32, ahead);
        put_four(head + c, REST(c), codes_pairs(p, n - c), _mm512_mul_ps(all, _mm512_set1_ps(s[i])), _mm512_mul_ps(all, _mm512_set1_ps(s[i + (n - c > 32)])));
    }
}

PLANES(q4_k) {
    const uint8_t *p = ROW_AT(q4_k);
    const __m512 all = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m256 scale, off;
    ask(p, FORMAT_BYTES(q4_k), ahead);
    k_scales(p, &scale, &off);
    IN_MEMORY(s, scale);
    IN_MEMORY(m, off);
    EACH (int i = 0; i < 4; i++)
        put_four(head + 64 * i, REST(64 * i), codes_32(p + 16 + 32 * i), _mm512_fmadd_ps(all, _mm512_set1_ps(s[2 * i]), _mm512_set1_ps(m[2 * i])),
                 _mm512_fmadd_ps(all, _mm512_set1_ps(s[2 * i + 1]), _mm512_set1_ps(m[2 * i + 1])));
}

PLANES(iq4_xs) {
    const uint8_t *p = ROW_AT(iq4_xs);
    const __m512 all = values(mat_iq4);
    const __m256i by4 = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28), by2 = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    uint16_t high;
    int32_t low;
    ask(p, FORMAT_BYTES(iq4_xs), ahead);
    memcpy(&high, p + 2, 2);
    memcpy(&low, p + 4, 4);
    const __m256i lows = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(low), by4), _mm256_set1_epi32(15));
    const __m256i highs = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(high), by2), _mm256_set1_epi32(3));
    const __m256i whole = _mm256_sub_epi32(_mm256_or_si256(lows, _mm256_slli_epi32(highs, 4)), _mm256_set1_epi32(32));
    IN_MEMORY(s, _mm256_mul_ps(_mm256_cvtepi32_ps(whole), _mm256_set1_ps(half_at(p))));
    EACH (int i = 0; i < 4; i++)
        put_four(head + 64 * i, REST(64 * i), codes_16(p + 8 + 32 * i, p + 24 + 32 * i), _mm512_mul_ps(all, _mm512_set1_ps(s[2 * i])),
                 _mm512_mul_ps(all, _mm512_set1_ps(s[2 * i + 1])));
}

/* --- Five, six and eight bits --- */

/* 32 columns of a tile. */
INLINE void put_tile(uint16_t *head, uint16_t *rest, __m512 a, __m512 b) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    _mm512_store_si512(head, both);
    if (rest) _mm512_store_si512(rest, over(a, b, both));
}
/* Converts codes by inserting them as a byte of a float whose last place there is 1: 128 + a seven-bit code, 32,768 + an eight-bit code.
 * The addend of the FMA subtracts the offset, so the result is rounded once. */
enum { SEVEN_BITS = 128, EIGHT_BITS = 32768 };
#define LANES(byte, from) \
    _mm512_slli_epi32(_mm512_setr_epi32(from, from + 1, from + 2, from + 3, from + 4, from + 5, from + 6, from + 7, from + 16, from + 17, from + 18, \
                                        from + 19, from + 20, from + 21, from + 22, from + 23), \
                      8 * (byte))
INLINE __m512 floats(__m512i codes, const int from, const int lift) {
    if (lift == SEVEN_BITS) return _mm512_castsi512_ps(_mm512_mask_permutexvar_epi8(_mm512_set1_epi32(0x43000000), 0x4444444444444444, LANES(2, from), codes));
    return _mm512_castsi512_ps(_mm512_mask_permutexvar_epi8(_mm512_set1_epi32(0x47000000), 0x2222222222222222, LANES(1, from), codes));
}
/* 64 columns: codes times a, plus x, for the first 32, times b, plus y, for the others. */
INLINE void put_codes(uint16_t *head, uint16_t *rest, __m512i codes, const int lift, __m512 a, __m512 x, __m512 b, __m512 y) {
    put_tile(head, rest, _mm512_fmadd_ps(floats(codes, 0, lift), a, x), _mm512_fmadd_ps(floats(codes, 32, lift), b, y));
    put_tile(head + 32, rest ? rest + 32 : NULL, _mm512_fmadd_ps(floats(codes, 8, lift), a, x), _mm512_fmadd_ps(floats(codes, 40, lift), b, y));
}

PLANES(q8_0) {
    const uint8_t *p = ROW_AT(q8_0);
    const __m256 scale = half_scales(p, 34, n);
    IN_MEMORY(s, scale);
    IN_MEMORY(m, _mm256_mul_ps(scale, _mm256_set1_ps(-(EIGHT_BITS + 128)))); /* exact: an fp16 times nine bits */
    for (int c = 0, i = 0; c < n; c += 64, i += 2, p += 68) {
        const int second = n - c > 32;
        const uint8_t *q = second ? p + 34 : p;
        const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(p + 2)), high = _mm256_loadu_si256((const __m256i *)(const void *)(q + 2));
        const __m512i codes = _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), _mm512_set1_epi8((char)0x80)); /* biased by 128 */
        ask(p, 68, ahead);
        put_codes(head + c, REST(c), codes, EIGHT_BITS, _mm512_set1_ps(s[i]), _mm512_set1_ps(m[i]), _mm512_set1_ps(s[i + second]),
                  _mm512_set1_ps(m[i + second]));
    }
}

/* Fifth bits, one of each column, above four bits; two blocks. */
INLINE __m512i fifth_bits(__m512i four, const uint8_t *p, const uint8_t *q) {
    uint32_t a, b;
    memcpy(&a, p, sizeof a), memcpy(&b, q, sizeof b);
    const __m512i low = _mm512_and_si512(four, _mm512_set1_epi8(15));
    return _mm512_mask_add_epi8(low, a | (uint64_t)b << 32, low, _mm512_set1_epi8(16));
}
PLANES(q5_0) {
    const uint8_t *p = ROW_AT(q5_0);
    const __m256 scale = half_scales(p, 22, n);
    IN_MEMORY(s, scale);
    IN_MEMORY(m, _mm256_mul_ps(scale, _mm256_set1_ps(-(SEVEN_BITS + 16)))); /* exact */
    for (int c = 0, i = 0; c < n; c += 64, i += 2, p += 44) {
        const int second = n - c > 32;
        const uint8_t *q = second ? p + 22 : p;
        ask(p, 44, ahead);
        put_codes(head + c, REST(c), fifth_bits(codes_16(p + 6, q + 6), p + 2, q + 2), SEVEN_BITS, _mm512_set1_ps(s[i]), _mm512_set1_ps(m[i]),
                  _mm512_set1_ps(s[i + second]), _mm512_set1_ps(m[i + second]));
    }
}
PLANES(q5_1) {
    const uint8_t *p = ROW_AT(q5_1);
    const __m256 scale = half_scales(p, 24, n);
    IN_MEMORY(s, scale);
    IN_MEMORY(m, _mm256_fmadd_ps(scale, _mm256_set1_ps(-SEVEN_BITS), half_scales(p + 2, 24, n)));
    for (int c = 0, i = 0; c < n; c += 64, i += 2, p += 48) {
        const int second = n - c > 32;
        const uint8_t *q = second ? p + 24 : p;
        ask(p, 48, ahead);
        put_codes(head + c, REST(c), fifth_bits(codes_16(p + 8, q + 8), p + 4, q + 4), SEVEN_BITS, _mm512_set1_ps(s[i]), _mm512_set1_ps(m[i]),
                  _mm512_set1_ps(s[i + second]), _mm512_set1_ps(m[i + second]));
    }
}

/* Columns 64 i and up of a block whose 64 bytes have two bits of four parts of 32 columns each. */
INLINE __m512i two_bits(const uint8_t *p, const int i) {
    const __m512i both = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)(p + 32 * (i / 2))));
    const __m512i by = i & 1 ? _mm512_setr_epi64(4, 4, 4, 4, 6, 6, 6, 6) : _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2);
    return _mm512_and_si512(_mm512_srlv_epi64(both, by), _mm512_set1_epi8(3));
}
/* 64 columns with a factor and an addend for each 16; they have the order of put_codes. */
INLINE void put_sixteens(uint16_t *head, uint16_t *rest, __m512i codes, __m512 scale, __m512 off, const int i) {
    const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i a = _mm512_add_epi32(first, _mm512_set1_epi32(4 * i)), b = _mm512_add_epi32(first, _mm512_set1_epi32(4 * i + 2));
    put_codes(head, rest, codes, SEVEN_BITS, _mm512_permutexvar_ps(a, scale), _mm512_permutexvar_ps(a, off), _mm512_permutexvar_ps(b, scale),
              _mm512_permutexvar_ps(b, off));
}
PLANES(q2_k) {
    const uint8_t *p = ROW_AT(q2_k);
    const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), low = _mm512_and_si512(both, _mm512_set1_epi32(15));
    const __m512 scale = _mm512_mul_ps(_mm512_cvtepi32_ps(low), _mm512_set1_ps(half_at(p + 80)));
    const __m512 min = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4)), _mm512_set1_ps(-half_at(p + 82)));
    const __m512 off = _mm512_fmadd_ps(scale, _mm512_set1_ps(-SEVEN_BITS), min);
    ask(p, FORMAT_BYTES(q2_k), ahead);
    EACH (int i = 0; i < 4; i++) put_sixteens(head + 64 * i, REST(64 * i), two_bits(p + 16, i), scale, off, i);
}
PLANES(q3_k) {
    const uint8_t *p = ROW_AT(q3_k);
    uint32_t u[3];
    memcpy(u, p + 96, sizeof u);
    const uint32_t four = 0x0f0f0f0f, two = 0x30303030;
    const __m128i six = _mm_setr_epi32((int)((u[0] & four) | (u[2] << 4 & two)), (int)((u[1] & four) | (u[2] << 2 & two)),
                                       (int)((u[0] >> 4 & four) | (u[2] & two)), (int)((u[1] >> 4 & four) | (u[2] >> 2 & two)));
    const __m512i whole = _mm512_sub_epi32(_mm512_cvtepu8_epi32(six), _mm512_set1_epi32(32));
    const __m512 scale = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(half_at(p + 108)));
    const __m512 off = _mm512_mul_ps(scale, _mm512_set1_ps(-(SEVEN_BITS + 4))); /* exact: an fp16 by six bits by six */
    const __m512i high = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)p));
    ask(p, FORMAT_BYTES(q3_k), ahead);
    EACH (int i = 0; i < 4; i++) {
        const __m512i bit = _mm512_inserti64x4(_mm512_set1_epi8((char)(1 << 2 * i)), _mm256_set1_epi8((char)(2 << 2 * i)), 1), q = two_bits(p + 32, i);
        put_sixteens(head + 64 * i, REST(64 * i), _mm512_mask_add_epi8(q, _mm512_test_epi8_mask(high, bit), q, _mm512_set1_epi8(4)), scale, off, i);
    }
}
PLANES(tq2_0) {
    const uint8_t *p = ROW_AT(tq2_0);
    const __m512 scale = _mm512_set1_ps(half_at(p + 64)), off = _mm512_mul_ps(scale, _mm512_set1_ps(-(SEVEN_BITS + 1)));
    ask(p, FORMAT_BYTES(tq2_0), ahead);
    EACH (int i = 0; i < 4; i++) put_codes(head + 64 * i, REST(64 * i), two_bits(p, i), SEVEN_BITS, scale, off, scale, off);
}

/* Shifts bits `low` and up (first 32 codes) or `high` and up (others) of each byte to above four bits. */
#define FROM_1(b, k) (uint8_t)((b)-4 + 8 * (k))
#define FROM_8(b)    FROM_1(b, 0), FROM_1(b, 1), FROM_1(b, 2), FROM_1(b, 3), FROM_1(b, 4), FROM_1(b, 5), FROM_1(b, 6), FROM_1(b, 7)
#define FROM_32(b)   FROM_8(b), FROM_8(b), FROM_8(b), FROM_8(b)
#define FROM(low, high) \
    { FROM_32(low), FROM_32(high) }
static const uint8_t bits_q5_k[4][64] __attribute__((aligned(64))) = {FROM(0, 1), FROM(2, 3), FROM(4, 5), FROM(6, 7)};
static const uint8_t bits_q6_k[2][64] __attribute__((aligned(64))) = {FROM(0, 2), FROM(4, 6)};
/* The low four bits of b, and above them those bits of h. */
INLINE __m512i more_bits(__m512i b, const uint8_t *h, const uint8_t *from, const int mask) {
    const __m512i bits = _mm512_multishift_epi64_epi8(_mm512_load_si512(from), _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)h)));
    return _mm512_ternarylogic_epi32(_mm512_and_si512(b, _mm512_set1_epi8(15)), bits, _mm512_set1_epi8((char)mask), 0xf8); /* codes | (bits & mask) */
}
PLANES(q5_k) {
    const uint8_t *p = ROW_AT(q5_k);
    __m256 scale, off;
    ask(p, FORMAT_BYTES(q5_k), ahead);
    k_scales(p, &scale, &off);
    IN_MEMORY(s, scale);
    IN_MEMORY(m, _mm256_fmadd_ps(scale, _mm256_set1_ps(-SEVEN_BITS), off));
    EACH (int i = 0; i < 4; i++) {
        const __m512i both = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)(p + 48 + 32 * i)));
        const __m512i q = more_bits(_mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4)), p + 16, bits_q5_k[i], 0x10);
        put_codes(head + 64 * i, REST(64 * i), q, SEVEN_BITS, _mm512_set1_ps(s[2 * i]), _mm512_set1_ps(m[2 * i]), _mm512_set1_ps(s[2 * i + 1]),
                  _mm512_set1_ps(m[2 * i + 1]));
    }
}
PLANES(q6_k) {
    const uint8_t *p = ROW_AT(q6_k);
    const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i whole = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 192)));
    const __m512 scale = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(half_at(p + 208))), off = _mm512_set1_ps(-(SEVEN_BITS + 32));
    ask(p, FORMAT_BYTES(q6_k), ahead);
    EACH (int i = 0; i < 4; i++) {
        const __m512i ql = _mm512_loadu_si512(p + 64 * (i / 2)), b = i & 1 ? _mm512_srli_epi16(ql, 4) : ql;
        const __m512i q = more_bits(b, p + 128 + 32 * (i / 2), bits_q6_k[i & 1], 0x30);
        const __m512 x = _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(4 * i)), scale);
        const __m512 y = _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(4 * i + 2)), scale);
        put_codes(head + 64 * i, REST(64 * i), q, SEVEN_BITS, x, _mm512_mul_ps(x, off), y, _mm512_mul_ps(y, off)); /* exact: an fp16 by eight bits by three */
    }
}

struct gemm_bf16_decoder gemm_bf16_decoder_for(const struct mat *w) {
#define ROW(name) [FORMAT_DTYPE(name)] = planes_##name
    static const bf16_decode_fn rows[DT_COUNT] = {ROW(q8_0),   ROW(q4_0), ROW(iq4_nl), ROW(mxfp4), ROW(e2m1), ROW(q4_k), ROW(q5_k), ROW(q6_k),
                                                  ROW(iq4_xs), ROW(q4_1), ROW(q5_0),   ROW(q5_1),  ROW(q2_k), ROW(q3_k), ROW(tq2_0)};
#undef ROW
    const bool fp4 = w->dtype == DT_E2M1, beside = w->scale != NULL;
    if (beside != fp4 || (fp4 && (w->scale_dtype != DT_E8M0 || w->block_cols != 32))) return (struct gemm_bf16_decoder){0};
    return (struct gemm_bf16_decoder){.rows = rows[w->dtype], .exact = fp4 || w->dtype == DT_MXFP4};
}

#pragma once
/* Unpacks 256 columns of a row for gemm_int8_few.c: quantized weights as bytes in the order of its lanes, a lane for
 * each 16 columns. Lane 4 i + j has columns 16 (4 j + i) and on; vector k of four has their columns 4 k to 4 k + 3. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cpu/gemm_codes.h"
#include "cpu/gemm_int8.h"
#include "cpu/simd_avx512.h"

/* Codes are unsigned: those of formats without `off` have 128 added. */
struct row_block {
    __m512i code[4];
    V scale, off;
};

/* The formats that are unpacked here: those with scales among the codes by their DT_..., and four-bit codes with scales
 * of their own. */
#define FORMATS_INT8_FEW(X) \
    X(q4_k) X(q5_k) X(q6_k) X(q2_k) X(q3_k) X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(q8_0) X(iq4_nl) X(iq4_xs) X(mxfp4)
enum {
    E2M1_E8M0 = DT_COUNT, /* MXFP4 of safetensors */
    E2M1_E4M3,            /* NVFP4: scales of 16 columns */
    I4_32,                /* scales of F16 or BF16 for 32 columns */
    I4_128,               /* for 128 */
    I4_ZEROS,             /* DT_F32Z, for 128 */
    INT8_FEW_KINDS
};
INLINE bool is_q4_k(int kind) { return kind == DT_Q4_K || kind == DT_Q5_K; } /* have six-bit scales and minima */
INLINE bool has_off(int kind) {
    return is_q4_k(kind) || kind == DT_Q2_K || kind == DT_Q4_1 || kind == DT_Q5_1 || kind == I4_ZEROS;
}
INLINE bool is_apart(int kind) { return kind >= DT_COUNT; } /* its scales are not among its codes */
/* Bytes of 256 columns. */
INLINE int block_bytes(int kind) {
    switch (kind) {
#define CASE(name) \
    case FORMAT_DTYPE(name): return INT8_K / FORMAT_BLOCK(name) * FORMAT_BYTES(name);
        FORMATS_INT8_FEW(CASE)
#undef CASE
    default: return INT8_K / 2;
    }
}
/* Formats in blocks of 32 columns, whose rows may end in a block of 256: bytes of one; else 0. */
INLINE int bytes_32(int kind) {
    switch (kind) {
#define CASE(name) \
    case FORMAT_DTYPE(name): return FORMAT_BLOCK(name) == 32 ? FORMAT_BYTES(name) : 0;
        FORMATS_INT8_FEW(CASE)
#undef CASE
    default: return is_apart(kind) ? 16 : 0;
    }
}
/* Columns of a scale beside the codes, and its bytes. */
INLINE int scale_cols(int kind) { return kind == E2M1_E4M3 ? 16 : kind == I4_128 || kind == I4_ZEROS ? 128 : 32; }
INLINE int scale_bytes(int kind) { return kind == I4_ZEROS ? 4 : kind == I4_32 || kind == I4_128 ? 2 : 1; }

/* 256 columns in order become the order of the lanes. */
INLINE void turn(__m512i v[4]) {
    const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]),
                  c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm512_unpacklo_epi64(a, c), v[1] = _mm512_unpackhi_epi64(a, c);
    v[2] = _mm512_unpacklo_epi64(b, d), v[3] = _mm512_unpackhi_epi64(b, d);
}
/* The number of each lane's scale among those for 16 or 32 columns. */
INLINE __m512i lane_scale(int segment) {
    const __m512i part = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return segment == 16 ? part : _mm512_srli_epi32(part, 1);
}
INLINE V spread_16(V scales) { return _mm512_permutexvar_ps(lane_scale(16), scales); }
INLINE V spread_8(__m256 scales) { return _mm512_permutexvar_ps(lane_scale(32), _mm512_castps256_ps512(scales)); }
INLINE __m128i load_16(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)(const void *)p); }
INLINE __m256i load_32(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }

/* --- Scales of Q4_K and Q5_K ------------------------------------------------------------------ */

/* Of four rows: two fp16, then eight scales and eight minima of six bits (formats_inner.h). */
struct scales_k {
    uint8_t scale[4][16], min[4][16]; /* in order of lanes */
    float d[4][2];                    /* their factors; that of minima negative */
} __attribute__((aligned(64)));
INLINE void scales_k(struct scales_k *to, const uint8_t *const p[4]) {
    __m512i h = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)p[0]));
#define HEADER(i) h = _mm512_inserti32x4(h, _mm_loadu_si128((const __m128i *)(const void *)p[i]), i)
    HEADER(1), HEADER(2), HEADER(3);
#undef HEADER
    /* dwords 1 and 2 of each quarter: the first four scales, and minima; two bits of the others, and four from the
     * third */
    const __m512i low = _mm512_and_si512(h, _mm512_set1_epi8(0x3f));
    const __m512i last =
        _mm512_srlv_epi32(_mm512_shuffle_epi32(h, 0xff), _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0, 4, 0)));
    const __m512i two = _mm512_and_si512(_mm512_srli_epi32(h, 2), _mm512_set1_epi8(0x30));
    const __m512i high = _mm512_ternarylogic_epi32(two, last, _mm512_set1_epi8(15), 0xf8); /* two | (last & 15) */
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 0, 2, 4, 6, 1, 3, 5, 7, 1, 3, 5, 7);
    const __m512i mins = _mm512_broadcast_i32x4(order),
                  scales = _mm512_broadcast_i32x4(_mm_add_epi8(order, _mm_set1_epi8(8)));
    _mm512_store_si512(to->scale, _mm512_shuffle_epi8(_mm512_unpacklo_epi32(low, high), scales));
    _mm512_store_si512(to->min, _mm512_shuffle_epi8(_mm512_unpackhi_epi32(low, high), mins));
    const __m512i first =
        _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), h);
    _mm256_store_ps(to->d[0], _mm256_mul_ps(_mm256_cvtph_ps(_mm512_castsi512_si128(first)),
                                            _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1)));
}
INLINE V bytes_v(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(const void *)p)));
}

/* --- Codes ------------------------------------------------------------------------------------ */

#define DWORDS _mm512_setr_epi32
/* Gathers four-bit codes: a lane of v[k] takes dword first + k of the 32 in a and b, and of its bytes the four bits
 * from bit `by` on. */
INLINE void four_bits_of(__m512i v[4], __m512i a, __m512i b, __m512i first, __m512i by) {
    EACH (int k = 0; k < 4; k++) {
        const __m512i both = _mm512_permutex2var_epi32(a, _mm512_add_epi32(first, _mm512_set1_epi32(k)), b);
        v[k] = _mm512_and_si512(_mm512_srlv_epi32(both, by), _mm512_set1_epi8(15));
    }
}
/* Adds upper bits to codes: a lane of v[k] takes dword first + k of h, rotated left by `by`, and of its bytes the bits
 * of `mask`. */
INLINE void add_bits(__m512i v[4], __m512i h, __m512i first, __m512i by, int mask) {
    EACH (int k = 0; k < 4; k++) {
        const __m512i bits =
            _mm512_rolv_epi32(_mm512_permutexvar_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(k)), h), by);
        v[k] = _mm512_ternarylogic_epi32(v[k], bits, _mm512_set1_epi8((char)mask), 0xf8); /* v | (bits & mask) */
    }
}
INLINE void add_all(__m512i v[4], int by) {
    EACH (int k = 0; k < 4; k++) v[k] = _mm512_add_epi8(v[k], _mm512_set1_epi8((char)by));
}
INLINE __m512i twice(__m256i v) { return _mm512_broadcast_i64x4(v); }

/* Q4_K, Q5_K: 32 bytes are 32 columns in low nibbles and 32 in high ones. */
INLINE void codes_q4_k(__m512i v[4], const uint8_t *p) {
    four_bits_of(v, _mm512_loadu_si512(p), _mm512_loadu_si512(p + 64),
                 DWORDS(0, 8, 16, 24, 4, 12, 20, 28, 0, 8, 16, 24, 4, 12, 20, 28),
                 DWORDS(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4));
}
INLINE void codes_q5_k(__m512i v[4], const uint8_t *p) {
    codes_q4_k(v, p + 48);
    add_bits(v, twice(load_32(p + 16)), DWORDS(0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4),
             DWORDS(4, 2, 0, 30, 4, 2, 0, 30, 3, 1, 31, 29, 3, 1, 31, 29), 0x10);
}
/* 64 bytes are 64 columns in low nibbles and 64 in high ones; two bits of 128 columns are in 32 bytes. */
INLINE void codes_q6_k(__m512i v[4], const uint8_t *p) {
    four_bits_of(v, _mm512_loadu_si512(p), _mm512_loadu_si512(p + 64),
                 DWORDS(0, 0, 16, 16, 4, 4, 20, 20, 8, 8, 24, 24, 12, 12, 28, 28),
                 DWORDS(0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4));
    add_bits(v, _mm512_loadu_si512(p + 128), DWORDS(0, 0, 8, 8, 4, 4, 12, 12, 0, 0, 8, 8, 4, 4, 12, 12),
             DWORDS(4, 0, 4, 0, 4, 0, 4, 0, 2, 30, 2, 30, 2, 30, 2, 30), 0x30);
    add_all(v, 128 - 32);
}
/* 32 bytes are two bits each of four times 32 columns. */
INLINE void codes_q2_k(__m512i v[4], const uint8_t *p) {
    const __m512i q = _mm512_loadu_si512(p), first = DWORDS(0, 0, 8, 8, 4, 4, 12, 12, 0, 0, 8, 8, 4, 4, 12, 12),
                  by = DWORDS(0, 4, 0, 4, 0, 4, 0, 4, 2, 6, 2, 6, 2, 6, 2, 6);
    EACH (int k = 0; k < 4; k++)
        v[k] = _mm512_and_si512(
            _mm512_srlv_epi32(_mm512_permutexvar_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(k)), q), by),
            _mm512_set1_epi8(3));
}
INLINE void codes_q3_k(__m512i v[4], const uint8_t *p) {
    codes_q2_k(v, p + 32);
    add_bits(v, twice(load_32(p)), DWORDS(0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4),
             DWORDS(2, 0, 30, 28, 2, 0, 30, 28, 1, 31, 29, 27, 1, 31, 29, 27), 4);
    add_all(v, 128 - 4);
}

/* Blocks of 32 columns, `size` bytes apart: 16 bytes of nibbles, the low ones of the first 16 columns. */
INLINE __m512i blocks_4(const uint8_t *p, const int size) {
    __m512i v = _mm512_castsi128_si512(load_16(p));
    v = _mm512_inserti32x4(v, load_16(p + size), 1);
    v = _mm512_inserti32x4(v, load_16(p + 2 * size), 2);
    return _mm512_inserti32x4(v, load_16(p + 3 * size), 3);
}
INLINE void nibbles_32(__m512i v[4], const uint8_t *p, const int size) {
    four_bits_of(v, blocks_4(p, size), blocks_4(p + 4 * size, size),
                 DWORDS(0, 8, 16, 24, 0, 8, 16, 24, 4, 12, 20, 28, 4, 12, 20, 28),
                 DWORDS(0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4));
}
/* A table of values for 16 codes, plus 128, four times. */
INLINE __m512i values_512(const int8_t *table) {
    return _mm512_broadcast_i32x4(_mm_add_epi8(load_16((const uint8_t *)table), _mm_set1_epi8((char)128)));
}
INLINE void values_of(__m512i v[4], const int8_t *table) {
    const __m512i values = values_512(table);
    EACH (int k = 0; k < 4; k++) v[k] = _mm512_shuffle_epi8(values, v[k]);
}
/* The dword at p of each of eight blocks. */
INLINE __m256i dwords_8(const uint8_t *p, const int size) {
    __m256i v = load_32(p);
#define BLEND(k) v = _mm256_blend_epi32(v, load_32(p + (k) * (size - 4)), 1 << (k))
    BLEND(1), BLEND(2), BLEND(3), BLEND(4), BLEND(5), BLEND(6), BLEND(7);
#undef BLEND
    return v;
}
/* Adds 16 to the columns whose bits are set: a dword of each block. */
INLINE void add_fifth_bits(__m512i v[4], __m256i bits) {
    const __m512i h = _mm512_permutexvar_epi32(lane_scale(32), _mm512_castsi256_si512(bits));
    /* From which bit of a pair of lanes each byte's eight are: its column's fifth bit is the fifth of them. Those of
     * the second half of a block are 16 further. */
    const __m512i first = _mm512_add_epi8(_mm512_set1_epi64(0x1f1e1d1c3f3e3d3c),
                                          DWORDS(0, 0, 0, 0, 0x10101010, 0x10101010, 0x10101010, 0x10101010, 0, 0, 0, 0,
                                                 0x10101010, 0x10101010, 0x10101010, 0x10101010));
    EACH (int k = 0; k < 4; k++)
        v[k] = _mm512_ternarylogic_epi32(
            v[k], _mm512_multishift_epi64_epi8(_mm512_add_epi8(first, _mm512_set1_epi8((char)(4 * k))), h),
            _mm512_set1_epi8(16), 0xf8); /* v | (bits & 16) */
}
/* The lower or the upper fp16 of each dword. */
INLINE V halves(__m256i v, const int upper) {
    const __m256i low = upper ? _mm256_srli_epi32(v, 16) : _mm256_and_si256(v, _mm256_set1_epi32(0xffff)),
                  packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0xd8);
    return spread_8(_mm256_cvtph_ps(_mm256_castsi256_si128(packed)));
}

/* The block at p, row `i` of four whose scales are in `scales`. */
INLINE struct row_block block_of(const uint8_t *p, const struct scales_k *scales, int i, const int kind) {
    struct row_block b = {.off = vzero()};
    const int size = bytes_32(kind);
    switch (kind) {
    case DT_Q4_K: codes_q4_k(b.code, p + 16); break;
    case DT_Q5_K: codes_q5_k(b.code, p); break;
    case DT_Q6_K: codes_q6_k(b.code, p), b.scale = spread_16(q6_k_scales(p)); break;
    case DT_Q3_K: codes_q3_k(b.code, p), b.scale = spread_16(q3_k_scales(p)); break;
    case DT_Q2_K:
        codes_q2_k(b.code, p + 16), q2_k_scales(p, &b.scale, &b.off);
        b.scale = spread_16(b.scale), b.off = spread_16(b.off);
        break;
    case DT_IQ4_XS:
        nibbles_32(b.code, p + 8, 16), values_of(b.code, mat_iq4);
        b.scale = spread_8(iq4_xs_scales(p));
        break;
    case DT_MXFP4:
        nibbles_32(b.code, p + 1, size), values_of(b.code, mat_mxfp4);
        b.scale = spread_8(half_powers(p, size, INT8_K));
        break;
    case DT_Q8_0:
        EACH (int k = 0; k < 4; k++)
            b.code[k] = _mm512_inserti64x4(_mm512_castsi256_si512(load_32(p + 2 * k * size + 2)),
                                           load_32(p + (2 * k + 1) * size + 2), 1);
        turn(b.code), add_all(b.code, 128);
        b.scale = spread_8(half_scales(p, size, INT8_K));
        break;
    default: nibbles_32(b.code, p + size - 16, size);
    }
    if (kind == DT_Q5_0 || kind == DT_Q5_1) add_fifth_bits(b.code, dwords_8(p + size - 20, size));
    if (kind == DT_Q5_0) add_all(b.code, 128 - 16);
    if (kind == DT_Q4_0) add_all(b.code, 128 - 8);
    if (kind == DT_IQ4_NL) values_of(b.code, mat_iq4);
    if (kind == DT_Q4_0 || kind == DT_Q5_0 || kind == DT_IQ4_NL) b.scale = spread_8(half_scales(p, size, INT8_K));
    if (kind == DT_Q4_1 || kind == DT_Q5_1) {
        const __m256i both = dwords_8(p, size);
        b.scale = halves(both, 0), b.off = halves(both, 1);
    }
    if (is_q4_k(kind)) {
        b.scale = vmul(bytes_v(scales->scale[i]), vset1(scales->d[i][0]));
        b.off = vmul(bytes_v(scales->min[i]), vset1(scales->d[i][1]));
    }
    return b;
}

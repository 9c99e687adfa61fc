/* K blocks: 256 columns in parts of 32 (Q4_K, Q5_K) or 16 (Q2_K, Q3_K, Q6_K), each with its own scale; and TQ1_0 and
 * TQ2_0 with one for all. Codes are ordered so that a lane of a sum has columns of one part only: even parts of 32 in
 * one sum, odd ones in another; four parts of 16 in each of four sums. vpdpbusd multiplies them with the high plane of
 * x, the sum is shifted left by eight bits, and vpdpbusd adds the low plane; then the sum is converted to float and
 * multiplied by its part's scale and unit. TQ blocks are one sum, for which x has one unit.
 *
 * Instructions per block of 144, 176 or 210 bytes (Q4_K to Q6_K), 84 or 110 (Q2_K, Q3_K): 8, 16 or 14, 10 or 19 to
 * unpack codes, 8 products, 2 or 4 each to join the planes, convert, spread the scales and add, 6 for scales and
 * minima: 30 to 44. Integer sums are exact: at most 8 * 31 * 32,640 (Q5_K) and 4 * 63 * 32,640, which fit a float's 24
 * bits. */
#include <stdint.h>

#include "cpu/formats.h"
#include "cpu/intdot_planes.h"

#define DTYPE    FORMAT_DTYPE(FORMAT)
#define FLOATS   FORMAT_JOIN(avx512_, FORMAT)
#define EACH_ROW EACH
enum {
    GROUP = 256,
    TURN = 1,
    BYTES = FORMAT_BYTES(FORMAT),
    Q2 = DTYPE == DT_Q2_K,
    Q3 = DTYPE == DT_Q3_K,
    Q6 = DTYPE == DT_Q6_K,
    TQ1 = DTYPE == DT_TQ1_0,
    ONE = TQ1 || DTYPE == DT_TQ2_0, /* one scale */
    NARROW = Q2 || Q3 || Q6 || ONE,
    PART = NARROW ? 16 : 32,
    PARTS = GROUP / PART,
    SUMS = ONE      ? 1
           : NARROW ? 4
                    : 2,
    VECTORS = 4 / SUMS, /* of codes per sum */
};
struct group {
    int8_t high[4][64], low[4][64]; /* in the order of the code vectors */
    float unit[16], sum[16];        /* of x, per part; 0 past PARTS */
} __attribute__((aligned(64)));
#include "cpu/intdot_inner.h"

/* --- x ---------------------------------------------------------------------------------------- */

/* The vector of x that quarter i of code vector v starts at. */
INLINE int quarter(int v, int i) { return NARROW ? 4 * v + i : 4 * i + v; }

INLINE void group_make(struct group *g, const float *x, int n) {
    const __m512i ones = _mm512_set1_epi8(1),
                  evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    float f[16];
    V u[16];
    __m512i s[4];
    EACH (int i = 0; i < 16; i++) u[i] = vload(x + 16 * i);
    V most[16];
    memcpy(most, u, sizeof most);
    if (ONE) {
        EACH (int i = 1; i < 16; i++)
            most[0] = _mm512_castsi512_ps(_mm512_max_epu32(magnitude(most[0]), magnitude(u[i])));
        EACH (int i = 1; i < 16; i++) most[i] = most[0];
    }
    const __m256 first = units_8(most, f, !NARROW), second = units_8(most + 8, f + 8, !NARROW);
    const V all = _mm512_insertf32x8(_mm512_castps256_ps512(first), second, 1);
    const V unit = NARROW ? all : _mm512_maskz_permutexvar_ps(0xff, evens, all);
    EACH (int v = 0; v < 4; v++) {
        const int a = quarter(v, 0), b = quarter(v, 1), c = quarter(v, 2), d = quarter(v, 3);
        planes_64(g->high[v], g->low[v], u[a], u[b], u[c], u[d], f[a], f[b], f[c], f[d]);
        s[v] = dot_planes(&ones, g->high + v, g->low + v, 1);
    }
    const __m512i t = _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
    const __m512i w = _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
    /* lane 4 * i + v */
    const __m512i sums = _mm512_add_epi32(_mm512_unpacklo_epi64(t, w), _mm512_unpackhi_epi64(t, w));
    const __m512i turned =
        NARROW ? _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), sums)
               : _mm512_permutexvar_epi32(evens, _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, 0xb1)));
    vstore(g->unit, unit);
    vstore(g->sum, vmul(_mm512_cvtepi32_ps(turned), unit)); /* ONE: in any order */
}

/* --- Weights ---------------------------------------------------------------------------------- */

/* Bit positions of the bits above four: numbers a to d, and so on, of bytes for each quarter of a vector. */
#define FROM_1(b, k) (uint8_t)((b)-4 + 8 * (k))
#define FROM_8(b) \
    FROM_1(b, 0), FROM_1(b, 1), FROM_1(b, 2), FROM_1(b, 3), FROM_1(b, 4), FROM_1(b, 5), FROM_1(b, 6), FROM_1(b, 7)
#define FROM_16(b) FROM_8(b), FROM_8(b)
#define FROM(a, b, c, d) \
    { FROM_16(a), FROM_16(b), FROM_16(c), FROM_16(d) }
static const uint8_t bits_q5_k[2][64] __attribute__((aligned(64))) = {FROM(0, 2, 4, 6), FROM(1, 3, 5, 7)};
static const uint8_t bits_q6_k[2][64] __attribute__((aligned(64))) = {FROM(0, 0, 2, 2), FROM(4, 4, 6, 6)};

/* Codes of two bits, 32 columns in each two bits of 32 bytes; Q3_K's third bit, 32 columns in each bit of 32 bytes. */
static const uint8_t bits_two[2][64] __attribute__((aligned(64))) = {FROM(4, 4, 6, 6), FROM(8, 8, 10, 10)};
static const uint8_t bits_third[4][64]
    __attribute__((aligned(64))) = {FROM(2, 2, 3, 3), FROM(4, 4, 5, 5), FROM(6, 6, 7, 7), FROM(8, 8, 9, 9)};
INLINE __m512i twice_32(const uint8_t *p) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
INLINE void load_two_bits(__m512i w[4], const uint8_t *p) {
    const uint8_t *q = p + (Q2 ? 16 : Q3 ? 32 : 0);
    EACH (int v = 0; v < 4; v++) {
        const __m512i code =
            _mm512_multishift_epi64_epi8(_mm512_load_si512(bits_two[v % 2]), twice_32(q + 32 * (v / 2)));
        w[v] = _mm512_and_si512(code, _mm512_set1_epi8(3));
        if (!Q3) continue;
        const __m512i third = _mm512_multishift_epi64_epi8(_mm512_load_si512(bits_third[v]), twice_32(p));
        w[v] = _mm512_ternarylogic_epi32(w[v], third, _mm512_set1_epi8(4), 0xf8); /* codes | (third & 4) */
    }
}

/* TQ1_0's digits of base 3: columns 32 * i + j are digit i of byte j, i < 5; from 160 on digit i of 16 bytes, from 240
 * on digit i < 4 of four bytes. Digit i is (byte * 3^i mod 256) * 3 / 256, computed in words: even bytes, odd ones. */
#define POWERS_16(a) a, a, a, a, a, a, a, a
static const uint16_t powers_tq1[4][32]
    __attribute__((aligned(64))) = {{POWERS_16(1), POWERS_16(1), POWERS_16(3), POWERS_16(3)},
                                    {POWERS_16(9), POWERS_16(9), POWERS_16(27), POWERS_16(27)},
                                    {POWERS_16(81), POWERS_16(81), POWERS_16(1), POWERS_16(3)},
                                    {POWERS_16(9), POWERS_16(27), POWERS_16(81), 1, 1, 3, 3, 9, 9, 27, 27}};
INLINE __m512i digits(__m512i v, const uint16_t *powers) {
    const __m512i power = _mm512_load_si512(powers), upper = _mm512_set1_epi16((short)0xff00);
    const __m512i even = _mm512_mulhi_epu16(_mm512_mullo_epi16(v, _mm512_slli_epi16(power, 8)), _mm512_set1_epi16(3));
    const __m512i odd =
        _mm512_mulhi_epu16(_mm512_mullo_epi16(_mm512_and_si512(v, upper), power), _mm512_set1_epi16(3 << 8));
    return _mm512_ternarylogic_epi32(even, odd, upper, 0xf8); /* even | (odd & upper) */
}
INLINE void load_digits(__m512i w[4], const uint8_t *p) {
    uint32_t last;
    memcpy(&last, p + 48, 4);
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(p + 32));
    const __m512i a = twice_32(p);
    w[0] = digits(a, powers_tq1[0]);
    w[1] = digits(a, powers_tq1[1]);
    w[2] = digits(_mm512_mask_mov_epi32(a, 0xff00, _mm512_broadcast_i32x4(b)), powers_tq1[2]);
    w[3] =
        digits(_mm512_mask_mov_epi32(_mm512_broadcast_i32x4(b), 0xf000, _mm512_set1_epi32((int)last)), powers_tq1[3]);
}

/* Low and high nibbles of bytes; quarters of a vector are parts of 16, or 16 columns of every other part of 32. */
INLINE void load_codes(__m512i w[4], const uint8_t *p) {
    const uint8_t *q = DTYPE == DT_Q5_K ? p + 48 : DTYPE == DT_Q4_K ? p + 16 : p;
    const __m512i a = _mm512_loadu_si512(q), b = _mm512_loadu_si512(q + 64), four = _mm512_set1_epi8(15);
    const __m512i both[2] = {Q6 ? a : _mm512_shuffle_i32x4(a, b, 0x88), Q6 ? b : _mm512_shuffle_i32x4(a, b, 0xdd)};
    EACH (int i = 0; i < 4; i++) {
        const int k = i / 2, high = i % 2;
        __m512i *to = &w[Q6 ? 2 * k + high : 2 * high + k];
        *to = _mm512_and_si512(high ? _mm512_srli_epi16(both[k], 4) : both[k], four);
        if (DTYPE == DT_Q4_K) continue;
        const __m512i h =
            Q6 ? _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)(p + 128 + 32 * k)))
               : _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)(p + 16 + 16 * k)));
        const __m512i bits = _mm512_multishift_epi64_epi8(_mm512_load_si512(Q6 ? bits_q6_k[high] : bits_q5_k[high]), h);
        /* codes | (bits & mask) */
        *to = _mm512_ternarylogic_epi32(*to, bits, _mm512_set1_epi8(Q6 ? 0x30 : 0x10), 0xf8);
    }
}
INLINE V half_v(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}
INLINE V bytes_v(__m128i b) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b)); }
/* Q3_K's scales of six bits: four of each in eight bytes, low nibbles first, and two in four bytes. */
INLINE __m128i scales_q3_k(const uint8_t *p) {
    uint64_t x;
    uint32_t h;
    memcpy(&x, p, 8);
    memcpy(&h, p + 8, 4);
    const uint64_t low = (x & 0x0f0f0f0f0f0f0f0f) | (h << 4 & 0x30303030) | (uint64_t)(h << 2 & 0x30303030) << 32;
    const uint64_t high = (x >> 4 & 0x0f0f0f0f0f0f0f0f) | (h & 0x30303030) | (uint64_t)(h >> 2 & 0x30303030) << 32;
    return _mm_set_epi64x((long long)high, (long long)low);
}
/* Each part's scale, and the factor of its sum of x that is subtracted: a minimum, or the scale times the offset of the
 * codes. */
INLINE void load_scales(V *scale, V *off, const uint8_t *p) {
    if (Q2) {
        const __m128i both = _mm_loadu_si128((const __m128i *)(const void *)p), four = _mm_set1_epi8(15);
        *scale = vmul(bytes_v(_mm_and_si128(both, four)), half_v(p + 80));
        *off = vmul(bytes_v(_mm_and_si128(_mm_srli_epi16(both, 4), four)), half_v(p + 82));
        return;
    }
    if (Q3) {
        *scale = vmul(bytes_v(_mm_sub_epi8(scales_q3_k(p + 96), _mm_set1_epi8(32))), half_v(p + 108));
        *off = vmul(*scale, vset1(4));
        return;
    }
    if (ONE) {
        *scale = *off = half_v(p + BYTES - 2);
        return;
    }
    if (Q6) {
        *scale = vmul(bytes_v(_mm_loadu_si128((const __m128i *)(const void *)(p + 192))), half_v(p + 208));
        *off = vmul(*scale, vset1(32));
        return;
    }
    uint32_t u[4]; /* two fp16; eight scales and eight minima of six bits (formats_inner.h) */
    memcpy(u, p, sizeof u);
    const uint64_t sc = (u[1] & 0x3f3f3f3f) | (uint64_t)((u[3] & 0x0f0f0f0f) | (u[1] >> 2 & 0x30303030)) << 32;
    const uint64_t mn = (u[2] & 0x3f3f3f3f) | (uint64_t)((u[3] >> 4 & 0x0f0f0f0f) | (u[2] >> 2 & 0x30303030)) << 32;
    const __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128((int)u[0]));
    const __m256 s = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)sc)));
    const __m256 m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)mn)));
    *scale = _mm512_zextps256_ps512(_mm256_mul_ps(s, _mm256_broadcastss_ps(d)));
    *off = _mm512_zextps256_ps512(_mm256_mul_ps(m, _mm256_broadcastss_ps(_mm_movehdup_ps(d))));
}
/* Indexes of the part whose scale applies to each lane of a sum. */
INLINE __m512i part_of(const int s) {
    const __m512i quarter = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_add_epi32(NARROW ? quarter : _mm512_slli_epi32(quarter, 1), _mm512_set1_epi32(NARROW ? 4 * s : s));
}

INLINE void group_dot(V *sum, const uint8_t *p, const uint8_t *s, const struct group *x, int ld, const int n,
                      const int N) {
    __m512i w[4];
    V scale, off;
    if (TQ1) load_digits(w, p);
    else if (Q2 || Q3 || ONE) load_two_bits(w, p);
    else load_codes(w, p);
    load_scales(&scale, &off, p);
    EACH (int t = 0; t < N; t++, x += ld) {
        const V unit = vmul(scale, vload(x->unit));
        EACH (int i = 0; i < SUMS; i++) {
            const __m512i dot = dot_planes(w + VECTORS * i, x->high + VECTORS * i, x->low + VECTORS * i, VECTORS);
            sum[t] = vfma(_mm512_cvtepi32_ps(dot), ONE ? unit : _mm512_permutexvar_ps(part_of(i), unit), sum[t]);
        }
        sum[t] = _mm512_fnmadd_ps(off, vload(x->sum), sum[t]);
    }
}

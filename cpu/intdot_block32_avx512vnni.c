/* Blocks of 32 columns in 16 bytes, four of them per vector with four lanes each: a byte's low nibble is one column,
 * its high nibble another of the same block, and a lane's sum has one scale. Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4,
 * E2M1, I4, and IQ4_XS eight at a time.
 *
 * Instructions per 128 columns, 64 to 72 bytes: 2 to collect the codes, 3 to decode them, 2 to 4 for the scales, 4
 * products, 2 to join the planes, 1 conversion, 2 to add: 16 to 18; 6 more for fifth bits, 3 for minima.
 *
 * Decoded values may be negative, but the first operand of vpdpbusd is unsigned. So BIAS is added to them, and BIAS * x
 * is subtracted in integers, lane by lane. */
#include <stdint.h>

#include "cpu/intdot_block32.h"
#include "cpu/intdot_planes.h"

#define FLOATS   FORMAT_JOIN(avx512_, FORMAT)
#define EACH_ROW EACH
enum {
    PAIR = 128,                                  /* columns in a vector's low and high nibbles */
    PAIRS = FORMAT_BLOCK(FORMAT) == 256 ? 2 : 1, /* packed together */
    GROUP = PAIR * PAIRS,
    TURN = 1,
    BYTES = GROUP / FORMAT_BLOCK(FORMAT) * FORMAT_BYTES(FORMAT),
};
struct group {
    struct pair {
        int8_t high[2][64], low[2][64]; /* factors of the low and the high nibbles of bytes */
        union {
            int32_t start[16]; /* -BIAS * x, over the columns of each lane */
            float sum[16];     /* HAS_MIN: x */
        };
        float unit[16];
    } pair[PAIRS];
} __attribute__((aligned(64)));
#include "cpu/intdot_inner.h"

/* --- x ---------------------------------------------------------------------------------------- */

INLINE void group_make(struct group *g, const float *x, int n) {
    const __m512i factor = _mm512_set1_epi8(HAS_MIN ? 1 : BIAS), factors[2] = {factor, factor},
                  lanes = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
    for (int k = 0; k < PAIRS; k++, x += PAIR, n -= PAIR) {
        struct pair *to = &g->pair[k];
        float f[8];
        V u[8];
        EACH (int i = 0; i < 8; i++) u[i] = load_left(x + 16 * i, n - 16 * i);
        if (NEIGHBOURS)
            EACH (int i = 0; i < 8; i += 2) vsplit(u[i], u[i + 1], &u[i], &u[i + 1]);
        const V unit = _mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(units_8(u, f, true)));
        EACH (int h = 0; h < 2; h++)
            planes_64(to->high[h], to->low[h], u[h], u[2 + h], u[4 + h], u[6 + h], f[h], f[2 + h], f[4 + h], f[6 + h]);
        vstore(to->unit, FP4 ? vmul(unit, vset1(0.5f)) : unit); /* FP4 values are stored doubled */
        const __m512i dot = dot_planes(factors, to->high, to->low, 2);
        if (HAS_MIN) vstore(to->sum, vmul(_mm512_cvtepi32_ps(dot), unit));
        else _mm512_store_si512(to->start, _mm512_sub_epi32(_mm512_setzero_si512(), dot));
    }
}

/* --- Weights ---------------------------------------------------------------------------------- */

/* Four blocks, SIZE bytes apart with codes at offset AT, are two loads: at p, and at PAST. As an index into both, byte
 * n of the blocks. */
enum {
    SIZE = DTYPE == DT_MXFP4                                                  ? 17
           : FORMAT_BLOCK(FORMAT) == 32 && DTYPE != DT_E2M1 && DTYPE != DT_I4 ? FORMAT_BYTES(FORMAT)
                                                                              : 18,
    AT = SIZE - 16,
    PAST = 4 * SIZE - 64
};
#define INDEX(n)      (uint8_t)((n) < 64 ? (n) : 64 + (n)-PAST)
#define CODES_1(b, i) (uint8_t)((b) == 3 ? 64 + 3 * SIZE + AT + (i)-PAST : INDEX((b)*SIZE + AT + (i)))
#define CODES_4(b, i) CODES_1(b, i), CODES_1(b, i + 1), CODES_1(b, i + 2), CODES_1(b, i + 3)
#define CODES(b)      CODES_4(b, 0), CODES_4(b, 4), CODES_4(b, 8), CODES_4(b, 12)
static const uint8_t where[64] __attribute__((aligned(64))) = {CODES(0), CODES(1), CODES(2), CODES(3)};
/* The two bytes of an fp16 for each of four lanes: scales, and minima; an E8M0 in the third byte of each. */
#define HALF(b, at)   INDEX((b)*SIZE + (at)), INDEX((b)*SIZE + (at) + 1)
#define HALVES(b, at) HALF(b, at), HALF(b, at), HALF(b, at), HALF(b, at)
static const uint8_t halves[2][64] __attribute__((aligned(64))) = {
    {HALVES(0, 0), HALVES(1, 0), HALVES(2, 0), HALVES(3, 0)}, {HALVES(0, 2), HALVES(1, 2), HALVES(2, 2), HALVES(3, 2)}};
/* The byte with the fifth bit of columns 0 to 15 (high: 16 to 31) of each block, and the bit. */
#define FIFTH_8(b, i) FIFTH_4(b, i), FIFTH_4(b, i)
#define FIFTH_4(b, i) \
    INDEX((b)*SIZE + AT - 4 + (i)), INDEX((b)*SIZE + AT - 4 + (i)), INDEX((b)*SIZE + AT - 4 + (i)), \
        INDEX((b)*SIZE + AT - 4 + (i))
#define FIFTH(high) \
    { \
        FIFTH_8(0, 2 * high), FIFTH_8(0, 2 * high + 1), FIFTH_8(1, 2 * high), FIFTH_8(1, 2 * high + 1), \
            FIFTH_8(2, 2 * high), FIFTH_8(2, 2 * high + 1), FIFTH_8(3, 2 * high), FIFTH_8(3, 2 * high + 1) \
    }
static const uint8_t fifths[2][64] __attribute__((aligned(64))) = {FIFTH(0), FIFTH(1)};
#define POWERS_1(b) 0, 0, (b), 0
#define POWERS(b)   POWERS_1(b), POWERS_1(b), POWERS_1(b), POWERS_1(b)
static const uint8_t powers_mxfp4[64] __attribute__((aligned(64))) = {POWERS(0), POWERS(17), POWERS(34), POWERS(51)};
#define BF16_1(b) 0, 0, 2 * (b), 2 * (b) + 1
#define BF16_4(b) BF16_1(b), BF16_1(b), BF16_1(b), BF16_1(b)
static const uint8_t scales_i4[64] __attribute__((aligned(64))) = {BF16_4(0), BF16_4(1), BF16_4(2), BF16_4(3)};
static const uint8_t powers_e2m1[64] __attribute__((aligned(64))) = {POWERS(0), POWERS(1), POWERS(2), POWERS(3)};

INLINE __mmask64 first(int n) { return n >= 64 ? ~(__mmask64)0 : n > 0 ? ((__mmask64)1 << n) - 1 : 0; }
INLINE __m512i bytes(const uint8_t *p, int n, const bool all) {
    return all ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi8(first(n), p);
}
/* 2^(e - 127) of a byte e in the third of each lane; 0 gives 2^-127, NaN gives infinity. */
INLINE V power_v(__m512i e) {
    return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_slli_epi32(e, 7), _mm512_set1_epi32(0x00400000)));
}

/* Eight E4M3 in two lanes each, divided by E4M3_AS_F16. */
#define UPPER(b) 128, (b), 128, (b)
static const uint8_t upper[32]
    __attribute__((aligned(32))) = {UPPER(0), UPPER(1), UPPER(2), UPPER(3), UPPER(4), UPPER(5), UPPER(6), UPPER(7)};
INLINE V e4m3_scales(uint64_t e) {
    const __m256i word =
        _mm256_shuffle_epi8(_mm256_set1_epi64x((long long)e), _mm256_load_si256((const __m256i *)(const void *)upper));
    const __m256i half = _mm256_and_si256(_mm256_srai_epi16(word, 1), _mm256_set1_epi16((short)0xbf80));
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_or_si256(half, _mm256_set1_epi16((short)0x8000)),
                                                  _mm256_set1_epi16((short)0xbf80));
    return _mm512_mask_mov_ps(_mm512_cvtph_ps(half), nan, vset1(NAN));
}

/* Four blocks: 64 bytes of codes, fifth bits as the bits of two masks, and the scale and minimum of each lane. */
struct blocks {
    __m512i codes;
    __mmask64 fifth[2];
    V scale, min;
};
/* Numbers of the first load; of both, where the blocks are so long that some are in the second. */
INLINE V halves_of(__m512i u, __m512i v, const int i) {
    const __m512i at = _mm512_load_si512(halves[i]),
                  h = SIZE > 20 ? _mm512_permutex2var_epi8(u, at, v) : _mm512_permutexvar_epi8(at, u);
    return _mm512_cvtph_ps(_mm512_castsi512_si256(h));
}
INLINE __m512i codes_of(__m512i u, __m512i v) {
    const __m512i at = _mm512_load_si512(where);
    if (SIZE > 20) return _mm512_permutex2var_epi8(u, at, v);
    /* the fourth block: cheaper on Intel */
    return _mm512_mask_permutexvar_epi8(_mm512_permutexvar_epi8(at, u), 0xffff000000000000, at, v);
}
INLINE struct blocks load_blocks(const uint8_t *p, const uint8_t *s, const int n) {
    struct blocks b;
    const bool all = n >= PAIR;
    if (SCALES == 2) {
        uint64_t h = 0;
        if (all) memcpy(&h, s, 8);
        else memcpy(&h, s, (size_t)(n + 15) / 16);
        b.scale = e4m3_scales(h);
        b.codes = bytes(p, (n + 1) / 2, all);
        return b;
    }
    if (DTYPE == DT_E2M1) {
        uint32_t e = 0;
        if (all) memcpy(&e, s, 4);
        else memcpy(&e, s, (size_t)(n + 31) / 32);
        b.scale = power_v(
            _mm512_maskz_shuffle_epi8(0x4444444444444444, _mm512_set1_epi32((int)e), _mm512_load_si512(powers_e2m1)));
        b.codes = bytes(p, (n + 1) / 2, all);
        return b;
    }
    if (HAS_ZEROS) {
        uint32_t h;
        float f;
        memcpy(&h, s, 4);
        const float zero = (float)(h & 255);
        h &= ~255u;
        memcpy(&f, &h, 4);
        b.scale = vset1(f), b.min = vset1(-zero * f);
        b.codes = bytes(p, (n + 1) / 2, all);
        return b;
    }
    if (DTYPE == DT_I4) {
        uint64_t h = 0;
        if (all) memcpy(&h, s, 8);
        else memcpy(&h, s, 2 * (size_t)((n + 31) / 32));
        b.scale = _mm512_castsi512_ps(_mm512_maskz_shuffle_epi8(0xcccccccccccccccc, _mm512_set1_epi64((long long)h),
                                                                _mm512_load_si512(scales_i4)));
        b.codes = bytes(p, (n + 1) / 2, all);
        return b;
    }
    const int size = n / 32 * SIZE;
    const __m512i u = bytes(p, size, all), v = bytes(p + PAST, size - PAST, all);
    if (DTYPE == DT_MXFP4)
        b.scale = power_v(_mm512_maskz_permutexvar_epi8(0x4444444444444444, _mm512_load_si512(powers_mxfp4), u));
    else b.scale = halves_of(u, v, 0);
    if (HAS_MIN) b.min = halves_of(u, v, 1);
    const __m512i bit = _mm512_set1_epi64((long long)0x8040201008040201);
    EACH (int i = 0; i < 2; i++)
        if (FIVE) b.fifth[i] = _mm512_test_epi8_mask(_mm512_permutex2var_epi8(u, _mm512_load_si512(fifths[i]), v), bit);
    b.codes = codes_of(u, v);
    return b;
}
/* Codes as biased values. Looks up six bits in a repeating table, so that bits above a code are ignored. */
INLINE void numbers(const struct blocks *b, __m512i out[2]) {
    const __m512i codes = b->codes, high = _mm512_srli_epi16(codes, 4);
    if (!FP4 && !IQ4) {
        const __m512i four = _mm512_set1_epi8(15);
        out[0] = _mm512_and_si512(codes, four);
        out[1] = _mm512_and_si512(high, four);
        EACH (int i = 0; i < 2; i++)
            if (FIVE) out[i] = _mm512_mask_add_epi8(out[i], b->fifth[i], out[i], _mm512_set1_epi8(16));
        return;
    }
    const __m128i values = _mm_loadu_si128((const __m128i *)(const void *)(FP4 ? mat_mxfp4 : mat_iq4));
    const __m512i table = _mm512_broadcast_i32x4(_mm_add_epi8(values, _mm_set1_epi8(BIAS)));
    out[0] = _mm512_permutexvar_epi8(codes, table);
    out[1] = _mm512_permutexvar_epi8(high, table);
}
INLINE void pair_dot(V *sum, const struct blocks *b, const struct group *x, int ld, const int k, const int N) {
    __m512i w[2];
    numbers(b, w);
    EACH (int t = 0; t < N; t++) {
        const struct pair *g = &x[t * ld].pair[k];
        __m512i dot = dot_planes(w, g->high, g->low, 2);
        if (!HAS_MIN) dot = _mm512_add_epi32(dot, _mm512_load_si512(g->start));
        sum[t] = vfma(_mm512_cvtepi32_ps(dot), vmul(b->scale, vload(g->unit)), sum[t]);
        if (HAS_MIN) sum[t] = vfma(b->min, vload(g->sum), sum[t]);
    }
}
INLINE void group_dot(V *sum, const uint8_t *p, const uint8_t *s, const struct group *x, int ld, const int n,
                      const int N) {
    if (DTYPE != DT_IQ4_XS) {
        const struct blocks b = load_blocks(p, s, n);
        pair_dot(sum, &b, x, ld, 0, N);
        return;
    }
    /* Six-bit scales: two bits of each from the third byte on, four from the fifth. */
    const __m128i head = _mm_loadl_epi64((const __m128i *)(const void *)p);
    const __m128i four =
        _mm_and_si128(_mm_multishift_epi64_epi8(_mm_set1_epi64x(0x3c3834302c282420), head), _mm_set1_epi8(15));
    const __m128i two = _mm_multishift_epi64_epi8(_mm_set1_epi64x(0x1a18161412100e0c), head);
    /* four | (two & 0x30) */
    const __m256i whole6 = _mm256_cvtepu8_epi32(_mm_ternarylogic_epi32(four, two, _mm_set1_epi8(0x30), 0xf8));
    const __m256 scales = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(whole6, _mm256_set1_epi32(32))),
                                        _mm256_broadcastss_ps(_mm_cvtph_ps(head)));
    EACH (int k = 0; k < PAIRS; k++) {
        const __m512i lanes = _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                                               _mm512_set1_epi32(4 * k));
        const struct blocks b = {.codes = _mm512_loadu_si512(p + 8 + 64 * k),
                                 .scale = _mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(scales))};
        pair_dot(sum, &b, x, ld, k, N);
    }
}

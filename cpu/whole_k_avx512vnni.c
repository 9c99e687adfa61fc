/* K blocks: 256 columns in parts of 32 (Q4_K, Q5_K) or 16 (Q6_K) with whole numbers as scales, which stay whole: vpmaddubsw multiplies
 * codes with a plane of x and joins pairs, vpdpwssd multiplies these with their parts' scales and sums, and the block's one scale comes last.
 *
 * For a block of 144, 176 or 210 bytes: 6, 14 or 14 to take the codes apart, 16 products, 4 to spread the scales, 1 to 2 to make them, 6 for minima and sums, 6
 * to end: 43 to 51.
 *
 * A part of x has a unit of its own, 2^(e - SPAN) to 2^e with the block's e: the difference goes onto the part's scale as a shift.
 * Sums in 32 bits of the largest: 2 * 31 * 128 * 63 * 2^8 * 8 (Q5_K) and 2 * 63 * 128 * 128 * 2^6 * 8 (Q6_K), half of 2^31 each. */
#include <stdint.h>

#include "cpu/formats.h"

#define DTYPE FORMAT_DTYPE(FORMAT)
enum {
    GROUP = 256,
    BYTES = FORMAT_BYTES(FORMAT),
    Q6 = DTYPE == DT_Q6_K,
    PART = Q6 ? 16 : 32,
    PARTS = GROUP / PART,
    SPAN = Q6 ? 6 : 8,
};
struct group {
    int8_t high[256], low[256]; /* in the order of the codes' vectors */
    float sum[16];              /* of x, of each part; 0 past PARTS */
    int16_t shift[16];
    float unit; /* 2^(e - SPAN) */
} __attribute__((aligned(64)));
#include "cpu/whole_inner.h"

/* --- x --- */

INLINE void group_make(struct group *g, const float *x, int n) {
    static const uint8_t in_order[8] = {0, 1, 2, 3, 4, 5, 6, 7}, halves[8] = {0, 2, 1, 3, 4, 6, 5, 7};
    const uint8_t *place = Q6 ? in_order : halves; /* of 32 columns */
    int e[PARTS], top = UNIT_LEAST;
    for (int p = 0; p < PARTS; p++) {
        __m512i most = magnitude(vload(x + PART * p));
        if (!Q6) most = _mm512_max_epu32(most, magnitude(vload(x + PART * p + 16)));
        e[p] = unit_exponent(_mm512_reduce_max_epu32(most));
        top = e[p] > top ? e[p] : top;
    }
    const int least = top - SPAN > UNIT_LEAST ? top - SPAN : UNIT_LEAST;
    g->unit = top == UNIT_NONE ? NAN : power(least);
    memset(g->shift, 0, sizeof g->shift);
    memset(g->sum, 0, sizeof g->sum);
    for (int p = 0; p < PARTS; p++) {
        if (e[p] < least) e[p] = least;
        g->shift[p] = (int16_t)(e[p] - least);
    }
    for (int b = 0; b < 8; b++) {
        const int p = b * 32 / PART, r = (b * 32 + 16) / PART;
        const __m512i q = whole(vload(x + 32 * b), vload(x + 32 * b + 16), power(-e[p]), power(-e[r])), pairs = _mm512_madd_epi16(q, _mm512_set1_epi16(1));
        _mm256_store_si256((__m256i *)(void *)(g->low + 32 * place[b]), plane_low(q));
        _mm256_store_si256((__m256i *)(void *)(g->high + 32 * place[b]), plane_high(q));
        if (Q6) {
            g->sum[p] = (float)_mm512_mask_reduce_add_epi32(0x00ff, pairs) * power(e[p]);
            g->sum[r] = (float)_mm512_mask_reduce_add_epi32(0xff00, pairs) * power(e[r]);
        } else g->sum[p] = (float)_mm512_reduce_add_epi32(pairs) * power(e[p]);
    }
}

/* --- Weights --- */

struct block {
    __m512i w[4];
    __m256i scale; /* [16] int16 */
    V off;         /* of each part, to be added for its sum of x: a minimum, or 32 scales */
    float d;
};
/* The fifth and sixth bits of 64 codes, in place: bits `from` on of the bytes of h, for the upper 32 codes bits `upper` on. */
INLINE __m512i high_bits(__m512i codes, __m512i h, const int from, const int upper, const int mask) {
    const __m512i bytes8 = _mm512_set1_epi64(0x3830282018100800);
    const __m512i at = _mm512_mask_blend_epi64(0xf0, _mm512_set1_epi8((char)(from - 4)), _mm512_set1_epi8((char)(upper - 4)));
    return _mm512_ternarylogic_epi32(codes, _mm512_multishift_epi64_epi8(_mm512_add_epi8(bytes8, at), h), _mm512_set1_epi8((char)mask),
                                     0xf8); /* codes | (h & mask) */
}
INLINE struct block load_block(const uint8_t *p) {
    const __m512i four = _mm512_set1_epi8(15);
    const uint8_t *q = DTYPE == DT_Q5_K ? p + 48 : DTYPE == DT_Q4_K ? p + 16 : p;
    struct block b;
    EACH (int k = 0; k < 2; k++) {
        const __m512i codes = _mm512_loadu_si512(q + 64 * k);
        b.w[2 * k] = _mm512_and_si512(codes, four);
        b.w[2 * k + 1] = _mm512_and_si512(_mm512_srli_epi16(codes, 4), four);
        if (DTYPE == DT_Q4_K) continue;
        const __m512i h = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)(Q6 ? p + 128 + 32 * k : p + 16)));
        b.w[2 * k] = Q6 ? high_bits(b.w[2 * k], h, 0, 2, 0x30) : high_bits(b.w[2 * k], h, 4 * k, 4 * k + 2, 0x10);
        b.w[2 * k + 1] = Q6 ? high_bits(b.w[2 * k + 1], h, 4, 6, 0x30) : high_bits(b.w[2 * k + 1], h, 4 * k + 1, 4 * k + 3, 0x10);
    }
    if (Q6) {
        const __m128i s = _mm_loadu_si128((const __m128i *)(const void *)(p + 192));
        uint16_t d;
        memcpy(&d, p + 208, 2);
        b.d = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(d)));
        b.scale = _mm256_cvtepi8_epi16(s);
        b.off = vmul(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(s)), vset1(-32 * b.d));
        return b;
    }
    uint32_t u[4]; /* two halves; eight scales and eight minima of six bits (formats_inner.h) */
    memcpy(u, p, sizeof u);
    const uint64_t sc = (u[1] & 0x3f3f3f3f) | (uint64_t)((u[3] & 0x0f0f0f0f) | (u[1] >> 2 & 0x30303030)) << 32;
    const uint64_t mn = (u[2] & 0x3f3f3f3f) | (uint64_t)((u[3] >> 4 & 0x0f0f0f0f) | (u[2] >> 2 & 0x30303030)) << 32;
    const __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128((int)u[0]));
    const __m256 min = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)mn)));
    b.d = _mm_cvtss_f32(d);
    b.scale = _mm256_zextsi128_si256(_mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)sc)));
    b.off = _mm512_zextps256_ps512(_mm256_mul_ps(min, _mm256_sub_ps(_mm256_setzero_ps(), _mm256_broadcastss_ps(_mm_movehdup_ps(d)))));
    return b;
}
/* Which scale each pair of codes has. */
#define EIGHT(a) a, a, a, a, a, a, a, a
#define LANES_(a, b) \
    { EIGHT(a), EIGHT(a), EIGHT(b), EIGHT(b) }
#define QUARTERS(a) \
    { EIGHT(a), EIGHT(a + 1), EIGHT(a + 2), EIGHT(a + 3) }
static const uint16_t of_32[4][32] __attribute__((aligned(64))) = {LANES_(0, 2), LANES_(1, 3), LANES_(4, 6), LANES_(5, 7)};
static const uint16_t of_16[4][32] __attribute__((aligned(64))) = {QUARTERS(0), QUARTERS(4), QUARTERS(8), QUARTERS(12)};

INLINE void group_dot(V *sum, const uint8_t *p, const uint8_t *s, const struct group *x, int ld, const int n, const int N) {
    const struct block b = load_block(p);
    EACH (int t = 0; t < N; t++, x += ld) {
        const __m512i scale = _mm512_castsi256_si512(_mm256_sllv_epi16(b.scale, _mm256_load_si256((const __m256i *)(const void *)x->shift)));
        __m512i high = _mm512_setzero_si512(), low = high;
        EACH (int v = 0; v < 4; v++) {
            const __m512i f = _mm512_permutexvar_epi16(_mm512_load_si512(Q6 ? of_16[v] : of_32[v]), scale);
            high = _mm512_dpwssd_epi32(high, _mm512_maddubs_epi16(b.w[v], _mm512_load_si512(x->high + 64 * v)), f);
            low = _mm512_dpwssd_epi32(low, _mm512_maddubs_epi16(b.w[v], _mm512_load_si512(x->low + 64 * v)), f);
        }
        const V both = vfma(_mm512_cvtepi32_ps(high), vset1(256), _mm512_cvtepi32_ps(low));
        sum[t] = vfma(both, vset1(b.d * x->unit), sum[t]);
        sum[t] = vfma(b.off, vload(x->sum), sum[t]);
    }
}

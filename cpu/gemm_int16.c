/* Integer products of groups of a prompt's tokens with AVX2: GGUF's K blocks, and blocks of 32 columns with one scale, or scale and minimum, each.
 * Compiled once more for AVX-VNNI, with the same bits (meson.build: ISA).
 *
 * Why. A float32 FMA multiplies 8 numbers, two per cycle; vpmaddwd multiplies 16, and the following addition runs on ports that
 * FMA leaves idle. So 16-bit products exceed the float32 peak if sums are rarely converted to float. A Q4_K weight times its
 * part's six-bit scale still fits a word (945 at most), and its 256 columns are summed exactly in 32 bits: 32 products per
 * lane, 945 * 32,640 each. Q5_K: 1,953. Q6_K and IQ4_XS, 4,096 and 4,064, allow 16 products per lane, i.e. 128 columns. Others
 * are converted every 32 columns, which have their own scale.
 *
 * Weights are decoded once for all tokens, some rows and columns at a time that stay in L1, in their stored order: lanes run along K.
 * x is quantised to words as in intdot_inner.h, but with one unit per 256 columns: an error of at most 2^-15 of the largest of these.
 * The order of a sum is fixed: blocks in order, their segments, then the subtracted minima, in each of 8 lanes; lanes at the end;
 * independent of the other rows and tokens. */
#include <string.h>

#include "cpu/formats.h"
#include "cpu/gemm_inner.h"
#include "cpu/intdot_words.h"
#include "engine/base/scale.h"

enum {
    BLOCK = 256,
    STRIP = 8,  /* rows decoded together */
    DEPTH = 4,  /* blocks per row */
    CHUNK = 64, /* tokens per decoding, which then takes a few percent of the time; their sums and x stay in L2 */
};

/* 256 columns of a row or of a token. Each 64 are two times 32, four vectors, the first 32 in their lower halves: even columns of the
 * first 16, odd ones, and the same of the other 16. Arrays of eight are in the order of halves_4. */
struct block {
    int16_t word[16][16];
    float scale[8]; /* of each 32 columns, or only of the first one or two segments; a token's: its unit, eight times */
    float rest[8];  /* of each 32 columns: factor of the sum of x that is subtracted; a token's: that sum */
} __attribute__((aligned(64)));

static int blocks(int k) { return (k + BLOCK - 1) / BLOCK; }

/* --- x --- */

static void block_make(struct block *g, const float *x) {
    const __m256i one = _mm256_set1_epi16(1), ones[4] = {one, one, one, one};
    float f[8];
    __m256i most = most_2(x), sum[4];
    for (int c = 16; c < BLOCK; c += 16) most = join(most, most_2(x + c), true);
    most = join(most, _mm256_permute2x128_si256(most, most, 1), true);
    most = join(most, _mm256_shuffle_epi32(most, 0x4e), true);
    most = join(most, _mm256_shuffle_epi32(most, 0xb1), true);
    const V unit = units_8(most, f), by = vset1(f[0]);
    for (int k = 0; k < 4; k++) {
        EACH (int half = 0; half < 2; half++) {
            V even[2], odd[2];
            EACH (int i = 0; i < 2; i++) split_16(x + 64 * k + 32 * i + 16 * half, by, &even[i], &odd[i]);
            words_16(g->word[4 * k + 2 * half], even[0], even[1]);
            words_16(g->word[4 * k + 2 * half + 1], odd[0], odd[1]);
        }
        sum[k] = dot_words(ones, g->word + 4 * k, 4);
    }
    vstore(g->scale, unit);
    vstore(g->rest, vmul(_mm256_cvtepi32_ps(halves_4(sum, false)), unit));
}
static size_t packed_bytes(int n, int k) { return (size_t)n * (size_t)blocks(k) * sizeof(struct block); }
static void pack(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts) {
    const int each = blocks(k);
    const int64_t all = (int64_t)n * each;
    for (int64_t at = all * part / parts; at < all * (part + 1) / parts; at++) {
        const int i = (int)(at / each), c = (int)(at % each) * BLOCK;
        const float *from = x + (size_t)(gather ? gather[i] : i) * (size_t)ldx + c;
        float edge[BLOCK];
        if (k - c < BLOCK) {
            memset(edge, 0, sizeof edge);
            from = memcpy(edge, from, (size_t)(k - c) * sizeof *from);
        }
        block_make((struct block *)dst + at, from);
    }
}

/* --- Weights --- */

INLINE void put(struct block *g, int k, int v, __m256i words) { _mm256_store_si256((__m256i *)(void *)g->word[4 * k + v], words); }
/* 32 codes as words, even and odd, times s. */
INLINE void put_32(struct block *g, int k, int half, __m256i code, __m256i s) {
    put(g, k, 2 * half, _mm256_mullo_epi16(_mm256_and_si256(code, _mm256_set1_epi16(255)), s));
    put(g, k, 2 * half + 1, _mm256_mullo_epi16(_mm256_srli_epi16(code, 8), s));
}
INLINE __m256i even_signed(__m256i v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); }
INLINE __m256i odd_signed(__m256i v) { return _mm256_srai_epi16(v, 8); }
/* 16 bytes in both halves of a vector, shifted down by a bits in the lower and by b in the upper half. */
INLINE __m256i both_16(const uint8_t *p, int a, int b) {
    return _mm256_srlv_epi32(_mm256_broadcastsi128_si256(load_16(p)), _mm256_setr_epi32(a, a, a, a, b, b, b, b));
}
INLINE __m256i two_16(const uint8_t *p, const uint8_t *q) { return _mm256_set_m128i(load_16(q), load_16(p)); }
INLINE __m256i masked(__m256i v, const int mask) { return _mm256_and_si256(v, _mm256_set1_epi8((char)mask)); }
/* Broadcasts word i of each half of v within its half. */
INLINE __m256i word_of(__m256i v, const int i) { return _mm256_shuffle_epi8(v, _mm256_set1_epi16((short)((2 * i + 1) << 8 | 2 * i))); }
INLINE float half_of(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

/* Q4_K, Q5_K */
INLINE void decode_min(struct block *g, const uint8_t *p, const bool five) {
    const __m128i all = load_16(p); /* as in intdot_k_avx2.c, but even parts first in each four */
    const __m128i four = _mm_shuffle_epi8(all, _mm_setr_epi8(4, 6, 12, 14, 5, 7, 13, 15, 8, 10, 12, 14, 9, 11, 13, 15));
    const __m128i two = _mm_shuffle_epi8(all, _mm_setr_epi8(-1, -1, 4, 6, -1, -1, 5, 7, -1, -1, 8, 10, -1, -1, 9, 11));
    const __m128i low =
        _mm_and_si128(_mm_blend_epi16(four, _mm_srli_epi16(four, 4), 0xa0), _mm_setr_epi16(0x3f3f, 0x0f0f, 0x3f3f, 0x0f0f, 0x3f3f, 0x0f0f, 0x3f3f, 0x0f0f));
    const __m128i six = _mm_or_si128(low, _mm_and_si128(_mm_srli_epi16(two, 2), _mm_set1_epi8(0x30)));
    const __m128 d = _mm_cvtph_ps(all);
    g->scale[0] = _mm_cvtss_f32(d);
    vstore(g->rest, vmul(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(six, 8))), _mm256_broadcastss_ps(_mm_movehdup_ps(d))));
    const __m256i scale = _mm256_cvtepu8_epi16(_mm_shuffle_epi32(six, 0xd8)); /* even parts in the lower half, odd parts in the upper */
    EACH (int k = 0; k < 4; k++)
        EACH (int half = 0; half < 2; half++) {
            __m256i code = masked(both_16(p + (five ? 48 : 16) + 32 * k + 16 * half, 0, 4), 0x0f);
            if (five) code = _mm256_or_si256(code, _mm256_slli_epi16(masked(both_16(p + 16 + 16 * half, 2 * k, 2 * k + 1), 1), 4));
            put_32(g, k, half, code, word_of(scale, k));
        }
}
INLINE void decode_q6_k(struct block *g, const uint8_t *p) {
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15); /* of 32 columns in order, lower and upper half */
    const __m256i scale = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(load_16(p + 192), order));
    g->scale[0] = g->scale[1] = half_of(p + 208);
    EACH (int k = 0; k < 4; k++)
        EACH (int half = 0; half < 2; half++) {
            const uint8_t *q = p + k / 2 * 64 + 16 * half;
            const __m256i low = two_16(q, q + 32), two = both_16(p + 128 + k / 2 * 32 + 16 * half, k % 2 * 4, k % 2 * 4 + 2);
            const __m256i code = _mm256_or_si256(masked(k % 2 ? _mm256_srli_epi16(low, 4) : low, 0x0f), _mm256_slli_epi16(masked(two, 3), 4));
            const __m256i minus = _mm256_sub_epi8(code, _mm256_set1_epi8(32)), s = word_of(scale, 2 * k + half);
            put(g, k, 2 * half, _mm256_mullo_epi16(even_signed(minus), s));
            put(g, k, 2 * half + 1, _mm256_mullo_epi16(odd_signed(minus), s));
        }
}
/* 64 columns, each 32 in 16 bytes: low nibbles, then high ones. */
INLINE void put_look(struct block *g, int k, __m256i codes, __m256i table, __m256i s, const bool scaled) {
    EACH (int half = 0; half < 2; half++) {
        const __m256i w = _mm256_shuffle_epi8(table, masked(half ? _mm256_srli_epi16(codes, 4) : codes, 15));
        put(g, k, 2 * half, scaled ? _mm256_mullo_epi16(even_signed(w), s) : even_signed(w));
        put(g, k, 2 * half + 1, scaled ? _mm256_mullo_epi16(odd_signed(w), s) : odd_signed(w));
    }
}
INLINE __m256i table_of(const int8_t values[16]) { return _mm256_broadcastsi128_si256(load_16((const uint8_t *)values)); }
INLINE void decode_iq4_xs(struct block *g, const uint8_t *p) {
    const __m256i table = table_of(mat_iq4);
    const int high = p[2] | p[3] << 8;
    g->scale[0] = g->scale[1] = half_of(p);
    EACH (int k = 0; k < 4; k++) {
        const int a = ((p[4 + k] & 15) | (high >> (4 * k) & 3) << 4) - 32, b = (p[4 + k] >> 4 | (high >> (4 * k + 2) & 3) << 4) - 32;
        put_look(g, k, load_32(p + 8 + 32 * k), table, _mm256_set_m128i(_mm_set1_epi16((short)b), _mm_set1_epi16((short)a)), true);
    }
}
/* 64 columns of Q4_1, Q5_0 or Q5_1, as in put_look; fifth: bits of each 32 in four bytes of the lower and upper half. */
INLINE void put_fifth(struct block *g, int k, __m256i codes, __m256i fifth, const int dtype) {
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201), first = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0101010101010101, 0));
    EACH (int half = 0; half < 2; half++) {
        __m256i w = masked(half ? _mm256_srli_epi16(codes, 4) : codes, 15);
        if (dtype != DT_Q4_1) {
            const __m256i bits = _mm256_shuffle_epi8(fifth, _mm256_add_epi8(first, _mm256_set1_epi8((char)(2 * half))));
            const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bits, bit), bit);
            w = _mm256_or_si256(w, dtype == DT_Q5_0 ? _mm256_andnot_si256(is_set, _mm256_set1_epi8((char)0xf0)) : masked(is_set, 0x10)); /* Q5_0: minus 16 */
        }
        put(g, k, 2 * half, even_signed(w));
        put(g, k, 2 * half + 1, odd_signed(w));
    }
}
INLINE __m128i load_4(const uint8_t *p) {
    int word;
    memcpy(&word, p, 4);
    return _mm_cvtsi32_si128(word);
}
INLINE bool has_min(int dtype) { return dtype == DT_Q4_1 || dtype == DT_Q5_1; } /* added; after the scale */
/* Blocks of 32 columns, of which n <= 8 exist; past them x and scales are zero. */
INLINE void decode_32(struct block *g, const uint8_t *p, int n, const int dtype) {
    const bool five = dtype == DT_Q5_0 || dtype == DT_Q5_1;
    const __m256i table = dtype == DT_MXFP4 ? table_of(mat_mxfp4) : dtype == DT_IQ4_NL ? table_of(mat_iq4) : table_of(mat_q4_0);
    const int size = dtype == DT_MXFP4 ? 17 : dtype == DT_Q8_0 ? 34 : 18 + 2 * has_min(dtype) + 4 * five;
    uint8_t edge[8 * 34];
    if (n < 8) {
        memset(edge, 0, sizeof edge);
        p = memcpy(edge, p, (size_t)(n * size));
    }
    EACH (int k = 0; k < 4; k++) {
        const uint8_t *a = p + 2 * k * size, *b = a + size;
        g->scale[k] = dtype == DT_MXFP4 ? e8m0_half(a[0]) : half_of(a);
        g->scale[4 + k] = dtype == DT_MXFP4 ? e8m0_half(b[0]) : half_of(b);
        if (dtype == DT_Q8_0)
            EACH (int half = 0; half < 2; half++) {
                const __m256i v = two_16(a + 2 + 16 * half, b + 2 + 16 * half);
                put(g, k, 2 * half, even_signed(v));
                put(g, k, 2 * half + 1, odd_signed(v));
            }
        else if (five || has_min(dtype))
            put_fifth(g, k, two_16(a + size - 16, b + size - 16), five ? _mm256_set_m128i(load_4(b + size - 20), load_4(a + size - 20)) : table, dtype);
        else put_look(g, k, two_16(a + size - 16, b + size - 16), table, table, false);
        if (has_min(dtype)) g->rest[k] = -half_of(a + 2), g->rest[4 + k] = -half_of(b + 2);
    }
}
/* FP4 codes with separate scales, the low nibble of a byte first; n columns of them exist. */
INLINE void decode_e2m1(struct block *g, const uint8_t *p, const uint8_t *scale, int n) {
    const __m256i table = table_of(mat_mxfp4);
    uint8_t edge[BLOCK / 2], s[8] = {0};
    if (n < BLOCK) {
        memset(edge, 0, sizeof edge);
        p = memcpy(edge, p, (size_t)(n + 1) / 2);
    }
    memcpy(s, scale, (size_t)(n + 31) / 32);
    for (int k = 0; k < 4; k++) {
        const __m256i codes = load_32(p + 32 * k), none = _mm256_setzero_si256();
        const __m256i even = _mm256_shuffle_epi8(table, masked(codes, 15)), odd = _mm256_shuffle_epi8(table, masked(_mm256_srli_epi16(codes, 4), 15));
        put(g, k, 0, odd_signed(_mm256_unpacklo_epi8(none, even)));
        put(g, k, 1, odd_signed(_mm256_unpacklo_epi8(none, odd)));
        put(g, k, 2, odd_signed(_mm256_unpackhi_epi8(none, even)));
        put(g, k, 3, odd_signed(_mm256_unpackhi_epi8(none, odd)));
        g->scale[k] = e8m0_half(s[2 * k]), g->scale[4 + k] = e8m0_half(s[2 * k + 1]);
    }
}

/* Properties of formats for the products: columns that are converted to float together; whether a minimum is subtracted. */
INLINE int segment_of(int dtype) { return dtype == DT_Q4_K || dtype == DT_Q5_K ? 256 : dtype == DT_Q6_K || dtype == DT_IQ4_XS ? 128 : 32; }
/* Token count from which this is faster than the GEMV kernels, which decode again for every four: from instruction counts, and measured
 * (test/bench/NOTES.md). */
static bool takes(const struct mat *w, int n) {
    if (w->dtype == DT_E2M1) return n >= 8 && w->scale && w->scale_dtype == DT_E8M0 && w->block_cols == 32;
    if (w->scale) return false;
    switch (w->dtype) {
    case DT_Q4_K:
    case DT_Q5_K:
    case DT_Q6_K:
    case DT_Q8_0: return n >= 4;
    case DT_IQ4_XS:
    case DT_IQ4_NL:
    case DT_Q4_1: return n > 16;
    case DT_Q4_0:
    case DT_Q5_0:
    case DT_Q5_1:
    case DT_MXFP4: return n >= 8;
    default: return false;
    }
}
/* n blocks of STRIP rows starting at column c; rows past the last one repeat it. Prefetches `ahead` bytes further. */
INLINE void decode_rows(struct block (*to)[DEPTH], const struct mat *w, int r, int last, int c, int n, ptrdiff_t ahead, const int dtype, const int bytes) {
    for (int i = 0; i < STRIP; i++) {
        const uint8_t *p = (const uint8_t *)w->data + (size_t)(r + i < last ? r + i : last) * w->stride + (size_t)(c / BLOCK * bytes);
        for (int b = 0; b < n; b++, p += bytes) {
            for (int line = 0; line < bytes; line += 64) _mm_prefetch((const char *)p + ahead + line, _MM_HINT_T0);
            const int left = (w->cols - c) / 32 - 8 * b, more = w->cols - c - b * BLOCK;
            if (dtype == DT_Q4_K || dtype == DT_Q5_K) decode_min(&to[i][b], p, dtype == DT_Q5_K);
            else if (dtype == DT_Q6_K) decode_q6_k(&to[i][b], p);
            else if (dtype == DT_IQ4_XS) decode_iq4_xs(&to[i][b], p);
            else if (dtype == DT_E2M1)
                decode_e2m1(&to[i][b], p, (const uint8_t *)w->scale + scale_row(w, r + i < last ? r + i : last) + (size_t)(c / 32 + 8 * b),
                            more < BLOCK ? more : BLOCK);
            else decode_32(&to[i][b], p, left < 8 ? left : 8, dtype);
        }
    }
}
static void decode(struct block (*to)[DEPTH], const struct mat *w, int r, int last, int c, int n, ptrdiff_t ahead) {
    switch (w->dtype) {
#define CASE(dtype) \
    case dtype: decode_rows(to, w, r, last, c, n, ahead, dtype, (int)dtype_bytes(dtype, BLOCK)); break;
        CASE(DT_Q4_K)
        CASE(DT_Q5_K)
        CASE(DT_Q6_K)
        CASE(DT_IQ4_XS)
        CASE(DT_IQ4_NL)
        CASE(DT_Q4_0)
        CASE(DT_Q4_1)
        CASE(DT_Q5_0)
        CASE(DT_Q5_1)
        CASE(DT_MXFP4)
        CASE(DT_Q8_0)
        CASE(DT_E2M1)
#undef CASE
    }
}

/* --- Products --- */

INLINE __m256i load_words(const int16_t *p) { return _mm256_load_si256((const __m256i *)(const void *)p); }
/* sum[t][i] += n blocks of row i by token t, i < R, t < T; tokens ld blocks apart. */
INLINE void tile(V (*sum)[STRIP], const struct block (*w)[DEPTH], const struct block *x, int ld, int n, const int R, const int T, const int segment) {
    for (int b = 0; b < n; b++, x++) {
        EACH (int s = 0; s < BLOCK / segment; s++) {
            __m256i dot[4][4];
            EACH (int i = 0; i < R; i++)
                EACH (int t = 0; t < T; t++) dot[i][t] = _mm256_setzero_si256();
            _Pragma("GCC unroll 4") for (int c = s * segment / 16; c < (s + 1) * segment / 16; c++) {
                __m256i a[4];
                EACH (int i = 0; i < R; i++) a[i] = load_words(w[i][b].word[c]);
                EACH (int t = 0; t < T; t++) {
                    __m256i v = load_words(x[t * ld].word[c]);
                    if (R > 1) __asm__("" : "+x"(v)); /* one load for all rows */
                    EACH (int i = 0; i < R; i++) dot[i][t] = add_products(dot[i][t], a[i], v);
                }
            }
            EACH (int i = 0; i < R; i++) {
                const V scale = vset1(w[i][b].scale[s]);
                EACH (int t = 0; t < T; t++) sum[t][i] = vfma(_mm256_cvtepi32_ps(dot[i][t]), vmul(scale, vload(x[t * ld].scale)), sum[t][i]);
            }
        }
        if (segment < BLOCK) continue;
        EACH (int i = 0; i < R; i++) {
            const V rest = vload(w[i][b].rest);
            EACH (int t = 0; t < T; t++) sum[t][i] = _mm256_fnmadd_ps(rest, vload(x[t * ld].rest), sum[t][i]);
        }
    }
}
/* Same with one scale per 32 columns, whose sums become a lane each: a row by T tokens. MIN: and a minimum. */
INLINE void tile_32(V (*sum)[STRIP], const struct block (*w)[DEPTH], const struct block *x, int ld, int n, const int T, const bool MIN) {
    for (int b = 0; b < n; b++, x++) {
        const V scale = vload(w[0][b].scale);
        __m256i part[4];
        EACH (int k = 0; k < 4; k += 2) {
            __m256i a[8];
            EACH (int c = 0; c < 8; c++) a[c] = load_words(w[0][b].word[4 * k + c]);
            EACH (int t = 0; t < T; t++) {
                const struct block *g = &x[t * ld];
                const __m256i four = pairs(dot_words(a, g->word + 4 * k, 4), dot_words(a + 4, g->word + 4 * k + 4, 4), false);
                if (k) sum[t][0] = vfma(_mm256_cvtepi32_ps(fours(part[t], four, false)), vmul(scale, vload(g->scale)), sum[t][0]);
                else part[t] = four;
            }
        }
        EACH (int t = 0; t < T && MIN; t++) sum[t][0] = _mm256_fnmadd_ps(vload(w[0][b].rest), vload(x[t * ld].rest), sum[t][0]);
    }
}
static void products(V (*sum)[STRIP], const struct block (*w)[DEPTH], const struct block *x, int ld, int n, int tokens, int segment, bool min) {
    for (int t = 0, m; t < tokens; t += m) {
        V(*to)[STRIP] = sum + t;
        const struct block *xt = x + t * ld;
        const int left = tokens - t;
        if (segment == 32) {
            m = left >= 4 ? 4 : left;
#define CASE(T, MIN) \
    case T + 8 * MIN: \
        for (int i = 0; i < STRIP; i++) tile_32((V(*)[STRIP])(void *)&to[0][i], w + i, xt, ld, n, T, MIN); \
        break;
            switch (m + 8 * min) { CASE(1, 0) CASE(2, 0) CASE(3, 0) CASE(4, 0) CASE(1, 1) CASE(2, 1) CASE(3, 1) CASE(4, 1) }
#undef CASE
            continue;
        }
        m = left < 4 ? left : 4;
#define CASE(T, R, S) \
    case T + S: \
        for (int i = 0; i < STRIP; i += R) tile((V(*)[STRIP])(void *)&to[0][i], w + i, xt, ld, n, R, T, S); \
        break;
        switch (m + segment) { CASE(1, 4, 256) CASE(2, 4, 256) CASE(3, 2, 256) CASE(4, 2, 256) CASE(1, 4, 128) CASE(2, 4, 128) CASE(3, 2, 128) CASE(4, 2, 128) }
#undef CASE
    }
}

struct scratch {
    struct block w[STRIP][DEPTH];
    V sum[CHUNK][STRIP];
};
static size_t scratch_bytes(int n, int k) { return sizeof(struct scratch); }
static void rows(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate, void *scratch) {
    struct scratch *s = scratch;
    const int ld = blocks(w->cols), segment = segment_of(w->dtype), chunks = (n + CHUNK - 1) / CHUNK;
    for (int chunk = 0; chunk < chunks; chunk++) {
        const int i0 = (int)((int64_t)n * chunk / chunks), m = (int)((int64_t)n * (chunk + 1) / chunks) - i0;
        const struct block *x = (const struct block *)packed + (size_t)i0 * (size_t)ld;
        for (int r = r0; r < r1; r += STRIP) {
            const int have = r1 - r < STRIP ? r1 - r : STRIP;
            memset(s->sum, 0, (size_t)m * sizeof *s->sum);
            for (int b = 0; b < ld; b += DEPTH) {
                const int depth = ld - b < DEPTH ? ld - b : DEPTH;
                const ptrdiff_t ahead = b + depth < ld ? (ptrdiff_t)dtype_bytes(w->dtype, DEPTH * BLOCK)
                                                       : (ptrdiff_t)w->stride * STRIP - (ptrdiff_t)dtype_bytes(w->dtype, (size_t)b * BLOCK);
                decode(s->w, w, r, r + have - 1, b * BLOCK, depth, ahead);
                products(s->sum, (const struct block(*)[DEPTH])(const void *)s->w, x + b, ld, depth, m, segment, has_min(w->dtype));
            }
            for (int t = 0; t < m; t++) {
                float out[STRIP], *to = y + (size_t)(i0 + t) * (size_t)ldy + r;
                EACH (int i = 0; i < STRIP; i += 4) vsum4(s->sum[t][i], s->sum[t][i + 1], s->sum[t][i + 2], s->sum[t][i + 3], 1, out + i);
                for (int i = 0; i < have; i++) to[i] = accumulate ? to[i] + out[i] : out[i];
            }
        }
    }
}

#define NAME_(name) #name
#define NAME(name)  NAME_(name)
const struct gemm FORMAT_JOIN(gemm_int16_, ISA) = {.name = NAME(FORMAT_JOIN(intdot_, ISA)),
                                                   .is_int16 = true,
                                                   .row_tile = STRIP,
                                                   .packed_bytes = packed_bytes,
                                                   .pack = pack,
                                                   .scratch_bytes = scratch_bytes,
                                                   .rows = rows,
                                                   .supports = takes};

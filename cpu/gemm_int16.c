/* Integer products of groups of a prompt's tokens with AVX2, for formats whose codes have more than six bits or whose
 * entries come from a grid; the others: gemm_int8_avx2.c. Compiled once more for AVX-VNNI, with the same bits
 * (meson.build: ISA).
 *
 * Why. A float32 FMA multiplies 8 numbers, two per cycle; vpmaddwd multiplies 16, and the following addition runs on
 * ports that FMA leaves idle. So 16-bit products exceed the float32 peak if sums are rarely converted to float. An
 * IQ3_XXS weight times its part's scale still fits a word (1,922 at most; others less), and its 256 columns are summed
 * exactly in 32 bits: 32 products per lane, 1,922 * 32,640 each. IQ4_XS, 4,064, allows 16 products per lane, i.e. 128
 * columns. Others are converted every 32 columns, which have their own scale.
 *
 * Weights are decoded once for all tokens, some rows and columns at a time that stay in L1, in their stored order:
 * lanes run along K. x is quantised to words as in intdot_inner.h, but with one unit per 256 columns: an error of at
 * most 2^-15 of the largest of these. The order of a sum is fixed: blocks in order, their segments, in each of 8 lanes;
 * lanes at the end; independent of the other rows and tokens. */
#include <string.h>

#include "base/scale.h"
#include "cpu/formats.h"
#include "cpu/gemm_inner.h"
#include "cpu/int16_decode.h"

#ifndef ISA
#define ISA avx2
#endif

enum {
    STRIP = 8,  /* rows decoded together */
    DEPTH = 4,  /* blocks per row */
    CHUNK = 64, /* tokens per decoding, which then takes a few percent of the time; their sums and x stay in L2 */
};

static int blocks(int k) { return (k + BLOCK - 1) / BLOCK; }

/* --- x ---------------------------------------------------------------------------------------- */

static void block_make(struct block *g, const float *x) {
    float f[8];
    const V unit = units_8(most_all(x, BLOCK), f), by = vset1(f[0]);
    for (int k = 0; k < 4; k++)
        EACH (int half = 0; half < 2; half++) {
            V even[2], odd[2];
            EACH (int i = 0; i < 2; i++) split_16(x + 64 * k + 32 * i + 16 * half, by, &even[i], &odd[i]);
            words_16(g->word[4 * k + 2 * half], even[0], even[1]);
            words_16(g->word[4 * k + 2 * half + 1], odd[0], odd[1]);
        }
    vstore(g->scale, unit);
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

/* --- Weights ---------------------------------------------------------------------------------- */

/* Columns that are converted to float together. */
INLINE int segment_of(int dtype) {
    switch (dtype) {
    case DT_IQ4_XS: return 128;
    case DT_IQ4_NL:
    case DT_Q8_0:
    case DT_Q1_0:
    case DT_Q2_0:
    case DT_E2M1: return 32;
    default: return 256;
    }
}
/* Token count from which this is faster than the GEMV kernels, which decode again for every four: from instruction
 * counts, and measured (test/bench/NOTES.md). */
static bool takes(const struct mat *w, int n) {
    if (w->dtype == DT_E2M1) return n >= 8 && w->scale && w->scale_dtype == DT_E8M0 && w->block_cols == 32;
    if (w->scale) return false;
    switch (w->dtype) {
    case DT_Q8_0: return n >= 4;
    case DT_IQ4_XS:
    case DT_IQ4_NL:
    case DT_TQ1_0:
    case DT_TQ2_0:
    case DT_Q1_0: return n > 16;
#define CASE(name) case FORMAT_DTYPE(name):
        FORMATS_IQ(CASE)
#undef CASE
    case DT_Q2_0: return n >= 8;
    default: return false;
    }
}
/* n blocks of STRIP rows starting at column c; rows past the last one repeat it. Prefetches `ahead` bytes further. */
typedef INT16_CODES_FN((*codes_fn));
INLINE void decode_rows(struct block (*to)[DEPTH], const struct mat *w, int r, int last, int c, int n, ptrdiff_t ahead,
                        const int dtype, const int bytes, codes_fn codes) {
    for (int i = 0; i < STRIP; i++) {
        const uint8_t *p =
            (const uint8_t *)w->data + (size_t)(r + i < last ? r + i : last) * w->stride + (size_t)(c / BLOCK * bytes);
        for (int b = 0; b < n; b++, p += bytes) {
            for (int line = 0; line < bytes; line += 64) _mm_prefetch((const char *)p + ahead + line, _MM_HINT_T0);
            const int left = (w->cols - c) / 32 - 8 * b, more = w->cols - c - b * BLOCK;
            if (dtype == DT_IQ4_XS) decode_iq4_xs(&to[i][b], p);
            else if (dtype == DT_TQ1_0) decode_tq1_0(&to[i][b], p);
            else if (dtype == DT_TQ2_0) decode_tq2_0(&to[i][b], p);
            else if (dtype == DT_Q1_0 || dtype == DT_Q2_0)
                decode_bits(&to[i][b], p, more < BLOCK ? more : BLOCK, dtype);
            else if (codes) {
                struct int16_codes unpacked;
                codes(&unpacked, p);
                put_codes(&to[i][b], &unpacked, true);
            } else if (dtype == DT_E2M1)
                decode_e2m1(&to[i][b], p,
                            (const uint8_t *)w->scale + scale_row(w, r + i < last ? r + i : last) +
                                (size_t)(c / 32 + 8 * b),
                            more < BLOCK ? more : BLOCK);
            else decode_32(&to[i][b], p, left < 8 ? left : 8, dtype);
        }
    }
}
static void decode(struct block (*to)[DEPTH], const struct mat *w, int r, int last, int c, int n, ptrdiff_t ahead) {
#define ROW(name) [FORMAT_DTYPE(name)] = int16_codes_##name,
    static const codes_fn codes[DT_COUNT] = {FORMATS_IQ(ROW)};
#undef ROW
    if (codes[w->dtype])
        decode_rows(to, w, r, last, c, n, ahead, DT_COUNT, (int)dtype_bytes(w->dtype, BLOCK), codes[w->dtype]);
    switch (w->dtype) {
#define CASE(dtype) \
    case dtype: decode_rows(to, w, r, last, c, n, ahead, dtype, (int)dtype_bytes(dtype, BLOCK), NULL); break;
        CASE(DT_IQ4_XS)
        CASE(DT_IQ4_NL)
        CASE(DT_Q8_0)
        CASE(DT_E2M1)
        CASE(DT_TQ1_0)
        CASE(DT_TQ2_0)
        CASE(DT_Q1_0)
        CASE(DT_Q2_0)
#undef CASE
    }
}

/* --- Products --------------------------------------------------------------------------------- */

/* sum[t][i] += n blocks of row i by token t, i < R, t < T; tokens ld blocks apart. */
INLINE void tile(V (*sum)[STRIP], const struct block (*w)[DEPTH], const struct block *x, int ld, int n, const int R,
                 const int T, const int segment) {
    for (int b = 0; b < n; b++, x++) {
        EACH (int s = 0; s < BLOCK / segment; s++) {
            __m256i dot[4][4];
            EACH (int i = 0; i < R; i++)
                EACH (int t = 0; t < T; t++) dot[i][t] = _mm256_setzero_si256();
            _Pragma("GCC unroll 4") for (int c = s * segment / 16; c < (s + 1) * segment / 16; c++) {
                __m256i a[4];
                EACH (int i = 0; i < R; i++) a[i] = load_v(w[i][b].word[c]);
                EACH (int t = 0; t < T; t++) {
                    __m256i v = load_v(x[t * ld].word[c]);
                    if (R > 1) __asm__("" : "+x"(v)); /* one load for all rows */
                    EACH (int i = 0; i < R; i++) dot[i][t] = add_products(dot[i][t], a[i], v);
                }
            }
            EACH (int i = 0; i < R; i++) {
                const V scale = vset1(w[i][b].scale[s]);
                EACH (int t = 0; t < T; t++)
                    sum[t][i] = vfma(_mm256_cvtepi32_ps(dot[i][t]), vmul(scale, vload(x[t * ld].scale)), sum[t][i]);
            }
        }
    }
}
/* Products of a row and T tokens with one scale per 32 columns, whose sums become a lane each. */
INLINE void tile_32(V (*sum)[STRIP], const struct block (*w)[DEPTH], const struct block *x, int ld, int n,
                    const int T) {
    for (int b = 0; b < n; b++, x++) {
        const V scale = vload(w[0][b].scale);
        __m256i part[4];
        EACH (int k = 0; k < 4; k += 2) {
            __m256i a[8];
            EACH (int c = 0; c < 8; c++) a[c] = load_v(w[0][b].word[4 * k + c]);
            EACH (int t = 0; t < T; t++) {
                const struct block *g = &x[t * ld];
                const __m256i four =
                    pairs(dot_words(a, g->word + 4 * k, 4), dot_words(a + 4, g->word + 4 * k + 4, 4), false);
                if (k)
                    sum[t][0] =
                        vfma(_mm256_cvtepi32_ps(fours(part[t], four, false)), vmul(scale, vload(g->scale)), sum[t][0]);
                else part[t] = four;
            }
        }
    }
}
static void products(V (*sum)[STRIP], const struct block (*w)[DEPTH], const struct block *x, int ld, int n, int tokens,
                     int segment) {
    for (int t = 0, m; t < tokens; t += m) {
        V(*to)[STRIP] = sum + t;
        const struct block *xt = x + t * ld;
        m = tokens - t < 4 ? tokens - t : 4;
#define CASE_32(T) \
    case T + 32: \
        for (int i = 0; i < STRIP; i++) tile_32((V(*)[STRIP])(void *)&to[0][i], w + i, xt, ld, n, T); \
        break;
#define CASE(T, R, S) \
    case T + S: \
        for (int i = 0; i < STRIP; i += R) tile((V(*)[STRIP])(void *)&to[0][i], w + i, xt, ld, n, R, T, S); \
        break;
#define CASES(S) CASE(1, 4, S) CASE(2, 4, S) CASE(3, 2, S) CASE(4, 2, S)
        switch (m + segment) { CASE_32(1) CASE_32(2) CASE_32(3) CASE_32(4) CASES(256) CASES(128) }
#undef CASES
#undef CASE
#undef CASE_32
    }
}

struct scratch {
    struct block w[STRIP][DEPTH];
    V sum[CHUNK][STRIP];
};
static size_t scratch_bytes(int n, int k) { return sizeof(struct scratch); }
static void rows(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate,
                 void *scratch) {
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
                const ptrdiff_t ahead =
                    b + depth < ld ? (ptrdiff_t)dtype_bytes(w->dtype, DEPTH * BLOCK)
                                   : (ptrdiff_t)w->stride * STRIP - (ptrdiff_t)dtype_bytes(w->dtype, (size_t)b * BLOCK);
                decode(s->w, w, r, r + have - 1, b * BLOCK, depth, ahead);
                products(s->sum, (const struct block(*)[DEPTH])(const void *)s->w, x + b, ld, depth, m, segment);
            }
            for (int t = 0; t < m; t++) {
                float out[STRIP], *to = y + (size_t)(i0 + t) * (size_t)ldy + r;
                EACH (int i = 0; i < STRIP; i += 4)
                    vsum4(s->sum[t][i], s->sum[t][i + 1], s->sum[t][i + 2], s->sum[t][i + 3], 1, out + i);
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

/* Products of quantized formats with AVX2: vpmaddubsw multiplies 32 codes with 8-bit activations, twice as many as
 * vpmaddwd with words. Compiled once more for AVX-VNNI, with the same bits (meson.build: ISA).
 *
 * Activations become eight-bit integers with a scale for each 32 columns: at most 1 / 254 of the largest of the 32 off.
 * llama.cpp keeps as many bits for 32 columns, or for 256 with K blocks, which costs four times the divergence
 * (test/bench/gguf.md). Weights are not rounded. A part's sum is an exact integer, converted to float once:
 *
 *     y = sum over parts, in order, of (sum of codes by x * scale - off * sum of x) * x's scale
 *
 * so that a row has the same bits in any batch, however many rows and tokens are multiplied together: with few tokens
 * lanes run along K, and codes stay in registers; with more a lane is a row and holds four columns, decoded once for
 * all tokens. */
#include <math.h>

#include "cpu/gemm_inner.h"
#include "cpu/int8_beside_avx2.h"
#include "cpu/int8_rows_avx2.h"
#include "cpu/small_unpack.h"

#ifndef ISA
#define ISA avx2
#endif

enum {
    FEW = 3,           /* up to this many tokens, codes stay in registers */
    TOKENS = 4,        /* of a tile */
    STRIP = 4,         /* panels decoded together: they stay in L1 */
    PANEL_ROWS = 16,   /* two panels of a tile */
    CHUNK = 64,        /* tokens whose sums and x stay in L2 */
    EDGE = PARTS * 34, /* bytes of 256 columns in blocks, at most */
};

/* 256 columns of a token. Sums are those of the codes: of 32 columns as float, of 16 as words. */
struct int8_x {
    int8_t q[BLOCK];
    float scale[PARTS], sum[PARTS];
    int16_t sum16[PARTS][2];
} __attribute__((aligned(32)));

struct panel {
    uint8_t code[BLOCK / 4][32]; /* four columns of each row */
    struct scales s;
} __attribute__((aligned(32)));

static int blocks(int k) { return (k + BLOCK - 1) / BLOCK; }

/* --- Activations ------------------------------------------------------------------------------ */

static size_t packed_bytes(int n, int k) { return (size_t)n * (size_t)blocks(k) * sizeof(struct int8_x); }

/* Sums of neighbouring words. */
INLINE __m256i words_to_dwords(__m256i v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

/* A scale is NaN if a column is not finite. */
static void x_make(struct int8_x *b, const float *x) {
    __m256i most[PARTS];
    float inverse[PARTS];
    EACH (int k = 0; k < PARTS; k++) most[k] = join(most_2(x + 32 * k), most_2(x + 32 * k + 16), true);
    const V top = _mm256_castsi256_ps(vectors_8(most, true, true)), steps = vset1(127);
    const V finite = _mm256_cmp_ps(top, vset1(INFINITY), _CMP_LT_OQ);
    const V some = _mm256_and_ps(finite, _mm256_cmp_ps(top, vset1(1e-36f), _CMP_GE_OQ)); /* 127 / top is finite */
    const V scale = _mm256_blendv_ps(vset1(NAN), _mm256_and_ps(some, vdiv(top, steps)), finite);
    vstore(inverse, _mm256_and_ps(some, vdiv(steps, top)));
    vstore(b->scale, scale);
    __m256i sums[PARTS];
    for (int k = 0; k < PARTS; k++) {
        const V by = vset1(inverse[k]);
        __m256i v[4];
        EACH (int i = 0; i < 4; i++) v[i] = _mm256_cvtps_epi32(vmul(vload(x + 32 * k + 8 * i), by));
        const __m256i bytes = _mm256_permutevar8x32_epi32(
            _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3])),
            _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_store_si256((__m256i *)(void *)(b->q + 32 * k), bytes);
        sums[k] = words_to_dwords(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes));
    }
    /* halves 0, 2, 4, 6 and 1, 3, 5, 7 of four parts */
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i a = _mm256_permutevar8x32_epi32(halves_4(sums, false), in_order),
                  c = _mm256_permutevar8x32_epi32(halves_4(sums + 4, false), in_order);
    _mm256_store_si256((__m256i *)(void *)b->sum16, _mm256_permute4x64_epi64(_mm256_packs_epi32(a, c), 0xd8));
    const __m256i all = words_to_dwords(load_v(b->sum16));
    vstore(b->sum, _mm256_cvtepi32_ps(all));
}
static void pack(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts) {
    const int each = blocks(k);
    const int64_t all = (int64_t)n * each;
    for (int64_t at = all * part / parts; at < all * (part + 1) / parts; at++) {
        const int i = (int)(at / each), b = (int)(at % each);
        const float *from = x + (size_t)(gather ? gather[i] : i) * (size_t)ldx + b * BLOCK;
        float edge[BLOCK];
        if (k - b * BLOCK < BLOCK) {
            memset(edge, 0, sizeof edge);
            from = memcpy(edge, from, (size_t)(k - b * BLOCK) * sizeof *from);
        }
        x_make((struct int8_x *)dst + (size_t)b * (size_t)n + (size_t)i, from);
    }
}

/* --- A part's products ------------------------------------------------------------------------ */

/* Adds products in fours to dwords: AVX-VNNI's of unsigned codes, else of signed ones. */
INLINE __m256i add_fours(__m256i sum, __m256i codes, __m256i x) {
#ifdef __AVXVNNI__
    return _mm256_dpbusd_avx_epi32(sum, codes, x);
#elif defined HEARTH_EMULATE_AVXVNNI
    const __m256i four = _mm256_set1_epi8(15), high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), four);
    sum = _mm256_add_epi32(sum, words_to_dwords(_mm256_maddubs_epi16(_mm256_and_si256(codes, four), x)));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(high, x), _mm256_set1_epi16(16)));
#else
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
    return _mm256_add_epi32(sum, words_to_dwords(pairs));
#endif
}
/* The two sums of 16 columns' codes. */
INLINE __m256i sums_of(const struct int8_x *x, int k) {
    int two;
    memcpy(&two, x->sum16[k], sizeof two);
    return _mm256_set1_epi32(two);
}
/* has_halves: scales the sum of the first or last 16 columns of part k. */
INLINE V half_part(__m256i dot, const struct scales *s, const int k, const int last, const struct int8_x *x,
                   const int dtype) {
    const __m256i bias = _mm256_set1_epi32(last ? -bias_of(dtype) * 0x10000 : -bias_of(dtype) & 0xffff);
    dot = _mm256_add_epi32(dot, _mm256_madd_epi16(bias, sums_of(x, k)));
    return vmul(_mm256_cvtepi32_ps(dot), vload(last ? s->off[k] : s->scale[k]));
}
/* Adds part k to the sums of eight rows; dot: its products with x, times `each`. */
INLINE V add_part(V sum, __m256i dot, const struct scales *s, const int k, const struct int8_x *x, const int dtype) {
    const V scale = vload(s->scale[k]);
    const int bias = bias_of(dtype);
    V whole;
    if (bias) {
        const __m256i words = has_two(dtype) ? load_v(s->bias[k]) : _mm256_set1_epi16((short)-bias);
        dot = _mm256_add_epi32(dot, _mm256_madd_epi16(words, sums_of(x, k)));
    }
    if (has_off(dtype)) {
        const V sums = dtype == DT_Q2_K ? _mm256_cvtepi32_ps(_mm256_madd_epi16(load_v(s->bias[k]), sums_of(x, k)))
                                        : vset1(x->sum[k]);
        whole = _mm256_fmsub_ps(_mm256_cvtepi32_ps(dot), scale, vmul(vload(s->off[k]), sums));
    } else whole = vmul(_mm256_cvtepi32_ps(dot), scale);
    return vfma(whole, vset1(x->scale[k]), sum);
}

/* --- Few tokens ------------------------------------------------------------------------------- */

/* Rows whose products' sums are words before they become dwords, because words might overflow. */
INLINE int rows_as_words(int dtype) {
    const int fit = pairs_that_fit(dtype);
    return has_blocks(dtype) ? fit / 2 : fit;
}
/* Products of a part, or of two blocks' first or last 16 columns: as words in pairs, or dwords in fours. */
INLINE __m256i products_of(__m256i codes, __m256i x, const int dtype) {
    return rows_as_words(dtype) ? _mm256_maddubs_epi16(codes, x) : add_fours(_mm256_setzero_si256(), codes, x);
}
/* Sums of two rows' products: dwords, or pairs of words, of each in turn. */
INLINE __m256i two_rows(__m256i a, __m256i b, const int dtype) {
    if (rows_as_words(dtype) < 2) return pairs(a, b, false);
    return _mm256_add_epi16(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}
INLINE __m256i four_rows(__m256i a, __m256i b, const int dtype) {
    const int words = rows_as_words(dtype);
    if (words == 2) a = words_to_dwords(a), b = words_to_dwords(b);
    if (words <= 2) return fours(a, b, false);
    return _mm256_add_epi16(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}
/* Sums on their way from eight vectors, one of each row, to two, of rows 0 to 3 and 4 to 7. */
struct row_sums {
    __m256i one, two, four, rest;
};
INLINE void take_row(struct row_sums *s, const int r, __m256i dot, const int dtype) {
    if (r % 2 == 0) s->one = dot;
    else if (r % 4 == 1) s->two = two_rows(s->one, dot, dtype);
    else if (r == 3) s->four = four_rows(s->two, two_rows(s->one, dot, dtype), dtype);
    else s->rest = four_rows(s->two, two_rows(s->one, dot, dtype), dtype);
}
/* A lane per row, of four rows each: times `each`, of the first and of the last 16 columns. */
INLINE __m256i eight_rows(__m256i a, __m256i b, const struct scales *s, const int k, const int dtype) {
    const int words = rows_as_words(dtype);
    if (words == 4) a = words_to_dwords(a), b = words_to_dwords(b);
    const __m256i first = _mm256_permute2x128_si256(a, b, 0x20), second = _mm256_permute2x128_si256(a, b, 0x31);
    if (has_two(dtype)) {
        const __m256i w = load_v(s->each[k][0]), v = load_v(s->each[k][1]);
        if (words == 8) return _mm256_add_epi32(_mm256_madd_epi16(first, w), _mm256_madd_epi16(second, v));
        return _mm256_add_epi32(_mm256_mullo_epi32(first, _mm256_srai_epi32(w, 16)),
                                _mm256_mullo_epi32(second, _mm256_srai_epi32(v, 16)));
    }
    return words < 8 ? _mm256_add_epi32(first, second) : words_to_dwords(_mm256_add_epi16(first, second));
}
/* As few_block, with two blocks in a vector. */
INLINE void few_blocks(V *sum, const uint8_t *const *p, const struct scales *s, int parts, const struct int8_x *x,
                       const int N, const int dtype) {
    const int size = block_bytes(dtype) / PARTS;
    EACH (int k = 0; k < PARTS; k += 2) {
        struct row_sums part[FEW];
        __m256i v[2];
        if (k >= parts) break;
        EACH (int r = 0; r < ROWS; r++) {
            two_blocks_codes(v, p[r] + (k + 1) * size, p[r] + (k + 2) * size, dtype);
            EACH (int t = 0; t < N; t++) {
                const __m256i a = load_v(x[t].q + 32 * k), b = load_v(x[t].q + 32 * k + 32);
                const __m256i first = products_of(v[0], _mm256_permute2x128_si256(a, b, 0x20), dtype),
                              last = products_of(v[1], _mm256_permute2x128_si256(a, b, 0x31), dtype);
                take_row(&part[t], r,
                         rows_as_words(dtype) ? _mm256_add_epi16(first, last) : _mm256_add_epi32(first, last), dtype);
            }
        }
        EACH (int t = 0; t < N; t++) {
            __m256i dot[2] = {_mm256_permute2x128_si256(part[t].four, part[t].rest, 0x20),
                              _mm256_permute2x128_si256(part[t].four, part[t].rest, 0x31)};
            EACH (int i = 0; i < 2; i++) {
                if (rows_as_words(dtype) >= 4) dot[i] = words_to_dwords(dot[i]);
                sum[t] = add_part(sum[t], dot[i], s, k + i, x + t, dtype);
            }
        }
    }
}
/* Adds the 256 columns at p[row] of eight rows to sum[token]; of blocks `parts` are not zero. */
INLINE void few_block(V *sum, const uint8_t *const *p, int parts, const struct int8_x *x, const int N,
                      const int dtype) {
    struct scales s __attribute__((aligned(32)));
    load_scales(&s, p, dtype);
    if (has_blocks(dtype)) {
        few_blocks(sum, p, &s, parts, x, N, dtype);
        return;
    }
    EACH (int k = 0; k < PARTS; k++) {
        struct row_sums part[FEW];
        EACH (int r = 0; r < ROWS; r++) {
            const __m256i codes = codes_of(p[r], k, dtype);
            EACH (int t = 0; t < N; t++)
                take_row(&part[t], r, products_of(codes, load_v(x[t].q + 32 * k), dtype), dtype);
        }
        EACH (int t = 0; t < N; t++)
            sum[t] = add_part(sum[t], eight_rows(part[t].four, part[t].rest, &s, k, dtype), &s, k, x + t, dtype);
    }
}
/* Copies what exists of the last 256 columns of eight rows and sets p to the copies. */
INLINE void copy_edge(uint8_t (*edge)[EDGE], const uint8_t **p, int cols, const int dtype) {
    for (int i = 0; i < ROWS; i++) {
        memset(edge[i], 0, sizeof edge[i]);
        p[i] = memcpy(edge[i], p[i], (size_t)(cols / 32 * (block_bytes(dtype) / PARTS)));
    }
}
/* Eight rows, r and each `gap` further, of which those past `last` repeat it: out[token][row]. Each is a stream of its
 * own: the rows from one to the next are read one after the other. */
INLINE void few_rows(float (*out)[ROWS], const struct mat *w, int r, int gap, int last, const struct int8_x *x,
                     const int N, const int dtype) {
    const int bytes = block_bytes(dtype), ahead = bytes > 176 ? 1024 : 2048; /* measured */
    const uint8_t *p[ROWS];
    V sum[FEW];
    EACH (int t = 0; t < N; t++) sum[t] = vzero();
    EACH (int i = 0; i < ROWS; i++) {
        const int row = r + i * gap < last ? r + i * gap : last;
        p[i] = (const uint8_t *)w->data + (size_t)row * w->stride;
    }
    int c = 0;
    for (; c + BLOCK <= w->cols; c += BLOCK, x += N) {
        EACH (int i = 0; i < ROWS; i++)
            EACH (int line = 0; line < bytes; line += 64) _mm_prefetch((const char *)p[i] + ahead + line, _MM_HINT_T0);
        few_block(sum, p, PARTS, x, N, dtype);
        EACH (int i = 0; i < ROWS; i++) p[i] += bytes;
    }
    if (has_blocks(dtype) && c < w->cols) {
        uint8_t edge[ROWS][EDGE];
        copy_edge(edge, p, w->cols - c, dtype);
        few_block(sum, p, (w->cols - c) / 32, x, N, dtype);
    }
    EACH (int t = 0; t < N; t++) vstore(out[t], sum[t]);
}
typedef void (*few_fn)(float (*out)[ROWS], const struct mat *w, int r, int gap, int last, const struct int8_x *x);

/* --- Many tokens ------------------------------------------------------------------------------ */

/* Stores part k of a panel; v: its codes, a vector per row. */
INLINE void put_part(struct panel *to, const int k, __m256i v[ROWS]) {
    transpose_8(v);
    EACH (int j = 0; j < ROWS; j++) _mm256_store_si256((__m256i *)(void *)to->code[8 * k + j], v[j]);
}
/* Panels of rows [r, r + 8 n): 256 columns from c on. Prefetches `ahead` bytes further. */
INLINE void decode(struct panel *to, int n, const struct mat *w, int r, int last, int c, ptrdiff_t ahead,
                   const int dtype) {
    const int bytes = block_bytes(dtype);
    for (int i = 0; i < n; i++, to++) {
        const uint8_t *p[ROWS];
        uint8_t edge[ROWS][EDGE];
        for (int k = 0; k < ROWS; k++) {
            const int row = r + ROWS * i + k;
            p[k] =
                (const uint8_t *)w->data + (size_t)(row < last ? row : last) * w->stride + (size_t)(c / BLOCK * bytes);
            for (int line = 0; line < bytes; line += 64) _mm_prefetch((const char *)p[k] + ahead + line, _MM_HINT_T0);
        }
        if (has_blocks(dtype) && w->cols - c < BLOCK) copy_edge(edge, p, w->cols - c, dtype);
        load_scales(&to->s, p, dtype);
        EACH (int k = 0; k < PARTS; k++) {
            __m256i v[ROWS];
            EACH (int row = 0; row < ROWS; row++) v[row] = codes_of(p[row], k, dtype);
            put_part(to, k, v);
        }
    }
}
/* Does the same for formats that are unpacked to small integers first. */
typedef SMALL_CODES_FN((*small_fn));
INLINE void decode_small(struct panel *to, int n, const struct mat *w, int r, int last, int c, ptrdiff_t ahead,
                         const small_fn unpack, const int dtype) {
    const size_t bytes = dtype_bytes(dtype, BLOCK),
                 have = dtype_bytes(dtype, w->cols - c < BLOCK ? w->cols - c : BLOCK);
    for (int i = 0; i < n; i++, to++) {
        struct small_codes row[ROWS];
        for (int k = 0; k < ROWS; k++) {
            const int at = r + ROWS * i + k < last ? r + ROWS * i + k : last;
            const uint8_t *p = (const uint8_t *)w->data + (size_t)at * w->stride + (size_t)(c / BLOCK) * bytes;
            uint8_t edge[EDGE];
            for (size_t line = 0; line < bytes; line += 64) _mm_prefetch((const char *)p + ahead + line, _MM_HINT_T0);
            if (have < bytes) p = memcpy(memset(edge, 0, bytes), p, have);
            unpack(&row[k], p);
        }
        scales_small(&to->s, row, dtype);
        EACH (int k = 0; k < PARTS; k++) {
            __m256i v[ROWS];
            EACH (int j = 0; j < ROWS; j++)
                v[j] = _mm256_add_epi8(load_v(row[j].code + 32 * k), _mm256_set1_epi8((char)bias_of(dtype)));
            put_part(to, k, v);
        }
    }
}
/* Does the same for codes with scales beside them; they are stored like a block format's. */
INLINE void decode_beside(struct panel *to, int n, const struct mat *w, int r, int last, int c, ptrdiff_t ahead,
                          const int dtype, const bool blocks) {
    const int bytes = beside_bytes(BLOCK, dtype, blocks);
    const int parts = w->cols - c < BLOCK ? (w->cols - c) / 32 : PARTS;
    for (int i = 0; i < n; i++, to++) {
        const uint8_t *p[ROWS];
        for (int k = 0; k < ROWS; k++) {
            const int row = r + ROWS * i + k < last ? r + ROWS * i + k : last;
            p[k] = (const uint8_t *)w->data + (size_t)row * w->stride + (size_t)(c / BLOCK * bytes);
            for (int line = 0; line < bytes; line += 64) _mm_prefetch((const char *)p[k] + ahead + line, _MM_HINT_T0);
            if (has_halves(dtype)) scales_halves(&to->s, k, w, p[k], row, c, parts, blocks);
            else scales_beside(&to->s, k, w, row, c, parts, dtype);
        }
        for (int k = 0; k < PARTS; k++) {
            __m256i v[ROWS];
            EACH (int row = 0; row < ROWS; row++)
                v[row] = k < parts ? beside_codes(p[row], k, dtype, blocks) : _mm256_setzero_si256();
            put_part(to, k, v);
        }
    }
}
typedef void (*panels_fn)(struct panel *to, int n, const struct mat *w, int r, int last, int c, ptrdiff_t ahead);

INLINE __m256i four_columns(const struct int8_x *x, int c) {
    int four;
    memcpy(&four, x->q + c, sizeof four);
    return _mm256_set1_epi32(four);
}
/* Adds the products of `parts` parts of two panels and T tokens to y[token * ld + row]. */
INLINE void tile(float *y, int ld, const struct panel *w, int parts, const struct int8_x *x, const int T,
                 const int dtype) {
    const int most = has_two(dtype) || has_halves(dtype) ? 4 : 8, fit = pairs_that_fit(dtype),
              step = fit && fit < most ? fit : most;
    for (int k = 0; k < parts; k++) {
        __m256i dot[2][TOKENS];
        V halves[2][TOKENS];
        EACH (int from = 0; from < 8; from += step) {
            __m256i sum[2][TOKENS];
            EACH (int i = 0; i < 2; i++)
                EACH (int t = 0; t < T; t++) sum[i][t] = _mm256_setzero_si256();
            EACH (int c = from; c < from + step; c++) {
                const __m256i codes[2] = {load_v(w[0].code[8 * k + c]), load_v(w[1].code[8 * k + c])};
                EACH (int t = 0; t < T; t++) {
                    const __m256i v = four_columns(x + t, 32 * k + 4 * c);
                    EACH (int i = 0; i < 2; i++) {
                        if (!fit) sum[i][t] = add_fours(sum[i][t], codes[i], v);
                        else sum[i][t] = _mm256_add_epi16(sum[i][t], _mm256_maddubs_epi16(codes[i], v));
                        /* else compilers add up in another order, and keep all products in memory */
                        __asm__("" : "+x"(sum[i][t]));
                    }
                }
            }
            EACH (int i = 0; i < 2; i++) {
                const __m256i each = has_two(dtype) ? load_v(w[i].s.each[k][from / 4]) : _mm256_set1_epi16(1);
                EACH (int t = 0; t < T; t++) {
                    const __m256i a = fit              ? _mm256_madd_epi16(sum[i][t], each)
                                      : has_two(dtype) ? _mm256_mullo_epi32(sum[i][t], _mm256_srai_epi32(each, 16))
                                                       : sum[i][t];
                    if (has_halves(dtype)) {
                        const V half = half_part(a, &w[i].s, k, from, x + t, dtype);
                        halves[i][t] = from ? vadd(halves[i][t], half) : half;
                    } else dot[i][t] = from ? _mm256_add_epi32(dot[i][t], a) : a;
                }
            }
        }
        EACH (int i = 0; i < 2; i++)
            EACH (int t = 0; t < T; t++) {
                float *to = y + t * ld + ROWS * i;
                vstore(to, has_halves(dtype) ? vfma(halves[i][t], vset1(x[t].scale[k]), vload(to))
                                             : add_part(vload(to), dot[i][t], &w[i].s, k, x + t, dtype));
            }
    }
}
/* n tokens and STRIP panels. */
INLINE void products(float *y, const struct panel *w, int panels, int parts, const struct int8_x *x, int n,
                     const int dtype) {
    enum { LD = STRIP * ROWS };
    for (int t = 0, m; t < n; t += m, x += m) {
        const int left = n - t, tiles = (left + TOKENS - 1) / TOKENS;
        m = (left + tiles - 1) / tiles; /* six as 3 + 3 */
        for (int i = 0; i < panels; i += 2) {
            float *to = y + t * LD + ROWS * i;
            switch (m) {
            case 1: tile(to, LD, w + i, parts, x, 1, dtype); break;
            case 2: tile(to, LD, w + i, parts, x, 2, dtype); break;
            case 3: tile(to, LD, w + i, parts, x, 3, dtype); break;
            default: tile(to, LD, w + i, parts, x, TOKENS, dtype);
            }
        }
    }
}
typedef void (*products_fn)(float *y, const struct panel *w, int panels, int parts, const struct int8_x *x, int n);

/* --- Formats ---------------------------------------------------------------------------------- */

struct format {
    few_fn few[FEW]; /* NULL: as many tokens */
    panels_fn decode;
    products_fn products;
    int least; /* tokens from which this is faster than the GEMV kernels, if those may be used instead: measured */
};
enum { LEAST = 8 };
#define FUNCTIONS(name) \
    static void few_1_##name(float(*out)[ROWS], const struct mat *w, int r, int gap, int last, \
                             const struct int8_x *x) { \
        few_rows(out, w, r, gap, last, x, 1, FORMAT_DTYPE(name)); \
    } \
    static void few_2_##name(float(*out)[ROWS], const struct mat *w, int r, int gap, int last, \
                             const struct int8_x *x) { \
        few_rows(out, w, r, gap, last, x, 2, FORMAT_DTYPE(name)); \
    } \
    static void few_3_##name(float(*out)[ROWS], const struct mat *w, int r, int gap, int last, \
                             const struct int8_x *x) { \
        few_rows(out, w, r, gap, last, x, 3, FORMAT_DTYPE(name)); \
    } \
    static void decode_##name(struct panel *to, int n, const struct mat *w, int r, int last, int c, ptrdiff_t ahead) { \
        decode(to, n, w, r, last, c, ahead, FORMAT_DTYPE(name)); \
    }
#define PRODUCTS(name) \
    static void products_##name(float *y, const struct panel *w, int panels, int parts, const struct int8_x *x, \
                                int n) { \
        products(y, w, panels, parts, x, n, FORMAT_DTYPE(name)); \
    }
FORMATS_INT8_AVX2(FUNCTIONS)
FORMATS_INT8_AVX2(PRODUCTS)
PRODUCTS(nvfp4)
PRODUCTS(iq1_s)  /* all formats in FORMATS_SMALL_15 use these */
PRODUCTS(iq2_xs) /* and FORMATS_SMALL_62 these */
#define SMALL(name) \
    static void decode_##name(struct panel *to, int n, const struct mat *w, int r, int last, int c, ptrdiff_t ahead) { \
        decode_small(to, n, w, r, last, c, ahead, small_codes_##name, FORMAT_DTYPE(name)); \
    }
FORMATS_SMALL_15(SMALL)
FORMATS_SMALL_62(SMALL)
#define BESIDE(kind, name, blocks) \
    static void decode_##kind##_##name(struct panel *to, int n, const struct mat *w, int r, int last, int c, \
                                       ptrdiff_t ahead) { \
        decode_beside(to, n, w, r, last, c, ahead, FORMAT_DTYPE(name), blocks); \
    }
BESIDE(beside, q4_0, false)
BESIDE(beside, q4_1, false)
BESIDE(beside, q8_0, false)
BESIDE(beside, mxfp4, false)
BESIDE(beside, nvfp4, false)
BESIDE(blocks, nvfp4, true)
static const struct format *format_for(const struct mat *w) {
#define ROW(name) \
    [FORMAT_DTYPE(name)] = {{few_1_##name, few_2_##name, few_3_##name}, decode_##name, products_##name, 1},
#define ROW_15(name) [FORMAT_DTYPE(name)] = {{NULL}, decode_##name, products_iq1_s, LEAST},
#define ROW_62(name) [FORMAT_DTYPE(name)] = {{NULL}, decode_##name, products_iq2_xs, LEAST},
    static const struct format all[DT_COUNT] = {FORMATS_INT8_AVX2(ROW) FORMATS_SMALL_15(ROW_15)
                                                    FORMATS_SMALL_62(ROW_62)};
#undef ROW_62
#undef ROW_15
#undef ROW
#define ROW(name) [FORMAT_DTYPE(name)] = { {NULL}, decode_beside_##name, products_##name, LEAST }
    static const struct format beside[DT_COUNT + 1] = {ROW(q4_0), ROW(q4_1), ROW(q8_0), ROW(mxfp4), ROW(nvfp4)};
#undef ROW
    static const struct format blocks = {{NULL}, decode_blocks_nvfp4, products_nvfp4, LEAST};
    if (w->dtype == DT_NVFP4 && (!w->scale || w->block_cols >= w->cols)) return &blocks;
    const struct format *f = w->scale ? &beside[same_codes(w)] : &all[w->dtype];
    return f->decode ? f : NULL;
}

struct scratch {
    struct panel w[STRIP];
    float sum[CHUNK][STRIP * ROWS];
};
static size_t scratch_bytes(int n, int k) { return sizeof(struct scratch); }
/* `have` <= ROWS rows, each `gap` further than the one before. */
static void few(const struct format *f, const struct mat *w, int r, int gap, int have, const void *packed, int n,
                float *y, int ldy, bool accumulate) {
    float out[FEW][ROWS] __attribute__((aligned(32)));
    f->few[n - 1](out, w, r, gap, r + (have - 1) * gap, packed);
    for (int t = 0; t < n; t++)
        for (int i = 0; i < have; i++) {
            float *to = y + (size_t)t * (size_t)ldy + r + i * gap;
            *to = accumulate ? *to + out[t][i] : out[t][i];
        }
}
static void rows(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate,
                 void *scratch) {
    const struct format *f = format_for(w);
    const int each = blocks(w->cols), chunks = (n + CHUNK - 1) / CHUNK;
    if (n <= FEW && f->few[0]) {
        const int gap = (r1 - r0) / ROWS, ends = r0 + gap * ROWS;
        for (int r = r0; r < r0 + gap; r++) few(f, w, r, gap, ROWS, packed, n, y, ldy, accumulate);
        if (ends < r1) few(f, w, ends, 1, r1 - ends, packed, n, y, ldy, accumulate);
        return;
    }
    struct scratch *s = scratch;
    for (int chunk = 0; chunk < chunks; chunk++) {
        const int i0 = (int)((int64_t)n * chunk / chunks), m = (int)((int64_t)n * (chunk + 1) / chunks) - i0;
        for (int r = r0; r < r1; r += STRIP * ROWS) {
            const int have = r1 - r < STRIP * ROWS ? r1 - r : STRIP * ROWS,
                      panels = (have + PANEL_ROWS - 1) / PANEL_ROWS * (PANEL_ROWS / ROWS);
            memset(s->sum, 0, (size_t)m * sizeof *s->sum);
            for (int b = 0; b < each; b++) {
                const size_t at = dtype_bytes(w->dtype, (size_t)b * BLOCK), bytes = dtype_bytes(w->dtype, BLOCK);
                const ptrdiff_t ahead =
                    b + 1 < each ? (ptrdiff_t)bytes : (ptrdiff_t)(w->stride * STRIP * ROWS) - (ptrdiff_t)at;
                const int parts = w->cols - b * BLOCK < BLOCK ? (w->cols - b * BLOCK) / 32 : PARTS;
                f->decode(s->w, panels, w, r, r1 - 1, b * BLOCK, ahead);
                f->products(s->sum[0], s->w, panels, parts,
                            (const struct int8_x *)packed + (size_t)b * (size_t)n + (size_t)i0, m);
            }
            gemm_store_sums(y + (size_t)i0 * (size_t)ldy + r, ldy, s->sum[0], STRIP * ROWS, m, have, accumulate);
        }
    }
}
static bool takes(const struct mat *w, int n) {
    const struct format *f = format_for(w);
    return f && n >= f->least;
}

#define NAME_(name) #name
#define NAME(name)  NAME_(name)
const struct gemm FORMAT_JOIN(gemm_int8_, ISA) = {.name = NAME(FORMAT_JOIN(int8_, ISA)),
                                                  .is_int8 = true,
                                                  .row_tile = STRIP * ROWS,
                                                  .packed_bytes = packed_bytes,
                                                  .pack = pack,
                                                  .scratch_bytes = scratch_bytes,
                                                  .rows = rows,
                                                  .supports = takes};

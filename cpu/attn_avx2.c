/* Attention tiles over BF16 and E4M3 planes with AVX2: keys and values are widened between the products, and queries
 * and probabilities stay float32.
 *
 * Computes scores transposed: a vector holds two consecutive elements of each of 4 queries, and two elements of a key
 * are multiplied with all of these at once. So the order of a score's sum is fixed, independent of the others. Packed
 * queries (qk16_pack): group of 4, pair of dimensions, query; zero past dim. */
#include <immintrin.h>
#include <string.h>

#include "cpu/kernels.h"

#define INLINE static inline __attribute__((always_inline))
#define EACH   _Pragma("GCC unroll 8") for

enum {
    GROUP = 4,
    LINE = 32 /* elements per cache line */,
    MAX_TILE = 64,
    SOON = 8 /* keys between a prefetch of values and their use */
};

static int pairs_of(int dim) { return (dim + LINE - 1) / LINE * (LINE / 2); }

static QK16_PACK_FN(pack) {
    const int pairs = pairs_of(dim);
    /* a double has the size of a pair */
    double *to = (double *)(void *)out + (ptrdiff_t)(row / GROUP * pairs) * GROUP + row % GROUP;
    (void)split;
    for (int i = 0; i < pairs; i += 4) {
        float part[8] = {0};
        const int left = dim - 2 * i;
        if (left < 8 && left > 0) memcpy(part, q + 2 * i, (size_t)left * 4);
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(left < 8 ? part : q + 2 * i), _mm256_set1_ps(scale));
        const __m128d lo = _mm_castps_pd(_mm256_castps256_ps128(v)), hi = _mm_castps_pd(_mm256_extractf128_ps(v, 1));
        double *at = to + i * GROUP;
        _mm_storel_pd(at, lo), _mm_storeh_pd(at + GROUP, lo), _mm_storel_pd(at + 2 * GROUP, hi),
            _mm_storeh_pd(at + 3 * GROUP, hi);
    }
}

/* Prefetches the next row. Prefetches of a whole tile at once would exceed the core's fill buffers and be dropped. */
INLINE void prefetch_row(struct ahead *a) {
    if (a->rows <= 0) return;
    for (int c = 0; c < a->each; c += 64) _mm_prefetch((const char *)a->next + c, _MM_HINT_T1);
    a->next += a->stride, a->rows--;
}

/* The next pair of K keys, or only its first half. */
INLINE void qk_step(__m256 sum[2][8], const float *q, ptrdiff_t ldq, const uint16_t *k, ptrdiff_t ldk, const bool half,
                    const int G, const int K) {
    const __m256i widen = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 0, 1, -1, -1,
                                           2, 3, -1, -1, 0, 1, -1, -1, 2, 3);
    __m256 qv[2];
    EACH (int g = 0; g < G; g++) qv[g] = _mm256_loadu_ps(q + g * ldq);
    EACH (int j = 0; j < K; j++) {
        int pair = 0;
        memcpy(&pair, k + j * ldk, half ? 2 : 4);
        const __m256 kv = _mm256_castsi256_ps(_mm256_shuffle_epi8(_mm256_set1_epi32(pair), widen));
        EACH (int g = 0; g < G; g++) sum[g][j] = _mm256_fmadd_ps(qv[g], kv, sum[g][j]);
    }
}
/* Scores of 4 queries with 4 keys. */
INLINE void transpose_scores(float *s, int lds, const __m256 *sum, int nq) {
    const __m256 a = _mm256_hadd_ps(sum[0], sum[1]), b = _mm256_hadd_ps(sum[2], sum[3]);
    const __m256 even = _mm256_shuffle_ps(a, b, 0x88), odd = _mm256_shuffle_ps(a, b, 0xdd);
    _mm_storeu_ps(s, _mm256_castps256_ps128(even));
    if (nq > 1) _mm_storeu_ps(s + lds, _mm256_castps256_ps128(odd));
    if (nq > 2) _mm_storeu_ps(s + 2 * (ptrdiff_t)lds, _mm256_extractf128_ps(even, 1));
    if (nq > 3) _mm_storeu_ps(s + 3 * (ptrdiff_t)lds, _mm256_extractf128_ps(odd, 1));
}
/* G groups of queries, nq in all, by K keys: 4 or 8, or 1 whose scores are contiguous in s. */
INLINE void qk_block(float *s, int lds, const float *q, int nq, const uint16_t *k, int ldk, int dim, struct ahead *a,
                     const int G, const int K) {
    const ptrdiff_t ldq = (ptrdiff_t)pairs_of(dim) * 8, one = ldk;
    __m256 sum[2][8];
    int asked = 0, d = 0;
    EACH (int g = 0; g < G; g++)
        EACH (int j = 0; j < K; j++) sum[g][j] = _mm256_setzero_ps();
    for (int line = 0; line < dim; line += LINE) { /* the hardware prefetcher does not predict the next key's lines */
        const uint16_t *soon = line + LINE < dim ? k + LINE : k - line + K * one;
        const int end = line + LINE < dim ? line + LINE : dim;
        for (; asked * dim < end * K; asked++) prefetch_row(a);
        EACH (int j = 0; j < K; j++) _mm_prefetch((const char *)(soon + j * one), _MM_HINT_T0);
        for (; d + 2 <= end; d += 2, q += 8, k += 2) qk_step(sum, q, ldq, k, one, false, G, K);
    }
    if (d < dim) qk_step(sum, q, ldq, k, one, true, G, K);
    EACH (int g = 0; g < G; g++) {
        float *to = s + g * GROUP * (ptrdiff_t)lds;
        const int n = nq - g * GROUP < GROUP ? nq - g * GROUP : GROUP;
        if (K >= 4) transpose_scores(to, lds, sum[g], n);
        if (K >= 8) transpose_scores(to + 4, lds, sum[g] + 4, n);
        if (K >= 4) continue;
        float pairs[8];
        _mm256_storeu_ps(pairs, sum[g][0]);
        for (int i = 0; i < n; i++) to[i * (ptrdiff_t)lds] = pairs[2 * i] + pairs[2 * i + 1];
    }
}
INLINE void qk_keys(float *s, int lds, const float *q, int nq, const uint16_t *k, int ldk, int nk, int dim,
                    struct ahead *a, const int G) {
    const ptrdiff_t one = ldk;
    int j = 0;
    for (; G == 1 && j + 8 <= nk; j += 8) qk_block(s + j, lds, q, nq, k + j * one, ldk, dim, a, G, 8);
    for (; j + 4 <= nk; j += 4) qk_block(s + j, lds, q, nq, k + j * one, ldk, dim, a, G, 4);
    for (; j < nk; j++) qk_block(s + j, lds, q, nq, k + j * one, ldk, dim, a, G, 1);
}
static QK16_FN(qk) {
    struct ahead a = *ahead;
    const float *at = (const float *)(const void *)q;
    const ptrdiff_t ldq = (ptrdiff_t)pairs_of(dim) * 8;
    (void)split;
    for (int j = 0; j < nk; j += 16) { /* keys shared by several groups stay in L1 */
        const int n = nk - j < 16 ? nk - j : 16;
        const uint16_t *keys = k + j * (ptrdiff_t)ldk;
        int i = 0;
        for (; nq - i > GROUP; i += 2 * GROUP)
            qk_keys(s + i * (ptrdiff_t)lds + j, lds, at + i / GROUP * ldq, nq - i, keys, ldk, n, dim, &a, 2);
        if (i < nq) qk_keys(s + i * (ptrdiff_t)lds + j, lds, at + i / GROUP * ldq, nq - i, keys, ldk, n, dim, &a, 1);
    }
}

/* Q queries by 16 dimensions: even and odd dimensions have separate sums. */
INLINE void pv_block(float *o, int ldo, const float *corr, const float *p, int ldp, const uint16_t *v, int ldv, int nk,
                     struct ahead *a, const int Q) {
    const __m256i high = _mm256_set1_epi32((int)0xffff0000);
    const ptrdiff_t one = ldv;
    __m256 even[4], odd[4];
    EACH (int i = 0; i < Q; i++) {
        const float *at = o + i * (ptrdiff_t)ldo;
        const __m256 x = _mm256_loadu_ps(at), y = _mm256_loadu_ps(at + 8), c = _mm256_set1_ps(corr[i]);
        const __m256 lo = _mm256_mul_ps(_mm256_permute2f128_ps(x, y, 0x20), c),
                     hi = _mm256_mul_ps(_mm256_permute2f128_ps(x, y, 0x31), c);
        even[i] = _mm256_shuffle_ps(lo, hi, 0x88), odd[i] = _mm256_shuffle_ps(lo, hi, 0xdd);
    }
    for (int j = 0; j < nk; j++, v += one) {
        if (j % 8 == 0) prefetch_row(a);
        _mm_prefetch((const char *)(v + SOON * one), _MM_HINT_T0);
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)v);
        const __m256 e = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
                     f = _mm256_castsi256_ps(_mm256_and_si256(x, high));
        EACH (int i = 0; i < Q; i++) {
            const __m256 w = _mm256_set1_ps(p[i * ldp + j]);
            even[i] = _mm256_fmadd_ps(w, e, even[i]), odd[i] = _mm256_fmadd_ps(w, f, odd[i]);
        }
    }
    EACH (int i = 0; i < Q; i++) {
        float *at = o + i * (ptrdiff_t)ldo;
        const __m256 lo = _mm256_unpacklo_ps(even[i], odd[i]), hi = _mm256_unpackhi_ps(even[i], odd[i]);
        _mm256_storeu_ps(at, _mm256_permute2f128_ps(lo, hi, 0x20));
        _mm256_storeu_ps(at + 8, _mm256_permute2f128_ps(lo, hi, 0x31));
    }
}
INLINE void pv_rows(float *o, int ldo, const float *corr, const float *p, int ldp, const uint16_t *v, int ldv, int nk,
                    int dim, struct ahead *a, const int Q) {
    int d = 0;
    for (; d + 16 <= dim; d += 16) pv_block(o + d, ldo, corr, p, ldp, v + d, ldv, nk, a, Q);
    const size_t left = (size_t)(dim - d);
    if (!left) return;
    uint16_t rows[(MAX_TILE + SOON) * 16] = {0};
    float sums[4 * 16] = {0};
    for (int j = 0; j < nk; j++) memcpy(rows + j * 16, v + d + j * (ptrdiff_t)ldv, left * 2);
    for (int i = 0; i < Q; i++) memcpy(sums + i * 16, o + i * (ptrdiff_t)ldo + d, left * 4);
    pv_block(sums, 16, corr, p, ldp, rows, 16, nk, a, Q);
    for (int i = 0; i < Q; i++) memcpy(o + i * (ptrdiff_t)ldo + d, sums + i * 16, left * 4);
}
static PV16_FN(pv) {
    struct ahead a = *ahead;
    int i = 0;
    (void)split;
    for (; i + 4 <= nq; i += 4)
        pv_rows(o + i * (ptrdiff_t)ldo, ldo, corr + i, p + i * (ptrdiff_t)ldp, ldp, v, ldv, nk, dim, &a, 4);
    for (; i < nq; i++)
        pv_rows(o + i * (ptrdiff_t)ldo, ldo, corr + i, p + i * (ptrdiff_t)ldp, ldp, v, ldv, nk, dim, &a, 1);
}

/* 16 codes. The BF16 of codes 0 to 7, which are 2^-9 times the code, comes from a table: lower bytes, then upper
 * ones. */
INLINE __m256i bf16_of(__m128i codes) {
    const __m128i tiny =
        _mm_setr_epi8(0, 0, (char)0x80, (char)0xc0, 0, 0x20, 0x40, 0x60, 0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c);
    const __m256i all = _mm256_set1_epi16(0x7f), code = _mm256_cvtepu8_epi16(codes),
                  magnitude = _mm256_and_si256(code, all);
    const __m256i at =
        _mm256_or_si256(magnitude, _mm256_slli_epi16(_mm256_or_si256(magnitude, _mm256_set1_epi16(8)), 8));
    __m256i v = _mm256_add_epi16(_mm256_slli_epi16(magnitude, 4), _mm256_set1_epi16((127 - 7) << 7));
    v = _mm256_blendv_epi8(v, _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(tiny), at),
                           _mm256_cmpgt_epi16(_mm256_set1_epi16(8), magnitude));
    v = _mm256_blendv_epi8(v, _mm256_set1_epi16(0x7fc0), _mm256_cmpeq_epi16(magnitude, all)); /* NaN */
    return _mm256_or_si256(v, _mm256_slli_epi16(_mm256_andnot_si256(all, code), 8));
}
static WIDEN16_FN(widen) {
    for (; rows-- > 0; out += n, in += stride) {
        int i = 0;
        for (; i + 16 <= n; i += 16)
            _mm256_storeu_si256((__m256i *)(void *)(out + i),
                                bf16_of(_mm_loadu_si128((const __m128i *)(const void *)(in + i))));
        if (i == n) continue;
        uint8_t codes[16] = {0};
        uint16_t numbers[16];
        memcpy(codes, in + i, (size_t)(n - i));
        _mm256_storeu_si256((__m256i *)(void *)numbers, bf16_of(_mm_loadu_si128((const __m128i *)(const void *)codes)));
        memcpy(out + i, numbers, (size_t)(n - i) * 2);
    }
}

void attn_avx2(struct kernels *k) {
    k->qk16_pack = pack;
    k->qk16 = qk;
    k->pv16 = pv;
    k->widen16 = widen;
    k->qk16_is_exact = true;
}

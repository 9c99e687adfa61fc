/* Attention tiles over BF16 keys and values in place, with vdpbf16ps: no widening, and twice the products per
 * instruction. Queries and probabilities are BF16 too: the sum of two BF16 where S is 2 (error 2^-17, for decode), else
 * rounded (for prefill, whose matrix products round activations in the same way).
 *
 * Computes scores transposed: a vector holds four consecutive elements of each of 8 queries (if split, of 4 queries and
 * their remainders), and four elements of a key are multiplied with all of these at once. So little is summed across
 * lanes, keys are read in place, and the order of a score's sum is fixed, independent of the others. Packed queries
 * (qk16_pack): group, four dimensions, plane, query; zero past dim. */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe */
#include <immintrin.h>
#endif
#include <math.h>
#include <string.h>

#include "cpu/e4m3_bf16.h"
#include "cpu/kernels.h"
#include "cpu/transpose16.h"

#define INLINE static inline __attribute__((always_inline))
#define EACH   _Pragma("GCC unroll 16") for

enum {
    LANES = 32,
    MAX_TILE = 64,
    SIDE = 16 /* keys, and lanes, transposed at once */,
    SOON = 8 /* keys between a prefetch of values and their use */
};

INLINE __m512i load(const uint16_t *p, int n) {
    return n >= LANES ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), p);
}
INLINE __m512 dot(__m512 sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

/* 16 floats as BF16, rounded to nearest even, and the remainders. */
INLINE __m256i head_of(__m512 v) { return (__m256i)_mm512_cvtneps_pbh(v); }
INLINE __m512 rest_of(__m512 v, __m256i head) {
    return _mm512_sub_ps(v, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(head), 16)));
}

enum { FOUR = 4 };
static int fours_of(int dim) { return (dim + LANES - 1) / LANES * (LANES / FOUR); }

static QK16_PACK_FN(pack) {
    const int fours = fours_of(dim), group = split ? 4 : 8;
    uint64_t *to = (uint64_t *)(void *)out + (ptrdiff_t)(row / group * fours) * 8 + row % group;
    for (int i = 0; i < fours; i += 4) {
        const int left = dim - i * FOUR;
        const __mmask16 m = (__mmask16)(left >= 16 ? 0xffff : left > 0 ? (1 << left) - 1 : 0);
        uint64_t head[4], rest[4];
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, q + i * FOUR), _mm512_set1_ps(scale));
        __m256i h = head_of(v);
        _mm256_storeu_si256((__m256i *)(void *)head, h);
        EACH (int j = 0; j < 4; j++) to[(i + j) * 8] = head[j];
        if (!split) continue;
        _mm256_storeu_si256((__m256i *)(void *)rest, head_of(rest_of(v, h)));
        EACH (int j = 0; j < 4; j++) to[(i + j) * 8 + group] = rest[j];
    }
}

/* Prefetches the next row. Prefetches of a whole tile at once would exceed the core's fill buffers and be dropped. */
INLINE void prefetch_row(struct ahead *a) {
    if (a->rows <= 0) return;
    for (int c = 0; c < a->each; c += 64) _mm_prefetch((const char *)a->next + c, _MM_HINT_T1);
    a->next += a->stride, a->rows--;
}

INLINE __m512i fours(const uint16_t *p, const int n) {
    long long v = 0;
    memcpy(&v, p, (size_t)n * 2);
    return _mm512_set1_epi64(v);
}
/* The next n elements, at most four, of K keys. Prefetches their lines, which the hardware does not predict. */
INLINE void qk_step(__m512 sum[2][SIDE], const uint64_t *q, ptrdiff_t ldq, const uint16_t *const *at, ptrdiff_t ldk,
                    const int n, const int G, const int K) {
    __m512i qv[2];
    EACH (int g = 0; g < G; g++) qv[g] = _mm512_loadu_si512(q + g * ldq);
    EACH (int j = 0; j < K; j++) {
        const __m512i kv = fours(at[j / 4] + j % 4 * ldk, n);
        EACH (int g = 0; g < G; g++) sum[g][j] = dot(sum[g][j], qv[g], kv);
    }
}
/* G groups of queries by K keys, ldk elements apart; out[group][key][lane]. */
INLINE void qk_block(float *out, const uint64_t *q, const uint16_t *k, int ldk, int dim, struct ahead *a, const int G,
                     const int K) {
    const ptrdiff_t ldq = (ptrdiff_t)fours_of(dim) * 8, one = ldk;
    const uint16_t *at[4] = {k, k + 4 * one, k + 8 * one, k + 12 * one};
    __m512 sum[2][SIDE];
    int asked = 0, i = 0;
    EACH (int g = 0; g < G; g++)
        EACH (int j = 0; j < K; j++) sum[g][j] = _mm512_setzero_ps();
    for (int d = 0; d < dim; d += LANES) {
        const uint16_t *soon = d + LANES < dim ? k + d + LANES : k + K * one;
        const int end = d + LANES < dim ? d + LANES : dim;
        for (; asked * dim < end * K; asked++) prefetch_row(a);
        for (; i + FOUR <= end; i += FOUR, q += 8, soon += K / 8 * one) {
            if (K >= 8) _mm_prefetch((const char *)soon, _MM_HINT_T0);
            if (K >= 16) _mm_prefetch((const char *)(soon + one), _MM_HINT_T0);
            qk_step(sum, q, ldq, at, one, FOUR, G, K);
            EACH (int j = 0; j < 4; j++) at[j] += FOUR;
        }
    }
    if (dim - i == 1) qk_step(sum, q, ldq, at, one, 1, G, K);
    if (dim - i == 2) qk_step(sum, q, ldq, at, one, 2, G, K);
    if (dim - i == 3) qk_step(sum, q, ldq, at, one, 3, G, K);
    EACH (int g = 0; g < G; g++)
        EACH (int j = 0; j < K; j++) _mm512_storeu_ps(out + (g * SIDE + j) * SIDE, sum[g][j]);
}
INLINE void qk_keys(float *out, const uint64_t *q, const uint16_t *k, int ldk, int n, int dim, struct ahead *a,
                    const int G) {
    const int K = SIDE / G;
    int j = 0;
    for (; j + K <= n; j += K) qk_block(out + j * SIDE, q, k + j * (ptrdiff_t)ldk, ldk, dim, a, G, K);
    for (; j + 4 <= n; j += 4) qk_block(out + j * SIDE, q, k + j * (ptrdiff_t)ldk, ldk, dim, a, G, 4);
    for (; j < n; j++) qk_block(out + j * SIDE, q, k + j * (ptrdiff_t)ldk, ldk, dim, a, G, 1);
}
/* Scores of a group's first nq queries with 16 keys, of which nk exist. */
INLINE void transpose_scores(float *s, int lds, const float *sums, int nq, int nk, const bool split) {
    const __mmask16 m = (__mmask16)((1u << nk) - 1);
    __m512i a[SIDE];
    __m512 v[8];
    EACH (int j = 0; j < SIDE; j++) a[j] = _mm512_loadu_si512(sums + j * SIDE);
    transpose16(a);
    EACH (int i = 0; i < 8; i++) v[i] = _mm512_add_ps(_mm512_castsi512_ps(a[2 * i]), _mm512_castsi512_ps(a[2 * i + 1]));
    EACH (int i = 0; i < 8; i++)
        if (i < nq && i < (split ? 4 : 8))
            _mm512_mask_storeu_ps(s + (ptrdiff_t)i * lds, m, split ? _mm512_add_ps(v[i], v[(i + 4) % 8]) : v[i]);
}
INLINE void qk_all(float *s, int lds, const uint64_t *q, int nq, const uint16_t *k, int ldk, int nk, int dim,
                   struct ahead *a, const bool split) {
    const int group = split ? 4 : 8, groups = (nq + group - 1) / group;
    const ptrdiff_t ldq = (ptrdiff_t)fours_of(dim) * 8;
    float sums[2 * SIDE * SIDE];
    for (int j = 0; j < nk; j += SIDE) {
        const int n = nk - j < SIDE ? nk - j : SIDE;
        const uint16_t *at = k + j * (ptrdiff_t)ldk;
        for (int g = 0; g < groups; g += 2) {
            const int two = groups - g > 1;
            if (two) qk_keys(sums, q + g * ldq, at, ldk, n, dim, a, 2);
            else qk_keys(sums, q + g * ldq, at, ldk, n, dim, a, 1);
            for (int i = 0; i <= two; i++)
                transpose_scores(s + (ptrdiff_t)((g + i) * group) * lds + j, lds, sums + i * SIDE * SIDE,
                                 nq - (g + i) * group, n, split);
        }
    }
}
static QK16_FN(qk) {
    struct ahead a = *ahead;
    if (split) qk_all(s, lds, (const uint64_t *)(const void *)q, nq, k, ldk, nk, dim, &a, true);
    else qk_all(s, lds, (const uint64_t *)(const void *)q, nq, k, ldk, nk, dim, &a, false);
}

/* Two keys at a time: their values interleaved, and their probabilities as a pair. Interleaving works within 128 bits,
 * so of 32 dimensions one sum holds 0-3, 8-11, 16-19, 24-27 and the other the rest. */
static const uint32_t first_half[16] = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
static const uint32_t join_low[16] = {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23};

/* The values of two keys, or one, with their probabilities. */
INLINE void pv_step(__m512 sum[8][2][2], const uint32_t *p, int ldp, const uint16_t *v, const uint16_t *next, int dim,
                    const int Q, const int D, const int S) {
    __m512i pair[2][2];
    EACH (int d = 0; d < D; d++) {
        __m512i u = load(v + d * 32, dim - d * 32),
                b = next ? load(next + d * 32, dim - d * 32) : _mm512_setzero_si512();
        pair[d][0] = _mm512_unpacklo_epi16(u, b);
        pair[d][1] = _mm512_unpackhi_epi16(u, b);
    }
    EACH (int s = 0; s < S; s++)
        EACH (int i = 0; i < Q; i++) {
            const __m512i w = _mm512_set1_epi32((int)p[i * ldp + s * (MAX_TILE / 2)]);
            EACH (int d = 0; d < D; d++) {
                sum[i][d][0] = dot(sum[i][d][0], w, pair[d][0]);
                sum[i][d][1] = dot(sum[i][d][1], w, pair[d][1]);
            }
        }
}
/* Q queries by D times 32 dimensions; p: pairs of BF16, one plane after the other. */
INLINE void pv_block(float *o, int ldo, const float *corr, const uint32_t *p, int ldp, const uint16_t *v, int ldv,
                     int nk, int dim, struct ahead *a, const int Q, const int D, const int S) {
    const __m512i lo = _mm512_loadu_si512(first_half), hi = _mm512_add_epi32(lo, _mm512_set1_epi32(4)),
                  back = _mm512_loadu_si512(join_low), back_hi = _mm512_add_epi32(back, _mm512_set1_epi32(8));
    __m512 sum[8][2][2];
    EACH (int i = 0; i < Q; i++)
        EACH (int d = 0; d < D; d++) {
            const int left = dim - d * 32;
            const float *at = o + (size_t)i * (size_t)ldo + d * 32;
            __m512 u = _mm512_maskz_loadu_ps((__mmask16)(left >= 16 ? 0xffff : (1 << left) - 1), at);
            __m512 b = left > 16
                           ? _mm512_maskz_loadu_ps((__mmask16)(left >= 32 ? 0xffff : (1 << (left - 16)) - 1), at + 16)
                           : _mm512_setzero_ps();
            __m512 c = _mm512_set1_ps(corr[i]);
            sum[i][d][0] = _mm512_mul_ps(_mm512_permutex2var_ps(u, lo, b), c);
            sum[i][d][1] = _mm512_mul_ps(_mm512_permutex2var_ps(u, hi, b), c);
        }
    int j = 0;
    for (; j + 2 <= nk; j += 2, v += 2 * (ptrdiff_t)ldv) {
        if (j % 4 == 0) prefetch_row(a);
        EACH (int i = 0; i < 2; i++)
            EACH (int d = 0; d < D; d++)
                _mm_prefetch((const char *)(v + (SOON + i) * (ptrdiff_t)ldv + d * 32), _MM_HINT_T0);
        pv_step(sum, p + j / 2, ldp, v, v + ldv, dim, Q, D, S);
    }
    if (j < nk) pv_step(sum, p + j / 2, ldp, v, NULL, dim, Q, D, S);
    EACH (int i = 0; i < Q; i++)
        EACH (int d = 0; d < D; d++) {
            const int left = dim - d * 32;
            float *at = o + (size_t)i * (size_t)ldo + d * 32;
            _mm512_mask_storeu_ps(at, (__mmask16)(left >= 16 ? 0xffff : (1 << left) - 1),
                                  _mm512_permutex2var_ps(sum[i][d][0], back, sum[i][d][1]));
            if (left > 16)
                _mm512_mask_storeu_ps(at + 16, (__mmask16)(left >= 32 ? 0xffff : (1 << (left - 16)) - 1),
                                      _mm512_permutex2var_ps(sum[i][d][0], back_hi, sum[i][d][1]));
        }
}
INLINE void pv_rows(float *o, int ldo, const float *corr, const uint32_t *p, int ldp, const uint16_t *v, int ldv,
                    int nk, int dim, struct ahead *a, const int Q, const int S) {
    int d = 0;
    for (; Q < 8 && d + 64 <= dim; d += 64) pv_block(o + d, ldo, corr, p, ldp, v + d, ldv, nk, 64, a, Q, 2, S);
    for (; d + 32 <= dim; d += 32) pv_block(o + d, ldo, corr, p, ldp, v + d, ldv, nk, 32, a, Q, 1, S);
    if (d < dim) pv_block(o + d, ldo, corr, p, ldp, v + d, ldv, nk, dim - d, a, Q, 1, S);
}
INLINE void pv_all(float *o, int ldo, const float *corr, const float *p, int ldp, int nq, const uint16_t *v, int ldv,
                   int nk, int dim, struct ahead *a, const int S) {
    uint16_t pairs[8 * 2][MAX_TILE]; /* query i, plane s: i * S + s */
    for (int i0 = 0; i0 < nq; i0 += 8) {
        const int n = nq - i0 < 8 ? nq - i0 : 8, ld = S * MAX_TILE / 2;
        for (int i = 0; i < n; i++)
            for (int j = 0; j < MAX_TILE; j += 16) {
                const int left = nk - j;
                __m512 x = _mm512_maskz_loadu_ps((__mmask16)(left >= 16 ? 0xffff
                                                             : left > 0 ? (1 << left) - 1
                                                                        : 0),
                                                 p + (size_t)(i0 + i) * (size_t)ldp + j);
                __m256i head = head_of(x);
                _mm256_storeu_si256((__m256i *)(void *)&pairs[i * S][j], head);
                if (S == 2) _mm256_storeu_si256((__m256i *)(void *)&pairs[i * S + S - 1][j], head_of(rest_of(x, head)));
            }
        const uint32_t *at = (const uint32_t *)(const void *)pairs;
        float *to = o + (size_t)i0 * (size_t)ldo;
        int i = 0;
        if (n == 8) pv_rows(to, ldo, corr + i0, at, ld, v, ldv, nk, dim, a, 8, S), i = 8;
        for (; i + 4 <= n; i += 4)
            pv_rows(to + (ptrdiff_t)i * ldo, ldo, corr + i0 + i, at + i * ld, ld, v, ldv, nk, dim, a, 4, S);
        for (; i < n; i++)
            pv_rows(to + (ptrdiff_t)i * ldo, ldo, corr + i0 + i, at + i * ld, ld, v, ldv, nk, dim, a, 1, S);
    }
}
static PV16_FN(pv) {
    struct ahead a = *ahead;
    if (split) pv_all(o, ldo, corr, p, ldp, nq, v, ldv, nk, dim, &a, 2);
    else pv_all(o, ldo, corr, p, ldp, nq, v, ldv, nk, dim, &a, 1);
}

void kernels_avx512bf16(struct kernels *k) {
    k->qk16_pack = pack;
    k->qk16 = qk;
    k->pv16 = pv;
    k->widen16 = e4m3_bf16_rows;
}

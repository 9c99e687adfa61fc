/* Attention tiles over BF16 keys and values as they lie in the cache, with vdpbf16ps: no widening, and twice the products
 * an instruction. Queries and probabilities are BF16 too: as a number and the BF16 of what it leaves over where S is 2
 * (2^-17 of each, for decode), else rounded (for prefill, whose matrix products round activations in the same way).
 *
 * Packed queries (qk16_pack): row i has S planes of `width` numbers (dim rounded up to 32, zero past dim), times scale. */
#ifndef HEARTH_SIMDE /* test/kcheck puts SIMDe in its place */
#include <immintrin.h>
#endif
#include <math.h>
#include <string.h>

#include "cpu/kernels.h"

#define INLINE static inline __attribute__((always_inline))
#define EACH   _Pragma("GCC unroll 16") for

enum { LANES = 32, MAX_TILE = 64 };

INLINE __m512i load(const uint16_t *p, int n) { return n >= LANES ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), p); }
INLINE __m512 dot(__m512 sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

/* 16 floats as BF16, rounded to nearest even, and what is left. */
INLINE __m256i head_of(__m512 v) { return (__m256i)_mm512_cvtneps_pbh(v); }
INLINE __m512 rest_of(__m512 v, __m256i head) { return _mm512_sub_ps(v, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(head), 16))); }

static QK16_PACK_FN(pack) {
    const int width = (dim + LANES - 1) / LANES * LANES;
    out += (size_t)row * (size_t)width * (split ? 2 : 1);
    for (int d = 0; d < width; d += 16) {
        const int left = dim - d;
        const __mmask16 m = (__mmask16)(left >= 16 ? 0xffff : left > 0 ? (1 << left) - 1 : 0);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, q + d), _mm512_set1_ps(scale));
        __m256i head = head_of(v);
        _mm256_storeu_si256((__m256i *)(void *)(out + d), head);
        if (split) _mm256_storeu_si256((__m256i *)(void *)(out + width + d), head_of(rest_of(v, head)));
    }
}

/* The next row of what is asked for. A whole tile at once would be dropped: a core remembers only so many. */
INLINE void ask(struct ahead *a) {
    if (a->rows <= 0) return;
    for (int c = 0; c < a->each; c += 64) _mm_prefetch((const char *)a->next + c, _MM_HINT_T1);
    a->next += a->stride, a->rows--;
}

/* Sums of four vectors, side by side. */
INLINE __m128 sums(__m512 a, __m512 b, __m512 c, __m512 d) {
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)), cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
    __m512 v = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

/* Q queries by K keys; the sums of four keys end side by side. */
INLINE void qk_block(float *s, int lds, const uint16_t *q, int ldq, const uint16_t *k, int ldk, int dim, const int Q, const int K, const int S) {
    const int width = (dim + LANES - 1) / LANES * LANES;
    __m512 sum[4][4];
    EACH (int i = 0; i < 4; i++)
        EACH (int j = 0; j < 4; j++) sum[i][j] = _mm512_setzero_ps();
    for (int d = 0; d < dim; d += LANES) {
        __m512i kv[4];
        EACH (int j = 0; j < K; j++) kv[j] = load(k + (size_t)j * (size_t)ldk + d, dim - d);
        EACH (int i = 0; i < Q; i++)
            EACH (int p = 0; p < S; p++) {
                __m512i qv = _mm512_loadu_si512(q + (size_t)i * (size_t)ldq + p * width + d);
                EACH (int j = 0; j < K; j++) sum[i][j] = dot(sum[i][j], qv, kv[j]);
            }
    }
    EACH (int i = 0; i < Q; i++) {
        __m128 v = sums(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
        if (K == 4) _mm_storeu_ps(s + i * lds, v);
        else _mm_mask_storeu_ps(s + i * lds, (__mmask8)((1 << K) - 1), v);
    }
}
INLINE void qk_rows(float *s, int lds, const uint16_t *q, int ldq, const uint16_t *k, int ldk, int nk, int dim, struct ahead *a, const int Q, const int S) {
    int j = 0;
    for (; j + 4 <= nk; j += 4) {
        const uint16_t *at = k + (size_t)j * (size_t)ldk;
        ask(a);
        ask(a);
        qk_block(s + j, lds, q, ldq, at, ldk, dim, Q, 4, S);
    }
    for (; j < nk; j++) qk_block(s + j, lds, q, ldq, k + (size_t)j * (size_t)ldk, ldk, dim, Q, 1, S);
}
INLINE void qk_all(float *s, int lds, const uint16_t *q, int nq, const uint16_t *k, int ldk, int nk, int dim, struct ahead *a, const int S) {
    const int ldq = (dim + LANES - 1) / LANES * LANES * S;
    int i = 0;
    for (; i + 4 <= nq; i += 4) qk_rows(s + i * lds, lds, q + (size_t)i * (size_t)ldq, ldq, k, ldk, nk, dim, a, 4, S);
    for (; i < nq; i++) qk_rows(s + i * lds, lds, q + (size_t)i * (size_t)ldq, ldq, k, ldk, nk, dim, a, 1, S);
}
static QK16_FN(qk) {
    struct ahead a = *ahead;
    if (split) qk_all(s, lds, q, nq, k, ldk, nk, dim, &a, 2);
    else qk_all(s, lds, q, nq, k, ldk, nk, dim, &a, 1);
}

/* Two keys at a time: their values interleaved, and their probabilities as a pair. Interleaving works on 128 bits at a time,
 * so of 32 dimensions one sum holds 0-3, 8-11, 16-19, 24-27 and the other the rest. */
static const uint32_t first_half[16] = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
static const uint32_t join_low[16] = {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23};

/* Q queries by D times 32 dimensions; p: pairs of BF16, plane after plane. */
INLINE void pv_block(float *o, int ldo, const float *corr, const uint32_t *p, int ldp, const uint16_t *v, int ldv, int nk, int dim, struct ahead *a,
                     const int Q, const int D, const int S) {
    const __m512i lo = _mm512_loadu_si512(first_half), hi = _mm512_add_epi32(lo, _mm512_set1_epi32(4)), back = _mm512_loadu_si512(join_low),
                  back_hi = _mm512_add_epi32(back, _mm512_set1_epi32(8));
    __m512 sum[4][2][2];
    EACH (int i = 0; i < Q; i++)
        EACH (int d = 0; d < D; d++) {
            const int left = dim - d * 32;
            const float *at = o + (size_t)i * (size_t)ldo + d * 32;
            __m512 u = _mm512_maskz_loadu_ps((__mmask16)(left >= 16 ? 0xffff : (1 << left) - 1), at);
            __m512 b = left > 16 ? _mm512_maskz_loadu_ps((__mmask16)(left >= 32 ? 0xffff : (1 << (left - 16)) - 1), at + 16) : _mm512_setzero_ps();
            __m512 c = _mm512_set1_ps(corr[i]);
            sum[i][d][0] = _mm512_mul_ps(_mm512_permutex2var_ps(u, lo, b), c);
            sum[i][d][1] = _mm512_mul_ps(_mm512_permutex2var_ps(u, hi, b), c);
        }
    for (int j = 0; j < nk; j += 2) {
        const uint16_t *row = v + (size_t)j * (size_t)ldv;
        if (j % 4 == 0) ask(a);
        __m512i pair[2][2];
        EACH (int d = 0; d < D; d++) {
            __m512i u = load(row + d * 32, dim - d * 32), b = j + 1 < nk ? load(row + ldv + d * 32, dim - d * 32) : _mm512_setzero_si512();
            pair[d][0] = _mm512_unpacklo_epi16(u, b);
            pair[d][1] = _mm512_unpackhi_epi16(u, b);
        }
        EACH (int i = 0; i < Q; i++)
            EACH (int s = 0; s < S; s++) {
                __m512i w = _mm512_set1_epi32((int)p[i * ldp + s * (MAX_TILE / 2) + j / 2]);
                EACH (int d = 0; d < D; d++) {
                    sum[i][d][0] = dot(sum[i][d][0], w, pair[d][0]);
                    sum[i][d][1] = dot(sum[i][d][1], w, pair[d][1]);
                }
            }
    }
    EACH (int i = 0; i < Q; i++)
        EACH (int d = 0; d < D; d++) {
            const int left = dim - d * 32;
            float *at = o + (size_t)i * (size_t)ldo + d * 32;
            _mm512_mask_storeu_ps(at, (__mmask16)(left >= 16 ? 0xffff : (1 << left) - 1), _mm512_permutex2var_ps(sum[i][d][0], back, sum[i][d][1]));
            if (left > 16)
                _mm512_mask_storeu_ps(at + 16, (__mmask16)(left >= 32 ? 0xffff : (1 << (left - 16)) - 1),
                                      _mm512_permutex2var_ps(sum[i][d][0], back_hi, sum[i][d][1]));
        }
}
INLINE void pv_rows(float *o, int ldo, const float *corr, const uint32_t *p, int ldp, const uint16_t *v, int ldv, int nk, int dim, struct ahead *a, const int Q,
                    const int S) {
    int d = 0;
    for (; d + 64 <= dim; d += 64) pv_block(o + d, ldo, corr, p, ldp, v + d, ldv, nk, 64, a, Q, 2, S);
    for (; d < dim; d += 32) pv_block(o + d, ldo, corr, p, ldp, v + d, ldv, nk, dim - d < 32 ? dim - d : 32, a, Q, 1, S);
}
INLINE void pv_all(float *o, int ldo, const float *corr, const float *p, int ldp, int nq, const uint16_t *v, int ldv, int nk, int dim, struct ahead *a,
                   const int S) {
    uint16_t pairs[4 * 2][MAX_TILE]; /* query i, plane s: i * S + s */
    for (int i0 = 0; i0 < nq; i0 += 4) {
        const int n = nq - i0 < 4 ? nq - i0 : 4;
        for (int i = 0; i < n; i++)
            for (int j = 0; j < MAX_TILE; j += 16) {
                const int left = nk - j;
                __m512 x = _mm512_maskz_loadu_ps((__mmask16)(left >= 16 ? 0xffff : left > 0 ? (1 << left) - 1 : 0), p + (size_t)(i0 + i) * (size_t)ldp + j);
                __m256i head = head_of(x);
                _mm256_storeu_si256((__m256i *)(void *)&pairs[i * S][j], head);
                if (S == 2) _mm256_storeu_si256((__m256i *)(void *)&pairs[i * S + S - 1][j], head_of(rest_of(x, head)));
            }
        const uint32_t *at = (const uint32_t *)(const void *)pairs;
        float *to = o + (size_t)i0 * (size_t)ldo;
        if (n == 4) pv_rows(to, ldo, corr + i0, at, S * MAX_TILE / 2, v, ldv, nk, dim, a, 4, S);
        else
            for (int i = 0; i < n; i++)
                pv_rows(to + (size_t)i * (size_t)ldo, ldo, corr + i0 + i, at + i * S * MAX_TILE / 2, S * MAX_TILE / 2, v, ldv, nk, dim, a, 1, S);
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
}

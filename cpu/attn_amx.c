/* Attention tiles over BF16 keys and values in AMX. Queries are the sum of two BF16, because their rounding would
 * change an exponent; probabilities too if split, while in prefill they are rounded to BF16, like activations in matrix
 * products.
 *
 * Computes scores transposed, S^T = K Q^T, so that keys in their stored order are the first operand; queries were
 * packed as the second at the start of the block (qk16_pack): per 16 queries, tiles [dim / 32][2] of 16 column pairs by
 * 16 queries. Then O = P V, with the values of two keys interleaved into pairs first. Partial tiles are padded with
 * zeros in local buffers. The order of an output's sum is fixed, independent of the other rows. */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe */
#include <immintrin.h>
#endif
#include <string.h>

#include "cpu/amx_tiles.h"
#include "cpu/e4m3_bf16.h"
#include "cpu/kernels.h"
#include "cpu/transpose16.h"

enum {
    SIDE = 16, /* rows and columns of a tile of sums */
    DEEP = 32, /* columns of K, or keys, per product */
    TILE = SIDE * DEEP,
    KEYS = 256,
    ROWS = 128, /* maximum */
    WIDE = ATTN_AMX_DIM
};

static int up(int n, int unit) { return (n + unit - 1) / unit; }
static __mmask16 first16(int n) { return (__mmask16)(n >= 16 ? 0xffff : n > 0 ? (1u << n) - 1 : 0); }
static __mmask32 first32(int n) { return n >= 32 ? 0xffffffffu : n > 0 ? (1u << n) - 1 : 0; }

/* Prefetches the next rows; the CPU would drop prefetches of a whole tile at once. */
static void prefetch_rows(struct ahead *a, int rows) {
    for (; rows-- && a->rows > 0; a->next += a->stride, a->rows--)
        for (int c = 0; c < a->each; c += 64) _mm_prefetch((const char *)a->next + c, _MM_HINT_T1);
}

static QK16_PACK_FN(pack) {
    const int steps = up(dim, DEEP);
    uint32_t *to = (uint32_t *)(void *)out + (size_t)(row / SIDE * steps) * TILE + row % SIDE;
    for (int d = 0; d < steps * DEEP; d += 16) {
        uint32_t pairs[2][8];
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(first16(dim - d), q + d), _mm512_set1_ps(scale));
        __m256i head = (__m256i)_mm512_cvtneps_pbh(v);
        __m512 rest = _mm512_sub_ps(v, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(head), 16)));
        _mm256_storeu_si256((__m256i *)(void *)pairs[0], head);
        _mm256_storeu_si256((__m256i *)(void *)pairs[1], (__m256i)_mm512_cvtneps_pbh(rest));
        for (int i = 0; i < 8; i++) {
            uint32_t *at = to + (size_t)(d / DEEP) * TILE + (d % DEEP / 2 + i) * SIDE;
            at[0] = pairs[0][i], at[TILE / 2] = pairs[1][i];
        }
    }
}

/* Transposes a tile of sums by key to s[query][key]. */
static void store_transposed(float *s, int lds, const float *sums, int nq, int nk) {
    __m512i a[SIDE];
    for (int i = 0; i < SIDE; i++) a[i] = _mm512_loadu_si512(sums + i * SIDE);
    transpose16(a);
    for (int i = 0; i < SIDE; i++)
        if (i < nq) _mm512_mask_storeu_epi32(s + (size_t)i * (size_t)lds, first16(nk), a[i]);
}

/* Two groups of 16 keys (or one) by two groups of queries. */
static void scores(float *sums, const uint16_t *k, int ldk, const uint16_t *q, int steps, bool keys2, bool queries2,
                   struct ahead *a, int rows) {
    const size_t next = (size_t)steps * 2 * TILE;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int d = 0; d < 2 * steps; d++) {
        if (d % 2 == 0) {
            _tile_loadd(4, k + d / 2 * DEEP, (size_t)ldk * 2);
            if (keys2) _tile_loadd(5, k + (size_t)SIDE * (size_t)ldk + d / 2 * DEEP, (size_t)ldk * 2);
        }
        prefetch_rows(a, rows);
        _tile_loadd(6, q + (size_t)d * TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (keys2) _tile_dpbf16ps(2, 5, 6);
        if (!queries2) continue;
        _tile_loadd(7, q + next + (size_t)d * TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
        if (keys2) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    if (queries2) _tile_stored(1, sums + SIDE * SIDE, 64);
    if (keys2) _tile_stored(2, sums + 2 * SIDE * SIDE, 64);
    if (keys2 && queries2) _tile_stored(3, sums + 3 * SIDE * SIDE, 64);
}
static QK16_FN(qk) {
    uint16_t padded[2 * SIDE * WIDE] __attribute__((aligned(64))); /* keys that do not fill tiles */
    float sums[4 * SIDE * SIDE] __attribute__((aligned(64)));
    const int steps = up(dim, DEEP), width = steps * DEEP;
    struct ahead a = *ahead;
    tiles_configure(16);
    for (int j = 0; j < nk; j += 2 * SIDE) {
        const int n = nk - j < 2 * SIDE ? nk - j : 2 * SIDE, groups = up(n, SIDE);
        const uint16_t *at = k + (size_t)j * (size_t)ldk;
        int ld = ldk;
        if (n % SIDE || dim % DEEP) {
            for (int i = 0; i < groups * SIDE; i++)
                for (int d = 0; d < width; d += 32)
                    _mm512_store_si512(
                        padded + i * width + d,
                        i < n ? _mm512_maskz_loadu_epi16(first32(dim - d), at + (size_t)i * (size_t)ldk + d)
                              : _mm512_setzero_si512());
            at = padded, ld = width;
        }
        for (int i = 0; i < nq; i += 2 * SIDE) {
            scores(sums, at, ld, q + (size_t)(i / SIDE * steps) * 2 * TILE, steps, groups > 1, nq - i > SIDE, &a,
                   up(n, up(nq, 2 * SIDE) * 2 * steps));
            for (int g = 0; g < groups; g++)
                for (int h = 0; h < 2 && i + h * SIDE < nq; h++)
                    store_transposed(s + (size_t)(i + h * SIDE) * (size_t)lds + j + g * SIDE, lds,
                                     sums + (2 * g + h) * SIDE * SIDE, nq - i - h * SIDE, n - g * SIDE);
        }
    }
    _tile_release();
}

/* pairs[key / 2][column]: 32 columns of the values of two keys, interleaved; zero past the last key and past `cols`.
 * turns: calls per tile, which prefetch the next one evenly. */
static void interleave(uint32_t (*pairs)[2 * SIDE], const uint16_t *v, int ldv, int nk, int cols, struct ahead *a,
                       int turns) {
    const int every = turns > 2 ? turns : 2;
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const __mmask32 have = first32(cols);
    for (int j = 0; j < up(nk, DEEP) * DEEP; j += 2) {
        const uint16_t *at = v + (size_t)j * (size_t)ldv;
        if (j % every < 2) prefetch_rows(a, turns > 1 ? 1 : 2);
        __m512i u = _mm512_maskz_loadu_epi16(j < nk ? have : 0, at),
                w = _mm512_maskz_loadu_epi16(j + 1 < nk ? have : 0, at + ldv);
        u = _mm512_permutexvar_epi64(order, u), w = _mm512_permutexvar_epi64(order, w);
        _mm512_store_si512(pairs[j / 2], _mm512_unpacklo_epi16(u, w));
        _mm512_store_si512(pairs[j / 2] + SIDE, _mm512_unpackhi_epi16(u, w));
    }
}
/* to = from * corr (corr NULL: from) for the existing part of a tile of sums; the rest is zeroed if `whole`. */
static void rescale_tile(float *to, int ldt, const float *from, int ldf, const float *corr, int rows, int cols,
                         bool whole) {
    const __mmask16 m = first16(cols);
    for (int i = 0; i < SIDE; i++) {
        if (i >= rows && !whole) break;
        __m512 v = _mm512_maskz_loadu_ps(i < rows ? m : 0, from + (size_t)i * (size_t)ldf);
        if (corr && i < rows) v = _mm512_mul_ps(v, _mm512_set1_ps(corr[i]));
        _mm512_mask_storeu_ps(to + (size_t)i * (size_t)ldt, whole ? 0xffff : m, v);
    }
}
/* A tile of the output: in place, or in a local buffer if it is partial, until it is copied back. */
struct out_tile {
    float *at, own[SIDE * SIDE] __attribute__((aligned(64)));
    size_t bytes; /* row stride */
};
static void load_out_tile(struct out_tile *t, float *o, int ldo, const float *corr, int rows, int cols) {
    const bool whole = rows >= SIDE && cols >= SIDE;
    t->at = whole ? o : t->own, t->bytes = (size_t)(whole ? ldo : SIDE) * 4;
    if (!whole) {
        rescale_tile(t->own, SIDE, o, ldo, corr, rows < SIDE ? rows : SIDE, cols, true);
        return;
    }
    for (int i = 0; i < SIDE; i++)
        if (corr[i] != 1)
            rescale_tile(o + (size_t)i * (size_t)ldo, ldo, o + (size_t)i * (size_t)ldo, ldo, corr + i, 1, SIDE, false);
}
static void store_out_tile(const struct out_tile *t, float *o, int ldo, int rows, int cols) {
    if (t->at == t->own) rescale_tile(o, ldo, t->own, SIDE, NULL, rows < SIDE ? rows : SIDE, cols, false);
}
/* Probabilities as the first operand: [queries of two tiles][keys], zeros for missing queries and keys. rest: their
 * BF16 remainders. */
struct probs {
    uint16_t head[2 * SIDE][KEYS], rest[2 * SIDE][KEYS];
} __attribute__((aligned(64)));
static void probs_make(struct probs *t, const float *p, int ldp, int n, int nk, bool split) {
    for (int i = 0; i < (n > SIDE ? 2 * SIDE : SIDE); i++)
        for (int j = 0; j < up(nk, DEEP) * DEEP; j += 16) {
            const __m512 x =
                _mm512_maskz_loadu_ps(i < n ? first16(nk - j) : 0, p + (size_t)(i < n ? i : 0) * (size_t)ldp + j);
            const __m256i head = (__m256i)_mm512_cvtneps_pbh(x);
            _mm256_store_si256((__m256i *)(void *)&t->head[i][j], head);
            if (!split) continue;
            const __m512 rest =
                _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(head), 16)));
            _mm256_store_si256((__m256i *)(void *)&t->rest[i][j], (__m256i)_mm512_cvtneps_pbh(rest));
        }
}
/* Two column tiles by 16 queries, 0 and 1, or by 32 (also 2 and 3). Tiles 6 and 7 hold the values. */
static void pv_step(uint16_t (*p)[KEYS], int j, bool two) {
    _tile_loadd(4, &p[0][j * DEEP], KEYS * 2);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (!two) return;
    _tile_loadd(5, &p[SIDE][j * DEEP], KEYS * 2);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}
/* Up to 32 columns of the outputs of up to 32 queries. */
static void pv_tiles(float *o, int ldo, const float *corr, struct probs *probs, uint32_t (*pairs)[2 * SIDE], int n,
                     int cols, int steps, bool split) {
    const int places = n > SIDE ? 4 : 2;
    struct out_tile t[4];
    for (int g = 0; g < places; g++)
        load_out_tile(&t[g], o + (size_t)(g / 2 * SIDE) * (size_t)ldo + g % 2 * SIDE, ldo, corr + g / 2 * SIDE,
                      n - g / 2 * SIDE, cols - g % 2 * SIDE);
    _tile_loadd(0, t[0].at, t[0].bytes);
    _tile_loadd(1, t[1].at, t[1].bytes);
    if (places > 2) {
        _tile_loadd(2, t[2].at, t[2].bytes);
        _tile_loadd(3, t[3].at, t[3].bytes);
    }
    for (int j = 0; j < steps; j++) {
        _tile_loadd(6, pairs[j * (DEEP / 2)], sizeof *pairs);
        _tile_loadd(7, pairs[j * (DEEP / 2)] + SIDE, sizeof *pairs);
        pv_step(probs->head, j, places > 2);
        if (split) pv_step(probs->rest, j, places > 2);
    }
    _tile_stored(0, t[0].at, t[0].bytes);
    _tile_stored(1, t[1].at, t[1].bytes);
    if (places > 2) {
        _tile_stored(2, t[2].at, t[2].bytes);
        _tile_stored(3, t[3].at, t[3].bytes);
    }
    for (int g = 0; g < places; g++)
        store_out_tile(&t[g], o + (size_t)(g / 2 * SIDE) * (size_t)ldo + g % 2 * SIDE, ldo, n - g / 2 * SIDE,
                       cols - g % 2 * SIDE);
}
static PV16_FN(pv) {
    struct probs probs[ROWS / (2 * SIDE)];
    uint32_t pairs[KEYS / 2][2 * SIDE] __attribute__((aligned(64)));
    const int turns = up(dim, 2 * SIDE), steps = up(nk, DEEP);
    struct ahead a = *ahead;
    for (int i = 0; i < nq; i += 2 * SIDE)
        probs_make(&probs[i / (2 * SIDE)], p + (size_t)i * (size_t)ldp, ldp, nq - i < 2 * SIDE ? nq - i : 2 * SIDE, nk,
                   split);
    tiles_configure(16);
    for (int d = 0; d < dim; d += 2 * SIDE) {
        interleave(pairs, v + d, ldv, nk, dim - d, &a, turns);
        for (int i = 0; i < nq; i += 2 * SIDE)
            pv_tiles(o + (size_t)i * (size_t)ldo + d, ldo, corr + i, &probs[i / (2 * SIDE)], pairs,
                     nq - i < 2 * SIDE ? nq - i : 2 * SIDE, dim - d, steps, split);
    }
    _tile_release();
}

void kernels_amx(struct kernels *k) {
    k->qk16_pack = pack;
    k->qk16 = qk;
    k->pv16 = pv;
    k->widen16 = e4m3_bf16_rows;
    k->qk16_uses_tiles = true;
}

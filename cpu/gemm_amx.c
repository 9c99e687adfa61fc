/* Products of BF16 pairs in AMX tiles. The weights are the first operand: a tile takes 32 columns of 16 rows of W in the order in
 * which they lie, so only results are transposed. The tokens are the second one, 16 columns of a tile, packed once and rounded to BF16.
 *
 * Packed: tiles [columns / 16][k / 32] of 16 pairs of columns of W by 16 columns, zero past the last of either. Of each 64 columns of W
 * the first of two tiles has 0-7, 16-23, 32-39 and 48-55, the second the others: so bytes fall when they are unpacked.
 *
 * Sums of a segment (columns of W that share a scale, at most SPAN) stay in a tile and are then added, scaled, to those of the
 * row in memory.
 *
 * Formats with scales among the weights are decoded to BF16 (gemm_planes.c), rounded where it does not hold them: 2^-9 of a weight, as of an activation, where
 * the format itself keeps four to eight bits of it. `wide` products, on which choices hang, keep a BF16 number and the BF16 of what it leaves over: two
 * products, 2^-17 of the weight. So does everything else that is not exact in BF16. */
#include <immintrin.h>
#include <string.h>

#include "cpu/amx_tiles.h"
#include "cpu/gemm_inner.h"
#include "cpu/transpose16.h"
#include "engine/base/scale.h"

#define INLINE static inline __attribute__((always_inline))
#define EACH   _Pragma("GCC unroll 16") for

enum {
    SIDE = 16,                   /* rows and columns of a tile of sums */
    DEEP = 32,                   /* columns of W in a tile */
    TILE = SIDE * DEEP,          /* numbers of a packed tile */
    SPAN = 256,                  /* columns of W decoded at once */
    PITCH = SPAN * 2 + 64,       /* bytes from row to row of these: an odd number of lines, so that 16 fall into as many sets */
    STRIPS = 2,                  /* of 16 rows, decoded at once */
    ROWS = STRIPS * SIDE,        /* the same as rows */
    BLOCK = 256,                 /* rows of W that go through a span of the tokens together */
    COLUMNS = GEMM_CHUNK / SIDE, /* tiles of tokens at a time */
    FEW = 6,                     /* of these at most in a product of few */
    AHEAD = 1024,                /* bytes that prefetch runs ahead in a row, in a product of few; of PLANES twice as many */
    PLANES = DT_COUNT,           /* beside formats, where code is made for one: any that gemm_planes.c has */
    DECODED                      /* decoded before */
};

/* --- Activations --- */

static int up(int n, int unit) { return (n + unit - 1) / unit; }
static int depth(int k) { return up(k, 2 * DEEP) * 2; } /* in tiles */
static size_t packed_bytes(int n, int k) { return (size_t)up(n, SIDE) * (size_t)depth(k) * TILE * 2; }

/* x[0 .. 7] and x[16 .. 23], of which n exist. */
INLINE __m512 load16(const float *x, int n) {
    if (n >= 24) return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(x)), _mm256_loadu_ps(x + 16), 1);
    const unsigned have = n > 0 ? (1u << n) - 1 : 0;
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_maskz_loadu_ps((__mmask8)have, x)), _mm256_maskz_loadu_ps((__mmask8)(have >> 16), x + 16), 1);
}

/* What BF16 leaves over of a number; nothing of one that it has no end for. */
INLINE __m512 over(__m512 x) {
    const __m512 head = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)), 16));
    return _mm512_maskz_sub_ps((__mmask16)~_mm512_fpclass_ps_mask(head, 0x99), x, head);
}

/* The numbers, or with `rest` what their BF16 leaves over. */
INLINE void pack_plane(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts, const bool rest) {
    const int deep = depth(k);
    const int64_t tiles = (int64_t)up(n, SIDE) * deep;
    for (int64_t at = tiles * part / parts, end = tiles * (part + 1) / parts; at < end; at++) {
        const int token = (int)(at / deep) * SIDE, step = (int)(at % deep), c = step / 2 * 2 * DEEP + step % 2 * 8;
        uint16_t *to = (uint16_t *)dst + at * TILE;
        __m512i a[SIDE];
        EACH (int i = 0; i < SIDE; i++) {
            if (token + i >= n) {
                a[i] = _mm512_setzero_si512();
                continue;
            }
            const float *from = x + (size_t)(gather ? gather[token + i] : token + i) * (size_t)ldx + c;
            __m512 u = load16(from, k - c), v = load16(from + 32, k - c - 32);
            a[i] = (__m512i)(rest ? _mm512_cvtne2ps_pbh(over(v), over(u)) : _mm512_cvtne2ps_pbh(v, u));
        }
        transpose16(a);
        EACH (int i = 0; i < SIDE; i++) _mm512_store_si512(to + i * DEEP, a[i]);
    }
}

static void pack(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts) {
    pack_plane(dst, x, gather, ldx, n, k, part, parts, false);
}

/* --- Weights --- */

/* Columns that share a scale within a span, or 0: the format, or its blocks, do not allow scaling afterwards. */
static int segment(const struct mat *w) {
    if (w->dtype != DT_E4M3 && w->dtype != DT_BF16 && (w->dtype != DT_E2M1 || w->scale_dtype == DT_E8M0)) return 0;
    if (!w->scale || w->block_cols >= w->cols || w->block_cols % SPAN == 0) return SPAN;
    return w->block_cols % 64 == 0 && SPAN % w->block_cols == 0 ? w->block_cols : 0;
}

/* Whether it is decoded here. */
static bool plain(const struct mat *w) { return (w->dtype == DT_E4M3 || w->dtype == DT_BF16) && segment(w) > 0; }

INLINE __mmask64 first(int n) { return n >= 64 ? ~(__mmask64)0 : n > 0 ? ((__mmask64)1 << n) - 1 : 0; }

/* 64 codes to BF16. The exponent's upper bits are the code's top one and its complement, all others move, so each byte is an affine
 * function of the code; but subnormal codes and NaN are not, and few weights are. */
struct e4m3 {
    __m512i high, low, rare_high, rare_low;
};
/* The matrix of gf2p8affineqb whose row for bit b of the result is byte 7 - b. */
#define GF2(b7, b6, b5, b4, b3, b2, b1, b0) \
    (long long)((uint64_t)(b7) | (uint64_t)(b6) << 8 | (uint64_t)(b5) << 16 | (uint64_t)(b4) << 24 | (uint64_t)(b3) << 32 | (uint64_t)(b2) << 40 | \
                (uint64_t)(b1) << 48 | (uint64_t)(b0) << 56)
INLINE struct e4m3 e4m3_make(void) {
    /* By the code's low four bits: BF16 of 0 .. 7 times 2^-9, and of NaN. */
    const __m128i high = _mm_setr_epi8(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0, 0, 0, 0, 0, 0, 0, 0x7f);
    const __m128i low = _mm_setr_epi8(0, 0, (char)0x80, (char)0xc0, 0, 0x20, 0x40, 0x60, 0, 0, 0, 0, 0, 0, 0, (char)0xc0);
    return (struct e4m3){
        .high = _mm512_set1_epi64(GF2(0x80, 0x40, 0x40, 0x40, 0x40, 0x40, 0x20, 0x10)), /* then bits 2 to 5 turned over: 0x3c */
        .low = _mm512_set1_epi64(GF2(0x08, 0x04, 0x02, 0x01, 0, 0, 0, 0)),
        .rare_high = _mm512_broadcast_i32x4(high),
        .rare_low = _mm512_broadcast_i32x4(low),
    };
}
/* Twice the code, less 16: more than 0xed where the exponent is 0 and at NaN. */
INLINE __m512i e4m3_rare(__m512i code) { return _mm512_sub_epi8(_mm512_add_epi8(code, code), _mm512_set1_epi8(16)); }
INLINE __mmask64 e4m3_any(__m512i rare) { return _mm512_cmpgt_epu8_mask(rare, _mm512_set1_epi8((char)0xed)); }
INLINE void e4m3_store(uint16_t *to, __m512i low, __m512i high) {
    _mm512_store_si512(to, _mm512_unpacklo_epi8(low, high));
    _mm512_store_si512(to + 32, _mm512_unpackhi_epi8(low, high));
}
INLINE void e4m3_decode(const struct e4m3 *t, __m512i code, uint16_t *to) {
    e4m3_store(to, _mm512_gf2p8affine_epi64_epi8(code, t->low, 0), _mm512_gf2p8affine_epi64_epi8(code, t->high, 0x3c));
}
static __attribute__((noinline)) void e4m3_decode_rare(const struct e4m3 *t, const uint8_t *from, int n, uint16_t *to) {
    const __m512i code = n >= 64 ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi8(first(n), from);
    const __mmask64 rare = e4m3_any(e4m3_rare(code));
    const __m512i by = _mm512_and_si512(code, _mm512_set1_epi8(15)), sign = _mm512_and_si512(code, _mm512_set1_epi8((char)0x80));
    __m512i high = _mm512_gf2p8affine_epi64_epi8(code, t->high, 0x3c), low = _mm512_gf2p8affine_epi64_epi8(code, t->low, 0);
    high = _mm512_mask_mov_epi8(high, rare, _mm512_or_si512(sign, _mm512_shuffle_epi8(t->rare_high, by)));
    e4m3_store(to, _mm512_mask_shuffle_epi8(low, rare, t->rare_low, by), high);
}

struct job {
    const struct mat *w;
    int r0, r1;
    int seg; /* columns of a sum in tiles; 0: weights are split */
    int n, ldy;
    bool accumulate;
    bool split;              /* a product for what BF16 leaves over of the weights, too */
    struct gemm_planes make; /* of PLANES */
    int kind;                /* DT_E4M3, DT_BF16, PLANES or DECODED */
    size_t span;             /* bytes of SPAN columns */
    const uint16_t *x;       /* [column tiles][deep][TILE] */
    int deep;
    float *y;
    uint8_t *panel[2], *rest[2]; /* [ROWS] of PITCH bytes: what is multiplied and what comes next; rest: of a split */
    float *scales;               /* [SPAN / seg][ROWS] */
    float *sums;                 /* [strips of a block][column tiles][SIDE][SIDE] */
    float *out;                  /* [2][4][SIDE][SIDE] */
    float *turned;               /* [columns][SIDE] */
};

/* n columns of a row to BF16; ahead: bytes to those that will be decoded next. */
INLINE void row_e4m3(const struct e4m3 *t, uint16_t *to, const uint8_t *row, int n, ptrdiff_t ahead) {
    int c = 0;
    for (; c + 256 <= n; c += 256) {
        __m512i code[4], rare[4];
        EACH (int i = 0; i < 4; i++) {
            _mm_prefetch(row + c + 64 * i + ahead, _MM_HINT_T1);
            code[i] = _mm512_loadu_si512(row + c + 64 * i);
            rare[i] = e4m3_rare(code[i]);
        }
        const __mmask64 any = e4m3_any(_mm512_max_epu8(_mm512_max_epu8(rare[0], rare[1]), _mm512_max_epu8(rare[2], rare[3])));
        if (__builtin_expect(any != 0, 0))
            for (int i = 0; i < 4; i++) e4m3_decode_rare(t, row + c + 64 * i, 64, to + c + 64 * i);
        else
            EACH (int i = 0; i < 4; i++) e4m3_decode(t, code[i], to + c + 64 * i);
    }
    for (; c < n; c += 64) e4m3_decode_rare(t, row + c, n - c, to + c);
}
/* 64 numbers into the order of two tiles. */
INLINE void order(uint16_t *to, __m512i a, __m512i b) {
    _mm512_store_si512(to, _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13), b));
    _mm512_store_si512(to + 32, _mm512_permutex2var_epi64(a, _mm512_setr_epi64(2, 3, 6, 7, 10, 11, 14, 15), b));
}
INLINE void row_bf16(uint16_t *to, const uint8_t *row, int n, ptrdiff_t ahead) {
    for (int c = 0; c < n; c += 64, row += 128) {
        _mm_prefetch(row + ahead, _MM_HINT_T1);
        _mm_prefetch(row + ahead + 64, _MM_HINT_T1);
        if (n - c >= 64) order(to + c, _mm512_loadu_si512(row), _mm512_loadu_si512(row + 64));
        else
            order(to + c, _mm512_maskz_loadu_epi16((__mmask32)first(n - c < 32 ? n - c : 32), row),
                  _mm512_maskz_loadu_epi16((__mmask32)first(n - c - 32), row + 64));
    }
}
/* BF16 of 32 floats, and of what it leaves over. */
INLINE void split32(const float *from, __m512i *head, __m512i *rest) {
    __m512 u = _mm512_load_ps(from), v = _mm512_load_ps(from + 16);
    __m512i p = (__m512i)_mm512_cvtne2ps_pbh(v, u);
    __m512 pu = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(p)), 16));
    __m512 pv = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(p, 1)), 16));
    *head = p;
    *rest = (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(v, pv), _mm512_sub_ps(u, pu));
}
/* Any format, scaled unless sums are. False: nothing is left over, as with powers of two as scales of few bits. */
static bool fill_any(const struct job *j, const struct kernels *k, int r, int c0, int n) {
    float row[SPAN] __attribute__((aligned(64)));
    __m512i any = _mm512_setzero_si512();
    for (int i = 0; i < ROWS; i++) {
        const int at = r + i < j->r1 ? r + i : j->r1 - 1;
        if (j->seg) k->widen[j->w->dtype](row, (const uint8_t *)j->w->data + (size_t)at * j->w->stride + dtype_bytes(j->w->dtype, (size_t)c0), n);
        else k->decode[j->w->dtype](row, j->w, at, c0, c0 + n);
        if (n % 64) memset(row + n, 0, (size_t)(64 - n % 64) * sizeof(float));
        for (int c = 0; c < n; c += 64) {
            __m512i head[2], rest[2];
            split32(row + c, &head[0], &rest[0]);
            split32(row + c + 32, &head[1], &rest[1]);
            order((uint16_t *)(void *)(j->panel[0] + i * PITCH) + c, head[0], head[1]);
            order((uint16_t *)(void *)(j->rest[0] + i * PITCH) + c, rest[0], rest[1]);
            any = _mm512_or_si512(any, _mm512_or_si512(rest[0], rest[1]));
        }
    }
    return _mm512_test_epi32_mask(any, any) != 0;
}

/* --- Products --- */

/* sums (+)= scale * out, of one tile. */
INLINE void add(float *sums, const float *out, const float *scale, bool more) {
    if (more)
        EACH (int i = 0; i < SIDE; i++)
            _mm512_store_ps(sums + i * SIDE, _mm512_fmadd_ps(_mm512_load_ps(out + i * SIDE), _mm512_set1_ps(scale[i]), _mm512_load_ps(sums + i * SIDE)));
    else
        EACH (int i = 0; i < SIDE; i++) _mm512_store_ps(sums + i * SIDE, _mm512_mul_ps(_mm512_load_ps(out + i * SIDE), _mm512_set1_ps(scale[i])));
}

/* --- Results --- */

/* Sums of a strip, rows r .. r + rows of W, by column tiles [t0, t1), to y. */
static void put(const struct job *j, int r, int rows, int t0, int t1, const float *sums) {
    const __mmask16 have = (__mmask16)(rows >= SIDE ? 0xffff : (1 << rows) - 1);
    for (int t = t0; t < t1; t++, sums += SIDE * SIDE) {
        __m512i a[SIDE];
        EACH (int i = 0; i < SIDE; i++) a[i] = _mm512_load_si512(sums + i * SIDE);
        transpose16(a);
        EACH (int i = 0; i < SIDE; i++) _mm512_store_si512(j->turned + ((t - t0) * SIDE + i) * SIDE, a[i]);
    }
    for (int i = t0 * SIDE; i < t1 * SIDE && i < j->n; i++) {
        __m512 sum = _mm512_load_ps(j->turned + (i - t0 * SIDE) * SIDE);
        float *y = j->y + (size_t)i * (size_t)j->ldy + r;
        if (j->accumulate) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(have, y));
        _mm512_mask_storeu_ps(y, have, sum);
    }
}

/* --- Weights between products: while a step of them is under way in the tile unit, some rows of what comes next are decoded, so that
 * neither reading nor the tile unit ever stops --- */

struct unit {
    const uint8_t *data; /* its first row at its first column */
    int r, c0, n;        /* rows from r on, columns [c0, c0 + n) */
};
INLINE struct unit unit_at(const struct job *j, int r, int c0) {
    const int n = j->w->cols - c0 < SPAN ? j->w->cols - c0 : SPAN;
    return (struct unit){(const uint8_t *)j->w->data + (size_t)r * j->w->stride + (size_t)(c0 / SPAN) * j->span, r, c0, n};
}
/* Its rows [i, end) to BF16; ahead: bytes to what is asked for meanwhile. */
INLINE void unit_rows(const struct job *j, const struct e4m3 *t, const struct unit *u, uint8_t *panel, uint8_t *rest, int i, int end, ptrdiff_t ahead,
                      const int kind) {
    for (; i < end && u->r + i < j->r1; i++) {
        uint16_t *to = (uint16_t *)(void *)(panel + i * PITCH);
        const uint8_t *row = u->data + (size_t)i * j->w->stride;
        if (kind == PLANES) j->make.rows(to, rest ? (uint16_t *)(void *)(rest + i * PITCH) : NULL, j->w, u->r + i, u->c0, u->n, ahead);
        else if (kind == DT_BF16) row_bf16(to, row, u->n, ahead);
        else row_e4m3(t, to, row, u->n, ahead);
    }
}
/* Scales of a strip for a segment of columns; first: the number of each row's first one. */
INLINE void strip_scales(const struct mat *w, float *scale, const size_t *first, int c) {
    const size_t at = w->scale ? (size_t)(c / w->block_cols) : 0;
    if (first[0] == first[SIDE - 1]) _mm512_store_ps(scale, _mm512_set1_ps(scale_load(w, first[0] + at))); /* rows rise, so all are of one block */
    else
        for (int i = 0; i < SIDE; i++) scale[i] = scale_load(w, first[i] + at);
}

/* --- Few columns: all of them at once --- */

INLINE struct unit unit_next(const struct job *j, const struct unit *u) {
    return u->c0 + SPAN < j->w->cols ? unit_at(j, u->r, u->c0 + SPAN) : unit_at(j, u->r + SIDE, 0);
}
/* Tiles: sums 0 .. T - 1, weights 6, tokens 7. Their numbers must be constants. */
#define FEW_EACH(what) \
    do { \
        if (T > 0) what(0); \
        if (T > 1) what(1); \
        if (T > 2) what(2); \
        if (T > 3) what(3); \
        if (T > 4) what(4); \
        if (T > 5) what(5); \
    } while (0)
#define FEW_ZERO(t)  _tile_zero(t)
#define FEW_STORE(t) _tile_stored(t, j->out + t * SIDE * SIDE, 64)
#define FEW_ADD(t)   add(j->sums + t * SIDE * SIDE, j->out + t * SIDE * SIDE, scale, more)
#define FEW_STEP(t) \
    do { \
        _tile_loadd(7, b + (size_t)t * next, 64); \
        _tile_dpbf16ps(t, 6, 7); \
    } while (0)

INLINE void few(const struct job *j, int r0, const int T, const int kind) {
    enum { STEPS = SPAN / DEEP, EACH_STEP = SIDE / STEPS };
    const struct e4m3 codes = e4m3_make();
    const struct mat *w = j->w;
    const int seg = kind == PLANES ? SPAN : j->seg;
    const ptrdiff_t distance = kind == PLANES ? 2 * AHEAD : AHEAD, row = (ptrdiff_t)dtype_bytes(w->dtype, (size_t)w->cols);
    const size_t next = (size_t)j->deep * TILE;
    uint8_t *panel = j->panel[0], *other = j->panel[1];
    float scale[SIDE] __attribute__((aligned(64)));
    size_t scales[SIDE];
    bool pending = false, more = false; /* sums in j->out wait to be added, to others */
    struct unit u = unit_at(j, r0, 0);
    unit_rows(j, &codes, &u, panel, NULL, 0, SIDE, distance, kind);
    if (kind == PLANES) _mm512_store_ps(scale, _mm512_set1_ps(1));
    while (u.r < j->r1) {
        const struct unit v = unit_next(j, &u);
        const uint16_t *b = j->x + (size_t)(u.c0 / DEEP) * TILE;
        ptrdiff_t ahead = distance;
        if ((ptrdiff_t)((size_t)(v.c0 / SPAN) * j->span) + distance >= row) ahead += SIDE * (ptrdiff_t)w->stride - row;
        if (!u.c0)
            for (int i = 0; i < SIDE; i++) scales[i] = scale_row(w, u.r + i < j->r1 ? u.r + i : j->r1 - 1);
        for (int k = 0; k < STEPS; k++, b += TILE) {
            const int c = k * DEEP;
            unit_rows(j, &codes, &v, other, NULL, k * EACH_STEP, (k + 1) * EACH_STEP, ahead, kind);
            if (pending) FEW_EACH(FEW_ADD);
            pending = false;
            if (c / 64 * 64 >= u.n) continue;
            if (c % seg == 0) FEW_EACH(FEW_ZERO);
            _tile_loadd(6, panel + 2 * c, PITCH);
            FEW_EACH(FEW_STEP);
            if ((c + DEEP) % seg && c + DEEP < (u.n + 63) / 64 * 64) continue;
            FEW_EACH(FEW_STORE);
            pending = true;
            more = u.c0 + c >= seg;
            if (kind != PLANES) strip_scales(w, scale, scales, u.c0 + c - c % seg); /* the last step may lie past the last column */
        }
        if (v.r != u.r) { /* the strip is complete */
            if (pending) FEW_EACH(FEW_ADD);
            pending = false;
            put(j, u.r, j->r1 - u.r, 0, T, j->sums);
        }
        uint8_t *swap = panel;
        panel = other, other = swap, u = v;
    }
}

/* --- Many columns: two strips by two column tiles at a time --- */

/* Sums in j->out that wait to be added, those of tile `at` and on: strip at / 2, column tile at % 2. */
struct pending {
    float *sums;
    const float *scale; /* [ROWS] */
    size_t ld;
    int at, step; /* step 2: of one column tile */
    bool more;
};
INLINE void pending_one(const struct job *j, struct pending *p) {
    if (p->at >= 4) return;
    const int i = p->at;
    add(p->sums + (size_t)(i / 2) * p->ld + i % 2 * SIDE * SIDE, j->out + i * SIDE * SIDE, p->scale + i / 2 * SIDE, p->more);
    p->at += p->step;
}

/* A step along K: B column tiles from b on. Tiles 0-3: sums; 4, 5: weights; 6, 7: tokens. */
INLINE void many_step(const uint8_t *a, const uint16_t *b, size_t next, const int B) {
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a, PITCH);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, a + SIDE * PITCH, PITCH);
    _tile_dpbf16ps(2, 5, 6);
    if (B == 1) return;
    _tile_loadd(7, b + next, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
}
/* And of what is left over of the weights, with the same tokens. */
INLINE void many_step_rest(const uint8_t *rest, const int B) {
    _tile_loadd(4, rest, PITCH);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, rest + SIDE * PITCH, PITCH);
    _tile_dpbf16ps(2, 5, 6);
    if (B == 1) return;
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
}
struct many {
    const uint8_t *panel, *rest; /* rest: NULL, or what BF16 leaves over of the panel */
    struct unit u, v;            /* in the panel; to be decoded into `other` if its data is not NULL */
    uint8_t *other, *other_rest;
    ptrdiff_t ahead;
    int per, done; /* rows decoded a step; so far */
    struct e4m3 codes;
    struct pending p;
};
INLINE void many_decode(const struct job *j, struct many *m, int rows, const int kind) {
    if (m->done >= ROWS) return;
    const int end = m->done + rows < ROWS ? m->done + rows : ROWS;
    unit_rows(j, &m->codes, &m->v, m->other, m->other_rest, m->done, end, m->ahead, kind);
    m->done += rows;
}
INLINE void many_columns(const struct job *j, struct many *m, int t, float *sums, size_t ld, const int B, const int kind, const bool split) {
    const size_t next = (size_t)j->deep * TILE;
    const uint16_t *b = j->x + (size_t)t * next + (size_t)(m->u.c0 / DEEP) * TILE;
    const int seg = kind != PLANES && j->seg ? j->seg : SPAN;
    for (int c = 0; c < m->u.n; c += seg) {
        const int steps = depth(m->u.n - c < seg ? m->u.n - c : seg);
        _tile_zero(0);
        _tile_zero(2);
        if (B > 1) {
            _tile_zero(1);
            _tile_zero(3);
        }
        for (int k = 0; k < steps; k++) {
            const int at = 2 * c + 64 * k;
            if (kind != DECODED) many_decode(j, m, m->per, kind);
            pending_one(j, &m->p);
            if (steps < 4) pending_one(j, &m->p);
            many_step(m->panel + at, b + (size_t)(c / DEEP + k) * TILE, next, B);
            if (split) many_step_rest(m->rest + at, B);
        }
        _tile_stored(0, j->out, 64);
        _tile_stored(2, j->out + 2 * SIDE * SIDE, 64);
        if (B > 1) {
            _tile_stored(1, j->out + SIDE * SIDE, 64);
            _tile_stored(3, j->out + 3 * SIDE * SIDE, 64);
        }
        m->p = (struct pending){sums, j->scales + c / seg * ROWS, ld, 0, B > 1 ? 1 : 2, m->u.c0 + c > 0};
    }
}
/* The unit m->u by column tiles [t0, t1), and m->v decoded on the way (not where all came decoded). */
INLINE void many(const struct job *j, struct many *m, int t0, int t1, float *sums, size_t ld, const int kind, const bool split) {
    const int steps = (t1 - t0 + 1) / 2 * depth(m->u.n);
    m->per = up(ROWS, steps), m->done = m->v.data ? 0 : ROWS;
    m->p.at = 4;
    int t = t0;
    for (; t + 2 <= t1; t += 2) many_columns(j, m, t, sums + (t - t0) * SIDE * SIDE, ld, 2, kind, split);
    if (t < t1) many_columns(j, m, t, sums + (t - t0) * SIDE * SIDE, ld, 1, kind, split);
    while (m->p.at < 4) pending_one(j, &m->p);
    if (kind != DECODED) many_decode(j, m, ROWS - m->done, kind);
}
#define MANY(name, kind, split) \
    static void name(const struct job *j, struct many *m, int t0, int t1, float *sums, size_t ld) { many(j, m, t0, t1, sums, ld, kind, split); }
MANY(many_e4m3, DT_E4M3, false)
MANY(many_bf16, DT_BF16, false)
MANY(many_planes, PLANES, false)
MANY(many_planes_split, PLANES, true)
MANY(many_decoded, DECODED, false)
MANY(many_decoded_split, DECODED, true)
#undef MANY

static void many_turn(const struct job *j, struct many *m, int at) {
    m->panel = j->panel[at], m->rest = j->rest[at];
    m->other = j->panel[!at], m->other_rest = j->split ? j->rest[!at] : NULL;
}

/* Rows of W [rb, end) by column tiles [t0, t1): span after span, in each two strips after two strips. */
static void block(const struct job *j, int rb, int end, int t0, int t1) {
    const struct mat *w = j->w;
    const bool scaled = j->kind != PLANES && j->seg;
    const int seg = scaled ? j->seg : SPAN;
    const size_t ld = (size_t)(t1 - t0) * SIDE * SIDE;
    const struct kernels *k = gemm_kernels(CPU_AVX512);
    size_t first[BLOCK + ROWS];
    struct many m = {.codes = e4m3_make()};
    int at = 1; /* the panel in turn */
    many_turn(j, &m, at);
    for (int r = rb; r < end + ROWS; r++) first[r - rb] = scale_row(w, r < end ? r : end - 1);
    m.u = unit_at(j, rb, 0);
    m.v = m.u;
    if (j->kind == DT_E4M3) many_decode(j, &m, ROWS, DT_E4M3);
    else if (j->kind == DT_BF16) many_decode(j, &m, ROWS, DT_BF16);
    else if (j->kind == PLANES) many_decode(j, &m, ROWS, PLANES);
    many_turn(j, &m, at = 0);
    for (;;) {
        const bool below = m.u.r + ROWS < end, right = m.u.c0 + SPAN < w->cols;
        m.v = below ? unit_at(j, m.u.r + ROWS, m.u.c0) : right ? unit_at(j, rb, m.u.c0 + SPAN) : (struct unit){.r = rb};
        float *sums = j->sums + (size_t)((m.u.r - rb) / SIDE) * ld;
        for (int c = 0; c < m.u.n; c += seg)
            for (int half = 0; half < ROWS; half += SIDE) {
                float *scale = j->scales + c / seg * ROWS + half;
                if (scaled) strip_scales(w, scale, first + (m.u.r - rb) + half, m.u.c0 + c);
                else _mm512_store_ps(scale, _mm512_set1_ps(1));
            }
        m.ahead = m.v.data ? m.v.data - m.u.data : 0; /* about as far again */
        if (j->kind == DT_E4M3) many_e4m3(j, &m, t0, t1, sums, ld);
        else if (j->kind == DT_BF16) many_bf16(j, &m, t0, t1, sums, ld);
        else if (j->kind == PLANES) (j->split ? many_planes_split : many_planes)(j, &m, t0, t1, sums, ld);
        else (fill_any(j, k, m.u.r, m.u.c0, m.u.n) ? many_decoded_split : many_decoded)(j, &m, t0, t1, sums, ld);
        if (!below && !right) break;
        if (j->kind != DECODED) many_turn(j, &m, at = !at);
        m.u = m.v;
    }
    for (int r = rb; r < end; r += SIDE) put(j, r, end - r, t0, t1, j->sums + (size_t)((r - rb) / SIDE) * ld);
}

/* exact: weights that are not BF16 numbers are not rounded to them. */
static void product(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate, void *scratch, bool exact) {
    struct job j = {.w = w, .r1 = r1, .seg = segment(w), .n = n, .ldy = ldy, .accumulate = accumulate, .x = packed, .y = y};
    const int columns = up(n, SIDE), chunks = up(columns, COLUMNS);
    j.make = gemm_planes_for(w);
    j.kind = plain(w) ? w->dtype : j.make.rows ? PLANES : DECODED;
    j.split = j.kind == PLANES && exact && !j.make.exact;
    j.span = dtype_bytes(w->dtype, SPAN);
    j.deep = depth(w->cols);
    j.panel[0] = scratch;
    j.panel[1] = j.panel[0] + ROWS * PITCH;
    j.rest[0] = j.panel[1] + ROWS * PITCH;
    j.rest[1] = j.rest[0] + ROWS * PITCH;
    j.scales = (float *)(void *)(j.rest[1] + ROWS * PITCH);
    j.out = j.scales + SPAN / DEEP * ROWS;
    j.turned = j.out + FEW * SIDE * SIDE;
    j.sums = j.turned + COLUMNS * SIDE * SIDE;
    tiles_configure();
    switch (j.kind != DECODED && !j.split && columns <= FEW ? columns * 3 + (j.kind == DT_BF16) + 2 * (j.kind == PLANES) : 0) {
#define CASE(T) \
    case 3 * T: few(&j, r0, T, DT_E4M3); break; \
    case 3 * T + 1: few(&j, r0, T, DT_BF16); break; \
    case 3 * T + 2: few(&j, r0, T, PLANES); break
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
#undef CASE
    default:
        for (int rb = r0; rb < r1; rb += BLOCK)
            for (int chunk = 0; chunk < chunks; chunk++)
                block(&j, rb, r1 - rb < BLOCK ? r1 : rb + BLOCK, columns * chunk / chunks, columns * (chunk + 1) / chunks);
    }
    _tile_release();
}
static void rows(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate, void *scratch) {
    product(w, r0, r1, packed, n, y, ldy, accumulate, scratch, false);
}

static size_t scratch_bytes(int n, int k) {
    const size_t columns = (size_t)(up(n, SIDE) < COLUMNS ? up(n, SIDE) : COLUMNS);
    const size_t floats = SPAN / DEEP * ROWS + (FEW + COLUMNS) * SIDE * SIDE + columns * BLOCK * SIDE;
    return 4 * ROWS * PITCH + floats * sizeof(float);
}

/* Two planes: the tokens, and what BF16 leaves over of them. */
static size_t packed_bytes_wide(int n, int k) { return 2 * packed_bytes(n, k); }
static void pack_wide(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts) {
    pack_plane(dst, x, gather, ldx, n, k, part, parts, false);
    pack_plane((uint8_t *)dst + packed_bytes(n, k), x, gather, ldx, n, k, part, parts, true);
}
static void rows_wide(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate, void *scratch) {
    product(w, r0, r1, packed, n, y, ldy, accumulate, scratch, true);
    product(w, r0, r1, (const uint8_t *)packed + packed_bytes(n, w->cols), n, y, ldy, true, scratch, false); /* 2^-9 of 2^-9 */
}

static bool takes(const struct mat *w) { return plain(w); }

const struct gemm gemm_amx = {
    .name = "amx", .bf16 = true, .rounds = true, .row_tile = 64, .packed_bytes = packed_bytes, .pack = pack, .scratch_bytes = scratch_bytes, .rows = rows};
const struct gemm gemm_amx_few16 = {.name = "amx few16",
                                    .bf16 = true,
                                    .row_tile = SIDE,
                                    .packed_bytes = packed_bytes,
                                    .pack = pack,
                                    .scratch_bytes = scratch_bytes,
                                    .rows = rows,
                                    .takes = takes};
const struct gemm gemm_amx_wide = {.name = "amx wide",
                                   .bf16x2 = true,
                                   .row_tile = 64,
                                   .packed_bytes = packed_bytes_wide,
                                   .pack = pack_wide,
                                   .scratch_bytes = scratch_bytes,
                                   .rows = rows_wide};

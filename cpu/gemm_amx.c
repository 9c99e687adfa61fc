/* Products of many tokens in AMX tiles (gemm_amx_inner.h), with activations rounded to BF16; up to 96 tokens run in
 * gemm_amx_skinny.c.
 *
 * Sums of a segment (columns of W that share a scale, at most SPAN) stay in a tile and are then scaled and added to
 * those of the row in memory. Unscaled sums are instead reloaded from memory into the tile, which continues
 * accumulating.
 *
 * Formats with in-block scales are decoded to BF16 (gemm_bf16_decoder.c) and rounded where BF16 cannot represent them:
 * an error of 2^-9 of a weight, as for activations, while the format itself has four to eight bits. `wide` products,
 * which feed discrete choices, use a BF16 number and its BF16 remainder: two products, 2^-17 of the weight. The same
 * applies to all other weights that are not exact in BF16. */
#include "cpu/gemm_amx_inner.h"

#include "cpu/amx_tiles.h"

enum {
    STRIPS = 2,                  /* of 16 rows, decoded at once */
    ROWS = STRIPS * SIDE,        /* rows decoded at once */
    BLOCK = 256,                 /* rows of W processed together for a span of tokens */
    COLUMNS = GEMM_CHUNK / SIDE, /* token tiles per pass */
};

/* --- Activations ------------------------------------------------------------------------------ */

static size_t packed_bytes(int n, int k) { return (size_t)up(n, SIDE) * (size_t)depth(k) * TILE * 2; }

/* The BF16 rounded numbers, or with `rest` their remainders. */
INLINE void pack_plane(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts,
                       const bool rest) {
    const int deep = depth(k);
    const int64_t tiles = (int64_t)up(n, SIDE) * deep;
    for (int64_t at = tiles * part / parts, end = tiles * (part + 1) / parts; at < end; at++) {
        const int token = (int)(at / deep) * SIDE, step = (int)(at % deep);
        uint16_t *to = (uint16_t *)dst + at * TILE;
        __m512i a[SIDE];
        EACH (int i = 0; i < SIDE; i++)
            a[i] = token + i < n
                       ? pack_pairs(x + (size_t)(gather ? gather[token + i] : token + i) * (size_t)ldx, step, k, rest)
                       : _mm512_setzero_si512();
        transpose16(a);
        EACH (int i = 0; i < SIDE; i++) _mm512_store_si512(to + i * DEEP, a[i]);
    }
}

static void pack(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts) {
    pack_plane(dst, x, gather, ldx, n, k, part, parts, false);
}

/* --- Weights ---------------------------------------------------------------------------------- */

/* BF16 of 32 floats, and their remainders. */
INLINE void split32(const float *from, __m512i *head, __m512i *rest) {
    __m512 u = _mm512_load_ps(from), v = _mm512_load_ps(from + 16);
    __m512i p = (__m512i)_mm512_cvtne2ps_pbh(v, u);
    __m512 pu = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(p)), 16));
    __m512 pv = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(p, 1)), 16));
    *head = p;
    *rest = (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(v, pv), _mm512_sub_ps(u, pu));
}
/* Decodes any format, scaled unless sums are. Returns false if all remainders are 0, e.g. with power-of-two scales of
 * few bits. */
static bool fill_any(const struct job *j, const struct kernels *k, int r, int c0, int n) {
    float row[SPAN] __attribute__((aligned(64)));
    __m512i any = _mm512_setzero_si512();
    for (int i = 0; i < ROWS; i++) {
        const int at = r + i < j->r1 ? r + i : j->r1 - 1;
        if (j->seg)
            k->widen[j->w->dtype](
                row, (const uint8_t *)j->w->data + (size_t)at * j->w->stride + dtype_bytes(j->w->dtype, (size_t)c0), n);
        else k->decode[j->w->dtype](row, j->w, at, c0, c0 + n);
        if (n % 64) memset(row + n, 0, (size_t)(64 - n % 64) * sizeof(float));
        for (int c = 0; c < n; c += 64) {
            __m512i head[2], rest[2];
            split32(row + c, &head[0], &rest[0]);
            split32(row + c + 32, &head[1], &rest[1]);
            reorder_columns((uint16_t *)(void *)(j->panel[0] + i * PITCH) + c, head[0], head[1]);
            reorder_columns((uint16_t *)(void *)(j->rest[0] + i * PITCH) + c, rest[0], rest[1]);
            any = _mm512_or_si512(any, _mm512_or_si512(rest[0], rest[1]));
        }
    }
    return _mm512_test_epi32_mask(any, any) != 0;
}

/* --- Products --------------------------------------------------------------------------------- */

/* sums (+)= scale * out, of one tile. */
INLINE void add_scaled(float *sums, const float *out, const float *scale, bool more) {
    if (more)
        EACH (int i = 0; i < SIDE; i++)
            _mm512_store_ps(sums + i * SIDE, _mm512_fmadd_ps(_mm512_load_ps(out + i * SIDE), _mm512_set1_ps(scale[i]),
                                                             _mm512_load_ps(sums + i * SIDE)));
    else
        EACH (int i = 0; i < SIDE; i++)
            _mm512_store_ps(sums + i * SIDE, _mm512_mul_ps(_mm512_load_ps(out + i * SIDE), _mm512_set1_ps(scale[i])));
}

/* --- Two strips by two column tiles at a time. While the tile unit executes a step, some rows of the next unit are
 * decoded, so that neither memory reads nor the tile unit stall --- */

/* Sums in j->out that must still be added, from tile `at` on: strip at / 2, column tile at % 2. */
struct pending {
    float *sums;
    const float *scale; /* [ROWS] */
    size_t ld;
    int at, step; /* step 2: one column tile only */
    bool more;
};
INLINE void pending_one(const struct job *j, struct pending *p) {
    if (p->at >= 4) return;
    const int i = p->at;
    add_scaled(p->sums + (size_t)(i / 2) * p->ld + i % 2 * SIDE * SIDE, j->out + i * SIDE * SIDE,
               p->scale + i / 2 * SIDE, p->more);
    p->at += p->step;
}

/* A step along K: B column tiles starting at b. Tiles 0-3: sums; 4, 5: weights; 6, 7: tokens. */
INLINE void throughput_run(const uint8_t *a, const uint16_t *b, size_t next, const int B) {
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
/* Adds the products of the weights' remainders and the tokens that throughput_run() loaded. */
INLINE void many_step_rest(const uint8_t *rest, const int B) {
    _tile_loadd(4, rest, PITCH);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, rest + SIDE * PITCH, PITCH);
    _tile_dpbf16ps(2, 5, 6);
    if (B == 1) return;
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
}
/* Loads tiles of sums from `sums` (NULL: zero); the second strip's are ld elements after the first one's. */
INLINE void many_begin(const float *sums, size_t ld, const int B) {
    if (!sums) {
        _tile_zero(0);
        _tile_zero(2);
        if (B == 1) return;
        _tile_zero(1);
        _tile_zero(3);
        return;
    }
    _tile_loadd(0, sums, 64);
    _tile_loadd(2, sums + ld, 64);
    if (B == 1) return;
    _tile_loadd(1, sums + SIDE * SIDE, 64);
    _tile_loadd(3, sums + ld + SIDE * SIDE, 64);
}
INLINE void many_end(float *sums, size_t ld, const int B) {
    _tile_stored(0, sums, 64);
    _tile_stored(2, sums + ld, 64);
    if (B == 1) return;
    _tile_stored(1, sums + SIDE * SIDE, 64);
    _tile_stored(3, sums + ld + SIDE * SIDE, 64);
}
struct many {
    const uint8_t *panel, *rest; /* rest: NULL, or the BF16 remainders of the panel */
    struct unit u, v;            /* u: the unit in the panel; v: to be decoded into `other` if its data is not NULL */
    uint8_t *other, *other_rest;
    ptrdiff_t ahead;
    int step, steps, done; /* of the unit; all of them; rows decoded so far */
    struct e4m3 codes;
    struct pending p;
};
INLINE void many_decode(const struct job *j, struct many *m, int rows, const int kind) {
    if (m->done >= ROWS || rows <= 0) return;
    const int end = m->done + rows < ROWS ? m->done + rows : ROWS;
    unit_rows(j, &m->codes, &m->v, m->other, m->other_rest, m->done, end, m->ahead, kind, false);
    m->done += rows;
}
INLINE void many_columns(const struct job *j, struct many *m, int t, float *sums, size_t ld, const int B,
                         const int kind, const bool split) {
    const size_t next = (size_t)j->deep * TILE;
    const uint16_t *b = j->x + (size_t)t * next + (size_t)(m->u.c0 / DEEP) * TILE;
    const int seg = SCALED(kind) && j->seg ? j->seg : SPAN;
    for (int c = 0; c < m->u.n; c += seg) {
        const int steps = depth(m->u.n - c < seg ? m->u.n - c : seg);
        const bool more = m->u.c0 + c > 0;
        many_begin(SCALED(kind) || !more ? NULL : sums, ld, B);
        for (int k = 0; k < steps; k++) {
            const int at = 2 * c + 64 * k;
            if (kind != DECODED) many_decode(j, m, up(++m->step * ROWS, m->steps) - m->done, kind);
            if (SCALED(kind)) pending_one(j, &m->p);
            if (SCALED(kind) && steps < 4) pending_one(j, &m->p);
            throughput_run(m->panel + at, b + (size_t)(c / DEEP + k) * TILE, next, B);
            if (split) many_step_rest(m->rest + at, B);
        }
        if (!SCALED(kind)) {
            many_end(sums, ld, B);
            continue;
        }
        many_end(j->out, 2 * SIDE * SIDE, B);
        m->p = (struct pending){sums, j->scales + c / seg * ROWS, ld, 0, B > 1 ? 1 : 2, more};
    }
}
/* The unit m->u by column tiles [t0, t1); decodes m->v on the way (unless everything was decoded in advance). */
INLINE void many(const struct job *j, struct many *m, int t0, int t1, float *sums, size_t ld, const int kind,
                 const bool split) {
    const int steps = (t1 - t0 + 1) / 2 * depth(m->u.n);
    m->step = 0, m->steps = steps, m->done = m->v.data ? 0 : ROWS;
    m->p.at = 4;
    int t = t0;
    for (; t + 2 <= t1; t += 2) many_columns(j, m, t, sums + (t - t0) * SIDE * SIDE, ld, 2, kind, split);
    if (t < t1) many_columns(j, m, t, sums + (t - t0) * SIDE * SIDE, ld, 1, kind, split);
    while (m->p.at < 4) pending_one(j, &m->p);
    if (kind != DECODED) many_decode(j, m, ROWS - m->done, kind);
}
#define MANY(name, kind, split) \
    static void name(const struct job *j, struct many *m, int t0, int t1, float *sums, size_t ld) { \
        many(j, m, t0, t1, sums, ld, kind, split); \
    }
MANY(many_e4m3, DT_E4M3, false)
MANY(many_bf16, DT_BF16, false)
MANY(many_folded, FOLDED, false)
MANY(many_planes, PLANES, false)
MANY(many_planes_split, PLANES, true)
MANY(many_decoded, DECODED, false)
MANY(many_decoded_split, DECODED, true)
#undef MANY

static void swap_panels(const struct job *j, struct many *m, int at) {
    m->panel = j->panel[at], m->rest = j->rest[at];
    m->other = j->panel[!at], m->other_rest = j->split ? j->rest[!at] : NULL;
}

/* Stores the sums of rows [rb, end) by column tiles [t0, t1). All rows of a token at once: those of a strip alone would
 * touch another page for each 64 bytes. */
static void store_block(const struct job *j, int rb, int end, int t0, int t1, size_t ld) {
    for (int t = t0; t < t1; t++) {
        const int tokens = j->n - t * SIDE < SIDE ? j->n - t * SIDE : SIDE;
        const float *sums = j->sums + (size_t)(t - t0) * SIDE * SIDE;
        for (int r = rb; r < end; r += SIDE, sums += ld) {
            const __mmask16 have = (__mmask16)(end - r >= SIDE ? 0xffff : (1 << (end - r)) - 1);
            float *y = j->y + (size_t)t * SIDE * (size_t)j->ldy + r;
            __m512i a[SIDE];
            EACH (int i = 0; i < SIDE; i++) a[i] = _mm512_load_si512(sums + i * SIDE);
            transpose16(a);
            EACH (int i = 0; i < SIDE; i++)
                if (i < tokens) {
                    float *to = y + (size_t)i * (size_t)j->ldy;
                    __m512 sum = _mm512_castsi512_ps(a[i]);
                    if (j->accumulate) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(have, to));
                    _mm512_mask_storeu_ps(to, have, sum);
                }
        }
    }
}

/* Rows of W [rb, end) by column tiles [t0, t1): span after span, in each two strips at a time. */
static void multiply_block(const struct job *j, int rb, int end, int t0, int t1) {
    const struct mat *w = j->w;
    const bool scaled = SCALED(j->kind) && j->seg;
    const int seg = scaled ? j->seg : SPAN;
    const size_t ld = (size_t)(t1 - t0) * SIDE * SIDE;
    const struct kernels *k = gemm_kernels(CPU_AVX512);
    size_t first[BLOCK + ROWS];
    struct many m = {.codes = e4m3_make()};
    int at = 1; /* index of the current panel */
    swap_panels(j, &m, at);
    for (int r = rb; r < end + ROWS; r++) first[r - rb] = scale_row(w, r < end ? r : end - 1);
    m.u = unit_at(j, rb, 0);
    m.v = m.u;
    if (j->kind == FOLDED) unit_times(&m.codes, j, &m.v, ROWS);
    if (j->kind == DT_E4M3) many_decode(j, &m, ROWS, DT_E4M3);
    else if (j->kind == FOLDED) many_decode(j, &m, ROWS, FOLDED);
    else if (j->kind == DT_BF16) many_decode(j, &m, ROWS, DT_BF16);
    else if (j->kind == PLANES) many_decode(j, &m, ROWS, PLANES);
    swap_panels(j, &m, at = 0);
    for (;;) {
        const bool below = m.u.r + ROWS < end, right = m.u.c0 + SPAN < w->cols;
        m.v = below ? unit_at(j, m.u.r + ROWS, m.u.c0) : right ? unit_at(j, rb, m.u.c0 + SPAN) : (struct unit){.r = rb};
        if (j->kind == FOLDED && m.v.data) unit_times(&m.codes, j, &m.v, ROWS);
        float *sums = j->sums + (size_t)((m.u.r - rb) / SIDE) * ld;
        for (int c = 0; c < m.u.n && SCALED(j->kind); c += seg)
            for (int half = 0; half < ROWS; half += SIDE) {
                float *scale = j->scales + c / seg * ROWS + half;
                const size_t *of = first + (m.u.r - rb) + half;
                if (scaled)
                    strip_scales(w, scale, of, w->scale ? (size_t)((m.u.c0 + c) / w->block_cols) : 0,
                                 of[0] == of[SIDE - 1]);
                else _mm512_store_ps(scale, _mm512_set1_ps(1));
            }
        m.ahead = m.v.data ? m.v.data - m.u.data : 0; /* the distance to the unit after the next is similar */
        if (j->kind == DT_E4M3) many_e4m3(j, &m, t0, t1, sums, ld);
        else if (j->kind == FOLDED) many_folded(j, &m, t0, t1, sums, ld);
        else if (j->kind == DT_BF16) many_bf16(j, &m, t0, t1, sums, ld);
        else if (j->kind == PLANES) (j->split ? many_planes_split : many_planes)(j, &m, t0, t1, sums, ld);
        else (fill_any(j, k, m.u.r, m.u.c0, m.u.n) ? many_decoded_split : many_decoded)(j, &m, t0, t1, sums, ld);
        if (!below && !right) break;
        if (j->kind != DECODED) swap_panels(j, &m, at = !at);
        m.u = m.v;
    }
    store_block(j, rb, end, t0, t1, ld);
}

/* exact: weights are not rounded to BF16. */
static void multiply(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate,
                     void *scratch, bool exact) {
    struct job j = job_make(w, r1, packed, n, SIDE, y, ldy, accumulate);
    const int columns = up(n, SIDE), chunks = up(columns, COLUMNS);
    j.split = j.kind == PLANES && exact && !j.make.exact;
    if (j.kind != DECODED && !j.split && columns <= FEW) {
        gemm_amx_skinny_rows(&j, r0, scratch);
        return;
    }
    j.panel[0] = scratch;
    j.panel[1] = j.panel[0] + ROWS * PITCH;
    j.rest[0] = j.panel[1] + ROWS * PITCH;
    j.rest[1] = j.rest[0] + ROWS * PITCH;
    j.scales = (float *)(void *)(j.rest[1] + ROWS * PITCH);
    j.out = j.scales + SPAN / DEEP * ROWS;
    j.sums = j.out + 4 * SIDE * SIDE;
    tiles_configure(SIDE);
    for (int rb = r0; rb < r1; rb += BLOCK)
        for (int chunk = 0; chunk < chunks; chunk++)
            multiply_block(&j, rb, r1 - rb < BLOCK ? r1 : rb + BLOCK, columns * chunk / chunks,
                           columns * (chunk + 1) / chunks);
    _tile_release();
}
static void rows(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate,
                 void *scratch) {
    multiply(w, r0, r1, packed, n, y, ldy, accumulate, scratch, false);
}

static size_t scratch_bytes(int n, int k) {
    const size_t columns = (size_t)(up(n, SIDE) < COLUMNS ? up(n, SIDE) : COLUMNS);
    const size_t floats = SPAN / DEEP * ROWS + 4 * SIDE * SIDE + columns * BLOCK * SIDE;
    const size_t few = gemm_amx_skinny_scratch_bytes(), many = 4 * ROWS * PITCH + floats * sizeof(float);
    return few > many ? few : many;
}

/* Two planes: the rounded tokens, and their BF16 remainders. */
static size_t packed_bytes_wide(int n, int k) { return 2 * packed_bytes(n, k); }
static void pack_wide(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts) {
    pack_plane(dst, x, gather, ldx, n, k, part, parts, false);
    pack_plane((uint8_t *)dst + packed_bytes(n, k), x, gather, ldx, n, k, part, parts, true);
}
static void rows_wide(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy,
                      bool accumulate, void *scratch) {
    multiply(w, r0, r1, packed, n, y, ldy, accumulate, scratch, true);
    /* error 2^-9 of 2^-9 */
    multiply(w, r0, r1, (const uint8_t *)packed + packed_bytes(n, w->cols), n, y, ldy, true, scratch, false);
}

const struct gemm gemm_amx = {.name = "amx",
                              .bf16 = true,
                              .rounds_weights = true,
                              .row_tile = 64,
                              .packed_bytes = packed_bytes,
                              .pack = pack,
                              .scratch_bytes = scratch_bytes,
                              .rows = rows};
const struct gemm gemm_amx_wide = {.name = "amx wide",
                                   .bf16x2 = true,
                                   .row_tile = 64,
                                   .packed_bytes = packed_bytes_wide,
                                   .pack = pack_wide,
                                   .scratch_bytes = scratch_bytes,
                                   .rows = rows_wide};

/* Products of few tokens in AMX tiles (gemm_amx_inner.h), limited by reading W. Token tiles are as wide as the number
 * of tokens, at most, so that one or two tokens stay in L1; the width does not change a token's sums. Processes strips
 * of 16 rows, SPAN columns at a time, and decodes the next unit while it multiplies the current one. */
#include "cpu/gemm_amx_inner.h"

#include "cpu/amx_tiles.h"

enum { AHEAD = 2048 }; /* prefetch distance per row, in bytes */

/* --- Tokens ----------------------------------------------------------------------------------- */

/* Columns per tile: a power of two, so that rows do not straddle cache lines. */
static int width_of(int columns) {
    int width = 1;
    while (width < columns && width < SIDE) width *= 2;
    return width;
}
static size_t packed_bytes(int n, int k) {
    const int width = width_of(n);
    return (size_t)up(n, width) * (size_t)depth(k) * SIDE * (size_t)width * 4;
}
static void pack(void *dst, const float *x, const int32_t *gather, int ldx, int n, int k, int part, int parts) {
    const int deep = depth(k), width = width_of(n);
    const int64_t tiles = (int64_t)up(n, width) * deep;
    const __mmask16 have = (__mmask16)((1u << width) - 1);
    for (int64_t at = tiles * part / parts, end = tiles * (part + 1) / parts; at < end; at++) {
        const int token = (int)(at / deep) * width, step = (int)(at % deep);
        __m512i a[SIDE];
        EACH (int i = 0; i < SIDE; i++)
            a[i] = i < width && token + i < n
                       ? pack_pairs(x + (size_t)(gather ? gather[token + i] : token + i) * (size_t)ldx, step, k, false)
                       : _mm512_setzero_si512();
        transpose16(a);
        EACH (int i = 0; i < SIDE; i++)
            _mm512_mask_storeu_epi32((uint16_t *)dst + (at * SIDE + i) * width * 2, have, a[i]);
    }
}

/* --- Products --------------------------------------------------------------------------------- */

/* sums (+)= scale * out, vectors in order of rows; one: all scales are equal. */
INLINE void add_scaled(float *sums, const float *out, int vectors, const float *scale, int width, bool one, bool more) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 scales = _mm512_load_ps(scale);
    const __m128i shift = _mm_cvtsi32_si128(__builtin_ctz((unsigned)width));
    for (int v = 0; v < vectors; v++, sums += SIDE, out += SIDE) {
        __m512 s = scales; /* if all are equal */
        if (!one)
            s = _mm512_permutexvar_ps(_mm512_srl_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(v * SIDE)), shift),
                                      scales);
        const __m512 o = _mm512_load_ps(out);
        _mm512_store_ps(sums, more ? _mm512_fmadd_ps(o, s, _mm512_load_ps(sums)) : _mm512_mul_ps(o, s));
    }
}

/* The current strip: if pending, sums in job.out must still be added to job.sums (more: on top of earlier ones), times
 * scale; one: all scales are equal. */
struct strip {
    const struct job *j;
    struct e4m3 codes;
    float scale[SIDE] __attribute__((aligned(64)));
    size_t first[SIDE]; /* indexes of scales */
    bool one, pending, more;
};
INLINE void strip_add(struct strip *s, const int T) {
    if (s->pending) add_scaled(s->j->sums, s->j->out, T * s->j->width, s->scale, s->j->width, s->one, s->more);
    s->pending = false;
}

/* Tiles: sums 0 .. T - 1, weights 6, tokens 7. Tile numbers must be constants. */
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
#define FEW_STORE(t) _tile_stored(t, out + t * SIDE * width, line)
#define FEW_STEP(t) \
    do { \
        _tile_loadd(7, b + (size_t)t * next, line); \
        _tile_dpbf16ps(t, 6, 7); \
    } while (0)

/* One step of unit u, columns from c on, by all tokens; decodes a share of v into the other panel. whole: both have
 * SPAN columns, and v all rows. */
enum { STEPS = SPAN / DEEP, EACH_STEP = SIDE / STEPS };
INLINE void few_step(struct strip *s, const struct unit *u, const struct unit *v, const uint8_t *panel, uint8_t *other,
                     int c, ptrdiff_t ahead, const int T, const int kind, const bool whole) {
    const struct job *j = s->j;
    const struct mat *w = j->w;
    const int seg = SCALED(kind) ? j->seg : SPAN, width = j->width, end = whole ? SPAN : (u->n + 63) / 64 * 64,
              row = c / DEEP * EACH_STEP;
    const ptrdiff_t line = 4 * width;
    float *const out = j->out;
    const size_t tile = (size_t)(SIDE * width * 2), next = (size_t)j->deep * tile;
    const uint16_t *b = j->x + (size_t)((u->c0 + c) / DEEP) * tile;
    unit_rows(j, &s->codes, v, other, NULL, row, row + EACH_STEP, ahead, kind, whole);
    if (SCALED(kind) && (c & (seg - 1)) == 0) strip_add(s, T);
    if (!whole && c >= end) return;
    if (SCALED(kind) && c % 64 == 0 && (c & (seg - 1)) == 0) FEW_EACH(FEW_ZERO);
    _tile_loadd(6, panel + 2 * c, PITCH);
    FEW_EACH(FEW_STEP);
    if (!SCALED(kind) || c % 64 == 0 || (((c + DEEP) & (seg - 1)) && c + DEEP < end)) return;
    FEW_EACH(FEW_STORE);
    s->pending = true;
    s->more = u->c0 + c >= seg;
    const int scaled = u->c0 + c - (c & (seg - 1)); /* the last step may start past the last column */
    if (w->scale) strip_scales(w, s->scale, s->first, (size_t)(scaled / w->block_cols), s->one);
}
/* Unit u, decoded in panel, by all tokens; decodes v into the other panel. Two steps per iteration, since no sum ends
 * between them; full unrolling would take twice as long to compile. */
INLINE void few_unit(struct strip *s, const struct unit *u, const struct unit *v, const uint8_t *panel, uint8_t *other,
                     const int T, const int kind, const bool whole) {
    const struct mat *w = s->j->w;
    const ptrdiff_t row = (ptrdiff_t)dtype_bytes(w->dtype, (size_t)w->cols),
                    to = (v->c0 / SPAN) * (ptrdiff_t)s->j->span + AHEAD;
    /* past the end of a row: continue in the next strip */
    const ptrdiff_t ahead = to >= row ? AHEAD + SIDE * (ptrdiff_t)w->stride - row : AHEAD;
    for (int i = 0; i < SPAN / 64; i++) {
        few_step(s, u, v, panel, other, 64 * i, ahead, T, kind, whole);
        few_step(s, u, v, panel, other, 64 * i + DEEP, ahead, T, kind, whole);
    }
}
/* Partial units: rare, so one function for all T. */
static __attribute__((noinline)) void few_rest(struct strip *s, const struct unit *u, const struct unit *v,
                                               const uint8_t *panel, uint8_t *other, int T, int kind) {
    if (kind == DT_E4M3) few_unit(s, u, v, panel, other, T, DT_E4M3, false);
    else if (kind == FOLDED) few_unit(s, u, v, panel, other, T, FOLDED, false);
    else if (kind == DT_BF16) few_unit(s, u, v, panel, other, T, DT_BF16, false);
    else few_unit(s, u, v, panel, other, T, PLANES, false);
}

INLINE struct unit unit_next(const struct job *j, const struct unit *u) {
    return u->c0 + SPAN < j->w->cols ? unit_at(j, u->r, u->c0 + SPAN) : unit_at(j, u->r + SIDE, 0);
}
INLINE void few(const struct job *j, int r0, const int T, const int kind) {
    struct strip s = {.j = j, .codes = e4m3_make(), .one = true};
    uint8_t *panel = j->panel[0], *other = j->panel[1];
    struct unit u = unit_at(j, r0, 0);
    const int width = j->width;
    const ptrdiff_t line = 4 * width;
    float *const out = j->sums;
    if (kind == FOLDED) unit_times(&s.codes, j, &u, SIDE);
    unit_rows(j, &s.codes, &u, panel, NULL, 0, SIDE, AHEAD, kind, false);
    _mm512_store_ps(s.scale, _mm512_set1_ps(1)); /* without scales */
    while (u.r < j->r1) {
        const struct unit v = unit_next(j, &u);
        if (kind == FOLDED) unit_times(&s.codes, j, &v, SIDE);
        if (!u.c0) {
            if (SCALED(kind)) s.one = strip_first(j->w, s.first, u.r, j->r1 - 1);
            else FEW_EACH(FEW_ZERO);
        }
        if (u.n == SPAN && v.n == SPAN && v.r + SIDE <= j->r1) few_unit(&s, &u, &v, panel, other, T, kind, true);
        else few_rest(&s, &u, &v, panel, other, T, kind);
        if (v.r != u.r) { /* the strip is complete */
            if (SCALED(kind)) strip_add(&s, T);
            else FEW_EACH(FEW_STORE);
            store_strip(j, u.r, j->r1 - u.r, 0, T, j->sums);
        }
        uint8_t *swap = panel;
        panel = other, other = swap, u = v;
    }
}

/* A function for each case: one function with all of them takes twice as long to compile. */
#define FEW_OF(T, kind) \
    static __attribute__((noinline)) void few_##T##_##kind(const struct job *j, int r0) { few(j, r0, T, kind); }
#define FEW_KINDS(T) FEW_OF(T, DT_E4M3) FEW_OF(T, DT_BF16) FEW_OF(T, PLANES) FEW_OF(T, FOLDED)
FEW_KINDS(1)
FEW_KINDS(2)
FEW_KINDS(3)
FEW_KINDS(4)
FEW_KINDS(5)
FEW_KINDS(6)

enum { SUMS = FEW * SIDE * SIDE };
size_t gemm_amx_skinny_scratch_bytes(void) { return 2 * SIDE * PITCH + 3 * SUMS * sizeof(float); }

void gemm_amx_skinny_rows(struct job *j, int r0, void *scratch) {
    j->panel[0] = scratch;
    j->panel[1] = j->panel[0] + SIDE * PITCH;
    j->sums = (float *)(void *)(j->panel[1] + SIDE * PITCH);
    j->out = j->sums + SUMS;
    j->turned = j->out + SUMS;
    tiles_configure(j->width);
#define CASE(T) \
    { few_##T##_DT_E4M3, few_##T##_DT_BF16, few_##T##_PLANES, few_##T##_FOLDED }
    static void (*const cases[FEW][4])(const struct job *, int) = {CASE(1), CASE(2), CASE(3),
                                                                   CASE(4), CASE(5), CASE(6)};
#undef CASE
    cases[up(j->n, j->width) - 1][(j->kind == DT_BF16) + 2 * (j->kind == PLANES) + 3 * (j->kind == FOLDED)](j, r0);
    _tile_release();
}

static void rows(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy, bool accumulate,
                 void *scratch) {
    for (int at = 0, most = FEW * SIDE; at < n; at += most) {
        struct job j =
            job_make(w, r1, (const uint8_t *)packed + (at ? packed_bytes(at, w->cols) : 0),
                     n - at < most ? n - at : most, width_of(n), y + (size_t)at * (size_t)ldy, ldy, accumulate);
        gemm_amx_skinny_rows(&j, r0, scratch);
    }
}
static size_t scratch_bytes(int n, int k) { return gemm_amx_skinny_scratch_bytes(); }
static bool takes(const struct mat *w, int n) { return decode_kind(w) != DECODED; }

const struct gemm gemm_amx_skinny_bf16 = {.name = "amx skinny",
                                          .bf16 = true,
                                          .row_tile = SIDE,
                                          .packed_bytes = packed_bytes,
                                          .pack = pack,
                                          .scratch_bytes = scratch_bytes,
                                          .rows = rows,
                                          .supports = takes};

/* GEMV and its transpose for one format, in the SIMD wrappers of simd_<isa>.h, compiled once per ISA and format
 * (meson.build: FORMAT is the name of a row of formats.h).
 *
 * Several rows are walked in parallel, because memory serves several streams faster than one, and because each loaded x
 * is used for all of them. Columns are processed per scale block: the block's product is summed unscaled, and the scale
 * is applied once at its end. The order of a row's sum is fixed: lane l takes columns l, l + LANES, ... of each block
 * (or 4l to 4l + 3 of each 32: E4M3_SPLIT); blocks in order; lanes at the end. It is independent of the other rows and
 * tokens, so rows may be split anywhere.
 *
 * E4M3 weights are too small by E4M3_X * E4M3_POST (simd_<isa>.h); the first is applied to x, the second to the
 * scale. */
#include <string.h>

#include "base/scale.h"
#include "cpu/decode_inner.h"
#include "cpu/formats.h"
#include "cpu/formats_inner.h"

enum {
    BLOCK = FORMAT_BLOCK(FORMAT),
    BYTES = FORMAT_BYTES(FORMAT),
    UNIT = BLOCK > 64 ? BLOCK : 64, /* columns decoded together */
    FOUR_BITS = FORMAT_DTYPE(FORMAT) == DT_E2M1 || FORMAT_DTYPE(FORMAT) == DT_I4,
    /* columns of this format's usual scale blocks; 0: at least a unit */
    SMALL = FOUR_BITS ? 32 : 0,
    /* columns of scale blocks whose scales multiply each weight (NVFP4) */
    FINE = FOUR_BITS ? 16 : 0,
    LINES = (UNIT / BLOCK * BYTES + 63) / 64, /* cache lines that a unit spans */
    AHEAD = 2560,                             /* prefetch distance per row, in bytes */
    /* columns of a partial sum if no scale block ends it first */
    PART = 512,
    /* rows per chunk, walked as several streams about a quarter apart */
    STREAM = 256,
    SPAN_FLOATS = 32768, /* for the x of several tokens */
    /* for a row walked alone, with an x load per FMA: half of L1 */
    SPAN_ALONE = 4096,
    /* mostly replaced by integer kernels: few variants, to build faster */
    RARE = !FORMAT_PLAIN(FORMAT) && FORMAT_DTYPE(FORMAT) != DT_Q8_0,
};
#define DTYPE       FORMAT_DTYPE(FORMAT)
#define EACH_WEIGHT FORMAT_JOIN(EACH_, FORMAT)
/* Plain formats are processed per vector, with each x in a register for all rows, or where the ISA provides it in lines
 * of 64 columns or in loads of several vectors; other formats per unit, one row at a time. */
#if FORMAT_PLAIN(FORMAT)
#define LOAD   FORMAT_JOIN(load_, FORMAT)
#define LOAD_M FORMAT_JOIN(FORMAT_JOIN(load_, FORMAT), m)
#ifdef E4M3_LINE
#define BY_LINE
#elif defined E4M3_SPLIT
#define BY_SPLIT
#else
#define BY_VECTOR
#endif
#endif
#ifdef BY_SPLIT
enum { VECTORS = E4M3_SPLIT }; /* per load; x is copied in their order */
#else
enum { VECTORS = 1 };
#endif
enum { GROUP = VECTORS * LANES };
static const float X_LIFT = DTYPE == DT_E4M3 ? E4M3_X : 1.0f, SCALE_LIFT = DTYPE == DT_E4M3 ? E4M3_POST : 1.0f;
/* Bytes from the start of a row to column c, the start of a block. */
INLINE size_t bytes_to(int c) { return (size_t)c / BLOCK * BYTES; }

/* A range of work: R rows, r and then each `gap` further, columns [k0, k1), N tokens; R and N are compile-time
 * constants. */
struct piece {
    const struct mat *w;
    const float *const *x;
    int r, gap, k0, k1;
    const struct mat *fine; /* W with scales of FINE columns, which w then lacks; else NULL */
    int last;               /* rows past it repeat it; their sums are discarded */
    int block;              /* columns of a scale block; at least PART without blocks */
    int64_t ahead;          /* prefetch distance in bytes within a row, at most [k0, k1) */
    int64_t jump;           /* prefetch past k1 continues here: offset from row r */
};
/* A partial sum ends with its scale block, after PART columns, and with the row. */
INLINE int part_end(int c, int edge, int k1) {
    int end = c + PART < edge ? c + PART : edge;
    return end < k1 ? end : k1;
}
/* sum[row * N + token] += part * scale of block b. */
INLINE void piece_scale(const struct piece *p, V *sum, V part[8][KERNEL_TOKENS], const size_t *scales, int b,
                        const int R, const int N) {
    EACH (int i = 0; i < R; i++) {
        V s = vset1(scale_load(p->w, scales[i] + (size_t)b) * SCALE_LIFT);
        EACH (int t = 0; t < N; t++) sum[i * p->gap * N + t] = vfma(part[i][t], s, sum[i * p->gap * N + t]);
    }
}
/* One token's x is multiplied by X_LIFT on load; that of several tokens, or reordered x, when it is copied. */
INLINE V lift_x(V x, const int N) { return N == 1 && X_LIFT != 1 ? vmul(x, vset1(X_LIFT)) : x; }
INLINE V load_x(const float *x, int n, const int N) { return lift_x(n < LANES ? vloadm(x, n) : vload(x), N); }

/* Scales and zero points of a few rows, for the current columns. */
struct row_scales {
    size_t first[8]; /* index of a row's first scale */
    int zero[8];     /* zero points of DT_I4 */
    float fine[8][UNIT / 16];
};
/* Loads the scales of n columns from column c on. */
INLINE void load_fine(const struct piece *p, struct row_scales *s, int c, int n, const int R) {
    EACH (int i = 0; i < R; i++)
        for (int k = 0; k < (n + FINE - 1) / (FINE ? FINE : 1); k++)
            s->fine[i][k] = scale_load(p->fine, s->first[i] + (size_t)(c / (FINE ? FINE : 1) + k));
}

/* part[row][token] += products of n columns starting at c; n is constant. */
INLINE void unit(const struct piece *p, const uint8_t *const *row, V part[8][KERNEL_TOKENS], const struct row_scales *s,
                 int c, const int n, const int R, const int N, const bool is_fine) {
#if defined BY_SPLIT
    EACH (int u = 0; u < n; u += GROUP) {
        struct e4m3_split codes[8];
        EACH (int i = 0; i < R; i++) {
            codes[i] = e4m3_split(row[i] + c + u);
            if (N > 3) continue;
            EACH (int q = 0; q < VECTORS; q++) { /* one row at a time: the sums of four rows leave no registers for x */
                V wv = e4m3_nth(codes[i], q);
                EACH (int t = 0; t < N; t++) part[i][t] = vfma(wv, vload(p->x[t] + c + u + q * LANES), part[i][t]);
            }
        }
        EACH (int q = 0; q < VECTORS; q++) {
            V wv[8];
            if (N <= 3) continue;
            EACH (int i = 0; i < R; i++) wv[i] = e4m3_nth(codes[i], q);
            EACH (int t = 0; t < N; t++) {
                V xv = vload(p->x[t] + c + u + q * LANES);
                if (R > 1) __asm__("" : "+v"(xv));
                EACH (int i = 0; i < R; i++) part[i][t] = vfma(wv[i], xv, part[i][t]);
            }
        }
    }
#elif defined BY_VECTOR || defined BY_LINE
#ifdef BY_LINE
    struct e4m3_line line[8];
    EACH (int i = 0; i < R; i++) line[i] = e4m3_line(row[i] + c, n);
#endif
    EACH (int u = 0; u < n; u += LANES) {
        V wv[8];
#ifdef BY_LINE
        EACH (int i = 0; i < R; i++) wv[i] = e4m3_part(line[i], u / LANES);
#else
        EACH (int i = 0; i < R; i++) wv[i] = LOAD(row[i] + bytes_to(c) + BYTES * u);
#endif
        EACH (int t = 0; t < N; t++) {
            V xv = load_x(p->x[t] + c + u, LANES, N);
#ifndef HEARTH_SIMDE /* SIMDe vectors are not registers */
            /* one load for all rows: FMAs with memory operands take 1.5 times as long */
            if (R > 1) __asm__("" : "+v"(xv));
#endif
            EACH (int i = 0; i < R; i++) part[i][t] = vfma(wv[i], xv, part[i][t]);
        }
    }
#else
    EACH (int i = 0; i < R; i++) {
        const uint8_t *from = row[i] + bytes_to(c);
        const int zero_ __attribute__((unused)) = s->zero[i];
#define USE(j, v) \
    do { \
        const int at_ = (j); \
        V v__ = is_fine ? vmul(v, vset1(s->fine[i][at_ / 16])) : (v); \
        EACH (int t = 0; t < N; t++) part[i][t] = vfma(v__, load_x(p->x[t] + c + at_, LANES, N), part[i][t]); \
    } while (0)
        EACH_WEIGHT(from, n, USE);
#undef USE
    }
#endif
}
#ifdef BY_SPLIT
/* Adds the products of the remaining columns of a part; weights past them meet zeros of x. */
INLINE void rest(const struct piece *p, const uint8_t *const *row, V part[8][KERNEL_TOKENS], const struct row_scales *s,
                 int c, int n, const int R, const int N, const bool is_fine) {
    uint8_t edge[8][UNIT * BYTES];
    const uint8_t *at[8];
    EACH (int i = 0; i < R; i++) {
        memset(edge[i], 0, sizeof edge[i]);
        memcpy(edge[i], row[i] + bytes_to(c), bytes_to(n));
        at[i] = edge[i] - bytes_to(c);
    }
    unit(p, at, part, s, c, UNIT, R, N, is_fine);
}
#else
/* Decodes the weights of the remaining columns of a part, for all R and N. */
static __attribute__((noinline)) void rest_weights(float *out, const uint8_t *from, int n, int zero) {
    const int zero_ __attribute__((unused)) = zero;
#define USE(j, v) vstore(out + (j), v)
    EACH_WEIGHT(from, n, USE);
#undef USE
}
INLINE void rest(const struct piece *p, const uint8_t *const *row, V part[8][KERNEL_TOKENS], const struct row_scales *s,
                 int c, int n, const int R, const int N, const bool is_fine) {
    float w[UNIT] __attribute__((aligned(64)));
    EACH (int i = 0; i < R; i++) {
        rest_weights(w, row[i] + bytes_to(c), n, s->zero[i]);
        for (int u = 0; is_fine && u < n; u += LANES) vstore(w + u, vmul(vload(w + u), vset1(s->fine[i][u / 16])));
        for (int u = 0; u < n; u += LANES)
            EACH (int t = 0; t < N; t++) part[i][t] = vfma(vload(w + u), load_x(p->x[t] + c + u, n - u, N), part[i][t]);
    }
}
#endif

INLINE void piece(const struct piece *p, V *sum, const int R, const int N, const bool is_fine) {
    const int64_t past = (int64_t)bytes_to(p->k1);
    const uint8_t *row[8];
    struct row_scales s;
    EACH (int i = 0; i < R; i++) {
        const int at = p->r + i * p->gap, r = at < p->last ? at : p->last;
        row[i] = (const uint8_t *)p->w->data + (size_t)r * p->w->stride;
        s.first[i] = scale_row(is_fine ? p->fine : p->w, r);
        s.zero[i] = zero_default(DTYPE);
    }
    for (int c = p->k0, b = p->k0 / p->block, edge = (b + 1) * p->block; c < p->k1;) {
        const int end = part_end(c, edge, p->k1);
        V part[8][KERNEL_TOKENS];
        EACH (int i = 0; i < R; i++) {
            EACH (int t = 0; t < N; t++) part[i][t] = vzero();
            if (DTYPE == DT_I4 && !is_fine) s.zero[i] = zero_load(p->w, s.first[i] + (size_t)b);
        }
        for (; c + UNIT <= end; c += UNIT) {
            int64_t ahead = (int64_t)bytes_to(c) + p->ahead;
            if (ahead >= past) ahead += p->jump - past;
            EACH (int i = 0; i < R; i++)
                EACH (int line = 0; line < LINES; line++)
                    _mm_prefetch((const char *)row[i] + ahead + 64 * line, _MM_HINT_T0);
            if (is_fine) load_fine(p, &s, c, UNIT, R);
            unit(p, row, part, &s, c, UNIT, R, N, is_fine);
        }
        if (SMALL && !is_fine && c + SMALL == end) { /* scale blocks of half a unit */
            int64_t ahead = (int64_t)bytes_to(c) + p->ahead;
            if (ahead >= past) ahead += p->jump - past;
            if (c / (SMALL ? SMALL : 1) % 4 == 0) { /* a cache line holds four blocks */
                EACH (int i = 0; i < R; i++) _mm_prefetch((const char *)row[i] + ahead, _MM_HINT_T0);
            }
            unit(p, row, part, &s, c, SMALL, R, N, false);
            c = end;
        }
        if ((UNIT > BLOCK || DTYPE == DT_INT4) && c < end) {
            if (is_fine) load_fine(p, &s, c, end - c, R);
            rest(p, row, part, &s, c, end - c, R, N, is_fine);
        }
        c = end;
        piece_scale(p, sum, part, s.first, b, R, N);
        if (c == edge) b++, edge += p->block;
    }
}

/* Each of R streams walks a contiguous part of a chunk's rows: few streams, far apart, each sequential, which memory
 * serves best. Compared to neighbouring rows this gains 10 % for one token and up to 50 % for several. */

INLINE void streams(const struct piece *span, V *sum, int r0, int rows, const int R, const int N, const bool is_fine) {
    const int64_t stride = (int64_t)span->w->stride, from = (int64_t)bytes_to(span->k0),
                  to = (int64_t)bytes_to(span->k1), len = to - from;
    struct piece p = *span;
    /* in rows, if they are short */
    const int gap = rows / R, left = rows - gap * R, further = len < AHEAD ? (int)(AHEAD / (len + 1)) + 1 : 1;
    p.gap = gap, p.last = r0 + rows - 1, p.ahead = len < AHEAD ? len : AHEAD;
    for (int i = 0; i < gap + (left > 0); i++) { /* a single copy of the body: it takes long to compile */
        p.r = r0 + i, p.jump = further * stride + from;
        if (i + further >= gap) { /* prefetch continues in the next span or chunk */
            if (p.k1 < p.w->cols) p.jump += to - from - gap * stride;
            else p.jump += (rows - gap) * stride - from;
        }
        if (i == gap) p.r = r0 + gap * R, p.gap = 1; /* remainder of the chunk */
        piece(&p, sum + (p.r - r0) * N, R, N, is_fine);
    }
}
INLINE int scale_cols(const struct mat *w) { return w->scale && w->block_cols < w->cols ? w->block_cols : w->cols; }
/* E4M3 with one scale for many rows of a column block, as in FP8 checkpoints: x is multiplied by the scales when it is
 * copied, and a sum continues past the end of a block. Saves 10 to 20 % of the time. */
INLINE bool shared_scales(const struct mat *w) {
    return DTYPE == DT_E4M3 && w->scale && w->block_cols < w->cols && w->block_rows >= 64 && w->row_step == 1;
}

#ifndef BY_SPLIT
INLINE void all_rows_1(float *y, const float *const *x, const struct mat *w, const int R, const bool is_fine) {
    struct mat plain = *w;
    if (is_fine) plain.scale = NULL;
    const struct piece p = {.w = &plain, .fine = w, .x = x, .k1 = w->cols, .block = scale_cols(&plain)};
    for (int r0 = 0; r0 < w->rows; r0 += STREAM) {
        const int rows = w->rows - r0 < STREAM ? w->rows - r0 : STREAM;
        V sum[STREAM + 8];
        for (int i = 0; i < rows; i++) sum[i] = vzero();
        streams(&p, sum, r0, rows, R, 1, is_fine);
        for (int i = 0; i < rows; i++) y[r0 + i] = vsum(sum[i]);
    }
}
#endif

/* The x of several tokens is copied to be contiguous, because its original strides may conflict in the caches; as many
 * columns as fit, mostly all. The sums stay in vectors between such spans, so spans do not change the result. */

INLINE int span_end(int k0, int cols, int block, int fit) {
    for (int k1 = k0;;) { /* whole parts, which always fit */
        int end = part_end(k1, (k1 / block + 1) * block, cols);
        if (end - k0 > fit) return k1;
        if ((k1 = end) == cols) return cols;
    }
}
/* GROUP columns of x times f; zeros from the n-th on. */
INLINE void copy_group(float *to, const float *from, int n, V f) {
    V v[4];
    EACH (int i = 0; i < VECTORS; i++) {
        const int left = n - i * LANES;
        v[i] = left >= LANES ? vload(from + i * LANES) : left > 0 ? vloadm(from + i * LANES, left) : vzero();
    }
#ifdef BY_SPLIT
    V even[2], odd[2];
    EACH (int i = 0; i < 2; i++) vsplit(v[2 * i], v[2 * i + 1], &even[i], &odd[i]);
    vsplit(even[0], even[1], &v[0], &v[2]);
    vsplit(odd[0], odd[1], &v[1], &v[3]);
#endif
    EACH (int i = 0; i < VECTORS; i++) vstore(to + i * LANES, vmul(v[i], f));
}
/* copied[t][c] = x[t][c] for k0 <= c < k1, one line more than that apart: not a power of two. scale: of the blocks of
 * `block` columns; may be NULL. */
INLINE void copy_span(float *span, const float **copied, const float *const *x, int n, int k0, int k1,
                      const struct mat *scale, size_t row, const int N) {
    const int width = (k1 - k0 + UNIT - 1) / UNIT * UNIT + 16, block = scale ? scale->block_cols : k1;
    for (int c = k0, end; c < k1; c = end) {
        end = c - c % block + block < k1 ? c - c % block + block : k1;
        const V f =
            vset1((N > 1 || VECTORS > 1 ? X_LIFT : 1) * (scale ? scale_load(scale, row + (size_t)(c / block)) : 1));
        for (int t = 0; t < N; t++) {
            const float *from = x[t < n ? t : 0];
            float *to = span + (size_t)t * (size_t)width - k0;
            for (int i = c; i < end; i += GROUP) copy_group(to + i, from + i, end - i, f);
        }
    }
    for (int t = 0; t < N; t++) {
        copied[t] = span + (size_t)t * (size_t)width - k0;
        for (int i = k0 + (k1 - k0 + GROUP - 1) / GROUP * GROUP; VECTORS > 1 && i < k0 + width; i += LANES)
            vstore(span + t * width + i - k0, vzero());
    }
}

/* Runs n tokens with the kernel for N; surplus tokens repeat the first and are discarded. Kernels for every n would
 * take long to build. */
INLINE void all_rows(float *const *y, const float *const *x, int n, const struct mat *w, const int R, const int N,
                     const bool is_fine) {
    const bool shared = shared_scales(w);
    struct mat plain = *w;
    if (shared || is_fine) plain.scale = NULL;
    const int block = scale_cols(&plain), chunk = STREAM * 4 / N < STREAM ? STREAM * 4 / N : STREAM;
    float span_x[SPAN_FLOATS + KERNEL_TOKENS * (UNIT + 16)] __attribute__((aligned(64)));
    V sum[STREAM * 4 + 8 * KERNEL_TOKENS];
    for (int r0 = 0, rows; r0 < w->rows; r0 += rows) {
        rows = w->rows - r0 < chunk ? w->rows - r0 : chunk;
        if (shared) {
            const int same = w->block_rows - (w->row0 + r0) % w->block_rows; /* rows that share a scale */
            rows = rows < same ? rows : same;
        }
        for (int i = 0; i < rows * N; i++) sum[i] = vzero();
        for (int k0 = 0, k1; k0 < w->cols; k0 = k1) {
            k1 = span_end(k0, w->cols, block, (R > 1 ? SPAN_FLOATS : SPAN_ALONE) / N);
            const float *copied[KERNEL_TOKENS];
            copy_span(span_x, copied, x, n, k0, k1, shared ? w : NULL, scale_row(w, r0), N);
            const struct piece p = {.w = &plain, .fine = w, .x = copied, .k0 = k0, .k1 = k1, .block = block};
            streams(&p, sum, r0, rows, R, N, is_fine);
        }
        for (int i = 0; i < rows; i++)
            for (int t = 0; t < n; t++) y[t][r0 + i] = vsum(sum[i * N + t]);
    }
}
/* NVFP4's scales: a float of its own for each 16 columns would cost more than multiplying each weight by its scale. */
INLINE bool fine_scales(const struct mat *w) {
    return FINE && w->scale && w->block_cols == FINE && w->cols > FINE && w->scale_dtype != DT_F32Z;
}
static GEMV_FN(gemv) {
    const int whole = VECTORS > 1 ? GROUP : BLOCK;
    /* a byte or a load that spans two blocks: no published model */
    const bool odd_blocks = w->scale && w->block_cols % whole && w->block_cols < w->cols;
    if (odd_blocks || (DTYPE == DT_I8 && w->scale && w->scale_dtype == DT_F32Z)) {
        gemv_scalar(y, x, n, w);
        return;
    }
#ifndef BY_SPLIT
    if (fine_scales(w)) {
        if (n == 1) all_rows_1(y[0], x, w, ROWS_1, true);
        for (int t = 0; n > 1 && t < n; t += 4) all_rows(y + t, x + t, n - t < 4 ? n - t : 4, w, ROWS_4, 4, true);
        return;
    }
#endif
    if (n == 1) {
#ifndef BY_SPLIT
        if (!shared_scales(w)) {
            all_rows_1(y[0], x, w, ROWS_1, false);
            return;
        }
#endif
        all_rows(y, x, n, w, ROWS_1, 1, false);
        return;
    }
    if (RARE) {
        for (int t = 0; t < n; t += 4) all_rows(y + t, x + t, n - t < 4 ? n - t : 4, w, ROWS_4, 4, false);
        return;
    }
    switch (n) {
    case 2: all_rows(y, x, n, w, ROWS_2, 2, false); break;
#if FORMAT_PLAIN(FORMAT) && defined ROWS_3
    case 3: all_rows(y, x, n, w, ROWS_3, 3, false); break;
#else
    case 3:
#endif
    case 4: all_rows(y, x, n, w, ROWS_4, 4, false); break;
    case 5:
    case 6: all_rows(y, x, n, w, ROWS_8, 6, false); break;
    default: all_rows(y, x, n, w, ROWS_8, 8, false);
    }
}

/* --- Transposed: y[c] = sum over r of w[r][c] * x[r] ------------------------------------------ */

#if FORMAT_PLAIN(FORMAT)
/* C vectors of columns starting at c, N tokens. All columns are in one scale block. `last` > 0: the last vector is
 * partial. */
INLINE void cols(float *const *y, const float *const *x, const struct mat *w, int c, int at, int last, const int C,
                 const int N) {
    const uint8_t *p = (const uint8_t *)w->data + bytes_to(c);
    const size_t b = w->scale ? (size_t)(c / w->block_cols) : 0;
    V sum[8][KERNEL_TOKENS];
    EACH (int v = 0; v < C; v++)
        EACH (int t = 0; t < N; t++) sum[v][t] = vzero();
    for (int r = 0; r < w->rows; r++, p += w->stride) {
        const float s = X_LIFT * scale_load(w, scale_row(w, r) + b);
        V xv[KERNEL_TOKENS];
        EACH (int t = 0; t < N; t++) xv[t] = vset1(x[t][r] * s);
        EACH (int v = 0; v < C; v++) {
            V wv = last && v == C - 1 ? LOAD_M(p + BYTES * v * LANES, last) : LOAD(p + BYTES * v * LANES);
            EACH (int t = 0; t < N; t++) sum[v][t] = vfma(wv, xv[t], sum[v][t]);
        }
    }
    EACH (int v = 0; v < C; v++)
        EACH (int t = 0; t < N; t++) {
            V out = SCALE_LIFT != 1 ? vmul(sum[v][t], vset1(SCALE_LIFT)) : sum[v][t];
            if (last && v == C - 1) vstorem(y[t] + at + v * LANES, out, last);
            else vstore(y[t] + at + v * LANES, out);
        }
}
INLINE void cols_block(float *const *y, const float *const *x, const struct mat *w, int c, int end, int c0, const int C,
                       const int N) {
    for (; c + C * LANES <= end; c += C * LANES) cols(y, x, w, c, c - c0, 0, C, N);
    for (; c < end; c += LANES) cols(y, x, w, c, c - c0, end - c < LANES ? end - c : 0, 1, N);
}
static GEVM_FN(gevm) {
    if (w->scale && w->scale_dtype == DT_F32Z) {
        gevm_scalar(y, x, n, w, c0, c1);
        return;
    }
    for (int t = 0; t < n;) {
        int step = n - t >= 4 ? 4 : n - t >= 2 ? 2 : 1;
        for (int c = c0; c < c1;) {
            int end = w->scale ? c - c % w->block_cols + w->block_cols : c1;
            if (end > c1) end = c1;
            if (step == 4) cols_block(y + t, x + t, w, c, end, c0, 2, 4);
            else if (step == 2) cols_block(y + t, x + t, w, c, end, c0, 4, 2);
            else cols_block(y + t, x + t, w, c, end, c0, 8, 1);
            c = end;
        }
        t += step;
    }
}
#define GEVM gevm
#else
#define GEVM NULL /* keep the reference */
#endif

/* --- Widening and decoding -------------------------------------------------------------------- */

INLINE V widened(V v) { return DTYPE == DT_E4M3 ? e4m3_nan(vmul(vmul(v, vset1(E4M3_X)), vset1(E4M3_POST))) : v; }
static WIDEN_FN(widen) {
    const int zero_ __attribute__((unused)) = zero_default(DTYPE);
    int i = 0;
    for (; n - i >= UNIT; i += UNIT) {
#define USE(j, v) vstore(out + i + (j), widened(v))
        EACH_WEIGHT((const uint8_t *)in + bytes_to(i), UNIT, USE);
#undef USE
    }
    if (i < n) {
        const int left = n - i;
#define USE(j, v) \
    do { \
        const int at_ = (j); \
        V v__ = widened(v); \
        if (left - at_ >= LANES) vstore(out + i + at_, v__); \
        else if (left > at_) vstorem(out + i + at_, v__, left - at_); \
    } while (0)
        EACH_WEIGHT((const uint8_t *)in + bytes_to(i), left, USE);
#undef USE
    }
}

static DECODE_FN(decode) {
    decode_scaled(out, w, r, c0, c1, widen, BLOCK, BYTES,
                  (DTYPE == DT_I4 || DTYPE == DT_I8) && w->scale_dtype == DT_F32Z);
}

const struct format_kernels FORMAT_JOIN(FORMAT_JOIN(ISA, _), FORMAT) = {
    .dtype = DTYPE, .gemv = gemv, .gevm = GEVM, .widen = widen, .decode = decode};

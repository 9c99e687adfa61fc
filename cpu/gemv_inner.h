/* GEMV and its transpose, written once over the vocabulary of simd_<isa>.h and compiled once an ISA.
 *
 * Several rows are walked side by side, because memory answers several streams faster than one, and because an x that is
 * in a register serves them all. Columns go by scale block: the block's product is summed without scale, and the scale is
 * applied once at its end. The sum of a row is: lane l takes columns l, l + LANES, ... of each block; blocks in order;
 * lanes at the end. Neither the rows nor the tokens beside it change that, so rows are free to be cut anywhere.
 *
 * E4M3 weights arrive too small by E4M3_X * E4M3_POST (simd_<isa>.h); the first goes on x, the second on the scale. */
#include <string.h>

enum {
    UNROLL = 64 / LANES,
    AHEAD = 2560, /* bytes that prefetch runs ahead in each row */
    PART = 512,   /* columns of a partial sum where no scale block ends it first */
    CHUNK = 32,   /* rows that go through a span of columns together */
    STREAM = 256, /* rows of one token's chunk, walked as ROWS_1 streams a quarter or so apart */
    SPAN_FLOATS = 6144,
};

INLINE float scale_get(const void *scale, uint8_t dtype, size_t i) {
    uint16_t h;
    float f;
    switch (dtype) {
    case DT_BF16: memcpy(&h, (const uint8_t *)scale + 2 * i, 2); return bf16_to_f32(h);
    case DT_F16: memcpy(&h, (const uint8_t *)scale + 2 * i, 2); return f16_to_f32(h);
    case DT_E8M0: return e8m0_to_f32(((const uint8_t *)scale)[i]);
    default: memcpy(&f, (const uint8_t *)scale + 4 * i, 4); return f;
    }
}

INLINE size_t format_bytes(int format) { return format == DT_F32 ? 4 : format == DT_E4M3 ? 1 : 2; }
INLINE V load_w(int format, const uint8_t *p) {
    return format == DT_F32 ? load_f32(p) : format == DT_BF16 ? load_bf16(p) : format == DT_F16 ? load_f16(p) : load_e4m3(p);
}
INLINE V load_wm(int format, const uint8_t *p, int n) {
    return format == DT_F32 ? load_f32m(p, n) : format == DT_BF16 ? load_bf16m(p, n) : format == DT_F16 ? load_f16m(p, n) : load_e4m3m(p, n);
}

/* One piece: R rows, r and then each `gap` further, columns [k0, k1), N tokens; R, N and format are constants where this is
 * inlined. */
struct piece {
    const struct mat *w;
    const float *const *x;
    int r, gap, k0, k1;
    int block;    /* columns of a scale block; at least PART ones where there are no blocks */
    int64_t jump; /* from row r to where the next piece begins, for prefetch: it runs on there past k1 */
};
INLINE void piece_rows(const struct piece *p, const uint8_t **row, size_t *scale_row, const int R) {
    const struct mat *w = p->w;
    EACH (int i = 0; i < R; i++) {
        const int r = p->r + i * p->gap;
        row[i] = (const uint8_t *)w->data + (size_t)r * w->stride;
        scale_row[i] = w->scale ? (size_t)((w->row0 + r * w->row_step) / w->block_rows) * (size_t)w->scale_stride : 0;
    }
}
/* A partial sum ends with its scale block, after PART columns, and with the row. */
INLINE int part_end(int c, int edge, int k1) {
    int end = c + PART < edge ? c + PART : edge;
    return end < k1 ? end : k1;
}
/* sum[row * N + token] += part * scale of block b. */
INLINE void piece_scale(const struct piece *p, V *sum, V part[8][KERNEL_TOKENS], const size_t *scale_row, int b, const float lift, const int R, const int N) {
    const struct mat *w = p->w;
    EACH (int i = 0; i < R; i++) {
        V s = vset1((w->scale ? scale_get(w->scale, w->scale_dtype, scale_row[i] + (size_t)b) : 1.0f) * lift);
        EACH (int t = 0; t < N; t++) sum[i * p->gap * N + t] = vfma(part[i][t], s, sum[i * p->gap * N + t]);
    }
}
/* One token's x is lifted as it is loaded; for several the span was copied lifted. */
INLINE V lift_x(V x, const int N, const int format) { return format == DT_E4M3 && N == 1 && E4M3_X != 1 ? vmul(x, vset1(E4M3_X)) : x; }
INLINE V load_x(const float *x, const int N, const int format) { return lift_x(vload(x), N, format); }

INLINE void piece(const struct piece *p, V *sum, const int R, const int N, const int format) {
    const size_t size = format_bytes(format), past = size * (size_t)p->k1;
    const uint8_t *row[8];
    size_t scale_row[8];
    piece_rows(p, row, scale_row, R);
    for (int c = p->k0, b = p->k0 / p->block, edge = (b + 1) * p->block; c < p->k1;) {
        const int end = part_end(c, edge, p->k1);
        V part[8][KERNEL_TOKENS];
        EACH (int i = 0; i < R; i++)
            EACH (int t = 0; t < N; t++) part[i][t] = vzero();
        for (; c + UNROLL * LANES <= end; c += UNROLL * LANES) {
            const size_t at = size * (size_t)c;
            int64_t ahead = (int64_t)(at + AHEAD);
            if (at + AHEAD >= past) ahead += p->jump - (int64_t)past;
            EACH (int i = 0; i < R; i++)
                EACH (size_t line = 0; line < size; line++) _mm_prefetch((const char *)row[i] + ahead + 64 * line, _MM_HINT_T0);
#ifdef E4M3_LINE
            if (format == DT_E4M3) {
                EACH (int i = 0; i < R; i++) {
                    V wv[UNROLL];
                    load_e4m3_line(row[i] + at, wv);
                    EACH (int t = 0; t < N; t++)
                        EACH (int u = 0; u < UNROLL; u++) part[i][t] = vfma(wv[u], load_x(p->x[t] + c + u * LANES, N, format), part[i][t]);
                }
                continue;
            }
#endif
            EACH (int u = 0; u < UNROLL; u++) {
                V xv[KERNEL_TOKENS];
                EACH (int t = 0; t < N; t++) xv[t] = load_x(p->x[t] + c + u * LANES, N, format);
                EACH (int i = 0; i < R; i++) {
                    V wv = load_w(format, row[i] + at + size * (size_t)(u * LANES));
                    EACH (int t = 0; t < N; t++) part[i][t] = vfma(wv, xv[t], part[i][t]);
                }
            }
        }
        for (; c < end; c += LANES) {
            const int n = end - c;
            V xv[KERNEL_TOKENS];
            EACH (int t = 0; t < N; t++) xv[t] = n < LANES ? lift_x(vloadm(p->x[t] + c, n), N, format) : load_x(p->x[t] + c, N, format);
            EACH (int i = 0; i < R; i++) {
                const uint8_t *from = row[i] + size * (size_t)c;
                V wv = n < LANES ? load_wm(format, from, n) : load_w(format, from);
                EACH (int t = 0; t < N; t++) part[i][t] = vfma(wv, xv[t], part[i][t]);
            }
        }
        c = end;
        piece_scale(p, sum, part, scale_row, b, format == DT_E4M3 ? E4M3_POST : 1.0f, R, N);
        if (c == edge) b++, edge += p->block;
    }
}

/* E2M1 in blocks of an even number of columns: 2 * LANES columns a step, even and odd ones apart. */
INLINE void piece_e2m1(const struct piece *p, V *sum, const int R, const int N) {
    const uint8_t *row[8];
    size_t scale_row[8];
    piece_rows(p, row, scale_row, R);
    for (int c = p->k0, b = p->k0 / p->block, edge = (b + 1) * p->block; c < p->k1;) {
        const int end = part_end(c, edge, p->k1);
        V part[8][KERNEL_TOKENS];
        EACH (int i = 0; i < R; i++) {
            EACH (int t = 0; t < N; t++) part[i][t] = vzero();
            _mm_prefetch((const char *)row[i] + c / 2 + AHEAD / 2, _MM_HINT_T0);
        }
        for (; c < end; c += 2 * LANES) {
            const int n = end - c;
            const bool whole = n >= 2 * LANES;
            V even[KERNEL_TOKENS], odd[KERNEL_TOKENS];
            EACH (int t = 0; t < N; t++) {
                const float *x = p->x[t] + c;
                V lo = n >= LANES ? vload(x) : vloadm(x, n), hi = whole ? vload(x + LANES) : n > LANES ? vloadm(x + LANES, n - LANES) : vzero();
                vsplit(lo, hi, &even[t], &odd[t]);
            }
            EACH (int i = 0; i < R; i++) {
                V we, wo;
                if (whole) load_e2m1(row[i] + c / 2, &we, &wo);
                else load_e2m1m(row[i] + c / 2, (n + 1) / 2, &we, &wo);
                EACH (int t = 0; t < N; t++) part[i][t] = vfma(wo, odd[t], vfma(we, even[t], part[i][t]));
            }
        }
        c = end;
        piece_scale(p, sum, part, scale_row, b, 1.0f, R, N);
        if (c == edge) b++, edge += p->block;
    }
}
INLINE void any_piece(const struct piece *p, V *sum, const int R, const int N, const int format) {
    if (format == DT_E2M1) piece_e2m1(p, sum, R, N);
    else piece(p, sum, R, N, format);
}

/* A chunk of rows goes through the columns in spans whose x fits L1: with several tokens a whole row's x would come from
 * L2 again for each R rows. The sums stay as vectors between the spans, so spans do not show in the result. */

INLINE int span_end(int k0, int cols, int block, int fit) {
    for (int k1 = k0;;) { /* whole parts, which always fit */
        int end = part_end(k1, (k1 / block + 1) * block, cols);
        if (end - k0 > fit) return k1;
        if ((k1 = end) == cols) return cols;
    }
}
/* copied[t][c] = x[t][c] for k0 <= c < k1, side by side and aligned whatever the distance of the tokens is. */
INLINE void copy_span(float *span, const float **copied, const float *const *x, int k0, int k1, const int N, const int format) {
    const int width = (k1 - k0 + LANES - 1) / LANES * LANES;
    const V f = vset1(format == DT_E4M3 ? E4M3_X : 1.0f);
    for (int t = 0; t < N; t++, span += width) {
        for (int c = k0; c < k1; c += LANES) vstore(span + c - k0, vmul(k1 - c < LANES ? vloadm(x[t] + c, k1 - c) : vload(x[t] + c), f));
        copied[t] = span - k0;
    }
}

/* One token. Each of R streams takes a stretch of the rows and goes through it from row to row, as memory likes it best: few
 * streams, far apart, each straight on. Beside rows next to each other this gives a tenth more where memory is the limit. */
INLINE void all_rows_1(float *y, const float *const *x, const struct mat *w, const int R, const int format) {
    const int block = w->scale && w->block_cols < w->cols ? w->block_cols : w->cols;
    const int64_t stride = (int64_t)w->stride;
    for (int r0 = 0; r0 < w->rows; r0 += STREAM) {
        const int rows = w->rows - r0 < STREAM ? w->rows - r0 : STREAM, gap = rows / R;
        V sum[STREAM];
        for (int i = 0; i < rows; i++) sum[i] = vzero();
        struct piece p = {w, x, r0, gap, 0, w->cols, block, stride};
        for (; p.r < r0 + gap; p.r++) {
            if (p.r == r0 + gap - 1) p.jump = (rows - gap + 1) * stride; /* the streams begin again in the next chunk */
            any_piece(&p, sum + (p.r - r0), R, 1, format);
        }
        for (p.r = r0 + gap * R, p.gap = 1, p.jump = stride; p.r < r0 + rows; p.r++) any_piece(&p, sum + (p.r - r0), 1, 1, format);
        for (int i = 0; i < rows; i++) y[r0 + i] = vsum(sum[i]);
    }
}

INLINE void all_rows(float *const *y, const float *const *x, const struct mat *w, const int R, const int N, const int format) {
    const int block = w->scale && w->block_cols < w->cols ? w->block_cols : w->cols;
    const int64_t stride = (int64_t)w->stride;
    for (int r0 = 0; r0 < w->rows; r0 += CHUNK) {
        const int rows = w->rows - r0 < CHUNK ? w->rows - r0 : CHUNK;
        V sum[CHUNK * KERNEL_TOKENS];
        float span_x[SPAN_FLOATS + KERNEL_TOKENS * LANES] __attribute__((aligned(64)));
        for (int i = 0; i < rows; i++)
            EACH (int t = 0; t < N; t++) sum[i * N + t] = vzero();
        for (int k0 = 0, k1; k0 < w->cols; k0 = k1) {
            k1 = span_end(k0, w->cols, block, SPAN_FLOATS / N);
            const float *copied[KERNEL_TOKENS];
            copy_span(span_x, copied, x, k0, k1, N, format);
            struct piece p = {w, copied, r0, 1, k0, k1, block, 0};
            const int64_t size = format == DT_E2M1 ? 1 : (int64_t)format_bytes(format);
            for (; p.r + R <= r0 + rows; p.r += R) {
                p.jump = R * stride + size * k0; /* the rows below, or else the next span from the chunk's first row */
                if (p.r + 2 * R > r0 + rows && k1 < w->cols) p.jump = (r0 - p.r) * stride + size * k1;
                any_piece(&p, sum + (p.r - r0) * N, R, N, format);
            }
            for (; R > 1 && p.r < r0 + rows; p.r++) {
                p.jump = stride + size * k0;
                any_piece(&p, sum + (p.r - r0) * N, 1, N, format);
            }
        }
        for (int i = 0; i < rows; i++)
            EACH (int t = 0; t < N; t++) y[t][r0 + i] = vsum(sum[i * N + t]);
    }
}
INLINE void all_tokens(float *const *y, const float *const *x, int n, const struct mat *w, const int format) {
    switch (n) {
    case 1: all_rows_1(y[0], x, w, ROWS_1, format); break;
    case 2: all_rows(y, x, w, ROWS_4, 2, format); break;
    case 3: all_rows(y, x, w, ROWS_4, 3, format); break;
    case 4: all_rows(y, x, w, ROWS_4, 4, format); break;
    case 5: all_rows(y, x, w, ROWS_8, 5, format); break;
    case 6: all_rows(y, x, w, ROWS_8, 6, format); break;
    case 7: all_rows(y, x, w, ROWS_8, 7, format); break;
    case 8: all_rows(y, x, w, ROWS_8, 8, format); break;
    }
}
static GEMV_FN(gemv_f32) { all_tokens(y, x, n, w, DT_F32); }
static GEMV_FN(gemv_bf16) { all_tokens(y, x, n, w, DT_BF16); }
static GEMV_FN(gemv_f16) { all_tokens(y, x, n, w, DT_F16); }
static GEMV_FN(gemv_e4m3) { all_tokens(y, x, n, w, DT_E4M3); }
static GEMV_FN(gemv_e2m1) {
    if (w->scale && w->block_cols % 2 && w->block_cols < w->cols) gemv_scalar(y, x, n, w); /* a byte in two blocks: nobody publishes that */
    else all_tokens(y, x, n, w, DT_E2M1);
}

/* --- Transposed: y[c] = sum over r of w[r][c] * x[r] --- */

/* C vectors of columns from c on, N tokens. All columns lie in one scale block. `last` > 0: the last vector is partial. */
INLINE void cols(float *const *y, const float *const *x, const struct mat *w, int c, int at, int last, const int C, const int N, const int format) {
    const size_t size = format_bytes(format);
    const uint8_t *p = (const uint8_t *)w->data + size * (size_t)c;
    size_t b = w->scale ? (size_t)(c / w->block_cols) : 0;
    V sum[8][KERNEL_TOKENS];
    EACH (int v = 0; v < C; v++)
        EACH (int t = 0; t < N; t++) sum[v][t] = vzero();
    for (int r = 0; r < w->rows; r++, p += w->stride) {
        float s = format == DT_E4M3 ? E4M3_X : 1.0f;
        if (w->scale) s *= scale_get(w->scale, w->scale_dtype, (size_t)((w->row0 + r * w->row_step) / w->block_rows) * (size_t)w->scale_stride + b);
        V xv[KERNEL_TOKENS];
        EACH (int t = 0; t < N; t++) xv[t] = vset1(x[t][r] * s);
        EACH (int v = 0; v < C; v++) {
            V wv = last && v == C - 1 ? load_wm(format, p + size * (size_t)(v * LANES), last) : load_w(format, p + size * (size_t)(v * LANES));
            EACH (int t = 0; t < N; t++) sum[v][t] = vfma(wv, xv[t], sum[v][t]);
        }
    }
    EACH (int v = 0; v < C; v++)
        EACH (int t = 0; t < N; t++) {
            V out = format == DT_E4M3 ? vmul(sum[v][t], vset1(E4M3_POST)) : sum[v][t];
            if (last && v == C - 1) vstorem(y[t] + at + v * LANES, out, last);
            else vstore(y[t] + at + v * LANES, out);
        }
}
INLINE void cols_block(float *const *y, const float *const *x, const struct mat *w, int c, int end, int c0, const int C, const int N, const int format) {
    for (; c + C * LANES <= end; c += C * LANES) cols(y, x, w, c, c - c0, 0, C, N, format);
    for (; c < end; c += LANES) cols(y, x, w, c, c - c0, end - c < LANES ? end - c : 0, 1, N, format);
}
INLINE void all_cols(float *const *y, const float *const *x, int n, const struct mat *w, int c0, int c1, const int format) {
    for (int t = 0; t < n;) {
        int step = n - t >= 4 ? 4 : n - t >= 2 ? 2 : 1;
        for (int c = c0; c < c1;) {
            int end = w->scale ? c - c % w->block_cols + w->block_cols : c1;
            if (end > c1) end = c1;
            if (step == 4) cols_block(y + t, x + t, w, c, end, c0, 2, 4, format);
            else if (step == 2) cols_block(y + t, x + t, w, c, end, c0, 4, 2, format);
            else cols_block(y + t, x + t, w, c, end, c0, 8, 1, format);
            c = end;
        }
        t += step;
    }
}
static GEVM_FN(gevm_f32) { all_cols(y, x, n, w, c0, c1, DT_F32); }
static GEVM_FN(gevm_bf16) { all_cols(y, x, n, w, c0, c1, DT_BF16); }
static GEVM_FN(gevm_f16) { all_cols(y, x, n, w, c0, c1, DT_F16); }
static GEVM_FN(gevm_e4m3) { all_cols(y, x, n, w, c0, c1, DT_E4M3); }

/* --- Widening and decoding --- */

INLINE void widen_any(float *out, const uint8_t *in, int n, const int format) {
    const size_t size = format_bytes(format);
    for (int i = 0; i < n; i += LANES) {
        const int m = n - i;
        V v = m < LANES ? load_wm(format, in + size * (size_t)i, m) : load_w(format, in + size * (size_t)i);
        if (format == DT_E4M3) v = e4m3_nan(vmul(vmul(v, vset1(E4M3_X)), vset1(E4M3_POST)));
        if (m < LANES) vstorem(out + i, v, m);
        else vstore(out + i, v);
    }
}
static WIDEN_FN(widen_bf16) { widen_any(out, in, n, DT_BF16); }
static WIDEN_FN(widen_f16) { widen_any(out, in, n, DT_F16); }
static WIDEN_FN(widen_e4m3) { widen_any(out, in, n, DT_E4M3); }
static WIDEN_FN(widen_e2m1) {
    const uint8_t *p = in;
    int i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        V even, odd, a, b;
        load_e2m1(p + i / 2, &even, &odd);
        vjoin(even, odd, &a, &b);
        vstore(out + i, a);
        vstore(out + i + LANES, b);
    }
    for (; i < n; i++) out[i] = e2m1_to_f32((uint8_t)(p[i / 2] >> (i % 2 * 4)));
}

/* c0 of an E2M1 row is even here or the span is left to the reference. */
INLINE void decode(float *out, const struct mat *w, int r, int c0, int c1, widen_fn widen) {
    const uint8_t *row = (const uint8_t *)w->data + (size_t)r * w->stride;
    if (w->dtype == DT_E2M1 && c0 % 2 && c0 < c1) *out++ = mat_at(w, r, c0++);
    widen(out, row + (w->dtype == DT_E2M1 ? (size_t)(c0 / 2) : format_bytes(w->dtype) * (size_t)c0), c1 - c0);
    if (!w->scale) return;
    size_t at = (size_t)((w->row0 + r * w->row_step) / w->block_rows) * (size_t)w->scale_stride;
    for (int c = c0; c < c1;) {
        int end = c - c % w->block_cols + w->block_cols;
        float f = scale_get(w->scale, w->scale_dtype, at + (size_t)(c / w->block_cols));
        V s = vset1(f);
        for (end = end < c1 ? end : c1; c + LANES <= end; c += LANES) vstore(out + c - c0, vmul(vload(out + c - c0), s));
        for (; c < end; c++) out[c - c0] *= f;
    }
}
static WIDEN_FN(widen_copy) { memcpy(out, in, (size_t)n * 4); }
static DECODE_FN(decode_f32) { decode(out, w, r, c0, c1, widen_copy); }
static DECODE_FN(decode_bf16) { decode(out, w, r, c0, c1, widen_bf16); }
static DECODE_FN(decode_f16) { decode(out, w, r, c0, c1, widen_f16); }
static DECODE_FN(decode_e4m3) { decode(out, w, r, c0, c1, widen_e4m3); }
static DECODE_FN(decode_e2m1) { decode(out, w, r, c0, c1, widen_e2m1); }

static __attribute__((unused)) void fill_gemv(struct kernels *k) {
    static const struct {
        uint8_t format;
        gemv_fn gemv;
        gevm_fn gevm;
        widen_fn widen;
        decode_fn decode;
    } rows[] = {
        {DT_F32, gemv_f32, gevm_f32, widen_copy, decode_f32}, {DT_BF16, gemv_bf16, gevm_bf16, widen_bf16, decode_bf16},
        {DT_F16, gemv_f16, gevm_f16, widen_f16, decode_f16},  {DT_E4M3, gemv_e4m3, gevm_e4m3, widen_e4m3, decode_e4m3},
        {DT_E2M1, gemv_e2m1, NULL, widen_e2m1, decode_e2m1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        k->gemv[rows[i].format] = rows[i].gemv;
        if (rows[i].gevm) k->gevm[rows[i].format] = rows[i].gevm;
        k->widen[rows[i].format] = rows[i].widen;
        k->decode[rows[i].format] = rows[i].decode;
    }
}
